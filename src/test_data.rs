//! One builder for each type that many tests build. The integration tests include this file too.
#![allow(dead_code, reason = "each test binary uses a part")]

use super::domain::attribution::OwnedProcess;
use super::domain::model::{
    ClaimDevice, ClaimRecord, Container, ContainerRef, CpuSet, DeviceId, HeldDevice, Holding, MigDevice, Owner, Pod,
    SharingForm,
};

pub fn uuid(number: usize) -> String {
    format!("GPU-00000000-0000-0000-0000-{number:012}")
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
