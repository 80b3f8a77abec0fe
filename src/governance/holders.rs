use std::collections::BTreeMap;

use serde::Serialize;

use crate::model::{
    Account, ClaimDevice, Container, ContainerRef, DeviceId, GpuUuid, HeldDevice, MigUuid, Pod, PodUid, ResourceName,
    Sharing, Snapshot, Timestamp,
};

/// The holders, from the allocations that podmeter has settled on.
#[derive(Debug, Serialize)]
pub struct Holders<'a> {
    /// When the kubelet last confirmed them.
    pub confirmed_at: Option<Timestamp>,
    /// False for a short time after the kubelet has restarted.
    pub settled: bool,
    /// Why requests to the kubelet fail.
    pub problem: Option<&'a str>,
    /// Those with a device or a claim. `None`: the kubelet has not responded yet.
    pub containers: Option<Vec<Holder<'a>>>,
}

#[derive(Debug, Serialize)]
pub struct Holder<'a> {
    #[serde(flatten)]
    pub container: &'a ContainerRef,
    /// `None` where no source has UIDs.
    pub pod_uid: Option<&'a PodUid>,
    pub devices: Vec<Held<'a>>,
    pub claims: &'a [ClaimDevice],
    /// Their hardware, where it is known.
    pub hardware: Vec<HeldHardware<'a>>,
}

#[derive(Debug, Serialize)]
pub struct Held<'a> {
    pub resource: &'a ResourceName,
    pub id: &'a DeviceId,
}

#[derive(Debug, Serialize)]
pub struct HeldHardware<'a> {
    pub gpu: &'a GpuUuid,
    pub mig: Option<&'a MigUuid>,
    pub sharing: Sharing,
    /// When podmeter first saw it held.
    pub since: Timestamp,
}

pub fn holders(snapshot: &Snapshot) -> Holders<'_> {
    let kubelet = &*snapshot.kubelet;
    let mut behind: BTreeMap<&ContainerRef, Vec<&Account>> = BTreeMap::new();
    for account in &snapshot.accounts {
        behind.entry(&account.container).or_default().push(account);
    }
    let holder = |container: &'_ Container| -> bool { !container.devices.is_empty() || !container.claims.is_empty() };
    Holders {
        confirmed_at: kubelet.allocations_at.map(|at| at.unix.into()),
        settled: kubelet.settled,
        problem: kubelet.problem.as_deref(),
        containers: kubelet.allocations.as_deref().map(|allocations| {
            let containers = allocations.pods.iter().flat_map(of_pod).filter(|(_, container)| holder(container));
            containers
                .map(|(pod_uid, container)| Holder {
                    container: &container.reference,
                    pod_uid,
                    devices: container.devices.iter().map(held).collect(),
                    claims: &container.claims,
                    hardware: behind
                        .get(&container.reference)
                        .into_iter()
                        .flatten()
                        .filter_map(|account| part(account))
                        .collect(),
                })
                .collect()
        }),
    }
}

fn of_pod(pod: &Pod) -> impl Iterator<Item = (Option<&PodUid>, &Container)> {
    pod.containers.iter().map(|container| (pod.uid.as_ref(), container))
}

fn held(device: &HeldDevice) -> Held<'_> {
    Held { resource: &device.resource, id: &device.id }
}

/// `None` for a holding that has ended.
fn part(account: &Account) -> Option<HeldHardware<'_>> {
    let sharing = account.holding.as_ref()?.sharing;
    Some(HeldHardware { gpu: &account.gpu, mig: account.mig.as_ref(), sharing, since: account.created.into() })
}
