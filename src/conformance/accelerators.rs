//! The accelerators of a page, and which of its metrics give which quantity. Exporters have no common names: metrics are
//! recognized by words in their names, accelerators by labels that identify them.

use std::collections::{BTreeMap, BTreeSet};

use crate::client::{Page, Sample};

/// Labels that identify an accelerator, the most specific first: those of podmeter, dcgm-exporter, nvidia_gpu_exporter,
/// OpenTelemetry's hardware conventions, AMD's and Intel's exporters, cAdvisor and TPU metrics.
const IDENTITIES: [&str; 16] = [
    "gpu_uuid",
    "UUID",
    "uuid",
    "hw_id",
    "gpu_id",
    "GPU_UUID",
    "accelerator_id",
    "acc_id",
    "device_id",
    "dev_id",
    "card_id",
    "pci_bus_id",
    "pci_bdf",
    "gpu",
    "gpu_index",
    "minor_number",
];

/// Labels that identify devices of other kinds, too.
const GENERIC: [&str; 3] = ["uuid", "device_id", "dev_id"];
/// Beginnings of words in the names of the metrics whose generic labels identify accelerators.
const ACCELERATORS: [&str; 12] =
    ["gpu", "nvidia", "dcgm", "amd", "rocm", "xpu", "npu", "tpu", "neuron", "habana", "gaudi", "accelerator"];

/// A quantity that a requirement names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    Utilization,
    MemoryUse,
    Temperature,
    Power,
    Interconnect,
}

impl Quantity {
    pub const ALL: [Self; 5] = [Self::Utilization, Self::MemoryUse, Self::Temperature, Self::Power, Self::Interconnect];

    pub fn named(self) -> &'static str {
        match self {
            Self::Utilization => "utilization",
            Self::MemoryUse => "memory usage",
            Self::Temperature => "temperature",
            Self::Power => "power draw",
            Self::Interconnect => "interconnect bandwidth",
        }
    }

    /// Of a sample that an accelerator's label identifies; metrics of one workload on it are none.
    fn of(sample: &Sample<'_>) -> Option<Self> {
        let name = sample.name.to_ascii_lowercase();
        let words: Vec<&str> = name.split(['_', ':']).collect();
        let has_word = |wanted: &[&str]| words.iter().any(|word| wanted.contains(word));
        let contains = |wanted: &[&str]| wanted.iter().any(|part| name.contains(part));
        // cAdvisor's metrics of whole accelerators.
        let is_of_workload = has_word(&["container"]) && !name.starts_with("container_accelerator_");
        if is_of_workload
            || has_word(&[
                "process",
                "pod",
                "unattributed",
                "limit",
                "threshold",
                "margin",
                "slowdown",
                "shutdown",
                "info",
                "max",
                "created",
            ])
        {
            return None;
        }
        if contains(&["nvlink", "pcie", "xgmi", "xe_link", "gpu_io"]) {
            let is_traffic = has_word(&["bandwidth", "bytes", "throughput", "tx", "rx", "io"]);
            return is_traffic.then_some(Self::Interconnect);
        }
        let is_memory = has_word(&["fb", "mem", "memory", "vram", "hbm", "dram"]);
        if is_memory && (has_word(&["used", "usage"]) || sample.label("state") == Some("used")) {
            return Some(Self::MemoryUse);
        }
        if words.iter().any(|word| word.starts_with("temp")) {
            return Some(Self::Temperature);
        }
        if has_word(&["power", "watts", "energy", "joules"]) {
            let is_other = contains(&["throttle", "violation", "state", "management", "cap"]);
            return (!is_other).then_some(Self::Power);
        }
        let is_of_a_part = has_word(&["enc", "dec", "encoder", "decoder", "jpg", "ofa", "fan", "cpu", "engine_busy"]);
        let is_use = words.iter().any(|word| word.starts_with("util"))
            || contains(&["duty_cycle", "gfx_activity", "gr_engine_active", "graphics_engine_active", "sm_active"])
            || has_word(&["busy"]) && !contains(&["engine_busy"]);
        (is_use && !is_memory && !is_of_a_part).then_some(Self::Utilization)
    }
}

/// What one quantity has on a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Samples by metric.
    pub metrics: BTreeMap<String, usize>,
    pub accelerators: BTreeSet<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accelerators {
    /// Those with a current reading; where a page has counters only, all.
    pub measured: BTreeSet<String>,
    /// Named by a label, but without any current reading: lost, or not a device.
    pub unmeasured: BTreeSet<String>,
    /// The labels that identify them.
    pub labels: BTreeSet<&'static str>,
    quantities: BTreeMap<Quantity, Found>,
}

impl Accelerators {
    pub fn of(page: &Page<'_>) -> Self {
        let mut all = Self::default();
        let mut named = BTreeSet::new();
        for sample in page.samples.iter().filter(|sample| !sample.value.is_nan()) {
            let Some((label, accelerator)) = identity(sample) else { continue };
            named.insert(accelerator);
            let Some(quantity) = Quantity::of(sample) else { continue };
            all.labels.insert(label);
            let found = all.quantities.entry(quantity).or_default();
            *found.metrics.entry(sample.name.to_owned()).or_default() += 1;
            found.accelerators.insert(accelerator.to_owned());
            // A counter keeps its value when readings end.
            if !is_counter(page, sample.name) {
                all.measured.insert(accelerator.to_owned());
            }
        }
        if all.measured.is_empty() {
            let found = all.quantities.values().flat_map(|found| &found.accelerators);
            all.measured = found.cloned().collect();
        }
        let unmeasured = named.into_iter().filter(|name| !all.measured.contains(*name));
        all.unmeasured = unmeasured.map(str::to_owned).collect();
        all
    }

    /// Of accelerators with a current reading.
    pub fn found(&self, quantity: Quantity) -> Option<&Found> {
        self.quantities.get(&quantity)
    }

    pub fn without(&self, quantity: Quantity) -> Vec<&str> {
        let has = |accelerator: &&String| {
            self.quantities.get(&quantity).is_some_and(|found| found.accelerators.contains(*accelerator))
        };
        self.measured.iter().filter(|accelerator| !has(accelerator)).map(String::as_str).collect()
    }
}

/// The label and its value. Partitions of an accelerator count as it.
fn identity<'a>(sample: &'a Sample<'_>) -> Option<(&'static str, &'a str)> {
    // OpenTelemetry's `hw.id` identifies any hardware.
    if sample.label("hw_type").is_some_and(|kind| kind != "gpu") {
        return None;
    }
    let name = sample.name.to_ascii_lowercase();
    let mut words = name.split(['_', ':']);
    let is_of_accelerators = words.any(|word| ACCELERATORS.iter().any(|begin| word.starts_with(begin)));
    let labels = IDENTITIES.iter().filter(|label| is_of_accelerators || !GENERIC.contains(*label));
    labels.copied().find_map(|label| Some((label, sample.label(label)?)))
}

fn is_counter(page: &Page<'_>, name: &str) -> bool {
    let kind = |name: &str| page.types.get(name).copied();
    // OpenMetrics types the family, whose name has no `_total`.
    let kind = kind(name).or_else(|| kind(name.strip_suffix("_total")?));
    matches!(kind, Some("counter" | "histogram" | "summary"))
}
