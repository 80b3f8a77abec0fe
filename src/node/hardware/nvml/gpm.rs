//! GPU performance monitoring (GPM): metrics as means between two samples.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper_sys::bindings::{nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t};

use super::calls::{Caller, call};
use super::codes;
use super::inventory::Mig;
use super::library::{DeviceHandle, Library};
use crate::domain::model::{GpmRatios, Monotonic, Traffic};
use crate::node::hardware::plausible;

/// The driver's documented minimum, and a maximum beyond which a mean is of little use.
const WINDOW: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(600);

const GRAPHICS: u32 = 1;
const SM: u32 = 2;
const OCCUPANCY: u32 = 3;
const DRAM: u32 = 10;
/// In MiB a second; in every driver with GPM.
const PCIE_TRANSMITTED: u32 = 20;
const PCIE_RECEIVED: u32 = 21;
const NVLINK_RECEIVED: u32 = 60;
const NVLINK_TRANSMITTED: u32 = 61;
const TRAFFIC: [u32; 4] = [PCIE_TRANSMITTED, PCIE_RECEIVED, NVLINK_RECEIVED, NVLINK_TRANSMITTED];
/// In MiB a second; asked with the cycles, as a driver without them may not have these either.
const C2C_TRANSMITTED: u32 = 100;
const C2C_RECEIVED: u32 = 101;
const MEBIBYTE: f64 = 1_048_576.0;
const PIPES: [(u32, &str); 8] =
    [(4, "int"), (5, "tensor"), (6, "dfma"), (7, "hmma"), (9, "imma"), (11, "fp64"), (12, "fp32"), (13, "fp16")];
/// Cumulative since reboot, on new drivers.
const SM_CYCLES: u32 = 248;
const SM_ACTIVE_CYCLES: u32 = 249;
const PIPE_CYCLES: [(u32, &str); 9] = [
    (250, "tensor"),
    (251, "dmma"),
    (252, "hmma"),
    (253, "imma"),
    (254, "dfma"),
    (257, "int"),
    (258, "fp64"),
    (259, "fp32"),
    (260, "fp16"),
];

/// The metrics of one pair of samples.
#[derive(Default)]
pub struct GpmReading {
    pub ratios: GpmRatios,
    pub traffic: Traffic,
    pub sm_cycles: Option<f64>,
    pub sm_active_cycles: Option<f64>,
    pub pipe_cycles: BTreeMap<&'static str, f64>,
}

/// Pairs of samples of a GPU, or of its instances while it is partitioned.
pub struct Gpm {
    supported: bool,
    pairs: BTreeMap<Option<u32>, SamplePair>,
    /// The driver may reject the call because of ids unknown to it.
    reads_cycles: bool,
    request: Option<Box<GpmRequest>>,
}

struct SamplePair {
    previous: GpmSample,
    at: Option<Monotonic>,
    spare: GpmSample,
}

/// Newer headers have more metrics under the same version number; the spare space is for a driver that clears them all.
#[repr(C)]
struct GpmRequest {
    get: nvmlGpmMetricsGet_t,
    spare: [u64; 2048],
}

impl Gpm {
    pub fn new(caller: &mut Caller, handle: DeviceHandle, migs: &[Mig]) -> Self {
        let mut support = nvmlGpmSupport_t { version: 1, isSupportedDevice: 0 };
        let asked = call!(caller, nvmlGpmQueryDeviceSupport(handle.0, &raw mut support));
        let supported = asked.is_ok() && support.isSupportedDevice != 0;
        let mut gpm = Self { supported, pairs: BTreeMap::new(), reads_cycles: migs.is_empty(), request: None };
        if supported {
            let mut instances: Vec<_> = migs.iter().map(|mig| Some(mig.gpu_instance)).collect();
            if instances.is_empty() {
                instances.push(None);
            }
            for instance in instances {
                if let Some(pair) = SamplePair::new(caller) {
                    gpm.pairs.insert(instance, pair);
                }
            }
            // SAFETY: numbers and pointers only; all zeroes is a valid value.
            gpm.request = Some(Box::new(unsafe { std::mem::zeroed() }));
        }
        gpm
    }

    /// Means since the last call for the same instance; nothing at the first.
    pub fn read(
        &mut self,
        caller: &mut Caller,
        handle: DeviceHandle,
        instance: Option<u32>,
        now: Monotonic,
    ) -> GpmReading {
        if !self.supported {
            return GpmReading::default();
        }
        let Some((pair, request)) = self.pairs.get_mut(&instance).zip(self.request.as_mut()) else {
            return GpmReading::default();
        };
        let sample = pair.spare.memory;
        let taken = match instance {
            None => call!(caller, nvmlGpmSampleGet(handle.0, sample)),
            Some(instance) => call!(caller, nvmlGpmMigSampleGet[instance](handle.0, instance, sample)),
        };
        if taken.is_err() {
            pair.at = None;
            return GpmReading::default();
        }
        let window = pair.at.map(|at| now.since(at));
        std::mem::swap(&mut pair.previous, &mut pair.spare);
        pair.at = Some(now);
        if !window.is_some_and(|window| WINDOW.contains(&window)) {
            return GpmReading::default();
        }
        let (older, newer) = (pair.spare.memory, pair.previous.memory);
        let mut values = request.read_metrics(caller, older, newer, self.reads_cycles);
        if values.is_none() && self.reads_cycles && caller.is_unsupported("nvmlGpmMetricsGet", 1) {
            self.reads_cycles = false;
            values = request.read_metrics(caller, older, newer, false);
        }
        values.map(|values| reading(caller, &values)).unwrap_or_default()
    }
}

/// The use of each GPU instance, for the fast tier; the medium tier has its own pairs.
pub struct InstanceUse {
    gpm: Gpm,
    last: Option<Monotonic>,
    /// By instance, over the time of the last call.
    pub ratios: BTreeMap<u32, f64>,
}

impl InstanceUse {
    pub fn new(caller: &mut Caller, handle: DeviceHandle, migs: &[Mig]) -> Option<Self> {
        if migs.is_empty() {
            return None;
        }
        let gpm = Gpm::new(caller, handle, migs);
        gpm.supported.then_some(Self { gpm, last: None, ratios: BTreeMap::new() })
    }

    /// Busy seconds since the last call, of the instances that have a value. `None`: too soon to read.
    pub fn advance(&mut self, caller: &mut Caller, handle: DeviceHandle, now: Monotonic) -> Option<Vec<(u32, f64)>> {
        let elapsed = self.last.map(|last| now.since(last));
        if elapsed.is_some_and(|elapsed| elapsed < *WINDOW.start()) {
            return None;
        }
        self.last = Some(now);
        let instances: Vec<u32> = self.gpm.pairs.keys().copied().flatten().collect();
        let ratio = |instance| {
            let ratios = self.gpm.read(caller, handle, Some(instance), now).ratios;
            Some((instance, ratios.graphics_engine_active.or(ratios.sm_active)?))
        };
        self.ratios = instances.into_iter().filter_map(ratio).collect();
        let seconds = elapsed.map_or(0.0, |elapsed| elapsed.as_secs_f64());
        Some(self.ratios.iter().map(|(instance, ratio)| (*instance, ratio * seconds)).collect())
    }
}

impl GpmRequest {
    fn read_metrics(
        &mut self,
        caller: &mut Caller,
        older: nvmlGpmSample_t,
        newer: nvmlGpmSample_t,
        with_cycles: bool,
    ) -> Option<BTreeMap<u32, f64>> {
        let ids = [GRAPHICS, SM, OCCUPANCY, DRAM].into_iter().chain(PIPES.map(|(id, _)| id)).chain(TRAFFIC);
        let cycles = [SM_CYCLES, SM_ACTIVE_CYCLES, C2C_TRANSMITTED, C2C_RECEIVED]
            .into_iter()
            .chain(PIPE_CYCLES.map(|(id, _)| id));
        let cycles = cycles.filter(|_| with_cycles);
        let mut count = 0;
        for (metric, id) in self.get.metrics.iter_mut().zip(ids.chain(cycles)) {
            (metric.metricId, metric.nvmlReturn, metric.value) = (id, codes::NOT_SUPPORTED, 0.0);
            count += 1;
        }
        (self.get.version, self.get.numMetrics) = (1, count);
        (self.get.sample1, self.get.sample2) = (older, newer);
        // Separate variants with and without cycles: the driver may refuse one of them.
        call!(caller, nvmlGpmMetricsGet[u32::from(with_cycles)](&raw mut self.get)).ok()?;
        let answered =
            self.get.metrics.iter().take(count as usize).filter(|metric| metric.nvmlReturn == codes::SUCCESS);
        Some(answered.filter(|metric| metric.value.is_finite()).map(|metric| (metric.metricId, metric.value)).collect())
    }
}

fn reading(caller: &mut Caller, values: &BTreeMap<u32, f64>) -> GpmReading {
    let mut read = |id: u32, quantity, per: f64| caller.plausible(quantity, values.get(&id)? / per);
    let mut ratio = |id| Some(read(id, &plausible::GPM, 100.0)?.min(1.0));
    let ratios = GpmRatios {
        graphics_engine_active: ratio(GRAPHICS),
        sm_active: ratio(SM),
        sm_occupancy: ratio(OCCUPANCY),
        dram_active: ratio(DRAM),
        pipes: PIPES.into_iter().filter_map(|(id, pipe)| Some((pipe, ratio(id)?))).collect(),
    };
    let mut rate = |id| read(id, &plausible::TRAFFIC, 1.0 / MEBIBYTE);
    let traffic = Traffic {
        pcie_transmitted: rate(PCIE_TRANSMITTED),
        pcie_received: rate(PCIE_RECEIVED),
        nvlink_transmitted: rate(NVLINK_TRANSMITTED),
        nvlink_received: rate(NVLINK_RECEIVED),
        c2c_transmitted: rate(C2C_TRANSMITTED),
        c2c_received: rate(C2C_RECEIVED),
    };
    let mut cycles = |id| read(id, &plausible::CYCLES, 1.0);
    let (sm_cycles, sm_active_cycles) = (cycles(SM_CYCLES), cycles(SM_ACTIVE_CYCLES));
    let pipe_cycles = PIPE_CYCLES.into_iter().filter_map(|(id, pipe)| Some((pipe, cycles(id)?))).collect();
    GpmReading { ratios, traffic, sm_cycles, sm_active_cycles, pipe_cycles }
}

impl SamplePair {
    fn new(caller: &mut Caller) -> Option<Self> {
        Some(Self { previous: GpmSample::new(caller)?, at: None, spare: GpmSample::new(caller)? })
    }
}

/// The driver's memory for one sample; freed with it.
struct GpmSample {
    memory: nvmlGpmSample_t,
    library: Arc<Library>,
}

// SAFETY: the memory belongs to this value alone; the driver does not tie it to a thread.
unsafe impl Send for GpmSample {}

// SAFETY: its pointers lead to samples that the pairs own, and are set again for each call.
unsafe impl Send for GpmRequest {}

impl GpmSample {
    fn new(caller: &mut Caller) -> Option<Self> {
        let mut memory = std::ptr::null_mut();
        call!(caller, nvmlGpmSampleAlloc(&raw mut memory)).ok()?;
        Some(Self { memory, library: Arc::clone(caller.library()) })
    }
}

impl Drop for GpmSample {
    fn drop(&mut self) {
        if let Ok(free) = self.library.symbols.nvmlGpmSampleFree.as_ref() {
            let started = self.library.statistics.start();
            // SAFETY: allocated by the same library, freed once, and no longer used.
            unsafe { free(self.memory) };
            self.library.statistics.record("nvmlGpmSampleFree", started);
        }
    }
}
