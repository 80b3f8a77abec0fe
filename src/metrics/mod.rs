//! What the pages of numbers say.
//!
//! In: a `Snapshot`, and before it the accounts that a series limit is held against. Out: pages as bytes (text 0.0.4, OpenMetrics, protobuf, and dcgm-exporter's names), and the
//! catalogue of every metric. Refuses to know: HTTP, the kubelet, drivers, files, the time of day. What is not in the
//! snapshot is not on the page, so what is gone is gone and a scrape waits for nothing.

mod budget;
pub mod catalogue;
mod container;
mod dcgm;
mod device_identity;
mod device_interconnect;
mod device_memory_errors;
mod device_power_thermal;
mod device_use;
mod exposition;
mod family;
mod health;
mod journal;
mod kubelet;
mod mig;
mod page;
mod plugin;
mod processes;
mod resources;
mod self_metrics;
mod unattributed;

pub use budget::SeriesBudget;
pub use exposition::{open_metrics, protobuf, text};
pub use family::{Descriptor, Family, Kind, Label, Sample, Value};
pub use page::{Coding, Format, PageError, Pages};

use crate::model::Snapshot;

/// One file of metrics: its descriptors, and the pure function that fills them.
pub struct Group {
    /// The heading that the catalogue puts it under.
    pub section: &'static str,
    pub descriptors: &'static [&'static Descriptor],
    pub families: fn(&Snapshot) -> Vec<Family>,
}

/// In the order of the page. A new group is a new file and a line here.
pub const GROUPS: &[Group] = &[
    resources::GROUP,
    device_identity::GROUP,
    device_use::GROUP,
    device_power_thermal::GROUP,
    device_interconnect::GROUP,
    device_memory_errors::GROUP,
    health::GROUP,
    mig::GROUP,
    container::GROUP,
    processes::GROUP,
    unattributed::GROUP,
    plugin::GROUP,
    kubelet::GROUP,
    self_metrics::GROUP,
    journal::GROUP,
];

/// Every family that has a sample: by group, then by name, its samples sorted by their labels.
#[must_use]
pub fn families(snapshot: &Snapshot) -> Vec<Family> {
    let mut page = Vec::new();
    for group in GROUPS {
        page.extend(family::ordered((group.families)(snapshot)));
    }
    page
}

#[cfg(test)]
pub(crate) mod tests;
