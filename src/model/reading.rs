use std::collections::BTreeMap;

use serde::Serialize;

use super::{MigUuid, Monotonic};

/// A value and when it was read. The publisher drops what has grown stale.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stamped<T> {
    pub at: Monotonic,
    pub value: T,
}

/// What one GPU says. Absent is never zero: an unsupported, failed or stale value is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DeviceReadings {
    pub totals: Totals,
    pub fast: Option<Stamped<Fast>>,
    pub medium: Option<Stamped<Medium>>,
    pub slow: Option<Stamped<Slow>>,
    /// A call on this GPU has not come back within the watchdog's limit.
    pub stuck: bool,
    /// The driver says the GPU is lost or refuses it.
    pub lost: bool,
    /// It is lost in that the driver does not list it.
    pub unlisted: bool,
    /// How often it is known to have begun anew, by a reset or with the driver: its own counter of energy fell.
    pub resets: u64,
    /// Since when a pass has been under way.
    pub asked: Option<Monotonic>,
}

/// Integrals since the agent first saw the GPU. They never fall, whatever the driver's own counters do.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// The time up to which the integrals are complete.
    pub through: Monotonic,
    pub busy_seconds: Option<f64>,
    pub memory_busy_seconds: Option<f64>,
    /// encoder, decoder, jpeg, ofa
    pub engine_busy_seconds: BTreeMap<&'static str, f64>,
    pub energy_joules: Option<f64>,
    /// Of a partitioned GPU: seconds in which a kernel ran, by GPU instance (of its SMs where that is all that is told).
    /// Those that the last pass told of; one that comes back begins at 0. Empty on a whole GPU.
    #[serde(skip)]
    pub instance_busy_seconds: BTreeMap<u32, f64>,
    /// Time that no sample covers: the gaps, and time in a session for which the driver gives neither samples nor a rate.
    pub uncovered_seconds: f64,
    #[serde(skip)]
    pub gaps: Gaps,
    /// By pid: how much each process has worked the SMs. `None` while the driver has not said, as on a partitioned GPU,
    /// which never does; a process that is not named has not worked of late.
    ///
    /// These are weights, to be compared with each other, and no part of the device's busy seconds: processes run at the
    /// same time, and the driver rounds to percent and leaves out what is little. A consumer keeps the map of its last
    /// interval; what a process did since is `now.sm_seconds` less the kept `sm_seconds` where `began` is the same, else
    /// all of it. A process goes from the map a minute after its last work, and earlier, the longest idle first, where
    /// there are more than a thousand; if it works again it begins anew, with another `began`. A pid may by then be
    /// another process: whoever joins it with a container compares the process's start with `began`.
    #[serde(skip)]
    pub process_sm_seconds: Option<BTreeMap<u32, ProcessSmSeconds>>,
}

/// Time between two passes that are not of the same session: the driver was released or reloaded, the GPU was lost, a call
/// hung, or the reader was replaced. Sums since the agent first saw the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gaps {
    /// Part of `Totals::uncovered_seconds`.
    pub seconds: f64,
    /// Part of `Totals::energy_joules`: of those gaps that the driver's energy counter spans.
    pub energy_joules: f64,
    /// When the last one ended: the first pass of the present session.
    pub until: Monotonic,
}

/// The work of one process on one GPU since `began`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessSmSeconds {
    /// When its counting began, at zero.
    pub began: Monotonic,
    /// Share of the SMs' time, 0 to 1, integrated over time. Never falls.
    pub sm_seconds: f64,
    /// The pass that last saw it work.
    pub last_active: Monotonic,
}

/// Read every second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Fast {
    pub utilization_ratio: Option<f64>,
    pub power_watts: Option<f64>,
}

/// Read every ten seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Medium {
    pub memory: Option<MemoryUse>,
    pub gpu_temperature_celsius: Option<f64>,
    pub memory_temperature_celsius: Option<f64>,
    /// Degrees below the slowdown limit.
    pub temperature_margin_celsius: Option<f64>,
    pub power_limit_watts: Option<f64>,
    pub clocks: Clocks,
    /// Seconds by reason, since driver load, made monotonic.
    pub throttled_seconds: BTreeMap<&'static str, f64>,
    /// State set: every known reason, true when active. Empty when the driver does not say.
    pub clock_events: BTreeMap<&'static str, bool>,
    pub performance_state: Option<u32>,
    /// By fan number.
    pub fan_speed_ratios: Vec<f64>,
    pub gpm: GpmRatios,
    pub rates: Rates,
    /// GPM 248 and 249.
    pub sm_cycles: Option<f64>,
    pub sm_active_cycles: Option<f64>,
    /// Physical GPU only, while it is partitioned.
    pub instances: Vec<InstanceReading>,
    /// Who has a context on the GPU, working or not, by pid. Empty: nobody. `None`: the driver does not say.
    #[serde(skip)]
    pub processes: Option<Vec<DeviceProcess>>,
    /// The driver's name of the call that lists how much each process works; `none` where a busy GPU has no process in
    /// either of the two calls. `None` while that is not known.
    pub process_utilization_source: Option<&'static str>,
}

/// What the device does now, where the totals say what it has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Share of the time in which memory was read or written, 0 to 1, as of the driver's last sample.
    pub memory_utilization_ratio: Option<f64>,
    /// encoder, decoder, jpeg, ofa: 0 to 1, as of the driver's last sample.
    pub engine_utilization_ratios: BTreeMap<&'static str, f64>,
    pub traffic: Traffic,
}

/// Bytes a second, over the time since the last medium pass (GPM), or since the last slow one (counters).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Traffic {
    pub pcie_transmitted: Option<f64>,
    pub pcie_received: Option<f64>,
    /// All links.
    pub nvlink_transmitted: Option<f64>,
    pub nvlink_received: Option<f64>,
}

impl Traffic {
    /// What this does not say, as `other` says it.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            pcie_transmitted: self.pcie_transmitted.or(other.pcie_transmitted),
            pcie_received: self.pcie_received.or(other.pcie_received),
            nvlink_transmitted: self.nvlink_transmitted.or(other.nvlink_transmitted),
            nvlink_received: self.nvlink_received.or(other.nvlink_received),
        }
    }
}

/// A process with a compute, graphics or MPS context on a GPU; on a partitioned GPU once for each MIG device it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceProcess {
    /// As the driver numbers it: the host's where this process is in the host's pid namespace, perhaps another's where
    /// it is not.
    pub pid: u32,
    /// `None` outside MIG.
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
    /// Device memory in use. The sum over processes is less than what the device says is used: contexts and the driver
    /// take theirs. `None`: the driver does not say.
    pub memory_bytes: Option<u64>,
}

/// GPM ratios, 0 to 1, over the time since the last medium pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GpmRatios {
    pub graphics_engine_active: Option<f64>,
    pub sm_active: Option<f64>,
    pub sm_occupancy: Option<f64>,
    pub dram_active: Option<f64>,
    /// tensor, hmma, imma, dfma, fp64, fp32, fp16, int
    pub pipes: BTreeMap<&'static str, f64>,
}

/// One GPU instance of a partitioned GPU; its memory is shared by its compute instances.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InstanceReading {
    pub gpu_instance: u32,
    /// The MIG devices inside it.
    pub members: Vec<MigUuid>,
    pub memory: Option<MemoryUse>,
    pub gpm: GpmRatios,
}

/// used + free + reserved = total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryUse {
    pub used: u64,
    pub free: u64,
    pub reserved: Option<u64>,
    pub total: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Clocks {
    pub sm_hertz: Option<f64>,
    pub memory_hertz: Option<f64>,
    pub graphics_hertz: Option<f64>,
    pub video_hertz: Option<f64>,
}

/// Read every minute.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Slow {
    pub ecc: Vec<EccLocation>,
    /// Board lifetime: (corrected, uncorrected).
    pub ecc_lifetime_corrected: Option<u64>,
    pub ecc_lifetime_uncorrected: Option<u64>,
    pub row_remap: Option<RowRemap>,
    /// Banks by availability: max, high, partial, low, none.
    pub row_remap_banks: BTreeMap<&'static str, u64>,
    /// Pages by cause: single_bit, double_bit.
    pub retired_pages: BTreeMap<&'static str, u64>,
    pub retired_pages_pending: Option<bool>,
    pub pcie: Pcie,
    pub nvlink: NvLink,
    pub fabric: Option<FabricState>,
    /// NVML field 230, as the driver numbers it.
    pub recovery_action: Option<u32>,
}

/// Volatile ECC counts of one location, since driver load, made monotonic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EccLocation {
    pub location: &'static str,
    pub corrected: Option<u64>,
    pub uncorrected: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowRemap {
    pub correctable: u64,
    pub uncorrectable: u64,
    pub pending: bool,
    pub failed: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Pcie {
    pub replays: Option<u64>,
    pub errors: BTreeMap<&'static str, u64>,
    pub transmitted_bytes: Option<f64>,
    pub received_bytes: Option<f64>,
    pub link_generation: Option<u32>,
    pub link_generation_max: Option<u32>,
    pub link_width_lanes: Option<u32>,
    pub link_width_lanes_max: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NvLink {
    pub transmitted_bytes: Option<f64>,
    pub received_bytes: Option<f64>,
    pub errors: BTreeMap<&'static str, u64>,
    pub active_links: Option<u32>,
    pub inactive_links: Option<u32>,
    /// By link, where the driver has counters of each. The sums above follow from them: a link that goes down takes its
    /// counters away, and what it has counted stays in the sums.
    #[serde(skip)]
    pub of_links: BTreeMap<u32, LinkCounters>,
}

impl NvLink {
    /// Sets the sums from the counters of the links. A sum is absent unless there is a link and each has its part.
    pub fn sum_links<'a>(&mut self, links: impl Iterator<Item = &'a LinkCounters> + Clone) {
        let has_links = links.clone().next().is_some();
        let sum =
            |read: fn(&LinkCounters) -> Option<f64>| links.clone().map(read).sum::<Option<f64>>().filter(|_| has_links);
        self.transmitted_bytes = sum(|link| link.transmitted_bytes);
        self.received_bytes = sum(|link| link.received_bytes);
        self.errors.clear();
        for (error, count) in links.flat_map(|link| &link.errors) {
            *self.errors.entry(error).or_default() += count;
        }
    }
}

/// What one NVLink has counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkCounters {
    pub transmitted_bytes: Option<f64>,
    pub received_bytes: Option<f64>,
    pub errors: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FabricState {
    /// not_supported, not_started, in_progress, completed, failed
    pub state: &'static str,
    /// Only the conditions that the driver supports.
    pub conditions: BTreeMap<&'static str, bool>,
}
