//! Whether another plugin serves the resource, or the kubelet no longer has our registration.
//!
//! A plugin that registers the resource after us replaces us without a notice; when it ends, a kubelet up to 1.36 drops
//! the resource, without a notice too. Both show in what the kubelet lists as allocatable: the healthy devices of the
//! plugin that it uses. It is compared after each change in the plugin directory and every ten seconds
//! (`kubelet::schedule`):
//!
//! - device IDs that this process never sent, or a live socket of a known plugin: a conflict;
//! - none of our healthy IDs, in two answers: unlisted. A single answer may be from the moment of a change.
//!
//! In: answers of the kubelet, names of live sockets, the offer. Out: a `Comparison`. Pure. What containers hold is not
//! used: a restarted kubelet reads it from its checkpoint, whichever plugin there is.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::domain::model::{DeviceId, KubeletState, Monotonic, ResourceName};
use crate::node::plugin::host::sockets;
use crate::node::plugin::offer::Offer;

const REMEDY: &str = "remove the other plugin, switch this one off with --device-plugin=off, or set onConflict: takeover for the resource";
/// Longest time until the kubelet's answers show a list, or its end. Two answers without our devices are as far apart.
pub const LIST_SHOWN: Duration = Duration::from_secs(1);

/// The result for the kubelet's last answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// At least one of our healthy devices is listed, or there is nothing to compare.
    Listed,
    /// None of them is. The first answer that the kubelet is asked for from this time on decides.
    Absent(Monotonic),
    /// Nor is any in that answer, `LIST_SHOWN` later: the registration is lost.
    Unlisted,
    /// Another plugin has the resource: which, with a remedy.
    Conflict(String),
    /// The other plugin no longer has it.
    ConflictEnded,
}

/// The comparisons of one registration.
#[derive(Debug)]
pub struct Comparisons {
    /// Earlier answers may be from before the kubelet had our list.
    from: Monotonic,
    /// The time of the last answer.
    compared: Option<Monotonic>,
    last: Comparison,
}

impl Comparisons {
    /// The kubelet has opened our list now.
    pub fn new(now: Monotonic) -> Self {
        Self { from: now + LIST_SHOWN, compared: None, last: Comparison::Listed }
    }

    /// Each answer counts once. `advertised` are the devices that ended registrations sent to the kubelet, and `live`
    /// the sockets that can matter, without our own.
    pub fn compare(
        &mut self,
        offer: &Offer,
        advertised: &BTreeSet<DeviceId>,
        kubelet: &KubeletState,
        live: &[String],
    ) -> Comparison {
        let answer = kubelet.allocatable.as_ref().zip(kubelet.allocatable_at);
        let answer = answer.filter(|(_, at)| at.monotonic >= self.from);
        let nothing = BTreeSet::new();
        let listed = answer.and_then(|(listed, _)| listed.devices.get(&offer.resource)).unwrap_or(&nothing);
        let sent = offer.devices.iter().map(|device| device.id.clone()).chain(advertised.iter().cloned()).collect();
        if let Some(other) = other_plugin(&offer.resource, listed, &sent, live) {
            self.last = Comparison::Conflict(other);
        } else if let Comparison::Conflict(_) = self.last {
            self.last = Comparison::ConflictEnded;
        } else if let Some(at) = answer.map(|(_, at)| at.monotonic).filter(|at| self.compared != Some(*at)) {
            self.compared = Some(at);
            let mut healthy = offer.devices.iter().filter(|device| device.health.is_ok()).peekable();
            let is_absent = healthy.peek().is_some() && healthy.all(|device| !listed.contains(&device.id));
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

/// Which other plugin serves the resource, with a remedy. `None`: none, or another podmeter, in a rolling update.
///
/// `allocatable` are the kubelet's devices of the resource, `sent` those that this process has sent it, and `live` the
/// names of the sockets that accept connections. Before the first registration nothing is `sent`: another plugin may list
/// the same GPU by the same UUID as our offer.
pub fn other_plugin(
    resource: &ResourceName,
    allocatable: &BTreeSet<DeviceId>,
    sent: &BTreeSet<DeviceId>,
    live: &[String],
) -> Option<String> {
    if let Some(socket) = live.iter().find(|name| known_resource(name).as_ref() == Some(resource)) {
        return Some(format!("another device plugin serves {resource} on {socket}; {REMEDY}"));
    }
    let others = allocatable.difference(sent).count();
    let rolling_update = live.iter().any(|name| sockets::is_a_podmeters(name, resource));
    (others > 0 && !rolling_update).then(|| {
        format!("the kubelet lists {others} devices of {resource} that another device plugin advertised; {REMEDY}")
    })
}

/// Whether a socket of this name can matter for the resource: of a known plugin, or of a podmeter, this one or another.
pub fn may_matter(socket: &str, resource: &ResourceName) -> bool {
    known_resource(socket).as_ref() == Some(resource) || sockets::is_a_podmeters(socket, resource)
}

/// The resource behind a socket that another vendor's plugin is known to listen on.
pub fn known_resource(socket: &str) -> Option<ResourceName> {
    let name = socket.strip_suffix(".sock")?;
    // Google Kubernetes Engine's: one, with the time of its start. NVIDIA's own: one per resource.
    let name = if name.starts_with("nvidiaGPU-") { "gpu" } else { name.strip_prefix("nvidia-")? };
    Some(ResourceName::new(format!("nvidia.com/{name}")))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::model::{Allocatable, Moment};
    use crate::node::plugin::offer::{OfferedDevice, OfferedHardware, OfferedHealth, PluginUnhealthy};

    fn found(allocatable: &[&str], sent: &[&str], live: &[&str]) -> Option<String> {
        let ids = |ids: &[&str]| ids.iter().map(|id| DeviceId::new(*id)).collect();
        let live: Vec<String> = live.iter().map(|name| (*name).to_owned()).collect();
        other_plugin(&"nvidia.com/gpu".into(), &ids(allocatable), &ids(sent), &live)
    }

    #[test]
    fn devices_that_podmeter_did_not_advertise_are_another_plugins() {
        assert_eq!(found(&[], &[], &[]), None);
        assert_eq!(found(&["GPU-a"], &["GPU-a", "GPU-b"], &[]), None, "our own of a moment ago");
        let text = found(&["GPU-a", "GPU-c"], &["GPU-a"], &["other.sock"]).unwrap();
        assert!(text.contains("1 devices of nvidia.com/gpu") && text.contains("takeover"), "{text}");
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

    /// A registration whose list the kubelet opened after ten seconds, with device `x` and the answer of the kubelet at
    /// some second.
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
            let mut allocatable = Allocatable::default();
            allocatable.devices.insert(self.offer.resource.clone(), listed.iter().map(|id| (*id).into()).collect());
            let kubelet = KubeletState {
                allocatable: Some(Arc::new(allocatable)),
                allocatable_at: Some(Moment { monotonic: Monotonic::from_secs(second), ..Moment::default() }),
                ..KubeletState::default()
            };
            let live: Vec<String> = live.iter().map(|name| (*name).to_owned()).collect();
            self.comparisons.compare(&self.offer, &BTreeSet::from(["earlier".into()]), &kubelet, &live)
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
        assert_eq!(
            Registration::new(Ok(())).comparisons.compare(
                &registration.offer,
                &BTreeSet::new(),
                &KubeletState::default(),
                &[],
            ),
            Comparison::Listed,
            "a kubelet that does not answer"
        );
    }

    #[test]
    fn a_conflict_lasts_while_the_other_devices_or_the_known_socket_are_there() {
        let mut registration = Registration::new(Ok(()));
        let mut compare = |second, listed: &[&str], live: &[&str]| match registration.answered(second, listed, live) {
            Comparison::Conflict(text) => text,
            other => format!("{other:?}"),
        };
        assert_eq!(compare(10, &["theirs"], &[]), "Listed", "from before our list");
        assert!(compare(12, &["x", "theirs"], &[]).contains("lists 1 devices"));
        assert_eq!(compare(13, &["x", "theirs"], &["podmeter-nvidia.com_gpu-0123456789ab.sock"]), "ConflictEnded");
        assert!(compare(14, &["x"], &["nvidia-gpu.sock"]).contains("nvidia-gpu.sock"));
        assert!(compare(14, &["x"], &["nvidia-gpu.sock"]).contains("nvidia-gpu.sock"));
        assert_eq!(compare(14, &["x"], &[]), "ConflictEnded", "without another answer");
    }
}
