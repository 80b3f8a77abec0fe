//! The values of `/metrics/dcgm`, in base units, by the source that a row of the table names.

use serde::Deserialize;

use super::page::{DcgmPage, GpuInstance, Own, Values, utilization};
use crate::domain::health::xid_name;
use crate::domain::model::{EccLocation, Medium, RecentCount, Slow, UnhealthyReason, XidCounts, parts_of_device};
use crate::serve::metrics::device_interconnect::FABRIC_STATES;
use crate::serve::metrics::labels::{Labels, medium};

/// Where the values of a metric come from.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueSource {
    /// podmeter's series that the row's query selects.
    Podmeter,
    Utilization,
    MemoryUtilization,
    Engine(&'static str),
    GraphicsEngineActive,
    SmActive,
    SmOccupancy,
    DramActive,
    Pipe(&'static str),
    PipeCycles(&'static str),
    MemoryUsed,
    MemoryFree,
    MemoryReserved,
    MemoryTotal,
    Energy,
    PowerLimitRequested,
    PolicyViolation(&'static str),
    ClockEventMask,
    LastXid,
    EccCorrected,
    EccUncorrected,
    VgpuLicensed,
    PcieTransmitRate,
    PcieReceiveRate,
    NvlinkRate,
    /// The rate of link 0.
    Nvlink0Rate,
    /// The driver's sum over the links.
    NvlinkErrorSum(&'static str),
    /// podmeter's sum over links up to NVLink 4.
    Nvlink4Errors(&'static str),
    /// podmeter's sum over links from NVLink 5 on.
    Nvlink5Errors(&'static str),
    FabricHealthMask,
    FabricHealthSummary,
    FabricState,
    /// The clock events of the last five minutes.
    ClockEventsRecent,
    ClockEventStarts,
    XidsRecent,
    Xids,
    Health,
}

/// The names of clock events in podmeter and in dcgm-exporter, in the order of NVML's bits.
const CLOCK_EVENTS: [(&str, &str); 9] = [
    ("idle", "gpu_idle"),
    ("applications_clocks_setting", "clocks_setting"),
    ("sw_power_cap", "power_cap"),
    ("hw_slowdown", "hw_slowdown"),
    ("sync_boost", "sync_boost"),
    ("sw_thermal_slowdown", "sw_thermal"),
    ("hw_thermal_slowdown", "hw_thermal"),
    ("hw_power_brake_slowdown", "hw_power_brake"),
    ("display_clock_setting", "display_clocks"),
];

/// The names of DCGM's health watches for which podmeter's health has reasons. As in DCGM, `ALL` has what none of the
/// others covers; it is not their sum.
const WATCHES: [&str; 4] = ["NVLINK", "MEM", "DRIVER", "ALL"];
const FAILED: f64 = 20.0;

/// The device's value for each holder whose memory in use is known, so that a query may divide one by the other.
const BESIDE_USED: Own = |_, account, of_device| account.memory_used_bytes.and(of_device);

impl ValueSource {
    /// Adds the samples of a row with this query of podmeter's metrics.
    pub fn fill(self, page: &DcgmPage<'_>, values: &mut Values, query: Option<&str>) {
        match self {
            Self::Podmeter => page.selected(values, query.expect("a test checks the table")),
            Self::Utilization => {
                let own: Own = |snapshot, account, _| parts_of_device(&snapshot.hardware.inventory, account).busy;
                page.each(values, Some(own), &utilization);
            }
            Self::MemoryUtilization => page.medium(values, &|medium| medium.rates.memory_utilization_ratio),
            Self::Engine(engine) => {
                page.medium(values, &|medium| medium.rates.engine_utilization_ratios.get(engine).copied());
            }
            Self::GraphicsEngineActive => page.parts(values, None, &|_, gpm| gpm.graphics_engine_active),
            Self::SmActive => page.parts(values, None, &|_, gpm| gpm.sm_active),
            Self::SmOccupancy => page.parts(values, None, &|_, gpm| gpm.sm_occupancy),
            Self::DramActive => page.parts(values, None, &|_, gpm| gpm.dram_active),
            Self::Pipe(pipe) => page.parts(values, None, &|_, gpm| gpm.pipes.get(pipe).copied()),
            Self::PipeCycles(pipe) => page.medium(values, &|medium| medium.pipe_cycles.get(pipe).copied()),
            Self::MemoryUsed => {
                let own: Own = |_, account, _| Some(account.memory_used_bytes? as f64);
                page.parts(values, Some(own), &|memory, _| Some(memory?.used as f64));
                page.without_memory(values, own);
            }
            Self::MemoryFree => page.parts(values, Some(BESIDE_USED), &|memory, _| Some(memory?.free as f64)),
            Self::MemoryReserved => page.parts(values, Some(BESIDE_USED), &|memory, _| Some(memory?.reserved? as f64)),
            Self::MemoryTotal => page.parts(values, Some(BESIDE_USED), &|memory, _| Some(memory?.total as f64)),
            Self::Energy => page.each(values, None, &|_, _, readings| readings.totals.energy_joules),
            Self::PowerLimitRequested => page.medium(values, &|medium| medium.power_limit_requested_watts),
            Self::PolicyViolation(policy) => {
                page.medium(values, &|medium| medium.policy_violation_seconds.get(policy).copied());
            }
            Self::ClockEventMask => page.medium(values, &clock_event_mask),
            Self::LastXid => last_xid(page, values),
            Self::EccCorrected => page.slow(values, &|slow| ecc(slow, |location| location.corrected)),
            Self::EccUncorrected => page.slow(values, &|slow| ecc(slow, |location| location.uncorrected)),
            Self::VgpuLicensed => page.slow(values, &|slow| Some(u8::from(slow.vgpu_licensed?).into())),
            Self::PcieTransmitRate => page.medium(values, &|medium| medium.rates.traffic.pcie_transmitted),
            Self::PcieReceiveRate => page.medium(values, &|medium| medium.rates.traffic.pcie_received),
            Self::NvlinkRate => page.medium(values, &nvlink_rate),
            Self::Nvlink0Rate => page.medium(values, &|medium| medium.rates.link0_bytes_per_second),
            Self::NvlinkErrorSum(error) => {
                page.slow(values, &|slow| Some(*slow.nvlink.error_sums.get(error)? as f64));
            }
            Self::Nvlink4Errors(error) => page.slow(values, &|slow| link_errors(slow, "crc", error)),
            Self::Nvlink5Errors(error) => page.slow(values, &|slow| link_errors(slow, "recovery_failed", error)),
            Self::FabricHealthMask => page.slow(values, &|slow| Some(slow.fabric.as_ref()?.health_mask?.into())),
            Self::FabricHealthSummary => page.slow(values, &|slow| Some(slow.fabric.as_ref()?.health_summary?.into())),
            Self::FabricState => page.slow(values, &fabric_state),
            Self::ClockEventsRecent => clock_events_recent(page, values),
            Self::ClockEventStarts => clock_event_starts(page, values),
            Self::XidsRecent => xids_recent(page, values),
            Self::Xids => xids(page, values),
            Self::Health => health(page, values),
        }
    }
}

fn clock_event_mask(medium: &Medium) -> Option<f64> {
    let events = &medium.clock_events;
    let bits = (0u32..).zip(CLOCK_EVENTS).filter(|(_, (reason, _))| events.get(reason) == Some(&true));
    (!events.is_empty()).then(|| bits.map(|(bit, _)| f64::from(1u32 << bit)).sum())
}

fn nvlink_rate(medium: &Medium) -> Option<f64> {
    let traffic = medium.rates.traffic;
    Some(traffic.nvlink_transmitted? + traffic.nvlink_received?)
}

fn fabric_state(slow: &Slow) -> Option<f64> {
    let state = slow.fabric.as_ref()?.state;
    FABRIC_STATES.iter().position(|name| *name == state).map(|number| number as f64)
}

/// The sum over all locations; absent where none has the count.
fn ecc(slow: &Slow, count: fn(&EccLocation) -> Option<u64>) -> Option<f64> {
    slow.ecc.iter().filter_map(count).reduce(|sum, count| sum + count).map(|sum| sum as f64)
}

/// The sum of an error over the links; absent without `kind`, an error that only links of this NVLink generation count.
fn link_errors(slow: &Slow, kind: &str, error: &str) -> Option<f64> {
    let errors = &slow.nvlink.errors;
    errors.contains_key(kind).then(|| errors.get(error)).flatten().map(|count| *count as f64)
}

fn last_xid(page: &DcgmPage<'_>, values: &mut Values) {
    for (device, instance, xids) in with_xids(page) {
        let last = xids.concerning(instance).max_by_key(|(_, _, at)| *at);
        let code = last.map_or(0, |(code, _, _)| code);
        // "No Error" and "Unknown Error" are dcgm-exporter's texts.
        let message = if code == 0 { "No Error" } else { xid_name(code).unwrap_or("Unknown Error") };
        page.push(values, device, Labels::new("err_code", code).and("err_msg", message), code.into());
    }
}

fn with_xids<'a>(page: &DcgmPage<'a>) -> impl Iterator<Item = (usize, GpuInstance, &'a XidCounts)> {
    let health = &page.snapshot.health;
    page.devices().filter_map(|(device, gpu, instance)| Some((device, instance, &health.gpus.get(&gpu.uuid)?.xids)))
}

fn clock_events_recent(page: &DcgmPage<'_>, values: &mut Values) {
    for (device, _, _, readings) in page.with_readings() {
        let samples = medium(readings).map(|medium| &medium.clock_event_samples);
        let Some(samples) = samples.filter(|samples| !samples.is_empty()) else { continue };
        let named = CLOCK_EVENTS.iter().filter_map(|(reason, event)| Some((*event, *samples.get(reason)?)));
        let active: Vec<_> = named.filter(|(_, count)| *count > 0).collect();
        if active.is_empty() {
            page.push(values, device, window(), 0.0);
        }
        for (event, count) in active {
            page.push(values, device, Labels::new("clock_event", event).and_all(&window()), count as f64);
        }
    }
}

fn clock_event_starts(page: &DcgmPage<'_>, values: &mut Values) {
    for (device, _, _, readings) in page.with_readings() {
        let Some(starts) = medium(readings).map(|medium| &medium.clock_event_starts) else { continue };
        for (reason, event) in CLOCK_EVENTS {
            if let Some(count) = starts.get(reason) {
                page.push(values, device, Labels::new("clock_event", event), *count as f64);
            }
        }
    }
}

fn xids_recent(page: &DcgmPage<'_>, values: &mut Values) {
    let now = page.snapshot.at.monotonic;
    for (device, instance, xids) in with_xids(page) {
        let counts = xids.concerning(instance).map(|(code, xid, _)| (code, xid.recent.at(now)));
        let recent: Vec<_> = counts.filter(|(_, count)| *count > 0).collect();
        if recent.is_empty() {
            page.push(values, device, window(), 0.0);
        }
        for (code, count) in recent {
            page.push(values, device, window().and("xid", code), count as f64);
        }
    }
}

fn xids(page: &DcgmPage<'_>, values: &mut Values) {
    for (device, instance, xids) in with_xids(page) {
        for (code, xid, _) in xids.concerning(instance) {
            page.push(values, device, Labels::new("xid", code), xid.count as f64);
        }
    }
}

fn health(page: &DcgmPage<'_>, values: &mut Values) {
    for (device, gpu, instance) in page.devices() {
        let Some(health) = page.snapshot.health.gpus.get(&gpu.uuid) else { continue };
        let is_here = |mig| instance.is_none() || gpu.mig_device(mig).map(|mig| mig.gpu_instance) == instance;
        let parts = health.mig_devices.iter().filter(|(mig, _)| is_here(mig)).map(|(_, health)| health);
        let causes = std::iter::once(&health.whole).chain(parts).flat_map(|part| &part.causes);
        let causes: Vec<_> = causes.map(|cause| watch_and_code(cause.reason)).collect();
        for watch in WATCHES {
            let code = causes.iter().find(|(failed, _)| *failed == watch).map(|(_, code)| *code);
            let labels = Labels::new("health_watch", watch).and("health_error_code", code.unwrap_or("DCGM_FR_OK"));
            page.push(values, device, labels, if code.is_some() { FAILED } else { 0.0 });
        }
    }
}

/// The label of a count's window.
fn window() -> Labels {
    Labels::new("window_size_in_ms", RecentCount::WINDOW.as_millis().to_string())
}

/// DCGM's health watch and error code.
const fn watch_and_code(reason: UnhealthyReason) -> (&'static str, &'static str) {
    match reason {
        UnhealthyReason::Xid => ("ALL", "DCGM_FR_XID_ERROR"),
        UnhealthyReason::Lost => ("ALL", "DCGM_FR_FALLEN_OFF_BUS"),
        UnhealthyReason::RowRemapFailed => ("MEM", "DCGM_FR_ROW_REMAP_FAILURE"),
        UnhealthyReason::Ecc => ("MEM", "DCGM_FR_VOLATILE_DBE_DETECTED"),
        UnhealthyReason::Fabric => ("NVLINK", "DCGM_FR_FABRIC_PROBE_STATE"),
        UnhealthyReason::Stuck => ("DRIVER", "DCGM_FR_NVML_API"),
        UnhealthyReason::RecoveryAction | UnhealthyReason::Admin | UnhealthyReason::Unknown => {
            ("ALL", "DCGM_FR_UNKNOWN")
        }
    }
}
