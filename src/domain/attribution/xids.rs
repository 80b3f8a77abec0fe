//! The owner of an XID: the container that holds the GPU or the MIG device, if exactly one does. With several holders
//! the XID has no owner; the device's counter has it.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use itertools::Itertools as _;

use super::Observation;
use crate::domain::holders::HoldingKey;
use crate::domain::model::{
    Account, ContainerRef, ContainerXid, GpuUuid, Inventory, MigUuid, Monotonic, XidClass, XidEvent,
};

/// The XIDs by container. No count falls while it exists.
#[derive(Debug, Default)]
pub struct ContainerXids {
    counts: BTreeMap<XidKey, XidTally>,
}

/// An XID, and the class in which it counts.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassedXid {
    pub event: XidEvent,
    pub class: XidClass,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct XidKey {
    container: ContainerRef,
    gpu: GpuUuid,
    /// The MIG device; `None` outside MIG, and where it is unknown.
    mig: Option<MigUuid>,
    code: u32,
}

#[derive(Debug)]
struct XidTally {
    xid: ContainerXid,
    /// The time of the last XID, and the number of scrapes before it.
    last: (Monotonic, u64),
}

impl ContainerXids {
    /// Adds the XIDs received since the last observation; returns the counts sorted by container, GPU, MIG device and code. `accounts`:
    /// the present ones; a count stays as long as its container's account, and without one for the retention.
    pub fn advance(
        &mut self,
        received: &[ClassedXid],
        accounts: &[Account],
        observation: &Observation<'_>,
    ) -> Vec<ContainerXid> {
        for xid in received {
            self.add(xid, accounts, observation);
        }
        self.counts.retain(|key, count| {
            !observation.retention.is_over(observation.now.monotonic, count.last)
                || accounts.iter().any(|account| is_of(account, key))
        });
        self.counts.values().map(|count| count.xid.clone()).collect()
    }

    fn add(&mut self, xid: &ClassedXid, accounts: &[Account], observation: &Observation<'_>) {
        let Some(key) = xid_key(&xid.event, observation) else { return };
        let now = observation.now;
        let account = accounts.iter().find(|account| is_of(account, &key));
        // The count of this code was 0 since the account began.
        let created = account.map_or(now.unix, |account| account.created);
        let XidKey { container, gpu, mig, code } = key.clone();
        let new = ContainerXid { container, gpu, mig, code, class: xid.class, count: 0, created };
        let count = self.counts.entry(key).or_insert(XidTally { xid: new, last: Default::default() });
        count.xid.count = count.xid.count.saturating_add(xid.event.count);
        count.last = (now.monotonic, observation.retention.scrapes);
    }
}

/// The key of the only container that holds what the XID concerns, with the MIG device if that is one.
fn xid_key(event: &XidEvent, observation: &Observation<'_>) -> Option<XidKey> {
    let concerned = concerned_mig_devices(event, observation.inventory);
    let of_gpu = observation.holdings.by_key.keys().filter(|key| key.gpu == event.gpu);
    let is_concerned =
        |key: &&HoldingKey| concerned.is_empty() || key.mig.as_ref().is_none_or(|mig| concerned.contains(mig));
    let held: Vec<&HoldingKey> = of_gpu.filter(is_concerned).collect();
    let container = held.iter().map(|key| &key.container).all_equal_value().ok()?.clone();
    let mig = held.iter().map(|key| &key.mig).all_equal_value().ok().cloned().flatten();
    Some(XidKey { container, gpu: event.gpu.clone(), mig, code: event.code })
}

/// The MIG devices that the XID concerns; empty: the whole GPU, as far as is known.
fn concerned_mig_devices<'a>(event: &XidEvent, inventory: &'a Inventory) -> BTreeSet<&'a MigUuid> {
    let Some((instance, gpu)) = event.instance.zip(inventory.gpus.get(&event.gpu)) else { return BTreeSet::new() };
    instance.mig_devices(&gpu.mig_devices).into_iter().map(|mig| &mig.uuid).collect()
}

fn is_of(account: &Account, key: &XidKey) -> bool {
    account.container == key.container && account.gpu == key.gpu
}
