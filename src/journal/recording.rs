//! Finds the account, container and device of a record, and its fields in a snapshot. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::allocation_record::{AllocationRecord, HealthEvent, JournalDevice, Xid};
use crate::domain::holders::HoldingKey;
use crate::domain::model::{
    Account, ContainerRef, ContainerXid, DeviceHealth, DeviceId, GpuUuid, HealthTransition, MigUuid, Monotonic,
    PciBusId, ResourceName, Snapshot, UnhealthyReason, UnixSeconds,
};

/// The most changes of the device's health kept for one holding; the rest are counted.
const HEALTH_EVENTS: usize = 32;
/// The most XID codes kept for one holding.
const XID_CODES: usize = 32;
/// The time after the agent's start by which the kubelet has reported what is allocatable, if it ever does.
const JOINED: Monotonic = Monotonic::from_secs(120);

pub fn account_key(account: &Account) -> HoldingKey {
    HoldingKey { container: account.container.clone(), gpu: account.gpu.clone(), mig: account.mig.clone() }
}

/// The key of a record, without the pod's UID, which a record may lack.
pub fn record_key(record: &AllocationRecord) -> HoldingKey {
    HoldingKey {
        container: ContainerRef::new(&record.namespace, &record.pod, &record.container),
        gpu: GpuUuid::new(Arc::clone(&record.device.gpu_uuid)),
        mig: record.device.mig_uuid.as_ref().map(|mig| MigUuid::new(Arc::clone(mig))),
    }
}

/// The key, which is then the same for pods that differ in their UIDs alone.
pub fn without_uid(key: &HoldingKey) -> HoldingKey {
    HoldingKey { container: key.container.clone().with_uid(None), ..key.clone() }
}

/// The containers that hold a device now, by the key without the pod's UID.
pub type HoldersByKey<'a> = BTreeMap<HoldingKey, Vec<&'a ContainerRef>>;

pub fn holders(snapshot: &Snapshot) -> HoldersByKey<'_> {
    let mut holders = HoldersByKey::new();
    for account in snapshot.accounts.iter().filter(|account| account.holding.is_some()) {
        holders.entry(without_uid(&account_key(account))).or_default().push(&account.container);
    }
    holders
}

/// Whether another pod of the same name has the device now.
pub fn is_replaced(account: &Account, holders: &HoldersByKey<'_>) -> bool {
    let same = holders.get(&without_uid(&account_key(account)));
    same.into_iter().flatten().any(|other| **other != account.container)
}

/// The record of a holding that begins.
pub fn record(account: &Account, snapshot: &Snapshot, began: UnixSeconds, id: u64) -> AllocationRecord {
    let mut record = AllocationRecord {
        id,
        namespace: Arc::clone(&account.container.namespace),
        pod: Arc::clone(&account.container.pod),
        container: Arc::clone(&account.container.container),
        pod_uid: pod_uid(snapshot, &account.container),
        device: JournalDevice { gpu_uuid: account.gpu.to_shared(), ..JournalDevice::default() },
        began: began.0,
        seen: snapshot.at.unix.0,
        ..AllocationRecord::default()
    };
    record.device.mig_uuid = account.mig.as_ref().map(MigUuid::to_shared);
    describe(&mut record, account, snapshot);
    if let Some(health) = snapshot.health.device(&account.gpu, account.mig.as_ref()) {
        add_health_difference(&mut record, health);
    }
    record
}

/// Updates what can change during a holding. Values that the driver no longer reports stay.
pub fn describe(record: &mut AllocationRecord, account: &Account, snapshot: &Snapshot) {
    if let Some(holding) = &account.holding {
        set(&mut record.resource, holding.resource.as_ref().map(ResourceName::as_str));
        set(&mut record.sharing, Some(holding.sharing.into_str()));
        set(&mut record.attribution, holding.attribution.map(<&str>::from));
        if !record.device_ids.iter().map(|id| &**id).eq(holding.device_ids.iter().map(DeviceId::as_str)) {
            record.device_ids = holding.device_ids.iter().map(DeviceId::to_shared).collect();
        }
    }
    let inventory = &snapshot.hardware.inventory;
    let device = &mut record.device;
    if let Some(gpu) = inventory.gpus.get(&account.gpu) {
        set(&mut device.model, gpu.model.as_deref());
        set(&mut device.pci_bus_id, gpu.pci_bus_id.as_ref().map(PciBusId::as_str));
        set(&mut device.vbios_version, gpu.vbios_version.as_deref());
        let mig = gpu.mig_devices.iter().find(|mig| Some(&mig.uuid) == account.mig.as_ref());
        set(&mut device.mig_profile, mig.map(|mig| &*mig.profile));
    }
    set(&mut device.driver_version, inventory.driver.as_ref().map(|driver| &*driver.driver_version));
}

fn set(field: &mut Option<Arc<str>>, value: Option<&str>) {
    if let Some(value) = value.filter(|value| field.as_deref() != Some(*value)) {
        *field = Some(value.into());
    }
}

pub fn pod_uid(snapshot: &Snapshot, container: &ContainerRef) -> Option<Arc<str>> {
    Some(snapshot.pod_uid(container)?.to_shared())
}

/// The container's XIDs on this device, by code.
pub fn xids(account: &Account, snapshot: &Snapshot) -> Vec<Xid> {
    let is_here = |xid: &&ContainerXid| {
        xid.container == account.container && xid.gpu == account.gpu && (xid.mig.is_none() || xid.mig == account.mig)
    };
    let xid = |xid: &ContainerXid| Xid { code: xid.code, class: xid.class.into_str().into(), count: xid.count };
    together(&[], &snapshot.container_xids.iter().filter(is_here).map(xid).collect::<Vec<_>>())
}

/// The container's XIDs on this device, without `base`, those before the holding.
pub fn xids_since(account: &Account, snapshot: &Snapshot, base: &[Xid]) -> Vec<Xid> {
    let mut own = xids(account, snapshot);
    for xid in &mut own {
        let before = base.iter().find(|before| before.code == xid.code).map_or(0, |before| before.count);
        xid.count = xid.count.saturating_sub(before);
    }
    own.retain(|xid| xid.count > 0);
    own
}

/// The sums of both by code, sorted.
pub fn together(one: &[Xid], other: &[Xid]) -> Vec<Xid> {
    let mut all: BTreeMap<u32, Xid> = BTreeMap::new();
    for xid in one.iter().chain(other) {
        if all.len() < XID_CODES || all.contains_key(&xid.code) {
            let sum = all.entry(xid.code).or_insert_with(|| Xid { count: 0, ..xid.clone() });
            sum.count = sum.count.saturating_add(xid.count);
        }
    }
    all.into_values().collect()
}

pub fn health_event(transition: &HealthTransition) -> HealthEvent {
    HealthEvent {
        at: transition.at.unix.0,
        healthy: transition.to_healthy,
        reason: transition.reason.into_str().into(),
        detail: Arc::clone(&transition.detail),
    }
}

/// Adds the event, unless the last one is the same. Beyond the limit, the first one that is no fault is dropped, or
/// else the first.
pub fn add_health_event(record: &mut AllocationRecord, event: HealthEvent) {
    let is_same = |last: &HealthEvent| last.healthy == event.healthy && (event.healthy || last.reason == event.reason);
    if record.health.last().map_or(event.healthy, is_same) {
        return;
    }
    if record.health.len() == HEALTH_EVENTS {
        let no_faults = [UnhealthyReason::Admin.into_str(), UnhealthyReason::Unknown.into_str()];
        let is_fault = |event: &HealthEvent| !event.healthy && !no_faults.contains(&&*event.reason);
        let dropped = record.health.iter().position(|event| !is_fault(event)).unwrap_or(0);
        record.health.remove(dropped);
        record.health_dropped += 1;
    }
    record.health.push(event);
}

/// Adds an event where the device has another health than the record's last event, which may be an earlier agent's. An
/// unknown health differs from none. Returns whether it was added.
pub fn add_health_difference(record: &mut AllocationRecord, health: &DeviceHealth) -> bool {
    let last = record.health.last();
    let was_healthy = last.is_none_or(|last| last.healthy);
    let is_unknown = health.reason() == Some(UnhealthyReason::Unknown);
    if is_unknown || health.healthy == was_healthy {
        return false;
    }
    let event = match (health.causes.first(), last) {
        (Some(cause), _) => (cause.reason.into_str().into(), Arc::clone(&cause.detail)),
        (None, last) => last.map(|last| (Arc::clone(&last.reason), Arc::clone(&last.detail))).unwrap_or_default(),
    };
    let (at, healthy, (reason, detail)) = (health.since.unix.0, health.healthy, event);
    add_health_event(record, HealthEvent { at, healthy, reason, detail });
    true
}

/// Whether, by settled allocations, the container no longer holds this device. Without hardware data, only a pod or
/// container that is not listed counts. `key`: the record's.
pub fn has_ended(record: &AllocationRecord, key: &HoldingKey, snapshot: &Snapshot, holders: &HoldersByKey<'_>) -> bool {
    let kubelet = &snapshot.kubelet;
    let Some(allocations) = kubelet.allocations.as_ref().filter(|_| kubelet.settled) else { return false };
    let Some(listed) = allocations.container(&key.container) else { return true };
    if listed.devices.is_empty() && listed.claims.is_empty() {
        return true;
    }
    if let Some([holder, ..]) = holders.get(key).map(Vec::as_slice) {
        // The holder did not continue this record: another pod holds the device, or its UID is not known yet.
        return record.pod_uid.is_none() || pod_uid(snapshot, holder).is_some();
    }
    let Some(known) = snapshot.hardware.inventory.gpus.get(&key.gpu).filter(|gpu| gpu.present) else { return false };
    let is_there = key.mig.is_none() || known.mig_devices.iter().any(|device| Some(&device.uuid) == key.mig.as_ref());
    // Where device IDs can be joined, none of the container's devices is this one.
    !is_there || kubelet.allocatable.is_some() || snapshot.at.monotonic >= JOINED
}
