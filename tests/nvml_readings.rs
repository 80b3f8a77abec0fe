//! What the NVML driver's answers become where they are unusual: sentinels, counters that wrap, other models of MIG.

#![allow(clippy::unwrap_used, reason = "in a test an unwrap is an assertion")]

#[path = "support/fake_nvml.rs"]
mod fake_nvml;

use fake_nvml::FakeNvml;
use podmeter::hardware::nvml::{LibrarySearch, NvmlDriver};
use podmeter::hardware::{Driver, Session};
use podmeter::model::GpuUuid;
use serde_json::{Value, json};

fn open(fake: &FakeNvml) -> Box<dyn Session> {
    let search = LibrarySearch { library: Some(fake.library_path()), driver_roots: Vec::new() };
    NvmlDriver::new(search).open().unwrap()
}

fn gpu(index: usize) -> GpuUuid {
    GpuUuid::new(format!("GPU-00000000-0000-0000-0000-{index:012}"))
}

#[test]
fn the_slices_of_a_gpu_are_those_of_its_largest_profile() {
    let mig = |change: Value| {
        let mut gpu = json!({"mig": {"enabled": true, "instances": [{"profile": "1g.10gb"}]}});
        gpu["mig"].as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        gpu
    };
    let mut refused = mig(json!({}));
    refused["fail"] = json!({"nvmlDeviceGetGpuInstanceProfileInfo": 4});
    let mut missing = mig(json!({}));
    missing["function_not_found"] = json!(["nvmlDeviceGetGpuInstanceProfileInfo"]);
    let gpus = [mig(json!({})), mig(json!({"slices": 4})), refused, missing, json!({})];
    let fake = FakeNvml::start(json!({ "gpus": gpus }));
    let (inventory, problems) = open(&fake).inventory().unwrap();
    let slices: Vec<_> = (0..5).map(|index| inventory.gpus[&gpu(index)].mig_slices).collect();
    assert_eq!(slices, [Some(7), Some(4), None, None, None]);
    let quarter = &inventory.gpus[&gpu(1)];
    assert_eq!(quarter.slice_fraction(quarter.mig_devices[0].slices), Some(0.25));
    let refusals = problems.iter().filter(|problem| problem.call == "nvmlDeviceGetGpuInstanceProfileInfo").count();
    assert_eq!(refusals, 1, "one refusal stands for all profiles: {problems:?}");
}
