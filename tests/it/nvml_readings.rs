//! What the NVML driver's answers become where they are unusual: sentinels, counters that wrap, other models of MIG.

use std::sync::Arc;
use std::time::Duration;

use crate::support::fake_nvml::FakeNvml;
use crate::support::hardware::{ALL, at, driver, gpu, has_fast, medium, open, quick, run, slow};
use crate::support::watching::wait;
use podmeter::domain::model::{C2c, FabricDomain, GpuUuid, HardwareState, Moment, Monotonic, Platform, UnixSeconds};
use podmeter::hardware::{Driver, DriverSession, FailureCause, GpuReader, GpuState, Staleness, Tier};
use serde_json::{Value, json};

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

/// In each of these the first GPU of [`sentinels`] has one.
const QUANTITIES: &str = "power_watts power_limit_watts temperature_celsius clock_hertz fan_speed_ratio memory_bytes \
     process_memory_bytes utilization_ratio error_count row_or_page_count transferred_bytes pcie_link_generation";

/// Read in every tier: a GPU whose driver answers with the largest number where it has no value, and another one.
fn sentinels() -> Arc<HardwareState> {
    let most = u32::MAX;
    let fake = FakeNvml::start(json!({"gpus": [{
        "temperatures": {"gpu": -1}, "power_milliwatts": most, "power_limits": {"enforced": most, "management": most},
        "clocks": {"sm": most}, "fans": [30, most], "memory": {"total_bytes": u64::MAX, "used_bytes": 5},
        "utilization": {"gpu": 4_294_967_295.0, "memory": 20}, "samples": {"silent": true},
        "pcie": {"replay": most, "generation": most, "width": 8},
        "ecc": {"volatile": {"corrected": u64::MAX, "uncorrected": 2}},
        "remapped_rows": {"correctable": most},
        "fields": {"138": u64::MAX, "82": {"word": most}, "197": u64::MAX}, "nvlink": {"links": 2},
        "processes": [{"pid": 7, "memory_bytes": u64::MAX - 1}]
    }, {}]}));
    let hardware = run(&fake, quick());
    wait(&hardware, "all tiers", |state| medium(state, 0).and(slow(state, 0)).is_some())
}

#[test]
fn sentinels_are_absent() {
    let state = sentinels();
    let readings = &state.readings[&gpu(0)];
    let fast = &readings.fast.as_ref().unwrap().value;
    assert_eq!((fast.power_watts, fast.utilization_ratio, readings.totals.busy_seconds), (None, None, None));
    let shown = medium(&state, 0).unwrap();
    assert_eq!((shown.gpu_temperature_celsius, shown.memory_temperature_celsius), (None, None));
    assert_eq!((shown.power_limit_watts, shown.power_limit_requested_watts), (None, None));
    assert_eq!((shown.clocks.sm_hertz, shown.memory), (None, None));
    assert_eq!(shown.fan_speed_ratios, [0.3]);
    assert_eq!(shown.processes.as_ref().unwrap()[0].memory_bytes, None);
    assert!(shown.clocks.memory_hertz.is_some(), "what is plausible stays");
    let shown = slow(&state, 0).unwrap();
    assert_eq!((shown.pcie.replays, shown.pcie.link_generation, shown.pcie.link_width_lanes), (None, None, Some(8)));
    assert_eq!((shown.pcie.transmitted_bytes, shown.nvlink.transmitted_bytes, shown.row_remap), (None, None, None));
    assert_eq!((shown.ecc[0].corrected, shown.ecc[0].uncorrected), (None, Some(2)));
    assert_eq!(state.inventory.gpus[&gpu(0)].memory_bytes, None);
}

#[test]
fn sentinels_are_counted_by_quantity() {
    let state = sentinels();
    let found = |quantity: &str| state.implausible_readings[quantity];
    for quantity in QUANTITIES.split_whitespace() {
        assert!(found(quantity) > 0, "{quantity}: {:?}", state.implausible_readings);
    }
    assert_eq!((found("pcie_link_width_lanes"), found("throttled_seconds")), (0, 0), "every quantity is there");
}

#[test]
fn counters_that_may_wrap_between_two_readings_are_absent() {
    let word = json!({"word": 7});
    let gpu_with = |fields: Value| json!({"nvlink": {"links": 2}, "fields": fields});
    let fake = FakeNvml::start(json!({"gpus": [
        gpu_with(json!({"197": word, "198": 9, "173": word, "74": word, "138": word, "139": 5, "230": word})),
        gpu_with(json!({}))
    ]}));
    let session = open(&fake);
    let read = |index: usize| {
        let mut reader = session.reader(&gpu(index)).unwrap();
        reader.read(&ALL, at(1));
        let pass = reader.read(&ALL, at(2));
        (pass.medium.unwrap(), pass.slow.unwrap())
    };
    let (medium, slow) = read(0);
    assert_eq!((slow.pcie.transmitted_bytes, slow.pcie.received_bytes), (None, Some(9.0)));
    let link = &slow.nvlink.of_links[&1];
    assert_eq!((link.transmitted_bytes, link.received_bytes), (None, Some(5_120.0)));
    assert_eq!(medium.throttled_seconds.get("sw_power_cap"), None, "nanoseconds in 32 bits last four seconds");
    assert_eq!(slow.pcie.errors.get("correctable"), Some(&7), "errors fit into 32 bits");
    assert_eq!(slow.recovery_action, Some(7));
    let (medium, slow) = read(1);
    assert!(slow.pcie.transmitted_bytes.is_some() && medium.throttled_seconds.len() == 5);
}

#[test]
fn a_call_that_fails_for_a_moment_costs_no_later_reading() {
    let gpm = json!({"metrics": {"2": 50, "100": 3.0, "248": 1e9}});
    let mode = "nvmlDeviceGetVirtualizationMode";
    let bits = "nvmlDeviceGetSupportedClocksEventReasons";
    let fails = json!({"nvmlDeviceGetMemoryInfo_v2": 999, mode: 999, bits: 999});
    let gpus = [
        json!({"gpm": gpm, "virtualization_mode": 3, "fail": fails}),
        json!({"fail": {"nvmlDeviceGetMemoryInfo_v2": 4}}),
        json!({"fail": {"nvmlDeviceGetMemoryInfo_v2": 25}}),
    ];
    let fake = FakeNvml::start(json!({"fail": {"nvmlGpmMetricsGet": 999}, "gpus": gpus}));
    let mut driver = driver(&fake);
    let session = driver.open().unwrap();
    session.inventory().unwrap();
    let mut readers = [0, 1, 2].map(|index| session.reader(&gpu(index)).unwrap());
    let mut read = |index: usize, second| readers[index].read(&ALL, at(second)).medium.unwrap();
    for second in 1..=2 {
        let medium = read(0, second);
        assert_eq!((medium.memory, medium.virtualization, medium.sm_cycles), (None, None, None));
        assert_eq!(read(1, second).memory, None, "denied: the older call would count reserved memory as used");
        assert_eq!(read(2, second).memory.unwrap().reserved, None, "a driver without the newer structure");
    }
    let calls = driver.call_durations().unwrap()()[bits].count();
    assert_eq!(calls, 4 + 2, "made twice in each of two passes, and once where it is answered");
    fake.update(|state| (state["fail"], state["gpus"][0]["fail"]) = (json!({}), json!({})));
    let medium = read(0, 3);
    assert_eq!((medium.memory.unwrap().used, medium.virtualization), (0, Some("host_vgpu")));
    assert!(read(0, 4).sm_cycles.is_some());
}

#[test]
fn a_busy_gpu_without_processes_is_read_by_the_other_call() {
    let busy = |fail: Value| {
        // Passes follow each other at once, and each has its own entry.
        let samples = json!({"period_microseconds": 1});
        json!({"utilization": {"gpu": 90}, "samples": samples, "processes": [{"pid": 10, "sm": 50}], "fail": fail})
    };
    let older = "nvmlDeviceGetProcessUtilization";
    let newer = "nvmlDeviceGetProcessesUtilizationInfo";
    let fake = FakeNvml::start(json!({"gpus": [
        busy(json!({})), busy(json!({older: 6})), busy(json!({older: 6, newer: 6})), busy(json!({older: 3})),
        {"fail": {older: 6, newer: 6}}
    ]}));
    let session = open(&fake);
    let read = |index: usize| {
        let mut reader = session.reader(&gpu(index)).unwrap();
        let passes: Vec<_> = (1..=12).map(|second| reader.read(&ALL, at(second))).collect();
        let has_sm_seconds = |place: usize| passes[place].integrals.process_sm_seconds.is_some();
        let source = passes[11].medium.as_ref().unwrap().process_utilization_source.clone();
        (has_sm_seconds(0), has_sm_seconds(11), source, passes[11].integrals.lists_no_processes)
    };
    assert_eq!(read(0), (true, true, Some(older.into()), false));
    assert_eq!(read(1), (false, true, Some(newer.into()), false));
    assert_eq!(read(2), (false, false, Some("none".into()), true), "silent, and not idle");
    assert_eq!(read(3), (true, true, Some(newer.into()), false), "an old call that this GPU does not have");
    assert_eq!(read(4), (true, true, None, false), "idle");
    let mut reader = session.reader(&gpu(0)).unwrap();
    let mut integrals =
        |seconds: std::ops::Range<u64>| seconds.map(|second| reader.read(&ALL, at(second)).integrals).last().unwrap();
    assert!(integrals(1..3).process_sm_seconds.is_some());
    fake.update(|state| state["gpus"][0]["fail"] = json!({older: 999, newer: 999}));
    let failing = integrals(3..4);
    assert!(failing.process_sm_seconds.is_none() && !failing.lists_no_processes, "one failure ends nothing");
    assert!(integrals(4..16).lists_no_processes, "earlier use by process is no longer valid");
    fake.update(|state| state["gpus"][0]["fail"] = json!({}));
    let again = integrals(16..30);
    assert!(again.process_sm_seconds.is_some() && !again.lists_no_processes);
}

#[test]
fn a_gpu_that_hangs_while_it_wakes_holds_up_no_other() {
    let fake = FakeNvml::start(json!({"gpus": [{"hang": ["wake"]}, {}, {}]}));
    let hardware = run(&fake, quick());
    let state = wait(&hardware, "the others", |state| has_fast(state, 1) && has_fast(state, 2));
    assert!(!has_fast(&state, 0));
    fake.update(|state| state["gpus"][0]["hang"] = json!([]));
    wait(&hardware, "all", |state| (0..3).all(|index| has_fast(state, index)));
}

#[test]
fn another_gpu_at_the_index_is_not_read_in_its_place() {
    let fake = FakeNvml::start(json!({"gpus": [{}, {"power_milliwatts": 200_000}]}));
    let session = open(&fake);
    session.inventory().unwrap();
    let swapped = json!([{"uuid": gpu(1).as_str(), "power_milliwatts": 200_000}, {"uuid": gpu(0).as_str()}]);
    fake.update(|state| state["gpus"] = swapped);
    assert!(session.layout_changed().unwrap(), "the driver's new order");
    let failure = session.reader(&gpu(1)).err().unwrap();
    assert_eq!(failure.cause, FailureCause::OtherGpuAtIndex);
    assert_eq!(failure.problem.code, "other_gpu_at_index");
    assert!(failure.reason.contains("order of GPUs has changed"), "{failure}");
    session.inventory().unwrap();
    let pass = session.reader(&gpu(1)).unwrap().read(&ALL, at(1));
    assert_eq!(pass.fast.unwrap().power_watts, Some(200.0));
}

#[test]
fn gpus_with_one_uuid_are_named_and_the_others_are_read() {
    let twin = json!({"uuid": "GPU-twin"});
    let fake = FakeNvml::start(json!({"gpus": [{}, twin, twin]}));
    let hardware = run(&fake, quick());
    let state = wait(&hardware, "readings", |state| has_fast(state, 0));
    assert_eq!(state.inventory.gpus.len(), 1);
    let problem = state.problem.as_deref().unwrap();
    assert!(problem.contains("[1, 2] have the same UUID, GPU-twin"), "{problem}");
    assert_eq!(state.errors["nvmlDeviceGetUUID"]["duplicate_uuid"], 1);
    fake.update(|state| state["gpus"][2]["uuid"] = json!("GPU-other"));
    let state = wait(&hardware, "three", |state| state.inventory.visible() == 3);
    assert_eq!(state.problem, None);
    fake.update(|state| state["gpus"][2]["uuid"] = json!("GPU-twin"));
    let state = wait(&hardware, "the twins again", |state| state.problem.is_some() && state.inventory.visible() == 1);
    let twin = &state.readings[&GpuUuid::from("GPU-twin")];
    assert!(twin.lost && twin.fast.is_none(), "one of them is not read for both");
}

#[test]
fn gpus_with_one_uuid_are_named_also_after_a_new_session() {
    let twin = json!({"uuid": "GPU-twin"});
    let fake = FakeNvml::start(json!({"gpus": [{}, twin, twin]}));
    let hardware = run(&fake, quick());
    let before = wait(&hardware, "readings", |state| has_fast(state, 0));
    fake.update(|state| state["gpus"][0]["lost"] = json!(true));
    wait(&hardware, "the loss of the only one read", |state| state.problem != before.problem);
    fake.update(|state| state["gpus"][0]["lost"] = json!(false));
    let state = wait(&hardware, "readings again", |state| has_fast(state, 0));
    assert_eq!(state.problem, before.problem);
}

#[test]
fn seventy_percent_is_seven_tenths() {
    let fake = FakeNvml::start(json!({"gpus": [{"utilization": {"gpu": 70, "memory": 70}}]}));
    let session = open(&fake);
    let mut reader = session.reader(&gpu(0)).unwrap();
    let pass = reader.read(&ALL, at(1));
    assert_eq!(pass.fast.unwrap().utilization_ratio, Some(0.7));
    assert_eq!(pass.medium.unwrap().rates.memory_utilization_ratio, Some(0.7));
}

#[test]
fn bytes_over_pcie_are_gpms_where_the_driver_refuses_the_counters() {
    let hour = Duration::from_secs(3600);
    let staleness = Staleness { fast: hour, medium: hour, slow: hour };
    // MiB a second, and bytes.
    let gpm = json!({"metrics": {"20": 2.0, "21": 1.0}});
    let refused = (json!({"197": {"code": 3}, "198": {"code": 3}}), [[10.0, 5.0], [20.0, 10.0]].map(Some));
    let counted = (json!({"197": 90_u64 << 40, "198": 80_u64 << 40}), [None; 2]);
    for (fields, mebibytes) in [refused, counted] {
        let fake = FakeNvml::start(json!({"gpus": [{"fields": fields, "gpm": gpm}]}));
        let session = open(&fake);
        let mut state = GpuState::default();
        for (first, mebibytes) in [1, 101].into_iter().zip(mebibytes) {
            let mut reader = session.reader(&gpu(0)).unwrap();
            for second in [first, first + 5] {
                fake.update(|state| state["clock_microseconds"] = json!((100 + second) * 1_000_000));
                state.add_pass(at(second).monotonic, second == first, reader.read(&ALL, at(second)));
            }
            let pcie = state.readings(at(first + 5).monotonic, staleness).slow.unwrap().value.pcie;
            let expected = mebibytes.unwrap_or([90.0 * 1_048_576.0, 80.0 * 1_048_576.0]);
            let bytes = [pcie.transmitted_bytes, pcie.received_bytes];
            assert_eq!(bytes, expected.map(|mebibytes| Some(mebibytes * 1_048_576.0)), "{fields} at {first} s");
        }
    }
}

/// A GPU of a rack: `number` of four on a tray with two superchips.
fn rack_gpu(number: u64) -> Value {
    let mut gpu = json!({
        "name": "NVIDIA GB300", "architecture": 10, "power_milliwatts": 180_000,
        "serial": format!("165000000000{}", number / 2), "numa_node": number / 2,
        "fabric": {"state": 3, "clique_id": 32766, "cluster_uuid": vec![7_u8; 16]},
        "platform": {
            "chassis_serial": "1820000000001", "slot": 25, "tray": 15, "module_id": number + 1
        },
        "c2c": {"down": [4]},
        "power_limits": {"module_milliwatts": 488_000},
        "nvlink": {"links": 18, "version": 5},
        "gpm": {"metrics": {"100": 3.0, "101": 2.0, "248": 1e9}},
    });
    // The bits are a mantissa and an exponent: 2e-12, and none at all.
    gpu["fields"] = json!({"208": 5});
    gpu
}

/// Read in every tier: two GPUs of a rack, one whose driver is older, and one of another machine.
fn rack() -> Arc<HardwareState> {
    let older = |mut gpu: Value| {
        gpu["platform"]["version"] = json!(1);
        gpu["fabric"]["cluster_uuid"] = json!(vec![0_u8; 16]);
        gpu["power_limits"] = json!({});
        gpu["c2c"] = json!({"enabled": false});
        gpu
    };
    let fake = FakeNvml::start(json!({ "gpus": [rack_gpu(0), rack_gpu(1), older(rack_gpu(2)), {}] }));
    let hardware = run(&fake, quick());
    let moved = |state: &HardwareState| medium(state, 0)?.rates.traffic.c2c_transmitted;
    wait(&hardware, "all tiers", |state| (0..4).all(|index| slow(state, index).is_some()) && moved(state).is_some())
}

#[test]
fn a_rack_gpu_has_its_place_in_the_rack() {
    let state = rack();
    let inventory = &state.inventory;
    let expected = Platform {
        chassis_serial: Some("1820000000001".into()),
        slot: Some(25),
        tray: Some(15),
        host: Some(1),
        module_id: Some(1),
        peer_type: Some("switch"),
    };
    assert_eq!(inventory.gpus[&gpu(0)].platform, Some(expected));
    assert_eq!(inventory.gpus[&gpu(2)].platform.as_ref().unwrap().slot, Some(25), "of the older structure");
    assert_eq!(inventory.gpus[&gpu(3)].platform, None);
}

#[test]
fn a_rack_gpu_has_the_domain_of_its_fabric() {
    let state = rack();
    let fabric = |index| slow(&state, index).unwrap().fabric.clone().unwrap();
    let domain = FabricDomain { cluster_uuid: "07070707-0707-0707-0707-070707070707".into(), clique_id: 32766 };
    assert_eq!((fabric(0).state, fabric(0).domain), ("completed", Some(domain)));
    assert!(fabric(0).conditions.values().all(|is_wrong| !is_wrong));
    assert_eq!((fabric(2).state, fabric(2).domain), ("completed", None), "all zero is no domain");
}

#[test]
fn a_rack_gpu_has_its_links_to_the_cpu() {
    let state = rack();
    let c2c = |index| slow(&state, index).unwrap().c2c;
    let speed = Some(9.0 * 44_712e6);
    let links =
        C2c { enabled: Some(true), active_links: Some(9), inactive_links: Some(1), bytes_per_second_max: speed };
    assert_eq!(c2c(0), links);
    assert_eq!(c2c(2), C2c { enabled: Some(false), ..C2c::default() });
    assert_eq!(c2c(3), C2c::default());
    let traffic = medium(&state, 0).unwrap().rates.traffic;
    assert_eq!((traffic.c2c_transmitted, traffic.c2c_received), (Some(3.0 * 1_048_576.0), Some(2.0 * 1_048_576.0)));
}

#[test]
fn a_link_of_nvlink_5_has_its_errors() {
    let state = rack();
    let link = &slow(&state, 0).unwrap().nvlink.of_links[&17];
    assert_eq!(link.errors["receive"], 5);
}

#[test]
fn a_rack_gpu_has_the_power_and_energy_of_its_module() {
    let state = rack();
    let watts = |index| state.readings[&gpu(index)].fast.as_ref().unwrap().value.module_power_watts;
    assert_eq!([0, 1, 2, 3].map(watts), [Some(488.0), Some(488.0), None, None]);
    assert!(state.readings[&gpu(0)].totals.module_energy_joules.is_some());
    assert_eq!(state.readings[&gpu(2)].totals.module_energy_joules, None);
}

/// A driver may give the module's power for it, too.
#[test]
fn a_board_without_a_cpu_has_its_own_power_and_the_energy_of_its_counter() {
    let board =
        |c2c: Value| json!({"power_milliwatts": 500_000, "c2c": c2c, "power_limits": {"module_milliwatts": 500_000}});
    let fake = FakeNvml::start(json!({"gpus": [board(json!(null)), board(json!({"enabled": false}))]}));
    let hardware = run(&fake, quick());
    let energy = |state: &HardwareState, index| Some(state.readings.get(&gpu(index))?.totals.energy_joules? >= 500.0);
    let state = wait(&hardware, "energy", |state| (0..2).all(|index| energy(state, index) == Some(true)));
    for index in 0..2 {
        let readings = &state.readings[&gpu(index)];
        let fast = &readings.fast.as_ref().unwrap().value;
        assert_eq!((fast.power_watts, fast.module_power_watts), (Some(500.0), None), "{index}");
        assert_eq!(readings.totals.module_energy_joules, None, "{index}");
        assert!(readings.energy_counter.is_some(), "{index}");
    }
}

/// A rack GPU that is read four times a second, and the joules of it and of its module so far.
struct RackGpu {
    fake: FakeNvml,
    _session: Box<dyn DriverSession>,
    reader: Box<dyn GpuReader>,
    passes: u64,
    own: Option<f64>,
    module: Option<f64>,
}

impl RackGpu {
    fn start(counts_module: bool, power_milliwatts: u32, fields: Value) -> Self {
        let mut state = rack_gpu(0);
        state["power_limits"]["energy_counts_module"] = json!(counts_module);
        state["power_milliwatts"] = json!(power_milliwatts);
        state["fields"].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let fake = FakeNvml::start(json!({"gpus": [state], "clock_microseconds": 1_000_000}));
        let session = open(&fake);
        let reader = session.reader(&gpu(0)).unwrap();
        Self { fake, _session: session, reader, passes: 0, own: None, module: None }
    }

    /// The GPU's watts in each of so many passes.
    fn read(&mut self, passes: u64) -> Vec<Option<f64>> {
        let pass = |_| {
            let milliseconds = 1000 + 250 * self.passes;
            self.passes += 1;
            self.fake.update(|state| state["clock_microseconds"] = json!(1000 * milliseconds));
            let now = Moment { monotonic: Monotonic::from_millis(milliseconds), unix: UnixSeconds(0.0) };
            let read = self.reader.read(&[Tier::Fast].into(), now);
            let add = |sum: &mut Option<f64>, joules: Option<f64>| {
                *sum = joules.map(|joules| sum.unwrap_or(0.0) + joules).or(*sum);
            };
            add(&mut self.own, read.integrals.energy_joules);
            add(&mut self.module, read.integrals.module_energy_joules);
            read.fast.unwrap().power_watts
        };
        (0..passes).map(pass).collect()
    }
}

/// The power of a GPU alone is refused, and so is its mean.
const REFUSED: [&str; 2] = ["185", "186"];

fn of_module(fields: &[&str]) -> Value {
    fields.iter().map(|field| ((*field).to_owned(), json!({"by_scope": {"1": 488_000}}))).collect()
}

/// Holders are charged for the GPU, whatever the counter counts.
#[test]
fn the_energy_of_a_gpu_on_a_module_is_its_own() {
    for (counts_module, fields) in [(false, json!({})), (true, json!({})), (true, of_module(&REFUSED[..1]))] {
        let mut gpu = RackGpu::start(counts_module, 180_000, fields);
        let watts = gpu.read(12);
        assert_eq!(watts, [vec![None; 4], vec![Some(180.0); 8]].concat());
        let (own, module) = (gpu.own.unwrap() / 2.75, gpu.module.unwrap() / 2.75);
        assert!((own / 180.0 - 1.0).abs() < 0.15 && (module - 488.0).abs() < 80.0, "{own} W and {module} W");
    }
}

#[test]
fn the_energy_of_a_gpu_is_unknown_where_its_power_is_that_of_the_module() {
    for fields in [json!({}), of_module(&REFUSED)] {
        let mut gpu = RackGpu::start(true, 488_000, fields);
        assert_eq!(gpu.read(12), vec![None; 12]);
        let module = gpu.module.unwrap() / 2.75;
        assert!(gpu.own.is_none() && (module - 488.0).abs() < 80.0, "{:?} and {module} W", gpu.own);
    }
}

#[test]
fn the_energy_of_a_gpu_is_unknown_after_first_passes_that_fail_on_a_module() {
    let failing = REFUSED.map(|field| (field.to_owned(), json!({"code": 999})));
    let mut gpu = RackGpu::start(true, 488_000, failing.into_iter().collect());
    // Before an answer, nothing shows that the GPU is on a module.
    gpu.read(3);
    gpu.own = None;
    gpu.fake.update(|state| {
        for field in REFUSED {
            state["gpus"][0]["fields"].as_object_mut().unwrap().remove(field);
        }
    });
    assert_eq!(gpu.read(9), vec![None; 9]);
    let module = gpu.module.unwrap() / 2.0;
    assert!(gpu.own.is_none() && (module - 488.0).abs() < 80.0, "{:?} and {module} W", gpu.own);
}
