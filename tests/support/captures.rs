//! The recorded answers in `tests/captures/`, and the same JSON for our own messages.

use std::path::PathBuf;

use podmeter::wire::v1;
use prost::Message;
use serde_json::{Map, Value, json};

pub fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures").join(file)
}

pub fn bytes(file: &str) -> Vec<u8> {
    std::fs::read(path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

pub fn json_of(file: &str) -> Value {
    serde_json::from_slice(&bytes(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Order apart.
pub fn list(name: &str) -> v1::ListPodResourcesResponse {
    sorted_list(v1::ListPodResourcesResponse::decode(bytes(&format!("{name}.list.pb")).as_slice()).unwrap())
}

/// Order apart.
pub fn allocatable(name: &str) -> v1::AllocatableResourcesResponse {
    sorted_allocatable(v1::AllocatableResourcesResponse::decode(bytes(&format!("{name}.alloc.pb")).as_slice()).unwrap())
}

/// Containers keep their order: it is the manifest's.
pub fn sorted_list(mut response: v1::ListPodResourcesResponse) -> v1::ListPodResourcesResponse {
    response.pod_resources.sort_by_key(|pod| (pod.namespace.clone(), pod.name.clone()));
    for container in response.pod_resources.iter_mut().flat_map(|pod| &mut pod.containers) {
        container.devices.sort_by_key(device_key);
    }
    response
}

pub fn sorted_allocatable(mut response: v1::AllocatableResourcesResponse) -> v1::AllocatableResourcesResponse {
    response.devices.sort_by_key(device_key);
    response
}

fn device_key(entry: &v1::ContainerDevices) -> (String, Vec<String>, Vec<i64>) {
    let nodes = entry.topology.iter().flat_map(|topology| &topology.nodes).map(|node| node.id).collect();
    (entry.resource_name.clone(), entry.device_ids.clone(), nodes)
}

pub fn list_json(response: &v1::ListPodResourcesResponse) -> Value {
    message([("pod_resources", many(&response.pod_resources, pod_json))])
}

pub fn pod_json(pod: &v1::PodResources) -> Value {
    message([
        ("name", text(&pod.name)),
        ("namespace", text(&pod.namespace)),
        ("containers", many(&pod.containers, container_json)),
        ("cpu_ids", many(&pod.cpu_ids, number)),
        ("memory", many(&pod.memory, memory_json)),
    ])
}

pub fn allocatable_json(response: &v1::AllocatableResourcesResponse) -> Value {
    message([
        ("devices", many(&response.devices, devices_json)),
        ("cpu_ids", many(&response.cpu_ids, number)),
        ("memory", many(&response.memory, memory_json)),
    ])
}

fn container_json(container: &v1::ContainerResources) -> Value {
    message([
        ("name", text(&container.name)),
        ("devices", many(&container.devices, devices_json)),
        ("cpu_ids", many(&container.cpu_ids, number)),
        ("memory", many(&container.memory, memory_json)),
        ("dynamic_resources", many(&container.dynamic_resources, claim_json)),
    ])
}

fn devices_json(entry: &v1::ContainerDevices) -> Value {
    message([
        ("resource_name", text(&entry.resource_name)),
        ("device_ids", many(&entry.device_ids, |id| json!(id))),
        ("topology", entry.topology.as_ref().map(topology_json)),
    ])
}

fn topology_json(topology: &v1::TopologyInfo) -> Value {
    let node = |node: &v1::NumaNode| message([("ID", (node.id != 0).then(|| number(&node.id)))]);
    message([("nodes", many(&topology.nodes, node))])
}

fn memory_json(memory: &v1::ContainerMemory) -> Value {
    message([
        ("memory_type", text(&memory.memory_type)),
        ("size", Some(json!(memory.size.to_string()))),
        ("topology", memory.topology.as_ref().map(topology_json)),
    ])
}

fn claim_json(claim: &v1::DynamicResource) -> Value {
    let device = |device: &v1::ClaimResource| {
        message([
            ("cdi_devices", many(&device.cdi_devices, |cdi| message([("name", text(&cdi.name))]))),
            ("driver_name", text(&device.driver_name)),
            ("pool_name", text(&device.pool_name)),
            ("device_name", text(&device.device_name)),
            ("share_id", device.share_id.as_deref().map(|id| json!(id))),
        ])
    };
    message([
        ("claim_name", text(&claim.claim_name)),
        ("claim_namespace", text(&claim.claim_namespace)),
        ("claim_resources", many(&claim.claim_resources, device)),
    ])
}

fn message<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let present = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(present.collect::<Map<_, _>>())
}

fn text(value: &str) -> Option<Value> {
    (!value.is_empty()).then(|| json!(value))
}

fn many<T>(items: &[T], json: impl Fn(&T) -> Value) -> Option<Value> {
    (!items.is_empty()).then(|| items.iter().map(json).collect())
}

fn number(value: &i64) -> Value {
    json!(value.to_string())
}
