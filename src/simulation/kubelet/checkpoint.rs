//! The checkpoint file in the device plugin directory, in the kubelet's layout.
//!
//! In: what containers were given, and the healthy devices of each resource. Out: the same after a restart.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use serde::{Deserialize, Serialize};

use super::device_manager::{Assignment, AssignmentKey};
use crate::files;

const FILE: &str = "kubelet_internal_checkpoint";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SimulatedCheckpoint {
    pub data: SimulatedCheckpointData,
    /// The checksum, which is not checked; the kubelet's is a hash of its Go structures.
    pub checksum: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SimulatedCheckpointData {
    pub pod_device_entries: Vec<SimulatedPodDevices>,
    pub registered_devices: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct SimulatedPodDevices {
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    pub container_name: String,
    pub resource_name: String,
    #[serde(rename = "DeviceIDs")]
    pub device_ids: BTreeMap<i64, Vec<String>>,
    /// The answer to Allocate, in Base64.
    pub alloc_resp: String,
}

impl SimulatedCheckpoint {
    pub fn new(
        pod_device_entries: Vec<SimulatedPodDevices>,
        registered_devices: BTreeMap<String, Vec<String>>,
    ) -> Self {
        Self { data: SimulatedCheckpointData { pod_device_entries, registered_devices }, checksum: 0 }
    }

    /// Reads the file. Where it is absent, unreadable or corrupt, a kubelet starts without allocations.
    pub fn read(directory: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(directory.join(FILE)).ok()?).ok()
    }

    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let json = serde_json::to_vec(self)?;
        files::replace(&directory.join(FILE), &json, files::OWNER_ONLY).map(drop)
    }
}

impl SimulatedPodDevices {
    pub fn new((pod_uid, container, resource): &AssignmentKey, assignment: &Assignment) -> Self {
        Self {
            pod_uid: pod_uid.clone(),
            container_name: container.clone(),
            resource_name: resource.clone(),
            device_ids: assignment.by_node.clone(),
            alloc_resp: STANDARD.encode(&assignment.answer),
        }
    }

    pub fn assignment(&self) -> Assignment {
        Assignment { by_node: self.device_ids.clone(), answer: STANDARD.decode(&self.alloc_resp).unwrap_or_default() }
    }
}
