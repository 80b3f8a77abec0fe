//! The check before a container starts, from the last published readings: no call waits for the driver.
//!
//! In: the configured checks, the offer, the last readings. Out: whether the container may start. Does not use: the pod.

use super::container_response::{AllocationRefusal, usable_device};
use crate::domain::model::{DeviceId, DeviceProcess, HardwareState, Medium, MemoryUse};
use crate::plugin::config::PreStartCheck;
use crate::plugin::offer::{Offer, OfferedDevice, OfferedHardware};
use crate::plugin::status::CallResult;

pub fn check(
    rules: &PreStartCheck,
    offer: &Offer,
    hardware: &HardwareState,
    ids: &[DeviceId],
) -> Result<(), AllocationRefusal> {
    for id in ids {
        let device = usable_device(offer, id)?;
        if rules.no_processes
            && !device.is_slot()
            && let Some(pid) = processes(device, hardware).next()
        {
            let message = format!(
                "device {id} is used by process {pid}, and preStartCheck.noProcesses allows none: a container that ended has \
                 left it behind, or it was started outside Kubernetes"
            );
            return Err(AllocationRefusal { result: CallResult::ProcessesLeft, message });
        }
        let required = rules.minimum_free_memory.map_or(0, |bytes| bytes.0);
        // An unknown amount rejects no container.
        let Some(MemoryUse { free, .. }) = memory(device, hardware) else { continue };
        if free < required {
            let message = format!(
                "device {id} has {free} bytes of memory free, and preStartCheck.minimumFreeMemory requires {required}: \
                 something else still uses it"
            );
            return Err(AllocationRefusal { result: CallResult::MemoryInUse, message });
        }
    }
    Ok(())
}

fn medium<'h>(device: &OfferedDevice, hardware: &'h HardwareState) -> Option<&'h Medium> {
    Some(&hardware.readings.get(device.hardware.gpu()?)?.medium.as_ref()?.value)
}

/// The processes on the GPU, or on the MIG device; none where the driver does not report them.
fn processes(device: &OfferedDevice, hardware: &HardwareState) -> impl Iterator<Item = u32> {
    let instance = match device.hardware {
        OfferedHardware::Mig { gpu_instance, compute_instance, .. } => {
            Some((Some(gpu_instance), Some(compute_instance)))
        }
        _ => None,
    };
    let of_gpu = medium(device, hardware).and_then(|medium| medium.processes.as_ref()).into_iter().flatten();
    let is_on_device = move |process: &&DeviceProcess| {
        instance.is_none_or(|instance| instance == (process.gpu_instance, process.compute_instance))
    };
    of_gpu.filter(is_on_device).map(|process| process.pid)
}

fn memory(device: &OfferedDevice, hardware: &HardwareState) -> Option<MemoryUse> {
    let medium = medium(device, hardware)?;
    match device.hardware {
        OfferedHardware::Mig { gpu_instance, .. } => {
            medium.instances.iter().find(|instance| instance.gpu_instance == gpu_instance)?.memory
        }
        _ => medium.memory,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::model::UnhealthyReason;
    use crate::input::Size;
    use crate::plugin::offer::PluginUnhealthy;
    use crate::plugin::test_data::{offered_gpu, offered_mig};
    use crate::test_data::medium_readings;

    #[test]
    fn a_device_in_use_an_unhealthy_one_and_an_unknown_one_are_refused_with_the_reason() {
        let device = |id: &str, health| OfferedDevice { health, ..OfferedDevice::new(id, offered_gpu(id, 0)) };
        let devices = vec![
            device("GPU-a", Ok(())),
            device("GPU-b", Err(PluginUnhealthy::device(UnhealthyReason::Lost, "lost"))),
            device("GPU-c", Ok(())),
        ];
        let offer = Offer { resource: "nvidia.com/gpu".into(), devices };
        let memory = MemoryUse { used: 90, free: 10, reserved: None, total: 100 };
        let readings = medium_readings(Medium { memory: Some(memory), ..Medium::default() });
        let mut hardware = HardwareState::default();
        hardware.readings.insert("GPU-a".into(), Arc::new(readings));
        let result = |id: &str, wanted| {
            let rules = PreStartCheck { minimum_free_memory: Some(Size(wanted)), no_processes: false };
            check(&rules, &offer, &hardware, &[id.into()]).map_err(|refusal| refusal.result.into_str())
        };
        assert_eq!(result("GPU-a", 10), Ok(()));
        assert_eq!(result("GPU-a", 11), Err("memory_in_use"));
        assert_eq!(result("GPU-b", 0), Err("unhealthy"));
        assert_eq!(result("GPU-c", 11), Ok(()), "its free memory is unknown");
        assert_eq!(result("GPU-d", 0), Err("unknown_device"));
    }

    #[test]
    fn what_is_left_on_a_device_keeps_it_from_the_next() {
        let device = |id: &str, hardware| OfferedDevice::new(id, hardware);
        let devices = vec![
            device("GPU-a", offered_gpu("GPU-a", 0)),
            device("GPU-a::0", offered_gpu("GPU-a", 0)),
            device("GPU-b", offered_gpu("GPU-b", 1)),
            device("MIG-1", offered_mig("MIG-1", "GPU-a", 1)),
            device("MIG-2", offered_mig("MIG-2", "GPU-a", 2)),
        ];
        let offer = Offer { resource: "nvidia.com/gpu".into(), devices };
        let left = DeviceProcess { pid: 7, gpu_instance: Some(2), compute_instance: Some(0), memory_bytes: None };
        let readings = medium_readings(Medium { processes: Some(vec![left]), ..Medium::default() });
        let mut hardware = HardwareState::default();
        hardware.readings.insert("GPU-a".into(), Arc::new(readings));
        let result = |no_processes, id: &str| {
            let rules = PreStartCheck { minimum_free_memory: None, no_processes };
            check(&rules, &offer, &hardware, &[id.into()])
        };
        let refusal = result(true, "GPU-a").unwrap_err();
        assert_eq!(refusal.result.into_str(), "processes_left");
        assert!(refusal.to_string().contains("process 7"), "{refusal}");
        assert!(result(true, "MIG-2").is_err());
        for id in ["GPU-a::0", "MIG-1", "GPU-b"] {
            assert_eq!(result(true, id), Ok(()), "{id}");
        }
        assert_eq!(result(false, "GPU-a"), Ok(()));
    }
}
