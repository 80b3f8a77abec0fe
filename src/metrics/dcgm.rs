//! The same snapshot under dcgm-exporter's names, labels and units, for dashboards and tools that read those.
//!
//! Differences are on purpose. dcgm-exporter repeats a shared device's value under every pod; here utilization, memory in
//! use and energy are each container's true share, with the rest under no pod, so that they add up to the device, and what
//! cannot be divided (clocks, temperatures) stands once, under no pod. NVLink's bandwidth is a rate, so it is a gauge here,
//! where dcgm-exporter calls it a counter. A value that the snapshot lacks is left out.

use std::collections::{BTreeMap, BTreeSet};

use super::device_identity::with_readings;
use super::device_interconnect::slow;
use super::device_use::medium;
use super::health::judged;
use super::{Descriptor, Family, Label, Value, mig};
use crate::model::{
    Account, ContainerRef, DeviceReadings, GpmRatios, Gpu, InstanceReading, MemoryUse, MigUuid, Sharing, Snapshot,
};

const MEBIBYTE: u64 = 1024 * 1024;
const NVML: &str = "NVML";

const LABELS: &[&str] = &[
    "gpu",
    "UUID",
    "pci_bus_id",
    "device",
    "modelName",
    "GPU_I_PROFILE",
    "GPU_I_ID",
    "Hostname",
    "hostname",
    "container",
    "namespace",
    "pod",
];

const fn gauge(name: &'static str, help: &'static str) -> Descriptor {
    Descriptor::gauge(name, LABELS, "", NVML, help)
}

const fn counter(name: &'static str, help: &'static str) -> Descriptor {
    Descriptor::counter(name, LABELS, "", NVML, help)
}

static GPU_UTIL: Descriptor = gauge("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (%).");
static FB_USED: Descriptor = gauge("DCGM_FI_DEV_FB_USED", "Frame buffer memory used (MiB).");
static FB_FREE: Descriptor = gauge("DCGM_FI_DEV_FB_FREE", "Frame buffer memory free (MiB).");
static FB_RESERVED: Descriptor = gauge("DCGM_FI_DEV_FB_RESERVED", "Frame buffer memory reserved (MiB).");
static SM_CLOCK: Descriptor = gauge("DCGM_FI_DEV_SM_CLOCK", "SM clock (MHz).");
static MEM_CLOCK: Descriptor = gauge("DCGM_FI_DEV_MEM_CLOCK", "Memory clock (MHz).");
static GPU_TEMP: Descriptor = gauge("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (C).");
static MEMORY_TEMP: Descriptor = gauge("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (C).");
static MEM_COPY_UTIL: Descriptor = gauge("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (%).");
static ENC_UTIL: Descriptor = gauge("DCGM_FI_DEV_ENC_UTIL", "Encoder utilization (%).");
static DEC_UTIL: Descriptor = gauge("DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (%).");
static XID_ERRORS: Descriptor =
    gauge("DCGM_FI_DEV_XID_ERRORS", "Code of the last XID since podmeter started; 0 if there was none.");
static NVLINK_BANDWIDTH: Descriptor =
    gauge("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Data over all NVLinks, both ways (thousands of KiB a second).");
static POWER_USAGE: Descriptor = gauge("DCGM_FI_DEV_POWER_USAGE", "Power draw (W).");
static ENERGY: Descriptor =
    counter("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy drawn since podmeter saw the GPU (mJ).");
static PCIE_REPLAYS: Descriptor = counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe packets sent again.");
static UNCORRECTABLE_ROWS: Descriptor =
    counter("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrectable errors.");
static CORRECTABLE_ROWS: Descriptor =
    counter("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for correctable errors.");
static ROW_REMAP_FAILURE: Descriptor = gauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether a row remap has failed.");
static GR_ENGINE_ACTIVE: Descriptor =
    gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Part of the time in which the graphics engine was active.");
static SM_ACTIVE: Descriptor =
    gauge("DCGM_FI_PROF_SM_ACTIVE", "Part of the SMs' time with at least one warp resident.");
static PIPE_TENSOR_ACTIVE: Descriptor =
    gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Part of the time in which the tensor pipe was active.");
static DRAM_ACTIVE: Descriptor =
    gauge("DCGM_FI_PROF_DRAM_ACTIVE", "Part of the time in which the memory interface was active.");
static PCIE_TX: Descriptor = gauge("DCGM_FI_PROF_PCIE_TX_BYTES", "Data sent over PCIe (bytes a second).");
static PCIE_RX: Descriptor = gauge("DCGM_FI_PROF_PCIE_RX_BYTES", "Data received over PCIe (bytes a second).");

/// What a whole GPU says; while it is partitioned, what its instances cannot say for themselves.
type DeviceValue = fn(&DeviceReadings) -> Option<Value>;
static OF_DEVICES: &[(&Descriptor, DeviceValue)] = &[
    (&GPU_UTIL, |readings| percent(utilization(readings))),
    (&MEM_COPY_UTIL, |readings| percent(medium(readings)?.rates.memory_utilization_ratio)),
    (&ENC_UTIL, |readings| percent(medium(readings)?.rates.engine_utilization_ratios.get("encoder").copied())),
    (&DEC_UTIL, |readings| percent(medium(readings)?.rates.engine_utilization_ratios.get("decoder").copied())),
    (&PCIE_TX, |readings| Some(whole(medium(readings)?.rates.traffic.pcie_transmitted?))),
    (&PCIE_RX, |readings| Some(whole(medium(readings)?.rates.traffic.pcie_received?))),
    (&NVLINK_BANDWIDTH, |readings| {
        let traffic = medium(readings)?.rates.traffic;
        // DCGM divides the driver's KiB by a thousand.
        Some(whole((traffic.nvlink_transmitted? + traffic.nvlink_received?) / 1024.0 / 1000.0))
    }),
    (&POWER_USAGE, |readings| Some(readings.fast.as_ref()?.value.power_watts?.into())),
    (&ENERGY, |readings| Some(whole(readings.totals.energy_joules? * 1000.0))),
    (&SM_CLOCK, |readings| Some(whole(medium(readings)?.clocks.sm_hertz? / 1e6))),
    (&MEM_CLOCK, |readings| Some(whole(medium(readings)?.clocks.memory_hertz? / 1e6))),
    (&GPU_TEMP, |readings| Some(whole(medium(readings)?.gpu_temperature_celsius?))),
    (&MEMORY_TEMP, |readings| Some(whole(medium(readings)?.memory_temperature_celsius?))),
    (&PCIE_REPLAYS, |readings| Some(slow(readings)?.pcie.replays?.into())),
    (&UNCORRECTABLE_ROWS, |readings| Some(slow(readings)?.row_remap?.uncorrectable.into())),
    (&CORRECTABLE_ROWS, |readings| Some(slow(readings)?.row_remap?.correctable.into())),
    (&ROW_REMAP_FAILURE, |readings| Some(slow(readings)?.row_remap?.failed.into())),
];

/// What a whole GPU and a GPU instance both say.
type PartValue = fn(Option<MemoryUse>, &GpmRatios) -> Option<Value>;
static OF_PARTS: &[(&Descriptor, PartValue)] = &[
    (&FB_USED, |memory, _| Some((memory?.used / MEBIBYTE).into())),
    (&FB_FREE, |memory, _| Some((memory?.free / MEBIBYTE).into())),
    (&FB_RESERVED, |memory, _| Some((memory?.reserved? / MEBIBYTE).into())),
    (&GR_ENGINE_ACTIVE, |_, gpm| Some(gpm.graphics_engine_active?.into())),
    (&SM_ACTIVE, |_, gpm| Some(gpm.sm_active?.into())),
    (&PIPE_TENSOR_ACTIVE, |_, gpm| Some((*gpm.pipes.get("tensor")?).into())),
    (&DRAM_ACTIVE, |_, gpm| Some(gpm.dram_active?.into())),
];

pub(super) fn descriptors() -> impl Iterator<Item = &'static Descriptor> {
    let of_devices = OF_DEVICES.iter().map(|(descriptor, _)| *descriptor);
    of_devices.chain([&XID_ERRORS]).chain(OF_PARTS.iter().map(|(descriptor, _)| *descriptor))
}

/// The families of `/metrics/dcgm`. Only text 0.0.4 can say them: their counters have no `_total`.
pub(super) fn families(snapshot: &Snapshot) -> Vec<Family> {
    let holders = Holders::of(snapshot);
    let mut families = vec![last_xids(snapshot, &holders)];
    for (descriptor, read) in OF_DEVICES {
        let mut family = Family::new(descriptor);
        for (gpu, readings) in with_readings(snapshot) {
            let value = read(readings);
            match shared(snapshot, gpu, descriptor, value.as_ref()) {
                Some(shares) => shares.into_iter().for_each(|(holder, share)| {
                    family.push(labels(snapshot, gpu, None, holder), share);
                }),
                None => family.push_known(labels(snapshot, gpu, None, holders.of_gpu(gpu)), value),
            }
        }
        families.push(family);
    }
    for (descriptor, read) in OF_PARTS {
        let mut family = Family::new(descriptor);
        for (gpu, readings) in with_readings(snapshot) {
            let Some(medium) = medium(readings) else { continue };
            if medium.instances.is_empty() {
                let value = read(medium.memory, &medium.gpm);
                match shared(snapshot, gpu, descriptor, value.as_ref()) {
                    Some(shares) => shares.into_iter().for_each(|(holder, share)| {
                        family.push(labels(snapshot, gpu, None, holder), share);
                    }),
                    None => family.push_known(labels(snapshot, gpu, None, holders.of_gpu(gpu)), value),
                }
            }
        }
        for (gpu, instance) in mig::instances(snapshot) {
            let value = read(instance.memory, &instance.gpm);
            family.push_known(labels(snapshot, gpu, Some(instance), holders.of_instance(instance)), value);
        }
        families.push(family);
    }
    super::family::ordered(families)
}

/// Known of every GPU that is judged, also of one that says nothing any more.
fn last_xids(snapshot: &Snapshot, holders: &Holders<'_>) -> Family {
    let mut family = Family::new(&XID_ERRORS);
    for (gpu, health) in judged(snapshot) {
        let sources = health.xids.last.iter().flat_map(|(code, sources)| sources.values().map(move |xid| (xid, code)));
        let last = sources.max_by(|(one, _), (other, _)| one.at.monotonic.cmp(&other.at.monotonic));
        let code = last.map_or(0, |(_, code)| *code);
        family.push(labels(snapshot, gpu, None, holders.of_gpu(gpu)), code);
    }
    family
}

/// The value of a shared GPU by holder, and what is left under nobody's name. `None`: it stands undivided.
fn shared<'a>(
    snapshot: &'a Snapshot,
    gpu: &Gpu,
    descriptor: &Descriptor,
    value: Option<&Value>,
) -> Option<Vec<(Option<&'a ContainerRef>, Value)>> {
    let whole_value = match value? {
        Value::Integer(number) => *number as f64,
        Value::Float(number) => *number,
        Value::Histogram(_) => return None,
    };
    // Both say for what part of the time kernels ran, so the parts of one are the parts of the other.
    let utilization = || snapshot.hardware.readings.get(&gpu.uuid).and_then(|readings| utilization(readings));
    let engine_per_utilization = || utilization().map(|ratio| if ratio > 0.0 { whole_value / ratio } else { 0.0 });
    let share = |account: &Account| match descriptor.name {
        "DCGM_FI_DEV_GPU_UTIL" => Some(account.device_utilization_ratio? * 100.0),
        "DCGM_FI_DEV_FB_USED" => Some((account.memory_used_bytes? / MEBIBYTE) as f64),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" => Some((account.energy_joules? * 1000.0).round()),
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE" => Some(account.device_utilization_ratio? * engine_per_utilization()?),
        _ => None,
    };
    let holds = |account: &&Account| {
        let sharing = account.holding.as_ref().map(|holding| holding.sharing);
        account.gpu == gpu.uuid && account.mig.is_none() && sharing.is_some_and(|sharing| sharing != Sharing::Exclusive)
    };
    let holders = snapshot.accounts.iter().filter(holds).filter(|account| !account.over_limit);
    let known: Vec<_> =
        holders.filter_map(|account| Some((Some(&account.container), thousandths(share(account)?)))).collect();
    if known.is_empty() {
        return None;
    }
    let rest = match snapshot.unattributed.iter().find(|unattributed| unattributed.gpu == gpu.uuid) {
        // A counter: what pods that have gone used is not to come back under nobody's name.
        Some(unattributed) if descriptor.name == ENERGY.name => {
            (unattributed.energy_joules.values().sum::<f64>() * 1000.0).round()
        }
        _ => thousandths((whole_value - known.iter().map(|(_, share)| share).sum::<f64>()).max(0.0)),
    };
    Some(known.into_iter().chain([(None, rest)]).map(|(holder, share)| (holder, plain(share))).collect())
}

fn utilization(readings: &DeviceReadings) -> Option<f64> {
    readings.fast.as_ref()?.value.utilization_ratio
}

fn percent(ratio: Option<f64>) -> Option<Value> {
    Some(whole(ratio? * 100.0))
}

/// Shares of whole per cent need a fraction: half a per cent of work is not idleness.
fn thousandths(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

fn plain(number: f64) -> Value {
    if number.fract() == 0.0 { whole(number) } else { Value::Float(number) }
}

/// dcgm-exporter writes these without a fraction.
fn whole(number: f64) -> Value {
    let rounded = number.round();
    if (0.0..9e15).contains(&rounded) { Value::Integer(rounded as u64) } else { Value::Float(rounded) }
}

fn labels(
    snapshot: &Snapshot,
    gpu: &Gpu,
    instance: Option<&InstanceReading>,
    holder: Option<&ContainerRef>,
) -> Vec<(&'static str, Label)> {
    let mut labels: Vec<(_, Label)> = vec![];
    labels.extend(gpu.index.map(|index| ("gpu", index.into())));
    labels.push(("UUID", gpu.uuid.to_shared().into()));
    labels.extend(gpu.pci_bus_id.as_ref().map(|id| ("pci_bus_id", nvml_bus_id(id.as_str()).into())));
    // dcgm-exporter puts the index here, not the minor number.
    labels.extend(gpu.index.map(|index| ("device", format!("nvidia{index}").into())));
    labels.extend(gpu.model.as_ref().map(|model| ("modelName", model.into())));
    if let Some(instance) = instance {
        let profile = gpu.mig_devices.iter().find(|mig| mig.gpu_instance == instance.gpu_instance);
        labels.extend(profile.map(|mig| ("GPU_I_PROFILE", (&mig.profile).into())));
        labels.push(("GPU_I_ID", instance.gpu_instance.into()));
    }
    if !snapshot.node_name.is_empty() {
        // Renamed to lower case in 2026 (dcgm-exporter#655); readers of either find theirs.
        labels.push(("Hostname", (&snapshot.node_name).into()));
        labels.push(("hostname", (&snapshot.node_name).into()));
    }
    if let Some(holder) = holder {
        labels.push(("container", (&holder.container).into()));
        labels.push(("namespace", (&holder.namespace).into()));
        labels.push(("pod", (&holder.pod).into()));
    }
    labels
}

/// DCGM writes bus ids as NVML does: eight-digit domain, upper case.
fn nvml_bus_id(kernel: &str) -> String {
    match kernel.split_once(':') {
        Some((domain, rest)) => format!("{domain:0>8}:{rest}").to_ascii_uppercase(),
        None => kernel.to_ascii_uppercase(),
    }
}

/// Who holds each GPU and each MIG device now.
struct Holders<'snapshot> {
    gpus: BTreeMap<&'snapshot str, BTreeSet<&'snapshot ContainerRef>>,
    migs: BTreeMap<&'snapshot MigUuid, BTreeSet<&'snapshot ContainerRef>>,
}

impl<'snapshot> Holders<'snapshot> {
    fn of(snapshot: &'snapshot Snapshot) -> Self {
        let mut holders = Self { gpus: BTreeMap::new(), migs: BTreeMap::new() };
        for account in snapshot.accounts.iter().filter(|account| account.holding.is_some()) {
            holders.gpus.entry(account.gpu.as_str()).or_default().insert(&account.container);
            if let Some(mig) = &account.mig {
                holders.migs.entry(mig).or_default().insert(&account.container);
            }
        }
        holders
    }

    /// A partitioned GPU belongs to nobody as a whole, even while one container has a part of it.
    fn of_gpu(&self, gpu: &Gpu) -> Option<&'snapshot ContainerRef> {
        if gpu.mig_enabled == Some(true) { None } else { only(self.gpus.get(gpu.uuid.as_str())?) }
    }

    fn of_instance(&self, instance: &InstanceReading) -> Option<&'snapshot ContainerRef> {
        let containers: BTreeSet<_> =
            instance.members.iter().filter_map(|mig| self.migs.get(mig)).flatten().copied().collect();
        only(&containers)
    }
}

fn only<'snapshot>(containers: &BTreeSet<&'snapshot ContainerRef>) -> Option<&'snapshot ContainerRef> {
    let first = containers.first().copied();
    first.filter(|_| containers.len() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::{fixture, value};

    #[test]
    fn a_pod_is_named_where_it_is_alone() {
        let mut snapshot = fixture::snapshot();
        let of = |snapshot: &Snapshot, labels: &[(&str, &str)]| value(&families(snapshot), FB_USED.name, labels);
        let alone = [("UUID", fixture::WHOLE), ("pod", "training-0")];
        assert_eq!(of(&snapshot, &alone), Some(40960.0));
        assert_eq!(of(&snapshot, &[("GPU_I_ID", "7"), ("pod", fixture::HOSTILE)]), Some(2048.0));
        assert_eq!(of(&snapshot, &[("GPU_I_ID", "8"), ("pod", "claiming")]), Some(2048.0));

        let mut second = snapshot.accounts[0].clone();
        second.container.pod = "another".into();
        snapshot.accounts.push(second);
        assert_eq!(of(&snapshot, &alone), None, "two pods: neither is named");
        assert_eq!(of(&snapshot, &[("UUID", fixture::WHOLE)]), Some(40960.0), "and the device is shown once");
    }

    #[test]
    fn a_shared_device_is_divided_among_its_pods_and_nobody() {
        let mut snapshot = fixture::snapshot();
        let whole = snapshot.accounts.remove(0);
        for (pod, ratio, gibibytes) in [("one", 0.5, 16), ("two", 0.25, 8)] {
            let mut account = whole.clone();
            account.container.pod = pod.into();
            account.holding.as_mut().unwrap().sharing = Sharing::TimeSlicing;
            account.device_utilization_ratio = Some(ratio);
            account.memory_used_bytes = Some(gibibytes << 30);
            snapshot.accounts.push(account);
        }
        let page = families(&snapshot);
        let of = |name: &str| -> Vec<(bool, Value)> {
            let family = page.iter().find(|family| family.descriptor.name == name).unwrap();
            let here = family
                .samples
                .iter()
                .filter(|sample| sample.labels.iter().any(|(_, value)| value.as_str() == fixture::WHOLE));
            here.map(|sample| (sample.labels.iter().any(|(name, _)| *name == "pod"), sample.value.clone())).collect()
        };
        let [named, nobodys] = [true, false];
        let share = |named, number| (named, Value::Integer(number));
        assert_eq!(of(GPU_UTIL.name), [share(nobodys, 12), share(named, 50), share(named, 25)]);
        assert_eq!(of(FB_USED.name), [share(nobodys, 16384), share(named, 16384), share(named, 8192)]);
        assert_eq!(of(GPU_TEMP.name).len(), 1, "a temperature is nobody's");
        let engine: Vec<_> =
            of(GR_ENGINE_ACTIVE.name).into_iter().map(|(named, value)| (named, number(&value))).collect();
        assert_eq!(engine, [(nobodys, 0.069), (named, 0.287), (named, 0.144)], "as utilization is, adding up to 0.5");
    }

    fn number(value: &Value) -> f64 {
        match value {
            Value::Integer(number) => *number as f64,
            Value::Float(number) => *number,
            Value::Histogram(_) => panic!("no number"),
        }
    }

    #[test]
    fn little_work_of_many_is_not_rounded_to_none() {
        let mut snapshot = fixture::snapshot();
        let hardware = std::sync::Arc::make_mut(&mut snapshot.hardware);
        let readings = std::sync::Arc::make_mut(hardware.readings.get_mut(&fixture::WHOLE.into()).unwrap());
        readings.fast.as_mut().unwrap().value.utilization_ratio = Some(0.01);
        let account = &mut snapshot.accounts[0];
        account.holding.as_mut().unwrap().sharing = Sharing::TimeSlicing;
        account.device_utilization_ratio = Some(0.004);
        let page = families(&snapshot);
        let pods = value(&page, GPU_UTIL.name, &[("UUID", fixture::WHOLE), ("pod", "training-0")]);
        assert_eq!(pods, Some(0.4));
    }

    #[test]
    fn the_last_xid_of_any_code_and_source_is_told_and_0_where_there_was_none() {
        let mut snapshot = fixture::snapshot();
        let last = |snapshot: &Snapshot, uuid| value(&families(snapshot), XID_ERRORS.name, &[("UUID", uuid)]);
        assert_eq!([fixture::WHOLE, fixture::LOST].map(|uuid| last(&snapshot, uuid)), [Some(31.0), Some(0.0)]);
        let health = std::sync::Arc::make_mut(&mut snapshot.health);
        let xids = &mut health.gpus.get_mut(&fixture::WHOLE.into()).unwrap().xids;
        let mut earlier = xids.last[&31]["nvml"].clone();
        earlier.at.monotonic = crate::model::Monotonic::from_secs(399);
        xids.last.insert(94, [("nvml", earlier.clone())].into());
        assert_eq!(last(&snapshot, fixture::WHOLE), Some(31.0));
        earlier.at.monotonic = crate::model::Monotonic::from_secs(401);
        let health = std::sync::Arc::make_mut(&mut snapshot.health);
        health.gpus.get_mut(&fixture::WHOLE.into()).unwrap().xids.last.insert(94, [("nvml", earlier)].into());
        assert_eq!(last(&snapshot, fixture::WHOLE), Some(94.0));
    }

    #[test]
    fn a_partitioned_gpu_as_a_whole_is_nobodys() {
        let mut snapshot = fixture::snapshot();
        snapshot.accounts.retain(|account| &*account.container.pod == "claiming");
        let power =
            value(&families(&snapshot), POWER_USAGE.name, &[("UUID", fixture::PARTITIONED), ("pod", "claiming")]);
        assert_eq!(power, None);
    }

    #[test]
    fn bus_ids_are_written_as_nvml_does() {
        assert_eq!(nvml_bus_id("0000:3b:00.0"), "00000000:3B:00.0");
        assert_eq!(nvml_bus_id("00010000:3d:00.0"), "00010000:3D:00.0");
    }
}
