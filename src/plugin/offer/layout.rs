//! Changes of a GPU's MIG layout: which devices they remove, and when a list without them may be sent. Pure.
//!
//! When the answer to `Allocate` arrives, the kubelet looks its devices up in the plugin's list, and panics where one is
//! missing. So a device that has vanished stays in the list, as unhealthy, until `List` shows that no container holds it;
//! then the server is closed, with which an allocation under way fails, and the resource is registered without it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::offered_device::{Offer, OfferedHardware};
use crate::domain::model::{DeviceId, Inventory, KubeletState, Monotonic, ResourceName};
use crate::domain::periods::{LIST_SHOWN, LONGEST_UNCONFIRMED};

/// When each device vanished.
pub type Vanished = BTreeMap<DeviceId, Monotonic>;

/// The longest time from our answer to `Allocate` until the kubelet's allocations have the holder: the kubelet lists it
/// within a second, and the pod may then be unconfirmed for a time.
const GRANT_SHOWN: Duration = LIST_SHOWN.saturating_add(LONGEST_UNCONFIRMED);

/// The devices of `before` that its resource no longer offers although their GPU is there: a MIG device that was
/// deleted, a whole GPU that was partitioned, one that another resource offers now, and their slots; and those of a
/// missing GPU that the inventory no longer has: it was replaced. A lost GPU may return, and host devices may be
/// plugged in again.
pub fn vanished(before: &Offer, now: &[Offer], inventory: &Inventory) -> BTreeSet<DeviceId> {
    let offered = now.iter().filter(|offer| offer.resource == before.resource).flat_map(|offer| &offer.devices);
    let offered: BTreeSet<&DeviceId> = offered.map(|device| &device.id).collect();
    let is_removed = |hardware: &OfferedHardware| match hardware.gpu().map(|gpu| inventory.gpus.get(gpu)) {
        Some(Some(gpu)) => gpu.present,
        Some(None) => matches!(hardware, OfferedHardware::Missing(_)) && !inventory.gpus.is_empty(),
        None => false,
    };
    let removed = before.devices.iter().filter(|device| !offered.contains(&device.id) && is_removed(&device.hardware));
    removed.map(|device| device.id.clone()).collect()
}

/// Whether no container holds any of a resource's vanished devices. They are dropped together, since each shorter list
/// costs a registration. None is granted after it vanished: a query `GRANT_SHOWN` later shows every holder.
pub fn may_drop(resource: &ResourceName, vanished: &Vanished, kubelet: &KubeletState) -> bool {
    let (Some(allocations), Some(answered)) = (&kubelet.allocations, kubelet.allocations_at) else { return false };
    // The answer may be as old as the start of the call.
    let call_duration = kubelet.collector.duration.unwrap_or_default();
    let is_fresh = |since: &Monotonic| answered.monotonic >= *since + GRANT_SHOWN + call_duration;
    let mut held = allocations.containers().flat_map(|container| &container.devices);
    let is_held = held.any(|device| device.resource == *resource && vanished.contains_key(&device.id));
    kubelet.settled && kubelet.collector.success && vanished.values().all(is_fresh) && !is_held
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::{Gpu, SourceStatus};
    use crate::plugin::offer::OfferedDevice;
    use crate::plugin::test_data::{offered_gpu, offered_mig};
    use crate::test_data;

    fn whole(gpu: &str) -> (String, OfferedHardware) {
        (gpu.to_owned(), offered_gpu(gpu, 0))
    }

    fn slice(mig: &str, gpu: &str) -> (String, OfferedHardware) {
        (mig.to_owned(), offered_mig(mig.split("::").next().unwrap(), gpu, 1))
    }

    fn offer(resource: &str, devices: Vec<(String, OfferedHardware)>) -> Offer {
        let device = |(id, hardware): (String, OfferedHardware)| OfferedDevice::new(id.as_str(), hardware);
        Offer { resource: resource.into(), devices: devices.into_iter().map(device).collect() }
    }

    fn gpus(gpus: &[(&str, bool)]) -> Inventory {
        let gpu = |(uuid, present): &(&str, bool)| Gpu { present: *present, ..Gpu::listed((*uuid).into(), 0) };
        test_data::inventory(gpus.iter().map(gpu))
    }

    #[test]
    fn only_a_present_gpu_removes_its_devices() {
        let mig = "nvidia.com/mig-1g.10gb";
        let both = || vec![slice("MIG-1", "GPU-a"), slice("MIG-2", "GPU-a")];
        let node = |path: &str| (path.to_owned(), OfferedHardware::Nodes([].into()));
        for (what, before, now, inventory, expected) in [
            ("nothing changed", offer(mig, both()), vec![offer(mig, both())], gpus(&[("GPU-a", true)]), vec![]),
            (
                "one was deleted",
                offer(mig, both()),
                vec![offer(mig, vec![slice("MIG-2", "GPU-a")])],
                gpus(&[("GPU-a", true)]),
                vec!["MIG-1"],
            ),
            ("all were deleted", offer(mig, both()), vec![], gpus(&[("GPU-a", true)]), vec!["MIG-1", "MIG-2"]),
            ("the GPU is lost", offer(mig, both()), vec![], gpus(&[("GPU-a", false)]), vec![]),
            ("the driver lists nothing", offer(mig, both()), vec![], gpus(&[]), vec![]),
            (
                "a GPU was replaced",
                offer("nvidia.com/gpu", vec![("GPU-a".to_owned(), OfferedHardware::Missing("GPU-a".into()))]),
                vec![],
                gpus(&[("GPU-b", true)]),
                vec!["GPU-a"],
            ),
            (
                "slots go with their device",
                offer(mig, vec![slice("MIG-1::0", "GPU-a"), slice("MIG-1::1", "GPU-a")]),
                vec![],
                gpus(&[("GPU-a", true)]),
                vec!["MIG-1::0", "MIG-1::1"],
            ),
            (
                "one of two GPUs was partitioned",
                offer("nvidia.com/gpu", vec![whole("GPU-a"), whole("GPU-b")]),
                vec![offer("nvidia.com/gpu", vec![whole("GPU-b")]), offer(mig, both())],
                gpus(&[("GPU-a", true), ("GPU-b", true)]),
                vec!["GPU-a"],
            ),
            (
                "the same id under another resource is another device",
                offer("nvidia.com/gpu", vec![whole("GPU-a")]),
                vec![offer("nvidia.com/h100", vec![whole("GPU-a")])],
                gpus(&[("GPU-a", true)]),
                vec!["GPU-a"],
            ),
            ("unplugged", offer("example.com/nic", vec![node("nic")]), vec![], gpus(&[("GPU-a", true)]), vec![]),
        ] {
            let expected: BTreeSet<DeviceId> = expected.into_iter().map(DeviceId::from).collect();
            assert_eq!(vanished(&before, &now, &inventory), expected, "{what}");
        }
    }

    /// An answer of the kubelet at twenty seconds, which took half a second.
    fn kubelet(held: &[(&str, &str)]) -> KubeletState {
        KubeletState {
            allocations_at: Some(test_data::at_second(20)),
            settled: true,
            collector: SourceStatus {
                success: true,
                duration: Some(Duration::from_millis(500)),
                ..SourceStatus::default()
            },
            ..test_data::kubelet([test_data::holder("trainer", held)])
        }
    }

    #[test]
    fn no_container_may_hold_any_of_them() {
        let resource = ResourceName::new("nvidia.com/mig-1g.10gb");
        let early = [("MIG-1", 3_000), ("MIG-2", 8_500)];
        let mig = "nvidia.com/mig-1g.10gb";
        let unsettled = KubeletState { settled: false, ..kubelet(&[]) };
        let failing = KubeletState { collector: SourceStatus::default(), ..kubelet(&[]) };
        for (what, vanished, kubelet, expected) in [
            ("free", &early[..], kubelet(&[]), true),
            ("others are held", &early, kubelet(&[(mig, "MIG-3"), ("nvidia.com/gpu", "MIG-1")]), true),
            ("one is held", &early, kubelet(&[(mig, "MIG-2")]), false),
            ("one vanished after the kubelet was asked", &[("MIG-1", 19_900)], kubelet(&[]), false),
            ("one vanished a moment before it was asked", &[("MIG-1", 8_501)], kubelet(&[]), false),
            ("the answer has not settled", &early, unsettled, false),
            ("the kubelet does not answer", &early, failing, false),
            ("the kubelet never answered", &early, KubeletState::default(), false),
        ] {
            let vanished: Vanished =
                vanished.iter().map(|(id, at)| (DeviceId::from(*id), Monotonic::from_millis(*at))).collect();
            assert_eq!(may_drop(&resource, &vanished, &kubelet), expected, "{what}");
        }
    }
}
