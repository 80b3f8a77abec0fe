//! Simulated GPUs, for `--hardware simulated` and the demo.
//!
//! In: a profile, a seed, and loads set by [`SimulatedDriver`]. Out: the same readings as from a driver, with exact
//! integrals of the load. Does not use: pods, or what sets the loads.

mod curve;
mod driver;
mod machine;
mod profile;
mod reader;

pub use curve::Load;
pub use driver::SimulatedDriver;
pub use profile::SimulatedProfile;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::{DeviceProcess, GpuUuid, Monotonic};
    use crate::hardware::Tier::{Fast, Medium, Slow};
    use crate::hardware::{Driver, GpuReader};
    use crate::test_data::at_second as at;

    fn first(driver: &SimulatedDriver) -> (GpuUuid, Box<dyn GpuReader>) {
        let session = driver.clone().open().unwrap();
        let (inventory, _) = session.inventory().unwrap();
        let gpu = inventory.gpus.values().find(|gpu| gpu.index == Some(0)).unwrap().uuid.clone();
        let reader = session.reader(&gpu).unwrap();
        (gpu, reader)
    }

    #[test]
    fn busy_seconds_and_energy_are_the_integral_of_the_load() {
        let driver = SimulatedDriver::new(SimulatedProfile::H100, 1);
        let (gpu, mut reader) = first(&driver);
        let full = [Fast, Medium, Slow].into();
        assert_eq!(reader.read(&full, at(0)).integrals.busy_seconds, Some(0.0));
        driver.set_load(&gpu, None, Monotonic::from_secs(4), Load::new(1.0, 1 << 30));
        let pass = reader.read(&full, at(10));
        assert_eq!(pass.integrals.busy_seconds, Some(6.0));
        let expected = 70.0 * 10.0 + 630.0 * 0.95 * 6.0;
        assert_eq!(pass.energy_counter, Some((expected * 1e3) as u64));
        let medium = pass.medium.unwrap();
        assert!((medium.gpm.graphics_engine_active.unwrap() - 0.6).abs() < 1e-9);
        let memory = medium.memory.unwrap();
        assert_eq!(memory.used, 1 << 30);
        assert_eq!(memory.used + memory.free + memory.reserved.unwrap(), memory.total);
    }

    #[test]
    fn a_partitioned_gpu_has_no_utilization_and_instances_have_gpm() {
        let driver = SimulatedDriver::new(SimulatedProfile::H100_MIG, 1);
        let (gpu, mut reader) = first(&driver);
        driver.set_load(
            &gpu,
            Some(8),
            Monotonic::from_secs(0),
            Load { utilization: 1.0, sm_active: 0.5, memory_used: 7 },
        );
        let due = [Fast, Medium].into();
        reader.read(&due, at(0));
        let pass = reader.read(&due, at(10));
        let fast = pass.fast.unwrap();
        assert_eq!((pass.integrals.busy_seconds, fast.utilization_ratio), (None, None));
        assert_eq!((fast.instance_utilization_ratios[&7], fast.instance_utilization_ratios[&8]), (0.0, 1.0));
        assert_eq!(pass.integrals.instance_busy_seconds.unwrap()[..2], [(7, 0.0), (8, 10.0)]);
        let instances = pass.medium.unwrap().instances;
        assert_eq!(instances.len(), 7);
        assert_eq!((instances[0].gpm.sm_active, instances[1].gpm.sm_active), (Some(0.0), Some(0.5)));
        assert_eq!(instances[1].memory.unwrap().used, 7);
    }

    #[test]
    fn the_use_of_processes_adds_up_to_that_of_the_gpu() {
        let driver = SimulatedDriver::new(SimulatedProfile::H100_TIME_SLICED, 1);
        let (gpu, mut reader) = first(&driver);
        let load = |at, pid, utilization| {
            driver.set_process_load(&gpu, None, pid, Monotonic::from_secs(at), Load::new(utilization, 1 << 30));
        };
        driver.set_load(&gpu, None, Monotonic::default(), Load::new(0.75, 2 << 30));
        load(0, 10, 0.5);
        load(0, 11, 0.25);
        let due = [Fast, Medium].into();
        reader.read(&due, at(0));
        driver.end_process(&gpu, 10, Monotonic::from_secs(2));
        driver.set_load(&gpu, None, Monotonic::from_secs(2), Load::new(0.25, 1 << 30));
        let pass = reader.read(&due, at(4));
        assert_eq!(pass.integrals.busy_seconds, Some(2.0));
        assert_eq!(pass.integrals.process_sm_seconds, Some(vec![(10, 1.0), (11, 1.0)]));
        let there = DeviceProcess { pid: 11, gpu_instance: None, compute_instance: None, memory_bytes: Some(1 << 30) };
        assert_eq!(pass.medium.unwrap().processes, Some(vec![there]));
        assert_eq!(reader.read(&due, at(5)).integrals.process_sm_seconds, Some(vec![(11, 0.25)]));
    }

    #[test]
    fn both_gpus_of_a_superchip_read_its_energy_which_is_theirs_and_that_of_the_cpu() {
        let driver = SimulatedDriver::new(SimulatedProfile::GB200, 1);
        let session = driver.clone().open().unwrap();
        let mut gpus: Vec<_> = session.inventory().unwrap().0.gpus.into_values().collect();
        gpus.sort_by_key(|gpu| gpu.index);
        let mut readers: Vec<_> = gpus.iter().map(|gpu| session.reader(&gpu.uuid).unwrap()).collect();
        let due = [Fast, Slow].into();
        for reader in &mut readers {
            reader.read(&due, at(0));
        }
        driver.set_load(&gpus[1].uuid, None, Monotonic::from_secs(2), Load::new(1.0, 0));
        let passes: Vec<_> = readers.iter_mut().map(|reader| reader.read(&due, at(10))).collect();
        let own: Vec<f64> = passes.iter().map(|pass| pass.energy_counter.unwrap() as f64 / 1e3).collect();
        assert_eq!(own, [1_600.0, 1_600.0 + 988.0 * 8.0, 1_600.0, 1_600.0]);
        let module: Vec<f64> = passes.iter().map(|pass| pass.integrals.module_energy_joules.unwrap()).collect();
        let (busy, idle) = (own[0] + own[1] + 1_300.0, own[2] + own[3] + 1_300.0);
        assert_eq!(module, [busy, busy, idle, idle]);
        let watts: Vec<_> = passes.iter().map(|pass| pass.fast.as_ref().unwrap().module_power_watts).collect();
        assert_eq!(watts, [1_438.0, 1_438.0, 450.0, 450.0].map(Some));
        let fabric = passes[0].slow.as_ref().unwrap().fabric.as_ref().unwrap();
        assert!(fabric.domain.is_some() && fabric.conditions.len() == 4, "{fabric:?}");
    }
}
