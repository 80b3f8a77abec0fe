//! The node on which the captures were recorded: two plugins, and the pods that ran there.

use crate::support::stand_in_plugin::StandInPlugin;
use podmeter::simulation::kubelet::ListedDevice;
use serde_json::Value;

use super::captures;
use super::kubelet::{AdmissionOutcome, ContainerSpec, DeviceCount, KubeletNode, Options, PodSpec, node};

pub const GPU: &str = "lab.example.com/gpu";
pub const SAMPLE: &str = "example.com/resource";

/// With the devices of both plugins advertised.
pub struct Lab {
    pub node: KubeletNode,
    pub gpu: Option<StandInPlugin>,
    pub sample: Option<StandInPlugin>,
}

impl std::ops::Deref for Lab {
    type Target = KubeletNode;

    fn deref(&self) -> &KubeletNode {
        &self.node
    }
}

/// No pods yet.
pub async fn empty(options: Options) -> Lab {
    let node = node(options).await;
    let mut lab = Lab { node, gpu: None, sample: None };
    lab.start_gpu_plugin(gpus()).await;
    lab.start_sample_plugin().await;
    lab
}

/// With the two pods that most captures show.
pub async fn with_pods() -> Lab {
    let lab = empty(Options::default()).await;
    lab.runs(basic()).await;
    lab.runs(without_devices()).await;
    lab
}

impl Lab {
    pub async fn start_gpu_plugin(&mut self, devices: Vec<ListedDevice>) {
        let count = devices.len();
        self.gpu = Some(StandInPlugin::start(&self.device_plugin_directory(), GPU, devices));
        self.allocatable_becomes(GPU, count).await;
    }

    pub async fn start_sample_plugin(&mut self) {
        let devices = vec![ListedDevice::new("Dev-1"), ListedDevice::new("Dev-2")];
        self.sample = Some(StandInPlugin::start(&self.device_plugin_directory(), SAMPLE, devices));
        self.allocatable_becomes(SAMPLE, 2).await;
    }

    /// Kills it and waits until the kubelet has noticed: a new one must not be taken for the old.
    pub async fn stop_gpu_plugin(&mut self) {
        self.gpu = None;
        self.allocatable_becomes(GPU, 0).await;
    }

    pub async fn stop_sample_plugin(&mut self) {
        self.sample = None;
        self.allocatable_becomes(SAMPLE, 0).await;
    }

    pub fn gpu(&self) -> &StandInPlugin {
        self.gpu.as_ref().expect("the GPU plugin runs")
    }

    pub async fn allocatable_becomes(&self, resource: &str, allocatable: usize) {
        let is = |count: &DeviceCount| count.allocatable == allocatable;
        let became = self.node_status_becomes(|counts| counts.get(resource).is_some_and(is)).await;
        assert!(became, "{resource}: never {allocatable} allocatable but {:?}", self.node_status());
    }

    pub async fn lists_as(&self, capture: &str) {
        assert_eq!(captures::sorted_list(self.list().await), captures::list(capture), "List in {capture}");
    }

    pub async fn offers_as(&self, capture: &str) {
        let answer = captures::sorted_allocatable(self.allocatable().await);
        assert_eq!(answer, captures::allocatable(capture), "GetAllocatableResources in {capture}");
    }

    pub fn remembers_as(&self, capture: &str) {
        let file = self.device_plugin_directory().join("kubelet_internal_checkpoint");
        let ours = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let theirs = captures::json_of(&format!("{capture}.checkpoint.json"));
        assert_eq!(comparable(ours), comparable(theirs), "checkpoint in {capture}");
    }

    pub async fn answers_as(&self, capture: &str) {
        self.lists_as(capture).await;
        self.offers_as(capture).await;
        self.remembers_as(capture);
    }
}

/// A checkpoint without orders, which are random in a real one, the checksum over Go's memory, and the plugin's answer.
fn comparable(mut checkpoint: Value) -> Value {
    assert!(checkpoint["Checksum"].is_u64());
    checkpoint["Checksum"] = Value::Null;
    let mut entries = checkpoint["Data"]["PodDeviceEntries"].take();
    for entry in entries.as_array_mut().into_iter().flatten() {
        entry["DeviceIDs"].as_object_mut().unwrap().values_mut().for_each(sort);
        entry["AllocResp"] = Value::Null;
    }
    sort(&mut entries);
    checkpoint["Data"]["PodDeviceEntries"] = entries;
    checkpoint["Data"]["RegisteredDevices"].as_object_mut().unwrap().values_mut().for_each(sort);
    checkpoint
}

fn sort(array: &mut Value) {
    if let Some(items) = array.as_array_mut() {
        items.sort_by_key(ToString::to_string);
    }
}

pub fn gpus() -> Vec<ListedDevice> {
    (0..4).map(|index| ListedDevice::new(&format!("gpu-{index}")).on_nodes(&[0])).collect()
}

pub fn basic() -> PodSpec {
    let main = ContainerSpec::new("main").asks(SAMPLE, 1);
    PodSpec::new("default", "basic").uid("dad287ff47b8747690ba581b7b9c0da6").from_manifest().container(main)
}

pub fn without_devices() -> PodSpec {
    PodSpec::new("default", "nodev").from_manifest().container(ContainerSpec::new("main"))
}

pub fn two_devices() -> PodSpec {
    one_container("team-a", "two-dev", 2).uid("229836ee3ad078911e99a2b8134d6713").from_manifest()
}

pub fn four_devices() -> PodSpec {
    one_container("team-a", "four-dev", 4).uid("d452931742096514a8cbbbfe8e222cb5").from_manifest()
}

pub fn one_container(namespace: &str, name: &str, gpus: usize) -> PodSpec {
    PodSpec::new(namespace, name).container(ContainerSpec::new("main").asks(GPU, gpus))
}
