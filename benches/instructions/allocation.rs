//! Calls for which the kubelet waits: Allocate and GetPreferredAllocation.

use std::collections::BTreeMap;

use podmeter::model::DeviceId;
use podmeter::plugin::{Config, NodeFacts, ResourceConfig, answer, offers};
use podmeter::preference::{Condition, SlotPolicy, choose_gpus, choose_slots};

use crate::full_node;
use crate::links::{Node, dgx1_volta, nvswitch};
use crate::node::Devices;
use crate::rounds;

/// One of 8 × 32 slots.
pub fn allocate(count: u64) {
    let slots = full_node::SLOTS;
    let yaml = format!("resources: [{{kind: nvidia, sharing: {{timeSlicing: {{replicas: {slots}}}}}}}]");
    let config: Config = serde_saphyr::from_str(&yaml).unwrap();
    let config: ResourceConfig = config.resolve(|_| panic!("no file is named")).unwrap().remove(0);
    let offer = offers(&config, &Devices::working().inventory, &[]).offers.remove(0);
    assert_eq!(offer.devices.len(), full_node::GPUS * full_node::SLOTS);
    let facts = NodeFacts::default();
    let ids: Vec<DeviceId> = vec![offer.devices[100].id.clone()];
    rounds(count, |_| (), |()| answer(&config, &offer, &ids, &facts).unwrap());
}

/// Four of 8 × 32 slots.
pub fn prefer_slots(count: u64) {
    let node = nvswitch(full_node::GPUS);
    let mut request = node.request((1 << full_node::GPUS) - 1, 0, 4);
    let whole = std::mem::take(&mut request.available);
    for gpu in whole {
        let slot = |slot| {
            let mut candidate = gpu.clone();
            candidate.id = format!("{}::{slot}", gpu.gpu).as_str().into();
            candidate
        };
        request.available.extend((0..full_node::SLOTS).map(slot));
    }
    let offered = node.gpus.iter().map(|gpu| (gpu.clone(), full_node::SLOTS)).collect();
    let conditions = conditions(&node);
    rounds(
        count,
        |_| (),
        |()| {
            let choice = choose_slots(&request, &node.topology, &conditions, &offered, SlotPolicy::Distributed);
            assert_eq!(choice.ids.len(), 4);
            choice
        },
    );
}

/// Eight of sixteen GPUs with equal links.
pub fn prefer_nvswitch(count: u64) {
    prefer(count, &nvswitch(16), 8);
}

/// Four of eight GPUs in a cube mesh.
pub fn prefer_mesh(count: u64) {
    prefer(count, &dgx1_volta(), 4);
}

fn prefer(count: u64, node: &Node, size: usize) {
    let request = node.request((1 << node.gpus.len()) - 1, 0, size);
    let conditions = conditions(node);
    rounds(
        count,
        |_| (),
        |()| {
            let choice = choose_gpus(&request, &node.topology, &conditions);
            assert_eq!(choice.ids.len(), size);
            choice
        },
    );
}

fn conditions(node: &Node) -> BTreeMap<podmeter::model::GpuUuid, Condition> {
    node.gpus.iter().map(|gpu| (gpu.clone(), Condition { load: Some(0.25), ..Condition::default() })).collect()
}
