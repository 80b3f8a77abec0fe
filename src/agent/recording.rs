//! What a real driver answered, as a data file for the fake one of the tests (`tests/fake-nvml`), so that a bug on
//! somebody's machine can be met again on any.
//!
//! Only what was answered is written. Serial numbers are not: their digits become zeroes. The fake has no notion of
//! some things, which a replay therefore does not show: energy drawn so far, the engines' use, which NVLinks are down,
//! ECC locations other than DRAM and SRAM.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::probe::{LastPass, Probe};
use crate::hardware::nvml::{code_number, numbers};
use crate::hardware::{CLOCK_EVENTS, THROTTLE_REASONS};
use crate::model::{
    EccLocation, FabricState, GpmRatios, Gpu, InstanceReading, Medium, MemoryUse, MigDevice, NvLinkPeers, PciBusId,
    Slow,
};

const NOT_SUPPORTED: u32 = 3;
const UNKNOWN: u32 = 999;
/// Architectures by the driver's number, which begins at 2.
const ARCHITECTURES: [&str; 9] =
    ["kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"];
/// In the order of `THROTTLE_REASONS`: the fake's name, and the field's number before driver 580.82.
const THROTTLED: [(&str, u32); 5] = [
    ("power_cap_nanoseconds", 74),
    ("sync_boost_nanoseconds", 76),
    ("sw_thermal_nanoseconds", 251),
    ("hw_thermal_nanoseconds", 252),
    ("hw_power_brake_nanoseconds", 253),
];
/// Where nobody works it says "not found", which is an answer and no refusal. So each GPU speaks for itself.
const PROCESS_USE: [&str; 2] = ["nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo"];

/// An object that leaves out what is absent.
#[derive(Default)]
struct Object(Map<String, Value>);

impl Object {
    fn put(&mut self, name: &str, value: Option<impl Into<Value>>) -> &mut Self {
        if let Some(value) = value {
            self.0.insert(name.to_owned(), value.into());
        }
        self
    }

    fn value(&mut self) -> Value {
        Value::Object(std::mem::take(&mut self.0))
    }
}

/// One data file. A call that nowhere succeeded is refused for the whole library, else for the GPUs that refused it.
pub fn data_file(probe: &Probe) -> Value {
    let inventory = &probe.inventory;
    let asked = probe.calls.iter().filter(|(name, _)| !PROCESS_USE.contains(name));
    let refused: BTreeMap<_, _> = asked.filter_map(|(name, call)| Some((*name, call.refusal()?))).collect();
    let everywhere: BTreeSet<_> = refused.keys().copied().collect();
    let mut gpus: Vec<_> = inventory.gpus.values().collect();
    gpus.sort_by_key(|gpu| gpu.order());
    let mut file = Object::default();
    if let Some(driver) = &inventory.driver {
        file.put("driver_version", Some(&*driver.driver_version))
            .put("nvml_version", driver.nvml_version.as_deref())
            .put("cuda_version", driver.cuda_version.as_deref().and_then(cuda_number));
    }
    let models: BTreeSet<_> = gpus.iter().filter_map(|gpu| gpu.model.as_deref()).collect();
    let recorded = json!({
        "by": concat!("podmeter ", env!("CARGO_PKG_VERSION")),
        "date": humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs_f64(probe.at.0.max(0.0))).to_string(),
        "driver_version": inventory.driver.as_ref().map(|driver| &*driver.driver_version),
        "models": models,
    });
    put_refusals(&mut file, &refused);
    let nothing = LastPass::default();
    let gpus = gpus.iter().map(|gpu| {
        let pass = probe.gpus.get(&gpu.uuid).unwrap_or(&nothing);
        let own = pass.refused.iter().filter(|(name, _)| !everywhere.contains(*name));
        described(gpu, pass, &own.map(|(name, code)| (*name, *code)).collect())
    });
    file.put("gpus", Some(gpus.collect::<Vec<_>>())).put("recorded", Some(recorded)).value()
}

/// `nvmlInit` answered, or there would be no probe.
fn put_refusals(object: &mut Object, refused: &BTreeMap<&'static str, &'static str>) {
    // Said only for want of room: the question was how many there are.
    let refused = refused.iter().filter(|(_, code)| **code != "insufficient_size");
    let refused = refused.filter(|(name, code)| !PROCESS_USE.contains(name) || **code != "not_found");
    let (missing, failing): (Vec<_>, Vec<_>) = refused.partition(|(_, code)| **code == "function_not_found");
    let missing: Vec<_> = missing.into_iter().map(|(name, _)| json!(name)).collect();
    let failing: Map<_, _> = failing
        .into_iter()
        .map(|(name, code)| ((*name).to_owned(), json!(code_number(code).unwrap_or(UNKNOWN))))
        .collect();
    object
        .put("function_not_found", (!missing.is_empty()).then_some(missing))
        .put("fail", (!failing.is_empty()).then_some(failing));
}

/// `13.0` is 13000.
fn cuda_number(version: &str) -> Option<u32> {
    let (major, minor) = version.split_once('.')?;
    Some(major.parse::<u32>().ok()? * 1000 + minor.parse::<u32>().ok()? * 10)
}

fn described(gpu: &Gpu, pass: &LastPass, refused: &BTreeMap<&'static str, &'static str>) -> Value {
    let mut object = Object::default();
    let architecture =
        gpu.architecture.as_deref().and_then(|name| ARCHITECTURES.iter().position(|known| *known == name));
    let capability = gpu.compute_capability.as_deref().and_then(|text| {
        let (major, minor) = text.split_once('.')?;
        Some(json!([major.parse::<i32>().ok()?, minor.parse::<i32>().ok()?]))
    });
    let masked = |serial: &str| -> String {
        serial.chars().map(|letter| if letter.is_ascii_digit() { '0' } else { letter }).collect()
    };
    object
        .put("index", gpu.index)
        .put("uuid", Some(gpu.uuid.as_str()))
        .put("minor", gpu.minor)
        .put("pci_bus_id", gpu.pci_bus_id.as_ref().map(|id| long_bus_id(id.as_str())))
        .put("name", gpu.model.as_deref())
        .put("architecture", architecture.map(|place| place + 2))
        .put("compute_capability", capability)
        .put("vbios_version", gpu.vbios_version.as_deref())
        .put("serial", Some(gpu.serial.as_deref().map(masked)))
        .put("numa_node", Some(gpu.numa_node.map_or(-1, i64::from)))
        .put("power_milliwatts", pass.fast.as_ref().and_then(|fast| fast.power_watts).map(|watts| whole(watts * 1e3)));
    let percent = pass.fast.as_ref().and_then(|fast| fast.utilization_ratio).map(|ratio| ratio * 100.0);
    let rates = pass.medium.as_ref().map(|medium| &medium.rates);
    let memory = rates.and_then(|rates| rates.memory_utilization_ratio).map(|ratio| ratio * 100.0);
    let engines = rates.map(|rates| rates.engine_utilization_ratios.iter()).into_iter().flatten();
    let utilization = percent.map(|percent| {
        let mut utilization = Object::default();
        utilization.put("gpu", Some(percent)).put("memory", memory);
        for (engine, ratio) in engines {
            utilization.put(engine, Some(ratio * 100.0));
        }
        utilization.value()
    });
    object.put("utilization", utilization);
    let mut fields = Object::default();
    if let Some(medium) = &pass.medium {
        put_medium(&mut object, &mut fields, medium);
    }
    if let Some(slow) = &pass.slow {
        put_slow(&mut object, &mut fields, gpu, slow);
    }
    let instances = pass.medium.as_ref().map_or(&[][..], |medium| &medium.instances);
    object.put("fields", Some(fields.value())).put("mig", Some(mig(gpu, instances)));
    put_refusals(&mut object, refused);
    object.value()
}

/// NVML's form, with an eight-digit domain in upper case.
fn long_bus_id(id: &str) -> String {
    let upper = id.to_ascii_uppercase();
    if upper.find(':') == Some(4) { format!("0000{upper}") } else { upper }
}

fn put_medium(object: &mut Object, fields: &mut Object, medium: &Medium) {
    let celsius = |degrees: Option<f64>| degrees.map(whole);
    let temperatures = json!({
        "gpu": celsius(medium.gpu_temperature_celsius),
        "memory": celsius(medium.memory_temperature_celsius),
        "margin": celsius(medium.temperature_margin_celsius),
    });
    let megahertz = |hertz: Option<f64>| hertz.map(|hertz| whole(hertz / 1e6));
    let clocks = Object::default()
        .put("graphics", megahertz(medium.clocks.graphics_hertz))
        .put("sm", megahertz(medium.clocks.sm_hertz))
        .put("memory", megahertz(medium.clocks.memory_hertz))
        .put("video", megahertz(medium.clocks.video_hertz))
        .value();
    let limit = medium.power_limit_watts.map(|watts| json!({ "enforced": whole(watts * 1e3) }));
    let fans: Vec<_> = medium.fan_speed_ratios.iter().map(|ratio| json!(whole(ratio * 100.0))).collect();
    object
        .put("memory", medium.memory.map(|memory| memory_of(&memory)))
        .put("temperatures", Some(temperatures))
        .put("clocks", Some(clocks))
        .put("power_limits", limit)
        .put("performance_state", medium.performance_state)
        .put("fans", Some(fans))
        .put("clock_event_reasons", Some(reasons(fields, medium)))
        .put("gpm", Some(gpm(medium)));
}

fn reasons(fields: &mut Object, medium: &Medium) -> Value {
    let bit =
        |(bit, reason): (u32, &str)| if medium.clock_events.get(reason) == Some(&true) { 1_u64 << bit } else { 0 };
    let mut reasons = Object::default();
    reasons.put("mask", Some((0..).zip(CLOCK_EVENTS).map(bit).sum::<u64>()));
    for (reason, (name, id)) in THROTTLE_REASONS.iter().zip(THROTTLED) {
        match medium.throttled_seconds.get(reason) {
            Some(seconds) => reasons.put(name, Some(whole(seconds * 1e9))),
            None => put_field(fields, id, None),
        };
    }
    reasons.value()
}

/// As used, reserved and total; with the older call, what is reserved counts as used.
fn memory_of(memory: &MemoryUse) -> Value {
    json!({
        "total_bytes": memory.total,
        "used_bytes": memory.used,
        "reserved_bytes": memory.reserved.unwrap_or(0),
    })
}

fn gpm(medium: &Medium) -> Value {
    let mut metrics = gpm_metrics(&medium.gpm);
    if !metrics.0.is_empty() {
        let traffic = medium.rates.traffic;
        let mebibytes = |bytes: Option<f64>| bytes.map(|bytes| bytes / 1_048_576.0);
        metrics
            .put("20", mebibytes(traffic.pcie_transmitted))
            .put("21", mebibytes(traffic.pcie_received))
            .put("60", mebibytes(traffic.nvlink_received))
            .put("61", mebibytes(traffic.nvlink_transmitted));
    }
    // The fake reads these as a rise in one second; only that they are there can be replayed.
    metrics.put("248", medium.sm_cycles.map(|_| 0)).put("249", medium.sm_active_cycles.map(|_| 0));
    let of_instances = medium.instances.iter().any(|instance| instance.gpm != GpmRatios::default());
    let supported = !metrics.0.is_empty() || of_instances;
    json!({ "supported": supported, "metrics": metrics.value() })
}

/// Percent by metric id.
fn gpm_metrics(ratios: &GpmRatios) -> Object {
    let percent = |ratio: Option<f64>| ratio.map(|ratio| ratio * 100.0);
    let mut metrics = Object::default();
    metrics
        .put("1", percent(ratios.graphics_engine_active))
        .put("2", percent(ratios.sm_active))
        .put("3", percent(ratios.sm_occupancy))
        .put("10", percent(ratios.dram_active));
    for (id, pipe) in numbers::PIPES {
        metrics.put(&id.to_string(), percent(ratios.pipes.get(pipe).copied()));
    }
    metrics
}

fn put_slow(object: &mut Object, fields: &mut Object, gpu: &Gpu, slow: &Slow) {
    let banks = slow.row_remap_banks.iter().map(|(availability, banks)| ((*availability).to_owned(), json!(banks)));
    let rows = slow.row_remap.map(|rows| {
        let mut about = Object(banks.collect());
        about
            .put("correctable", Some(rows.correctable))
            .put("uncorrectable", Some(rows.uncorrectable))
            .put("pending", Some(rows.pending))
            .put("failure", Some(rows.failed))
            .value()
    });
    // Only how many: the agent does not ask for the addresses.
    let pages = |cause| vec![0; slow.retired_pages.get(cause).map_or(0, |count| usize::try_from(*count).unwrap_or(0))];
    let retired = (!slow.retired_pages.is_empty() || slow.retired_pages_pending.is_some()).then(|| {
        let pending = slow.retired_pages_pending.unwrap_or(false);
        json!({ "single_bit": pages("single_bit"), "double_bit": pages("double_bit"), "pending": pending })
    });
    let pcie = Object::default()
        .put("generation", slow.pcie.link_generation)
        .put("width", slow.pcie.link_width_lanes)
        .put("max_generation", slow.pcie.link_generation_max)
        .put("max_width", slow.pcie.link_width_lanes_max)
        .put("replay", slow.pcie.replays)
        .value();
    for (id, error) in numbers::PCIE_ERRORS {
        put_field(fields, id, slow.pcie.errors.get(error).copied());
    }
    for (id, bytes) in numbers::PCIE_BYTES.into_iter().zip([slow.pcie.transmitted_bytes, slow.pcie.received_bytes]) {
        put_field(fields, id, bytes.map(|bytes| whole(bytes).unsigned_abs()));
    }
    object
        .put("ecc", Some(ecc(slow)))
        .put("remapped_rows", Some(rows))
        .put("retired_pages", Some(retired))
        .put("pcie", Some(pcie))
        .put("nvlink", Some(nvlink(fields, gpu, slow)))
        .put("fabric", Some(slow.fabric.as_ref().map(fabric)))
        .put("recovery_action", Some(slow.recovery_action));
}

fn ecc(slow: &Slow) -> Value {
    if slow.ecc.is_empty() && slow.ecc_lifetime_corrected.is_none() && slow.ecc_lifetime_uncorrected.is_none() {
        return json!({ "enabled": null });
    }
    let at = |name| slow.ecc.iter().find(move |location| location.location == name);
    let count = |name, pick: fn(&EccLocation) -> Option<u64>| at(name).and_then(pick).unwrap_or(0);
    let (corrected, uncorrected) = (|at: &EccLocation| at.corrected, |at: &EccLocation| at.uncorrected);
    json!({
        "enabled": true,
        "volatile": {
            "corrected": count("dram", corrected) + count("sram", corrected),
            "uncorrected": count("dram", uncorrected) + count("sram", uncorrected),
            "sram_corrected": count("sram", corrected),
            "sram_uncorrected": count("sram", uncorrected),
        },
        "aggregate": {
            "corrected": slow.ecc_lifetime_corrected.unwrap_or(0),
            "uncorrected": slow.ecc_lifetime_uncorrected.unwrap_or(0),
        },
    })
}

/// Sums over links: as the driver's own sum, or all on the first link.
fn nvlink(fields: &mut Object, gpu: &Gpu, slow: &Slow) -> Value {
    let nvlink = &slow.nvlink;
    let (active, inactive) = (nvlink.active_links.unwrap_or(0), nvlink.inactive_links.unwrap_or(0));
    if active == 0 {
        return json!({ "links": inactive, "down": (0..inactive).collect::<Vec<_>>() });
    }
    let newer = nvlink.errors.keys().any(|error| !numbers::NVLINK_ERRORS.iter().any(|(_, older)| older == error));
    for (place, bytes) in [nvlink.transmitted_bytes, nvlink.received_bytes].into_iter().enumerate() {
        let (sum, each) = (numbers::NVLINK_DATA[place], numbers::NVLINK_BYTES[place]);
        put_field(fields, sum, None);
        put_field(fields, each, None);
        if let Some(bytes) = bytes {
            let links = (1..active).map(|link| (link.to_string(), json!(0)));
            if newer {
                let all: Map<_, _> = links.chain([("0".to_owned(), json!(whole(bytes)))]).collect();
                fields.put(&each.to_string(), Some(json!({ "by_scope": all })));
            } else {
                let scope = numbers::ALL_LINKS.to_string();
                fields.put(&sum.to_string(), Some(json!({ "by_scope": { scope: whole(bytes / 1024.0) } })));
            }
        }
    }
    let (asked, other) = (&numbers::NVLINK_ERRORS[..], &numbers::NVLINK5_ERRORS[..]);
    let (asked, other) = if newer { (other, asked) } else { (asked, other) };
    for (id, _) in other {
        put_field(fields, *id, None);
    }
    for (id, error) in asked {
        let count = nvlink.errors.get(error);
        let links =
            |count: u64| (0..active).map(move |link| (link.to_string(), json!(if link == 0 { count } else { 0 })));
        match count {
            Some(count) => {
                fields.put(&id.to_string(), Some(json!({ "by_scope": links(*count).collect::<Map<_, _>>() })))
            }
            None => put_field(fields, *id, None),
        };
    }
    json!({
        "links": active + inactive,
        "down": (active..active + inactive).collect::<Vec<_>>(),
        "version": if newer { 5 } else { 4 },
        "remotes": gpu.nvlink_peers.as_ref().map(remotes).unwrap_or_default(),
    })
}

/// Which link leads where was not kept, only how many do: those to GPUs come first here. The others lead to a switch.
fn remotes(peers: &NvLinkPeers) -> Map<String, Value> {
    let links = peers.by_bus_id.iter().flat_map(|(bus_id, links)| (0..*links).map(move |_| bus_id));
    let remote = |bus_id: &PciBusId| json!({ "device_type": 0, "pci_bus_id": long_bus_id(bus_id.as_str()) });
    links.enumerate().map(|(link, bus_id)| (link.to_string(), remote(bus_id))).collect()
}

fn fabric(state: &FabricState) -> Value {
    let place = numbers::FABRIC_STATES.iter().position(|known| *known == state.state).unwrap_or(0);
    let bits = numbers::FABRIC_CONDITIONS.map(|(shift, name)| match state.conditions.get(name) {
        Some(true) => 1_u32 << shift,
        Some(false) => 2 << shift,
        None => 0,
    });
    // The driver says completed, and why it failed beside it; which error it was is not kept.
    let (place, status) = if state.state == numbers::FABRIC_FAILED { (3, 999) } else { (place, 0) };
    json!({ "state": place, "status": status, "health_mask": bits.iter().sum::<u32>(), "health_summary": 0 })
}

fn mig(gpu: &Gpu, readings: &[InstanceReading]) -> Value {
    let Some(enabled) = gpu.mig_enabled else { return json!({ "supported": false }) };
    let instances = gpu.mig_devices.iter().map(|device| instance(gpu, device, readings)).collect::<Vec<_>>();
    Object::default()
        .put("supported", Some(true))
        .put("enabled", Some(enabled))
        .put("slices", gpu.mig_slices)
        .put("instances", Some(instances))
        .value()
}

fn instance(gpu: &Gpu, device: &MigDevice, readings: &[InstanceReading]) -> Value {
    let reading = readings.iter().find(|reading| reading.gpu_instance == device.gpu_instance);
    let memory = reading.and_then(|reading| reading.memory);
    // A GPU's memory comes in eighths.
    let eighths = gpu.memory_bytes.zip(device.memory_bytes).map(|(all, own)| (own * 8).div_ceil(all.max(1)).min(8));
    let placement = device.placement_start.zip(eighths).map(|(start, size)| json!({ "start": start, "size": size }));
    Object::default()
        .put("gpu_instance", Some(device.gpu_instance))
        .put("compute_instance", Some(device.compute_instance))
        .put("index", Some(device.index))
        .put("uuid", Some(device.uuid.as_str()))
        .put("profile", Some(&*device.profile))
        .put("profile_id", device.profile_id)
        .put("gpu_slices", Some(device.slices))
        .put("placement", placement)
        .put("memory_total_bytes", memory.map(|memory| memory.total).or(device.memory_bytes))
        .put("memory_used_bytes", memory.map(|memory| memory.used))
        .put("memory_reserved_bytes", memory.and_then(|memory| memory.reserved))
        .put("gpm", reading.map(|reading| json!({ "metrics": gpm_metrics(&reading.gpm).value() })))
        .value()
}

/// A field with its value, or one that the driver does not have.
fn put_field(fields: &mut Object, id: u32, value: Option<u64>) -> &mut Object {
    let value = value.map_or_else(|| json!({ "code": NOT_SUPPORTED }), |value| json!(value));
    fields.put(&id.to_string(), Some(value))
}

fn whole(value: f64) -> i64 {
    value.round() as i64
}
