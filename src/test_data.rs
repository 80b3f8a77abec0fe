//! One builder for each type that many tests build. The integration tests include this file too.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use super::domain::attribution::{DeviceProcesses, Ledger, LedgerOutput, Observation, OwnedProcess, Retention};
use super::domain::holders::{HoldingKey, Holdings};
use super::domain::model::{
    Allocatable, Allocations, ClaimDevice, ClaimRecord, Container, ContainerRef, CpuSet, DeviceHealth, DeviceId,
    DeviceReadings, DeviceTotals, Fast, Gpu, GpuHealth, GpuUuid, HealthCause, HeldDevice, Holding, Inventory,
    KubeletState, Medium, MigDevice, Moment, Monotonic, Owner, Pod, PodIdentity, PodRef, SharingForm, Stamped,
    UnhealthyReason, UnixSeconds, XidCounts, XidEvent,
};

pub fn at_second(second: u64) -> Moment {
    at_millisecond(1000 * second)
}

/// Of an agent that started at the Unix time 1700000000.
pub fn at_millisecond(millisecond: u64) -> Moment {
    let unix = UnixSeconds(1.7e9 + millisecond as f64 / 1000.0);
    Moment { monotonic: Monotonic::from_millis(millisecond), unix }
}

pub fn uuid(number: impl Display) -> String {
    format!("GPU-00000000-0000-0000-0000-{number:012}")
}

pub fn mig_uuid(number: u32) -> String {
    format!("MIG-00000000-0000-0000-0000-{number:012}")
}

/// The GPUs that a driver has listed once.
pub fn inventory(gpus: impl IntoIterator<Item = Gpu>) -> Inventory {
    let gpus = gpus.into_iter().map(|gpu| (gpu.uuid.clone(), gpu)).collect();
    Inventory { generation: 1, gpus, ..Inventory::default() }
}

/// One application XID.
pub fn xid(at: Moment, gpu: &str, code: u32) -> XidEvent {
    XidEvent { at, gpu: gpu.into(), instance: None, code, count: 1 }
}

/// The only compute instance of a GPU instance.
pub fn mig(uuid: &str, gpu_instance: u32, profile: &str, slices: u32) -> MigDevice {
    MigDevice {
        uuid: uuid.into(),
        index: gpu_instance - 1,
        gpu_instance,
        compute_instance: 0,
        profile: profile.into(),
        profile_id: None,
        placement_start: None,
        slices,
        memory_bytes: None,
    }
}

pub fn held(resource: &str, id: &str) -> HeldDevice {
    HeldDevice { resource: resource.into(), id: id.into(), numa_nodes: [].into() }
}

/// The container `main` of a pod of namespace `team`.
pub fn main_of(pod: &str) -> ContainerRef {
    ContainerRef::new("team", pod, "main")
}

/// A container with these devices: resource and ID.
pub fn container(reference: ContainerRef, devices: &[(&str, &str)]) -> Container {
    let devices = devices.iter().map(|(resource, id)| held(resource, id)).collect();
    Container { reference, devices, claims: vec![], exclusive_cpus: CpuSet::default(), memory: vec![] }
}

/// A pod with this container only, and its UID.
pub fn pod(container: Container) -> Pod {
    let (reference, uid) = (container.reference.pod_ref(), container.reference.pod_uid.clone());
    Pod { uid, reference, containers: vec![container], exclusive_cpus: CpuSet::default(), memory: vec![] }
}

/// A pod of namespace `team` whose container `main` has these devices: resource and ID.
pub fn holder(name: &str, devices: &[(&str, &str)]) -> Pod {
    pod(container(main_of(name), devices))
}

/// A pod of namespace `team`, as the Pods API has it.
pub fn identity(name: &str, uid: &str) -> PodIdentity {
    PodIdentity { pod: PodRef::new("team", name), uid: uid.into(), ..PodIdentity::default() }
}

pub fn allocations(pods: impl IntoIterator<Item = Pod>) -> Allocations {
    Allocations { pods: pods.into_iter().collect() }
}

pub fn allocatable(resource: &str, ids: &[&str]) -> Allocatable {
    let ids = ids.iter().map(|id| DeviceId::from(*id)).collect();
    Allocatable { devices: [(resource.into(), ids)].into(), ..Allocatable::default() }
}

/// The kubelet lists these pods.
pub fn kubelet(pods: impl IntoIterator<Item = Pod>) -> KubeletState {
    KubeletState { allocations: Some(Arc::new(allocations(pods))), ..KubeletState::default() }
}

/// The kubelet offers these devices of one resource.
pub fn offering_kubelet(resource: &str, ids: &[&str]) -> KubeletState {
    KubeletState { allocatable: Some(Arc::new(allocatable(resource, ids))), ..KubeletState::default() }
}

pub fn claim(driver: &str, device: &str) -> ClaimDevice {
    ClaimDevice {
        claim_namespace: "team".into(),
        claim: "claim".into(),
        driver: driver.into(),
        pool: "node".into(),
        device: DeviceId::of_claim(driver, device),
        share_id: None,
        claim_uid: None,
        record: ClaimRecord::default(),
    }
}

/// The container `main` of a pod of namespace `team` holds a whole GPU, or a slot of it.
pub fn key(pod: &str, gpu: &str) -> HoldingKey {
    HoldingKey { container: main_of(pod), gpu: gpu.into(), mig: None }
}

/// Each of the pods of namespace `team` holds this fraction of the GPU.
pub fn holdings(pods: &[&str], gpu: &str, sharing: SharingForm, fraction: f64) -> Holdings {
    let by_key = pods.iter().map(|pod| (key(pod, gpu), holding(gpu, sharing, fraction))).collect();
    Holdings { by_key, ..Holdings::default() }
}

pub fn holding(device: &str, sharing: SharingForm, fraction: f64) -> Holding {
    Holding {
        resource: Some("nvidia.com/gpu".into()),
        device_ids: vec![device.into()],
        sharing,
        attribution: None,
        fraction: Some(fraction),
        weight: 1.0,
    }
}

/// It runs, on a GPU that is not partitioned.
pub fn process(pid: u32, owner: Owner, sm_seconds: f64) -> OwnedProcess {
    OwnedProcess { pid, owner, running: true, memory_bytes: None, gpu_instance: None, sm_seconds }
}

/// A GPU that has been busy so much, at so many watts, for so many seconds.
pub fn busy_readings(at: Monotonic, seconds: f64, ratio: f64, watts: f64, medium: Medium) -> DeviceReadings {
    DeviceReadings {
        totals: DeviceTotals {
            complete_until: at,
            busy_seconds: Some(ratio * seconds),
            energy_joules: Some(watts * seconds),
            ..DeviceTotals::default()
        },
        fast: Some(Stamped {
            at,
            value: Fast { utilization_ratio: Some(ratio), power_watts: Some(watts), ..Fast::default() },
        }),
        medium: Some(Stamped { at, value: medium }),
        ..DeviceReadings::default()
    }
}

/// A GPU of which only this has been read.
pub fn medium_readings(value: Medium) -> DeviceReadings {
    DeviceReadings { medium: Some(Stamped { at: Monotonic::default(), value }), ..DeviceReadings::default() }
}

/// Healthy without a cause. It has been checked.
pub fn device_health(since: Moment, cause: Option<(UnhealthyReason, &str)>) -> DeviceHealth {
    let clears: Arc<str> = "recovers after a reset".into();
    let cause = cause.map(|(reason, detail)| HealthCause { reason, detail: detail.into(), clears });
    DeviceHealth { healthy: cause.is_none(), known: true, since, causes: cause.into_iter().collect() }
}

/// Without MIG devices and XIDs.
pub fn gpu_health(whole: DeviceHealth) -> GpuHealth {
    GpuHealth { whole, mig_devices: BTreeMap::new(), xids: XidCounts::default() }
}

/// The processes of one GPU, all with SM time.
pub fn processes(processes: impl IntoIterator<Item = OwnedProcess>) -> DeviceProcesses {
    DeviceProcesses { has_sm_seconds: true, processes: processes.into_iter().collect() }
}

/// A ledger, and what it is given of a node.
pub struct LedgerNode {
    pub ledger: Ledger,
    pub holdings: Holdings,
    pub inventory: Inventory,
    pub readings: BTreeMap<GpuUuid, Arc<DeviceReadings>>,
    pub processes: BTreeMap<GpuUuid, DeviceProcesses>,
    pub retention: Retention,
}

impl LedgerNode {
    pub fn new(inventory: Inventory, readings_late: Duration) -> Self {
        Self {
            ledger: Ledger::new(readings_late),
            holdings: Holdings::default(),
            inventory,
            readings: BTreeMap::new(),
            processes: BTreeMap::new(),
            retention: Retention { time: Duration::from_secs(300), scrapes: 0 },
        }
    }

    pub fn advance(&mut self, now: Moment) -> LedgerOutput {
        self.ledger.advance(&Observation {
            now,
            holdings: &self.holdings,
            inventory: &self.inventory,
            readings: &self.readings,
            processes: &self.processes,
            retention: self.retention,
        })
    }
}
