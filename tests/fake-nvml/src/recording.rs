//! Makes a data file for the fake driver library from what a podmeter reported of a real machine, so that a defect of that
//! machine can be reproduced on any.
//!
//! In: the JSON of `/api/v1/node`, as `scripts/gpu-check` keeps it. Out: the format described in `lib.rs`. Does not use: podmeter.
//!
//! Only what the driver answered is written. Some of it the fake cannot replay: energy drawn so far, the use of the
//! engines, which NVLinks are down, ECC locations other than DRAM and SRAM.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

const NOT_SUPPORTED: u32 = 3;
const UNKNOWN: usize = 999;
/// By the driver's number, from 2.
const ARCHITECTURES: [&str; 9] =
    ["kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"];
/// By bit.
const CLOCK_EVENTS: [&str; 9] = [
    "idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
];
/// podmeter's reason, the fake's name, and the number of the field before driver 580.82.
const THROTTLED: [(&str, &str, u32); 5] = [
    ("sw_power_cap", "power_cap_nanoseconds", 74),
    ("sync_boost", "sync_boost_nanoseconds", 76),
    ("sw_thermal_slowdown", "sw_thermal_nanoseconds", 251),
    ("hw_thermal_slowdown", "hw_thermal_nanoseconds", 252),
    ("hw_power_brake_slowdown", "hw_power_brake_nanoseconds", 253),
];
const GPM_RATIOS: [(u32, &str); 4] =
    [(1, "graphics_engine_active"), (2, "sm_active"), (3, "sm_occupancy"), (10, "dram_active")];
const GPM_PIPES: [(u32, &str); 8] =
    [(4, "int"), (5, "tensor"), (6, "dfma"), (7, "hmma"), (9, "imma"), (11, "fp64"), (12, "fp32"), (13, "fp16")];
/// In MiB a second.
const GPM_TRAFFIC: [(u32, &str); 4] =
    [(20, "pcie_transmitted"), (21, "pcie_received"), (60, "nvlink_received"), (61, "nvlink_transmitted")];
const GPM_CYCLES: [(u32, &str); 2] = [(248, "sm_cycles"), (249, "sm_active_cycles")];
const MEBIBYTE: f64 = 1_048_576.0;

const BYTES: [&str; 2] = ["transmitted_bytes", "received_bytes"];
const PCIE_BYTES: [u32; 2] = [197, 198];
const PCIE_ERRORS: [(u32, &str); 11] = [
    (173, "correctable"),
    (174, "naks_received"),
    (175, "receiver_error"),
    (176, "bad_tlp"),
    (177, "naks_sent"),
    (178, "bad_dllp"),
    (179, "non_fatal"),
    (180, "fatal"),
    (181, "unsupported_request"),
    (182, "lcrc"),
    (183, "lane"),
];
/// Of one link: KiB, up to NVLink 4; bytes, NVLink 5.
const NVLINK_DATA: [u32; 2] = [138, 139];
const NVLINK_BYTES: [u32; 2] = [202, 204];
const NVLINK_ERRORS: [(u32, &str); 3] = [(161, "replay"), (162, "recovery"), (163, "crc")];
const NVLINK5_ERRORS: [(u32, &str); 9] = [
    (206, "malformed_packet"),
    (207, "buffer_overrun"),
    (208, "receive"),
    (209, "receive_remote"),
    (210, "receive_general"),
    (211, "local_link_integrity"),
    (212, "transmit_discard"),
    (214, "recovery_failed"),
    (215, "recovery"),
];
const FABRIC_STATES: [&str; 4] = ["not_supported", "not_started", "in_progress", "completed"];
/// By the lower of two bits, with the value that means true; 3 less that is false.
const FABRIC_CONDITIONS: [(u32, u32, &str); 6] = [
    (0, 1, "degraded_bandwidth"),
    (2, 1, "route_recovery"),
    (4, 1, "route_unhealthy"),
    (6, 1, "access_timeout_recovery"),
    (12, 2, "partition_unassigned"),
    (14, 2, "fabric_manager_disconnected"),
];
/// From bit 8, where 1 is correct: from 2 on.
const INCORRECT_CONFIGURATION: [&str; 7] =
    ["system_guid", "chassis_serial", "no_partition", "insufficient_nvlinks", "gpu_firmware", "location", "gpu_state"];
const NO_KNOWN_CONFIGURATION: u32 = 15;

/// The file that makes the fake answer as the machine of this `/api/v1/node`.
#[must_use]
pub fn data_file(node: &Value) -> Value {
    let (inventory, driver) = (&node["hardware"]["inventory"], &node["hardware"]["inventory"]["driver"]);
    let mut gpus: Vec<&Value> = members(&inventory["gpus"]).map(|(_, gpu)| gpu).collect();
    gpus.sort_by_key(|gpu| (gpu["index"].is_null(), gpu["index"].as_u64()));
    let models: BTreeSet<&str> = gpus.iter().filter_map(|gpu| gpu["model"].as_str()).collect();
    let recorded = json!({
        "at_unix_seconds": node["at"]["unix"],
        "driver_version": driver["driver_version"],
        "models": models,
    });
    let gpus: Vec<Value> = gpus.iter().map(|gpu| described(gpu, &node["hardware"]["readings"])).collect();
    without_nulls(json!({
        "driver_version": driver["driver_version"],
        "nvml_version": driver["nvml_version"],
        "cuda_version": driver["cuda_version"].as_str().and_then(numbers).map(|(major, minor)| major * 1000 + minor * 10),
        "gpus": gpus,
        "recorded": recorded,
    }))
}

fn described(gpu: &Value, readings: &Value) -> Value {
    let readings = &readings[gpu["uuid"].as_str().unwrap_or_default()];
    let [fast, medium, slow] = ["fast", "medium", "slow"].map(|tier| &readings[tier]["value"]);
    let architecture = ARCHITECTURES.iter().position(|known| gpu["architecture"] == **known);
    let mut object = without_nulls(json!({
        "index": gpu["index"],
        "uuid": gpu["uuid"],
        "minor": gpu["minor"],
        "pci_bus_id": gpu["pci_bus_id"].as_str().map(long_bus_id),
        "name": gpu["model"],
        "architecture": architecture.map(|place| place + 2),
        "compute_capability": gpu["compute_capability"].as_str().and_then(numbers),
        "vbios_version": gpu["vbios_version"],
        "power_milliwatts": scaled(&fast["power_watts"], 1e3),
        "utilization": utilization(fast, medium),
    }));
    // Serial numbers are not served.
    object["serial"] = json!("0000000000000");
    object["numa_node"] = gpu["numa_node"].as_i64().unwrap_or(-1).into();
    let mut fields = Map::new();
    if medium.is_object() {
        put_medium(&mut object, &mut fields, medium);
    }
    if slow.is_object() {
        put_slow(&mut object, &mut fields, gpu, slow);
    }
    if let Some(milliwatts) = scaled(&fast["module_power_watts"], 1e3) {
        object["power_limits"]["module_milliwatts"] = milliwatts.into();
    }
    object["fields"] = fields.into();
    object["mig"] = mig(gpu, &medium["instances"]);
    object
}

fn utilization(fast: &Value, medium: &Value) -> Option<Value> {
    let percent = |ratio: &Value| ratio.as_f64().map(|ratio| ratio * 100.0);
    let mut utilization = json!({
        "gpu": percent(&fast["utilization_ratio"])?,
        "memory": percent(&medium["rates"]["memory_utilization_ratio"]),
    });
    for (engine, ratio) in members(&medium["rates"]["engine_utilization_ratios"]) {
        utilization[engine] = json!(percent(ratio));
    }
    Some(without_nulls(utilization))
}

fn put_medium(object: &mut Value, fields: &mut Map<String, Value>, medium: &Value) {
    let clocks = &medium["clocks"];
    let megahertz = |clock: &str| scaled(&clocks[clock], 1e-6);
    let fans: Vec<_> = items(&medium["fan_speed_ratios"]).map(|ratio| scaled(ratio, 100.0)).collect();
    let memory = &medium["memory"];
    let more = json!({
        // With the older call, reserved memory counts as used.
        "memory": memory.is_object().then(|| json!({
            "total_bytes": memory["total"],
            "used_bytes": memory["used"],
            "reserved_bytes": memory["reserved"].as_u64().unwrap_or(0),
        })),
        "clocks": without_nulls(json!({
            "graphics": megahertz("graphics_hertz"),
            "sm": megahertz("sm_hertz"),
            "memory": megahertz("memory_hertz"),
            "video": megahertz("video_hertz"),
        })),
        "power_limits": scaled(&medium["power_limit_watts"], 1e3).map(|limit| json!({ "enforced": limit })),
        "performance_state": medium["performance_state"],
        "fans": fans,
        "clock_event_reasons": clock_event_reasons(fields, medium),
        "gpm": gpm(medium),
    });
    merge(object, without_nulls(more));
    object["temperatures"] = json!({
        "gpu": scaled(&medium["gpu_temperature_celsius"], 1.0),
        "memory": scaled(&medium["memory_temperature_celsius"], 1.0),
        "margin": scaled(&medium["temperature_margin_celsius"], 1.0),
    });
}

fn clock_event_reasons(fields: &mut Map<String, Value>, medium: &Value) -> Value {
    let bits = (0..).zip(CLOCK_EVENTS).filter(|(_, reason)| medium["clock_events"][*reason] == true);
    let mut reasons = json!({ "mask": bits.map(|(bit, _)| 1_u64 << bit).sum::<u64>() });
    for (reason, name, id) in THROTTLED {
        match scaled(&medium["throttled_seconds"][reason], 1e9) {
            Some(nanoseconds) => reasons[name] = nanoseconds.into(),
            None => put_field(fields, id, None),
        }
    }
    reasons
}

fn gpm(medium: &Value) -> Value {
    let mut metrics = gpm_metrics(&medium["gpm"]);
    if !metrics.is_empty() {
        for (id, name) in GPM_TRAFFIC {
            let rate = medium["rates"]["traffic"][name].as_f64();
            metrics.extend(rate.map(|bytes| (id.to_string(), json!(bytes / MEBIBYTE))));
        }
    }
    // The fake reads these as a rise in one second: only their presence can be replayed.
    let cycles = GPM_CYCLES.iter().filter(|(_, name)| !medium[*name].is_null());
    metrics.extend(cycles.map(|(id, _)| (id.to_string(), json!(0))));
    let of_instances = items(&medium["instances"]).any(|instance| !gpm_metrics(&instance["gpm"]).is_empty());
    json!({ "supported": !metrics.is_empty() || of_instances, "metrics": metrics })
}

/// Percent by metric id.
fn gpm_metrics(ratios: &Value) -> Map<String, Value> {
    let named = GPM_RATIOS.iter().map(|(id, name)| (id, &ratios[*name]));
    let pipes = GPM_PIPES.iter().map(|(id, pipe)| (id, &ratios["pipes"][*pipe]));
    named.chain(pipes).filter_map(|(id, ratio)| Some((id.to_string(), json!(ratio.as_f64()? * 100.0)))).collect()
}

fn put_slow(object: &mut Value, fields: &mut Map<String, Value>, gpu: &Value, slow: &Value) {
    let pcie = &slow["pcie"];
    for (id, error) in PCIE_ERRORS {
        put_field(fields, id, pcie["errors"][error].as_i64());
    }
    for (id, direction) in PCIE_BYTES.into_iter().zip(BYTES) {
        put_field(fields, id, scaled(&pcie[direction], 1.0));
    }
    let rows = &slow["row_remap"];
    let remapped_rows = rows.is_object().then(|| {
        let mut remapped = slow["row_remap_banks"].clone();
        for name in ["correctable", "uncorrectable", "pending"] {
            remapped[name] = rows[name].clone();
        }
        remapped["failure"] = rows["failed"].clone();
        remapped
    });
    // Only how many: the agent does not read the addresses.
    let pages = |cause: &str| vec![0; slow["retired_pages"][cause].as_u64().unwrap_or(0) as usize];
    let has_pages = members(&slow["retired_pages"]).next().is_some() || !slow["retired_pages_pending"].is_null();
    let retired_pages = has_pages.then(|| {
        let pending = slow["retired_pages_pending"] == true;
        json!({ "single_bit": pages("single_bit"), "double_bit": pages("double_bit"), "pending": pending })
    });
    let more = json!({
        "ecc": ecc(slow),
        "remapped_rows": remapped_rows,
        "retired_pages": retired_pages,
        "pcie": without_nulls(json!({
            "generation": pcie["link_generation"],
            "width": pcie["link_width_lanes"],
            "max_generation": pcie["link_generation_max"],
            "max_width": pcie["link_width_lanes_max"],
            "replay": pcie["replays"],
        })),
        "nvlink": nvlink(fields, gpu, slow),
        "fabric": slow["fabric"].is_object().then(|| fabric(&slow["fabric"])),
        "platform": gpu["platform"].is_object().then(|| platform(&gpu["platform"])),
        "c2c": slow["c2c"]["enabled"].is_boolean().then(|| c2c(&slow["c2c"])),
        "recovery_action": slow["recovery_action"],
    });
    merge(object, more);
}

fn ecc(slow: &Value) -> Value {
    let lifetime = [&slow["ecc_lifetime_corrected"], &slow["ecc_lifetime_uncorrected"]];
    if items(&slow["ecc"]).next().is_none() && lifetime.iter().all(|count| count.is_null()) {
        return json!({ "enabled": null });
    }
    let count = |location: &str, kind: &str| {
        let found = items(&slow["ecc"]).find(|entry| entry["location"] == *location);
        found.and_then(|entry| entry[kind].as_u64()).unwrap_or(0)
    };
    json!({
        "enabled": true,
        "volatile": {
            "corrected": count("dram", "corrected") + count("sram", "corrected"),
            "uncorrected": count("dram", "uncorrected") + count("sram", "uncorrected"),
            "sram_corrected": count("sram", "corrected"),
            "sram_uncorrected": count("sram", "uncorrected"),
        },
        "aggregate": {
            "corrected": lifetime[0].as_u64().unwrap_or(0),
            "uncorrected": lifetime[1].as_u64().unwrap_or(0),
        },
    })
}

/// Sums over links: all on the first link.
fn nvlink(fields: &mut Map<String, Value>, gpu: &Value, slow: &Value) -> Value {
    let nvlink = &slow["nvlink"];
    let count = |name: &str| nvlink[name].as_u64().unwrap_or(0);
    let (active, inactive) = (count("active_links"), count("inactive_links"));
    if active == 0 {
        return json!({ "links": inactive, "down": (0..inactive).collect::<Vec<_>>() });
    }
    let is_newer = members(&nvlink["errors"]).any(|(error, _)| NVLINK_ERRORS.iter().all(|(_, older)| *older != error));
    let on_first_link = |value: i64| {
        let links = (0..active).map(|link| (link.to_string(), json!(if link == 0 { value } else { 0 })));
        json!({ "by_scope": links.collect::<Map<_, _>>() })
    };
    for (place, direction) in BYTES.into_iter().enumerate() {
        let (sum, each) = (NVLINK_DATA[place], NVLINK_BYTES[place]);
        put_field(fields, sum, None);
        put_field(fields, each, None);
        if let Some(bytes) = nvlink[direction].as_f64() {
            let whole = |value: f64| value.round() as i64;
            if is_newer {
                fields.insert(each.to_string(), on_first_link(whole(bytes)));
            } else {
                fields.insert(sum.to_string(), on_first_link(whole(bytes / 1024.0)));
            }
        }
    }
    let (asked, other) = (&NVLINK_ERRORS[..], &NVLINK5_ERRORS[..]);
    let (asked, other) = if is_newer { (other, asked) } else { (asked, other) };
    for (id, _) in other {
        put_field(fields, *id, None);
    }
    for (id, error) in asked {
        match nvlink["errors"][*error].as_i64() {
            Some(count) => drop(fields.insert(id.to_string(), on_first_link(count))),
            None => put_field(fields, *id, None),
        }
    }
    json!({
        "links": active + inactive,
        "down": (active..active + inactive).collect::<Vec<_>>(),
        "version": if is_newer { 5 } else { 4 },
        "remotes": remotes(&gpu["nvlink_peers"]),
    })
}

/// The inventory has only how many links lead to each GPU: those to GPUs come first here, the others lead to a switch.
fn remotes(peers: &Value) -> Map<String, Value> {
    let by_bus_id = members(&peers["by_bus_id"]);
    let links = by_bus_id.flat_map(|(bus_id, links)| (0..links.as_u64().unwrap_or(0)).map(move |_| bus_id));
    let remote = |bus_id: &str| json!({ "device_type": 0, "pci_bus_id": long_bus_id(bus_id) });
    links.enumerate().map(|(link, bus_id)| (link.to_string(), remote(bus_id))).collect()
}

fn fabric(fabric: &Value) -> Value {
    let bits = FABRIC_CONDITIONS.map(|(shift, is_true, name)| match fabric["conditions"][name].as_bool() {
        Some(true) => is_true << shift,
        Some(false) => (3 - is_true) << shift,
        None => 0,
    });
    let known = INCORRECT_CONFIGURATION.iter().zip(2..).find(|(name, _)| fabric["incorrect_configuration"] == ***name);
    let configuration = match fabric["conditions"]["incorrect_configuration"].as_bool() {
        Some(true) => known.map_or(NO_KNOWN_CONFIGURATION, |(_, number)| number),
        Some(false) => 1,
        None => 0,
    };
    let health_mask = bits.iter().sum::<u32>() | configuration << 8;
    // A driver gives "completed" and an error code for what podmeter shows as failed; the code is not reported.
    let (state, status) = if fabric["state"] == "failed" {
        (3, UNKNOWN)
    } else {
        (FABRIC_STATES.iter().position(|known| fabric["state"] == **known).unwrap_or(0), 0)
    };
    json!({
        "state": state,
        "status": status,
        "health_mask": health_mask,
        "health_summary": 0,
        "clique_id": fabric["domain"]["clique_id"].as_u64().unwrap_or(0),
        "cluster_uuid": uuid_bytes(fabric["domain"]["cluster_uuid"].as_str().unwrap_or_default()),
    })
}

fn uuid_bytes(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|digit| Some(digit.to_digit(16)? as u8)).collect();
    let mut bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    bytes.resize(16, 0);
    bytes
}

fn platform(platform: &Value) -> Value {
    let number = |name: &str| platform[name].as_u64().unwrap_or(255);
    json!({
        "slot": number("slot"),
        "tray": number("tray"),
        "host": number("host"),
        "module_id": number("module_id"),
        "peer_type": match platform["peer_type"].as_str() { Some("direct") => 0, Some("switch") => 1, _ => 255 },
    })
}

/// All links have the same speed, and the last ones are down.
fn c2c(c2c: &Value) -> Value {
    let number = |name: &str| c2c[name].as_u64().unwrap_or(0);
    let (active, inactive) = (number("active_links"), number("inactive_links"));
    let each = c2c["bytes_per_second_max"].as_f64().unwrap_or(0.0) / active.max(1) as f64;
    json!({
        "enabled": c2c["enabled"],
        "links": active + inactive,
        "down": (active..active + inactive).collect::<Vec<u64>>(),
        "megabytes_per_second": (each / 1e6).round() as u64,
    })
}

fn mig(gpu: &Value, readings: &Value) -> Value {
    if gpu["mig_enabled"].is_null() {
        return json!({ "supported": false });
    }
    let instances: Vec<Value> = items(&gpu["mig_devices"]).map(|device| instance(gpu, device, readings)).collect();
    without_nulls(json!({
        "supported": true,
        "enabled": gpu["mig_enabled"],
        "slices": gpu["mig_slices"],
        "instances": instances,
    }))
}

fn instance(gpu: &Value, device: &Value, readings: &Value) -> Value {
    let reading = items(readings).find(|reading| reading["gpu_instance"] == device["gpu_instance"]);
    let memory = reading.map_or(&Value::Null, |reading| &reading["memory"]);
    // A GPU's memory comes in eighths.
    let eighths = gpu["memory_bytes"].as_u64().zip(device["memory_bytes"].as_u64());
    let eighths = eighths.map(|(all, own)| (own * 8).div_ceil(all.max(1)).min(8));
    let start = device["placement_start"].as_u64();
    without_nulls(json!({
        "gpu_instance": device["gpu_instance"],
        "compute_instance": device["compute_instance"],
        "index": device["index"],
        "uuid": device["uuid"],
        "profile": device["profile"],
        "profile_id": device["profile_id"],
        "gpu_slices": device["slices"],
        "placement": start.zip(eighths).map(|(start, size)| json!({ "start": start, "size": size })),
        "memory_total_bytes": memory["total"].as_u64().or(device["memory_bytes"].as_u64()),
        "memory_used_bytes": memory["used"],
        "memory_reserved_bytes": memory["reserved"],
        "gpm": reading.map(|reading| json!({ "metrics": gpm_metrics(&reading["gpm"]) })),
    }))
}

/// A field with its value, or one that the driver does not have.
fn put_field(fields: &mut Map<String, Value>, id: u32, value: Option<i64>) {
    fields.insert(id.to_string(), value.map_or_else(|| json!({ "code": NOT_SUPPORTED }), Value::from));
}

/// NVML's form, with an eight-digit domain in upper case.
fn long_bus_id(id: &str) -> String {
    let upper = id.to_ascii_uppercase();
    if upper.find(':') == Some(4) { format!("0000{upper}") } else { upper }
}

/// The two numbers of `13.0`.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let (major, minor) = version.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn scaled(number: &Value, factor: f64) -> Option<i64> {
    number.as_f64().map(|number| (number * factor).round() as i64)
}

fn members(object: &Value) -> impl Iterator<Item = (&str, &Value)> {
    object.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), value))
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// The fake takes a name that is absent for its default, and null for something that the GPU does not have.
fn without_nulls(mut object: Value) -> Value {
    if let Some(members) = object.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    object
}

fn merge(object: &mut Value, more: Value) {
    if let (Value::Object(object), Value::Object(more)) = (object, more) {
        object.extend(more);
    }
}
