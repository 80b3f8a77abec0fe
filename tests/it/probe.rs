//! `podmeter probe-nvml`: what it prints, and that a fake driver made from its JSON answers as the machine did.

use crate::support::agent::ended;
use crate::support::fake_nvml::FakeNvml;
use nvidia_ml_fake::recording::data_file;
use serde_json::{Value, json};

/// A busy GPU with values in every group, a partitioned one, one that lacks many, and one with the newer NVLink.
fn machine() -> Value {
    json!({
        "driver_version": "570.124.06", "nvml_version": "12.570.124.06", "cuda_version": 12080,
        "function_not_found": ["nvmlDeviceGetMarginTemperature"],
        "fail": {"nvmlDeviceGetVbiosVersion": 4},
        "gpus": [
            {
                "serial": "1652923012345", "pci_bus_id": "00000000:9D:00.0",
                "utilization": {"gpu": 40, "memory": 30}, "power_milliwatts": 312_345,
                "memory": {"used_bytes": 3_221_225_472_u64}, "temperatures": {"gpu": 61, "memory": 72},
                "clocks": {"sm": 1755, "graphics": 1755}, "performance_state": 2, "fans": [30, 45],
                "clock_event_reasons": {"mask": 4, "power_cap_nanoseconds": 1_500_000_000_u64},
                "ecc": {
                    "volatile": {"corrected": 5, "uncorrected": 1, "sram_corrected": 2},
                    "aggregate": {"corrected": 9, "uncorrected": 2}
                },
                "remapped_rows": {"correctable": 1, "uncorrectable": 2, "pending": true, "high": 1, "max": 639},
                "pcie": {"generation": 4, "replay": 3, "tx_bytes": 1000, "rx_bytes": 2000, "correctable_errors": 7},
                "nvlink": {"links": 6, "down": [5], "data_tx_kib": 10, "data_rx_kib": 20, "crc_errors": 2},
                "gpm": {"metrics": {"2": 37.5, "5": 12.5, "11": 3.0}}
            },
            {"mig": {"enabled": true, "instances": [
                {"gpu_instance": 1, "profile": "3g.40gb", "memory_used_bytes": 1_073_741_824, "gpm": {"metrics": {"2": 25}}},
                {"gpu_instance": 2, "profile": "1g.10gb"}
            ]}},
            {
                "name": "NVIDIA A10G", "architecture": 7, "compute_capability": [8, 6],
                "temperatures": {"gpu": 40, "memory": null}, "ecc": {"enabled": null}, "remapped_rows": null,
                "nvlink": {"links": 0}, "fabric": null, "recovery_action": null, "mig": {"supported": false},
                "retired_pages": {"single_bit": [4096], "pending": true}, "gpm": {"supported": false},
                "fail": {"nvmlDeviceGetTotalEccErrors": 3, "nvmlDeviceGetPcieReplayCounter": 999}
            },
            {
                "name": "NVIDIA B200", "architecture": 10, "compute_capability": [10, 0],
                "nvlink": {"links": 3, "down": [2], "version": 5, "tx_bytes": 100, "rx_bytes": 200},
                "fields": {
                    "138": {"code": 3}, "139": {"code": 3}, "161": {"code": 3}, "162": {"code": 3}, "163": {"code": 3},
                    "206": 4, "215": 1, "74": {"code": 3}, "197": {"code": 3}
                }
            },
            {
                "name": "NVIDIA GB300", "architecture": 10, "compute_capability": [10, 3],
                "fabric": {"clique_id": 32766, "cluster_uuid": vec![7_u8; 16], "health_mask": 0xA5AA},
                "platform": {"chassis_serial": "1820000000001", "slot": 25, "tray": 15, "module_id": 2},
                "c2c": {"links": 4, "down": [3]},
                "power_limits": {"module_milliwatts": 488_000}
            }
        ]
    })
}

fn probe(driver: &FakeNvml, arguments: &[&str]) -> String {
    let library = driver.library_path();
    let mut all = vec!["probe-nvml", "--passes", "2", "--nvml-library", library.to_str().expect("a plain path")];
    all.extend(arguments);
    let (code, printed) = ended(&all);
    assert_eq!(code, 0, "{printed}");
    printed
}

fn json_probe(driver: &FakeNvml, arguments: &[&str]) -> Value {
    serde_json::from_str(&probe(driver, arguments)).expect("JSON")
}

/// The return codes of each call, without counts and latencies.
fn support(report: &Value) -> Value {
    let calls = report["calls"].as_object().expect("calls");
    calls.iter().map(|(name, call)| (name.clone(), json!([call["supported"], codes(call)]))).collect()
}

fn codes(call: &Value) -> Vec<&String> {
    call["codes"].as_object().expect("codes").keys().collect()
}

/// All readings that do not change with time; ratios rounded.
fn readings(report: &Value) -> Value {
    let mut gpus = report["gpus"].clone();
    for gpu in gpus.as_object_mut().expect("gpus").values_mut() {
        round(gpu);
    }
    gpus
}

/// Ratios to a hundredth: a mean over the fake's history ends where a call happened to fall.
fn round(value: &mut Value) {
    match value {
        Value::Object(members) => {
            // Cycles since boot: the fake counts them from its own start.
            for name in ["sm_cycles", "sm_active_cycles"] {
                members.remove(name);
            }
            members.values_mut().for_each(round);
        }
        Value::Array(items) => items.iter_mut().for_each(round),
        Value::Number(number) if number.is_f64() => {
            *value = json!((number.as_f64().expect("a float") * 100.0).round() / 100.0);
        }
        _ => {}
    }
}

#[test]
fn a_recording_behaves_as_the_machine_did() {
    let original = FakeNvml::start(machine());
    let first = json_probe(&original, &[]);
    let recording = data_file(&first);

    let replay = FakeNvml::start(recording.clone());
    let second = json_probe(&replay, &[]);

    for serial in ["1652923012345", "1820000000001"] {
        assert!(!first.to_string().contains(serial), "a serial number in {first}");
    }
    assert_eq!(second["inventory"], first["inventory"]);
    assert_eq!(readings(&second), readings(&first));
    assert_eq!(support(&second), support(&first));
    let newer = &second["gpus"]["GPU-00000000-0000-0000-0000-000000000003"]["slow"]["nvlink"];
    assert_eq!(newer["transmitted_bytes"], 200.0);
    assert_eq!(newer["errors"], json!({"malformed_packet": 8, "recovery": 2}));

    assert_eq!(recording["recorded"]["driver_version"], "570.124.06");
    assert_eq!(
        recording["recorded"]["models"],
        json!(["NVIDIA A10G", "NVIDIA B200", "NVIDIA GB300", "NVIDIA H100 80GB HBM3"])
    );
    assert!(recording["recorded"]["date"].as_str().is_some_and(|date| date.starts_with("20")), "{recording}");
    assert_eq!(recording["function_not_found"], json!(["nvmlDeviceGetMarginTemperature"]));
    assert_eq!(recording["fail"], json!({"nvmlDeviceGetVbiosVersion": 4}));
    assert_eq!(recording["gpus"][2]["fail"]["nvmlDeviceGetPcieReplayCounter"], 999);
}

#[test]
fn the_text_has_a_line_for_each_call_with_its_codes() {
    let driver = FakeNvml::start(json!({"gpus": [{"fail": {"nvmlDeviceGetPowerUsage": 999}}]}));
    let text = probe(&driver, &["-o", "text"]);
    assert!(text.starts_with("driver 580.95.05, CUDA 13.0, NVML 13.580.95.05\n0 GPU-0000"), "{text}");
    let line = |call: &str| {
        let found = text.lines().find(|line| line.split_whitespace().next() == Some(call));
        found.unwrap_or_else(|| panic!("{call} in {text}")).split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(line("nvmlDeviceGetUUID")[1], "yes");
    // Called twice in each of two passes: "unknown" is tried again once.
    assert_eq!(line("nvmlDeviceGetPowerUsage")[1..3], ["unknown", "4"]);
    assert_eq!(line("nvmlDeviceGetPowerUsage")[5..], ["unknown", "4"]);
    assert_eq!(line("nvmlDeviceGetRetiredPagesPendingStatus")[1], "no");
}
