//! The fake driver library matches its data file: loaded and called through nvml-wrapper, as the real one is.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::support::fake_nvml::FakeNvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::Sampling;
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::struct_wrappers::device::Sample;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::nvmlFieldValue_t;
use serde_json::{Value, json};

fn open(fake: &FakeNvml) -> Nvml {
    try_open(fake).expect("the fake driver opens")
}

fn try_open(fake: &FakeNvml) -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(fake.library_path().as_os_str()).init()
}

fn machine(gpus: usize) -> Value {
    json!({"gpus": vec![json!({}); gpus]})
}

#[test]
fn eight_gpus_are_found_by_index_uuid_and_bus_id() {
    let fake = FakeNvml::start(machine(8));
    let nvml = open(&fake);
    assert_eq!(nvml.device_count().unwrap(), 8);
    for index in 0..8 {
        let device = nvml.device_by_index(index).unwrap();
        let uuid = device.uuid().unwrap();
        assert_eq!(uuid, format!("GPU-00000000-0000-0000-0000-00000000000{index}"));
        assert_eq!(device.minor_number().unwrap(), index);
        assert_eq!(device.name().unwrap(), "NVIDIA H100 80GB HBM3");
        assert_eq!(device.memory_info().unwrap().total, 85_520_809_984);
        assert_eq!(nvml.device_by_uuid(uuid).unwrap().index().unwrap(), index);
        let bus_id = device.pci_info().unwrap().bus_id;
        assert_eq!(bus_id, format!("00000000:{:02X}:00.0", 0x10 + index));
        assert_eq!(nvml.device_by_pci_bus_id(bus_id.strip_prefix("0000").unwrap()).unwrap().index().unwrap(), index);
    }
}

/// Retries until there is an answer; the deadline is far beyond what any machine needs.
fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let (_keep, never) = mpsc::channel::<()>();
    for _ in 0..4_000 {
        if let Some(answer) = ask() {
            return answer;
        }
        let _timeout = never.recv_timeout(Duration::from_millis(5));
    }
    panic!("{what}: still not after 20 s");
}

fn word(sample: &SampleValue) -> u32 {
    match sample {
        SampleValue::U32(value) => *value,
        other => panic!("a sample of another type: {other:?}"),
    }
}

#[test]
fn the_samples_add_up_to_the_load_over_a_change() {
    let period = 10_000;
    let load = |percent: f64, milliwatts: u32| {
        json!({"gpus": [{
            "utilization": {"gpu": percent}, "power_milliwatts": milliwatts,
            "samples": {"period_microseconds": period, "ring_entries": 100_000}
        }]})
    };
    let fake = FakeNvml::start(load(40.25, 40_250));
    let nvml = open(&fake);
    let device = nvml.device_by_index(0).unwrap();
    let busy = || device.samples(Sampling::GpuUtilization, None).unwrap_or_default();
    eventually("samples of the first load", || (busy().len() > 20).then_some(()));
    fake.set(load(100.0, 100_000));
    eventually("samples of the second load", || {
        let last = busy().into_iter().rev().take(20);
        (last.filter(|sample| word(&sample.value) == 100).count() == 20).then_some(())
    });

    let busy = busy();
    let power = device.samples(Sampling::Power, None).unwrap();
    let sum = |samples: &[Sample]| samples.iter().map(|sample| u64::from(word(&sample.value))).sum::<u64>();
    let (busy_sum, power_sum) = (sum(&busy), sum(&power[..busy.len()]) / 1000);
    assert!(busy_sum.abs_diff(power_sum) <= 1, "{busy_sum} % of busy, {power_sum} W of power for the same curve");
    // Whole percent in each, without losing the quarters.
    assert_eq!(sum(&busy[..20]), 805);
    assert!(busy.windows(2).all(|pair| pair[1].timestamp - pair[0].timestamp == period));

    let cursor = busy[busy.len() - 2].timestamp;
    let newer = device.samples(Sampling::GpuUtilization, cursor).unwrap();
    assert_eq!(newer[0].timestamp, cursor + period);
}

#[test]
fn energy_follows_power() {
    let fake = FakeNvml::start(json!({"gpus": [{"power_milliwatts": 10_000_000, "energy_millijoules": 500}]}));
    let nvml = open(&fake);
    let device = nvml.device_by_index(0).unwrap();
    let first = device.total_energy_consumption().unwrap();
    assert!(first >= 500);
    eventually("10 J more", || (device.total_energy_consumption().unwrap() >= first + 10_000).then_some(()));
    fake.update(|state| state["gpus"][0]["power_milliwatts"] = json!(0));
    let mut before = 0;
    eventually("the counter stands", || {
        let readings = [(); 20].map(|()| device.total_energy_consumption().unwrap());
        let last = readings[19];
        assert!(before <= readings[0] && readings.is_sorted(), "it never falls: {before}, {readings:?}");
        let stands = before == last;
        before = last;
        stands.then_some(())
    });
}

#[test]
fn mig_devices_have_their_own_identity_memory_and_processes() {
    let fake = FakeNvml::start(json!({"gpus": [{}, {
        "mig": {"enabled": true, "instances": [
            {"gpu_instance": 3, "profile": "1g.10gb", "memory_used_bytes": 7},
            {"gpu_instance": 5, "profile": "3g.40gb"}
        ]},
        "processes": [{"pid": 42, "memory_bytes": 7, "sm": 50, "gpu_instance": 3, "compute_instance": 0}]
    }]}));
    let nvml = open(&fake);
    let parent = nvml.device_by_index(1).unwrap();
    assert!(!nvml.device_by_index(0).unwrap().mig_mode().is_ok_and(|mode| mode.current == 1));
    assert_eq!(parent.mig_device_count().unwrap(), 7);
    let small = parent.mig_device_by_index(0).unwrap();
    let large = parent.mig_device_by_index(1).unwrap();
    assert!(matches!(parent.mig_device_by_index(2), Err(NvmlError::NotFound)));
    assert_eq!(small.uuid().unwrap(), "MIG-00000000-0000-0000-0001-000000000000");
    assert_eq!(large.name().unwrap(), "NVIDIA H100 80GB HBM3 MIG 3g.40gb");
    assert_eq!(large.attributes().unwrap().gpu_instance_slice_count, 3);
    assert_eq!(small.memory_info().unwrap().used, 7);
    assert_eq!(small.running_compute_processes().unwrap()[0].gpu_instance_id, Some(3));
    assert!(large.running_compute_processes().unwrap().is_empty());
    assert_eq!(small.mig_parent_device().unwrap().index().unwrap(), 1);
    for device in [&parent, &small] {
        assert!(matches!(device.utilization_rates(), Err(NvmlError::NotSupported)));
        assert!(matches!(device.samples(Sampling::GpuUtilization, None), Err(NvmlError::NotSupported)));
        assert!(matches!(device.process_utilization_stats(None), Err(NvmlError::NotSupported)));
    }
    fake.update(|state| state["gpus"][1]["mig"]["instances"] = json!([]));
    eventually("the handle dies with the instance", || {
        matches!(small.memory_info(), Err(NvmlError::InvalidArg)).then_some(())
    });
}

#[test]
fn a_lost_gpu_and_a_refused_call_leave_the_others() {
    let fake = FakeNvml::start(json!({"gpus": [{}, {"lost": true}, {"fail": {"nvmlDeviceGetPowerUsage": 4}}]}));
    let nvml = open(&fake);
    assert!(matches!(nvml.device_by_index(1), Err(NvmlError::GpuLost)));
    assert_eq!(nvml.device_by_index(0).unwrap().power_usage().unwrap(), 70_000);
    let refused = nvml.device_by_index(2).unwrap();
    assert!(matches!(refused.power_usage(), Err(NvmlError::NoPermission)));
    assert!(refused.utilization_rates().is_ok());
    fake.update(|state| state["gpus"][2]["lost"] = json!(true));
    eventually("the handle is lost", || matches!(refused.utilization_rates(), Err(NvmlError::GpuLost)).then_some(()));
    assert_eq!(nvml.device_count().unwrap(), 3);
}

#[test]
fn a_driver_reload_requires_a_new_init() {
    let fake = FakeNvml::start(machine(1));
    let nvml = open(&fake);
    fake.update(|state| state["generation"] = json!(2));
    eventually("the driver is gone", || matches!(nvml.device_count(), Err(NvmlError::Uninitialized)).then_some(()));
    drop(nvml);
    assert_eq!(open(&fake).device_count().unwrap(), 1);
    fake.update(|state| state["init"] = json!(18));
    eventually("a mismatch at init", || matches!(try_open(&fake), Err(NvmlError::LibRmVersionMismatch)).then_some(()));
}

#[test]
fn a_broken_file_changes_nothing_and_a_missing_one_is_no_driver() {
    let fake = FakeNvml::start(machine(2));
    let nvml = open(&fake);
    std::fs::write(fake.folder().join("fake-nvml.json"), "{\"gpus\": [").unwrap();
    let (_keep, never) = mpsc::channel::<()>();
    let _look_again = never.recv_timeout(Duration::from_millis(20));
    assert_eq!(nvml.device_count().unwrap(), 2);
    drop(nvml);
    let empty = FakeNvml::start(machine(1));
    std::fs::remove_file(empty.folder().join("fake-nvml.json")).unwrap();
    assert!(matches!(try_open(&empty), Err(NvmlError::DriverNotLoaded)));
}

#[test]
fn a_hanging_call_returns_when_the_file_releases_it() {
    let fake = FakeNvml::start(json!({"gpus": [{"hang": ["nvmlDeviceGetUtilizationRates"]}]}));
    let nvml = open(&fake);
    let (done, ended) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let answer = nvml.device_by_index(0).unwrap().utilization_rates().is_ok();
            done.send(answer).unwrap();
        });
        eventually("the call has begun", || fake.calls().get("nvmlDeviceGetUtilizationRates").copied());
        assert!(ended.recv_timeout(Duration::from_millis(50)).is_err(), "it hangs");
        assert_eq!(nvml.device_count().unwrap(), 1, "others go on");
        fake.update(|state| state["gpus"][0]["hang"] = json!([]));
        assert!(ended.recv_timeout(Duration::from_secs(20)).unwrap());
    });
}

#[test]
fn field_ids_moved_at_driver_580_82() {
    let fields = |version: &str| {
        let fake = FakeNvml::start(json!({
            "driver_version": version,
            "gpus": [{
                "clock_event_reasons": {"sw_thermal_nanoseconds": 11, "hw_power_brake_nanoseconds": 13},
                "recovery_action": 2, "fields": {"256": 1}
            }]
        }));
        let nvml = open(&fake);
        let device = nvml.device_by_index(0).unwrap();
        let safe = device.field_values_for(&[FieldId(251), FieldId(253), FieldId(230)]).unwrap();
        let safe = safe.into_iter().map(|value| number(value.unwrap().value.unwrap())).collect::<Vec<_>>();
        (raw_field(&nvml, &device, 251), raw_field(&nvml, &device, 269), raw_field(&nvml, &device, 271), safe)
    };
    assert_eq!(fields("580.65.06"), (Ok(11), Err(3), Err(3), vec![11, 13, 2]));
    assert_eq!(fields("580.82.07"), (Ok(1), Ok(11), Ok(13), vec![11, 13, 2]), "251 is power smoothing now");
}

fn number(value: SampleValue) -> u64 {
    match value {
        SampleValue::U32(value) => value.into(),
        SampleValue::U64(value) => value,
        other => panic!("a field of another type: {other:?}"),
    }
}

#[allow(unsafe_code, reason = "the untranslated field id needs the raw symbol")]
fn raw_field(nvml: &Nvml, device: &Device<'_>, id: u32) -> Result<u64, u32> {
    let call = nvml.lib().nvmlDeviceGetFieldValues.as_ref().expect("exported");
    // SAFETY: all zero is a valid nvmlFieldValue_t; the call gets one, and the handle is valid as long as `device`.
    let (code, value) = unsafe {
        let mut value: nvmlFieldValue_t = std::mem::zeroed();
        value.fieldId = id;
        (call(device.handle(), 1, &raw mut value), value)
    };
    assert_eq!(code, 0);
    // SAFETY: the fake sets all bytes of the union.
    if value.nvmlReturn == 0 { Ok(unsafe { value.value.ullVal }) } else { Err(value.nvmlReturn) }
}

#[test]
fn events_come_once_and_only_after_registration() {
    let fake = FakeNvml::start(json!({"gpus": [{"events": [{"sequence": 1, "xid": 13}]}, {}]}));
    let nvml = open(&fake);
    let mut set = nvml.create_event_set().unwrap();
    for index in 0..2 {
        let device = nvml.device_by_index(index).unwrap();
        set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).unwrap();
    }
    assert!(matches!(set.wait(20), Err(NvmlError::Timeout)), "what was there before is not delivered");
    fake.update(|state| state["gpus"][1]["events"] = json!([{"sequence": 1, "xid": 79}, {"sequence": 2, "xid": 31}]));
    let event = set.wait(20_000).unwrap();
    assert_eq!((event.event_data, event.device.index().unwrap()), (Some(XidError::Value(79)), 1));
    assert_eq!(set.wait(20_000).unwrap().event_data, Some(XidError::Value(31)));
    assert!(matches!(set.wait(20), Err(NvmlError::Timeout)), "once is enough");
    fake.update(|state| state["gpus"][0]["lost"] = json!(true));
    eventually("the wait fails", || matches!(set.wait(20), Err(NvmlError::GpuLost)).then_some(()));
}

#[test]
fn gpm_averages_between_two_samples_with_one_status_each() {
    let fake = FakeNvml::start(json!({"gpus": [{"gpm": {"metrics": {"2": 45.5}}}]}));
    let nvml = open(&fake);
    let device = nvml.device_by_index(0).unwrap();
    assert!(device.gpm_support().unwrap());
    let first = device.gpm_sample().unwrap();
    let asked = [GpmMetricId::SmUtil, GpmMetricId::Fp64Util];
    let answers = eventually("100 ms between the samples", || {
        let second = device.gpm_sample().unwrap();
        let answers = gpm_metrics_get(&nvml, &first, &second, &asked).ok()?;
        answers[0].is_ok().then_some(answers)
    });
    assert!((answers[0].as_ref().unwrap().value - 45.5).abs() < 1e-9);
    assert!(matches!(answers[1], Err(NvmlError::NotSupported)));
}

#[test]
fn processes_are_listed_and_idle_is_not_found() {
    let fake = FakeNvml::start(json!({"gpus": [{"processes": [
        {"pid": 10, "memory_bytes": 1024, "sm": 30, "mem": 5}, {"pid": 11}, {"pid": 12, "kind": "graphics"}
    ]}, {}]}));
    let nvml = open(&fake);
    let device = nvml.device_by_index(0).unwrap();
    let processes = device.running_compute_processes().unwrap();
    assert_eq!(processes.iter().map(|process| process.pid).collect::<Vec<_>>(), [10, 11]);
    assert!(matches!(processes[1].used_gpu_memory, UsedGpuMemory::Unavailable));
    assert_eq!(device.running_graphics_processes().unwrap()[0].pid, 12);
    let shares = device.process_utilization_stats(None).unwrap();
    assert_eq!((shares.len(), shares[0].pid, shares[0].sm_util), (1, 10, 30));
    let idle = nvml.device_by_index(1).unwrap();
    assert!(matches!(idle.process_utilization_stats(None), Err(NvmlError::NotFound)));
}

#[test]
fn the_calls_are_counted() {
    let fake = FakeNvml::start(machine(1));
    let nvml = open(&fake);
    let device = nvml.device_by_index(0).unwrap();
    for _ in 0..5 {
        device.power_usage().unwrap();
    }
    drop(nvml);
    let calls = fake.calls();
    let expected = [("nvmlInit_v2", 1), ("nvmlDeviceGetPowerUsage", 5), ("nvmlShutdown", 1)];
    for (call, times) in expected {
        assert_eq!(calls.get(call), Some(&times), "{call}");
    }
}
