//! GPU performance monitoring (GPM): metrics as means between two samples.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t};

use super::calls::{Blank, Caller, call, fetch, value};
use super::codes;
use super::inventory::Mig;
use super::library::{DeviceHandle, Library};
use super::rows::{self, ReadingRow, ReadingSource, row};
use crate::domain::model::{GpmRatios, Medium, Monotonic};
use crate::hardware::plausible::{self, Work};

/// The time between two samples: the driver's documented minimum, and a maximum beyond which a mean is of little use.
const WINDOW: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(600);

const MEBIBYTE: f64 = 1_048_576.0;
/// The metrics of every driver with GPM, in percent or MiB a second.
const METRICS: &[ReadingRow<Medium>] = &[
    row!(gpm.graphics_engine_active = field 1: GPM / 100.0),
    row!(gpm.sm_active = field 2: GPM / 100.0),
    row!(gpm.sm_occupancy = field 3: GPM / 100.0),
    row!(gpm.dram_active = field 10: GPM / 100.0),
    row!(gpm.pipes["int"] = field 4: GPM / 100.0),
    row!(gpm.pipes["tensor"] = field 5: GPM / 100.0),
    row!(gpm.pipes["dfma"] = field 6: GPM / 100.0),
    row!(gpm.pipes["hmma"] = field 7: GPM / 100.0),
    row!(gpm.pipes["imma"] = field 9: GPM / 100.0),
    row!(gpm.pipes["fp64"] = field 11: GPM / 100.0),
    row!(gpm.pipes["fp32"] = field 12: GPM / 100.0),
    row!(gpm.pipes["fp16"] = field 13: GPM / 100.0),
    row!(rates.traffic.pcie_transmitted = field 20: TRAFFIC * MEBIBYTE),
    row!(rates.traffic.pcie_received = field 21: TRAFFIC * MEBIBYTE),
    row!(rates.traffic.nvlink_received = field 60: TRAFFIC * MEBIBYTE),
    row!(rates.traffic.nvlink_transmitted = field 61: TRAFFIC * MEBIBYTE),
];
/// The metrics of new drivers: cycles since reboot, and C2C traffic, which a driver without the cycles may lack too.
const NEW_METRICS: &[ReadingRow<Medium>] = &[
    row!(sm_cycles = field 248: CYCLES),
    row!(sm_active_cycles = field 249: CYCLES),
    row!(rates.traffic.c2c_transmitted = field 100: TRAFFIC * MEBIBYTE),
    row!(rates.traffic.c2c_received = field 101: TRAFFIC * MEBIBYTE),
    row!(pipe_cycles["tensor"] = field 250: CYCLES),
    row!(pipe_cycles["dmma"] = field 251: CYCLES),
    row!(pipe_cycles["hmma"] = field 252: CYCLES),
    row!(pipe_cycles["imma"] = field 253: CYCLES),
    row!(pipe_cycles["dfma"] = field 254: CYCLES),
    row!(pipe_cycles["int"] = field 257: CYCLES),
    row!(pipe_cycles["fp64"] = field 258: CYCLES),
    row!(pipe_cycles["fp32"] = field 259: CYCLES),
    row!(pipe_cycles["fp16"] = field 260: CYCLES),
];

/// Pairs of samples of a GPU, or of its instances while it is partitioned; none where the device does not support GPM.
pub struct Gpm {
    pairs: BTreeMap<Option<u32>, SamplePair>,
    /// Whether the new metrics are read: not of instances, of which only the ratios are used, and not from a driver
    /// that has rejected the new IDs.
    reads_new_metrics: bool,
}

struct SamplePair {
    newest: GpmSample,
    at: Option<Monotonic>,
    /// The buffer of the next sample.
    spare: GpmSample,
}

/// Newer headers have more metrics under the same version number; the padding is for a driver that clears them all.
#[repr(C)]
struct GpmRequest {
    get: nvmlGpmMetricsGet_t,
    _padding: [u64; 2048],
}

impl Gpm {
    pub fn new(caller: &mut Caller, handle: DeviceHandle, migs: &[Mig]) -> Self {
        let wanted = nvmlGpmSupport_t { version: 1, isSupportedDevice: 0 };
        let support = fetch!(caller, wanted, nvmlGpmQueryDeviceSupport(handle.0));
        let mut gpm = Self { pairs: BTreeMap::new(), reads_new_metrics: migs.is_empty() };
        if support.is_ok_and(|support| support.isSupportedDevice != 0) {
            let instances = migs.iter().map(|mig| Some(mig.gpu_instance)).chain(migs.is_empty().then_some(None));
            let mut pair =
                || Some(SamplePair { newest: GpmSample::new(caller)?, at: None, spare: GpmSample::new(caller)? });
            gpm.pairs = instances.filter_map(|instance| Some((instance, pair()?))).collect();
        }
        gpm
    }

    /// The means since the last call for the same instance, and the driver's cycle counters; nothing at the first call.
    pub fn read(&mut self, caller: &mut Caller, handle: DeviceHandle, instance: Option<u32>, now: Monotonic) -> Medium {
        let Some(pair) = self.pairs.get_mut(&instance) else { return Medium::default() };
        let sample = pair.spare.memory;
        let taken = match instance {
            None => call!(caller, nvmlGpmSampleGet(handle.0, sample)),
            Some(instance) => call!(caller, nvmlGpmMigSampleGet[instance](handle.0, instance, sample)),
        };
        if taken.is_err() {
            pair.at = None;
            return Medium::default();
        }
        let window = pair.at.map(|at| now.since(at));
        std::mem::swap(&mut pair.newest, &mut pair.spare);
        pair.at = Some(now);
        if !window.is_some_and(|window| WINDOW.contains(&window)) {
            return Medium::default();
        }
        let (older, newer) = (pair.spare.memory, pair.newest.memory);
        let mut reading = read_metrics(caller, older, newer, self.reads_new_metrics);
        if reading.is_none() && self.reads_new_metrics && caller.is_refused("nvmlGpmMetricsGet", 1) {
            self.reads_new_metrics = false;
            reading = read_metrics(caller, older, newer, false);
        }
        reading.unwrap_or_default()
    }
}

/// The use of each GPU instance, for the fast tier; the medium tier has separate pairs of samples.
pub struct InstanceUse {
    gpm: Gpm,
    last: Option<Monotonic>,
    /// How busy each instance was up to the last call, 0 to 1.
    pub ratios: BTreeMap<u32, f64>,
    work: Work,
    /// Whether the last ratios were zeroes on a busy GPU.
    pub is_contradicted: bool,
}

impl InstanceUse {
    pub fn new(caller: &mut Caller, handle: DeviceHandle, migs: &[Mig]) -> Option<Self> {
        if migs.is_empty() {
            return None;
        }
        let gpm = Gpm::new(caller, handle, migs);
        let (ratios, work) = (BTreeMap::new(), Work::default());
        (!gpm.pairs.is_empty()).then_some(Self { gpm, last: None, ratios, work, is_contradicted: false })
    }

    /// The busy seconds since the last call, of the instances that have a value: of none where `power`, in watts with
    /// its limit, contradicts zeroes. `None`: it is too soon to read.
    pub fn advance(
        &mut self,
        caller: &mut Caller,
        handle: DeviceHandle,
        now: Monotonic,
        power: [Option<f64>; 2],
    ) -> Option<Vec<(u32, f64)>> {
        let elapsed = self.last.map(|last| now.since(last));
        if elapsed.is_some_and(|elapsed| elapsed < *WINDOW.start()) {
            return None;
        }
        self.last = Some(now);
        let instances: Vec<u32> = self.gpm.pairs.keys().copied().flatten().collect();
        let ratio = |instance| {
            let ratios = self.gpm.read(caller, handle, Some(instance), now).gpm;
            Some((instance, ratios.graphics_engine_active.or(ratios.sm_active)?))
        };
        self.ratios = instances.into_iter().filter_map(ratio).collect();
        // Without ratios, `is_contradicted` stays as it is.
        if !self.ratios.is_empty() {
            let [watts, limit] = power;
            self.is_contradicted = self.work.contradicts(self.ratios.values().copied(), watts, limit, now);
            if self.is_contradicted {
                self.ratios.clear();
                caller.count_implausible(&plausible::GPM);
            }
        }
        let seconds = elapsed.map_or(0.0, |elapsed| elapsed.as_secs_f64());
        Some(self.ratios.iter().map(|(instance, ratio)| (*instance, ratio * seconds)).collect())
    }
}

/// Whether there are ratios, and all are zero.
pub fn is_zero(ratios: &GpmRatios) -> bool {
    let GpmRatios { graphics_engine_active, sm_active, sm_occupancy, dram_active, pipes } = ratios;
    let single = [graphics_engine_active, sm_active, sm_occupancy, dram_active].into_iter().flatten();
    let mut ratios = single.chain(pipes.values()).peekable();
    ratios.peek().is_some() && ratios.all(|ratio| *ratio <= 0.0)
}

fn read_metrics(caller: &mut Caller, older: nvmlGpmSample_t, newer: nvmlGpmSample_t, with_new: bool) -> Option<Medium> {
    let rows = METRICS.iter().chain(NEW_METRICS.iter().filter(|_| with_new));
    let mut request = Box::new(GpmRequest { get: Blank::blank(), _padding: [0; 2048] });
    let get = &mut request.get;
    (get.version, get.sample1, get.sample2) = (1, older, newer);
    for (metric, field) in get.metrics.iter_mut().zip(rows.clone().filter_map(ReadingRow::field)) {
        (metric.metricId, metric.nvmlReturn) = (field.id, codes::NOT_SUPPORTED);
        get.numMetrics += 1;
    }
    // The call has separate variants with and without the new metrics: the driver may refuse one of them.
    call!(caller, nvmlGpmMetricsGet[u32::from(with_new)](&raw mut request.get)).ok()?;
    let values = request.get.metrics.iter().zip(rows.clone()).map(|(metric, row)| {
        let is_read = metric.nvmlReturn == codes::SUCCESS && metric.value.is_finite();
        row.field().filter(|_| is_read)?.convert(caller, metric.value)
    });
    let mut medium = Medium::default();
    rows::set(rows, values, &mut medium);
    let GpmRatios { graphics_engine_active, sm_active, sm_occupancy, dram_active, pipes } = &mut medium.gpm;
    let ratios = [graphics_engine_active, sm_active, sm_occupancy, dram_active].into_iter().flatten();
    ratios.chain(pipes.values_mut()).for_each(|ratio| *ratio = ratio.min(1.0));
    Some(medium)
}

/// The driver's memory for one sample; freed with it.
struct GpmSample {
    memory: nvmlGpmSample_t,
    library: Arc<Library>,
}

// SAFETY: the memory belongs to this value alone; the driver does not tie it to a thread.
unsafe impl Send for GpmSample {}

impl GpmSample {
    fn new(caller: &mut Caller) -> Option<Self> {
        let memory = value!(caller, nvmlGpmSampleAlloc())?;
        Some(Self { memory, library: Arc::clone(&caller.library) })
    }
}

impl Drop for GpmSample {
    fn drop(&mut self) {
        if let Ok(free) = self.library.nvml.lib().nvmlGpmSampleFree.as_ref() {
            // SAFETY: allocated by the same library, freed once, and no longer used.
            self.library.statistics.time("nvmlGpmSampleFree", || unsafe { free(self.memory) });
        }
    }
}
