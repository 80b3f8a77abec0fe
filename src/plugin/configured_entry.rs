//! One configured entry, of `devicePlugin.resources`: what it offers now, as one resource or several.
//!
//! In: its configuration, the last host scan, the inventory, device health. Out: offers and problems. It reads no files
//! of the host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::config::EntryConfig;
use super::host::{self, HostFacts, ScanResult};
use super::offer::layout::{self, Vanished};
use super::offer::{Offer, OfferedHardware, OfferedHealth, Offers, PluginUnhealthy, merge, offers};
use crate::domain::holders::HeldHardware;
use crate::domain::model::{
    GpuUuid, HardwareState, HealthState, Inventory, KubeletState, Monotonic, ResourceName, UnhealthyReason,
};

/// The longest wait for the first host scan, where it decides only which devices are preferred.
const FIRST_SCAN: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct ConfiguredEntry {
    pub config: Arc<EntryConfig>,
    last_scan: Option<ScanResult>,
    /// What the offers were made of, beside the configuration and the last scan; `None` after a scan that differs. With many slots
    /// each pass over the offers takes long.
    made_of: Option<OfferInputs>,
    /// The offers, with every device that was offered until it is dropped.
    pub offers: Vec<Offer>,
    /// The vanished devices of the offers, until all of a resource are dropped together.
    vanished: BTreeMap<ResourceName, Vanished>,
    pub problems: Vec<String>,
    created: Monotonic,
}

/// The inventory, health, the held hardware, and the problem of unknown memory.
type OfferInputs = (Arc<Inventory>, HealthState, HeldHardware, Option<String>);

impl ConfiguredEntry {
    pub fn new(config: EntryConfig, now: Monotonic) -> Self {
        let config = Arc::new(config);
        let (offers, problems) = (vec![], vec![]);
        Self { config, last_scan: None, made_of: None, offers, vanished: BTreeMap::new(), problems, created: now }
    }

    pub fn apply_scan(&mut self, result: ScanResult) {
        let makes_same_offers = |last: &ScanResult| {
            (&last.path_devices, &last.without_mps, &last.problems)
                == (&result.path_devices, &result.without_mps, &result.problems)
        };
        if !self.last_scan.as_ref().is_some_and(makes_same_offers) {
            self.made_of = None;
        }
        self.last_scan = Some(result);
    }

    pub fn facts(&self) -> Arc<HostFacts> {
        self.last_scan.as_ref().map(|scan| Arc::clone(&scan.facts)).unwrap_or_default()
    }

    /// Whether enough is known of the host to answer the kubelet for a resource that is not served yet.
    pub fn may_begin(&self, hardware: &HardwareState, now: Monotonic) -> bool {
        match &self.last_scan {
            Some(scan) => !self.depends_on_host() || scan.generation == hardware.inventory.generation,
            None => !self.depends_on_host() && now.since(self.created) >= FIRST_SCAN,
        }
    }

    /// Updates the offers; returns whether they were made again. An unhealthy device has the first of these reasons: its GPU is lost,
    /// its hardware is unhealthy, no MPS daemon serves it, its hardware is held under another name.
    pub fn update(
        &mut self,
        hardware: &HardwareState,
        health: &HealthState,
        held: &HeldHardware,
        now: Monotonic,
    ) -> bool {
        let inputs = (
            Arc::clone(&hardware.inventory),
            health.clone(),
            held.clone(),
            without_memory(&self.config, &self.offers, hardware),
        );
        if self.made_of.as_ref() == Some(&inputs) {
            return false;
        }
        self.made_of = Some(inputs);
        let nothing = ScanResult::default();
        let scan = self.last_scan.as_ref().unwrap_or(&nothing);
        let Offers { offers, problems } = offers(&self.config, &hardware.inventory, &scan.path_devices);
        self.vanished = self.vanished_from(&offers, &hardware.inventory, now);
        let offers = offers
            .into_iter()
            .map(|offer| with_health(offer, health).with_mps_health(&scan.without_mps).with_holders(held));
        let now = Offers { offers: offers.collect(), problems };
        let problems;
        Offers { offers: self.offers, problems } = merge(&self.offers, now, &hardware.inventory);
        self.problems = [self.config.warnings(), problems, scan.problems.clone()].concat();
        self.problems.extend(without_memory(&self.config, &self.offers, hardware));
        true
    }

    /// When each device of the earlier offers vanished; `at` for those that vanish now.
    fn vanished_from(
        &self,
        offers: &[Offer],
        inventory: &Inventory,
        at: Monotonic,
    ) -> BTreeMap<ResourceName, Vanished> {
        let mut vanished: BTreeMap<ResourceName, Vanished> = BTreeMap::new();
        for before in &self.offers {
            for id in layout::vanished(before, offers, inventory) {
                let since = self.vanished.get(&before.resource).and_then(|known| known.get(&id)).copied().unwrap_or(at);
                vanished.entry(before.resource.clone()).or_default().insert(id, since);
            }
        }
        vanished
    }

    /// The MPS control daemon of each GPU that it shares by MPS.
    pub fn mps_daemons(&self) -> impl Iterator<Item = (GpuUuid, u32)> {
        let daemons = self.last_scan.iter().flat_map(|scan| &scan.mps_daemons);
        daemons.flat_map(|(resource, pid)| {
            let offers = self.offers.iter().filter(move |offer| offer.resource == *resource);
            let slots = offers.flat_map(|offer| &offer.devices).filter(|device| device.is_slot());
            slots.filter_map(move |device| Some((device.hardware.gpu()?.clone(), *pid)))
        })
    }

    /// The vendor's CDI specifications that are not used, and why, with the number of devices.
    pub fn unused_cdi_files(&self) -> impl Iterator<Item = ((Arc<str>, &'static str), usize)> {
        let unused = self.last_scan.iter().flat_map(|scan| &scan.unused);
        unused
            .map(|((file, reason), unused)| ((file.to_string_lossy().into(), reason.into_str()), unused.devices.len()))
    }

    pub fn depends_on_host(&self) -> bool {
        host::depends_on_host(&self.config)
    }

    /// Drops the vanished devices of each resource none of whose vanished devices is held, once it may be registered without them.
    /// Returns these resources.
    pub fn drop_vanished(&mut self, kubelet: &KubeletState, may_begin: bool) -> Vec<ResourceName> {
        if !may_begin {
            return vec![];
        }
        let may_drop = |resource: &ResourceName, vanished: &mut Vanished| layout::may_drop(resource, vanished, kubelet);
        let dropped: BTreeMap<ResourceName, Vanished> = self.vanished.extract_if(.., may_drop).collect();
        for Offer { resource, devices } in &mut self.offers {
            let Some(vanished) = dropped.get(resource) else { continue };
            devices.retain(|device| !vanished.contains_key(&device.id));
            tracing::info!(%resource, devices = vanished.len(), "no container holds the devices that the change of layout removed");
        }
        self.offers.retain(|offer| !offer.devices.is_empty());
        if !dropped.is_empty() {
            // There may be place for devices with which a list was too long.
            self.made_of = None;
        }
        dropped.into_keys().collect()
    }
}

/// The problem of GPUs whose free memory is required and never known. Containers start on them regardless.
fn without_memory(config: &EntryConfig, offers: &[Offer], hardware: &HardwareState) -> Option<String> {
    config.pre_start_check()?.minimum_free_memory?;
    let is_without = |gpu: &&GpuUuid| {
        let medium = hardware.readings.get(*gpu).and_then(|readings| readings.medium.as_ref());
        let known = hardware.inventory.gpus.get(*gpu);
        known.is_some_and(|known| known.memory_bytes.is_none())
            && medium.is_some_and(|medium| medium.value.memory.is_none())
    };
    let offered = offers.iter().flat_map(|offer| &offer.devices).filter_map(|device| device.hardware.gpu());
    let without: BTreeSet<&str> = offered.filter(is_without).map(GpuUuid::as_str).collect();
    (!without.is_empty()).then(|| {
        format!(
            "preStartCheck.minimumFreeMemory has no effect on {}: the driver reports no memory of theirs, as where GPU and CPU \
             share it; remove it, or require noProcesses",
            without.into_iter().collect::<Vec<_>>().join(", ")
        )
    })
}

/// The offer with the health of each device's hardware, where the device is not already unhealthy.
fn with_health(mut offer: Offer, health: &HealthState) -> Offer {
    for device in offer.devices.iter_mut().filter(|device| device.health.is_ok()) {
        device.health = hardware_health(&device.hardware, health);
    }
    offer
}

/// The health of a device's hardware: `Err` with the causes, under the most important reason. A device of unknown
/// health is unhealthy; one without a GPU is healthy.
fn hardware_health(hardware: &OfferedHardware, health: &HealthState) -> OfferedHealth {
    let device = match hardware {
        OfferedHardware::Gpu { uuid, .. } | OfferedHardware::Missing(uuid) => health.device(uuid, None),
        OfferedHardware::Mig { gpu, uuid, .. } => health.device(gpu, Some(uuid)),
        OfferedHardware::Nodes(_) | OfferedHardware::Nothing => return Ok(()),
    };
    let unhealthy = |known, reason, detail| PluginUnhealthy { known, ..PluginUnhealthy::device(reason, detail) };
    let Some(device) = device else {
        return Err(unhealthy(false, UnhealthyReason::Unknown, "it has not been checked yet".to_owned()));
    };
    let reason = device.reason().unwrap_or(UnhealthyReason::Unknown);
    device.ensure_healthy().map_err(|detail| unhealthy(device.known, reason, detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::{DeviceReadings, Gpu, Medium, SourceStatus};
    use crate::plugin::test_data::{gpu, inventory, nvidia, uuid};
    use crate::test_data;

    fn at(second: u64) -> Monotonic {
        Monotonic::from_secs(second)
    }

    fn hardware(generation: u64, gpus: impl IntoIterator<Item = Gpu>) -> HardwareState {
        HardwareState { inventory: Arc::new(Inventory { generation, ..inventory(gpus) }), ..HardwareState::default() }
    }

    #[test]
    fn a_changed_layout_ends_no_registration_before_the_host_is_scanned() {
        let mut entry = ConfiguredEntry::new(nvidia("migStrategy: mixed, passDeviceSpecs: true"), at(0));
        let scan = |generation| ScanResult { generation, ..ScanResult::default() };
        let update = |entry: &mut ConfiguredEntry, hardware: &HardwareState, second| {
            entry.update(hardware, &HealthState::default(), &HeldHardware::default(), at(second));
        };
        let whole = hardware(1, [gpu(0, None)]);
        entry.apply_scan(scan(1));
        update(&mut entry, &whole, 1);
        let partitioned = hardware(2, [gpu(0, Some(&["3g.40gb"]))]);
        update(&mut entry, &partitioned, 2);
        let kubelet = KubeletState {
            allocations_at: Some(test_data::at_second(100)),
            settled: true,
            collector: SourceStatus { success: true, ..SourceStatus::default() },
            ..test_data::kubelet([])
        };
        let drop = |entry: &mut ConfiguredEntry| entry.drop_vanished(&kubelet, entry.may_begin(&partitioned, at(100)));
        assert_eq!(drop(&mut entry), []);
        assert_eq!(entry.offers.len(), 2);
        entry.apply_scan(scan(2));
        update(&mut entry, &partitioned, 3);
        assert_eq!(drop(&mut entry), ["nvidia.com/gpu".into()]);
        let is_made = entry.update(&partitioned, &HealthState::default(), &HeldHardware::default(), at(4));
        assert!(is_made, "there may be place for devices that the list was too long for");
    }

    #[test]
    fn the_offers_are_made_again_where_an_input_has_changed_and_only_there() {
        let config = nvidia("preStartCheck: {minimumFreeMemory: 1Gi}");
        let mut entry = ConfiguredEntry::new(config, at(0));
        let mut is_made = |hardware: &HardwareState, health: &HealthState, held: &HeldHardware, scan| {
            if let Some(scan) = scan {
                entry.apply_scan(scan);
            }
            entry.problems.push("not made again".to_owned());
            let is_made = entry.update(hardware, health, held, at(1));
            assert_eq!(!entry.problems.contains(&"not made again".to_owned()), is_made);
            is_made
        };
        let one = |memory_bytes| hardware(1, [Gpu { memory_bytes, ..gpu(0, None) }]);
        let (known, mut unknown) = (one(Some(1)), one(None));
        let (health, held) = (HealthState::default(), HeldHardware::default());
        assert!(is_made(&known, &health, &held, None), "the first time");
        assert!(!is_made(&known, &health, &held, None), "nothing has changed");
        assert!(!is_made(&known.clone(), &health.clone(), &held.clone(), None), "equal values");
        assert!(is_made(&known, &health, &held, Some(ScanResult::default())), "the first scan");
        assert!(!is_made(&known, &health, &held, Some(ScanResult::default())), "an equal scan");
        let without_mps = [("nvidia.com/gpu".into(), "no daemon".into())].into();
        let scan = ScanResult { without_mps, ..ScanResult::default() };
        assert!(is_made(&known, &health, &held, Some(scan)), "another scan");
        assert!(is_made(&unknown, &health, &held, None), "the inventory");
        let readings = Arc::new(test_data::medium_readings(Medium::default()));
        unknown.readings.insert(uuid(0).as_str().into(), readings);
        assert!(is_made(&unknown, &health, &held, None), "a reading without memory");
        unknown.readings.insert("GPU-of-no-offer".into(), Arc::new(DeviceReadings::default()));
        assert!(!is_made(&unknown, &health, &held, None), "another reading");
        let kubelet = test_data::kubelet([test_data::holder("trainer", &[("nvidia.com/gpu", &uuid(0))])]);
        let held = HeldHardware::new(kubelet.holding_containers(), &unknown.inventory);
        assert!(is_made(&unknown, &health, &held, None), "a holder");
        let whole = test_data::device_health(test_data::at_second(1), Some((UnhealthyReason::Lost, "it is lost")));
        let gpus = [(uuid(0).as_str().into(), test_data::gpu_health(whole))].into();
        let health = HealthState { gpus, ..HealthState::default() };
        assert!(is_made(&unknown, &health, &held, None), "health");
        assert!(!is_made(&unknown, &health, &held, None), "nothing has changed");
    }
}
