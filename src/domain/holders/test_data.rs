//! What the tests of several parts build: GPUs, and containers that hold them.

use crate::domain::model::{Container, Gpu, Inventory, MigDevice};
use crate::test_data;

pub const A: &str = "GPU-aaaaaaaa-0000-0000-0000-000000000000";
pub const B: &str = "GPU-bbbbbbbb-0000-0000-0000-000000000000";
pub const M1: &str = "MIG-11111111-0000-0000-0000-000000000000";
pub const M2: &str = "MIG-22222222-0000-0000-0000-000000000000";

/// A: whole, index 0, minor 1. B: partitioned, index 1, minor 0, two MIG devices.
pub fn inventory() -> Inventory {
    let gpu = |uuid: &str, index, minor, mig_devices: Vec<MigDevice>| Gpu {
        minor: Some(minor),
        model: Some("NVIDIA H100 80GB HBM3".into()),
        mig_enabled: Some(!mig_devices.is_empty()),
        mig_devices,
        mig_slices: Some(7),
        ..Gpu::listed(uuid.into(), index)
    };
    let mig = |uuid, gpu_instance, profile, profile_id, placement_start, slices| MigDevice {
        profile_id: Some(profile_id),
        placement_start: Some(placement_start),
        ..test_data::mig(uuid, gpu_instance, profile, slices)
    };
    let partitions = vec![mig(M1, 7, "1g.10gb", 19, 4, 1), mig(M2, 2, "3g.40gb", 9, 0, 3)];
    test_data::inventory([gpu(A, 0, 1, vec![]), gpu(B, 1, 0, partitions)])
}

pub fn container(name: &str, devices: &[(&str, &str)], claims: &[(&str, &str)]) -> Container {
    let claims = claims.iter().map(|(driver, device)| test_data::claim(driver, device)).collect();
    Container { claims, ..test_data::container(test_data::main_of(name), devices) }
}
