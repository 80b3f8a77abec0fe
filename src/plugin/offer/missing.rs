//! The offers of an entry for missing GPUs, which the driver does not list: only the IDs that the kubelet has of them.

use super::offered_device::{OfferedDevice, OfferedHardware, PluginUnhealthy};
use crate::domain::model::{Inventory, ResourceName, UnhealthyReason};
use crate::plugin::config::EntryConfig;

pub fn missing(config: &EntryConfig, inventory: &Inventory) -> Vec<(ResourceName, OfferedDevice)> {
    let mut devices = vec![];
    for (gpu, missing) in &inventory.missing {
        for (resource, ids) in missing.kubelet_ids.iter().filter(|(resource, _)| config.may_offer_gpus_as(resource)) {
            devices.extend(ids.iter().map(|id| {
                let health = Err(PluginUnhealthy::device(UnhealthyReason::Lost, missing.detail.clone()));
                let device = OfferedDevice::new(id.clone(), OfferedHardware::Missing(gpu.clone()));
                (resource.clone(), OfferedDevice { health, ..device })
            }));
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::domain::model::{DeviceId, Gpu, MissingGpu};
    use crate::plugin::offer::{Offer, offers};
    use crate::plugin::test_data::{gpu, inventory, nvidia, uuid};

    /// An inventory with GPU 0, and with GPU 1 that only the kubelet lists, under these IDs.
    fn one_missing(ids: &[(&str, String)]) -> Inventory {
        let mut known = inventory([gpu(0, None)]);
        let lost = Gpu::not_present(uuid(1).as_str().into());
        let mut kubelet_ids: BTreeMap<ResourceName, BTreeSet<DeviceId>> = BTreeMap::new();
        for (resource, id) in ids {
            kubelet_ids.entry((*resource).into()).or_default().insert(id.as_str().into());
        }
        let missing = MissingGpu { detail: "the driver does not list it".into(), kubelet_ids, ..MissingGpu::default() };
        known.missing.insert(lost.uuid.clone(), missing);
        known.gpus.insert(lost.uuid.clone(), lost);
        known
    }

    fn listed(config: &str, inventory: &Inventory) -> Vec<(String, String, bool)> {
        let device = |offer: &Offer| {
            let resource = offer.resource.to_string();
            let devices = offer.devices.iter();
            devices.map(|one| (resource.clone(), one.id.to_string(), one.health.is_ok())).collect::<Vec<_>>()
        };
        offers(&nvidia(config), inventory, &[]).offers.iter().flat_map(device).collect()
    }

    #[test]
    fn a_gpu_that_the_kubelet_knew_stays_in_the_list_as_unhealthy() {
        let inventory = one_missing(&[("nvidia.com/gpu", uuid(1))]);
        let gpu = "nvidia.com/gpu".to_owned();
        assert_eq!(listed("", &inventory), [(gpu.clone(), uuid(0), true), (gpu, uuid(1), false)]);
    }

    #[test]
    fn only_the_slots_and_mig_devices_that_the_kubelet_has_are_listed() {
        let slot = |number| (("nvidia.com/gpu"), format!("{}::{number}", uuid(1)));
        let sharing = "sharing: {timeSlicing: {replicas: 2}}";
        let found = listed(sharing, &one_missing(&[slot(0), slot(1)]));
        let unhealthy = found.into_iter().filter(|(_, _, healthy)| !healthy).map(|(_, id, _)| id);
        assert_eq!(unhealthy.collect::<Vec<_>>(), [slot(0).1, slot(1).1]);
        let mig = "MIG-00000000-0000-0000-0000-000000000009".to_owned();
        let found = listed("migStrategy: mixed", &one_missing(&[("nvidia.com/mig-1g.10gb", mig.clone())]));
        assert_eq!(found[1], ("nvidia.com/mig-1g.10gb".to_owned(), mig, false));
        assert_eq!(found.len(), 2, "and no whole GPU: it may be partitioned");
    }

    #[test]
    fn what_only_the_bus_or_another_plugin_has_is_not_offered() {
        let unknown = listed("", &one_missing(&[]));
        let anothers = listed("", &one_missing(&[("example.com/a100", uuid(1))]));
        assert_eq!((unknown.len(), anothers.len()), (1, 1));
        assert!(nvidia("name: example.com/a100").may_offer_gpus_as(&"example.com/a100".into()));
        assert!(nvidia("").may_offer_gpus_as(&"nvidia.com/mig-1g.10gb.shared".into()));
        assert!(!nvidia("").may_offer_gpus_as(&"nvidia.com/gpu-of-another".into()));
    }
}
