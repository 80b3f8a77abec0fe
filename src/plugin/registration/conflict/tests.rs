//! What each state of the check needs, by the answers of a kubelet with one resource.

use std::sync::Arc;

use super::*;
use crate::domain::model::{Gpu, PluginUnhealthyReason};
use crate::plugin::offer::{OfferedDevice, OfferedHardware, OfferedHealth, PluginUnhealthy};
use crate::test_data::{allocatable, at_millisecond, at_second, holder, inventory, kubelet, offering_kubelet};

fn found(allocatable: &[&str], sent: &[&str], live: &[&str]) -> Option<String> {
    let ids = |ids: &[&str]| -> BTreeSet<DeviceId> { ids.iter().map(|id| DeviceId::new(*id)).collect() };
    let (resource, sent) = ("nvidia.com/gpu".into(), ids(sent));
    other_plugin(&resource, &ids(allocatable), |id| sent.contains(id), &owned::<Vec<_>>(live))
        .map(|other| other.text(&resource))
}

fn owned<C: FromIterator<String>>(names: &[&str]) -> C {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn devices_that_podmeter_did_not_advertise_are_another_plugins() {
    assert_eq!(found(&[], &[], &[]), None);
    assert_eq!(found(&["GPU-a"], &["GPU-a", "GPU-b"], &[]), None, "our own of a moment ago");
    let text = found(&["GPU-a", "GPU-c"], &["GPU-a"], &["other.sock"]).unwrap();
    assert!(text.contains("1 device of nvidia.com/gpu") && text.contains("takeover"), "{text}");
}

#[test]
fn another_podmeter_is_a_rolling_update() {
    assert_eq!(found(&["GPU-a"], &[], &["podmeter-nvidia.com_gpu-0123456789ab.sock"]), None);
    assert!(found(&["GPU-a"], &[], &["podmeter-nvidia.com_mig-1g-0123456789ab.sock"]).is_some());
}

#[test]
fn a_known_plugins_live_socket_is_a_conflict_before_the_kubelet_lists_anything() {
    assert!(found(&[], &[], &["nvidia-gpu.sock"]).is_some_and(|text| text.contains("nvidia-gpu.sock")));
    assert!(found(&[], &[], &["nvidiaGPU-1700000000.sock"]).is_some());
    assert_eq!(found(&[], &[], &["nvidia-mig-1g.10gb.sock", "intel.sock"]), None);
}

const SOCKET: &str = "nvidia-gpu.sock";

#[derive(Default)]
struct Waiting(ConflictCheck);

impl Waiting {
    /// The result at a time in milliseconds. `answer`: the time of the kubelet's answer, and the listed devices.
    fn at(&mut self, now: u64, answer: Option<(u64, &[&str])>, sockets: &[&str], live: &[&str]) -> &'static str {
        let answered = |(at, ids): (u64, &[&str])| KubeletState {
            allocatable_at: Some(at_millisecond(at)),
            ..offering_kubelet("nvidia.com/gpu", ids)
        };
        let kubelet = answer.map(answered).unwrap_or_default();
        let observed = Observed {
            now: Monotonic::from_millis(now),
            kubelet: &kubelet,
            advertised: &BTreeSet::new(),
            sockets: owned(sockets),
            live: &owned::<Vec<_>>(live),
            other_resource: None,
            granted: &BTreeMap::new(),
        };
        let offer = Offer { resource: "nvidia.com/gpu".into(), devices: vec![] };
        match self.0.observe(&offer, &observed) {
            ConflictState::Free => "free",
            ConflictState::Conflict(_) => "conflict",
            ConflictState::Ending => "ending",
            ConflictState::Unserved(text, duration) => {
                assert!(text.contains(SOCKET) && text.contains("waitWhileServed"), "{text}");
                assert_eq!(duration, Duration::from_secs(1));
                "unserved"
            }
            other => panic!("{other:?} is of a registration"),
        }
    }
}

#[test]
fn a_socket_without_a_listed_device_in_two_answers_serves_nothing() {
    let mut waiting = Waiting::default();
    let both = [SOCKET];
    assert_eq!(waiting.at(0, None, &both, &both), "conflict", "no answer");
    assert_eq!(waiting.at(1_000, Some((1_000, &[])), &both, &both), "conflict", "one answer");
    assert_eq!(waiting.at(1_500, Some((1_000, &[])), &both, &both), "conflict", "the same answer");
    assert_eq!(waiting.at(2_000, Some((2_000, &[])), &both, &both), "unserved");
    assert_eq!(waiting.at(9_000, Some((2_000, &["GPU-a"])), &both, &both), "conflict", "registered after all");
    assert_eq!(waiting.at(10_000, Some((10_000, &[])), &both, &both), "conflict");
    assert_eq!(
        waiting.at(11_500, Some((10_500, &[])), &[SOCKET, "nvidiaGPU-1.sock"], &[SOCKET, "nvidiaGPU-1.sock"]),
        "conflict",
        "another"
    );
}

#[test]
fn an_answer_from_before_the_end_of_a_socket_is_no_conflict() {
    for socket in [SOCKET, "of-an-unknown-plugin.sock"] {
        let mut waiting = Waiting::default();
        let live: &[&str] = if socket == SOCKET { &[SOCKET] } else { &[] };
        let devices: &[&str] = &["GPU-a"];
        assert_eq!(waiting.at(0, Some((0, devices)), &[socket], live), "conflict");
        assert_eq!(waiting.at(5_000, Some((0, devices)), &[], &[]), "ending", "{socket}");
        assert_eq!(waiting.at(5_050, Some((5_000, devices)), &[], &[]), "ending", "{socket}");
        assert_eq!(waiting.at(5_100, Some((5_050, &[])), &[], &[]), "free", "{socket}");
    }
    let mut waiting = Waiting::default();
    assert_eq!(waiting.at(0, Some((0, &["GPU-a"])), &[SOCKET], &[SOCKET]), "conflict");
    assert_eq!(waiting.at(5_000, Some((0, &["GPU-a"])), &[SOCKET], &[]), "ending", "it was killed");
    assert_eq!(waiting.at(15_000, Some((14_000, &["GPU-a"])), &[], &[]), "ending", "its socket was removed");
    assert_eq!(waiting.at(26_000, Some((14_000, &["GPU-a"])), &[], &[]), "conflict", "it is another's");
}

#[test]
fn the_end_of_a_socket_that_is_not_the_other_plugins_hides_no_conflict() {
    for socket in ["podmeter-example.com_toy-0123456789ab.sock", "nvidia-mig-1g.10gb.sock"] {
        let mut waiting = Waiting::default();
        let devices: &[&str] = &["GPU-a"];
        assert_eq!(waiting.at(0, Some((0, devices)), &[socket, "theirs.sock"], &[]), "conflict");
        assert_eq!(waiting.at(5_000, Some((0, devices)), &["theirs.sock"], &[]), "conflict", "{socket}");
        assert_eq!(waiting.at(6_000, Some((0, devices)), &[], &[]), "ending", "the plugin's");
    }
}

/// A registration whose list, with device `x`, the kubelet opened after ten seconds.
struct Registration {
    check: ConflictCheck,
    offer: Offer,
}

impl Registration {
    fn new(health: OfferedHealth) -> Self {
        let device = OfferedDevice { health, ..OfferedDevice::new("x", OfferedHardware::Nothing) };
        let offer = Offer { resource: "nvidia.com/gpu".into(), devices: vec![device] };
        let mut check = ConflictCheck::default();
        check.used(Monotonic::from_secs(10));
        Self { check, offer }
    }

    fn answered(&mut self, second: u64, listed: &[&str], live: &[&str]) -> ConflictState {
        let kubelet = KubeletState {
            allocatable_at: Some(at_second(second)),
            ..offering_kubelet(self.offer.resource.as_str(), listed)
        };
        self.compare(&kubelet, &owned::<Vec<_>>(live), &[])
    }

    fn compare(&mut self, kubelet: &KubeletState, live: &[String], granted: &[(&str, u64)]) -> ConflictState {
        let granted = granted.iter().map(|(id, count)| (DeviceId::from(*id), *count)).collect();
        let advertised = BTreeSet::from(["earlier".into()]);
        let observed = Observed {
            now: Monotonic::default(),
            kubelet,
            advertised: &advertised,
            sockets: BTreeSet::new(),
            live,
            other_resource: None,
            granted: &granted,
        };
        self.check.observe(&self.offer, &observed)
    }
}

#[test]
fn our_devices_are_unlisted_when_two_answers_after_the_list_was_opened_lack_them() {
    let mut registration = Registration::new(Ok(()));
    for (second, listed, expected) in [
        (9, &[][..], ConflictState::Free),
        (10, &[], ConflictState::Free),
        (11, &[], ConflictState::Absent(Monotonic::from_secs(12))),
        (11, &[], ConflictState::Absent(Monotonic::from_secs(12))),
        (12, &["x"], ConflictState::Free),
        (22, &["earlier"], ConflictState::Absent(Monotonic::from_secs(23))),
        (23, &["earlier"], ConflictState::Unlisted),
    ] {
        assert_eq!(registration.answered(second, listed, &[]), expected, "{second}");
    }
}

/// `GetAllocatableResources` has healthy devices only.
#[test]
fn unhealthy_devices_are_not_missed() {
    let unhealthy = PluginUnhealthy::device(crate::domain::model::UnhealthyReason::Lost, "lost");
    let mut registration = Registration::new(Err(unhealthy));
    for second in 11..15 {
        assert_eq!(registration.answered(second, &[], &[]), ConflictState::Free);
    }
    let silent = Registration::new(Ok(())).compare(&KubeletState::default(), &[], &[]);
    assert_eq!(silent, ConflictState::Free, "a kubelet that does not answer");
}

#[test]
fn a_conflict_lasts_while_the_other_devices_or_the_known_socket_are_there() {
    let mut registration = Registration::new(Ok(()));
    let mut compare = |second, listed: &[&str], live: &[&str]| match registration.answered(second, listed, live) {
        ConflictState::Conflict(text) => text,
        other => format!("{other:?}"),
    };
    assert_eq!(compare(10, &["theirs"], &[]), "Free", "from before our list");
    assert!(compare(12, &["x", "theirs"], &[]).contains("lists 1 device of"));
    assert_eq!(compare(13, &["x", "theirs"], &["podmeter-nvidia.com_gpu-0123456789ab.sock"]), "Ended");
    assert!(compare(14, &["x"], &["nvidia-gpu.sock"]).contains("nvidia-gpu.sock"));
    assert!(compare(14, &["x"], &["nvidia-gpu.sock"]).contains("nvidia-gpu.sock"));
    assert_eq!(compare(14, &["x"], &[]), "Ended", "without another answer");
}

/// The devices that containers hold at this second, of a kubelet whose checkpoint had `c` at its start.
fn holding(second: u64, ids: &[&str]) -> KubeletState {
    let gpu = ResourceName::new("nvidia.com/gpu");
    let held: Vec<(&str, &str)> = ids.iter().map(|id| ("nvidia.com/gpu", *id)).collect();
    KubeletState {
        allocations_at: Some(at_second(second)),
        allocatable: Some(Arc::new(allocatable(gpu.as_str(), &["x"]))),
        allocatable_at: Some(at_second(second)),
        settled: true,
        held_in_checkpoint: Arc::new(["a", "c"].map(|id| (gpu.clone(), id.into())).into()),
        ..kubelet([holder("trainer", &held)])
    }
}

#[test]
fn a_device_that_was_held_without_a_call_is_another_plugins() {
    let mut registration = Registration::new(Ok(()));
    let mut conflict =
        |second, ids: &[&str], granted: &[(&str, u64)]| match registration.compare(&holding(second, ids), &[], granted)
        {
            ConflictState::Conflict(text) => text.split_whitespace().nth(3).unwrap().to_owned(),
            _ => "-".to_owned(),
        };
    assert_eq!(conflict(10, &[], &[]), "-", "from before our list");
    assert_eq!(conflict(12, &["a"], &[]), "-", "from before");
    assert_eq!(conflict(13, &["a", "c"], &[]), "-", "from the kubelet's checkpoint");
    assert_eq!(conflict(14, &["a", "c", "b"], &[("b", 1)]), "-", "granted");
    assert_eq!(conflict(15, &["c"], &[("b", 1)]), "-", "released");
    assert_eq!(conflict(16, &["c", "b"], &[("b", 2)]), "-", "granted again");
    assert_eq!(conflict(17, &["c"], &[("b", 2)]), "-", "released");
    assert_eq!(conflict(18, &["c", "b"], &[("b", 2)]), "b", "without a grant");
    assert_eq!(conflict(19, &[], &[("b", 2)]), "b", "until a call or the end of the other plugin");
    registration.check.used(Monotonic::from_secs(20));
    assert_eq!(registration.compare(&holding(21, &[]), &[], &[]), ConflictState::Free);
}

#[test]
fn what_was_granted_before_the_first_comparison_is_ours() {
    let mut registration = Registration::new(Ok(()));
    for (second, held) in [(11, &[][..]), (12, &["b"])] {
        assert_eq!(registration.compare(&holding(second, held), &[], &[("b", 1)]), ConflictState::Free, "{second}");
    }
}

#[test]
fn what_another_podmeter_grants_in_a_rolling_update_is_no_conflict() {
    let mut registration = Registration::new(Ok(()));
    let other = ["podmeter-nvidia.com_gpu-0123456789ab.sock".to_owned()];
    registration.compare(&holding(12, &[]), &other, &[]);
    assert_eq!(registration.compare(&holding(13, &["d"]), &other, &[]), ConflictState::Free);
    assert_eq!(registration.compare(&holding(14, &["d"]), &[], &[]), ConflictState::Free);
}

#[test]
fn a_gpu_at_another_kernel_driver_is_no_conflict_with_the_plugin_that_offers_it() {
    let uuid = "GPU-5fb06b79-9d4d-4a0e-9d37-1c3c8f5a7e21";
    let inventory = inventory([Gpu::listed(uuid.into(), 0)]);
    let hardware = crate::plugin::test_data::offered_gpu(uuid, 0);
    let elsewhere = PluginUnhealthy::new(PluginUnhealthyReason::Unplugged, "at vfio-pci");
    for (health, expected) in [(Ok(()), true), (Err(elsewhere), false)] {
        let device = OfferedDevice { health, ..OfferedDevice::new(uuid, hardware.clone()) };
        let offer = Offer { resource: "nvidia.com/gpu".into(), devices: vec![device] };
        let kubelet = offering_kubelet("nvidia.com/vm", &[uuid]);
        assert_eq!(other_resource(&offer, &kubelet, &inventory, |_| false).is_some(), expected);
    }
}
