//! The kubelet's device checkpoint, for what `List` lacks: which pod, by UID, was given a device, and which devices
//! were registered before the kubelet or podmeter started.
//!
//! In: the file. Out: `CheckpointAllocations`; an unreadable file counts as absent. It does not join them with answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use parking_lot::Mutex;
use prost::Message as _;
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::trigger::CHECKPOINT;
use crate::domain::model::{DeviceId, FileStamp, PodUid, ResourceName};
use crate::files;
use crate::tasks::SlowRead;
use crate::wire::v1beta1::ContainerAllocateResponse;

/// The file of a node with a hundred pods has some ten kilobytes, with answers of Allocate; a DRA driver's checkpoint has
/// about two for each claim.
pub(super) const LARGEST: u64 = 4 << 20;
/// Held while a file is parsed, which takes some times its size, and not while it is read, which may hang: so two large files fit
/// the chart's memory limit.
pub(super) static PARSING: Mutex<()> = Mutex::new(());
/// Longest wait for the content of local files: a file system may hang.
pub(super) const DEADLINE: Duration = Duration::from_secs(1);

/// Which pod was given which device, as the kubelet's checkpoint has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointAllocations {
    /// Differs for each time that the file was written.
    pub version: Option<FileStamp>,
    /// `None`: several pods, so it is not known which.
    pub pods: BTreeMap<CheckpointKey, Option<PodUid>>,
    /// All devices by resource, registered or assigned. `None` where there is no file.
    pub devices: Option<Arc<BTreeMap<ResourceName, BTreeSet<DeviceId>>>>,
}

/// Container, resource and device.
pub type CheckpointKey = (Arc<str>, ResourceName, DeviceId);

/// `E`: what is needed of the entries. `R`: of the registered devices.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", bound = "E: EntrySum, R: Deserialize<'de>")]
struct KubeletCheckpoint<E, R> {
    data: CheckpointData<E, R>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", bound = "E: EntrySum, R: Deserialize<'de>")]
struct CheckpointData<E, R> {
    /// `null` in a kubelet that never allocated.
    #[serde(default, deserialize_with = "EntrySum::sum")]
    pod_device_entries: E,
    registered_devices: Option<R>,
}

/// A sum over the entries of a checkpoint, so that no more of them is in memory.
trait EntrySum: Default {
    fn add(&mut self, entry: PodDevicesEntry) -> io::Result<()>;

    fn sum<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntrySumVisitor<E>(E);
        impl<'de, E: EntrySum> Visitor<'de> for EntrySumVisitor<E> {
            type Value = E;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an array")
            }

            fn visit_unit<F>(self) -> Result<E, F> {
                Ok(self.0)
            }

            fn visit_seq<A: SeqAccess<'de>>(mut self, mut entries: A) -> Result<E, A::Error> {
                while let Some(entry) = entries.next_element()? {
                    self.0.add(entry).map_err(de::Error::custom)?;
                }
                Ok(self.0)
            }
        }
        deserializer.deserialize_any(EntrySumVisitor(Self::default()))
    }
}

#[derive(Deserialize)]
struct PodDevicesEntry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    /// The device IDs by NUMA node.
    #[serde(rename = "DeviceIDs", default)]
    devices: Option<BTreeMap<String, Option<Vec<String>>>>,
    /// The plugin's answer, as protobuf in base64.
    #[serde(rename = "AllocResp", default)]
    answer: Option<String>,
}

/// The checkpoint as it was last read. An unreadable one counts as absent: UIDs then come from other sources.
#[derive(Debug)]
pub struct CheckpointFile {
    path: PathBuf,
    pub read: Arc<CheckpointAllocations>,
    /// Why the file could not be read the last time.
    pub problem: Option<String>,
    reading: SlowRead<io::Result<Arc<CheckpointAllocations>>>,
}

impl CheckpointFile {
    pub fn new(device_plugin_directory: &Path) -> Self {
        let path = device_plugin_directory.join(CHECKPOINT);
        Self { path, read: Arc::default(), problem: None, reading: SlowRead::idle() }
    }

    /// Reads the file if it was written since.
    pub async fn refresh(&mut self) -> Arc<CheckpointAllocations> {
        let (path, before) = (self.path.clone(), Arc::clone(&self.read));
        let answer = self.reading.answer(DEADLINE, move || read(&path, &before)).await;
        let problem = match answer.map(|answer| answer.map_err(io::Error::other).flatten()) {
            Some(Ok(read)) => {
                self.read = read;
                None
            }
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                self.read = Arc::default();
                None
            }
            Some(Err(error)) => Some(error.to_string()),
            None => Some(format!("the file system has not answered within {} s", DEADLINE.as_secs())),
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

fn read(path: &Path, before: &Arc<CheckpointAllocations>) -> io::Result<Arc<CheckpointAllocations>> {
    let mut version = before.version;
    match files::read_changed(path, &mut version, LARGEST)? {
        None => Ok(Arc::clone(before)),
        Some(text) => Ok(Arc::new(CheckpointAllocations { version, ..parse(&text)? })),
    }
}

/// The pod that was given each device; and all devices.
pub fn parse(text: &[u8]) -> io::Result<CheckpointAllocations> {
    let _one_at_a_time = PARSING.lock();
    let checkpoint: KubeletCheckpoint<Assigned, BTreeMap<ResourceName, Option<BTreeSet<DeviceId>>>> =
        serde_json::from_slice(text)?;
    let Assigned { pods, mut devices, .. } = checkpoint.data.pod_device_entries;
    for (resource, registered) in checkpoint.data.registered_devices.into_iter().flatten() {
        devices.entry(resource).or_default().extend(registered.into_iter().flatten());
    }
    Ok(CheckpointAllocations { version: None, pods, devices: Some(Arc::new(devices)) })
}

#[derive(Default)]
struct Assigned {
    pods: BTreeMap<CheckpointKey, Option<PodUid>>,
    devices: BTreeMap<ResourceName, BTreeSet<DeviceId>>,
    /// The names of containers, resources and pods, each once in memory.
    names: BTreeSet<Arc<str>>,
}

impl Assigned {
    fn name(&mut self, text: String) -> Arc<str> {
        let name = self.names.get(text.as_str()).cloned().unwrap_or_else(|| text.into());
        self.names.insert(Arc::clone(&name));
        name
    }
}

impl EntrySum for Assigned {
    fn add(&mut self, entry: PodDevicesEntry) -> io::Result<()> {
        let (container, resource) = (self.name(entry.container), ResourceName::new(self.name(entry.resource)));
        let uid = PodUid::new(self.name(entry.pod_uid));
        let ids = entry.devices.into_iter().flat_map(BTreeMap::into_values).flatten().flatten();
        let devices: BTreeSet<DeviceId> = ids.map(DeviceId::new).collect();
        self.devices.entry(resource.clone()).or_default().extend(devices.iter().cloned());
        for device in devices.into_iter().filter(|_| !uid.as_str().is_empty()) {
            let device = (Arc::clone(&container), resource.clone(), device);
            let holder = self.pods.entry(device).or_insert_with(|| Some(uid.clone()));
            holder.take_if(|known| *known != uid);
        }
        Ok(())
    }
}

/// The qualified CDI names that the kubelet gives at each start of the containers that hold devices, from the checkpoint in
/// this directory. `None`: the file is as it was when `known` was its version.
pub fn cdi_names(
    device_plugin_directory: &Path,
    known: &mut Option<FileStamp>,
) -> io::Result<Option<BTreeSet<String>>> {
    let content = files::read_changed(&device_plugin_directory.join(CHECKPOINT), known, LARGEST)?;
    content.map(|text| parse_cdi_names(&text)).transpose()
}

fn parse_cdi_names(text: &[u8]) -> io::Result<BTreeSet<String>> {
    let _one_at_a_time = PARSING.lock();
    let checkpoint: KubeletCheckpoint<CdiNames, IgnoredAny> = serde_json::from_slice(text)?;
    Ok(checkpoint.data.pod_device_entries.0)
}

#[derive(Default)]
struct CdiNames(BTreeSet<String>);

impl EntrySum for CdiNames {
    fn add(&mut self, entry: PodDevicesEntry) -> io::Result<()> {
        let Some(answer) = entry.answer else { return Ok(()) };
        let answer = BASE64_STANDARD.decode(answer).map_err(io::Error::other)?;
        let answer = ContainerAllocateResponse::decode(answer.as_slice()).map_err(io::Error::other)?;
        self.0.extend(answer.cdi_devices.into_iter().map(|device| device.name));
        // Those of any prefix, as a name has the form `<vendor>/<class>=<device>`.
        let annotated = answer.annotations.values().flat_map(|names| names.split(','));
        self.0.extend(annotated.filter(|name| name.contains('/') && name.contains('=')).map(str::to_owned));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::v1beta1::CdiDevice;

    #[test]
    fn cdi_names_come_from_the_answers_to_allocate() {
        let answer = ContainerAllocateResponse {
            cdi_devices: vec![CdiDevice { name: "a.b/c=1".to_owned() }],
            annotations: [("cdi.k8s.io/x".to_owned(), "a.b/c=2,a.b/c=3".to_owned()), ("y".to_owned(), "z".to_owned())]
                .into(),
            ..ContainerAllocateResponse::default()
        };
        let entry = |answer: &str| {
            let entry = format!(r#"{{"PodUID":"u","ContainerName":"c","ResourceName":"r/r","AllocResp":{answer}}}"#);
            parse_cdi_names(format!(r#"{{"Data":{{"PodDeviceEntries":[{entry}]}},"Checksum":1}}"#).as_bytes())
        };
        let encoded = format!("\"{}\"", BASE64_STANDARD.encode(answer.encode_to_vec()));
        assert_eq!(entry(&encoded).unwrap(), ["a.b/c=1", "a.b/c=2", "a.b/c=3"].map(str::to_owned).into());
        assert_eq!(entry("null").unwrap(), BTreeSet::new());
        assert!(entry("\"?\"").is_err() && entry("\"AAAA\"").is_err(), "not known, and not none");
    }

    fn uid<'a>(
        allocations: &'a CheckpointAllocations,
        container: &str,
        resource: &str,
        device: &str,
    ) -> Option<&'a str> {
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
            format!(
                r#"{{"PodUID":"{uid}","ContainerName":"c","ResourceName":"r/r","DeviceIDs":{{"-1":["0"]}},"AllocResp":""}}"#
            )
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
        assert_eq!(*file.refresh().await, CheckpointAllocations::default(), "not there");
        let whole = include_str!("../../tests/captures/01_basic_running.checkpoint.json");
        std::fs::write(&path, whole).unwrap();
        assert!(!file.refresh().await.pods.is_empty());
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert_eq!(*file.refresh().await, CheckpointAllocations::default(), "cut");
        std::fs::write(&path, whole).unwrap();
        assert!(!file.refresh().await.pods.is_empty());
    }

    #[test]
    fn devices_that_are_registered_or_assigned_are_all_there() {
        let ids = |text: &[u8]| {
            let devices = parse(text).unwrap().devices.unwrap();
            let of = |(resource, ids): (&ResourceName, &BTreeSet<DeviceId>)| {
                format!("{resource}: {}", ids.iter().map(DeviceId::as_str).collect::<Vec<_>>().join(" "))
            };
            devices.iter().map(of).collect::<Vec<_>>()
        };
        let text = include_bytes!("../../tests/captures/03_one_container_two_devices.checkpoint.json");
        assert_eq!(ids(text)[1], "lab.example.com/gpu: gpu-0 gpu-1 gpu-2 gpu-3");
        let text = br#"{"Data":{"PodDeviceEntries":[
            {"PodUID":"u","ContainerName":"c","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["GPU-1"],"0":null}},
            {"PodUID":"","ContainerName":"d","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["GPU-2"]}},
            {"PodUID":"u","ContainerName":"e","ResourceName":"nvidia.com/gpu","DeviceIDs":null}],
            "RegisteredDevices":{"nvidia.com/gpu":["GPU-0"],"nvidia.com/none":null}},"Checksum":1}"#;
        assert_eq!(ids(text), ["nvidia.com/gpu: GPU-0 GPU-1 GPU-2", "nvidia.com/none: "]);
    }

    #[tokio::test]
    async fn a_file_system_that_hangs_is_a_problem() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = CheckpointFile::new(directory.path());
        let (answer, hangs) = std::sync::mpsc::channel();
        assert!(file.reading.answer(Duration::ZERO, move || hangs.recv().unwrap()).await.is_none());
        assert_eq!(*file.refresh().await, CheckpointAllocations::default());
        assert!(file.problem.as_ref().is_some_and(|problem| problem.contains("within 1 s")), "{:?}", file.problem);
        answer.send(Ok(Arc::default())).unwrap();
    }

    #[tokio::test]
    async fn what_is_no_file_or_too_large_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(CHECKPOINT);
        let mut file = CheckpointFile::new(directory.path());
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(*file.refresh().await, CheckpointAllocations::default());
        assert_eq!(file.problem.as_deref(), Some("it is not a regular file"), "a named pipe");
        std::fs::remove_file(&path).unwrap();
        std::fs::File::create(&path).unwrap().set_len(LARGEST + 1).unwrap();
        assert_eq!(*file.refresh().await, CheckpointAllocations::default());
        assert_eq!(file.problem.as_deref(), Some("it has more than 4194304 bytes"));
    }
}
