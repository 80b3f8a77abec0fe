//! The metrics pages.
//!
//! Inputs: a `Snapshot`, before which the publisher calls `SeriesBudget::mark` on the accounts. Outputs: pages as bytes (text
//! 0.0.4, OpenMetrics, protobuf, dcgm-exporter's names) and the catalogue of every metric. Does not use: HTTP, the
//! kubelet, drivers, files, the time. What is not in the snapshot is not on the page, so a scrape waits for nothing.

mod budget;
pub mod catalogue;
mod container;
pub mod dcgm;
mod device_identity;
mod device_interconnect;
mod device_memory_errors;
mod device_power_thermal;
mod device_use;
mod family;
mod health;
mod journal;
mod kubelet;
mod labels;
mod memory_manager;
mod mig;
mod module;
mod page;
mod plugin;
mod processes;
mod resources;
mod self_metrics;
mod unattributed;
mod virtualization;

pub use budget::SeriesBudget;
pub use family::{Family, SampleValue};
pub use page::{Format, write};

use std::sync::LazyLock;

use crate::domain::model::Snapshot;
use family::Group;

/// The groups in the order of the page. A new group is a new file and a line here.
static GROUPS: [&LazyLock<Group>; 17] = [
    &resources::GROUP,
    &device_identity::GROUP,
    &device_use::GROUP,
    &device_power_thermal::GROUP,
    &module::GROUP,
    &device_interconnect::GROUP,
    &device_memory_errors::GROUP,
    &health::GROUP,
    &mig::GROUP,
    &virtualization::GROUP,
    &container::GROUP,
    &processes::GROUP,
    &unattributed::GROUP,
    &plugin::GROUP,
    &kubelet::GROUP,
    &self_metrics::GROUP,
    &journal::GROUP,
];

/// Every family that has a sample: by group, then by name, its samples sorted by their labels.
pub fn families(snapshot: &Snapshot) -> impl Iterator<Item = Family> {
    sections(snapshot).flat_map(|(_, families)| families)
}

/// Every family that has a sample, by section of the catalogue.
pub fn sections(snapshot: &Snapshot) -> impl Iterator<Item = (&'static str, impl Iterator<Item = Family>)> {
    GROUPS.iter().map(|group| (group.section, group.each(snapshot)))
}

/// The samples of one metric.
fn family(snapshot: &Snapshot, name: &str) -> Option<Family> {
    let metric = GROUPS.iter().flat_map(|group| &group.metrics).find(|metric| metric.descriptor.name == name)?;
    metric.family(snapshot).ordered()
}

#[cfg(test)]
pub(crate) mod tests;
