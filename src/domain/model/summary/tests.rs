use std::sync::Arc;

use super::*;
use crate::domain::model::{Allocatable, DeviceId, Fast, SharingForm};
use crate::serve::metrics::tests::fixture;

fn device_overview(snapshot: &Snapshot, uuid: &str) -> DeviceOverview {
    let slots = [((fixture::WHOLE.into(), None), 4)].into();
    let overview = Overview::summarize(snapshot, &slots);
    let is_it = |device: &&DeviceOverview| device.mig.as_ref().map_or(device.gpu.as_str(), MigUuid::as_str) == uuid;
    overview.devices.iter().find(is_it).cloned().expect("a device of the fixture")
}

#[test]
fn a_device_is_free_where_it_can_be_had() {
    let mut snapshot = fixture::snapshot();
    let states = |snapshot: &Snapshot| {
        [fixture::WHOLE, fixture::LOST, fixture::PARTITIONED, fixture::SLICE]
            .map(|uuid| device_overview(snapshot, uuid).state)
    };
    let [held, unavailable, partitioned] =
        [DeviceState::Held, DeviceState::Unavailable, DeviceState::Partitioned].map(Some);
    assert_eq!(states(&snapshot), [held, unavailable, partitioned, held]);
    snapshot.accounts.clear();
    let free = Some(DeviceState::Free);
    assert_eq!(states(&snapshot), [free, unavailable, partitioned, free]);
    Arc::make_mut(&mut snapshot.kubelet).allocations = None;
    assert_eq!(states(&snapshot), [None; 4], "not known yet");
}

#[test]
fn slots_are_free_that_a_container_can_get() {
    let mut snapshot = fixture::snapshot();
    let slots = |snapshot: &Snapshot| {
        (device_overview(snapshot, fixture::WHOLE).slots, device_overview(snapshot, fixture::WHOLE).free_slots)
    };
    let holding = snapshot.accounts[0].holding.as_mut().unwrap();
    (holding.sharing, holding.device_ids) = (SharingForm::TimeSlicing, vec!["one".into(), "two".into()]);
    assert_eq!(slots(&snapshot), (Some(4), Some(2)));
    assert_eq!(device_overview(&snapshot, fixture::LOST).slots, None, "it is not shared");
    let health = &mut Arc::make_mut(&mut snapshot.health).gpus;
    health.get_mut(&GpuUuid::from(fixture::WHOLE)).unwrap().whole.healthy = false;
    assert_eq!(slots(&snapshot), (Some(4), Some(0)), "no pod gets a slot of an unhealthy device");
}

#[test]
fn free_is_what_the_scheduler_can_place() {
    let mut snapshot = fixture::snapshot();
    let resource = ResourceName::from("vendor.example/card");
    let ids = |ids: &[&str]| ids.iter().map(|id| DeviceId::from(*id)).collect::<BTreeSet<_>>();
    let allocatable = Allocatable { devices: [(resource.clone(), ids(&["b", "c"]))].into(), ..Allocatable::default() };
    let kubelet = Arc::make_mut(&mut snapshot.kubelet);
    kubelet.allocatable = Some(Arc::new(allocatable));
    let mut allocations = Allocations::clone(kubelet.allocations.as_ref().unwrap());
    let container = &mut allocations.pods[0].containers[0];
    container.devices = ["a", "b"].map(|id| crate::test_data::held(resource.as_str(), id)).into();
    kubelet.allocations = Some(Arc::new(allocations));
    // `a` is unhealthy, so that the scheduler subtracts it a second time.
    let count = ResourceCount::all(&snapshot)[&resource];
    assert_eq!((count.allocatable, count.allocated, count.free, count.held_unhealthy), (2, Some(2), Some(0), Some(1)));
}

#[test]
fn busy_now_of_a_partitioned_gpu_is_the_sum_by_slices() {
    let mut snapshot = fixture::snapshot();
    let uuid = GpuUuid::from(fixture::PARTITIONED);
    let mut set = |ratios: &[(u32, f64)]| {
        let hardware = Arc::make_mut(&mut snapshot.hardware);
        let readings = Arc::make_mut(hardware.readings.get_mut(&uuid).unwrap());
        readings.fast.as_mut().unwrap().value =
            Fast { instance_utilization_ratios: ratios.iter().copied().collect(), ..Fast::default() };
        [fixture::SLICE, fixture::OTHER_SLICE, fixture::PARTITIONED]
            .map(|uuid| device_overview(&snapshot, uuid).busy_ratio)
    };
    assert_eq!(set(&[(7, 0.7), (8, 0.0)]), [Some(0.7), Some(0.0), Some(0.7 / 7.0)]);
    assert_eq!(set(&[(7, 0.7)]), [Some(0.7), None, None], "unknown is not idle");
}
