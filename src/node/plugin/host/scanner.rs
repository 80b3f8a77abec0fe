//! What the plugin reads of the host: device nodes, MIG capabilities, PCI topology, CDI specifications, MPS files.
//!
//! In: the configured entries and the inventory. Out: a `ScanResult` for each, and our CDI specification on disk. It
//! runs on a blocking thread, because a file system may hang.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::cdi::{self, Specifications, WrittenSpecification};
use super::driver_files::{DriverFiles, MigCapabilities, control_nodes, driver_mounts};
use super::mps;
use super::path_devices::{self, HostRoots};
use super::topology::topology;
use crate::domain::model::{Inventory, ResourceName};
use crate::domain::preference::Topology;
use crate::node::plugin::config::{DeviceListStrategy, EntryConfig, NvidiaConfig};
use crate::node::plugin::offer::{Offer, PathDevice, offers};

/// The directories that scans read, as this process sees them.
#[derive(Clone, Debug)]
pub struct HostPaths {
    pub roots: HostRoots,
    pub proc: PathBuf,
    /// The runtime's directories of CDI specifications; ours goes into the last.
    pub cdi: Vec<PathBuf>,
}

/// What answers to the kubelet depend on.
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
    /// Of the inventory that the scan used.
    pub generation: u64,
    /// Of an entry of kind `path`.
    pub path_devices: Vec<PathDevice>,
    /// The same `Arc` while nothing has changed.
    pub facts: Arc<HostFacts>,
    /// The resources that NVIDIA's MPS control daemon does not serve, and why.
    pub without_mps: BTreeMap<ResourceName, Arc<str>>,
    /// The processes of those that serve the others, each by its ID in its own namespace.
    pub mps_daemons: BTreeMap<ResourceName, u32>,
    /// Why our CDI specification, or the driver's directory, is not there.
    pub problem: Option<String>,
}

/// What is kept from one scan to the next; of each configured entry by its number.
#[derive(Debug)]
pub struct HostScanner {
    paths: HostPaths,
    specifications: Specifications,
    entries: BTreeMap<u64, EntryScan>,
}

#[derive(Debug, Default)]
struct EntryScan {
    /// Of the inventory from which the topology was made.
    generation: Option<u64>,
    facts: Arc<HostFacts>,
    /// Our CDI specification.
    written: Option<(String, WrittenSpecification)>,
}

/// Whether what it offers, or what containers get, depends on files of the host. These change without an event: they are
/// scanned before the resource is served, and every second.
pub fn depends_on_host(config: &EntryConfig) -> bool {
    match config {
        EntryConfig::Path(_) => true,
        EntryConfig::Nvidia(nvidia) => nvidia.shares_through_mps() || nvidia.names_nodes(),
        EntryConfig::Simulated(_) => false,
    }
}

impl HostScanner {
    pub fn new(paths: HostPaths) -> Self {
        Self { paths, specifications: Specifications::default(), entries: BTreeMap::new() }
    }

    /// Scans for the entries of the `request`, and removes what was written for entries that are no longer configured.
    pub fn scan(&mut self, request: &ScanRequest, inventory: &Inventory) -> BTreeMap<u64, ScanResult> {
        // First: a removed entry may have written the file that another entry writes now.
        for (_, mut removed) in self.entries.extract_if(.., |number, _| !request.contains_key(number)) {
            removed.remove_cdi();
        }
        if request.values().filter_map(|config| config.nvidia()).any(NvidiaConfig::uses_cdi) {
            self.specifications.refresh(&self.paths.cdi);
        }
        request.iter().map(|(number, config)| (*number, self.scan_for(*number, config, inventory))).collect()
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
                // Of health they have only which devices are lost.
                let offers = offers(config, inventory, &[]).offers;
                entry_scan.update_facts(nvidia, inventory, &offers, &self.paths, &self.specifications);
                let problem = entry_scan.write_cdi(nvidia, &offers, &self.paths, &self.specifications);
                let problem = problem.or_else(|| without_driver(nvidia, &entry_scan.facts.driver_files));
                let without_mps = mps::resources_without_daemon(nvidia, &self.paths.roots, &offers);
                let mps_daemons = mps::daemons(nvidia, &self.paths.roots, &offers);
                ScanResult { facts: Arc::clone(&entry_scan.facts), without_mps, mps_daemons, problem, ..result }
            }
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
        specifications: &Specifications,
    ) {
        let is_same = self.generation == Some(inventory.generation);
        if is_same && !nvidia.names_nodes() {
            return;
        }
        let driver_files = DriverFiles {
            control_nodes: control_nodes(&paths.roots.local_path(&nvidia.device_root.join("dev"))),
            mig_capabilities: MigCapabilities::read(&paths.proc),
            driver_mounts: driver_mounts(nvidia, |path| paths.roots.local_path(path).exists()),
            cdi: if nvidia.uses_cdi() { specifications.vendor_for(offers).cloned() } else { None },
        };
        if is_same && self.facts.driver_files == driver_files {
            return;
        }
        let topology = if is_same { self.facts.topology.clone() } else { topology(inventory, &paths.roots.sys) };
        self.facts = Arc::new(HostFacts { driver_files, topology });
        self.generation = Some(inventory.generation);
    }

    /// CDI answers need a specification: ours where the vendor has none. Where the vendor has one later, ours stays for
    /// the containers that were given its names, without the names that both would describe. Returns what went wrong.
    fn write_cdi(
        &mut self,
        nvidia: &NvidiaConfig,
        offers: &[Offer],
        paths: &HostPaths,
        specifications: &Specifications,
    ) -> Option<String> {
        let directory = paths.cdi.last()?;
        if !nvidia.uses_cdi() || offers.is_empty() || (self.facts.driver_files.cdi.is_some() && self.written.is_none())
        {
            return None;
        }
        let Some(text) = cdi::specification(nvidia, offers, &self.facts.driver_files, &specifications.described())
        else {
            self.remove_cdi();
            return None;
        };
        if self.written.as_ref().is_some_and(|(before, written)| *before == text && written.is_there()) {
            return None;
        }
        match cdi::write(directory, &text) {
            Ok(written) => self.written = Some((text, written)),
            Err(error) => return Some(format!("no CDI specification: {error}")),
        }
        None
    }

    fn remove_cdi(&mut self) {
        if let Some((_, written)) = self.written.take()
            && let Err(error) = written.remove()
        {
            tracing::warn!(%error, "our CDI specification cannot be removed");
        }
    }
}

/// Containers would get device nodes and no driver.
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
    use crate::domain::model::Gpu;
    use crate::node::plugin::test_data::{gpu, inventory, nvidia, uuid};

    /// A host with nothing but what a test puts there.
    fn empty(root: &std::path::Path) -> HostPaths {
        std::fs::create_dir_all(root.join("dev")).unwrap();
        HostPaths {
            roots: HostRoots { host: root.into(), dev: root.join("dev"), sys: root.join("sys") },
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
        let mut scanner = HostScanner::new(empty(root.path()));
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
        let mut scanner = HostScanner::new(empty(root.path()));
        let scan = |scanner: &mut HostScanner, text: &str| {
            let result = scanner.scan(&request(text), &inventory([gpu(0, None)])).remove(&7).unwrap();
            let mounts =
                result.facts.driver_files.driver_mounts.iter().map(|mount| mount.host_path.display().to_string());
            (mounts.collect::<Vec<_>>(), result.problem)
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
    fn a_later_vendor_specification_replaces_ours() {
        let root = tempfile::tempdir().unwrap();
        let host = empty(root.path());
        let directory = host.cdi[0].clone();
        std::fs::create_dir(&directory).unwrap();
        let vendors = directory.join("nvidia.json");
        let describe = |names: &[&str]| {
            let devices: Vec<_> = names.iter().map(|name| serde_json::json!({ "name": name })).collect();
            let text = serde_json::json!({ "kind": cdi::PLUGIN_KIND, "devices": devices }).to_string();
            std::fs::write(&vendors, text).unwrap();
        };
        let ours = || {
            let mut files = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
            files.find(|file| *file != vendors).map(|file| std::fs::read_to_string(file).unwrap())
        };
        let mut scanner = HostScanner::new(host);
        let gone = Gpu { present: false, ..gpu(2, None) };
        let (request, inventory) =
            (request("deviceListStrategy: cdi-cri"), inventory([gpu(0, None), gpu(1, None), gone]));
        // Of the layout before: a file that does not describe a GPU that is there is none to use, checked or not.
        describe(&["0"]);
        let mut scan = || {
            scanner
                .scan(&request, &inventory)
                .remove(&7)
                .unwrap()
                .facts
                .driver_files
                .cdi
                .clone()
                .map(|found| found.file)
        };
        assert_eq!(scan(), None);
        let text = ours().expect("our own");
        assert!(text.contains(&uuid(1)) && !text.contains("\"0\""), "{text}");
        describe(&["0", "1"]);
        assert_eq!(scan(), Some(vendors.clone()), "the GPU that is gone need not be described");
        let text = ours().expect("for containers that were given its names");
        assert!(text.contains(&uuid(1)) && !text.contains("\"1\""), "no name twice: {text}");
        std::fs::remove_file(&vendors).unwrap();
        assert_eq!(scan(), None);
        assert!(ours().unwrap().contains("\"1\""));
        assert!(scanner.scan(&ScanRequest::new(), &inventory).is_empty());
        assert_eq!(ours(), None, "no entry uses it any more");
    }
}
