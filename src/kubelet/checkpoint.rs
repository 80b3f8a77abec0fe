//! The kubelet's device checkpoint, for the one thing that `List` lacks: which pod, by UID, was given a device.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::trigger::CHECKPOINT;
use crate::attribution::Allocations;
use crate::model::{DeviceId, PodUid, ResourceName};

/// A file of a node with a hundred pods has some ten kilobytes; answers of Allocate are in it too.
const LARGEST: u64 = 16 << 20;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    data: Data,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    /// `null` in a kubelet that never allocated.
    pod_device_entries: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    #[serde(rename = "DeviceIDs", default)]
    devices: Option<Devices>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Devices {
    ByNumaNode(BTreeMap<String, Vec<String>>),
    /// Kubelets before 1.20.
    Plain(Vec<String>),
}

/// The checkpoint as it was last read. What cannot be read is as if it were not there: UIDs then come from elsewhere.
#[derive(Debug)]
pub struct CheckpointFile {
    path: PathBuf,
    read: Arc<Allocations>,
    problem: Option<String>,
}

impl CheckpointFile {
    pub fn new(device_plugin_directory: &Path) -> Self {
        Self { path: device_plugin_directory.join(CHECKPOINT), read: Arc::default(), problem: None }
    }

    /// Reads the file if it was written since.
    pub async fn refresh(&mut self) -> Arc<Allocations> {
        let (path, before) = (self.path.clone(), Arc::clone(&self.read));
        let outcome = tokio::task::spawn_blocking(move || read(&path, &before)).await;
        let problem = match outcome {
            Ok(Ok(read)) => {
                self.read = read;
                None
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                self.read = Arc::default();
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(problem) = &problem {
            self.read = Arc::default();
            if self.problem.as_ref() != Some(problem) {
                let file = self.path.display();
                tracing::warn!(%file, problem, "the kubelet's device checkpoint cannot be read: pods get their UIDs later");
            }
        }
        self.problem = problem;
        Arc::clone(&self.read)
    }
}

fn read(path: &Path, before: &Arc<Allocations>) -> io::Result<Arc<Allocations>> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let version = Some(version(&metadata));
    if before.version == version {
        return Ok(Arc::clone(before));
    }
    if !metadata.is_file() || metadata.len() > LARGEST {
        return Err(io::Error::other(format!("not a file of at most {LARGEST} bytes")));
    }
    let mut text = vec![];
    file.take(LARGEST).read_to_end(&mut text)?;
    Ok(Arc::new(Allocations { version, ..parse(&text)? }))
}

fn version(metadata: &Metadata) -> (u64, i64, i64) {
    (metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

/// By device, the pod that was given it.
pub(crate) fn parse(text: &[u8]) -> io::Result<Allocations> {
    let checkpoint: Checkpoint = serde_json::from_slice(text)?;
    let mut pods = BTreeMap::new();
    for entry in checkpoint.data.pod_device_entries.into_iter().flatten().filter(|entry| !entry.pod_uid.is_empty()) {
        let (container, resource) = (Arc::<str>::from(entry.container), ResourceName::new(entry.resource));
        let uid = PodUid::new(entry.pod_uid);
        let devices = match entry.devices {
            Some(Devices::ByNumaNode(nodes)) => nodes.into_values().flatten().collect(),
            Some(Devices::Plain(devices)) => devices,
            None => vec![],
        };
        for device in devices {
            match pods.entry((Arc::clone(&container), resource.clone(), DeviceId::new(device))) {
                Place::Vacant(place) => {
                    place.insert(Some(uid.clone()));
                }
                Place::Occupied(mut known) if *known.get() != Some(uid.clone()) => {
                    known.insert(None);
                }
                Place::Occupied(_) => {}
            }
        }
    }
    Ok(Allocations { version: None, pods })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid<'a>(allocations: &'a Allocations, container: &str, resource: &str, device: &str) -> Option<&'a str> {
        allocations.pods.get(&(container.into(), resource.into(), device.into()))?.as_ref().map(PodUid::as_str)
    }

    #[test]
    fn a_real_checkpoint_has_the_pod_of_each_device() {
        let text = include_bytes!("../../tests/captures/02_two_containers.checkpoint.json");
        let read = parse(text).unwrap();
        let pod = Some("aec2ea74b12e2dd67cd5d81f47b5e446");
        assert_eq!(uid(&read, "a", "lab.example.com/gpu", "gpu-0"), pod);
        assert_eq!(uid(&read, "b", "lab.example.com/gpu", "gpu-1"), pod);
        assert_eq!(uid(&read, "a", "lab.example.com/gpu", "gpu-1"), None);
        assert_eq!(
            uid(&read, "main", "example.com/resource", "Dev-1"),
            Some("dad287ff47b8747690ba581b7b9c0da6"),
            "without topology"
        );
    }

    #[test]
    fn a_device_of_two_pods_has_none() {
        let entry = |uid: &str| {
            format!(r#"{{"PodUID":"{uid}","ContainerName":"c","ResourceName":"r/r","DeviceIDs":["0"],"AllocResp":""}}"#)
        };
        let text = format!(r#"{{"Data":{{"PodDeviceEntries":[{},{}]}},"Checksum":1}}"#, entry("a"), entry("b"));
        assert_eq!(uid(&parse(text.as_bytes()).unwrap(), "c", "r/r", "0"), None);
        let never = br#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#;
        assert!(parse(never).unwrap().pods.is_empty());
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_read_is_as_none_and_is_read_again_once_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(CHECKPOINT);
        let mut file = CheckpointFile::new(directory.path());
        assert_eq!(*file.refresh().await, Allocations::default(), "not there");
        let whole = include_str!("../../tests/captures/01_basic_running.checkpoint.json");
        std::fs::write(&path, whole).unwrap();
        assert!(!file.refresh().await.pods.is_empty());
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert_eq!(*file.refresh().await, Allocations::default(), "cut");
        std::fs::write(&path, whole).unwrap();
        assert!(!file.refresh().await.pods.is_empty());
    }

    proptest::proptest! {
        #[test]
        fn anything_is_survived(text in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = parse(&text);
        }
    }
}
