use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use serde::{Deserialize, Serialize};

use super::device_manager::{Assignment, Place};
use crate::files;

/// The file in the device plugin directory, in the kubelet's own layout.
pub const FILE: &str = "kubelet_internal_checkpoint";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Checkpoint {
    pub data: Data,
    pub checksum: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Data {
    /// `null` in a kubelet that never allocated.
    #[serde(deserialize_with = "or_empty")]
    pub pod_device_entries: Vec<PodDevicesEntry>,
    #[serde(deserialize_with = "or_empty")]
    pub registered_devices: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodDevicesEntry {
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    #[serde(rename = "ContainerName")]
    pub container_name: String,
    #[serde(rename = "ResourceName")]
    pub resource_name: String,
    #[serde(rename = "DeviceIDs")]
    pub device_ids: BTreeMap<i64, Vec<String>>,
    /// Base64.
    #[serde(rename = "AllocResp")]
    pub alloc_resp: String,
}

fn or_empty<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Checkpoint {
    #[must_use]
    pub fn new(pod_device_entries: Vec<PodDevicesEntry>, registered_devices: BTreeMap<String, Vec<String>>) -> Self {
        let data = Data { pod_device_entries, registered_devices };
        Self { checksum: u64::from(fnv32a(&to_json(&data))), data }
    }

    /// Absent, unreadable and corrupt have the same effect in a kubelet: it starts without allocations.
    #[must_use]
    pub fn read(directory: &Path) -> Option<Self> {
        let text = fs::read(directory.join(FILE)).ok()?;
        let checkpoint: Self = serde_json::from_slice(&text).ok()?;
        (checkpoint.checksum == u64::from(fnv32a(&to_json(&checkpoint.data)))).then_some(checkpoint)
    }

    pub fn write(&self, directory: &Path) -> io::Result<()> {
        files::replace(&directory.join(FILE), &to_json(self), files::OWNER_ONLY).map(drop)
    }
}

impl PodDevicesEntry {
    #[must_use]
    pub fn new((pod_uid, container, resource): &Place, assignment: &Assignment) -> Self {
        Self {
            pod_uid: pod_uid.clone(),
            container_name: container.clone(),
            resource_name: resource.clone(),
            device_ids: assignment.by_node.clone(),
            alloc_resp: STANDARD.encode(&assignment.answer),
        }
    }

    #[must_use]
    pub fn assignment(&self) -> Assignment {
        Assignment { by_node: self.device_ids.clone(), answer: STANDARD.decode(&self.alloc_resp).unwrap_or_default() }
    }
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("strings, numbers and maps with text or number keys always serialize")
}

/// The kubelet hashes a dump of its Go structures with this function; we hash the JSON of `Data`.
fn fnv32a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_with_a_wrong_checksum_is_as_good_as_none() {
        let directory = tempfile::tempdir().unwrap();
        let mut checkpoint = Checkpoint::new(Vec::new(), BTreeMap::new());
        checkpoint.write(directory.path()).unwrap();
        assert_eq!(Checkpoint::read(directory.path()), Some(checkpoint.clone()));
        checkpoint.checksum += 1;
        checkpoint.write(directory.path()).unwrap();
        assert_eq!(Checkpoint::read(directory.path()), None);
    }
}
