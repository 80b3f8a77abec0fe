//! GPM: samples are moments, and a metric is the history's average between two of them.

use std::ffi::c_uint;
use std::ptr;

use nvml_wrapper_sys::bindings::{
    nvmlGpmMetric_t, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t, nvmlReturn_t,
};

use crate::calls::on_device;
use crate::clock::{self, Micros};
use crate::codes::{
    ARGUMENT_VERSION_MISMATCH, Answer, Code, INVALID_ARGUMENT, NO_DATA, NOT_FOUND, NOT_SUPPORTED, SUCCESS,
};
use crate::gate::{self, Target};
use crate::history::History;
use crate::library::library;
use crate::out::{Many, Out};
use crate::state::{Gpm, Gpu};

/// The shortest time between two samples that gives a result.
const SHORTEST_MICROS: Micros = 100_000;

/// Metrics from here on count since boot.
const FIRST_COUNTER: u32 = 248;

/// What was allocated; nothing until it is filled.
#[derive(Clone, Default)]
pub struct GpmSample(Option<Moment>);

#[derive(Clone)]
struct Moment {
    uuid: String,
    gpu_instance: Option<u32>,
    at: Micros,
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmSampleAlloc(sample: Out<nvmlGpmSample_t>) -> nvmlReturn_t {
    gate::plain("nvmlGpmSampleAlloc", |_| {
        let mut library = library();
        let token = library.token();
        library.gpm_samples.insert(token, GpmSample::default());
        sample.put(ptr::without_provenance_mut(token as usize))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmSampleFree(sample: nvmlGpmSample_t) -> nvmlReturn_t {
    gate::plain("nvmlGpmSampleFree", |_| library().gpm_samples.remove(&token(sample)).map(drop).ok_or(INVALID_ARGUMENT))
}

on_device! {
    nvmlGpmQueryDeviceSupport(support: Out<nvmlGpmSupport_t>) |target| {
        let asked = support.get()?;
        if asked.version != 1 {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        let supported = target.gpu().gpm.supported.into();
        support.put(nvmlGpmSupport_t { isSupportedDevice: supported, ..asked })
    }
    nvmlGpmSampleGet(sample: nvmlGpmSample_t) |target| {
        let gpu_instance = target.instance().map(|instance| instance.gpu_instance);
        fill(target, gpu_instance, sample)
    }
    nvmlGpmMigSampleGet(gpu_instance: c_uint, sample: nvmlGpmSample_t) |target| {
        target.whole()?.mig.active().find(|one| one.gpu_instance == gpu_instance).ok_or(NOT_FOUND)?;
        fill(target, Some(gpu_instance), sample)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlGpmMetricsGet(request: Out<nvmlGpmMetricsGet_t>) -> nvmlReturn_t {
    gate::plain("nvmlGpmMetricsGet", |_| {
        // The array may be shorter than this header's: only the head and the requested metrics are accessed.
        let head = request.cast::<Head>().get()?;
        if head.version != 1 {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        let mut library = library();
        let moment = |sample| library.gpm_samples.get(&token(sample)).and_then(|GpmSample(moment)| moment.clone());
        let (first, second) = moment(head.sample1).zip(moment(head.sample2)).ok_or(INVALID_ARGUMENT)?;
        if first.uuid != second.uuid || first.gpu_instance != second.gpu_instance || second.at <= first.at {
            return Err(INVALID_ARGUMENT);
        }
        let history = library.history(&first.uuid, second.at).ok_or(INVALID_ARGUMENT)?;
        let metrics = Many::from_pointer(request.at::<nvmlGpmMetric_t>(size_of::<Head>())?);
        for index in 0..head.numMetrics as usize {
            let asked: nvmlGpmMetric_t = metrics.get(index);
            let answer = value(history, asked.metricId, &first, &second);
            let code = answer.err().map_or(SUCCESS, |Code(code)| code);
            metrics.put(index, nvmlGpmMetric_t { nvmlReturn: code, value: answer.unwrap_or(0.0), ..asked });
        }
        Ok(())
    })
}

/// nvmlGpmMetricsGet_t up to its array.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_snake_case, reason = "the header's names")]
struct Head {
    version: c_uint,
    numMetrics: c_uint,
    sample1: nvmlGpmSample_t,
    sample2: nvmlGpmSample_t,
}

fn fill(target: &Target, gpu_instance: Option<u32>, sample: nvmlGpmSample_t) -> Answer {
    if !target.gpu().gpm.supported {
        return Err(NOT_SUPPORTED);
    }
    let moment = Moment { uuid: target.gpu().uuid.clone(), gpu_instance, at: clock::now() };
    let mut library = library();
    let slot = library.gpm_samples.get_mut(&token(sample)).ok_or(INVALID_ARGUMENT)?;
    *slot = GpmSample(Some(moment));
    Ok(())
}

fn value(history: &History, metric: u32, first: &Moment, second: &Moment) -> Result<f64, Code> {
    let of = |gpu: &Gpu| metric_of(gpu, first.gpu_instance, metric);
    if metric >= FIRST_COUNTER {
        return history.sum(history.begin(), second.at, of).map(|sum| (sum / 1e6).floor()).ok_or(NOT_SUPPORTED);
    }
    let window = second.at - first.at;
    let sum = history.sum(first.at, second.at, of).ok_or(NOT_SUPPORTED)?;
    if window < SHORTEST_MICROS { Err(NO_DATA) } else { Ok(sum / window as f64) }
}

fn metric_of(gpu: &Gpu, gpu_instance: Option<u32>, metric: u32) -> Option<f64> {
    let given = |gpm: &Gpm| gpm.metrics.get(&metric).copied();
    match gpu_instance {
        Some(id) => given(&gpu.mig.active().find(|one| one.gpu_instance == id)?.gpm),
        None => given(&gpu.gpm).or_else(|| match metric {
            1 | 2 => Some(gpu.utilization.gpu),
            3 | 5 => Some(gpu.utilization.gpu / 2.0),
            10 => Some(gpu.utilization.memory),
            _ => None,
        }),
    }
}

fn token(sample: nvmlGpmSample_t) -> u64 {
    sample.addr() as u64
}
