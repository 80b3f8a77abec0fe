//! The readings of one GPU, by tier, and its totals.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{MigUuid, Monotonic, Slow};

/// A value with the time of its reading. Stale values are not published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stamped<T> {
    pub at: Monotonic,
    pub value: T,
}

/// The readings of one GPU. An unsupported, failed or stale value is `None`, never zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceReadings {
    pub totals: DeviceTotals,
    pub fast: Option<Stamped<Fast>>,
    pub medium: Option<Stamped<Medium>>,
    pub slow: Option<Stamped<Slow>>,
    /// The processes that were active, or had a context on the GPU, at some time in the last minute; with all that `medium` and the
    /// totals have.
    pub recent_pids: BTreeSet<u32>,
    /// Whether a call on this GPU has not returned within the watchdog's limit.
    pub stuck: bool,
    /// Whether the driver reports the GPU as lost, or returns an error for it.
    pub lost: bool,
    /// Whether it is lost because the driver does not list it.
    pub not_enumerated: bool,
    /// The last accepted value of the driver's energy counter, in millijoules. It falls when the GPU restarts, by a
    /// reset or with the driver.
    pub energy_counter: Option<u64>,
    /// The start of the pass under way.
    pub pass_began: Option<Monotonic>,
    /// Why this process cannot read the GPU.
    pub problem: Option<Arc<str>>,
}

impl DeviceReadings {
    /// When the GPU answered last.
    pub fn last_read(&self) -> Option<Monotonic> {
        let fast = self.fast.as_ref().map(|reading| reading.at);
        let medium = self.medium.as_ref().map(|reading| reading.at);
        let slow = self.slow.as_ref().map(|reading| reading.at);
        fast.max(medium).max(slow)
    }
}

/// Integrals since the agent first read the GPU. `hardware::gpu_state` makes them of passes, and `attribution::ledger` divides their
/// increases. What that relies on:
///
/// - **No total falls**, although the driver's counters may. One is absent until its first value, and may be absent again for some
///   time. Only the totals of a GPU instance and of a process restart at 0.
/// - **`complete_until`** is the time of the last pass of the fast tier, and no total has later use. Several passes may lie between
///   two published states.
/// - **Busy seconds** rise from pass to pass by no more than the time between that samples cover. Samples come up to two seconds late:
///   what they have beyond that time is in the next pass, also in one that ends a gap.
/// - **A gap** is the time between two passes of which the later is a reader's first, or the first after the readings were
///   withdrawn: the driver was released or reloaded, the GPU was lost, a call hung, or the MIG layout changed. The pass that ends it
///   has no use of it except energy. A pass that is only late ends no gap, and has the use of all its time; the ledger does not wait
///   for it, and counts time as a gap once readings are late.
/// - **The energy of a gap** is known where the driver's energy counter is the GPU's alone and did not restart. It is added to
///   `energy_joules` and `gaps.energy_joules` at once: with the pass that ends the gap, or with a later one where the counter could
///   not be read or had a wrong value until then. It then includes the energy since the gap. Energy that is not known is in no total.
/// - **Uncovered time** is that of gaps, and that for which the driver has neither samples nor a rate, on a GPU that has utilization.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceTotals {
    /// The time up to which the integrals are complete; 0 before the GPU's first pass.
    pub complete_until: Monotonic,
    pub busy_seconds: Option<f64>,
    pub memory_busy_seconds: Option<f64>,
    /// The busy seconds of `encoder`, `decoder`, `jpeg` and `ofa`.
    pub engine_busy_seconds: BTreeMap<&'static str, f64>,
    pub energy_joules: Option<f64>,
    /// The integral of the power of the whole module that the GPU is on, which all GPUs of the module report.
    pub module_energy_joules: Option<f64>,
    /// The seconds in which a kernel ran, by GPU instance of a partitioned GPU, or SM-seconds where only these are
    /// known. Only instances of the last pass; one that reappears restarts at 0. Empty on a whole GPU.
    pub instance_busy_seconds: BTreeMap<u32, f64>,
    pub uncovered_seconds: f64,
    pub gaps: ReadingGaps,
    /// The part of the SMs' time that each process used, 0 to 1, integrated over time, by PID. `None` while the driver has no
    /// values, as always on a partitioned GPU. A process that is absent was neither active nor listed for a minute.
    ///
    /// These are weights to compare with each other, not parts of the device's busy seconds: processes run at the same
    /// time, and the driver rounds to percent and leaves out small values. A process that works again after it was removed
    /// restarts at zero.
    pub process_sm_seconds: Option<BTreeMap<u32, f64>>,
}

impl DeviceTotals {
    /// The time of the last pass, `complete_until`; `None` before the GPU's first pass.
    pub fn last_pass(&self) -> Option<Monotonic> {
        Some(self.complete_until).filter(|complete_until| *complete_until > Monotonic::default())
    }
}

/// The gaps since the agent first read the GPU, as `DeviceTotals` describes them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReadingGaps {
    /// The length of the gaps, a part of `DeviceTotals::uncovered_seconds`.
    pub seconds: f64,
    /// The known energy of the gaps, a part of `DeviceTotals::energy_joules`.
    pub energy_joules: f64,
    /// The end of the last gap: the first pass after it.
    pub until: Monotonic,
}

/// The readings of the fast tier: every ten seconds, and every second while the GPU is watched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fast {
    /// The part of the last ten seconds read in which a kernel ran, 0 to 1. In a reader's pass, and in the first one
    /// after a gap, it is that of the driver's last sample; so is each utilization.
    pub utilization_ratio: Option<f64>,
    /// The utilization by GPU instance of a partitioned GPU; SM activity where only that is known.
    pub instance_utilization_ratios: BTreeMap<u32, f64>,
    pub power_watts: Option<f64>,
    /// The power of the whole module that the GPU is on, with its CPU and its other GPU, which reads the same.
    pub module_power_watts: Option<f64>,
}

/// The readings of the medium tier: every fifteen seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Medium {
    pub memory: Option<MemoryUse>,
    pub gpu_temperature_celsius: Option<f64>,
    pub memory_temperature_celsius: Option<f64>,
    /// The degrees below the slowdown limit.
    pub temperature_margin_celsius: Option<f64>,
    pub power_limit_watts: Option<f64>,
    /// The limit that an administrator set; a lower limit of another source may apply.
    pub power_limit_requested_watts: Option<f64>,
    pub clocks: Clocks,
    /// The throttled seconds by reason, since the driver was loaded, monotonic.
    pub throttled_seconds: BTreeMap<&'static str, f64>,
    /// The seconds of the driver's performance policies that `throttled_seconds` lacks: `thermal`, `board_limit`,
    /// `low_utilization`, `reliability`. For `/metrics/dcgm` only.
    pub policy_violation_seconds: BTreeMap<&'static str, f64>,
    /// Every reason that the driver has, true when active.
    pub clock_events: BTreeMap<&'static str, bool>,
    /// The number of readings of the last five minutes in which each reason was active.
    pub clock_event_samples: BTreeMap<&'static str, u64>,
    /// How often each reason became active between two readings since the agent started.
    pub clock_event_starts: BTreeMap<&'static str, u64>,
    pub performance_state: Option<u32>,
    /// The speed of each fan, by its number.
    pub fan_speed_ratios: Vec<f64>,
    pub gpm: GpmRatios,
    pub rates: Rates,
    /// The SM cycles, GPM 248; the next is GPM 249.
    pub sm_cycles: Option<f64>,
    pub sm_active_cycles: Option<f64>,
    /// The cumulative cycles of the pipes, GPM 250 to 254 and 257 to 260: tensor (any of its kinds), dmma, hmma, imma,
    /// dfma, int, fp64, fp32, fp16.
    pub pipe_cycles: BTreeMap<&'static str, f64>,
    /// The readings of the GPU instances of a partitioned GPU.
    pub instances: Vec<InstanceReading>,
    /// The processes with a context on the GPU, active or not, by PID. `None`: unknown.
    pub processes: Option<Vec<DeviceProcess>>,
    /// The NVML call that lists SM use by process; `none` where both calls list no process of a busy GPU. `None` while
    /// unknown.
    pub process_utilization_source: Option<Cow<'static, str>>,
    /// The mode: passthrough or vgpu, in a virtual machine; host_vgpu or host_vsga, on a host of virtual machines.
    /// `None` on bare metal.
    pub virtualization: Option<&'static str>,
}

/// Current rates of the device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// The part of the last ten seconds read in which memory was read or written, 0 to 1.
    pub memory_utilization_ratio: Option<f64>,
    /// The utilization of `encoder`, `decoder`, `jpeg` and `ofa` in the last ten seconds read, 0 to 1.
    pub engine_utilization_ratios: BTreeMap<&'static str, f64>,
    pub traffic: Traffic,
    /// The bytes of NVLink 0 alone, transmitted and received, over the time since the last slow pass.
    pub link0_bytes_per_second: Option<f64>,
}

/// The bytes a second over the time since the last medium pass (GPM), or since the last slow one (counters).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    pub pcie_transmitted: Option<f64>,
    pub pcie_received: Option<f64>,
    /// The bytes of all links.
    pub nvlink_transmitted: Option<f64>,
    pub nvlink_received: Option<f64>,
    /// The bytes to and from the CPU over NVLink-C2C, with protocol overhead.
    pub c2c_transmitted: Option<f64>,
    pub c2c_received: Option<f64>,
}

impl Traffic {
    /// Fills absent values from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            pcie_transmitted: self.pcie_transmitted.or(other.pcie_transmitted),
            pcie_received: self.pcie_received.or(other.pcie_received),
            nvlink_transmitted: self.nvlink_transmitted.or(other.nvlink_transmitted),
            nvlink_received: self.nvlink_received.or(other.nvlink_received),
            c2c_transmitted: self.c2c_transmitted.or(other.c2c_transmitted),
            c2c_received: self.c2c_received.or(other.c2c_received),
        }
    }
}

/// A process with a compute, graphics or MPS context on a GPU; on a partitioned GPU once for each MIG device it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceProcess {
    /// The driver's process ID: the host's if podmeter is in the host's PID namespace, else possibly another one.
    pub pid: u32,
    /// The GPU instance; `None` outside MIG.
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
    /// The device memory in use. The sum over processes is less than the device's used memory, which includes contexts
    /// and the driver. `None`: unknown.
    pub memory_bytes: Option<u64>,
}

/// GPM ratios, 0 to 1, over the time since the last medium pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpmRatios {
    pub graphics_engine_active: Option<f64>,
    pub sm_active: Option<f64>,
    pub sm_occupancy: Option<f64>,
    pub dram_active: Option<f64>,
    /// The activity of the pipes: tensor, hmma, imma, dfma, fp64, fp32, fp16, int.
    pub pipes: BTreeMap<&'static str, f64>,
}

/// One GPU instance of a partitioned GPU; its memory is shared by its compute instances.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceReading {
    pub gpu_instance: u32,
    /// The MIG devices inside it.
    pub members: Vec<MigUuid>,
    pub memory: Option<MemoryUse>,
    pub gpm: GpmRatios,
}

/// The use of memory: used + free + reserved = total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    pub used: u64,
    pub free: u64,
    pub reserved: Option<u64>,
    pub total: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clocks {
    pub sm_hertz: Option<f64>,
    pub memory_hertz: Option<f64>,
    pub graphics_hertz: Option<f64>,
    pub video_hertz: Option<f64>,
}
