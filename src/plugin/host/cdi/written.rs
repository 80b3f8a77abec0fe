//! The specifications that podmeter writes, with device nodes only. They stay when podmeter ends: the kubelet gives the
//! names of its checkpoint again at each start of a container, whether or not podmeter runs, and a name that no file
//! describes fails every start.
//!
//! In: the devices of the node, the names that containers hold, the earlier files. Out: two files, replaced as a whole.
//! Does not use: the configured strategies.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::format::{self, Edits};
use super::{EARLIER_KIND, KIND};
use crate::domain::model::Inventory;
use crate::files;
use crate::plugin::host::driver_files::DriverFiles;
use crate::plugin::host::path_devices::HostRoots;
use crate::plugin::offer::OfferedHardware;

/// The oldest CDI version with `hostPath` and names that begin with a digit, so that old runtimes read the files.
const VERSION: &str = "0.5.0";
const LARGEST: u64 = 4 << 20;
/// The names of the two files; the second has the kind that podmeter used before `KIND`.
pub const FILES: [&str; 2] = ["podmeter.device-plugin-gpu.json", "podmeter-k8s.device-plugin.nvidia.com-gpu.json"];
/// The variable with the name of a device that no longer exists, as edits must not be empty.
const ABSENT_DEVICE: &str = "PODMETER_ABSENT_DEVICE";

/// The nodes of each device, with their paths in containers.
type NodesByDevice = BTreeMap<String, Vec<String>>;

/// What the files are made from.
#[derive(Debug)]
pub struct SpecificationInputs<'a> {
    pub directory: &'a Path,
    pub roots: &'a HostRoots,
    /// The directory of the host whose `dev` has the nodes.
    pub device_root: &'a Path,
    pub control_nodes: &'a [String],
    /// Every device of the node, offered or not.
    pub devices: &'a [NodeDevice],
    /// The qualified names in the kubelet's checkpoint. `None`: not known.
    pub held: Option<&'a BTreeSet<String>>,
    /// The names of the earlier kind in others' files: runtimes refuse a name that two files describe.
    pub described: BTreeSet<&'a str>,
    /// Whether answers to Allocate give names of these files.
    pub is_used: bool,
}

/// A GPU or MIG device whose nodes are known.
#[derive(Debug)]
pub struct NodeDevice {
    /// The UUID and the index.
    names: [String; 2],
    nodes: Vec<String>,
    /// Whether the device is present; a lost one may return.
    is_present: bool,
}

/// The devices that the driver lists and those that are lost, without those at another kernel driver.
pub fn node_devices(inventory: &Inventory, driver_files: &DriverFiles) -> Vec<NodeDevice> {
    let listed = inventory.gpus.values().filter(|gpu| inventory.is_expected(&gpu.uuid));
    let hardware = listed.filter_map(|gpu| gpu.index.map(|index| (gpu, index))).flat_map(|(gpu, index)| {
        let mig = gpu.mig_devices.iter().map(move |mig| OfferedHardware::of_mig(gpu, index, mig));
        std::iter::once(OfferedHardware::of_gpu(gpu, index)).chain(mig).map(|hardware| (gpu.present, hardware))
    });
    let device = |(is_present, hardware): (bool, OfferedHardware)| {
        let (names, nodes) = (hardware.names()?, driver_files.device_nodes(&hardware).ok()?);
        Some(NodeDevice { names, nodes, is_present })
    };
    hardware.filter_map(device).collect()
}

/// The two files as they were read or written last.
#[derive(Debug, Default)]
pub struct WrittenSpecifications([WrittenFile; 2]);

#[derive(Debug, Default)]
struct WrittenFile {
    /// The devices in the file, each with the last nodes that it had. `None` until the file of the last start was read.
    devices: Option<NodesByDevice>,
    written: Option<String>,
}

impl WrittenSpecifications {
    /// Writes what has changed. Returns the problems as text.
    pub fn update(&mut self, inputs: &SpecificationInputs<'_>) -> Vec<String> {
        let [current, earlier] = &mut self.0;
        let [current_path, earlier_path] = FILES.map(|name| inputs.directory.join(name));
        let before = current.devices_before(&current_path);
        let mut devices: NodesByDevice =
            inputs.devices.iter().map(|device| (device.names[0].clone(), device.nodes.clone())).collect();
        let gone = before.into_iter().filter(|(name, _)| inputs.may_be_held(KIND, name) && !devices.contains_key(name));
        devices.extend(gone.collect::<NodesByDevice>());
        let mut problems = current.replace(current_path, KIND, devices, inputs);

        let before = earlier.devices_before(&earlier_path);
        let names = match inputs.held {
            Some(held) => held.iter().filter_map(|name| name.strip_prefix(EARLIER_KIND)?.strip_prefix('=')).collect(),
            None => before.keys().map(String::as_str).collect::<Vec<_>>(),
        };
        let nodes = |name: &str| inputs.device(name).map(|device| &device.nodes).or_else(|| before.get(name)).cloned();
        let names = names.into_iter().filter(|name| !inputs.described.contains(name));
        let devices = names.filter_map(|name| Some((name.to_owned(), nodes(name)?))).collect();
        problems.extend(earlier.replace(earlier_path, EARLIER_KIND, devices, inputs));
        problems
    }
}

impl SpecificationInputs<'_> {
    fn device(&self, name: &str) -> Option<&NodeDevice> {
        self.devices.iter().find(|device| device.names.iter().any(|one| one == name))
    }

    fn may_be_held(&self, kind: &str, name: &str) -> bool {
        self.held.is_none_or(|held| held.contains(&format!("{kind}={name}")))
    }

    /// The nodes to give now: none where one of them belongs to another device by now.
    fn safe_nodes<'d>(&self, name: &str, nodes: &'d [String]) -> &'d [String] {
        let is_taken =
            |node: &String| self.devices.iter().any(|device| device.is_present && device.nodes.contains(node));
        let is_own = self.device(name).is_some_and(|device| device.is_present);
        if !is_own && nodes.iter().any(is_taken) { &[] } else { nodes }
    }

    /// The specification as JSON.
    fn text(&self, kind: &str, devices: &NodesByDevice) -> String {
        let devices = devices.iter().map(|(name, nodes)| {
            let edits = match self.safe_nodes(name, nodes) {
                [] => json!({ "env": [format!("{ABSENT_DEVICE}={name}")] }),
                nodes => self.edits(nodes),
            };
            json!({ "name": name, "containerEdits": edits })
        });
        let devices: Vec<Value> = devices.collect();
        let mut specification = json!({ "cdiVersion": VERSION, "kind": kind, "devices": devices });
        if !self.control_nodes.is_empty() {
            specification["containerEdits"] = self.edits(self.control_nodes);
        }
        format!("{specification:#}\n")
    }

    fn edits(&self, nodes: &[String]) -> Value {
        let node = |path: &String| {
            let host = self.device_root.join(path.trim_start_matches('/'));
            let mut node = json!({ "path": path, "permissions": "rw" });
            if host != Path::new(path) {
                node["hostPath"] = Value::String(host.display().to_string());
            }
            // Without `fileMode` a runtime chooses the mode of the node.
            if let Ok(metadata) = fs::metadata(self.roots.local_path(&host)) {
                node["fileMode"] = json!(metadata.mode() & 0o777);
            }
            node
        };
        json!({ "deviceNodes": nodes.iter().map(node).collect::<Vec<_>>() })
    }
}

impl WrittenFile {
    /// The earlier devices: at first those in the file that an earlier podmeter left.
    fn devices_before(&mut self, path: &Path) -> NodesByDevice {
        self.devices.take().unwrap_or_else(|| {
            let text = files::read(path, LARGEST).ok().flatten().and_then(|bytes| String::from_utf8(bytes).ok());
            let nodes = |edits: &Edits| edits.nodes().map(|node| node.path.clone()).collect();
            let devices = text.and_then(|text| format::parse(&text).ok()).map(|found| found.devices);
            devices.into_iter().flatten().map(|(name, edits)| (name, nodes(&edits))).collect()
        })
    }

    /// Writes the file where its text has changed or it is missing. A file that no answer uses is only kept up to date.
    fn replace(
        &mut self,
        path: PathBuf,
        kind: &str,
        devices: NodesByDevice,
        inputs: &SpecificationInputs<'_>,
    ) -> Vec<String> {
        let devices = self.devices.insert(devices);
        if devices.is_empty() {
            self.written = None;
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound && path.exists() => vec![failed(&path, &error)],
                _ => vec![],
            };
        }
        let is_there = fs::symlink_metadata(&path).is_ok();
        let is_held = |name: &str| inputs.held.is_some_and(|held| held.contains(&format!("{kind}={name}")));
        let is_needed = is_there || inputs.is_used || devices.keys().any(|name| is_held(name));
        // The directory need not be mounted without CDI strategies.
        if !is_needed || !(inputs.is_used || inputs.directory.is_dir()) {
            return vec![];
        }
        let absent =
            |(name, nodes): &(&String, &Vec<String>)| is_held(name) && inputs.safe_nodes(name, nodes).is_empty();
        let absent: Vec<&str> = devices.iter().filter(absent).map(|(name, _)| name.as_str()).collect();
        let mut problems = vec![];
        if !absent.is_empty() {
            problems.push(format!(
                "a container holds {}, which this node no longer has; when the container restarts, it gets {ABSENT_DEVICE} \
                 instead: delete \
                 its pod",
                absent.join(", ")
            ));
        }
        let text = inputs.text(kind, devices);
        if !is_there || self.written.as_ref() != Some(&text) {
            match write(&path, &text) {
                Ok(()) => self.written = Some(text),
                Err(error) => problems.push(failed(&path, &error)),
            }
        }
        problems
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    // Rootless runtimes read it too.
    files::replace(path, text.as_bytes(), 0o644).map(drop)
}

fn failed(path: &Path, error: &io::Error) -> String {
    format!(
        "no CDI specification: {}: {error}; make the directory writable for podmeter, or leave the cdi strategies out",
        path.display()
    )
}
