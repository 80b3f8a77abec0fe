//! The drawbacks of a free GPU, and its rank among others.

use std::collections::BTreeMap;

use crate::domain::holders::HeldHardware;
use crate::domain::model::{DeviceReadings, GpuUuid};

/// Clock events that mean throttling.
const THROTTLING: [&str; 4] = ["hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown"];
/// The memory in use that indicates a process: a driver without processes uses less.
const DRIVER_MEMORY: u64 = 256 << 20;

/// The present drawbacks of a GPU. The default is a GPU without readings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuDrawbacks {
    /// Whether memory rows or banks wait for a reset to be remapped, which interrupts every process on the GPU.
    pub row_remap_pending: bool,
    pub throttled: bool,
    /// Whether processes or memory use the GPU although no container holds it: they are left from a container that
    /// ended, or of a process outside Kubernetes.
    pub use_without_allocation: bool,
    /// The present use as a ratio, 0 to 1; `None`: unknown.
    pub load: Option<f64>,
}

impl GpuDrawbacks {
    /// The drawbacks by the readings. `held`: `None` while the allocations are unknown. `by_mps`: whether one process
    /// may be the server of MPS, without a client.
    pub fn new(gpu: &GpuUuid, readings: &DeviceReadings, held: Option<&HeldHardware>, by_mps: bool) -> Self {
        let fast = readings.fast.as_ref().map(|fast| &fast.value);
        let medium = readings.medium.as_ref().map(|medium| &medium.value);
        let active = |event: &&str| medium.is_some_and(|medium| medium.clock_events.get(*event) == Some(&true));
        let remap_pending = readings.slow.as_ref().and_then(|slow| slow.value.remap_pending());
        let has_processes = medium
            .and_then(|medium| medium.processes.as_ref())
            .is_some_and(|processes| processes.len() > usize::from(by_mps));
        // Where reserved memory is not reported, `used` includes it.
        let memory = medium.and_then(|medium| medium.memory.as_ref());
        let uses_memory = memory.is_some_and(|memory| memory.reserved.is_some() && memory.used > DRIVER_MEMORY);
        Self {
            row_remap_pending: remap_pending == Some(true),
            throttled: THROTTLING.iter().any(active),
            use_without_allocation: held.is_some_and(|held| !held.contains(gpu)) && (has_processes || uses_memory),
            load: fast.and_then(|fast| fast.utilization_ratio),
        }
    }

    /// Why pods get the GPU last.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self { use_without_allocation: true, .. } => Some("it is in use although no container holds it"),
            Self { row_remap_pending: true, .. } => Some("memory rows wait for a reset of the GPU"),
            Self { throttled: true, .. } => Some("its clocks are throttled"),
            _ => None,
        }
    }
}

/// The rank of a GPU in the choice: the least is chosen first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub avoided: Avoided,
    /// The load in thousandths. Unknown counts as full: absent is not zero.
    pub load: u32,
}

/// The drawbacks of a GPU as an order: the least is chosen first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Avoided {
    Not,
    Impaired,
    InUse,
}

impl Avoided {
    pub(super) const ALL: [Self; 3] = [Self::Not, Self::Impaired, Self::InUse];
}

const FULL: u32 = 1000;

impl Rank {
    pub(super) fn new(gpu: &GpuUuid, drawbacks: &BTreeMap<GpuUuid, GpuDrawbacks>) -> Self {
        let drawbacks = drawbacks.get(gpu).copied().unwrap_or_default();
        let load = match drawbacks.load {
            Some(ratio) if ratio.is_finite() => (ratio.clamp(0.0, 1.0) * f64::from(FULL)).round() as u32,
            _ => FULL,
        };
        let avoided = match drawbacks {
            GpuDrawbacks { use_without_allocation: true, .. } => Avoided::InUse,
            GpuDrawbacks { row_remap_pending: true, .. } | GpuDrawbacks { throttled: true, .. } => Avoided::Impaired,
            _ => Avoided::Not,
        };
        Self { avoided, load }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::{DeviceProcess, Inventory, Medium, MemoryUse};

    #[test]
    fn a_gpu_without_holders_is_in_use_through_processes_or_memory() {
        let process = DeviceProcess { pid: 1, gpu_instance: None, compute_instance: None, memory_bytes: None };
        let memory = |used, reserved| Some(MemoryUse { used, free: 0, reserved, total: 80 << 30 });
        let nobody = HeldHardware::new([], &Inventory::default());
        for (what, processes, memory, held, by_mps, expected) in [
            ("a process", vec![process], None, Some(&nobody), false, true),
            ("an unknown holder", vec![process], None, None, false, false),
            ("the MPS server", vec![process], None, Some(&nobody), true, false),
            ("a client", vec![process; 2], None, Some(&nobody), true, true),
            ("memory", vec![], memory(1 << 30, Some(0)), Some(&nobody), false, true),
            ("memory of the driver", vec![], memory(4 << 20, Some(0)), Some(&nobody), false, false),
            ("memory with what is reserved", vec![], memory(1 << 30, None), Some(&nobody), false, false),
        ] {
            let medium = Medium { processes: Some(processes), memory, ..Medium::default() };
            let readings = crate::test_data::medium_readings(medium);
            let drawbacks = GpuDrawbacks::new(&"GPU-a".into(), &readings, held, by_mps);
            assert_eq!(drawbacks.use_without_allocation, expected, "{what}");
        }
    }
}
