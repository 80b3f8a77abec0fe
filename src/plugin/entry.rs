//! One configured entry: what it offers now, and what its answers must know of the host.

use std::path::PathBuf;
use std::sync::Arc;

use super::cdi::{self, Written};
use super::paths::{self, Roots};
use super::{
    Hardware, MigCapabilities, NodeFacts, NvidiaConfig, Offer, ResourceConfig, control_nodes, health, merge, offers,
};
use crate::model::{HardwareState, HealthState, Inventory};
use crate::preference::{PciGpu, Place, Topology};

/// Where this process sees the host.
#[derive(Clone, Debug)]
pub struct Surroundings {
    pub roots: Roots,
    pub proc: PathBuf,
    /// The runtime's directories of CDI specifications; ours goes into the last.
    pub cdi: Vec<PathBuf>,
}

/// What is read from the host when the inventory is read anew.
#[derive(Debug, Default)]
pub struct Facts {
    pub node: NodeFacts,
    pub topology: Topology,
}

#[derive(Debug)]
pub struct Entry {
    pub config: Arc<ResourceConfig>,
    pub facts: Arc<Facts>,
    /// Merged: what was offered once is among them for ever.
    offers: Vec<Offer>,
    /// Of the inventory that the facts were read with.
    generation: Option<u64>,
    /// Our CDI specification.
    specification: Option<(String, Written)>,
    said: Vec<String>,
}

impl Entry {
    pub fn new(config: ResourceConfig) -> Self {
        Self {
            config: Arc::new(config),
            facts: Arc::default(),
            offers: vec![],
            generation: None,
            specification: None,
            said: vec![],
        }
    }

    /// Brings offers and facts up to date.
    pub fn update(&mut self, hardware: &HardwareState, judged: &HealthState, around: &Surroundings) {
        let found = match &*self.config {
            ResourceConfig::Path(path) => paths::find(path, &around.roots),
            _ => vec![],
        };
        let now = offers(&self.config, &hardware.inventory, &found);
        let verdict = |behind: &Hardware| health::verdict(behind, judged);
        self.offers = merge(&self.offers, now.offers.into_iter().map(|offer| offer.judged(verdict)).collect());
        for problem in now.problems.iter().filter(|problem| !self.said.contains(problem)) {
            tracing::warn!(resource = %self.config.name(), "{problem}");
        }
        self.said = now.problems;
        let config = Arc::clone(&self.config);
        if let ResourceConfig::Nvidia(nvidia) = &*config
            && self.generation != Some(hardware.inventory.generation)
        {
            self.generation = Some(hardware.inventory.generation);
            self.facts = Arc::new(Facts {
                node: self.node_facts(nvidia, around),
                topology: topology(&hardware.inventory, around),
            });
            self.specify(nvidia, around);
        }
    }

    pub fn offers(&self) -> &[Offer] {
        &self.offers
    }

    fn node_facts(&self, nvidia: &NvidiaConfig, around: &Surroundings) -> NodeFacts {
        let device_root = nvidia.device_root.strip_prefix("/").unwrap_or(&nvidia.device_root);
        NodeFacts {
            control_nodes: control_nodes(&around.roots.host.join(device_root)),
            mig_capabilities: MigCapabilities::read(&around.proc),
            cdi: if nvidia.uses_cdi() { cdi::find_vendor(&around.cdi, &self.offers) } else { None },
        }
    }

    /// CDI answers need a specification: ours where the vendor has none.
    fn specify(&mut self, nvidia: &NvidiaConfig, around: &Surroundings) {
        let Some(directory) = around.cdi.last() else { return };
        if !nvidia.uses_cdi() || self.facts.node.cdi.is_some() || self.offers.is_empty() {
            return;
        }
        let described = cdi::described_by_others(&around.cdi);
        let text = cdi::specification(nvidia, &self.offers, &self.facts.node, &described);
        if self.specification.as_ref().is_some_and(|(written, _)| *written == text) {
            return;
        }
        match cdi::write(directory, &text) {
            Ok(written) => self.specification = Some((text, written)),
            Err(error) => tracing::error!(resource = %nvidia.name, "no CDI specification: {error}"),
        }
    }

    /// Takes back what was written on the host.
    pub fn end(self) {
        if let Some((_, written)) = self.specification
            && let Err(error) = written.remove()
        {
            tracing::warn!(%error, "our CDI specification stays behind");
        }
    }
}

/// From where the GPUs sit on the PCI bus. A GPU that sysfs does not have is without links.
fn topology(inventory: &Inventory, around: &Surroundings) -> Topology {
    let devices = around.roots.sys.join("bus/pci/devices");
    let gpu = |gpu: &crate::model::Gpu| {
        let path = gpu.pci_bus_id.as_ref().and_then(|id| std::fs::canonicalize(devices.join(id.as_str())).ok());
        PciGpu {
            uuid: gpu.uuid.clone(),
            place: Place { index: gpu.index, numa_node: gpu.numa_node.map(i64::from) },
            path: path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default(),
        }
    };
    let gpus: Vec<PciGpu> = inventory.gpus.values().map(gpu).collect();
    Topology::from_pci(&gpus, &std::collections::BTreeMap::new())
}
