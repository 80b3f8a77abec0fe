//! NVIDIA's device nodes, MIG capabilities and driver directories on the host, for the answers to Allocate.
//!
//! In: the host's `/dev` and `/proc/driver`. Out: what exists, and the nodes of one device. Does not use: the strategies
//! by which containers get them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::plugin::config::{DriverMount, NvidiaConfig};
use crate::plugin::offer::OfferedHardware;

/// The nodes that belong to no GPU; a host has those that its driver made.
const CONTROL_NODES: [&str; 4] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"];

/// What the answer to Allocate needs of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverFiles {
    /// The control nodes that exist, with their paths in containers: `/dev/nvidiactl`.
    pub control_nodes: Vec<String>,
    pub mig_capabilities: MigCapabilities,
    /// The directories of the driver that `device-nodes` mounts.
    pub driver_mounts: Vec<DriverMount>,
    /// The names in a vendor's CDI specification, by the device's UUID. Other devices get the names in ours.
    pub vendor_cdi_names: BTreeMap<String, String>,
}

/// The N of `/dev/nvidia-caps/nvidia-capN` by GPU minor number, GPU instance and (unless `None`) compute instance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigCapabilities(pub BTreeMap<(u32, u32, Option<u32>), u32>);

/// The control nodes that exist. `dev`: the directory of NVIDIA's nodes, as this process sees it.
pub fn control_nodes(dev: &Path) -> Vec<String> {
    let there = |name: &&str| dev.join(name).exists();
    CONTROL_NODES.into_iter().filter(there).map(|name| format!("/dev/{name}")).collect()
}

/// The directories to mount. Those of the default only where they exist: the container runtime would make the others on
/// the host. Configured ones need not be visible to this process.
pub fn driver_mounts(nvidia: &NvidiaConfig, is_there: impl Fn(&Path) -> bool) -> Vec<DriverMount> {
    let usual = NvidiaConfig::default().driver_mounts;
    let is_mounted = |mount: &&DriverMount| !usual.contains(mount) || is_there(&mount.host_path);
    nvidia.driver_mounts.iter().filter(is_mounted).cloned().collect()
}

impl DriverFiles {
    /// The nodes of one device, without control nodes, with their paths in containers.
    pub fn device_nodes(&self, hardware: &OfferedHardware) -> Result<Vec<String>, String> {
        let gpu_minor = |uuid: &dyn std::fmt::Display, minor: Option<u32>| {
            minor.ok_or_else(|| format!("the driver does not report which /dev/nvidia<N> is {uuid}"))
        };
        match hardware {
            OfferedHardware::Gpu { uuid, minor, .. } => Ok(vec![format!("/dev/nvidia{}", gpu_minor(uuid, *minor)?)]),
            OfferedHardware::Mig { gpu, minor, gpu_instance, compute_instance, .. } => {
                let minor = gpu_minor(gpu, *minor)?;
                let nodes = self.mig_capabilities.nodes(minor, *gpu_instance, *compute_instance);
                let [of_gpu_instance, of_compute_instance] = nodes.ok_or_else(|| {
                    format!(
                        "/proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gpu_instance} does not name its capability \
                         nodes; mount the host's /proc/driver"
                    )
                })?;
                Ok(vec![format!("/dev/nvidia{minor}"), of_gpu_instance, of_compute_instance])
            }
            OfferedHardware::Missing(gpu) => Err(format!("the driver does not list {gpu}")),
            OfferedHardware::Nodes(nodes) => Ok(nodes.iter().map(|node| node.container_path.clone()).collect()),
            OfferedHardware::Nothing => Ok(vec![]),
        }
    }
}

impl MigCapabilities {
    /// Reads `<proc>/driver/nvidia/capabilities/gpu<minor>/mig/gi<g>/access` and `…/ci<c>/access`. Empty without MIG.
    pub fn read(proc: &Path) -> Self {
        let mut capabilities = BTreeMap::new();
        let root = proc.join("driver/nvidia/capabilities");
        for minor in numbered(&root, "gpu") {
            let mig = root.join(format!("gpu{minor}/mig"));
            for gpu_instance in numbered(&mig, "gi") {
                let directory = mig.join(format!("gi{gpu_instance}"));
                if let Some(number) = device_file_minor(&directory.join("access")) {
                    capabilities.insert((minor, gpu_instance, None), number);
                }
                for compute_instance in numbered(&directory, "ci") {
                    let file = directory.join(format!("ci{compute_instance}/access"));
                    if let Some(number) = device_file_minor(&file) {
                        capabilities.insert((minor, gpu_instance, Some(compute_instance)), number);
                    }
                }
            }
        }
        Self(capabilities)
    }

    /// The two nodes that a MIG device needs beside its GPU's.
    pub fn nodes(&self, minor: u32, gpu_instance: u32, compute_instance: u32) -> Option<[String; 2]> {
        let node = |compute_instance| {
            let number = self.0.get(&(minor, gpu_instance, compute_instance))?;
            Some(format!("/dev/nvidia-caps/nvidia-cap{number}"))
        };
        Some([node(None)?, node(Some(compute_instance))?])
    }
}

/// The numbers N of the entries `<prefix>N`.
fn numbered(directory: &Path, prefix: &str) -> BTreeSet<u32> {
    let Ok(entries) = fs::read_dir(directory) else { return BTreeSet::new() };
    let number =
        |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.strip_prefix(prefix)?.parse().ok();
    entries.filter_map(number).collect()
}

/// The minor number in a line such as `DeviceFileMinor: 12`.
fn device_file_minor(file: &Path) -> Option<u32> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("DeviceFileMinor:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_files_give_the_numbers_of_their_nodes() {
        let proc = tempfile::tempdir().unwrap();
        let mig = proc.path().join("driver/nvidia/capabilities/gpu3/mig");
        for (path, text) in [
            ("gi1/access", "DeviceFileMinor: 12\nDeviceFileMode: 292\nDeviceFileModify: 1\n"),
            ("gi1/ci0/access", "DeviceFileMinor: 13\n"),
            ("gi2/access", "DeviceFileMode: 292\n"),
            ("gi2/ci0/access", "DeviceFileMinor: many\n"),
        ] {
            fs::create_dir_all(mig.join(path).parent().unwrap()).unwrap();
            fs::write(mig.join(path), text).unwrap();
        }
        let capabilities = MigCapabilities::read(proc.path());
        let expected = ["/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"].map(str::to_owned);
        assert_eq!(capabilities.nodes(3, 1, 0), Some(expected));
        assert_eq!(capabilities.nodes(3, 2, 0), None);
        assert_eq!(capabilities.0.len(), 2);
        assert_eq!(MigCapabilities::read(Path::new("/nonexistent")), MigCapabilities::default());
    }

    #[test]
    fn only_control_nodes_that_are_there_are_named() {
        let root = tempfile::tempdir().unwrap();
        for name in ["nvidiactl", "nvidia-uvm", "nvidia0"] {
            fs::write(root.path().join(name), "").unwrap();
        }
        assert_eq!(control_nodes(root.path()), ["/dev/nvidiactl", "/dev/nvidia-uvm"]);
    }
}
