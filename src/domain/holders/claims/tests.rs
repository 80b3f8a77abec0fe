use super::*;
use crate::domain::holders::test_data::{A, B, M1};
use crate::domain::model::{ClaimHardware, ClaimRecord, Gpu, MigDevice, PciBusId};
use crate::test_data;

/// A: minor 1. B: minor 0, with a MIG device of profile 19 at 4, instance 7/0.
fn inventory() -> Inventory {
    let gpu = |uuid: &str, minor: u32, mig_devices| Gpu {
        minor: Some(minor),
        pci_bus_id: Some(PciBusId::new(format!("0000:1{minor}:00.0"))),
        mig_devices,
        ..Gpu::listed(uuid.into(), minor)
    };
    let partition = MigDevice { profile_id: Some(19), placement_start: Some(4), ..test_data::mig(M1, 7, "1g.10gb", 1) };
    test_data::inventory([gpu(A, 1, vec![]), gpu(B, 0, vec![partition])])
}

fn claim(driver: &str, device: &str, hardware: &[(ClaimSource, ClaimHardware)]) -> ClaimDevice {
    let record = ClaimRecord { hardware: hardware.iter().cloned().collect(), ..ClaimRecord::default() };
    ClaimDevice { record, ..test_data::claim(driver, device) }
}

fn check(device: &str, hardware: &[(ClaimSource, ClaimHardware)], expected: &str) {
    check_of("gpu.nvidia.com", device, hardware, expected);
}

fn check_of(driver: &str, device: &str, hardware: &[(ClaimSource, ClaimHardware)], expected: &str) {
    let found = match resolve_claim(&claim(driver, device, hardware), &inventory()) {
        Ok((targets, source)) => {
            let name = |target: &DeviceRef| {
                target.mig.as_ref().map_or(target.gpu.as_str(), |mig| mig.as_str())[..5].to_owned()
            };
            format!("{} by {}", targets.iter().map(name).collect::<Vec<_>>().join(" "), source.into_str())
        }
        Err(form) => form.to_owned(),
    };
    assert_eq!(found, expected, "{device} {hardware:?}");
}

#[test]
fn files_take_precedence_over_the_name() {
    use ClaimHardware::{Instance, Mig, Minor, Pci};
    use ClaimSource::{Cdi, Checkpoint, Metadata};
    let gpu = |uuid: &str| ClaimHardware::Gpu(uuid.into());
    check("gpu-1", &[], "GPU-a by device_name");
    check("gpu-1", &[(Checkpoint, gpu(B))], "GPU-b by checkpoint");
    check("gpu-1", &[(Metadata, gpu(A)), (Checkpoint, gpu(A))], "GPU-a by metadata");
    check("gpu-1", &[(Metadata, Pci("0000:10:00.0".into()))], "GPU-b by metadata");
    check("gpu-1", &[(Cdi, Minor(0))], "GPU-b by cdi");
    check("gpu-1", &[(Checkpoint, gpu(A)), (Cdi, Minor(0))], "GPU-a by checkpoint");
    check("gpu-0-mig-1g10gb-19-4", &[], "MIG-1 by device_name");
    check("gpu-0-mig-1g10gb-19-0", &[(Checkpoint, Mig(M1.into()))], "MIG-1 by checkpoint");
    let instance = |compute_instance| Instance { minor: 0, gpu_instance: 7, compute_instance };
    check("gpu-0-mig-1g10gb-19-0", &[(Cdi, instance(0))], "MIG-1 by cdi");
    check("gpu-0-mig-1g10gb-19-0", &[(Cdi, instance(1))], "dra_mig");
    check("gpu-vfio-3", &[(Metadata, Pci("0000:99:00.0".into()))], "dra_other");
    check_of("gpu.example.com", "card-7", &[], "dra_other");
    check_of("gpu.example.com", "card-7", &[(Metadata, gpu(B))], "GPU-b by metadata");
}

#[test]
fn hardware_that_is_named_and_not_listed_is_not_looked_for_by_node_or_name() {
    use ClaimSource::{Cdi, Checkpoint, Metadata};
    let new = ClaimHardware::Mig("MIG-99999999-0000-0000-0000-000000000000".into());
    let instance = ClaimHardware::Instance { minor: 0, gpu_instance: 7, compute_instance: 0 };
    check("gpu-0-mig-1g10gb-19-4", &[(Checkpoint, new), (Cdi, instance)], "dra_mig");
    let gone = ClaimHardware::Gpu("GPU-99999999-0000-0000-0000-000000000000".into());
    check("gpu-1", &[(Metadata, gone.clone())], "dra_gpu");
    check("gpu-1", &[(Metadata, gone), (Cdi, ClaimHardware::Minor(1))], "dra_gpu");
}

#[test]
fn two_sources_that_name_different_hardware_name_none() {
    use ClaimSource::{Checkpoint, Metadata};
    let gpu = |uuid: &str| ClaimHardware::Gpu(uuid.into());
    let gone = "GPU-99999999-0000-0000-0000-000000000000";
    for [metadata, checkpoint] in [[A, B], [gone, B], [A, gone]] {
        check("gpu-1", &[(Metadata, gpu(metadata)), (Checkpoint, gpu(checkpoint))], "dra_contradiction");
    }
}

#[test]
fn claims_divide_a_device_by_what_all_of_them_consume() {
    let weights = |consumed: &[&[(&str, u64)]]| -> Vec<f64> {
        let consumed = consumed.iter().enumerate().map(|(claim, of)| (claim, of.iter().copied().collect()));
        super::claim_weights(&consumed.collect::<BTreeMap<usize, _>>()).into_values().collect()
    };
    assert_eq!(weights(&[&[], &[]]), [1.0, 1.0]);
    assert_eq!(weights(&[&[("memory", 30)], &[("memory", 10)]]), [1.5, 0.5]);
    assert_eq!(weights(&[&[("memory", 30)], &[]]), [1.0, 1.0], "of one it is not known");
    assert_eq!(weights(&[&[("shares", 1), ("memory", 0)], &[("shares", 3), ("memory", 0)]]), [0.5, 1.5]);
    assert_eq!(weights(&[&[("memory", 0)], &[("memory", 0)]]), [1.0, 1.0], "nothing of it is consumed");
}
