//! What the page shows of superchips, the NVLink fabric and DRA claims; `None` where driver and kubelet report none.

use crate::domain::model::{Account, FabricState, Gpu, GpuUuid, Snapshot};

/// The power of the superchip that the GPU is on.
pub(super) fn module_watts(snapshot: &Snapshot, gpu: &GpuUuid) -> Option<f64> {
    snapshot.hardware.readings.get(gpu)?.fast.as_ref()?.value.module_power_watts
}

/// The power of all superchips of the node, each once; `None` without one, and where that of one is unknown.
pub(super) fn all_modules_watts(snapshot: &Snapshot) -> Option<f64> {
    let modules = snapshot.hardware.inventory.modules();
    let of = |gpus: &Vec<&Gpu>| gpus.iter().filter_map(|gpu| module_watts(snapshot, &gpu.uuid)).reduce(f64::max);
    modules.values().map(of).reduce(|one, other| Some(one? + other?))?
}

/// Conditions of the NVLink fabric that are faults or limits. A missing registration with it is an unhealthy reason.
pub(super) fn fabric_faults(snapshot: &Snapshot, gpu: &GpuUuid) -> Option<String> {
    let fabric: &FabricState = snapshot.hardware.readings.get(gpu)?.slow.as_ref()?.value.fabric.as_ref()?;
    let conditions = fabric.conditions.iter().filter(|(_, active)| **active).map(|(condition, _)| *condition);
    let words: Vec<String> = conditions
        .map(|condition| condition.replace('_', " "))
        .chain(fabric.incorrect_configuration.map(|why| format!("incorrect configuration: {}", why.replace('_', " "))))
        .collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// The claim by which a container holds the device, in words; `None` where a device plugin allocated it.
pub(super) fn claim(snapshot: &Snapshot, account: &Account) -> Option<String> {
    account.holding.as_ref()?;
    let (claim, _) = snapshot.claim_of(account)?;
    let containers = snapshot.kubelet.allocations.iter().flat_map(|allocations| allocations.containers());
    let refers = containers.filter(|other| other.claims.iter().any(|other| other.is_same_share(claim))).count();
    let shared = if refers > 1 { format!(", shared by {refers} containers") } else { String::new() };
    Some(format!("claim {}{shared}", claim.claim))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::model::ClaimAllocation;
    use crate::serve::metrics::tests::fixture;

    #[test]
    fn a_condition_that_is_not_active_is_no_fault() {
        let faults = |snapshot: &Snapshot| fabric_faults(snapshot, &GpuUuid::from(fixture::WHOLE));
        assert_eq!(faults(&fixture::snapshot()), None);
        let mut bad = fixture::snapshot();
        let hardware = Arc::make_mut(&mut bad.hardware);
        let readings = Arc::make_mut(hardware.readings.get_mut(&GpuUuid::from(fixture::WHOLE)).unwrap());
        let fabric = readings.slow.as_mut().unwrap().value.fabric.as_mut().unwrap();
        fabric.conditions = [("degraded_bandwidth", true), ("route_unhealthy", false)].into();
        fabric.incorrect_configuration = Some("insufficient_nvlinks");
        assert_eq!(faults(&bad).as_deref(), Some("degraded bandwidth, incorrect configuration: insufficient nvlinks"));
    }

    /// The fixture with a second pod that refers to the claim, with or without admin access.
    fn with_another_pod(admin_access: bool) -> Snapshot {
        let mut snapshot = fixture::snapshot();
        let mut claim = snapshot.claim_gpus[0].clone();
        let allocations = Arc::make_mut(Arc::make_mut(&mut snapshot.kubelet).allocations.as_mut().unwrap());
        let mut pod = allocations.pods.iter().find(|pod| &*pod.reference.pod == "claiming").unwrap().clone();
        pod.reference.pod = "second".into();
        pod.containers[0].reference.pod = "second".into();
        if admin_access {
            claim.claim.claim = "observe".into();
            claim.claim.record.allocation = Some(ClaimAllocation { admin_access: true, ..ClaimAllocation::default() });
            pod.containers[0].claims = vec![claim.claim.clone()];
            snapshot.claim_gpus.insert(0, claim);
        }
        allocations.pods.push(pod);
        snapshot
    }

    #[test]
    fn a_shared_claim_counts_its_containers_and_an_observer_shares_nothing() {
        let claimed = |snapshot: &Snapshot| {
            let account = snapshot.accounts.iter().find(|account| &*account.container.pod == "claiming").unwrap();
            claim(snapshot, account).unwrap()
        };
        assert_eq!(claimed(&fixture::snapshot()), "claim one-slice");
        assert_eq!(claimed(&with_another_pod(false)), "claim one-slice, shared by 2 containers");
        assert_eq!(claimed(&with_another_pod(true)), "claim one-slice");
    }
}
