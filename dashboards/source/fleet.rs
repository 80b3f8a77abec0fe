//! All nodes: how much is held, how much of that works, what is broken, who wastes most.

use super::panel::{bars, series, stat, table};
use super::{CLUSTER, Dashboard, JOB, NODE, Row};

pub fn dashboard() -> Dashboard {
    Dashboard {
        name: "fleet",
        title: "Fleet",
        description: "GPUs of all nodes: held, busy, idle, unhealthy, and the most idle holders.",
        variables: vec![JOB, CLUSTER, NODE],
        rows: vec![now(), history(), waste(), faults()],
    }
}

fn now() -> Row {
    Row {
        title: "Now",
        panels: vec![
            stat("GPUs", "none", "sum(podmeter_node_devices{scrape,state=\"visible\"})", "GPUs that the drivers list."),
            stat(
                "Allocated",
                "percentunit",
                "avg(podmeter_device_allocated_ratio{scrape})",
                "Fraction of the GPUs that containers hold; of a shared or partitioned GPU, the held fraction.",
            ),
            stat(
                "Busy",
                "percentunit",
                "avg(rate(podmeter_device_busy_seconds_total{scrape}[$__rate_interval]))",
                "Fraction of GPU time in which at least one kernel ran, held or not.",
            ),
            stat(
                "Held and idle",
                "short",
                "sum(rate(podmeter_container_idle_seconds_total{scrape}[$__rate_interval]))",
                "GPUs that containers hold without using them.",
            )
            .steps(&[(1.0, "orange")]),
            stat(
                "Unhealthy",
                "none",
                "sum(1 - podmeter_device_healthy{scrape})",
                "GPUs that are unhealthy as a whole or in part.",
            )
            .steps(&[(1.0, "red")]),
            stat(
                "Missing",
                "none",
                "sum(podmeter_node_devices{scrape,state=\"expected\"}) \
                 - sum(podmeter_node_devices{scrape,state=\"visible\"})",
                "GPUs on the PCI bus that the drivers do not list.",
            )
            .steps(&[(1.0, "red")]),
        ],
    }
}

fn history() -> Row {
    Row {
        title: "Over time",
        panels: vec![
            series("GPUs", "short", "GPUs that exist, are schedulable, are held, and are busy.")
                .and("all", "sum(podmeter_node_devices{scrape,state=\"visible\"})")
                .and("schedulable", "sum(podmeter_device_schedulable{scrape})")
                .and("allocated", "sum(podmeter_device_allocated_ratio{scrape})")
                .and("busy", "sum(rate(podmeter_device_busy_seconds_total{scrape}[$__rate_interval]))"),
            series(
                "Use of held GPUs",
                "percentunit",
                "Busy fraction of the GPUs that the containers of a namespace hold.",
            )
            .and(
                "{{namespace}}",
                "sum by (namespace) (rate(podmeter_container_busy_seconds_total{scrape}[$__rate_interval])) \
                 / (sum by (namespace) (rate(podmeter_container_busy_seconds_total{scrape}[$__rate_interval])) \
                 + sum by (namespace) (rate(podmeter_container_idle_seconds_total{scrape}[$__rate_interval])))",
            ),
            series("GPUs held by namespace", "short", "GPUs that the containers of each namespace hold.")
                .stacked()
                .and(
                    "{{namespace}}",
                    "sum by (namespace) (rate(podmeter_container_allocated_seconds_total{scrape}[$__rate_interval]))",
                ),
            series("Power by node", "watt", "Power drawn by the boards of each node.")
                .stacked()
                .and("{{node}}", "sum by (cluster, node) (podmeter_device_power_watts{scrape})"),
        ],
    }
}

fn waste() -> Row {
    const TOP: &str = "topk(20, sum {by} (increase(podmeter_container_idle_seconds_total{scrape}[$__range])))";
    let of_those = |query: &str| format!("({query}) and {TOP}");
    Row {
        title: "Idle holdings over the time range",
        panels: vec![
            table(
                "Pods with most idle GPU-hours",
                &["cluster", "namespace", "pod"],
                "The twenty pods that held GPUs idle for longest. Hours are GPU-hours: a shared slot counts its share.",
            )
            .width(16)
            .column("Idle hours", "short", &format!("{TOP} / 3600"))
            .column(
                "Held hours",
                "short",
                &of_those("sum {by} (increase(podmeter_container_allocated_seconds_total{scrape}[$__range])) / 3600"),
            )
            .column(
                "Since last active",
                "s",
                &of_those("time() - max {by} (podmeter_container_last_active_timestamp_seconds{scrape})"),
            )
            .column(
                "Memory held",
                "bytes",
                &of_those("sum {by} (podmeter_container_memory_used_bytes{scrape})"),
            ),
            bars(
                "Idle GPU-hours by namespace",
                "short",
                "{{namespace}}",
                "sort_desc(sum by (namespace) (increase(podmeter_container_idle_seconds_total{scrape}[$__range]))) / 3600",
                "GPU-hours that each namespace held without using them.",
            ),
            bars(
                "Energy by node",
                "kwatth",
                "{{node}}",
                "sort_desc(sum by (cluster, node) (increase(podmeter_device_energy_joules_total{scrape}[$__range]))) / 3.6e6",
                "Energy drawn by the boards of each node.",
            ),
            table(
                "Held and idle now, longest first",
                &["cluster", "node", "namespace", "pod", "container", "gpu_uuid"],
                "Containers by the time since they last used their GPU, or since it was allocated.",
            )
            .width(16)
            .column(
                "Since last active",
                "s",
                "topk(20, time() - max {by} (podmeter_container_last_active_timestamp_seconds{scrape}))",
            ),
        ],
    }
}

fn faults() -> Row {
    Row {
        title: "Faults",
        panels: vec![
            table(
                "Unhealthy GPUs",
                &["cluster", "node", "gpu", "gpu_uuid", "reason"],
                "What is unhealthy now, and why.",
            )
            .width(12)
            .column("-", "none", "max {by} (podmeter_device_unhealthy_reason{scrape})"),
            table(
                "Pods on unhealthy GPUs",
                &["cluster", "node", "gpu_uuid", "namespace", "pod"],
                "They keep running; new pods do not get these GPUs.",
            )
            .width(12)
            .column(
                "-",
                "none",
                "max {by} (podmeter_container_allocation_info{scrape}) \
                 and on (cluster, node, gpu_uuid) (podmeter_device_healthy{scrape} == 0)",
            ),
            series("XIDs by class", "short", "Errors that the drivers reported, by class.")
                .stacked()
                .and("{{class}}", "sum by (class) (increase(podmeter_xid_errors_total{scrape}[$__rate_interval]))"),
            series("Unhealthy GPUs by reason", "short", "A GPU with several reasons counts under each.")
                .stacked()
                .and("{{reason}}", "sum by (reason) (podmeter_device_unhealthy_reason{scrape})"),
        ],
    }
}
