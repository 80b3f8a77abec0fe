//! GetPreferredAllocation: makes the kubelet's request one of `domain::preference`, with each GPU's drawbacks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::container_response::device_ids;
use crate::domain::holders::HoldersState;
use crate::domain::model::{DeviceId, DeviceReadings, GpuUuid};
use crate::domain::preference::{
    FallbackReason, FreeDevice, GpuDrawbacks, PreferenceRequest, PreferredDevices, Topology, choose_gpus, choose_slots,
};
use crate::plugin::config::NvidiaConfig;
use crate::plugin::offer::Offer;
use crate::wire::v1beta1::ContainerPreferredAllocationRequest;

/// The devices that one container should get.
pub fn preferred_allocation(
    nvidia: &NvidiaConfig,
    offer: &Offer,
    topology: &Topology,
    holders: &HoldersState,
    container: &ContainerPreferredAllocationRequest,
) -> PreferredDevices {
    let gpus: BTreeMap<&DeviceId, &GpuUuid> =
        offer.devices.iter().filter_map(|device| Some((&device.id, device.hardware.gpu()?))).collect();
    let free_device = |id: DeviceId| Some(FreeDevice { gpu: (*gpus.get(&id)?).clone(), id });
    let available = device_ids(&container.available_device_i_ds).into_iter().map(free_device);
    let Some(available) = available.collect::<Option<Vec<_>>>() else {
        return PreferredDevices { ids: vec![], fallback: Some(FallbackReason::UnknownGpu) };
    };
    let must_include = device_ids(&container.must_include_device_i_ds);
    let size = usize::try_from(container.allocation_size).unwrap_or(0);
    // The kubelet may not have the list yet in which a device is unhealthy: Allocate would refuse the device.
    let healthy: BTreeSet<&DeviceId> =
        offer.devices.iter().filter(|device| device.health.is_ok()).map(|device| &device.id).collect();
    let usable = |free: &&FreeDevice| healthy.contains(&free.id) || must_include.contains(&free.id);
    let usable: Vec<FreeDevice> = available.iter().filter(usable).cloned().collect();
    let available = if usable.len() >= size { usable } else { available };
    let request = PreferenceRequest { available, must_include, size };
    let held = holders.kubelet.allocations.is_some().then_some(&holders.holdings.held);
    let drawbacks = |(gpu, readings): (&GpuUuid, &Arc<DeviceReadings>)| {
        (gpu.clone(), GpuDrawbacks::new(gpu, readings, held, nvidia.shares_through_mps()))
    };
    let drawbacks = holders.hardware.readings.iter().map(drawbacks).collect();
    let mut offered: BTreeMap<GpuUuid, usize> = BTreeMap::new();
    for gpu in offer.devices.iter().filter(|device| !device.is_absent()).filter_map(|device| device.hardware.gpu()) {
        *offered.entry(gpu.clone()).or_default() += 1;
    }
    let one_device_per_gpu = offered.values().all(|devices| *devices == 1);
    if one_device_per_gpu {
        return choose_gpus(&request, topology, &drawbacks);
    }
    choose_slots(&request, topology, &drawbacks, &offered, nvidia.slot_policy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::holders::{HeldHardware, Holdings};
    use crate::domain::model::{
        DeviceProcess, Fast, HardwareState, KubeletState, Medium, Monotonic, PluginUnhealthyReason, Stamped,
        UnhealthyReason,
    };
    use crate::domain::preference::GpuLocation;
    use crate::plugin::offer::{OfferedDevice, OfferedHardware, PluginUnhealthy};
    use crate::plugin::test_data::offered_gpu;
    use crate::test_data;

    fn offer(slots: usize) -> Offer {
        let device = |gpu: u32, slot: usize| {
            let hardware = offered_gpu(&format!("GPU-{gpu}"), gpu);
            let id = if slots == 1 { format!("GPU-{gpu}") } else { format!("GPU-{gpu}::{slot}") };
            OfferedDevice::new(id.as_str(), hardware)
        };
        let devices = (0..3).flat_map(|gpu| (0..slots).map(move |slot| device(gpu, slot))).collect();
        Offer { resource: "nvidia.com/gpu".into(), devices }
    }

    /// A request for `size` of all devices.
    fn request(offer: &Offer, size: usize) -> ContainerPreferredAllocationRequest {
        ContainerPreferredAllocationRequest {
            available_device_i_ds: offer.devices.iter().map(|device| device.id.to_string()).collect(),
            must_include_device_i_ds: vec![],
            allocation_size: size.try_into().unwrap(),
        }
    }

    fn chosen(slots: usize, size: usize, hardware: &HardwareState) -> Vec<String> {
        let offer = offer(slots);
        chosen_of(&offer, &request(&offer, size), hardware)
    }

    fn chosen_of(
        offer: &Offer,
        request: &ContainerPreferredAllocationRequest,
        hardware: &HardwareState,
    ) -> Vec<String> {
        let location = |gpu| (GpuUuid::new(format!("GPU-{gpu}")), GpuLocation { index: gpu, numa_node: None });
        let topology = Topology::new((0..3).map(location).collect());
        let holders = holders(hardware, KubeletState::default());
        let choice = preferred_allocation(&NvidiaConfig::default(), offer, &topology, &holders, request);
        choice.ids.iter().map(ToString::to_string).collect()
    }

    fn holders(hardware: &HardwareState, kubelet: KubeletState) -> HoldersState {
        let held = HeldHardware::new(kubelet.holding_containers(), &hardware.inventory);
        let holdings = Arc::new(Holdings { held, ..Holdings::default() });
        HoldersState { hardware: Arc::new(hardware.clone()), kubelet: Arc::new(kubelet), holdings }
    }

    #[test]
    fn a_throttled_gpu_and_a_busy_one_come_last() {
        let at = Monotonic::default();
        let throttled = Medium { clock_events: [("hw_slowdown", true)].into(), ..Medium::default() };
        let busy = |ratio| {
            Some(Stamped { at, value: Fast { utilization_ratio: Some(ratio), power_watts: None, ..Fast::default() } })
        };
        let mut hardware = HardwareState::default();
        let readings = [
            DeviceReadings { medium: Some(Stamped { at, value: throttled }), fast: busy(0.0), ..Default::default() },
            DeviceReadings { fast: busy(0.9), ..Default::default() },
            DeviceReadings { fast: busy(0.1), ..Default::default() },
        ];
        for (gpu, readings) in readings.into_iter().enumerate() {
            hardware.readings.insert(GpuUuid::new(format!("GPU-{gpu}")), Arc::new(readings));
        }
        assert_eq!(chosen(1, 1, &hardware), ["GPU-2"]);
        assert_eq!(chosen(1, 2, &hardware), ["GPU-1", "GPU-2"]);
    }

    #[test]
    fn a_gpu_with_processes_of_no_container_comes_last() {
        let whole = |index: u32| crate::plugin::test_data::gpu(index, None);
        let uuids: Vec<GpuUuid> = (0..2).map(|index| whole(index).uuid).collect();
        let device = |index: u32| {
            let uuid = uuids[index as usize].clone();
            OfferedDevice::new(uuid.as_str(), offered_gpu(uuid.as_str(), index))
        };
        let offer = Offer { resource: "nvidia.com/gpu".into(), devices: (0..2).map(device).collect() };
        let location = |index: u32| (uuids[index as usize].clone(), GpuLocation { index, numa_node: None });
        let topology = Topology::new((0..2).map(location).collect());
        let process = DeviceProcess { pid: 1, gpu_instance: None, compute_instance: None, memory_bytes: None };
        let reading = |processes| Arc::new(test_data::medium_readings(Medium { processes, ..Medium::default() }));
        let readings = [reading(Some(vec![process])), reading(Some(vec![]))];
        let hardware = HardwareState {
            inventory: Arc::new(test_data::inventory((0..2).map(whole))),
            readings: uuids.iter().cloned().zip(readings).collect(),
            ..HardwareState::default()
        };
        let kubelet = |devices: &[(&str, &str)]| test_data::kubelet([test_data::holder("p", devices)]);
        let first = |kubelet| {
            let (nvidia, request) = (NvidiaConfig::default(), request(&offer, 1));
            let choice = preferred_allocation(&nvidia, &offer, &topology, &holders(&hardware, kubelet), &request);
            choice.ids[0].to_string()
        };
        assert_eq!(first(kubelet(&[])), uuids[1].as_str(), "the first is in use without a holder");
        assert_eq!(first(kubelet(&[("a/b", &format!("{}::3", uuids[0]))])), uuids[0].as_str());
        assert_eq!(first(KubeletState::default()), uuids[0].as_str(), "the allocations are unknown");
    }

    #[test]
    fn devices_that_a_change_of_layout_removed_are_no_slots_of_whole_gpus() {
        let mut merged = offer(1);
        let health = Err(PluginUnhealthy::new(PluginUnhealthyReason::Layout, "it is no longer present"));
        let hardware = merged.devices[0].hardware.clone();
        merged.devices.push(OfferedDevice { health, ..OfferedDevice::new("MIG-0", hardware) });
        assert_eq!(chosen_of(&merged, &request(&offer(1), 1), &HardwareState::default()), ["GPU-0"]);
    }

    /// GPU 0 and GPU 2 are on one NUMA node: slots would be spread over GPU 0 and GPU 1.
    #[test]
    fn mig_devices_of_an_absent_gpu_are_no_slots_of_whole_gpus() {
        let whole = offer(1);
        let location = |gpu: u32| {
            (GpuUuid::new(format!("GPU-{gpu}")), GpuLocation { index: gpu, numa_node: Some(i64::from(gpu % 2)) })
        };
        let topology = Topology::new((0..3).map(location).collect());
        for reason in [PluginUnhealthyReason::Device(UnhealthyReason::Lost), PluginUnhealthyReason::Unplugged] {
            let mut merged = whole.clone();
            for id in ["MIG-0", "MIG-1"] {
                let health = Err(PluginUnhealthy::new(reason, "it is no longer present"));
                let device = OfferedDevice::new(id, OfferedHardware::Missing("GPU-3".into()));
                merged.devices.push(OfferedDevice { health, ..device });
            }
            let (nvidia, holders) = (NvidiaConfig::default(), HoldersState::default());
            let choice = preferred_allocation(&nvidia, &merged, &topology, &holders, &request(&whole, 2));
            assert_eq!(choice.ids, ["GPU-0".into(), "GPU-2".into()], "{reason:?}");
        }
    }

    #[test]
    fn a_device_that_is_held_under_another_name_is_not_preferred() {
        let mut offer = offer(1);
        offer.devices[0].health = Err(PluginUnhealthy::new(PluginUnhealthyReason::Held, "held by team/a"));
        let chosen = |size| chosen_of(&offer, &request(&offer, size), &HardwareState::default());
        assert_eq!(chosen(2), ["GPU-1", "GPU-2"]);
        assert_eq!(chosen(3), ["GPU-0", "GPU-1", "GPU-2"], "too few others");
    }

    #[test]
    fn slots_are_spread_over_gpus() {
        let hardware = HardwareState::default();
        assert_eq!(chosen(2, 3, &hardware), ["GPU-0::0", "GPU-1::0", "GPU-2::0"]);
    }
}
