//! The health of each device, why it is unhealthy, and XIDs.

use std::sync::LazyLock;

use super::family::{Group, counter, gauge};
use super::labels::{DEVICE, devices, of_container, slow, with_health};
use crate::domain::model::{Account, ContainerRef, ContainerXid, RECOVERY_ACTIONS, Snapshot, recovery_action};

pub(super) static GROUP: LazyLock<Group> = LazyLock::new(|| Group {
    section: "Device: health",
    labels: DEVICE,
    source: "podmeter",
    metrics: vec![
        gauge("podmeter_device_healthy")
            .help("Whether the GPU and all of its MIG devices are healthy.")
            .each(with_health, |health| Some(health.is_healthy())),
        gauge("podmeter_device_unhealthy_reason")
            .help("Why a GPU or a MIG device on it is unhealthy; always 1, absent while it is healthy.")
            .by("reason", with_health, |health| {
                let causes = health.devices().flat_map(|device| &device.causes);
                Some(causes.map(|cause| (cause.reason.into_str(), Some(1u64))).collect::<Vec<_>>())
            }),
        gauge("podmeter_device_recovery_action")
            .help("Recovery action that the driver requests: one series per action.")
            .source("NVML field 230")
            .by("action", devices, |readings| {
                // An unknown number is no state.
                let recommended = recovery_action(slow(readings)?.recovery_action?)?;
                Some(RECOVERY_ACTIONS.map(|action| (action, Some(action == recommended))))
            }),
        counter("podmeter_xid_errors_total").help("XIDs by class.").source("NVML events").by_key(
            "class",
            with_health,
            |health| Some(&health.xids.by_class),
        ),
        gauge("podmeter_xid_last_timestamp_seconds")
            .help("Unix time of the last XID of this code.")
            .labels("gpu_uuid gpu xid class source")
            .source("NVML events")
            .samples(|snapshot, family| {
                for (labels, health) in with_health(snapshot) {
                    for (code, xid) in &health.xids.by_code {
                        let labels = labels.clone().and("xid", *code).and("class", xid.class.into_str());
                        family.push(labels.and("source", "nvml"), xid.at.unix);
                    }
                }
            }),
        counter("podmeter_container_xid_errors_total")
            .help("XIDs by the one container that holds the GPU or MIG device; with several holders, of none.")
            .labels("namespace pod container gpu_uuid mig_uuid xid class")
            .source("NVML events")
            .samples(|snapshot, family| {
                for xid in snapshot.container_xids.iter().filter(|xid| is_shown(snapshot, xid)) {
                    let labels = of_container(&xid.container)
                        .and("gpu_uuid", &xid.gpu)
                        .and_known("mig_uuid", xid.mig.as_ref())
                        .and("xid", xid.code)
                        .and("class", xid.class.into_str());
                    family.push(labels, xid.count);
                }
            }),
    ],
});

/// Whether the XID's series is this container's: labels have no UID, so only one of the pods of one name has it. Where
/// the container has accounts of the device, these decide: `SeriesBudget` marks those of replaced pods. Without any, an
/// account that is shown or a later XID of another pod of the name decides.
fn is_shown(snapshot: &Snapshot, xid: &ContainerXid) -> bool {
    let is_of_device = |account: &Account| account.gpu == xid.gpu && (xid.mig.is_none() || account.mig == xid.mig);
    let is_its = |account: &&Account| account.container == xid.container && is_of_device(account);
    let mut its = snapshot.accounts.iter().filter(is_its).peekable();
    if its.peek().is_some() {
        return its.any(|account| !account.over_limit);
    }
    // A container without UID may be the same one.
    let is_successor = |container: &ContainerRef| {
        *container != xid.container && container.has_names_of(&xid.container) && container.pod_uid.is_some()
    };
    let is_later = |other: &ContainerXid| (other.created.0, &other.container) > (xid.created.0, &xid.container);
    let mut accounts = snapshot.accounts.iter();
    !accounts.any(|account| !account.over_limit && is_successor(&account.container))
        && !snapshot.container_xids.iter().any(|other| is_successor(&other.container) && is_later(other))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::model::{UnixSeconds, XidClass};
    use crate::serve::metrics::tests::fixture::{self, WHOLE};
    use crate::serve::metrics::tests::value;

    #[test]
    fn the_series_limit_of_one_mig_device_does_not_hide_the_xids_of_another() {
        let container = ContainerRef::new("team", "two-slices", "main");
        let device = |mig: &str| ("GPU-1".into(), Some(mig.into()));
        let (gpu, mig) = device("MIG-dropped");
        let mut dropped = Account::new(container.clone(), gpu, mig, UnixSeconds(1.0));
        dropped.over_limit = true;
        let (gpu, mig) = device("MIG-shown");
        let shown = Account::new(container.clone(), gpu, mig, UnixSeconds(1.0));
        let xid = |mig: &str| {
            let ((gpu, mig), class) = (device(mig), XidClass::Application);
            ContainerXid {
                container: container.clone(),
                gpu,
                mig,
                code: 31,
                class,
                count: 1,
                created: UnixSeconds(1.0),
            }
        };
        let container_xids = vec![xid("MIG-dropped"), xid("MIG-shown")];
        let page = GROUP.families(&Snapshot { accounts: vec![dropped, shown], container_xids, ..Snapshot::default() });
        let xids = |mig| value(&page, "podmeter_container_xid_errors_total", &[("mig_uuid", mig)]);
        assert_eq!((xids("MIG-dropped"), xids("MIG-shown")), (None, Some(1.0)));
    }

    #[test]
    fn an_unknown_recovery_action_is_no_state() {
        let mut snapshot = fixture::snapshot();
        let hardware = Arc::make_mut(&mut snapshot.hardware);
        let readings = Arc::make_mut(hardware.readings.get_mut(&WHOLE.into()).unwrap());
        readings.slow.as_mut().unwrap().value.recovery_action = Some(77);
        let page = GROUP.families(&snapshot);
        assert_eq!(value(&page, "podmeter_device_recovery_action", &[("gpu_uuid", WHOLE), ("action", "none")]), None);
    }
}
