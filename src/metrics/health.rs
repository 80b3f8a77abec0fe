//! The verdict on each device, and what speaks against it.

use std::collections::BTreeSet;

use super::device_identity::{DEVICE, of_device, with_readings};
use super::device_interconnect::slow;
use super::resources::of_container;
use super::{Descriptor, Family, Group};
use crate::model::{
    Account, ContainerRef, Gpu, GpuHealth, RECOVERY_ACTIONS, Snapshot, UnhealthyReason, recovery_action,
};

const OWN: &str = "podmeter";

static HEALTHY: Descriptor = Descriptor::gauge(
    "podmeter_device_healthy",
    DEVICE,
    "",
    OWN,
    "The verdict that the kubelet is given, 0 or 1; 0 as soon as one MIG device of the GPU is unhealthy.",
);
static UNHEALTHY_REASON: Descriptor = Descriptor::gauge(
    "podmeter_device_unhealthy_reason",
    &["gpu_uuid", "gpu", "reason"],
    "",
    OWN,
    "Why a GPU or a MIG device on it is unhealthy; always 1, absent while all is well.",
);
static RECOVERY_ACTION: Descriptor = Descriptor::gauge(
    "podmeter_device_recovery_action",
    &["gpu_uuid", "gpu", "action"],
    "",
    "NVML field 230",
    "What the driver wants done to the GPU, 0 or 1 for each action; absent where it does not say.",
);
static XID_ERRORS: Descriptor = Descriptor::counter(
    "podmeter_xid_errors_total",
    &["gpu_uuid", "gpu", "class"],
    "",
    "NVML events, kernel log",
    "XIDs by class; one that two sources tell of counts once.",
);
static XID_LAST: Descriptor = Descriptor::gauge(
    "podmeter_xid_last_timestamp_seconds",
    &["gpu_uuid", "gpu", "xid", "class", "source"],
    "seconds",
    "NVML events, kernel log",
    "Unix time of the last XID of this code that the source told of.",
);

static CONTAINER_XID_ERRORS: Descriptor = Descriptor::counter(
    "podmeter_container_xid_errors_total",
    &["namespace", "pod", "container", "gpu_uuid", "mig_uuid", "xid", "class"],
    "",
    "NVML events, kernel log",
    "XIDs by the container whose process the kernel's log names, else by the one container that holds the device.",
);

pub(super) const GROUP: Group = Group {
    section: "Device: health",
    descriptors: &[&HEALTHY, &UNHEALTHY_REASON, &RECOVERY_ACTION, &XID_ERRORS, &XID_LAST, &CONTAINER_XID_ERRORS],
    families,
};

fn families(snapshot: &Snapshot) -> Vec<Family> {
    let mut healthy = Family::new(&HEALTHY);
    let mut reasons = Family::new(&UNHEALTHY_REASON);
    let mut errors = Family::new(&XID_ERRORS);
    let mut last = Family::new(&XID_LAST);
    for (gpu, health) in judged(snapshot) {
        healthy.push(of_device(gpu), health.is_healthy());
        let causes = health.devices().flat_map(|device| &device.causes);
        for reason in causes.map(|cause| cause.reason).collect::<BTreeSet<UnhealthyReason>>() {
            let mut labels = of_device(gpu);
            labels.push(("reason", reason.as_str().into()));
            reasons.push(labels, 1u64);
        }
        for (class, count) in &health.xids.by_class {
            let mut labels = of_device(gpu);
            labels.push(("class", class.as_str().into()));
            errors.push_created(labels, Some(*count), health.xids.created);
        }
        for (code, sources) in &health.xids.last {
            for (source, xid) in sources {
                let mut labels = of_device(gpu);
                labels.push(("xid", (*code).into()));
                labels.extend([("class", xid.class.as_str().into()), ("source", (*source).into())]);
                last.push(labels, xid.at.unix.0);
            }
        }
    }
    vec![healthy, reasons, actions(snapshot), errors, last, of_containers(snapshot)]
}

fn of_containers(snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&CONTAINER_XID_ERRORS);
    for xid in &snapshot.container_xids {
        let is_its = |account: &Account| account.container == xid.container && account.gpu == xid.gpu;
        let is_successors = |container: &ContainerRef| {
            *container != xid.container && container.has_names_of(&xid.container) && container.pod_uid.is_some()
        };
        let own = snapshot.accounts.iter().find(|account| is_its(account));
        let is_replaced = || {
            snapshot.accounts.iter().any(|account| !account.over_limit && is_successors(&account.container))
                || snapshot.container_xids.iter().any(|other| {
                    is_successors(&other.container)
                        && (other.created.0, &other.container) > (xid.created.0, &xid.container)
                })
        };
        if own.map_or_else(is_replaced, |account| account.over_limit) {
            continue;
        }
        let mut labels = of_container(&xid.container);
        labels.push(("gpu_uuid", xid.gpu.to_shared().into()));
        labels.extend(xid.mig.as_ref().map(|mig| ("mig_uuid", mig.to_shared().into())));
        labels.extend([("xid", xid.code.into()), ("class", xid.class.as_str().into())]);
        family.push_created(labels, Some(xid.count), xid.created);
    }
    family
}

/// A state set of those that are known; a number that is not known is no state.
fn actions(snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&RECOVERY_ACTION);
    for (gpu, readings) in with_readings(snapshot) {
        let Some(wanted) = slow(readings).and_then(|slow| slow.recovery_action).and_then(recovery_action) else {
            continue;
        };
        for action in RECOVERY_ACTIONS {
            let mut labels = of_device(gpu);
            labels.push(("action", action.into()));
            family.push(labels, action == wanted);
        }
    }
    family
}

pub(super) fn judged(snapshot: &Snapshot) -> impl Iterator<Item = (&Gpu, &GpuHealth)> {
    let gpus = snapshot.hardware.inventory.gpus.values();
    gpus.filter_map(|gpu| Some((gpu, snapshot.health.gpus.get(&gpu.uuid)?)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::metrics::tests::fixture::{self, LOST, PARTITIONED, WHOLE};
    use crate::metrics::tests::value;

    #[test]
    fn a_sick_part_makes_the_gpu_unhealthy_under_its_own_reason() {
        let snapshot = fixture::snapshot();
        let page = families(&snapshot);
        let healthy = |uuid| value(&page, "podmeter_device_healthy", &[("gpu_uuid", uuid)]);
        assert_eq!([WHOLE, LOST, PARTITIONED].map(healthy), [Some(1.0), Some(0.0), Some(0.0)]);
        let reason =
            |uuid, reason| value(&page, "podmeter_device_unhealthy_reason", &[("gpu_uuid", uuid), ("reason", reason)]);
        assert_eq!(reason(LOST, "lost"), Some(1.0));
        assert_eq!(reason(PARTITIONED, "xid"), Some(1.0));
        assert_eq!(reason(WHOLE, "xid"), None);
    }

    #[test]
    fn a_recovery_action_that_is_not_known_or_not_said_is_no_state() {
        let page = families(&fixture::snapshot());
        let action =
            |uuid, action| value(&page, "podmeter_device_recovery_action", &[("gpu_uuid", uuid), ("action", action)]);
        assert_eq!((action(WHOLE, "none"), action(WHOLE, "gpu_reset")), (Some(1.0), Some(0.0)));
        assert_eq!(action(LOST, "none"), None);
        let mut snapshot = fixture::snapshot();
        let hardware = Arc::make_mut(&mut snapshot.hardware);
        let readings = Arc::make_mut(hardware.readings.get_mut(&WHOLE.into()).unwrap());
        readings.slow.as_mut().unwrap().value.recovery_action = Some(77);
        let page = families(&snapshot);
        assert_eq!(value(&page, "podmeter_device_recovery_action", &[("gpu_uuid", WHOLE), ("action", "none")]), None);
    }

    #[test]
    fn classes_begin_at_zero() {
        let page = families(&fixture::snapshot());
        let count = |class| value(&page, "podmeter_xid_errors_total", &[("gpu_uuid", WHOLE), ("class", class)]);
        assert_eq!((count("application"), count("node_reboot")), (Some(3.0), Some(0.0)));
    }
}
