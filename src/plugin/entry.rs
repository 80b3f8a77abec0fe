//! One configured entry: what it offers now, and what its answers must know of the host.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::cdi::{self, Written};
use super::layout::{self, Vanished};
use super::mps;
use super::paths::{self, Roots};
use super::{
    Hardware, MigCapabilities, NodeFacts, NvidiaConfig, Offer, Offers, ResourceConfig, control_nodes, health, merge,
    offers,
};
use crate::model::{
    DeviceId, Gpu, GpuUuid, HardwareState, HealthState, Inventory, KubeletState, Monotonic, PciBusId, ResourceName,
};
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
    /// Merged: what was offered once is among them until it is dropped.
    offers: Vec<Offer>,
    /// What a change of layout took away, and the kubelet still has in its list.
    vanished: BTreeMap<ResourceName, Vanished>,
    /// Of the inventory that the facts were read with.
    generation: Option<u64>,
    /// Our CDI specification.
    specification: Option<(String, Written)>,
    problems: Vec<String>,
}

impl Entry {
    pub fn new(config: ResourceConfig) -> Self {
        Self {
            config: Arc::new(config),
            facts: Arc::default(),
            offers: vec![],
            vanished: BTreeMap::new(),
            generation: None,
            specification: None,
            problems: vec![],
        }
    }

    /// Brings offers and facts up to date.
    pub fn update(&mut self, hardware: &HardwareState, judged: &HealthState, around: &Surroundings, now: Monotonic) {
        let found = match &*self.config {
            ResourceConfig::Path(path) => paths::find(path, &around.roots),
            _ => vec![],
        };
        let Offers { offers, problems } = offers(&self.config, &hardware.inventory, &found);
        let verdict = |behind: &Hardware| health::verdict(behind, judged);
        let vanished = self.offers.iter().map(|before| {
            let ids = layout::vanished(before, &offers, &hardware.inventory);
            let known = self.vanished.get(&before.resource);
            let since = |id: &DeviceId| known.and_then(|known| known.get(id)).copied().unwrap_or(now);
            (before.resource.clone(), ids.into_iter().map(|id| (id.clone(), since(&id))).collect())
        });
        self.vanished = vanished.filter(|(_, vanished): &(_, Vanished)| !vanished.is_empty()).collect();
        let judged = offers.into_iter().map(|offer| offer.judged(verdict)).map(|offer| match &*self.config {
            ResourceConfig::Nvidia(nvidia) => mps::judged(nvidia, &around.roots, offer),
            ResourceConfig::Path(_) | ResourceConfig::Simulated(_) => offer,
        });
        let merged = merge(&self.offers, judged.collect(), &hardware.inventory);
        (self.offers, self.problems) = (merged.offers, [problems, merged.problems].concat());
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

    /// Whether what it offers may change without a word from the hardware: it is then looked at every second.
    pub fn needs_looking(&self) -> bool {
        match &*self.config {
            ResourceConfig::Path(_) => true,
            ResourceConfig::Nvidia(nvidia) => nvidia.shares_through_mps(),
            ResourceConfig::Simulated(_) => false,
        }
    }

    pub fn offers(&self) -> &[Offer] {
        &self.offers
    }

    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Whether it waits for the kubelet to let go of devices.
    pub fn is_draining(&self) -> bool {
        !self.vanished.is_empty()
    }

    /// Takes out of the offers what vanished and nobody holds. Returns the resources whose lists are now shorter.
    pub fn drop_drained(&mut self, kubelet: &KubeletState) -> Vec<ResourceName> {
        let mut shorter = vec![];
        self.vanished.retain(|resource, vanished| {
            let dropped = layout::to_drop(resource, vanished, kubelet);
            if dropped.is_empty() {
                return true;
            }
            for offer in self.offers.iter_mut().filter(|offer| offer.resource == *resource) {
                offer.devices.retain(|device| !dropped.contains(&device.id));
            }
            tracing::info!(%resource, devices = dropped.len(), "no container holds what the change of layout took away");
            shorter.push(resource.clone());
            false
        });
        self.offers.retain(|offer| !offer.devices.is_empty());
        shorter
    }

    fn node_facts(&self, nvidia: &NvidiaConfig, around: &Surroundings) -> NodeFacts {
        NodeFacts {
            control_nodes: control_nodes(&around.roots.inside(&nvidia.device_root.join("dev"))),
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

/// From where the GPUs sit on the PCI bus, and from the NVLinks between each two. A GPU that sysfs does not have is
/// without links.
fn topology(inventory: &Inventory, around: &Surroundings) -> Topology {
    let devices = around.roots.sys.join("bus/pci/devices");
    let gpu = |gpu: &Gpu| {
        let path = gpu.pci_bus_id.as_ref().and_then(|id| std::fs::canonicalize(devices.join(id.as_str())).ok());
        PciGpu {
            uuid: gpu.uuid.clone(),
            place: Place { index: gpu.index, numa_node: gpu.numa_node.map(i64::from) },
            path: path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default(),
        }
    };
    let gpus: Vec<PciGpu> = inventory.gpus.values().map(gpu).collect();
    Topology::from_pci(&gpus, &nv_links(inventory))
}

/// Links that lead straight to another GPU, as each end tells: (teller, other) → links. Those into switches count for no
/// pair, as in NVIDIA's allocator (`GetNVLink` of go-gpuallocator compares remote bus ids with GPUs' alone): they make
/// all pairs equal, and where the GPUs sit on the PCI bus decides.
fn nv_links(inventory: &Inventory) -> BTreeMap<(GpuUuid, GpuUuid), u32> {
    let by_bus_id: BTreeMap<&PciBusId, &GpuUuid> = inventory
        .gpus
        .values()
        .filter(|gpu| gpu.present)
        .filter_map(|gpu| Some((gpu.pci_bus_id.as_ref()?, &gpu.uuid)))
        .collect();
    let mut links = BTreeMap::new();
    for gpu in inventory.gpus.values() {
        for (bus_id, count) in gpu.nvlink_peers.iter().flat_map(|peers| &peers.by_bus_id) {
            if let Some(other) = by_bus_id.get(bus_id) {
                links.insert((gpu.uuid.clone(), (*other).clone()), *count);
            }
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NvLinkPeers;
    use crate::plugin::tests::gpu;
    use crate::preference::{Candidate, FallbackReason, Request, choose_gpus};

    #[test]
    fn gpus_with_nvlinks_between_them_are_given_together() {
        let root = tempfile::tempdir().unwrap();
        let devices = root.path().join("bus/pci/devices");
        std::fs::create_dir_all(&devices).unwrap();
        let place = |index: u32| format!("0000:{:02x}:00.0", 0x10 + index);
        let linked = |pairs: &[(u32, u32)], switch_links| {
            let gpu = |index| {
                let others = pairs.iter().filter_map(|(one, other)| (*one == index).then_some(*other));
                let by_bus_id = others.map(|other| (PciBusId::new(place(other)), 4)).collect();
                let nvlink_peers = Some(NvLinkPeers { by_bus_id, switch_links });
                Gpu { pci_bus_id: Some(PciBusId::new(place(index))), nvlink_peers, ..gpu(index, None) }
            };
            let gpus = (0..4).map(gpu).map(|gpu| (gpu.uuid.clone(), gpu)).collect();
            Inventory { gpus, ..Inventory::default() }
        };
        for index in 0..4 {
            let own = root.path().join(format!("pci0000:00/0000:00:0{index}.0/{}", place(index)));
            std::fs::create_dir_all(&own).unwrap();
            std::os::unix::fs::symlink(own, devices.join(place(index))).unwrap();
        }
        let around = Surroundings {
            roots: Roots { host: "/".into(), dev: "/dev".into(), sys: root.path().to_owned() },
            proc: "/nonexistent".into(),
            cdi: vec![],
        };
        let two = |inventory: &Inventory| {
            let topology = topology(inventory, &around);
            let candidate = |gpu: &Gpu| Candidate { id: gpu.uuid.as_str().into(), gpu: gpu.uuid.clone() };
            let available = inventory.gpus.values().map(candidate).collect();
            let choice =
                choose_gpus(&Request { available, must_include: vec![], size: 2 }, &topology, &BTreeMap::new());
            let index = |id: &crate::model::DeviceId| inventory.gpus[&GpuUuid::from(id.as_str())].index;
            (choice.ids.iter().map(index).collect::<Vec<_>>(), choice.fallback.map(FallbackReason::as_str))
        };
        let both_ends = linked(&[(0, 2), (2, 0), (1, 3), (3, 1)], 0);
        assert_eq!(two(&both_ends), (vec![0, 2], None));
        assert_eq!(two(&linked(&[], 18)), (vec![0, 1], None), "links into switches tell no pair from another");
        let one_end = linked(&[(0, 2)], 0);
        assert_eq!(two(&one_end).1, Some("links_asymmetric"));
        let mut gone = both_ends;
        gone.gpus.values_mut().find(|gpu| gpu.index == 2).unwrap().present = false;
        assert_eq!(nv_links(&gone).len(), 3, "nobody is linked to a GPU that has left");
    }
}
