//! The same snapshot under dcgm-exporter's names, labels and units, for dashboards and tools that read those.
//!
//! The differences are deliberate. dcgm-exporter repeats a shared device's value under every pod; here utilization,
//! memory in use and energy are each container's own share, with the rest under no pod, so that they add up to the
//! device, and what cannot be divided (clocks, temperatures) appears once, under no pod. NVLink's bandwidth is a rate,
//! so it is a gauge here, where dcgm-exporter calls it a counter. A value that the snapshot lacks is absent.

use std::collections::{BTreeMap, BTreeSet};

use super::family::{Descriptor, Family, Kind, Value, ordered};
use super::labels::{Labels, medium, slow, with_health, with_readings};
use super::mig;
use crate::model::{
    Account, ContainerRef, DeviceReadings, GpmRatios, Gpu, InstanceReading, MemoryUse, MigUuid, Sharing, Snapshot,
};

const MEBIBYTE: u64 = 1024 * 1024;

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

struct Metric {
    descriptor: Descriptor,
    samples: fn(&Page<'_>, &mut Family),
}

type Samples = fn(&Page<'_>, &mut Family);

const fn gauge(name: &'static str, help: &'static str, samples: Samples) -> Metric {
    Metric { descriptor: Descriptor { name, kind: Kind::Gauge, labels: LABELS, source: "NVML", help }, samples }
}

const fn counter(name: &'static str, help: &'static str, samples: Samples) -> Metric {
    Metric { descriptor: Descriptor { name, kind: Kind::Counter, labels: LABELS, source: "NVML", help }, samples }
}

static METRICS: &[Metric] = &[
    gauge("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (%).", |page, family| {
        page.of_gpus(family, Some(|account, _| Some(account.device_utilization_ratio? * 100.0)), |readings| {
            percent(utilization(readings))
        });
    }),
    gauge("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (%).", |page, family| {
        page.of_gpus(family, None, |readings| percent(medium(readings)?.rates.memory_utilization_ratio));
    }),
    gauge("DCGM_FI_DEV_ENC_UTIL", "Encoder utilization (%).", |page, family| {
        page.of_gpus(family, None, |readings| {
            percent(medium(readings)?.rates.engine_utilization_ratios.get("encoder").copied())
        });
    }),
    gauge("DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (%).", |page, family| {
        page.of_gpus(family, None, |readings| {
            percent(medium(readings)?.rates.engine_utilization_ratios.get("decoder").copied())
        });
    }),
    gauge("DCGM_FI_PROF_PCIE_TX_BYTES", "Data sent over PCIe (bytes a second).", |page, family| {
        page.of_gpus(family, None, |readings| Some(whole(medium(readings)?.rates.traffic.pcie_transmitted?)));
    }),
    gauge("DCGM_FI_PROF_PCIE_RX_BYTES", "Data received over PCIe (bytes a second).", |page, family| {
        page.of_gpus(family, None, |readings| Some(whole(medium(readings)?.rates.traffic.pcie_received?)));
    }),
    gauge(
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "Data over all NVLinks, both ways (thousands of KiB a second).",
        |page, family| {
            page.of_gpus(family, None, |readings| {
                let traffic = medium(readings)?.rates.traffic;
                // DCGM divides the driver's KiB by a thousand.
                Some(whole((traffic.nvlink_transmitted? + traffic.nvlink_received?) / 1024.0 / 1000.0))
            });
        },
    ),
    gauge("DCGM_FI_DEV_POWER_USAGE", "Power draw (W).", |page, family| {
        page.of_gpus(family, None, |readings| Some(readings.fast.as_ref()?.value.power_watts?.into()));
    }),
    counter(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Energy drawn since podmeter first read the GPU (mJ).",
        |page, family| {
            page.of_gpus(
                family,
                Some(|account, _| Some((account.figures.energy_joules? * 1000.0).round())),
                |readings| Some(whole(readings.totals.energy_joules? * 1000.0)),
            );
        },
    ),
    gauge("DCGM_FI_DEV_SM_CLOCK", "SM clock (MHz).", |page, family| {
        page.of_gpus(family, None, |readings| Some(whole(medium(readings)?.clocks.sm_hertz? / 1e6)));
    }),
    gauge("DCGM_FI_DEV_MEM_CLOCK", "Memory clock (MHz).", |page, family| {
        page.of_gpus(family, None, |readings| Some(whole(medium(readings)?.clocks.memory_hertz? / 1e6)));
    }),
    gauge("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (C).", |page, family| {
        page.of_gpus(family, None, |readings| Some(whole(medium(readings)?.gpu_temperature_celsius?)));
    }),
    gauge("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (C).", |page, family| {
        page.of_gpus(family, None, |readings| Some(whole(medium(readings)?.memory_temperature_celsius?)));
    }),
    counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe packets retransmitted.", |page, family| {
        page.of_gpus(family, None, |readings| Some(slow(readings)?.pcie.replays?.into()));
    }),
    counter("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped for uncorrectable errors.", |page, family| {
        page.of_gpus(family, None, |readings| Some(slow(readings)?.row_remap?.uncorrectable.into()));
    }),
    counter("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped for correctable errors.", |page, family| {
        page.of_gpus(family, None, |readings| Some(slow(readings)?.row_remap?.correctable.into()));
    }),
    gauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether a row remap has failed.", |page, family| {
        page.of_gpus(family, None, |readings| Some(slow(readings)?.row_remap?.failed.into()));
    }),
    gauge("DCGM_FI_DEV_XID_ERRORS", "Code of the last XID since podmeter started; 0 if there was none.", last_xids),
    gauge("DCGM_FI_DEV_FB_USED", "Frame buffer memory used (MiB).", |page, family| {
        page.of_parts(family, Some(|account, _| Some((account.memory_used_bytes? / MEBIBYTE) as f64)), |memory, _| {
            Some((memory?.used / MEBIBYTE).into())
        });
    }),
    gauge("DCGM_FI_DEV_FB_FREE", "Frame buffer memory free (MiB).", |page, family| {
        page.of_parts(family, None, |memory, _| Some((memory?.free / MEBIBYTE).into()));
    }),
    gauge("DCGM_FI_DEV_FB_RESERVED", "Frame buffer memory reserved (MiB).", |page, family| {
        page.of_parts(family, None, |memory, _| Some((memory?.reserved? / MEBIBYTE).into()));
    }),
    gauge(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "Fraction of time in which the graphics engine was active.",
        |page, family| {
            page.of_parts(
                family,
                Some(|account, whole| Some(account.device_utilization_ratio? * whole.per_utilization?)),
                |_, gpm| Some(gpm.graphics_engine_active?.into()),
            );
        },
    ),
    gauge("DCGM_FI_PROF_SM_ACTIVE", "Fraction of SM time with at least one warp resident.", |page, family| {
        page.of_parts(family, None, |_, gpm| Some(gpm.sm_active?.into()));
    }),
    gauge(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "Fraction of time in which the tensor pipe was active.",
        |page, family| page.of_parts(family, None, |_, gpm| Some((*gpm.pipes.get("tensor")?).into())),
    ),
    gauge("DCGM_FI_PROF_DRAM_ACTIVE", "Fraction of time in which the memory interface was active.", |page, family| {
        page.of_parts(family, None, |_, gpm| Some(gpm.dram_active?.into()));
    }),
];

pub(super) fn descriptors() -> impl Iterator<Item = &'static Descriptor> {
    METRICS.iter().map(|metric| &metric.descriptor)
}

/// The families of `/metrics/dcgm`, for text 0.0.4 alone: their counters do not end in `_total`.
pub(super) fn families(snapshot: &Snapshot) -> Vec<Family> {
    let page = Page { snapshot, holders: Holders::of(snapshot) };
    let filled = |metric: &'static Metric| {
        let mut family = Family::new(&metric.descriptor);
        (metric.samples)(&page, &mut family);
        family
    };
    ordered(METRICS.iter().map(filled).collect())
}

struct Page<'snapshot> {
    snapshot: &'snapshot Snapshot,
    holders: Holders<'snapshot>,
}

/// The part of a shared GPU's value that a holder has.
type Share = fn(&Account, Whole) -> Option<f64>;

#[derive(Clone, Copy)]
struct Whole {
    value: f64,
    /// Divided by the GPU's utilization: both count the time in which kernels ran, so the shares of one are those of
    /// the other.
    per_utilization: Option<f64>,
}

impl Page<'_> {
    fn of_gpus(&self, family: &mut Family, share: Option<Share>, read: fn(&DeviceReadings) -> Option<Value>) {
        for (gpu, readings) in with_readings(self.snapshot) {
            self.push(family, gpu, share, read(readings));
        }
    }

    /// Of each GPU, or of its GPU instances while it is partitioned.
    fn of_parts(
        &self,
        family: &mut Family,
        share: Option<Share>,
        read: fn(Option<MemoryUse>, &GpmRatios) -> Option<Value>,
    ) {
        for (gpu, readings) in with_readings(self.snapshot) {
            if let Some(medium) = medium(readings).filter(|medium| medium.instances.is_empty()) {
                self.push(family, gpu, share, read(medium.memory, &medium.gpm));
            }
        }
        for (gpu, instance) in mig::instances(self.snapshot) {
            let labels = self.labels(gpu, Some(instance), self.holders.of_instance(instance));
            family.push_known(labels, read(instance.memory, &instance.gpm));
        }
    }

    fn push(&self, family: &mut Family, gpu: &Gpu, share: Option<Share>, value: Option<Value>) {
        let Some(value) = value else { return };
        match share.and_then(|share| self.shared(family.descriptor.kind, gpu, share, &value)) {
            Some(shares) => {
                for (holder, share) in shares {
                    family.push(self.labels(gpu, None, holder), plain(share));
                }
            }
            None => family.push(self.labels(gpu, None, self.holders.of_gpu(gpu)), value),
        }
    }

    /// The value of a shared GPU by holder, and the unattributed rest under `None`. Absent where it is not divided.
    fn shared(&self, kind: Kind, gpu: &Gpu, share: Share, value: &Value) -> Option<Vec<(Option<&ContainerRef>, f64)>> {
        let value = match value {
            Value::Integer(number) => *number as f64,
            Value::Float(number) => *number,
            Value::Histogram(_) => return None,
        };
        let ratio = self.snapshot.hardware.readings.get(&gpu.uuid).and_then(|readings| utilization(readings));
        let whole = Whole { value, per_utilization: ratio.map(|ratio| if ratio > 0.0 { value / ratio } else { 0.0 }) };
        let is_shared = |account: &&Account| {
            let sharing = account.holding.as_ref().map(|holding| holding.sharing);
            account.gpu == gpu.uuid
                && account.mig.is_none()
                && sharing.is_some_and(|sharing| sharing != Sharing::Exclusive)
        };
        let holders = self.snapshot.accounts.iter().filter(is_shared).filter(|account| !account.over_limit);
        let mut shares: Vec<_> = holders
            .filter_map(|account| Some((Some(&account.container), thousandths(share(account, whole)?))))
            .collect();
        if shares.is_empty() {
            return None;
        }
        let unattributed = self.snapshot.unattributed.iter().find(|unattributed| unattributed.gpu == gpu.uuid);
        let rest = match unattributed.filter(|_| kind == Kind::Counter) {
            // A counter: what ended pods used must not appear as unattributed.
            Some(unattributed) => (unattributed.energy_joules.values().sum::<f64>() * 1000.0).round(),
            None => thousandths((whole.value - shares.iter().map(|(_, share)| share).sum::<f64>()).max(0.0)),
        };
        shares.push((None, rest));
        Some(shares)
    }

    fn labels(&self, gpu: &Gpu, instance: Option<&InstanceReading>, holder: Option<&ContainerRef>) -> Labels {
        // dcgm-exporter puts the index into `device`, not the minor number.
        let mut labels = Labels::default()
            .and_known("gpu", gpu.index)
            .and("UUID", &gpu.uuid)
            .and_known("pci_bus_id", gpu.pci_bus_id.as_ref().map(|id| nvml_bus_id(id.as_str())))
            .and_known("device", gpu.index.map(|index| format!("nvidia{index}")))
            .and_known("modelName", gpu.model.as_ref());
        if let Some(instance) = instance {
            let profile = gpu.mig_devices.iter().find(|mig| mig.gpu_instance == instance.gpu_instance);
            labels = labels
                .and_known("GPU_I_PROFILE", profile.map(|mig| &mig.profile))
                .and("GPU_I_ID", instance.gpu_instance);
        }
        // Renamed to lower case in 2026 (dcgm-exporter#655); readers of either find theirs.
        let node = Some(&self.snapshot.node_name).filter(|name| !name.is_empty());
        labels
            .and_known("Hostname", node)
            .and_known("hostname", node)
            .and_known("container", holder.map(|holder| &holder.container))
            .and_known("namespace", holder.map(|holder| &holder.namespace))
            .and_known("pod", holder.map(|holder| &holder.pod))
    }
}

/// Of every GPU with a health state, also of one without readings.
fn last_xids(page: &Page<'_>, family: &mut Family) {
    for (gpu, health) in with_health(page.snapshot) {
        let sources = health.xids.last.iter().flat_map(|(code, sources)| sources.values().map(move |xid| (xid, code)));
        let last = sources.max_by(|(one, _), (other, _)| one.at.monotonic.cmp(&other.at.monotonic));
        let code = last.map_or(0, |(_, code)| *code);
        family.push(page.labels(gpu, None, page.holders.of_gpu(gpu)), code);
    }
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

/// DCGM writes bus ids as NVML does: eight-digit domain, upper case.
fn nvml_bus_id(kernel: &str) -> String {
    match kernel.split_once(':') {
        Some((domain, rest)) => format!("{domain:0>8}:{rest}").to_ascii_uppercase(),
        None => kernel.to_ascii_uppercase(),
    }
}

/// The holders of each GPU and each MIG device now.
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

    /// A partitioned GPU has no holder as a whole, even while one container holds a part of it.
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
        let of =
            |snapshot: &Snapshot, labels: &[(&str, &str)]| value(&families(snapshot), "DCGM_FI_DEV_FB_USED", labels);
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
    fn a_shared_device_is_divided_among_its_pods_and_the_rest() {
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
            let here =
                family.samples.iter().filter(|sample| sample.labels.iter().any(|(_, value)| value == fixture::WHOLE));
            here.map(|sample| (sample.labels.iter().any(|(name, _)| name == "pod"), sample.value.clone())).collect()
        };
        let [named, unattributed] = [true, false];
        let share = |named, number| (named, Value::Integer(number));
        assert_eq!(of("DCGM_FI_DEV_GPU_UTIL"), [share(unattributed, 12), share(named, 50), share(named, 25)]);
        assert_eq!(of("DCGM_FI_DEV_FB_USED"), [share(unattributed, 16384), share(named, 16384), share(named, 8192)]);
        assert_eq!(of("DCGM_FI_DEV_GPU_TEMP").len(), 1, "a temperature is not divided");
        let engine: Vec<_> =
            of("DCGM_FI_PROF_GR_ENGINE_ACTIVE").into_iter().map(|(named, value)| (named, number(&value))).collect();
        assert_eq!(
            engine,
            [(unattributed, 0.069), (named, 0.287), (named, 0.144)],
            "as utilization is, adding up to 0.5"
        );
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
        let pods = value(&page, "DCGM_FI_DEV_GPU_UTIL", &[("UUID", fixture::WHOLE), ("pod", "training-0")]);
        assert_eq!(pods, Some(0.4));
    }

    #[test]
    fn the_last_xid_of_any_code_and_source_is_shown_and_0_without_one() {
        let mut snapshot = fixture::snapshot();
        let last = |snapshot: &Snapshot, uuid| value(&families(snapshot), "DCGM_FI_DEV_XID_ERRORS", &[("UUID", uuid)]);
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
    fn a_partitioned_gpu_as_a_whole_has_no_pod() {
        let mut snapshot = fixture::snapshot();
        snapshot.accounts.retain(|account| &*account.container.pod == "claiming");
        let power = value(
            &families(&snapshot),
            "DCGM_FI_DEV_POWER_USAGE",
            &[("UUID", fixture::PARTITIONED), ("pod", "claiming")],
        );
        assert_eq!(power, None);
    }

    #[test]
    fn bus_ids_are_written_as_nvml_does() {
        assert_eq!(nvml_bus_id("0000:3b:00.0"), "00000000:3B:00.0");
        assert_eq!(nvml_bus_id("00010000:3d:00.0"), "00010000:3D:00.0");
    }
}
