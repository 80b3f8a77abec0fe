//! The metrics to which the values on the page link, from the catalogue.

use maud::{Markup, html};

use crate::metrics::catalogue;

/// A test checks that every link is in the catalogue.
pub(super) const LINKED: &[&str] = &[
    NODE_DEVICES,
    DEVICE_UTILIZATION,
    DEVICE_BUSY,
    DEVICE_MEMORY,
    DEVICE_POWER,
    DEVICE_TEMPERATURE,
    DEVICE_ALLOCATED,
    DEVICE_HEALTHY,
    DEVICE_REASON,
    MIG_SM_ACTIVE,
    MIG_MEMORY,
    CONTAINER_INFO,
    CONTAINER_UTILIZATION,
    CONTAINER_MEMORY,
    CONTAINER_ALLOCATED,
    CONTAINER_BUSY,
    CONTAINER_IDLE,
    CONTAINER_ENERGY,
    CONTAINER_LAST_ACTIVE,
    UNATTRIBUTED_BUSY,
    UNATTRIBUTED_MEMORY,
    UNALLOCATED_USE,
    XIDS,
    PLUGIN_DEVICES,
    PLUGIN_REGISTERED,
    COLLECTOR_SUCCESS,
    COLLECTOR_AGE,
    COLLECTOR_DURATION,
    ALLOCATIONS_AGE,
];

pub(super) const NODE_DEVICES: &str = "podmeter_node_devices";
pub(super) const DEVICE_UTILIZATION: &str = "podmeter_device_utilization_ratio";
pub(super) const DEVICE_BUSY: &str = "podmeter_device_busy_seconds_total";
pub(super) const DEVICE_MEMORY: &str = "podmeter_device_memory_bytes";
pub(super) const DEVICE_POWER: &str = "podmeter_device_power_watts";
pub(super) const DEVICE_TEMPERATURE: &str = "podmeter_device_temperature_celsius";
pub(super) const DEVICE_ALLOCATED: &str = "podmeter_device_allocated_ratio";
pub(super) const DEVICE_HEALTHY: &str = "podmeter_device_healthy";
pub(super) const DEVICE_REASON: &str = "podmeter_device_unhealthy_reason";
pub(super) const MIG_SM_ACTIVE: &str = "podmeter_mig_sm_active_ratio";
pub(super) const MIG_MEMORY: &str = "podmeter_mig_memory_bytes";
pub(super) const CONTAINER_INFO: &str = "podmeter_container_allocation_info";
pub(super) const CONTAINER_UTILIZATION: &str = "podmeter_container_utilization_ratio";
pub(super) const CONTAINER_MEMORY: &str = "podmeter_container_memory_used_bytes";
pub(super) const CONTAINER_ALLOCATED: &str = "podmeter_container_allocated_seconds_total";
pub(super) const CONTAINER_BUSY: &str = "podmeter_container_busy_seconds_total";
pub(super) const CONTAINER_IDLE: &str = "podmeter_container_idle_seconds_total";
pub(super) const CONTAINER_ENERGY: &str = "podmeter_container_energy_joules_total";
pub(super) const CONTAINER_LAST_ACTIVE: &str = "podmeter_container_last_active_timestamp_seconds";
pub(super) const UNATTRIBUTED_BUSY: &str = "podmeter_device_unattributed_busy_seconds_total";
pub(super) const UNATTRIBUTED_MEMORY: &str = "podmeter_device_unattributed_memory_bytes";
pub(super) const UNALLOCATED_USE: &str = "podmeter_container_unallocated_use";
pub(super) const XIDS: &str = "podmeter_xid_errors_total";
pub(super) const PLUGIN_DEVICES: &str = "podmeter_plugin_devices";
pub(super) const PLUGIN_REGISTERED: &str = "podmeter_plugin_registered";
pub(super) const COLLECTOR_SUCCESS: &str = "podmeter_collector_success";
pub(super) const COLLECTOR_AGE: &str = "podmeter_collector_age_seconds";
pub(super) const COLLECTOR_DURATION: &str = "podmeter_collector_duration_seconds";
pub(super) const ALLOCATIONS_AGE: &str = "podmeter_podresources_age_seconds";

pub(super) fn section() -> Markup {
    let entries = catalogue::all().filter(|entry| LINKED.contains(&entry.name));
    html! {
        section aria-labelledby="metrics" {
            h2 id="metrics" { "Metrics on this page" }
            p { "All metrics with their values: " a href="/metrics" { "/metrics" } "." }
            dl.metrics {
                @for entry in entries {
                    div id=(entry.name) tabindex="-1" {
                        dt { code { (entry.name) } " " span.muted { (entry.kind) } }
                        dd { (entry.help) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_linked_metric_is_in_the_catalogue() {
        let section = section().into_string();
        for name in LINKED {
            assert!(section.contains(&format!("id=\"{name}\"")), "{name}");
        }
    }
}
