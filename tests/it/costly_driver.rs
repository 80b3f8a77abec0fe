//! The fake driver's profile of an H100, as a program that is not podmeter reads it.

use std::collections::BTreeMap;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, Sampling};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlProcessUtilizationSample_t, nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use crate::support::fake_nvml::{FakeNvml, h100};

const SECOND: u64 = 1_000_000;

/// Two processes share the GPU; the driver's clock stands at so many seconds.
fn shared_gpu(seconds: f64) -> FakeNvml {
    let fake = FakeNvml::start(h100(vec![json!({
        "utilization": {"gpu": 100}, "processes": [{"pid": 1, "sm": 50}, {"pid": 2, "sm": 50}]
    })]));
    set_clock(&fake, seconds);
    fake
}

fn set_clock(fake: &FakeNvml, seconds: f64) {
    fake.update(|state| state["clock_microseconds"] = json!((seconds * SECOND as f64) as u64));
}

fn open(fake: &FakeNvml) -> Nvml {
    Nvml::builder().lib_path(fake.library_path().as_os_str()).init().unwrap()
}

#[test]
fn its_rings_hold_twenty_seconds() {
    let fake = shared_gpu(100.0);
    set_clock(&fake, 160.0);
    let nvml = open(&fake);
    let gpu = nvml.device_by_index(0).unwrap();
    let ring = gpu.samples(Sampling::GpuUtilization, None).unwrap();
    let times: Vec<u64> = ring.iter().map(|sample| sample.timestamp).collect();
    assert_eq!((times.len(), times[99] - times[0]), (100, 99 * SECOND / 5));
    // An earlier cursor gets no more of the processes.
    let since = |seconds| gpu.process_utilization_stats(times[99] - seconds * SECOND).unwrap();
    let means = |samples: Vec<_>| samples.iter().map(mean).collect::<Vec<_>>();
    assert_eq!(means(since(60)), means(since(20)));
}

fn mean(sample: &ProcessUtilizationSample) -> (u32, u32) {
    (sample.pid, sample.sm_util)
}

#[test]
fn each_of_its_periods_has_one_process() {
    let fake = shared_gpu(100.0);
    let nvml = open(&fake);
    let gpu = nvml.device_by_index(0).unwrap();
    let newest = |samples: &[ProcessUtilizationSample]| samples.iter().map(|sample| sample.timestamp).max().unwrap();
    let mut last_seen = newest(&gpu.process_utilization_stats(0).unwrap());
    let mut periods: BTreeMap<u32, usize> = BTreeMap::new();
    for period in 1..=100 {
        set_clock(&fake, 100.0 + f64::from(period) / 5.0);
        let samples = gpu.process_utilization_stats(last_seen).unwrap();
        let [sample] = &samples[..] else { panic!("period {period}: {samples:?}") };
        assert_eq!(sample.sm_util, 100);
        *periods.entry(sample.pid).or_default() += 1;
        last_seen = newest(&samples);
    }
    assert!((48..=52).contains(&periods[&1]) && periods[&1] + periods[&2] == 100, "{periods:?}");
    // Over the ring, each has its part.
    let whole = gpu.process_utilization_stats(0).unwrap();
    assert!(whole.len() == 2 && whole.iter().all(|one| (48..=52).contains(&one.sm_util)), "{whole:?}");
}

#[test]
#[allow(
    unsafe_code,
    reason = "the safe call of nvml-wrapper asks for the size first, and so never has a buffer that is too small"
)]
fn its_process_buffer_has_more_entries_than_processes() {
    let fake = shared_gpu(160.0);
    let nvml = open(&fake);
    let gpu = nvml.device_by_index(0).unwrap();
    // SAFETY: the fake's functions are those of the bindings.
    let library = unsafe { NvmlLib::new(fake.library_path()) }.unwrap();
    let none = nvmlProcessUtilizationSample_t { pid: 0, timeStamp: 0, smUtil: 0, memUtil: 0, encUtil: 0, decUtil: 0 };
    let answer = |capacity: u32| {
        let (mut samples, mut count) = ([none; 100], capacity);
        // SAFETY: the array is as long as the largest `capacity`, and the handle is of a library that stays loaded.
        let code =
            unsafe { library.nvmlDeviceGetProcessUtilization(gpu.handle(), samples.as_mut_ptr(), &mut count, 0) };
        (code, count)
    };
    let too_small = (nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE, 100);
    assert_eq!([answer(64), answer(99), answer(100)], [too_small, too_small, (0, 2)]);
}

#[test]
fn it_has_no_pcie_byte_counters() {
    let fake = shared_gpu(100.0);
    let nvml = open(&fake);
    let gpu = nvml.device_by_index(0).unwrap();
    for answer in gpu.field_values_for(&[FieldId(197), FieldId(198)]).unwrap() {
        assert!(matches!(answer.unwrap().value, Err(NvmlError::NotSupported)));
    }
}

#[test]
fn a_call_uses_the_processor_for_its_cost() {
    let fake = shared_gpu(100.0);
    let nvml = open(&fake);
    let gpu = nvml.device_by_index(0).unwrap();
    let used = || {
        let used = clock_gettime(ClockId::ThreadCPUTime);
        used.tv_sec as u64 * SECOND + used.tv_nsec as u64 / 1_000
    };
    let before = used();
    gpu.total_energy_consumption().unwrap();
    assert!(used() - before >= 3_599, "{} microseconds", used() - before);
}

#[test]
fn each_call_is_recorded_with_its_gpu() {
    let fake = FakeNvml::start(json!({"gpus": [{}, {}], "clock_microseconds": 5 * SECOND}));
    let nvml = open(&fake);
    let gpu = nvml.device_by_index(1).unwrap();
    gpu.power_usage().unwrap();
    set_clock(&fake, 7.0);
    gpu.power_usage().unwrap();
    gpu.clock_info(Clock::Memory).unwrap();
    let record = fake.record();
    let times = |call: &str, gpu: &str| record.get(&(call.to_owned(), gpu.to_owned())).cloned();
    let power = times("nvmlDeviceGetPowerUsage", "1").unwrap();
    assert_eq!((power.len(), power[1] - power[0]), (2, 2 * SECOND));
    assert!(times("nvmlDeviceGetClockInfo(2)", "1").is_some() && times("nvmlInit_v2", "-").is_some(), "{record:?}");
    assert_eq!(fake.calls()["nvmlDeviceGetPowerUsage"], 2);
}
