//! podmeter itself: whether what it shows is about now, what it costs, and how its plugin does.

use super::panel::{Panel, events, series, stat, table};
use super::{CLUSTER, Dashboard, JOB, NODE, Row};

pub fn dashboard() -> Dashboard {
    Dashboard {
        name: "podmeter",
        title: "podmeter itself",
        description: "Freshness and completeness of the data, cost of podmeter, and state of the device plugin.",
        variables: vec![JOB, CLUSTER, NODE],
        rows: vec![now(), freshness(), plugin(), cost()],
    }
}

fn now() -> Row {
    Row {
        title: "Now",
        collapsed: false,
        panels: vec![
            stat("Scraped", "none", "sum(up{scrape})", "podmeters that answered Prometheus."),
            stat("Not scraped", "none", "sum(1 - up{scrape})", "podmeters that Prometheus cannot scrape.")
                                .steps(&[(1.0, "red")]),
            stat(
                "Oldest readings",
                "s",
                "max(podmeter_collector_age_seconds{scrape})",
                "Since a collector last succeeded.",
            )
                        .steps(&[(120.0, "red")]),
            stat(
                "Oldest allocations",
                "s",
                "max(podmeter_podresources_age_seconds{scrape})",
                "Age of the known allocations.",
            )
                        .steps(&[(60.0, "orange"), (120.0, "red")]),
            stat(
                "Clobbered labels",
                "none",
                "count(podmeter_container_allocation_info{scrape,exported_pod!=\"\"}) \
                 or 0 * count(podmeter_container_allocation_info{scrape})",
                "Series whose pod label the scrape has replaced: see docs/install.md, honor_labels.",
            )
                        .steps(&[(1.0, "red")]),
            stat(
                "Truncated lists",
                "none",
                "sum(podmeter_podresources_pods_truncated{scrape})",
                "Nodes whose kubelet's answer was over the size limit, so that pods may be missing.",
            )
                        .steps(&[(1.0, "red")]),
            stat(
                "Old configuration",
                "none",
                "sum(1 - podmeter_config_last_reload_successful{scrape})",
                "podmeters that could not read their configuration and go on with the one before.",
            )
                        .steps(&[(1.0, "orange")]),
            stat(
                "Released",
                "none",
                "sum(podmeter_released{scrape})",
                "podmeters that released the driver on request.",
            )
                        .steps(&[(1.0, "orange")]),
            table(
                "Versions",
                &["cluster", "node", "version", "revision", "driver_version", "cuda_version"],
                "Of podmeter and of the driver; and whether podmeter sees the host's processes and attributes by them.",
            )
            .by_name()
            .height(7)
            .column("-", "none", "max by (cluster, node, version, revision) (podmeter_build_info{scrape})")
            .column(
                "-",
                "none",
                "max by (cluster, node, driver_version, cuda_version) (podmeter_driver_info{scrape})",
            )
            .column("By process", "bool_yes_no", "max by (cluster, node) (podmeter_process_attribution_enabled{scrape})"),
            table("Resources of the device plugin", &["cluster", "node", "resource"], "Registered and conflict are 0 or 1: a conflict means that podmeter waits while another plugin serves it.")
                .by_name()
                .height(7)
                .column("Registered", "none", "min {by} (podmeter_plugin_registered{scrape})")
                .alarm("Conflict", 1.0, "max {by} (podmeter_plugin_conflict{scrape})")
                .column("Healthy devices", "none", "sum {by} (podmeter_plugin_devices{scrape,health=\"healthy\"})")
                .alarm("Unhealthy devices", 1.0, "sum {by} (podmeter_plugin_devices{scrape,health=\"unhealthy\"})"),
        ],
    }
}

/// Curves per node and one more label.
fn per(title: &'static str, unit: &'static str, legend: &'static str, query: &str, description: &'static str) -> Panel {
    series(title, unit, description).and(legend, query)
}

fn freshness() -> Row {
    Row {
        title: "Freshness and correctness",
        collapsed: false,
        panels: vec![
            per(
                "Age of readings",
                "s",
                "{{collector}}",
                "max by (collector) (podmeter_collector_age_seconds{scrape})",
                "Oldest over the nodes, by collector.",
            ),
            events(
                "Failed or stuck collectors",
                "{{collector}} failed",
                "sum by (collector) (1 - podmeter_collector_success{scrape})",
                "Nodes on which a collector's last run failed or hangs.",
            )
            .and("{{collector}} stuck", "sum by (collector) (podmeter_collector_stuck{scrape})"),
            per(
                "Age of allocations",
                "s",
                "{{node}}",
                "max by (cluster, node) (podmeter_podresources_age_seconds{scrape})",
                "Grows while a kubelet does not answer.",
            ),
            events(
                "Failed calls of the kubelet",
                "{{code}}",
                "sum by (code) (increase(podmeter_podresources_errors_total{scrape}[$__rate_interval])) > 0",
                "PodResources calls, by gRPC code.",
            ),
            events(
                "Failed calls of the driver",
                "{{call}}: {{code}}",
                "sum by (call, code) (increase(podmeter_nvml_errors_total{scrape}[$__rate_interval])) > 0",
                "not_supported is not counted.",
            ),
            per(
                "Time that no sample covers",
                "percentunit",
                "{{node}} GPU {{gpu}}",
                "rate(podmeter_device_uncovered_seconds_total{scrape}[$__rate_interval]) > 0",
                "Neither busy nor idle.",
            )
            .empty("None reported"),
            events(
                "Disagreements with the kubelet",
                "{{resource}} {{drift}}",
                "sum by (resource, drift) (podmeter_resource_drift_devices{scrape}) > 0",
                "Devices advertised and not allocatable, allocatable and not advertised, or held and unknown.",
            )
            .width(12),
            events(
                "Devices that could not be found",
                "{{resource}} {{form}}",
                "sum by (resource, form) (podmeter_unresolved_devices{scrape}) > 0",
                "Held devices whose ID matches no hardware.",
            )
            .width(6),
            events(
                "Sums that did not add up",
                "{{quantity}}",
                "sum by (quantity) (increase(podmeter_conservation_violations_total{scrape}[$__rate_interval])) > 0",
                "Holders' shares and unattributed use must add up to the device; anything above 0 is a bug in podmeter.",
            )
            .width(6),
        ],
    }
}

fn plugin() -> Row {
    Row {
        title: "Device plugin",
        collapsed: true,
        panels: vec![
            per(
                "Registrations and kubelet restarts",
                "short",
                "{{resource}} registered",
                "sum by (resource) (increase(podmeter_plugin_registrations_total{scrape}[$__rate_interval]))",
                "A registration after the first one follows a kubelet's restart or a lost stream.",
            )
            .and(
                "kubelets restarted",
                "sum(increase(podmeter_plugin_kubelet_restarts_total{scrape}[$__rate_interval]))",
            ),
            per(
                "Not registered",
                "percentunit",
                "{{node}} {{resource}}",
                "sum by (cluster, node, resource) (rate(podmeter_plugin_unregistered_seconds_total{scrape}[$__rate_interval]))",
                "Fraction of time in which the resource was not registered by podmeter.",
            ),
            per(
                "Allocations",
                "short",
                "{{result}}",
                "sum by (result) (increase(podmeter_plugin_allocations_total{scrape}[$__rate_interval]))",
                "By result; with the checks before a container starts, where a resource requests them.",
            )
            .and(
                "check: {{result}}",
                "sum by (result) (increase(podmeter_plugin_pre_starts_total{scrape}[$__rate_interval]))",
            ),
            per(
                "Allocation duration, 99th percentile",
                "s",
                "allocate {{resource}}",
                "histogram_quantile(0.99, sum by (resource, le) \
                 (rate(podmeter_plugin_allocate_duration_seconds_bucket{scrape}[$__rate_interval])))",
                "The kubelet waits for these answers when a pod starts. Empty without requests.",
            )
            .and(
                "prefer {{resource}}",
                "histogram_quantile(0.99, sum by (resource, le) \
                 (rate(podmeter_preferred_allocation_duration_seconds_bucket{scrape}[$__rate_interval])))",
            ),
            per(
                "Health transitions",
                "short",
                "{{resource}} {{to}}",
                "sum by (resource, to) (increase(podmeter_plugin_health_transitions_total{scrape}[$__rate_interval]))",
                "Devices that became healthy or unhealthy; each slot of a GPU counts.",
            ),
            per(
                "Preferred allocations with missing information",
                "short",
                "{{resource}} {{reason}}",
                "sum by (resource, reason) (increase(podmeter_plugin_preferred_allocation_fallbacks_total{scrape}[$__rate_interval]))",
                "By what was missing.",
            ),
        ],
    }
}

fn cost() -> Row {
    Row {
        title: "Cost",
        collapsed: true,
        panels: vec![
            per(
                "CPU",
                "percentunit",
                "{{node}}",
                "rate(process_cpu_seconds_total{scrape}[$__rate_interval])",
                "Of one core.",
            ),
            per("Memory", "bytes", "{{node}}", "process_resident_memory_bytes{scrape}", "Resident memory."),
            per("File descriptors", "none", "{{node}}", "process_open_fds{scrape}", "Open."),
            per("Series", "short", "{{node}}", "scrape_samples_scraped{scrape}", "Samples of one scrape.").and(
                "dropped: {{reason}}",
                "sum by (reason) (increase(podmeter_series_dropped_total{scrape}[$__rate_interval]))",
            ),
            per(
                "Scrape duration, 99th percentile",
                "s",
                "page",
                "histogram_quantile(0.99, sum by (le) (rate(podmeter_scrape_duration_seconds_bucket{scrape}[$__rate_interval])))",
                "Time to answer a scrape.",
            ),
            per(
                "PodResources duration, 99th percentile",
                "s",
                "{{method}}",
                "histogram_quantile(0.99, sum by (method, le) \
                 (rate(podmeter_podresources_request_duration_seconds_bucket{scrape}[$__rate_interval])))",
                "Duration of PodResources calls. Empty without calls.",
            ),
            per(
                "Time to read the devices",
                "s",
                "{{collector}}",
                "max by (collector) (podmeter_collector_duration_seconds{scrape})",
                "Longest over the nodes, by collector.",
            ),
            per(
                "Refreshes of the allocations",
                "cps",
                "{{trigger}}",
                "sum by (trigger) (rate(podmeter_refresh_triggers_total{scrape}[$__rate_interval]))",
                "By trigger.",
            ),
        ],
    }
}
