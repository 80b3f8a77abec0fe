//! What the plugin reads of the host: device nodes, MIG capabilities, PCI topology, CDI specifications, MPS files.
//!
//! In: the configured entries and the inventory. Out: a `ScanResult` for each entry, and our CDI specifications on
//! disk. It runs on a blocking thread, because a file system may hang.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::cdi::{self, HostView, SpecificationInputs, Specifications, UnusedFiles, WrittenSpecifications};
use super::driver_files::{DriverFiles, MigCapabilities, control_nodes, driver_mounts};
use super::mps;
use super::path_devices::{self, HostRoots};
use super::topology::topology;
use crate::domain::model::{FileStamp, Inventory, ResourceName};
use crate::domain::preference::Topology;
use crate::kubelet::checkpoint::cdi_names;
use crate::plugin::config::{DeviceListStrategy, EntryConfig, NvidiaConfig};
use crate::plugin::offer::{Offer, PathDevice, offers};

/// The directories that scans read, as this process sees them.
#[derive(Clone, Debug)]
pub struct HostPaths {
    pub roots: HostRoots,
    pub proc: PathBuf,
    /// The runtime's directories of CDI specifications; ours are written to the last.
    pub cdi: Vec<PathBuf>,
}

/// The facts of the host that answers to the kubelet depend on.
#[derive(Debug, Default)]
pub struct HostFacts {
    pub driver_files: DriverFiles,
    pub topology: Topology,
}

/// The configured entries to scan for, by number.
pub type ScanRequest = BTreeMap<u64, Arc<EntryConfig>>;

/// The result for one configured entry.
#[derive(Clone, Debug, Default)]
pub struct ScanResult {
    /// The generation of the inventory that the scan used.
    pub generation: u64,
    /// The devices of an entry of kind `path`.
    pub path_devices: Vec<PathDevice>,
    /// The facts; the same `Arc` while nothing has changed.
    pub facts: Arc<HostFacts>,
    /// The resources that NVIDIA's MPS control daemon does not serve, and why.
    pub without_mps: BTreeMap<ResourceName, Arc<str>>,
    /// The process IDs of the daemons that serve the others, each in the daemon's PID namespace.
    pub mps_daemons: BTreeMap<ResourceName, u32>,
    /// What is wrong with CDI specifications, or that the driver's directory is missing.
    pub problems: Vec<String>,
    /// The vendor's CDI specifications that are not used, with the reason.
    pub unused: UnusedFiles,
}

/// Scans the host, and keeps what the next scan needs; `entries` by the number of the configured entry.
#[derive(Debug)]
pub struct HostScanner {
    paths: HostPaths,
    /// Whether `roots.host` shows the host's files: false in a container, which has files of its own.
    shows_files: bool,
    /// The kubelet's directory, with its checkpoint.
    device_plugins: PathBuf,
    specifications: Specifications,
    written: WrittenSpecifications,
    held: HeldNames,
    entries: BTreeMap<u64, EntryScan>,
}

/// The CDI names that containers hold, from the kubelet's checkpoint.
#[derive(Debug, Default)]
struct HeldNames {
    version: Option<FileStamp>,
    /// `None` while the checkpoint cannot be read.
    names: Option<BTreeSet<String>>,
}

#[derive(Debug, Default)]
struct EntryScan {
    /// The inventory from which the topology was made. A GPU returns without another generation.
    inventory: Option<Inventory>,
    facts: Arc<HostFacts>,
    unused: UnusedFiles,
}

/// Whether the entry's devices, or what containers get, depend on files of the host. These change without an event:
/// they are scanned before the resource is served, and every second.
pub fn depends_on_host(config: &EntryConfig) -> bool {
    match config {
        EntryConfig::Path(_) => true,
        EntryConfig::Nvidia(nvidia) => nvidia.shares_through_mps() || nvidia.names_nodes(),
        EntryConfig::Simulated(_) => false,
    }
}

/// Whether this process sees the host's files at the host's paths. A container has another file system.
fn shows_files(proc: &Path) -> bool {
    let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    !in_pod && std::fs::read_to_string(proc.join("self/mountinfo")).is_ok_and(|mounts| !has_overlay_root(&mounts))
}

fn has_overlay_root(mountinfo: &str) -> bool {
    let mut roots = mountinfo.lines().filter(|line| line.split(' ').nth(4) == Some("/"));
    roots.next_back().is_some_and(|root| root.split_once(" - ").is_some_and(|(_, source)| source.contains("overlay")))
}

impl HostScanner {
    pub fn new(paths: HostPaths, device_plugins: PathBuf) -> Self {
        Self {
            shows_files: paths.roots.host != Path::new("/") || shows_files(&paths.proc),
            paths,
            device_plugins,
            specifications: Specifications::default(),
            written: WrittenSpecifications::default(),
            held: HeldNames::default(),
            entries: BTreeMap::new(),
        }
    }

    /// Scans for the entries of the `request`, and brings our CDI specifications up to date.
    pub fn scan(&mut self, request: &ScanRequest, inventory: &Inventory) -> BTreeMap<u64, ScanResult> {
        self.entries.retain(|number, _| request.contains_key(number));
        self.specifications.refresh(&self.paths.cdi);
        self.held.refresh(&self.device_plugins);
        let scanned = request.iter().map(|(number, config)| (*number, self.scan_for(*number, config, inventory)));
        let mut results: BTreeMap<u64, ScanResult> = scanned.collect();
        let problems = self.update_written(request, inventory);
        let uses_cdi = |number: &&u64| request[*number].nvidia().is_some_and(NvidiaConfig::uses_cdi);
        let of = results.keys().find(uses_cdi).or(results.keys().next()).copied();
        if let Some(result) = of.and_then(|number| results.get_mut(&number)) {
            result.problems.extend(problems);
        }
        results
    }

    /// Updates our specifications, which have every device of the node, for containers of every configuration. Nothing
    /// changes before the driver has listed its devices.
    fn update_written(&mut self, request: &ScanRequest, inventory: &Inventory) -> Vec<String> {
        let Some(directory) = self.paths.cdi.last() else { return vec![] };
        if inventory.generation == 0 {
            return vec![];
        }
        // While one entry replaces another, the later one counts.
        let nvidia = || request.values().rev().filter_map(|config| config.nvidia());
        let default = NvidiaConfig::default();
        let configured = nvidia().find(|nvidia| nvidia.uses_cdi()).or_else(|| nvidia().next()).unwrap_or(&default);
        let driver_files = DriverFiles {
            control_nodes: control_nodes(&self.paths.roots.local_path(&configured.device_root.join("dev"))),
            mig_capabilities: MigCapabilities::read(&self.paths.proc),
            ..DriverFiles::default()
        };
        self.written.update(&SpecificationInputs {
            directory,
            roots: &self.paths.roots,
            device_root: &configured.device_root,
            control_nodes: &driver_files.control_nodes,
            devices: &cdi::node_devices(inventory, &driver_files),
            held: self.held.names.as_ref(),
            described: self.specifications.described(cdi::EARLIER_KIND),
            is_used: configured.uses_cdi(),
        })
    }

    fn scan_for(&mut self, number: u64, config: &EntryConfig, inventory: &Inventory) -> ScanResult {
        let result = ScanResult { generation: inventory.generation, ..ScanResult::default() };
        match config {
            EntryConfig::Simulated(_) => result,
            EntryConfig::Path(path) => {
                ScanResult { path_devices: path_devices::find(path, &self.paths.roots), ..result }
            }
            EntryConfig::Nvidia(nvidia) => {
                let entry_scan = self.entries.entry(number).or_default();
                // The only health in these offers is which devices are lost. With many slots they take long to make.
                let uses_offers = nvidia.uses_cdi() || nvidia.shares_through_mps();
                let offers = if uses_offers { offers(config, inventory, &[]).offers } else { vec![] };
                let (paths, shows_files) = (&self.paths, self.shows_files);
                entry_scan.update_facts(nvidia, inventory, &offers, paths, shows_files, &self.specifications);
                let mut problems = cdi::unused_problems(&entry_scan.unused);
                problems.extend(without_driver(nvidia, &entry_scan.facts.driver_files));
                let without_mps = mps::resources_without_daemon(nvidia, &self.paths.roots, &offers);
                let mps_daemons = mps::daemons(nvidia, &self.paths.roots, &offers);
                let unused = entry_scan.unused.clone();
                let facts = Arc::clone(&entry_scan.facts);
                ScanResult { facts, without_mps, mps_daemons, problems, unused, ..result }
            }
        }
    }
}

impl HeldNames {
    fn refresh(&mut self, device_plugins: &Path) {
        match cdi_names(device_plugins, &mut self.version) {
            Ok(None) => {}
            Ok(names) => self.names = names,
            // `kubelet::checkpoint` logs it.
            Err(_) => *self = Self::default(),
        }
    }
}

impl EntryScan {
    fn update_facts(
        &mut self,
        nvidia: &NvidiaConfig,
        inventory: &Inventory,
        offers: &[Offer],
        paths: &HostPaths,
        shows_files: bool,
        specifications: &Specifications,
    ) {
        let is_same = self.inventory.as_ref() == Some(inventory);
        if is_same && !nvidia.names_nodes() {
            return;
        }
        let mut driver_files = DriverFiles {
            control_nodes: control_nodes(&paths.roots.local_path(&nvidia.device_root.join("dev"))),
            mig_capabilities: MigCapabilities::read(&paths.proc),
            driver_mounts: driver_mounts(nvidia, |path| paths.roots.local_path(path).exists()),
            vendor_cdi_names: BTreeMap::new(),
        };
        if nvidia.uses_cdi() {
            let host = HostView {
                roots: &paths.roots,
                shows_files,
                driver_version: inventory.driver.as_ref().map(|driver| &*driver.driver_version),
            };
            let vendor = specifications.vendor_devices(nvidia, offers, &driver_files, host);
            (driver_files.vendor_cdi_names, self.unused) = (vendor.names, vendor.unused);
        }
        if is_same && self.facts.driver_files == driver_files {
            return;
        }
        let topology = if is_same { self.facts.topology.clone() } else { topology(inventory, &paths.roots.sys) };
        self.facts = Arc::new(HostFacts { driver_files, topology });
        self.inventory = Some(inventory.clone());
    }
}

/// The problem that containers would get device nodes and no driver.
fn without_driver(nvidia: &NvidiaConfig, driver_files: &DriverFiles) -> Option<String> {
    let first = nvidia.driver_mounts.first().filter(|_| driver_files.driver_mounts.is_empty())?;
    nvidia.includes(DeviceListStrategy::DeviceNodes).then(|| {
        format!(
            "deviceListStrategy device-nodes: {} is not there, so containers get no files of the driver: mount it into \
             podmeter at the same path, or name the driver's directory in driverMounts ([] where images have the driver)",
            first.host_path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::test_data::{gpu, inventory, nvidia, uuid};

    /// A host with only the files that a test creates.
    fn empty(root: &std::path::Path) -> HostPaths {
        std::fs::create_dir_all(root.join("dev")).unwrap();
        HostPaths {
            roots: crate::plugin::test_data::host_roots(root),
            proc: root.join("proc"),
            cdi: vec![root.join("cdi")],
        }
    }

    fn request(text: &str) -> ScanRequest {
        [(7, Arc::new(nvidia(text)))].into()
    }

    #[test]
    fn a_node_that_appears_late_is_found_without_a_change_of_the_inventory() {
        let root = tempfile::tempdir().unwrap();
        let mut scanner = HostScanner::new(empty(root.path()), root.path().join("device-plugins"));
        let (request, inventory) = (request("passDeviceSpecs: true"), inventory([gpu(0, None)]));
        let mut scan = || scanner.scan(&request, &inventory).remove(&7).unwrap().facts;
        let first = scan();
        assert!(first.driver_files.control_nodes.is_empty());
        assert!(Arc::ptr_eq(&first, &scan()), "nothing has changed");
        std::fs::write(root.path().join("dev/nvidia-uvm"), "").unwrap();
        assert_eq!(scan().driver_files.control_nodes, ["/dev/nvidia-uvm"]);
    }

    #[test]
    fn a_usual_place_of_the_driver_that_is_not_there_is_not_mounted() {
        let root = tempfile::tempdir().unwrap();
        let mut scanner = HostScanner::new(empty(root.path()), root.path().join("device-plugins"));
        let scan = |scanner: &mut HostScanner, text: &str| {
            let result = scanner.scan(&request(text), &inventory([gpu(0, None)])).remove(&7).unwrap();
            let mounts =
                result.facts.driver_files.driver_mounts.iter().map(|mount| mount.host_path.display().to_string());
            (mounts.collect::<Vec<_>>(), result.problems.first().cloned())
        };
        let (mounts, problem) = scan(&mut scanner, "deviceListStrategy: device-nodes");
        assert_eq!(mounts, Vec::<String>::new());
        assert!(problem.is_some_and(|text| text.contains("/home/kubernetes/bin/nvidia is not there")));
        std::fs::create_dir_all(root.path().join("home/kubernetes/bin/nvidia")).unwrap();
        let expected = vec!["/home/kubernetes/bin/nvidia".to_owned()];
        assert_eq!(scan(&mut scanner, "deviceListStrategy: device-nodes"), (expected, None), "and not its part icd.d");
        let configured = "deviceListStrategy: device-nodes, driverMounts: [{hostPath: /opt/nvidia, containerPath: /n}]";
        assert_eq!(scan(&mut scanner, configured), (vec!["/opt/nvidia".to_owned()], None), "the host may have it");
        let none = "deviceListStrategy: device-nodes, driverMounts: []";
        assert_eq!(scan(&mut scanner, none), (vec![], None));
        assert_eq!(scan(&mut scanner, "deviceListStrategy: envvar").1, None);
    }

    #[test]
    fn a_container_shows_files_of_its_own() {
        let root = |kind: &str| format!("1 0 0:1 / /proc rw - proc proc rw\n2 1 0:2 / / rw,relatime - {kind} x rw\n");
        assert!(has_overlay_root(&root("overlay")) && has_overlay_root(&root("fuse.fuse-overlayfs")));
        assert!(!has_overlay_root(&root("ext4")) && !has_overlay_root(""));
        assert!(!shows_files(Path::new("/nonexistent")));
    }

    #[test]
    fn our_specification_has_the_devices_that_no_vendor_describes_and_all_others() {
        let root = tempfile::tempdir().unwrap();
        let host = empty(root.path());
        let directory = host.cdi[0].clone();
        std::fs::create_dir(&directory).unwrap();
        let ours = || std::fs::read_to_string(directory.join("podmeter.device-plugin-gpu.json"));
        let mut scanner = HostScanner::new(host, root.path().join("device-plugins"));
        let inventory = Inventory { generation: 1, ..inventory([gpu(0, None), gpu(1, None)]) };
        let mut scan = |text: &str| {
            let result = scanner.scan(&request(text), &inventory).remove(&7).unwrap();
            (result.facts.driver_files.vendor_cdi_names.clone(), result.problems)
        };
        assert_eq!(scan("deviceListStrategy: envvar"), (BTreeMap::new(), vec![]));
        assert!(ours().is_err(), "no container holds one of its names");
        std::fs::write(
            directory.join("nvidia.yaml"),
            "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: '0', containerEdits: {deviceNodes: [{path: \
             /dev/nvidia7}]}}]\n",
        )
        .unwrap();
        let (names, problems) = scan("deviceListStrategy: cdi-cri");
        assert_eq!(names, [(uuid(0), "nvidia.com/gpu=0".to_owned())].into());
        assert!(problems[0].contains(&format!("it has no entry for {}", uuid(1))), "{problems:?}");
        let both = ours().unwrap();
        assert!(both.contains(&uuid(0)) && both.contains(&uuid(1)), "{both}");
        std::fs::remove_file(directory.join("podmeter.device-plugin-gpu.json")).unwrap();
        scan("deviceListStrategy: cdi-cri");
        assert_eq!(ours().unwrap(), both, "written again");
        scan("deviceListStrategy: envvar");
        assert!(scanner.scan(&ScanRequest::new(), &inventory).is_empty());
        assert_eq!(ours().unwrap(), both, "it stays for containers that were given its names");
    }
}
