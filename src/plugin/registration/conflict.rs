//! Detects another plugin that serves the resource or offers its hardware, and a registration that the kubelet lost.
//!
//! A plugin that registers the resource after us replaces us without a notice; when it ends, a kubelet up to 1.36 drops
//! the resource, without a notice too. Both show in what the kubelet lists as allocatable: the healthy devices of the
//! plugin that it uses. That list is compared with the offer after each change in the plugin directory and every ten
//! seconds (`kubelet::schedule`):
//!
//! - device IDs that this process never sent, or a live socket of a known plugin: a conflict;
//! - a device that a container was given and this process did not grant: a conflict; a kubelet that restarts gives out the
//!   devices of its checkpoint without a call, which are none;
//! - none of our healthy IDs, in two answers: unlisted. A single answer may be from the moment of a change.
//!
//! A call of the kubelet shows that it uses this process, whatever sockets there are: `Comparisons::called`.
//!
//! In: answers of the kubelet, names of live sockets, the offer, calls. Out: a `Comparison`. Pure.

use super::grants::Grants;
use crate::domain::holders::other_offer;
use crate::domain::model::{DeviceId, Inventory, KubeletState, Monotonic, ResourceName};
use crate::domain::periods::LIST_SHOWN;
use crate::plugin::host::sockets;
use crate::plugin::offer::Offer;
use crate::words::counted;
use std::collections::{BTreeMap, BTreeSet};

pub(super) const REMEDY: &str = "remove the other plugin, switch this one off with --device-plugin=off, or set onConflict: takeover for the resource";

/// The result for the kubelet's last answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// At least one of our healthy devices is listed, or there is nothing to compare.
    Listed,
    /// None of our healthy devices is listed. The first answer to a query from this time on decides.
    Absent(Monotonic),
    /// None is listed in that answer either, `LIST_SHOWN` later: the registration is lost.
    Unlisted,
    /// Another plugin has the resource; the text names it, with a remedy.
    Conflict(String),
    /// The other plugin no longer has it.
    ConflictEnded,
}

/// The comparisons of one registration.
#[derive(Debug)]
pub struct Comparisons {
    /// The time before which an answer may be without our list.
    from: Monotonic,
    /// The time of the last answer.
    compared: Option<Monotonic>,
    last: Comparison,
    grants: Grants,
}

/// What a comparison uses beside the offer.
pub struct Compared<'a> {
    /// The devices that ended registrations sent to the kubelet.
    pub advertised: &'a BTreeSet<DeviceId>,
    pub kubelet: &'a KubeletState,
    /// The sockets that can matter, without ours and those that do not serve.
    pub live: &'a [String],
    /// How often this registration granted each device.
    pub granted: &'a BTreeMap<DeviceId, u64>,
}

impl Comparisons {
    /// Begins the comparisons, when the kubelet has opened our list.
    pub fn new(now: Monotonic) -> Self {
        Self { from: now + LIST_SHOWN, compared: None, last: Comparison::Listed, grants: Grants::default() }
    }

    /// Records a call of the kubelet: it uses this plugin now, and a conflict is over.
    pub fn called(&mut self, now: Monotonic) {
        (self.from, self.last, self.grants.other) = (now, Comparison::Listed, None);
    }

    /// Compares the kubelet's last answer with the offer; each answer counts once.
    pub fn compare(&mut self, offer: &Offer, now: &Compared<'_>) -> Comparison {
        let answer = now.kubelet.allocatable.as_ref().zip(now.kubelet.allocatable_at);
        let answer = answer.filter(|(_, at)| at.monotonic >= self.from);
        let nothing = BTreeSet::new();
        let listed = answer.and_then(|(listed, _)| listed.devices.get(&offer.resource)).unwrap_or(&nothing);
        let sent = offer.devices.iter().map(|device| device.id.clone()).chain(now.advertised.iter().cloned()).collect();
        let mut healthy = offer.devices.iter().filter(|device| device.health.is_ok()).peekable();
        let is_absent = healthy.peek().is_some() && healthy.all(|device| !listed.contains(&device.id));
        if now.kubelet.allocations_at.is_some_and(|at| at.monotonic >= self.from) {
            self.grants.compare(&offer.resource, now);
        }
        self.grants.other.take_if(|_| answer.is_some() && is_absent);
        let other = other_plugin(&offer.resource, listed, &sent, now.live).map(|other| other.text(&offer.resource));
        if let Some(other) = other.or_else(|| self.grants.other.clone()) {
            self.last = Comparison::Conflict(other);
        } else if let Comparison::Conflict(_) = self.last {
            self.last = Comparison::ConflictEnded;
        } else if let Some(at) = answer.map(|(_, at)| at.monotonic).filter(|at| self.compared != Some(*at)) {
            self.compared = Some(at);
            self.last = match self.last {
                _ if !is_absent => Comparison::Listed,
                Comparison::Absent(decided_from) if at >= decided_from => Comparison::Unlisted,
                Comparison::Absent(decided_from) => Comparison::Absent(decided_from),
                _ => Comparison::Absent(at + LIST_SHOWN),
            };
        }
        self.last.clone()
    }
}

/// Another plugin that has the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtherPlugin {
    /// The socket of a known plugin accepts connections.
    Socket(String),
    /// The kubelet lists this number of devices that this process did not send.
    Listed(usize),
}

impl OtherPlugin {
    /// The conflict in words, with a remedy.
    pub fn text(&self, resource: &ResourceName) -> String {
        match self {
            Self::Socket(socket) => format!("another device plugin serves {resource} on {socket}; {REMEDY}"),
            Self::Listed(count) => {
                format!(
                    "the kubelet lists {} of {resource} that another device plugin advertised; {REMEDY}",
                    counted(*count, "device")
                )
            }
        }
    }
}

/// The other plugin that serves the resource. `None`: none, or another podmeter, in a rolling update.
///
/// `allocatable` are the kubelet's devices of the resource, `sent` those that this process has sent it, and `live` the
/// names of the sockets that accept connections. Before the first registration nothing is `sent`: another plugin may list
/// the same GPU by the same UUID as our offer.
pub fn other_plugin(
    resource: &ResourceName,
    allocatable: &BTreeSet<DeviceId>,
    sent: &BTreeSet<DeviceId>,
    live: &[String],
) -> Option<OtherPlugin> {
    if let Some(socket) = live.iter().find(|name| known_resource(name).as_ref() == Some(resource)) {
        return Some(OtherPlugin::Socket(socket.clone()));
    }
    let others = allocatable.difference(sent).count();
    let rolling_update = live.iter().any(|name| sockets::is_a_podmeters(name, resource));
    (others > 0 && !rolling_update).then_some(OtherPlugin::Listed(others))
}

/// A plugin of a resource that is not `is_own`, whose devices are on the hardware of the offer, in words with a remedy.
/// The kubelet accounts for each resource separately, and would give the same hardware to two pods.
pub fn other_resource(
    offer: &Offer,
    kubelet: &KubeletState,
    inventory: &Inventory,
    is_own: impl Fn(&ResourceName) -> bool,
) -> Option<String> {
    let present = offer.devices.iter().filter(|device| !device.is_absent());
    let hardware = present.filter_map(|device| device.hardware.device()).collect();
    let (other, count) = other_offer(&hardware, kubelet.allocatable.as_ref()?, inventory, is_own)?;
    Some(other_resource_text(other, count, &offer.resource))
}

/// The conflict with a plugin that offers the hardware of `resource` as another one, with a remedy.
pub fn other_resource_text(other: &ResourceName, count: usize, resource: &ResourceName) -> String {
    let devices = counted(count, "device");
    format!("the device plugin of {other} offers {devices} on the GPUs of {resource}; {REMEDY}")
}

/// Why the resource has no device although a plugin's socket accepts connections, with a remedy.
pub fn unserved(resource: &ResourceName, socket: &str) -> String {
    format!(
        "the kubelet lists no healthy device of {resource}, although a device plugin listens on {socket}: it is not registered, or all \
         its devices are unhealthy; restart that plugin's pod or remove it, or set onConflict: waitWhileServed or takeover for \
         the resource"
    )
}

/// Whether a socket of this name can matter for the resource: of a known plugin, or of a podmeter, this one or another.
pub fn may_matter(socket: &str, resource: &ResourceName) -> bool {
    known_resource(socket).as_ref() == Some(resource) || sockets::is_a_podmeters(socket, resource)
}

/// The resource behind a socket that another vendor's plugin is known to listen on.
pub fn known_resource(socket: &str) -> Option<ResourceName> {
    let name = socket.strip_suffix(".sock")?;
    // Google Kubernetes Engine's plugin has one socket, with the time of its start; NVIDIA's has one per resource.
    let name = if name.starts_with("nvidiaGPU-") { "gpu" } else { name.strip_prefix("nvidia-")? };
    Some(ResourceName::new(format!("nvidia.com/{name}")))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::model::{Gpu, PluginUnhealthyReason};
    use crate::plugin::offer::{OfferedDevice, OfferedHardware, OfferedHealth, PluginUnhealthy};
    use crate::test_data::{allocatable, at_second, holder, inventory, kubelet, offering_kubelet};

    fn found(allocatable: &[&str], sent: &[&str], live: &[&str]) -> Option<String> {
        let ids = |ids: &[&str]| ids.iter().map(|id| DeviceId::new(*id)).collect();
        let live: Vec<String> = live.iter().map(|name| (*name).to_owned()).collect();
        let resource = "nvidia.com/gpu".into();
        other_plugin(&resource, &ids(allocatable), &ids(sent), &live).map(|other| other.text(&resource))
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

    /// A registration whose list, with device `x`, the kubelet opened after ten seconds.
    struct Registration {
        comparisons: Comparisons,
        offer: Offer,
    }

    impl Registration {
        fn new(health: OfferedHealth) -> Self {
            let device = OfferedDevice { health, ..OfferedDevice::new("x", OfferedHardware::Nothing) };
            let offer = Offer { resource: "nvidia.com/gpu".into(), devices: vec![device] };
            Self { comparisons: Comparisons::new(Monotonic::from_secs(10)), offer }
        }

        fn answered(&mut self, second: u64, listed: &[&str], live: &[&str]) -> Comparison {
            let kubelet = KubeletState {
                allocatable_at: Some(at_second(second)),
                ..offering_kubelet(self.offer.resource.as_str(), listed)
            };
            let live: Vec<String> = live.iter().map(|name| (*name).to_owned()).collect();
            self.compare(&kubelet, &live, &[])
        }

        fn compare(&mut self, kubelet: &KubeletState, live: &[String], granted: &[(&str, u64)]) -> Comparison {
            let granted = granted.iter().map(|(id, count)| (DeviceId::from(*id), *count)).collect();
            let advertised = BTreeSet::from(["earlier".into()]);
            self.comparisons
                .compare(&self.offer, &Compared { advertised: &advertised, kubelet, live, granted: &granted })
        }
    }

    #[test]
    fn our_devices_are_unlisted_when_two_answers_after_the_list_was_opened_lack_them() {
        let mut registration = Registration::new(Ok(()));
        for (second, listed, expected) in [
            (9, &[][..], Comparison::Listed),
            (10, &[], Comparison::Listed),
            (11, &[], Comparison::Absent(Monotonic::from_secs(12))),
            (11, &[], Comparison::Absent(Monotonic::from_secs(12))),
            (12, &["x"], Comparison::Listed),
            (22, &["earlier"], Comparison::Absent(Monotonic::from_secs(23))),
            (23, &["earlier"], Comparison::Unlisted),
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
            assert_eq!(registration.answered(second, &[], &[]), Comparison::Listed);
        }
        let silent = Registration::new(Ok(())).compare(&KubeletState::default(), &[], &[]);
        assert_eq!(silent, Comparison::Listed, "a kubelet that does not answer");
    }

    #[test]
    fn a_conflict_lasts_while_the_other_devices_or_the_known_socket_are_there() {
        let mut registration = Registration::new(Ok(()));
        let mut compare = |second, listed: &[&str], live: &[&str]| match registration.answered(second, listed, live) {
            Comparison::Conflict(text) => text,
            other => format!("{other:?}"),
        };
        assert_eq!(compare(10, &["theirs"], &[]), "Listed", "from before our list");
        assert!(compare(12, &["x", "theirs"], &[]).contains("lists 1 device of"));
        assert_eq!(compare(13, &["x", "theirs"], &["podmeter-nvidia.com_gpu-0123456789ab.sock"]), "ConflictEnded");
        assert!(compare(14, &["x"], &["nvidia-gpu.sock"]).contains("nvidia-gpu.sock"));
        assert!(compare(14, &["x"], &["nvidia-gpu.sock"]).contains("nvidia-gpu.sock"));
        assert_eq!(compare(14, &["x"], &[]), "ConflictEnded", "without another answer");
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
        let mut conflict = |second, ids: &[&str], granted: &[(&str, u64)]| match registration.compare(
            &holding(second, ids),
            &[],
            granted,
        ) {
            Comparison::Conflict(text) => text.split_whitespace().nth(3).unwrap().to_owned(),
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
        registration.comparisons.called(Monotonic::from_secs(20));
        assert_eq!(registration.compare(&holding(21, &[]), &[], &[]), Comparison::Listed);
    }

    #[test]
    fn what_was_granted_before_the_first_comparison_is_ours() {
        let mut registration = Registration::new(Ok(()));
        for (second, held) in [(11, &[][..]), (12, &["b"])] {
            assert_eq!(registration.compare(&holding(second, held), &[], &[("b", 1)]), Comparison::Listed, "{second}");
        }
    }

    #[test]
    fn what_another_podmeter_grants_in_a_rolling_update_is_no_conflict() {
        let mut registration = Registration::new(Ok(()));
        let other = ["podmeter-nvidia.com_gpu-0123456789ab.sock".to_owned()];
        registration.compare(&holding(12, &[]), &other, &[]);
        assert_eq!(registration.compare(&holding(13, &["d"]), &other, &[]), Comparison::Listed);
        assert_eq!(registration.compare(&holding(14, &["d"]), &[], &[]), Comparison::Listed);
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
}
