//! Container Device Interface: the vendor's specification if there is one, else our own, which has device nodes only.
//!
//! In: the runtime's directories of specifications, the devices that one entry offers. Out: the vendor's specification
//! that describes them all, and our file. Does not use: how answers to the kubelet name the devices.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use super::driver_files::{DriverFiles, VendorSpecification};
use crate::domain::model::FileStamp;
use crate::files;
use crate::node::plugin::config::NvidiaConfig;
use crate::node::plugin::offer::Offer;

/// The kind that NVIDIA's plugin uses, and we too.
pub const PLUGIN_KIND: &str = "k8s.device-plugin.nvidia.com/gpu";
/// The kinds of a vendor's specification, the preferred one first: NVIDIA's plugin's, its container toolkit's.
const VENDOR_KINDS: [&str; 2] = [PLUGIN_KIND, "nvidia.com/gpu"];
/// The runtime's directories of specifications, in the order in which they are read.
pub const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// The oldest with device names that begin with a digit and with `hostPath`, so that old runtimes read it.
const VERSION: &str = "0.5.0";
const OUR_FILE: &str = "podmeter-k8s.device-plugin.nvidia.com-gpu.json";

/// Our file as it was written, and its identity.
#[derive(Debug, PartialEq, Eq)]
pub struct WrittenSpecification {
    file: PathBuf,
    /// Device and inode: a successor's file of equal content is another one.
    identity: (u64, u64),
}

/// Others' specifications. Files that cannot be read or understood, and our own, are not among them.
#[derive(Debug, Default)]
pub struct Specifications(Vec<(PathBuf, FileStamp, Option<VendorSpecification>)>);

impl Specifications {
    /// Reads the directories, and of the files those that are not as they were.
    pub fn refresh(&mut self, directories: &[PathBuf]) {
        let before = std::mem::take(&mut self.0);
        for file in directories.iter().flat_map(|directory| candidates(directory)) {
            let Some(stamp) = fs::metadata(&file).ok().filter(fs::Metadata::is_file).map(|found| files::stamp(&found))
            else {
                continue;
            };
            let known = before.iter().find(|(path, was, _)| *path == file && *was == stamp);
            let specification = known.map_or_else(|| read(&file), |(_, _, specification)| specification.clone());
            self.0.push((file, stamp, specification));
        }
    }

    fn all(&self) -> impl Iterator<Item = &VendorSpecification> {
        self.0.iter().filter_map(|(_, _, specification)| specification.as_ref())
    }

    /// The vendor's that describes every device offered, if there is one. Unhealthy devices need not be described.
    pub fn vendor_for(&self, offers: &[Offer]) -> Option<&VendorSpecification> {
        let fit = |specification: &&VendorSpecification| offers.iter().all(|offer| describes(specification, offer));
        VENDOR_KINDS
            .iter()
            .find_map(|kind| self.all().filter(|specification| specification.kind == *kind).find(|found| fit(found)))
    }

    /// The names under our kind: a runtime rejects a name that two files describe.
    pub fn described(&self) -> BTreeSet<String> {
        let of_our_kind = self.all().filter(|specification| specification.kind == PLUGIN_KIND);
        of_our_kind.flat_map(|specification| specification.devices.iter().cloned()).collect()
    }
}

/// Our specification of these devices, as JSON text. Left out are a device whose nodes are not known, and the names
/// `described` by others; `None` where none is left.
pub fn specification(
    nvidia: &NvidiaConfig,
    offers: &[Offer],
    driver_files: &DriverFiles,
    described: &BTreeSet<String>,
) -> Option<String> {
    let node = |path: &String| device_node(nvidia, path);
    let mut devices = BTreeMap::new();
    for device in offers.iter().flat_map(|offer| &offer.devices) {
        let Ok(nodes) = driver_files.device_nodes(&device.hardware) else { continue };
        let nodes: Vec<Value> = nodes.iter().map(node).collect();
        for name in device.hardware.names().into_iter().flatten().filter(|name| !described.contains(name)) {
            let entry = json!({ "name": name, "containerEdits": { "deviceNodes": nodes } });
            devices.insert(name, entry);
        }
    }
    if devices.is_empty() {
        return None;
    }
    let mut specification = json!({
        "cdiVersion": VERSION,
        "kind": PLUGIN_KIND,
        "devices": devices.into_values().collect::<Vec<_>>(),
    });
    if !driver_files.control_nodes.is_empty() {
        let nodes: Vec<Value> = driver_files.control_nodes.iter().map(node).collect();
        specification["containerEdits"] = json!({ "deviceNodes": nodes });
    }
    Some(format!("{specification:#}\n"))
}

fn device_node(nvidia: &NvidiaConfig, path: &str) -> Value {
    let host = nvidia.device_root.join(path.trim_start_matches('/'));
    let mut node = json!({ "path": path, "permissions": "rw" });
    if host != Path::new(path) {
        node["hostPath"] = Value::String(host.display().to_string());
    }
    node
}

/// Writes our file in one step: a runtime sees the old one or the new one. The error is for people.
pub fn write(directory: &Path, text: &str) -> Result<WrittenSpecification, String> {
    let file = directory.join(OUR_FILE);
    let attempt = || -> io::Result<_> {
        fs::create_dir_all(directory)?;
        // Runtimes without root read it too.
        Ok(identity(&files::replace(&file, text.as_bytes(), 0o644)?.metadata()?))
    };
    let remedy = "make the directory writable for podmeter, or leave the cdi strategies out";
    let identity = attempt().map_err(|error| format!("{}: {error}; {remedy}", file.display()))?;
    Ok(WrittenSpecification { file, identity })
}

impl WrittenSpecification {
    /// Whether there is a file, ours or a successor's.
    pub fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.file).is_ok()
    }

    /// Removes the file if it is still the one that was written. True when it was.
    pub fn remove(self) -> io::Result<bool> {
        let now = match fs::symlink_metadata(&self.file) {
            Ok(metadata) => identity(&metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        if now != self.identity {
            return Ok(false);
        }
        fs::remove_file(&self.file)?;
        Ok(true)
    }
}

fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Those that may be specifications of others, sorted.
fn candidates(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return vec![] };
    let may_be = |file: &PathBuf| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        !name.starts_with("podmeter-") && !name.starts_with('.') && ["json", "yaml", "yml"].contains(&extension)
    };
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(may_be).collect();
    files.sort();
    files
}

fn read(file: &Path) -> Option<VendorSpecification> {
    #[derive(Deserialize)]
    struct SpecificationFile {
        kind: String,
        #[serde(default)]
        devices: Vec<VendorDevice>,
    }
    #[derive(Deserialize)]
    struct VendorDevice {
        name: String,
    }

    // JSON is YAML too.
    let specification: SpecificationFile = serde_saphyr::from_str(&fs::read_to_string(file).ok()?).ok()?;
    let devices = specification.devices.into_iter().map(|device| device.name).collect();
    Some(VendorSpecification { file: file.to_owned(), kind: specification.kind, devices })
}

fn describes(specification: &VendorSpecification, offer: &Offer) -> bool {
    // A lost device is not allocated.
    let mut usable = offer.devices.iter().filter(|device| device.health.is_ok());
    usable.all(|device| device.hardware.names().iter().flatten().any(|name| specification.devices.contains(name)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::domain::model::UnhealthyReason;
    use crate::node::plugin::host::MigCapabilities;
    use crate::node::plugin::offer::{OfferedDevice, OfferedHardware, OfferedHealth, PluginUnhealthy};

    fn offer(hardware: OfferedHardware, health: OfferedHealth) -> Offer {
        let device = OfferedDevice { health, ..OfferedDevice::new("x", hardware) };
        Offer { resource: "nvidia.com/gpu".into(), devices: vec![device] }
    }

    fn gpu(number: u32) -> OfferedHardware {
        OfferedHardware::Gpu { uuid: format!("GPU-{number}").as_str().into(), index: number, minor: Some(number + 1) }
    }

    fn mig() -> OfferedHardware {
        OfferedHardware::Mig {
            uuid: "MIG-9".into(),
            gpu: "GPU-9".into(),
            gpu_index: 9,
            index: 1,
            minor: Some(0),
            gpu_instance: 2,
            compute_instance: 0,
        }
    }

    fn driver_files() -> DriverFiles {
        DriverFiles {
            control_nodes: vec!["/dev/nvidiactl".to_owned()],
            mig_capabilities: MigCapabilities([((0, 2, None), 30), ((0, 2, Some(0)), 31)].into()),
            driver_mounts: vec![],
            cdi: None,
        }
    }

    #[test]
    fn our_specification_names_each_device_twice_with_its_nodes() {
        let nvidia = NvidiaConfig { device_root: "/run/driver".into(), ..NvidiaConfig::default() };
        let offers = [offer(gpu(0), Ok(())), offer(mig(), Ok(()))];
        let text = specification(&nvidia, &offers, &driver_files(), &BTreeSet::new()).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        let node = |path: &str| json!({ "path": path, "hostPath": format!("/run/driver{path}"), "permissions": "rw" });
        let device = |name: &str, paths: &[&str]| {
            let nodes: Vec<Value> = paths.iter().map(|path| node(path)).collect();
            json!({ "name": name, "containerEdits": { "deviceNodes": nodes } })
        };
        let of_mig = ["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"];
        let expected = json!({
            "cdiVersion": "0.5.0",
            "kind": "k8s.device-plugin.nvidia.com/gpu",
            "containerEdits": { "deviceNodes": [node("/dev/nvidiactl")] },
            "devices": [
                device("0", &["/dev/nvidia1"]),
                device("9:1", &of_mig),
                device("GPU-0", &["/dev/nvidia1"]),
                device("MIG-9", &of_mig),
            ],
        });
        assert_eq!(read, expected);
        let plain = |driver_files: &DriverFiles, described: &[&str]| {
            let described = described.iter().map(|name| (*name).to_owned()).collect();
            specification(&NvidiaConfig::default(), &[offer(gpu(0), Ok(()))], driver_files, &described)
                .unwrap_or_default()
        };
        assert!(!plain(&driver_files(), &[]).contains("hostPath"));
        // Edits that are empty are not allowed.
        assert!(!plain(&DriverFiles::default(), &[]).contains("nvidiactl"));
        assert!(!plain(&driver_files(), &["GPU-0"]).contains("GPU-0"));
        assert_eq!(plain(&driver_files(), &["GPU-0", "0"]), "", "one without devices is not valid");
    }

    #[test]
    fn our_file_is_written_whole_and_removed_only_while_it_is_ours() {
        let directory = tempfile::tempdir().unwrap();
        let cdi = directory.path().join("cdi");
        let first = write(&cdi, "{}\n").unwrap();
        let second = write(&cdi, "{}\n").unwrap();
        let names: Vec<_> = fs::read_dir(&cdi).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [OUR_FILE], "nothing temporary stays");
        assert_eq!(fs::metadata(cdi.join(OUR_FILE)).unwrap().permissions().mode() & 0o777, 0o644);
        assert!(!first.remove().unwrap(), "a successor has replaced it");
        assert!(second.remove().unwrap());
        assert!(!write(&cdi, "").unwrap().remove_after_it_went().unwrap());
        let blocked = directory.path().join("file");
        fs::write(&blocked, "").unwrap();
        assert!(write(&blocked, "").unwrap_err().contains(OUR_FILE));
    }

    impl WrittenSpecification {
        fn remove_after_it_went(self) -> io::Result<bool> {
            fs::remove_file(&self.file)?;
            self.remove()
        }
    }

    #[test]
    fn a_vendors_specification_counts_if_it_describes_what_is_offered() {
        let directory = tempfile::tempdir().unwrap();
        let [toolkit, plugin] = ["etc", "run"].map(|name| directory.path().join(name));
        for directory in [&toolkit, &plugin] {
            fs::create_dir(directory).unwrap();
        }
        let directories = [toolkit.clone(), plugin.clone(), directory.path().join("none")];
        let mut specifications = Specifications::default();
        let mut find = |offers: &[Offer]| {
            specifications.refresh(&directories);
            specifications.vendor_for(offers).map(|found| found.kind.clone())
        };
        let lost = PluginUnhealthy::device(UnhealthyReason::Lost, "");
        let healthy = [offer(gpu(0), Ok(()))];
        assert_eq!(find(&healthy), None);

        fs::write(toolkit.join("broken.json"), "{").unwrap();
        fs::write(toolkit.join("other.yaml"), "kind: example.com/nic\ndevices: [{name: '0'}]\n").unwrap();
        fs::write(
            toolkit.join(OUR_FILE),
            format!("{{\"kind\": \"{PLUGIN_KIND}\", \"devices\": [{{\"name\": \"0\"}}]}}"),
        )
        .unwrap();
        assert_eq!(find(&healthy), None, "ours is no vendor's");

        let yaml =
            "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits: {}\n- name: all\n";
        fs::write(toolkit.join("nvidia.yaml"), yaml).unwrap();
        assert_eq!(find(&healthy).as_deref(), Some("nvidia.com/gpu"));
        assert_eq!(find(&[offer(gpu(1), Ok(()))]), None, "it must describe the device");
        assert_eq!(find(&[offer(gpu(1), Err(lost))]).as_deref(), Some("nvidia.com/gpu"));

        let json = format!("{{\"kind\": \"{PLUGIN_KIND}\", \"devices\": [{{\"name\": \"GPU-0\"}}]}}");
        fs::write(plugin.join("k8s.device-plugin.nvidia.com-gpu.json"), json).unwrap();
        assert_eq!(find(&healthy).as_deref(), Some(PLUGIN_KIND));
        // Replaced for another layout.
        fs::write(toolkit.join("nvidia.yaml"), yaml.replace('0', "1")).unwrap();
        assert_eq!(find(&[offer(gpu(1), Ok(()))]).as_deref(), Some("nvidia.com/gpu"));
        assert_eq!(specifications.described(), ["GPU-0".to_owned()].into());
    }
}
