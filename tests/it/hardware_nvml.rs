//! The hardware module on a driver library that is loaded like the real one and answers from a data file.

use std::sync::Arc;
use std::time::Duration;

use crate::support::fake_nvml::FakeNvml;
use crate::support::hardware::{
    ALL, add_pci_device, at, driver, gpu, has_fast, impatient, machine, medium, open, quick, run, slow,
};
use crate::support::watching::wait;
use podmeter::domain::model::{
    DeviceProcess, DeviceReadings, DurationHistogram, GpmRatios, GpuUuid, HardwareState, MemoryUse, NvLink,
    NvLinkPeers, PciBusId, RowRemap,
};
use podmeter::hardware::{Driver, HardwareHandle, HardwareSettings, PassStatus, Tier};
use serde_json::{Value, json};

fn readings(state: &HardwareState, index: usize) -> &DeviceReadings {
    &state.readings[&gpu(index)]
}

#[test]
fn identity_is_what_the_driver_reports() {
    let fake = FakeNvml::start(json!({
        "driver_version": "570.124.06", "nvml_version": "12.570.124.06", "cuda_version": 12080,
        "gpus": [{"minor": 3, "pci_bus_id": "00000000:1B:00.0", "numa_node": 1, "serial": "42"}, {"architecture": 77}]
    }));
    let hardware = run(&fake, quick());
    let state = wait(&hardware, "readings", |state| has_fast(state, 0));
    let driver = state.inventory.driver.as_ref().unwrap();
    assert_eq!((&*driver.driver_version, driver.cuda_version.as_deref()), ("570.124.06", Some("12.8")));
    let first = &state.inventory.gpus[&gpu(0)];
    assert_eq!((first.index, first.minor, first.numa_node), (Some(0), Some(3), None));
    assert_eq!(first.pci_bus_id.as_ref().unwrap().as_str(), "0000:1b:00.0");
    assert_eq!((first.model.as_deref(), first.serial.as_deref()), (Some("NVIDIA H100 80GB HBM3"), Some("42")));
    assert_eq!((first.architecture.as_deref(), first.compute_capability.as_deref()), (Some("hopper"), Some("9.0")));
    assert_eq!((first.memory_bytes, first.mig_enabled, first.present), (Some(85_520_809_984), Some(false), true));
    assert_eq!(state.inventory.gpus[&gpu(1)].architecture, None);
}

#[test]
fn a_text_that_is_not_utf8_is_no_failed_call() {
    let fake = FakeNvml::start(json!({"gpus": [
        {"serial": "16\u{ff}5", "vbios_version": "96.\u{ff}", "name": "NVIDIA \u{ff}", "uuid": "GPU-\u{ff}"}
    ]}));
    let (inventory, problems) = driver(&fake).open().unwrap().inventory().unwrap();
    let found = &inventory.gpus[&GpuUuid::new("GPU-\u{fffd}")];
    let texts = [&found.serial, &found.vbios_version, &found.model].map(Option::as_deref);
    assert_eq!(texts, [Some("16\u{fffd}5"), Some("96.\u{fffd}"), Some("NVIDIA \u{fffd}")]);
    assert_eq!((problems, fake.calls()["nvmlDeviceGetSerial"]), (vec![], 1));
}

#[test]
fn links_are_counted_as_each_end_reports_them() {
    let to = |bus: u32| json!({"device_type": 0, "pci_bus_id": format!("00000000:{bus:02X}:00.0")});
    let fake = FakeNvml::start(json!({"gpus": [
        {"nvlink": {"links": 12, "down": [11]}},
        {"nvlink": {"links": 4, "down": [3], "remotes": {"0": to(0x12), "1": to(0x12), "2": to(0x99)}}},
        {"nvlink": {"links": 2, "remotes": {"0": to(0x11), "1": to(0x11)}},
         "function_not_found": ["nvmlDeviceGetNvLinkRemoteDeviceType"]},
        {"nvlink": {"links": 0}},
        {"nvlink": {"links": 2, "remote": to(0x11)}, "fail": {"nvmlDeviceGetNvLinkRemotePciInfo_v2": 23}},
        {"nvlink": {"links": 2, "remotes": {"0": {"device_type": 0, "pci_bus_id": ""}, "1": to(0x11)}}}
    ]}));
    let hardware = run(&fake, quick());
    let state = wait(&hardware, "readings", |state| has_fast(state, 4));
    let peers = |index| state.inventory.gpus[&gpu(index)].nvlink_peers.clone();
    let expected = |links: &[(&str, u32)], switch_links| {
        let by_bus_id = links.iter().map(|(bus_id, links)| (PciBusId::from(*bus_id), *links)).collect();
        Some(NvLinkPeers { by_bus_id, switch_links })
    };
    assert_eq!(peers(0), expected(&[], 11));
    assert_eq!(peers(1), expected(&[("0000:12:00.0", 2), ("0000:99:00.0", 1)], 0));
    assert_eq!(peers(2), expected(&[("0000:11:00.0", 2)], 0), "an old driver does not report switches");
    assert_eq!(peers(3), None);
    assert_eq!(peers(4), expected(&[], 0));
    assert_eq!(peers(5), expected(&[("0000:11:00.0", 1)], 0), "no address, no peer");
    assert_eq!(state.errors["nvmlDeviceGetNvLinkRemotePciInfo_v2"]["insufficient_resources"], 2);
}

#[test]
fn the_pci_bus_has_what_the_driver_does_not_report() {
    let fake = FakeNvml::start(json!({"gpus": [
        {"pci_bus_id": "00000000:1B:00.0", "numa_node": 7}, {"pci_bus_id": "00000000:1C:00.0", "numa_node": 8}
    ]}));
    let sys_root = fake.folder().join("sys");
    add_pci_device(&sys_root, "0000:1b:00.0", &[("numa_node", "1")]);
    add_pci_device(&sys_root, "0000:1c:00.0", &[("numa_node", "-1")]);
    add_pci_device(&sys_root, "0000:05:00.0", &[("vendor", "0x1a03"), ("numa_node", "0")]);
    let hardware = run(&fake, HardwareSettings { sys_root, ..quick() });
    let state = wait(&hardware, "readings", |state| has_fast(state, 0));
    assert_eq!(state.inventory.gpus[&gpu(0)].numa_node, Some(1));
    assert_eq!(state.inventory.gpus[&gpu(1)].numa_node, None, "the node of a GPU's own memory is none for pods");
    let on_bus = state.node_devices.as_ref().map(|devices| (devices.expected, devices.on_bus.len()));
    assert_eq!(on_bus, Some((2, 2)));
    assert_eq!((state.inventory.visible(), state.problem.as_deref()), (2, None));
    fake.update(|state| state["gpus"] = json!([]));
    let state = wait(&hardware, "the problem", |state| state.problem.is_some());
    assert!(state.problem.as_deref().unwrap().contains("lost"), "{:?}", state.problem);
}

#[test]
fn a_driver_without_gpus_on_a_node_with_gpus_is_a_fault() {
    let fake = FakeNvml::start(json!({"gpus": []}));
    let sys_root = fake.folder().join("sys");
    add_pci_device(&sys_root, "0000:1b:00.0", &[]);
    let hardware = run(&fake, HardwareSettings { sys_root, ..quick() });
    let state = wait(&hardware, "the problem", |state| state.problem.is_some());
    assert!(state.problem.as_deref().unwrap().contains("no GPU, and the PCI bus has 1 GPU;"), "{:?}", state.problem);
    fake.update(|state| state["gpus"] = json!([{}]));
    let state = wait(&hardware, "readings", |state| has_fast(state, 0));
    assert_eq!(state.problem, None);
}

#[test]
fn a_partitioned_gpu_that_is_lost_half_way_keeps_its_layout() {
    let mig = json!({"mig": {"enabled": true, "instances": [{"gpu_instance": 7}, {"gpu_instance": 8}]}});
    let fake = FakeNvml::start(json!({"gpus": [mig, {}]}));
    let hardware = run(&fake, quick());
    let before = wait(&hardware, "readings", |state| has_fast(state, 0) && has_fast(state, 1));
    assert_eq!(before.inventory.gpus[&gpu(0)].mig_devices.len(), 2);
    // Handle and UUID are still given, and with the third GPU everything is listed again.
    fake.update(|state| {
        state["gpus"][0]["fail"] = json!({"nvmlDeviceGetMigMode": 15});
        state["gpus"].as_array_mut().unwrap().push(json!({}));
    });
    let state = wait(&hardware, "the new GPU", |state| has_fast(state, 2));
    let (known, now) = (&before.inventory.gpus[&gpu(0)], &state.inventory.gpus[&gpu(0)]);
    assert_eq!((&now.mig_devices, now.mig_enabled), (&known.mig_devices, Some(true)));
    fake.update(|state| state["gpus"][0]["fail"] = json!({}));
    let state = wait(&hardware, "all of it", |state| state.inventory.gpus[&gpu(0)].present);
    assert_eq!(state.inventory.gpus[&gpu(0)].mig_devices, known.mig_devices);
}

#[test]
fn a_library_that_does_not_load_reports_why() {
    let fake = FakeNvml::start(machine(1));
    std::fs::write(fake.library_path(), "not a library").unwrap();
    let hardware = run(&fake, quick());
    let state = wait(&hardware, "the problem", |state| state.problem.is_some());
    let problem = state.problem.as_deref().unwrap();
    assert!(problem.contains("could not be loaded") && problem.contains("libnvidia-ml.so.1"), "{problem}");
}

#[test]
fn after_a_driver_upgrade_an_old_library_asks_for_a_restart_of_its_container() {
    const LIB_RM_VERSION_MISMATCH: u32 = 18;
    let mut upgraded = machine(1);
    upgraded["init"] = json!(LIB_RM_VERSION_MISMATCH);
    let fake = FakeNvml::start(upgraded);
    let hardware = run(&fake, quick());
    let state = wait(&hardware, "the problem", |state| state.problem.is_some());
    let problem = state.problem.as_deref().unwrap();
    assert!(problem.contains("lib_rm_version_mismatch") && problem.contains("restart it"), "{problem}");
}

/// A GPU with a value in every group.
fn full_gpu() -> Value {
    json!({"gpus": [{
        "utilization": {"gpu": 80, "memory": 40, "encoder": 50}, "power_milliwatts": 300_000,
        "memory": {"used_bytes": 1_073_741_824_u64},
        "temperatures": {"gpu": 61, "memory": 70, "margin": 26},
        "power_limits": {"enforced": 650_000, "management": 680_000},
        "clocks": {"sm": 1_755, "graphics": 1_755, "memory": 2_619, "video": 1_400},
        "clock_event_reasons": {
            "mask": 4, "power_cap_nanoseconds": 2_500_000_000_u64, "hw_thermal_nanoseconds": 7_000_000_000_u64
        },
        "performance_state": 2, "fans": [30, 45],
        "gpm": {"metrics": {"1": 80, "2": 45.5, "3": 20, "10": 33, "5": 12, "12": 7, "248": 1e9, "249": 5e8, "251": 5e8}},
        "ecc": {
            "volatile": {"corrected": 5, "uncorrected": 2, "sram_corrected": 1},
            "aggregate": {"corrected": 50, "uncorrected": 3}
        },
        "remapped_rows": {"correctable": 1, "uncorrectable": 2, "pending": true, "max": 639, "high": 1},
        "retired_pages": {"single_bit": [4096, 8192], "double_bit": [], "pending": true},
        "pcie": {"generation": 4, "width": 8, "replay": 9, "tx_bytes": 111, "rx_bytes": 222, "correctable_errors": 3},
        "nvlink": {"links": 4, "down": [3], "data_tx_kib": 10, "data_rx_kib": 20, "crc_errors": 2},
        "fields": {
            "38": 1, "45": 2, "213": {"by_scope": {"4294967295": 3}},
            "303": 4, "304": 1, "305": 30, "306": 2, "307": {"word": 1}
        },
        "recovery_action": 1, "vgpu_license": true
    }]})
}

/// Read until GPM has had its second sample; no call fails.
fn read_full_gpu() -> Arc<HardwareState> {
    let fake = FakeNvml::start(full_gpu());
    let hardware = run(&fake, quick());
    let state = wait(&hardware, "a second GPM sample", |state| {
        medium(state, 0).is_some_and(|medium| medium.gpm.sm_active.is_some())
    });
    assert!(state.errors.is_empty(), "{:?}", state.errors);
    state
}

#[test]
fn utilization_power_memory_and_temperatures_are_those_of_the_driver() {
    let state = read_full_gpu();
    let fast = &readings(&state, 0).fast.as_ref().unwrap().value;
    let ratio = fast.utilization_ratio.unwrap();
    assert!((ratio - 0.8).abs() < 1e-9 && fast.power_watts == Some(300.0), "{fast:?}");
    let medium = medium(&state, 0).unwrap();
    let used = 1_073_741_824;
    let (reserved, total) = (655_360_000, 85_520_809_984);
    assert_eq!(medium.memory, Some(MemoryUse { used, free: total - reserved - used, reserved: Some(reserved), total }));
    assert_eq!((medium.gpu_temperature_celsius, medium.memory_temperature_celsius), (Some(61.0), Some(70.0)));
    assert_eq!(medium.temperature_margin_celsius, Some(26.0));
    assert_eq!((medium.power_limit_watts, medium.power_limit_requested_watts), (Some(650.0), Some(680.0)));
    assert_eq!((medium.performance_state, &medium.fan_speed_ratios[..]), (Some(2), &[0.3, 0.45][..]));
}

#[test]
fn clocks_and_the_reasons_of_their_reduction_are_those_of_the_driver() {
    let state = read_full_gpu();
    let medium = medium(&state, 0).unwrap();
    assert_eq!((medium.clocks.sm_hertz, medium.clocks.video_hertz), (Some(1.755e9), Some(1.4e9)));
    assert_eq!((medium.throttled_seconds["sw_power_cap"], medium.throttled_seconds["hw_thermal_slowdown"]), (2.5, 7.0));
    assert_eq!(medium.throttled_seconds.len(), 5);
    assert!(medium.clock_events["sw_power_cap"] && !medium.clock_events["idle"]);
    assert!(medium.clock_event_samples["sw_power_cap"] >= 2 && medium.clock_event_samples["idle"] == 0);
    assert_eq!(medium.clock_event_starts["sw_power_cap"], 0, "active since before the first reading");
}

#[test]
fn gpm_metrics_are_ratios_and_cycles() {
    let state = read_full_gpu();
    let medium = medium(&state, 0).unwrap();
    assert_eq!((medium.gpm.sm_active, medium.gpm.dram_active), (Some(0.455), Some(0.33)));
    assert_eq!(medium.gpm.pipes.get("tensor"), Some(&0.12));
    assert_eq!((medium.gpm.pipes.get("fp32"), medium.gpm.pipes.get("fp64")), (Some(&0.07), None));
    assert!(medium.sm_cycles.is_some() && medium.sm_active_cycles.is_some());
    assert_eq!(medium.pipe_cycles.get("dmma").copied(), medium.sm_active_cycles, "both rise as fast");
    assert_eq!(medium.pipe_cycles.len(), 1);
}

#[test]
fn memory_errors_and_the_recovery_action_are_those_of_the_driver() {
    let state = read_full_gpu();
    let slow = slow(&state, 0).unwrap();
    let ecc: Vec<_> = slow.ecc.iter().map(|ecc| (ecc.location, ecc.corrected, ecc.uncorrected)).collect();
    assert_eq!(ecc, [("dram", Some(4), Some(2)), ("sram", Some(1), Some(0))]);
    assert_eq!((slow.ecc_lifetime_corrected, slow.ecc_lifetime_uncorrected), (Some(50), Some(3)));
    assert_eq!(slow.row_remap, Some(RowRemap { correctable: 1, uncorrectable: 2, pending: true, failed: false }));
    assert_eq!((slow.row_remap_banks["max"], slow.row_remap_banks["high"]), (639, 1));
    let counts = ["active", "inactive"].map(|state| slow.bank_remaps[state]);
    assert_eq!((counts, slow.bank_remap_groups["max"], slow.bank_remap_groups["none"]), ([4, 1], 30, 2));
    assert_eq!((slow.bank_remap_pending, slow.remap_pending()), (Some(true), Some(true)));
    assert_eq!((slow.retired_pages["single_bit"], slow.retired_pages["double_bit"]), (2, 0));
    assert_eq!(slow.retired_pages_pending, Some(true));
    assert_eq!((slow.recovery_action, slow.vgpu_licensed), (Some(1), Some(true)));
}

#[test]
fn pcie_nvlink_and_fabric_are_those_of_the_driver() {
    let state = read_full_gpu();
    let slow = slow(&state, 0).unwrap();
    assert_eq!((slow.pcie.replays, slow.pcie.errors.get("correctable")), (Some(9), Some(&3)));
    assert_eq!((slow.pcie.transmitted_bytes, slow.pcie.received_bytes), (Some(111.0), Some(222.0)));
    assert_eq!((slow.pcie.link_generation, slow.pcie.link_generation_max), (Some(4), Some(5)));
    assert_eq!((slow.pcie.link_width_lanes, slow.pcie.link_width_lanes_max), (Some(8), Some(16)));
    assert_eq!((slow.nvlink.active_links, slow.nvlink.inactive_links), (Some(3), Some(1)));
    assert_eq!((slow.nvlink.transmitted_bytes, slow.nvlink.received_bytes), (Some(30_720.0), Some(61_440.0)));
    assert_eq!(slow.nvlink.errors, [("crc", 6), ("recovery", 0), ("replay", 0)].into());
    assert_eq!(slow.nvlink.error_sums, [("crc_flit", 1), ("crc_data", 2), ("recovery_successful", 3)].into());
    let fabric = slow.fabric.as_ref().unwrap();
    assert_eq!((fabric.state, fabric.health_mask, fabric.health_summary), ("completed", Some(0x51AA), Some(1)));
}

#[test]
fn nvlink_bytes_are_those_of_the_links_while_these_are_down_or_not_read() {
    let fake = FakeNvml::start(json!({"gpus": [{"nvlink": {"links": 2, "down": [0, 1], "data_tx_kib": 10}}]}));
    let hardware = run(&fake, quick());
    let read = |what, is_wanted: &dyn Fn(&NvLink) -> bool| {
        let state = wait(&hardware, what, |state| slow(state, 0).is_some_and(|slow| is_wanted(&slow.nvlink)));
        slow(&state, 0).unwrap().nvlink.transmitted_bytes
    };
    let set_down = |down| fake.update(|state| state["gpus"][0]["nvlink"]["down"] = down);
    assert_eq!(read("no active link", &|nvlink| nvlink.active_links == Some(0)), None, "the driver's sum is 0");
    set_down(json!([]));
    assert_eq!(read("active links", &|nvlink| nvlink.active_links == Some(2)), Some(20_480.0));
    set_down(json!([0, 1]));
    assert_eq!(read("no active link", &|nvlink| nvlink.active_links == Some(0)), Some(20_480.0));
    set_down(json!([]));
    let only_sum = json!({"by_scope": {u32::MAX.to_string(): 1}});
    fake.update(|state| state["gpus"][0]["fields"] = json!({"138": only_sum, "139": only_sum}));
    assert_eq!(read("no bytes of links", &|nvlink| nvlink.transmitted_bytes != Some(20_480.0)), None);
}

#[test]
fn totals_follow_the_load() {
    let fake = FakeNvml::start(json!({"gpus": [{
        "utilization": {"gpu": 75, "memory": 25, "decoder": 50}, "power_milliwatts": 400_000
    }]}));
    let hardware = run(&fake, quick());
    let state = wait(&hardware, "time to pass", |state| {
        state.readings.get(&gpu(0)).is_some_and(|readings| readings.totals.energy_joules > Some(1200.0))
    });
    let totals = &readings(&state, 0).totals;
    // 1200 J at 400 W are three seconds; the newest sample may be a period and a pass old.
    let seconds = totals.energy_joules.unwrap() / 400.0;
    let near = |shown: Option<f64>, rate: f64| shown.is_some_and(|shown| (shown - rate * seconds).abs() < 0.45);
    assert!(near(totals.busy_seconds, 0.75), "{totals:?}");
    assert!(near(totals.memory_busy_seconds, 0.25), "{totals:?}");
    assert!(near(totals.engine_busy_seconds.get("decoder").copied(), 0.5), "{totals:?}");
    assert_eq!(totals.engine_busy_seconds["encoder"], 0.0);
    assert!(totals.uncovered_seconds < 0.01, "{totals:?}");
}

/// A whole GPU, and one of two instances that have been read.
fn partitioned() -> (FakeNvml, HardwareHandle, Arc<HardwareState>) {
    let fake = FakeNvml::start(json!({"gpus": [{}, {
        "utilization": {"gpu": 90}, "memory": {"used_bytes": 300},
        "mig": {"enabled": true, "instances": [
            {"gpu_instance": 7, "profile": "1g.10gb", "memory_used_bytes": 100, "gpm": {"metrics": {"2": 50}}},
            {"gpu_instance": 2, "index": 3, "profile": "3g.40gb", "placement": {"start": 4, "size": 4}, "memory_used_bytes": 200}
        ]}
    }]}));
    let hardware = run(&fake, quick());
    let state = wait(&hardware, "GPM of an instance", |state| {
        medium(state, 1).is_some_and(|medium| medium.instances.iter().any(|instance| instance.gpm.sm_active.is_some()))
    });
    (fake, hardware, state)
}

#[test]
fn a_partitioned_gpu_lists_its_mig_devices_as_the_driver_numbers_them() {
    let (_fake, _hardware, state) = partitioned();
    let partitioned = &state.inventory.gpus[&gpu(1)];
    assert_eq!((partitioned.mig_enabled, partitioned.mig_devices.len()), (Some(true), 2));
    let small = &partitioned.mig_devices[0];
    assert_eq!((small.gpu_instance, small.compute_instance, &*small.profile, small.slices), (7, 0, "1g.10gb", 1));
    assert_eq!((small.profile_id, small.placement_start), (Some(19), Some(0)));
    let large = &partitioned.mig_devices[1];
    assert_eq!((small.index, large.index), (0, 3), "the driver's own numbers, gaps and all");
    assert_eq!(
        (&*large.profile, large.profile_id, large.placement_start, large.slices),
        ("3g.40gb", Some(9), Some(4), 3)
    );
}

#[test]
fn a_partitioned_gpu_is_read_by_instance_and_has_no_utilization_of_its_own() {
    let (_fake, _hardware, state) = partitioned();
    let shown = readings(&state, 1);
    assert_eq!((shown.totals.busy_seconds, shown.fast.as_ref().unwrap().value.utilization_ratio), (None, None));
    assert!(shown.totals.energy_joules.is_some() && shown.totals.uncovered_seconds == 0.0);
    let instances = &shown.medium.as_ref().unwrap().value.instances;
    let used: Vec<_> =
        instances.iter().map(|one| (one.gpu_instance, one.memory.unwrap().used, one.gpm.sm_active)).collect();
    assert_eq!(used[0].0, 2);
    assert_eq!((used[1].0, used[1].1, used[1].2), (7, 100, Some(0.5)));
}

#[test]
fn gpm_with_nothing_but_zeroes_of_a_busy_gpu_is_discarded_and_counted() {
    let zeroes = gpm_of_zeroes();
    let fake = FakeNvml::start(json!({"gpus": [
        {"utilization": {"gpu": 80}, "gpm": zeroes}, {"utilization": {"gpu": 3}, "gpm": zeroes}
    ]}));
    let hardware = run(&fake, quick());
    let state = wait(&hardware, "GPM of both", |state| {
        medium(state, 1).is_some_and(|idle| idle.gpm.sm_active == Some(0.0))
            && state.implausible_readings["gpm_ratio"] >= 1
    });
    assert_eq!(medium(&state, 0).unwrap().gpm, GpmRatios::default());
    let ratio = readings(&state, 0).fast.as_ref().unwrap().value.utilization_ratio.unwrap();
    assert!((ratio - 0.8).abs() < 1e-9, "{ratio}");
}

#[test]
fn gpm_with_nothing_but_zeroes_of_a_partitioned_gpu_is_judged_by_its_power() {
    let zeroes = gpm_of_zeroes();
    let instance = |gpu_instance, gpm: &Value| json!({"gpu_instance": gpu_instance, "profile": "1g.10gb", "gpm": gpm});
    let mig = json!({"enabled": true, "instances": [instance(7, &zeroes), instance(8, &zeroes)]});
    let one_works = [instance(7, &zeroes), instance(8, &json!({"metrics": {"1": 30, "2": 20}}))];
    let fake = FakeNvml::start(json!({"gpus": [
        {"power_milliwatts": 500_000, "mig": mig},
        {"power_milliwatts": 70_000, "mig": mig},
        {"power_milliwatts": 500_000, "mig": {"enabled": true, "instances": one_works}},
    ]}));
    // Longer than the least window of GPM, which a delay between the two samples could undercut.
    let hardware = run(&fake, HardwareSettings { sample_interval: Duration::from_millis(150), ..quick() });
    let has_use = |state: &HardwareState, index| {
        has_fast(state, index)
            && !readings(state, index).fast.as_ref().unwrap().value.instance_utilization_ratios.is_empty()
    };
    // Only the first GPU has one that is discarded; its next medium reading is without these, too.
    let counted = wait(&hardware, "an implausible reading", |state| {
        state.implausible_readings.get("gpm_ratio").is_some_and(|count| *count >= 1)
    });
    let medium_at = |state: &HardwareState| state.readings.get(&gpu(0))?.medium.as_ref().map(|medium| medium.at);
    let state = wait(&hardware, "GPM of the others", |state| {
        medium_at(state) > medium_at(&counted) && has_use(state, 1) && has_use(state, 2)
    });
    let busy = |index| readings(&state, index).totals.instance_busy_seconds.clone();
    assert!(busy(0).is_empty() && !has_use(&state, 0), "its time is unknown, not idle");
    assert!(medium(&state, 0).unwrap().instances.iter().all(|instance| instance.gpm == GpmRatios::default()));
    assert_eq!(busy(1), [(7, 0.0), (8, 0.0)].into(), "a board that draws little is idle");
    assert!(busy(2)[&7] <= 0.0 && busy(2).contains_key(&8), "one instance may be idle");
}

fn gpm_of_zeroes() -> Value {
    json!({"metrics": {"1": 0, "2": 0, "3": 0, "10": 0, "5": 0}})
}

#[test]
fn a_gpu_that_is_whole_again_is_read_and_the_others_without_a_break() {
    let (fake, hardware, state) = partitioned();
    let (before, uncovered) = (state.inventory.generation, readings(&state, 0).totals.uncovered_seconds);
    fake.update(|state| state["gpus"][1]["mig"] = json!({"enabled": false}));
    let state = wait(&hardware, "the whole GPU", |state| {
        state.inventory.gpus[&gpu(1)].mig_devices.is_empty() && readings(state, 1).totals.busy_seconds.is_some()
    });
    assert!(state.inventory.generation > before);
    assert_eq!(readings(&state, 0).totals.uncovered_seconds, uncovered, "the other GPU was read without a break");
}

#[test]
fn a_mig_mode_that_changes_without_instances_is_noticed() {
    let with = |mig: bool| json!({"utilization": {"gpu": 50}, "mig": {"enabled": mig}});
    let fake = FakeNvml::start(json!({"gpus": [with(true), with(false)]}));
    let hardware = run(&fake, quick());
    let busy = |state: &HardwareState, index| state.readings.get(&gpu(index))?.totals.busy_seconds;
    let before = wait(&hardware, "readings", |state| has_fast(state, 0) && busy(state, 1) > Some(0.0));
    assert_eq!(busy(&before, 0), None);
    fake.update(|state| state["gpus"] = json!([with(false), with(true)]));
    let state = wait(&hardware, "the whole GPU", |state| busy(state, 0) > Some(0.0) && busy(state, 1).is_none());
    assert_eq!([0, 1].map(|index| state.inventory.gpus[&gpu(index)].mig_enabled), [Some(false), Some(true)]);
    // A mode that cannot be read for a moment is no change.
    let generation = state.inventory.generation;
    let complete_until = readings(&state, 0).totals.complete_until;
    fake.update(|state| state["fail"] = json!({"nvmlDeviceGetMigMode": 999}));
    let state = wait(&hardware, "two checks of the layout", |state| {
        readings(state, 0).totals.complete_until.since(complete_until) > Duration::from_millis(600)
    });
    assert_eq!(state.inventory.generation, generation);
}

fn process(pid: u32, kind: &str, memory: Option<u64>) -> Value {
    json!({"pid": pid, "kind": kind, "memory_bytes": memory})
}

fn alone(pid: u32, memory_bytes: Option<u64>) -> DeviceProcess {
    DeviceProcess { pid, gpu_instance: None, compute_instance: None, memory_bytes }
}

/// What the first pass over each GPU lists.
fn listed(gpus: Value) -> Vec<Option<Vec<DeviceProcess>>> {
    let count = gpus.as_array().unwrap().len();
    let fake = FakeNvml::start(json!({ "gpus": gpus }));
    let session = open(&fake);
    let read = |index| session.reader(&gpu(index)).unwrap().read(&ALL, at(0)).medium.unwrap().processes;
    (0..count).map(read).collect()
}

#[test]
fn processes_are_listed_once_each_with_what_is_known_of_them() {
    let crowd: Vec<Value> = (0..300).map(|pid| process(1000 + pid, "mps", Some(1))).collect();
    let slice = |pid: u32, gpu_instance: u32| json!({"pid": pid, "memory_bytes": 5, "gpu_instance": gpu_instance, "compute_instance": 0});
    let mig = json!({"enabled": true, "instances": [{"gpu_instance": 3}, {"gpu_instance": 4}]});
    let listed = listed(json!([
        {"processes": [process(20, "compute", Some(9)), process(10, "graphics", None), process(20, "graphics", None)]},
        {"processes": crowd},
        {},
        {"mig": mig, "processes": [slice(7, 3), slice(7, 4)]},
    ]));
    let on = |pid, instance| DeviceProcess {
        gpu_instance: Some(instance),
        compute_instance: Some(0),
        ..alone(pid, Some(5))
    };
    assert_eq!(listed[0], Some(vec![alone(10, None), alone(20, Some(9))]));
    assert_eq!(listed[1].as_ref().map(Vec::len), Some(300), "read again with a larger buffer");
    assert_eq!(listed[2], Some(vec![]));
    assert_eq!(listed[3], Some(vec![on(7, 3), on(7, 4)]));
}

#[test]
fn half_a_list_of_processes_is_none_unless_the_driver_has_no_other_half() {
    let listed = listed(json!([
        {"processes": [process(1, "compute", None)], "fail": {"nvmlDeviceGetGraphicsRunningProcesses_v3": 4}},
        {"processes": [process(1, "compute", None)], "fail": {"nvmlDeviceGetMPSComputeRunningProcesses_v3": 3}},
        {"function_not_found": ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"]},
        {"processes": [process(1, "graphics", None)], "function_not_found": [
            "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
            "nvmlDeviceGetMPSComputeRunningProcesses_v3"
        ]}
    ]));
    assert_eq!((&listed[0], &listed[2]), (&None, &None));
    assert_eq!(listed[1], Some(vec![alone(1, None)]), "a driver without MPS");
    assert_eq!(listed[3], Some(vec![alone(1, None)]), "a driver with the second version alone");
}

#[test]
fn a_refused_list_of_processes_is_not_requested_again() {
    let call = "nvmlDeviceGetGraphicsRunningProcesses_v3";
    let fake = FakeNvml::start(json!({"gpus": [{"processes": [process(1, "compute", None)], "fail": {call: 4}}]}));
    let mut driver = driver(&fake);
    let calls = driver.call_durations().unwrap();
    let session = driver.open().unwrap();
    session.inventory().unwrap();
    let mut reader = session.reader(&gpu(0)).unwrap();
    let mut read = || (reader.read(&ALL, at(0)).medium.unwrap().processes, calls()[call].count());
    let first = read();
    assert_eq!(first.0, None);
    assert_eq!(read(), first);
}

#[test]
fn a_list_of_processes_that_fails_alone_does_not_make_a_gpu_lost() {
    let fail = json!({"nvmlDeviceGetComputeRunningProcesses_v3": 999});
    let fake = FakeNvml::start(json!({"gpus": [{"fail": fail}]}));
    let mut reader = open(&fake).reader(&gpu(0)).unwrap();
    for tier in [Tier::Fast, Tier::Processes, Tier::Processes] {
        let pass = reader.read(&[tier].into(), at(1));
        assert_eq!((pass.status, pass.pids), (PassStatus::Answers, None), "{tier:?}");
    }
    fake.update(|state| state["gpus"][0] = json!({"lost": true}));
    assert_eq!(reader.read(&[Tier::Processes].into(), at(2)).status, PassStatus::Lost);
}

#[test]
fn a_partitioned_gpu_without_data_is_read_by_instance() {
    let fake = FakeNvml::start(json!({"gpus": [{
        "fail": {"nvmlDeviceGetGraphicsRunningProcesses_v3": 4},
        "mig": {"enabled": true, "instances": [{"gpu_instance": 3}, {"gpu_instance": 4}]},
        "processes": [{"pid": 7, "gpu_instance": 4, "compute_instance": 0}]
    }]}));
    let session = open(&fake);
    let mut reader = session.reader(&gpu(0)).unwrap();
    for second in 0..2 {
        let processes = reader.read(&ALL, at(second)).medium.unwrap().processes;
        let process = DeviceProcess { pid: 7, gpu_instance: Some(4), compute_instance: Some(0), memory_bytes: None };
        assert_eq!(processes, Some(vec![process]));
    }
}

#[test]
fn what_each_process_does_is_integrated() {
    let working = |first: u32, second: u32| json!([{"pid": 10, "sm": first}, {"pid": 11, "sm": second}, {"pid": 12}, {"pid": 13, "sm": 4_000_000_000_u32}]);
    let fake = FakeNvml::start(json!({"gpus": [
        {"processes": working(60, 20), "samples": {"period_microseconds": 50_000}},
        {"mig": {"enabled": true, "instances": [{}]}, "processes": [{"pid": 10, "sm": 50}]},
        {}
    ]}));
    let hardware = run(&fake, quick());
    let worked = |state: &HardwareState, pid: u32| {
        let process = readings(state, 0).totals.process_sm_seconds.as_ref()?.get(&pid)?;
        Some((*process, readings(state, 0).totals.complete_until))
    };
    let state = wait(&hardware, "work", |state| has_fast(state, 0) && worked(state, 11).is_some());
    let (begin, since) = worked(&state, 10).unwrap();
    let other = worked(&state, 11).unwrap().0;
    let state = wait(&hardware, "more of it", |state| worked(state, 10).is_some_and(|(now, _)| now > begin + 1.8));
    let (now, until) = worked(&state, 10).unwrap();
    let elapsed = until.since(since).as_secs_f64();
    // A busy machine may stop a pass for a part of a second between its reading of the clock and of the samples.
    assert!(((now - begin) - 0.6 * elapsed).abs() < 0.36, "{} SM-seconds in {elapsed} s", now - begin);
    let ratio = (worked(&state, 11).unwrap().0 - other) / (now - begin);
    assert!((ratio - 1.0 / 3.0).abs() < 0.03, "{ratio}");
    assert_eq!((worked(&state, 12), worked(&state, 13)), (None, None), "an idle one, and one that a driver made up");
    assert_eq!(readings(&state, 1).totals.process_sm_seconds, None, "partitioned: not reported");
    assert_eq!(readings(&state, 2).totals.process_sm_seconds, Some([].into()), "no process runs");
    // Never more than the device, whatever they claim together.
    fake.update(|state| state["gpus"][0]["processes"] = working(90, 90));
    let sum = |state: &HardwareState| worked(state, 10).zip(worked(state, 11)).map_or(0.0, |(one, two)| one.0 + two.0);
    let before = wait(&hardware, "the new load", |state| sum(state) > now);
    let after = wait(&hardware, "more of that", |state| sum(state) > sum(&before) + 2.0);
    let elapsed =
        readings(&after, 0).totals.complete_until.since(readings(&before, 0).totals.complete_until).as_secs_f64();
    assert!(sum(&after) - sum(&before) < elapsed + 0.6, "{} in {elapsed} s", sum(&after) - sum(&before));
}

#[test]
fn a_missing_library_is_named_and_found_when_it_appears() {
    let fake = FakeNvml::start(machine(1));
    let hidden = fake.folder().join("hidden");
    std::fs::rename(fake.library_path(), &hidden).unwrap();
    let hardware = run(&fake, quick());
    let state = wait(&hardware, "the problem", |state| state.problem.is_some());
    let problem = state.problem.as_deref().unwrap();
    assert!(
        problem.contains(&*fake.library_path().to_string_lossy()) && problem.contains("--nvml-library"),
        "{problem}"
    );
    std::fs::rename(hidden, fake.library_path()).unwrap();
    let state = wait(&hardware, "readings", |state| has_fast(state, 0));
    assert_eq!(state.problem, None);
    assert!(state.errors["dlopen"]["library_not_found"] >= 1);
}

/// One GPU with failing calls, and one of which nothing but its handle and UUID can be read.
fn with_failing_calls() -> Arc<HardwareState> {
    let fake = FakeNvml::start(json!({
        "function_not_found": [
            "nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetMemoryInfo_v2",
            "nvmlDeviceGetCurrentClocksEventReasons"
        ],
        "gpus": [{
            "utilization": {"gpu": 50}, "samples": {"silent": true}, "clock_event_reasons": {"mask": 1},
            "fail": {
                "nvmlDeviceGetPowerUsage": 999, "nvmlDeviceGetTemperature": 999, "nvmlDeviceGetFieldValues": 10,
                "nvmlDeviceGetSerial": 4, "nvmlDeviceGetClockInfo": 10, "nvmlGpmSampleGet": 999,
                "nvmlDeviceGetTotalEnergyConsumption": 3, "nvmlDeviceGetRemappedRows": 4,
                "nvmlDeviceGetNvLinkState": 999,
                "nvmlDeviceGetMemoryErrorCounter": 3, "nvmlDeviceGetPcieReplayCounter": 14,
                "nvmlDeviceGetGridLicensableFeatures_v4": 3
            }
        }, {"fail": {"*": 999, "nvmlDeviceGetHandleByIndex_v2": 0, "nvmlDeviceGetUUID": 0}}]
    }));
    let hardware = run(&fake, quick());
    let state = wait(&hardware, "half a second of use", |state| {
        state.readings.get(&gpu(0)).is_some_and(|readings| readings.totals.busy_seconds > Some(0.25))
    });
    assert_eq!(state.problem, None);
    state
}

#[test]
fn failing_calls_cost_their_own_values() {
    let state = with_failing_calls();
    let fast = &readings(&state, 0).fast.as_ref().unwrap().value;
    assert_eq!((fast.utilization_ratio, fast.power_watts), (Some(0.5), None));
    let medium = medium(&state, 0).unwrap();
    let memory = medium.memory.unwrap();
    assert_eq!((memory.reserved, memory.used), (None, 655_360_000));
    assert_eq!((medium.gpu_temperature_celsius, medium.temperature_margin_celsius), (None, None));
    assert_eq!((medium.clocks.sm_hertz, medium.throttled_seconds.len()), (None, 0));
    assert!(medium.clock_events["idle"] && medium.power_limit_watts == Some(700.0));
    let slow = slow(&state, 0).unwrap();
    assert_eq!((slow.row_remap, slow.pcie.replays, slow.pcie.link_generation), (None, None, Some(5)));
    assert!(slow.ecc.is_empty() && slow.nvlink.active_links.is_none() && slow.recovery_action.is_none());
    assert_eq!(slow.vgpu_licensed, None);
    assert!(readings(&state, 1).lost && !has_fast(&state, 1));
}

#[test]
fn failures_are_counted_and_what_is_unsupported_is_not() {
    let state = with_failing_calls();
    let errors = &state.errors;
    assert!(errors["nvmlDeviceGetPowerUsage"]["unknown"] >= 1);
    assert!(errors["nvmlDeviceGetPcieReplayCounter"]["corrupted_inforom"] >= 1);
    let energy = errors.get("nvmlDeviceGetTotalEnergyConsumption");
    assert!(!energy.is_some_and(|codes| codes.contains_key("not_supported")), "unsupported is no error");
}

#[test]
fn whichever_half_of_the_calls_fails_the_other_half_is_read() {
    let mig = json!({"mig": {"enabled": true, "instances": [{}, {}]}});
    let whole = FakeNvml::start(json!({"gpus": [{}, mig]}));
    let mut driver = driver(&whole);
    let names: Vec<_> = {
        let session = driver.open().unwrap();
        session.inventory().unwrap();
        for index in 0..2 {
            session.reader(&gpu(index)).unwrap().read(&ALL, at(1));
        }
        driver.call_durations().unwrap()().into_keys().collect()
    };
    assert!(names.len() > 40, "{names:?}");
    // Without these there is no GPU to read.
    let needed = ["nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"];
    for (code, half) in [10, 999, 3, 2, 21, 7].into_iter().flat_map(|code| [(code, 0), (code, 1)]) {
        let failing = names.iter().enumerate().filter(|(at, name)| at % 2 == half && !needed.contains(name));
        let failing: Value = failing.map(|(_, name)| ((*name).to_owned(), json!(code))).collect();
        let fake = FakeNvml::start(json!({"fail": failing, "gpus": [{}, mig]}));
        let session = open(&fake);
        let _ = session.inventory();
        for index in 0..2 {
            let mut reader = session.reader(&gpu(index)).unwrap();
            for second in 1..4 {
                let pass = reader.read(&ALL, at(second));
                assert_eq!(pass.status, PassStatus::Answers, "{failing}");
                let (medium, slow) = (pass.medium.unwrap(), pass.slow.unwrap());
                let fails = |name: &str| failing.get(name).is_some();
                assert_eq!(medium.power_limit_watts.is_none(), fails("nvmlDeviceGetEnforcedPowerLimit"));
                assert_eq!(medium.clocks.sm_hertz.is_none(), fails("nvmlDeviceGetClockInfo"));
                assert_eq!(slow.pcie.replays.is_none(), fails("nvmlDeviceGetPcieReplayCounter"));
            }
        }
    }
}

#[test]
fn without_an_energy_counter_power_is_integrated() {
    let fake = FakeNvml::start(json!({"gpus": [{
        "power_milliwatts": 500_000, "fail": {"nvmlDeviceGetTotalEnergyConsumption": 3}
    }]}));
    let hardware = run(&fake, quick());
    let joules = |state: &HardwareState| state.readings.get(&gpu(0)).and_then(|readings| readings.totals.energy_joules);
    let first = wait(&hardware, "the first joules", |state| joules(state) > Some(0.0));
    let later = wait(&hardware, "500 J more", |state| joules(state) > joules(&first).map(|joules| joules + 500.0));
    let seconds =
        readings(&later, 0).totals.complete_until.since(readings(&first, 0).totals.complete_until).as_secs_f64();
    let watts = (joules(&later).unwrap() - joules(&first).unwrap()) / seconds;
    assert!((350.0..650.0).contains(&watts), "{watts} W over {seconds} s");
}

#[test]
fn a_gpu_lost_from_the_start_appears_when_it_answers() {
    let fake = FakeNvml::start(json!({"gpus": [{}, {"lost": true}]}));
    let hardware = run(&fake, quick());
    let state = wait(&hardware, "readings", |state| has_fast(state, 0));
    assert_eq!(state.inventory.gpus.len(), 1);
    fake.update(|state| state["gpus"][1]["lost"] = json!(false));
    wait(&hardware, "the second GPU", |state| has_fast(state, 1));
}

#[test]
fn a_gpu_that_hangs_from_the_start_hides_no_other() {
    let fake = FakeNvml::start(json!({"gpus": [{"hang": ["nvmlDeviceGetName"]}, {}]}));
    let hardware = run(&fake, quick());
    let state = wait(&hardware, "the other GPU", |state| has_fast(state, 1));
    assert_eq!(state.inventory.gpus.len(), 1);
    assert!(state.errors["nvmlDeviceGetHandleByIndex_v2"]["stuck"] >= 1);
    fake.update(|state| state["gpus"][0]["hang"] = json!([]));
    wait(&hardware, "both", |state| has_fast(state, 0) && has_fast(state, 1));
}

#[test]
fn a_layout_check_that_hangs_stops_no_reading() {
    let fake = FakeNvml::start(machine(2));
    let hardware = run(&fake, impatient());
    wait(&hardware, "readings", |state| has_fast(state, 0));
    fake.update(|state| state["hang"] = json!(["nvmlDeviceGetCount_v2"]));
    let complete_until = |state: &HardwareState| readings(state, 0).totals.complete_until;
    let begin = complete_until(&hardware.states.borrow());
    let later = |state: &HardwareState| complete_until(state).since(begin) > Duration::from_secs(2);
    wait(&hardware, "readings past the watchdog's patience", |state| {
        later(state) && has_fast(state, 0) && has_fast(state, 1) && !readings(state, 0).stuck
    });
    let inventory = |state: &HardwareState| (state.collectors["inventory"].stuck, state.problem.is_some());
    wait(&hardware, "the report", |state| inventory(state) == (true, false));
    fake.update(|state| {
        state["hang"] = json!([]);
        state["gpus"] = json!([{}, {}, {}]);
    });
    wait(&hardware, "the new GPU", |state| has_fast(state, 2) && inventory(state) == (false, false));
}

#[test]
fn a_count_that_fails_is_a_failure_of_the_list_and_stops_no_reading() {
    let fake = FakeNvml::start(machine(1));
    let hardware = run(&fake, quick());
    let before = wait(&hardware, "readings", |state| has_fast(state, 0) && state.collectors["inventory"].success);
    fake.update(|state| state["fail"] = json!({"nvmlDeviceGetCount_v2": 999}));
    let state = wait(&hardware, "the failure", |state| !state.collectors["inventory"].success);
    assert!(state.errors["nvmlDeviceGetCount_v2"]["unknown"] >= 1 && has_fast(&state, 0));
    fake.update(|state| state["fail"] = json!({}));
    let state = wait(&hardware, "the list", |state| state.collectors["inventory"].success);
    assert_eq!(state.sessions, before.sessions);
}

#[test]
fn a_gpu_whose_call_hangs_is_not_queried_in_the_next_session() {
    let fake = FakeNvml::start(json!({"gpus": [{"hang": ["nvmlDeviceGetName"]}, {}]}));
    let mut driver = driver(&fake);
    for _ in 0..2 {
        let (inventory, _) = driver.open().unwrap().inventory().unwrap();
        assert!(inventory.gpus.keys().eq([&gpu(1)]));
    }
    let record = fake.record();
    let queries = |gpu: &str| {
        let calls = record.iter().filter(|((call, on), _)| call.starts_with("nvmlDeviceGetUUID") && on == gpu);
        calls.map(|(_, times)| times.len()).sum::<usize>()
    };
    assert_eq!((queries("0"), queries("1")), (1, 2));
    fake.update(|state| state["gpus"][0]["hang"] = json!([]));
}

#[test]
fn the_memory_of_an_instance_is_read_at_once_after_that_of_its_gpu() {
    let mig = json!({"enabled": true, "instances": [{"gpu_instance": 1, "profile": "1g.10gb"}]});
    let fake = FakeNvml::start(json!({"gpus": [{"mig": mig}]}));
    let session = open(&fake);
    let pass = session.reader(&gpu(0)).unwrap().read(&ALL, at(1));
    assert!(pass.medium.unwrap().instances[0].memory.is_some());
    let record = fake.record();
    let last = |call: &str, is_mig: bool| {
        let calls = record.iter().filter(|((name, gpu), _)| name.starts_with(call) && gpu.contains('/') == is_mig);
        *calls.flat_map(|(_, times)| times).max().unwrap()
    };
    let memory = "nvmlDeviceGetMemoryInfo_v2";
    assert!(last(memory, false) <= last(memory, true));
    assert!(last(memory, true) <= last("nvmlDeviceGetPerformanceState", false));
}

#[test]
fn throttle_counters_keep_their_meaning_over_a_driver_upgrade() {
    let fake = FakeNvml::start(json!({"driver_version": "570.172.08", "gpus": [{
        "fields": {"256": 1, "257": 2, "258": 1},
        "energy_millijoules": 900_000_000, "clock_event_reasons": {
            "sw_thermal_nanoseconds": 1_000_000_000_u64, "hw_thermal_nanoseconds": 2_000_000_000_u64,
            "hw_power_brake_nanoseconds": 3_000_000_000_u64
        }
    }]}));
    let hardware = run(&fake, quick());
    let throttled = |state: &HardwareState, reason: &str| {
        let medium = readings(state, 0).medium.as_ref()?;
        medium.value.throttled_seconds.get(reason).copied()
    };
    let state = wait(&hardware, "readings", |state| has_fast(state, 0));
    let seen = |state: &HardwareState| {
        ["sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"].map(|reason| throttled(state, reason))
    };
    assert_eq!(seen(&state), [None, None, None], "its fields with these numbers are of power smoothing");
    let upgrade = |generation: u32, version: &'static str, hw_thermal_nanoseconds: u64| {
        fake.update(|state| {
            state["generation"] = json!(generation);
            state["driver_version"] = json!(version);
            state["gpus"][0]["clock_event_reasons"]["hw_thermal_nanoseconds"] = json!(hw_thermal_nanoseconds);
        });
        wait(&hardware, "the new driver", |state| {
            let driver = state.inventory.driver.as_ref();
            driver.is_some_and(|driver| &*driver.driver_version == version) && readings(state, 0).medium.is_some()
        })
    };
    assert_eq!(seen(&upgrade(2, "580.65.06", 2_000_000_000)), [Some(1.0), Some(2.0), Some(3.0)]);
    let state = upgrade(3, "580.95.05", 500_000_000);
    assert_eq!(seen(&state), [Some(1.0), Some(2.5), Some(3.0)]);
    assert!(readings(&state, 0).totals.energy_joules < Some(10_000.0), "{:?}", readings(&state, 0).totals);
}

#[test]
fn an_average_second_costs_few_calls() {
    for state in [
        machine(1),
        json!({"gpus": [{"samples": {"silent": true}, "fans": [30, 40]}]}),
        json!({"gpus": [{"mig": {"enabled": true, "instances": vec![json!({}); 7]}}]}),
        json!({"gpus": [{"fail": {"nvmlDeviceGetTotalEnergyConsumption": 3}}]}),
    ] {
        let fake = FakeNvml::start(state.clone());
        let mut driver = driver(&fake);
        let calls = driver.call_durations().unwrap();
        let session = driver.open().unwrap();
        session.inventory().unwrap();
        let mut reader = session.reader(&gpu(0)).unwrap();
        reader.read(&ALL, at(0));
        reader.read(&ALL, at(1));
        let cost = |work: &mut dyn FnMut()| {
            let count = || calls().values().map(DurationHistogram::count).sum::<u64>();
            let before = count();
            work();
            f64::from(u32::try_from(count() - before).unwrap())
        };
        let mut tier = |tier: Tier, second| {
            cost(&mut || assert_eq!(reader.read(&[tier].into(), at(second)).status, PassStatus::Answers))
        };
        let (fast, medium, slow) = (tier(Tier::Fast, 2), tier(Tier::Medium, 3), tier(Tier::Slow, 4));
        let layout = cost(&mut || assert!(!session.layout_changed().unwrap()));
        let average = fast + (medium + layout) / 10.0 + slow / 60.0;
        // A partitioned GPU: two more for each instance, to attribute each second.
        let most = if state["gpus"][0].get("mig").is_some() { 24.0 } else { 12.0 };
        assert!(average <= most, "{state}: {average} = {fast} + ({medium} + {layout}) / 10 + {slow} / 60");
        drop((reader, session));
        let counted: u64 = calls().values().map(DurationHistogram::count).sum();
        // The crate makes one of its own while it initialises.
        assert_eq!(fake.calls().values().sum::<u64>(), counted + 1, "every call goes through the record");
    }
}

#[test]
fn a_gpu_count_that_no_node_has_takes_no_memory_and_is_an_error() {
    let fake = FakeNvml::start(json!({"gpus": [{}], "gpu_count": u32::MAX}));
    let session = open(&fake);
    let failure = session.inventory().unwrap_err();
    assert_eq!((failure.problem.call, failure.problem.code), ("nvmlDeviceGetCount_v2", "implausible"));
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 2_000_000, "{kilobytes} kB");
}
