use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::device_manager::{Assignment, Place};

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
    pub pod_device_entries: Vec<Entry>,
    #[serde(deserialize_with = "or_empty")]
    pub registered_devices: BTreeMap<String, Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
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
    pub fn new(pod_device_entries: Vec<Entry>, registered_devices: BTreeMap<String, Vec<String>>) -> Self {
        let data = Data { pod_device_entries, registered_devices };
        Self { checksum: u64::from(fnv32a(&to_json(&data))), data }
    }

    /// Absent, unreadable and corrupt all mean the same to a kubelet: nothing is known.
    #[must_use]
    pub fn read(directory: &Path) -> Option<Self> {
        let text = fs::read(directory.join(FILE)).ok()?;
        let checkpoint: Self = serde_json::from_slice(&text).ok()?;
        (checkpoint.checksum == u64::from(fnv32a(&to_json(&checkpoint.data)))).then_some(checkpoint)
    }

    /// A temporary file with mode 0600, renamed into place.
    pub fn write(&self, directory: &Path, temporary: &str) -> io::Result<()> {
        let path = directory.join(temporary);
        fs::write(&path, to_json(self))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        fs::rename(path, directory.join(FILE))
    }
}

impl Entry {
    #[must_use]
    pub fn new((pod_uid, container, resource): &Place, assignment: &Assignment) -> Self {
        Self {
            pod_uid: pod_uid.clone(),
            container_name: container.clone(),
            resource_name: resource.clone(),
            device_ids: assignment.by_node.clone(),
            alloc_resp: base64(&assignment.answer),
        }
    }

    #[must_use]
    pub fn assignment(&self) -> Assignment {
        Assignment { by_node: self.device_ids.clone(), answer: from_base64(&self.alloc_resp) }
    }
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("strings, numbers and maps with text or number keys always serialize")
}

/// The kubelet hashes a dump of its Go structures with this function; we hash the JSON of `Data`.
fn fnv32a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().enumerate().fold(0_u32, |word, (at, byte)| word | u32::from(*byte) << (16 - 8 * at));
        for at in 0..4 {
            let sextet = (word >> (18 - 6 * at)) & 63;
            text.push(if at <= chunk.len() { char::from(ALPHABET[sextet as usize]) } else { '=' });
        }
    }
    text
}

fn from_base64(text: &str) -> Vec<u8> {
    let sextets = text.bytes().filter_map(|byte| ALPHABET.iter().position(|letter| *letter == byte));
    let (mut word, mut bits, mut bytes) = (0_usize, 0, Vec::new());
    for sextet in sextets {
        word = (word << 6 | sextet) & 0xfff_ffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_the_kubelet_writes_it() {
        let text = "ChgKD0xBQl9ERVZJQ0VTX0dQVRIFZ3B1LTA=";
        assert_eq!(base64(&from_base64(text)), text);
        for bytes in [b"".as_slice(), b"a", b"ab", b"abc", &[0, 255, 254, 1]] {
            assert_eq!(from_base64(&base64(bytes)), bytes);
        }
        assert_eq!(base64(b"ab"), "YWI=");
    }

    #[test]
    fn a_checkpoint_with_a_wrong_checksum_is_as_good_as_none() {
        let directory = tempfile::tempdir().unwrap();
        let mut checkpoint = Checkpoint::new(Vec::new(), BTreeMap::new());
        checkpoint.write(directory.path(), ".1").unwrap();
        assert_eq!(Checkpoint::read(directory.path()), Some(checkpoint.clone()));
        checkpoint.checksum += 1;
        checkpoint.write(directory.path(), ".1").unwrap();
        assert_eq!(Checkpoint::read(directory.path()), None);
    }
}
