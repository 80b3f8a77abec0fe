use std::collections::BTreeSet;

use super::XidObservation;
use crate::attribution::join::HoldingKey;
use crate::model::{Account, ContainerRef, MigUuid, PodRef, PodUid, XidEvent};

/// A container, and the MIG device that it used where that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XidOwner {
    pub container: ContainerRef,
    pub mig: Option<MigUuid>,
}

impl XidOwner {
    /// Who holds what the XID is about, if that is one container.
    pub fn holding(event: &XidEvent, observation: &XidObservation<'_>) -> Option<Self> {
        let reached = reached(event, observation);
        let keys: Vec<&HoldingKey> = held(event, &reached, observation).collect();
        let containers: BTreeSet<&ContainerRef> = keys.iter().map(|key| &key.container).collect();
        let container = only(containers)?.clone();
        Some(Self { container, mig: only(keys.into_iter().map(|key| &key.mig).collect()).cloned().flatten() })
    }

    pub fn of_container(container: &ContainerRef, event: &XidEvent, observation: &XidObservation<'_>) -> Self {
        let reached = reached(event, observation);
        let is_own = |other: &ContainerRef| other.has_names_of(container) && other.may_be_in_pod_of(container);
        // As the holder is called: the process's UID may have been found later.
        let mut known = observation.join.holdings.keys().map(|key| &key.container);
        let mut accounts = observation.accounts.iter().map(|account| &account.container);
        let exact = || accounts.clone().any(|account| account == container);
        let container = match exact() {
            true => container,
            false => {
                known.find(|other| is_own(other)).or_else(|| accounts.find(|other| is_own(other))).unwrap_or(container)
            }
        };
        let own = held(event, &reached, observation).filter(|key| key.container == *container);
        let own: BTreeSet<Option<&MigUuid>> = own.map(|key| key.mig.as_ref()).collect();
        let mig = only(reached.iter().collect()).or_else(|| only(own).flatten()).cloned();
        Self { container: container.clone(), mig }
    }

    /// Its container is not known: that of the pod which has the GPU, if there is one. Of pods of one name, the one
    /// with the UID; without one, the one that holds.
    pub fn in_pod(
        pod: &PodRef,
        uid: Option<&PodUid>,
        event: &XidEvent,
        observation: &XidObservation<'_>,
    ) -> Option<Self> {
        let some = ContainerRef::in_pod(pod, "").with_uid(uid.cloned());
        let of_pod = |account: &&Account| account.gpu == event.gpu && account.container.may_be_in_pod_of(&some);
        let accounts: Vec<&Account> = observation.accounts.iter().filter(of_pod).collect();
        let held = accounts.iter().filter(|account| account.holding.is_some() && uid.is_none());
        let held: BTreeSet<&ContainerRef> = held.map(|account| &account.container).collect();
        let all = || accounts.iter().map(|account| &account.container).collect();
        let container = only(if held.is_empty() { all() } else { held })?;
        Some(Self::of_container(container, event, observation))
    }
}

/// The MIG devices that the XID concerns; empty: the whole GPU, as far as is known.
fn reached(event: &XidEvent, observation: &XidObservation<'_>) -> BTreeSet<MigUuid> {
    let Some((instance, gpu)) = event.instance.zip(observation.inventory.gpus.get(&event.gpu)) else {
        return BTreeSet::new();
    };
    let inside = || gpu.mig_devices.iter().filter(|mig| mig.gpu_instance == instance.gpu_instance);
    let exact = inside().filter(|mig| Some(mig.compute_instance) == instance.compute_instance);
    let exact: BTreeSet<MigUuid> = exact.map(|mig| mig.uuid.clone()).collect();
    if exact.is_empty() { inside().map(|mig| mig.uuid.clone()).collect() } else { exact }
}

fn held<'a>(
    event: &'a XidEvent,
    reached: &'a BTreeSet<MigUuid>,
    observation: &'a XidObservation<'_>,
) -> impl Iterator<Item = &'a HoldingKey> {
    let keys = observation.join.holdings.keys().filter(|key| key.gpu == event.gpu);
    keys.filter(|key| reached.is_empty() || key.mig.as_ref().is_none_or(|mig| reached.contains(mig)))
}

fn only<T: Ord>(set: BTreeSet<T>) -> Option<T> {
    if set.len() == 1 { set.into_iter().next() } else { None }
}
