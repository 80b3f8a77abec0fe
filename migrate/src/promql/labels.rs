//! Labels: what becomes of dcgm-exporter's, and where the labels of a result come from.

use std::collections::{BTreeMap, BTreeSet};

use podmeter::metrics::dcgm::{LABELS, LabelName};

use super::Target;

/// What becomes of a label of dcgm-exporter's series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Keep,
    /// Of the target, which stays, or of pods, which podmeter's metrics do not have.
    Unknown,
    Rename(&'static str),
    /// In `podmeter_device_info` under this name.
    Info(&'static str),
    /// In `podmeter_container_allocation_info` under this name.
    Pods(&'static str),
    /// Of a GPU instance of MIG, which has metrics of its own in podmeter; empty for a whole GPU.
    Instance,
    /// Only on this metric of podmeter, which has no series by GPU or is not joined.
    Elsewhere(&'static str),
    /// Not to be had, for this reason.
    Missing(&'static str),
}

impl Rule {
    /// The name after the rewriting.
    pub fn name(self, before: &str) -> String {
        match self {
            Self::Rename(name) | Self::Info(name) | Self::Pods(name) => name.to_owned(),
            Self::Keep | Self::Unknown | Self::Instance | Self::Elsewhere(_) | Self::Missing(_) => before.to_owned(),
        }
    }
}

/// The rule for a label of a dcgm-exporter series.
pub fn rule(target: Target, label: &str) -> Rule {
    let row = || LABELS.iter().find(|row| [row.old, row.new].contains(&label));
    let renamed = |after: &'static str| if after == label { Rule::Keep } else { Rule::Rename(after) };
    match target {
        Target::Old if label == "hostname" => Rule::Rename("Hostname"),
        Target::New if label == "Hostname" => Rule::Rename("hostname"),
        Target::Old => row().map_or(Rule::Keep, |row| renamed(row.old)),
        Target::New => row().map_or(Rule::Keep, |row| renamed(row.new)),
        Target::Podmeter => match row() {
            None => native(label),
            Some(LabelName { podmeter: Some((metric, _)), .. }) => Rule::Elsewhere(metric),
            Some(_) => Rule::Missing("podmeter does not read it"),
        },
    }
}

fn native(label: &str) -> Rule {
    match label {
        "UUID" | "uuid" => Rule::Rename("gpu_uuid"),
        "Hostname" | "hostname" => Rule::Rename("node"),
        "gpu" => Rule::Info("gpu"),
        "modelName" => Rule::Info("model"),
        "device" => Rule::Info("device"),
        "pci_bus_id" => Rule::Info("pci_bus_id"),
        "pod" | "exported_pod" | "pod_name" => Rule::Pods("pod"),
        "namespace" | "exported_namespace" | "pod_namespace" => Rule::Pods("namespace"),
        "container" | "exported_container" | "container_name" => Rule::Pods("container"),
        "GPU_I_ID" | "GPU_I_PROFILE" => Rule::Instance,
        "vgpu" => Rule::Missing("podmeter's series are by container, not by replica"),
        "xid" | "clock_event" | "window_size_in_ms" | "health_watch" | "health_error_code" | "peer_gpu"
        | "link_status" | "nvlink" | "nvswitch" | "pod_uid" | "hpc_job" => {
            Rule::Missing("podmeter's metric does not have this label")
        }
        _ if label.starts_with("dra_") => Rule::Missing("podmeter has claims in podmeter_container_claim_info"),
        _ if label.starts_with("DCGM_FI_") => Rule::Missing("podmeter does not have this label"),
        _ if OF_TARGETS.contains(&label) => Rule::Keep,
        _ => Rule::Unknown,
    }
}

/// Labels that Prometheus, its operator and usual settings give to every series.
const OF_TARGETS: [&str; 17] = [
    "__name__",
    "job",
    "instance",
    "service",
    "endpoint",
    "node",
    "cluster",
    "region",
    "zone",
    "env",
    "environment",
    "datacenter",
    "site",
    "tenant",
    "prometheus",
    "prometheus_replica",
    "replica",
];

/// podmeter's metric that has the values of a label of dcgm-exporter, and the label's name there; `None` where podmeter's
/// device metrics have it. For `label_values(metric, label)`.
pub fn label_source(label: &str) -> Option<(&'static str, &'static str)> {
    match native(label) {
        Rule::Info(name @ ("model" | "pci_bus_id")) => Some((DEVICE_INFO, name)),
        Rule::Pods(name) => Some((ALLOCATION_INFO, name)),
        _ => None,
    }
}

pub const DEVICE_INFO: &str = "podmeter_device_info";
/// Labels of dcgm-exporter's series that podmeter's device metrics do not have, and their names where they are joined.
pub const NOT_ON_DEVICES: [(&str, &str); 6] = [
    ("namespace", "namespace"),
    ("pod", "pod"),
    ("container", "container"),
    ("modelName", "model"),
    ("device", "device"),
    ("pci_bus_id", "pci_bus_id"),
];
pub const ALLOCATION_INFO: &str = "podmeter_container_allocation_info";

/// Labels of [`ALLOCATION_INFO`] that dcgm-exporter's series do not have.
pub const ALLOCATION_LABELS: [&str; 5] = ["mig_uuid", "resource", "device_id", "sharing", "attribution"];

/// From where a label can come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// A series of dcgm-exporter: the label is renamed.
    pub dcgm: bool,
    /// Another series: the label has its own name.
    pub foreign: bool,
    /// `label_replace` or `label_join`.
    pub made: bool,
}

impl Origin {
    fn or(self, other: Self) -> Self {
        Self { dcgm: self.dcgm || other.dcgm, foreign: self.foreign || other.foreign, made: self.made || other.made }
    }
}

/// The labels of a result: which can be there, by their names before the rewriting, and which podmeter adds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flow {
    /// Of every label that is not in `named`.
    pub rest: Origin,
    pub named: BTreeMap<String, Origin>,
    /// Labels, by their names after the rewriting, that are on the result though not on every device series.
    pub supplied: BTreeSet<String>,
    /// Labels that the series before did not have, with their value where all series have the same.
    pub extras: BTreeMap<String, Option<String>>,
}

impl Flow {
    pub fn of_dcgm() -> Self {
        Self { rest: Origin { dcgm: true, ..Origin::default() }, ..Self::default() }
    }

    pub fn of_others() -> Self {
        Self { rest: Origin { foreign: true, ..Origin::default() }, ..Self::default() }
    }

    pub fn origin(&self, label: &str) -> Origin {
        self.named.get(label).copied().unwrap_or(self.rest)
    }

    pub fn has_dcgm(&self) -> bool {
        self.rest.dcgm || self.named.values().any(|origin| origin.dcgm)
    }

    pub fn has_others(&self) -> bool {
        self.rest.foreign || self.named.values().any(|origin| origin.foreign)
    }

    /// Whether the result can be joined by GPU.
    pub fn has_uuid(&self) -> bool {
        ["UUID", "uuid"].iter().any(|label| self.origin(label).dcgm)
    }

    /// Only these labels, as in `by` and `on`.
    pub fn keep(&mut self, labels: &[&str], target: Target) {
        self.named = labels.iter().map(|label| ((*label).to_owned(), self.origin(label))).collect();
        self.rest = Origin::default();
        let after: BTreeSet<String> = labels.iter().map(|label| rule(target, label).name(label)).collect();
        self.supplied.retain(|label| after.contains(label));
        self.extras.clear();
    }

    /// Without these labels, as in `without` and `ignoring`.
    pub fn drop(&mut self, labels: &[&str]) {
        self.named.extend(labels.iter().map(|label| ((*label).to_owned(), Origin::default())));
    }

    /// A label taken from another result, or made.
    pub fn set(&mut self, label: &str, origin: Origin, after: &str) {
        self.named.insert(label.to_owned(), origin);
        self.supplied.insert(after.to_owned());
        self.extras.remove(after);
    }

    /// Series of either.
    pub fn or(&self, other: &Self) -> Self {
        let labels = self.named.keys().chain(other.named.keys());
        let mut extras = self.extras.clone();
        for (label, value) in &other.extras {
            let merged = self.extras.get(label).filter(|found| *found == value).cloned().flatten();
            extras.insert(label.clone(), merged);
        }
        for (label, value) in &mut extras {
            if !other.extras.contains_key(label) {
                *value = None;
            }
        }
        Self {
            rest: self.rest.or(other.rest),
            named: labels.map(|label| (label.clone(), self.origin(label).or(other.origin(label)))).collect(),
            supplied: self.supplied.intersection(&other.supplied).cloned().collect(),
            extras,
        }
    }

    /// podmeter's labels that keep series of the two from matching.
    pub fn differing_extras(&self, other: &Self) -> Vec<String> {
        let labels: BTreeSet<&String> = self.extras.keys().chain(other.extras.keys()).collect();
        let differs = |label: &&String| {
            let (left, right) = (self.extras.get(*label), other.extras.get(*label));
            left != right || left == Some(&None)
        };
        labels.into_iter().filter(differs).cloned().collect()
    }
}
