//! What a team used: GPU-hours, waste and energy, by namespace and by pod.

use super::panel::{bars, events, series, stat, table};
use super::{BUSY_SHARE, CLUSTER, Dashboard, JOB, NAMESPACE, NODE, POD, Row};

pub fn dashboard() -> Dashboard {
    Dashboard {
        name: "namespace",
        title: "Namespace",
        description: "GPU-hours, idle time and energy of namespaces and their pods over the time range, and their current holdings.",
        variables: vec![JOB, CLUSTER, NODE, NAMESPACE, POD],
        rows: vec![bill(), history(), holdings(), pods()],
    }
}

fn bill() -> Row {
    let hours = |metric: &str, group: &str| format!("sum{group} (increase({metric}{{pods}}[$__range])) / 3600");
    let allocated = "podmeter_container_allocated_seconds_total";
    let (busy, idle) = ("podmeter_container_busy_seconds_total", "podmeter_container_idle_seconds_total");
    let unknown = "podmeter_container_uncovered_seconds_total";
    let borrowed = format!(
        "round(clamp_min({} + {} + {} - ({}), 0), 0.0001)",
        hours(busy, " {by}"),
        hours(idle, " {by}"),
        hours(unknown, " {by}"),
        hours(allocated, " {by}")
    );
    let share = |group: &str| {
        let rates = BUSY_SHARE.replace("{scrape}", "{pods}").replace("rate(", "increase(");
        rates.replace(" {by}", group).replace("{window}", "$__range")
    };
    let energy = |group: &str| {
        format!("sum{group} (increase(podmeter_container_energy_joules_total{{pods}}[$__range])) / 3.6e6")
    };
    Row {
        title: "Over the time range",
        collapsed: false,
        panels: vec![
            stat(
                "Pods",
                "none",
                &format!("count(count by (cluster, namespace, pod) (increase({allocated}{{pods}}[$__range])))"),
                "Pods that held GPUs in the time range.",
            ),
            stat(
                "GPU-hours",
                "short",
                &hours(allocated, ""),
                "Held: a shared slot counts its share, a MIG device its slices.",
            ),
            stat("Busy hours", "short", &hours(busy, ""), "GPU-hours held or borrowed, and used."),
            stat(
                "Borrowed hours",
                "short",
                &borrowed.replace(" {by}", ""),
                "The part of the busy hours beyond the pods' shares of their GPUs, while others left theirs idle.",
            ),
            stat("Idle hours", "short", &hours(idle, ""), "GPU-hours held and not used."),
            stat("Unknown hours", "short", &hours(unknown, ""), "GPU-hours held without readings: neither busy nor idle."),
            stat(
                "Busy share",
                "percentunit",
                &share(""),
                "Busy fraction of the GPU-hours, without unknown and borrowed hours.",
            ),
            stat("Energy", "kwatth", &energy(""), "Energy attributed to the containers."),
            bars(
                "GPU-hours by namespace",
                "short",
                "{{namespace}}",
                &format!("sort_desc({})", hours(allocated, " by (namespace)")),
                "Held by the pods of each namespace.",
            ).height(6),
            bars(
                "Idle GPU-hours by namespace",
                "short",
                "{{namespace}}",
                &format!("sort_desc({})", hours(idle, " by (namespace)")),
                "Held by the pods of each namespace and not used.",
            ).height(6),
            bars(
                "Energy by namespace",
                "kwatth",
                "{{namespace}}",
                &format!("sort_desc({})", energy(" by (namespace)")),
                "Energy attributed to the pods of each namespace.",
            ).height(6),
            table(
                "Pods",
                &["cluster", "namespace", "pod"],
                "In GPU-hours, including ended pods. GPU-hours and borrowed hours are busy, idle and unknown hours. Borrowed is the part of \
                 busy beyond the pod's share of a GPU. Empty means unknown, not zero.",
            )
            .height(10)
            .column("GPU-hours", "short", &hours(allocated, " {by}"))
            .column("Busy", "short", &hours(busy, " {by}"))
            .column("Borrowed", "short", &borrowed)
            .column("Idle", "short", &hours(idle, " {by}"))
            .column("Unknown", "short", &hours(unknown, " {by}"))
            .share("Busy share", &share(" {by}"))
            .column("Energy", "kwatth", &energy(" {by}"))
            .column(
                "Since last active",
                "s",
                "time() - max {by} (podmeter_container_last_active_timestamp_seconds{pods})",
            ),
        ],
    }
}

fn history() -> Row {
    let rate = |metric: &str| format!("sum by (namespace) (rate({metric}{{pods}}[$__rate_interval]))");
    Row {
        title: "Over time",
        collapsed: false,
        panels: vec![
            series("GPUs held", "short", "GPUs that the pods of each namespace hold.")
                .stacked()
                .and("{{namespace}}", &rate("podmeter_container_allocated_seconds_total")),
            series("GPUs held and idle", "short", "GPUs that the pods of each namespace hold and do not use.")
                .stacked()
                .and("{{namespace}}", &rate("podmeter_container_idle_seconds_total")),
            series("GPUs busy", "short", "Busy GPU-seconds per second of each namespace, borrowed time included.")
                .stacked()
                .and("{{namespace}}", &rate("podmeter_container_busy_seconds_total")),
            series("Power", "watt", "Energy attributed to each namespace, per second.")
                .stacked()
                .and("{{namespace}}", &rate("podmeter_container_energy_joules_total")),
            events(
                "XIDs",
                "{{namespace}}/{{pod}}: {{xid}} {{class}}",
                "sum by (namespace, pod, xid, class) \
                 (increase(podmeter_container_xid_errors_total{pods}[$__rate_interval])) > 0",
                "XIDs attributed to the pods.",
            ),
            series("Memory used", "bytes", "Device memory that the pods of each namespace use.")
                .stacked()
                .and("{{namespace}}", "sum by (namespace) (podmeter_container_memory_used_bytes{pods})"),
        ],
    }
}

fn pods() -> Row {
    const LEGEND: &str = "{{namespace}}/{{pod}}";
    let rate = |metric: &str| format!("sum by (namespace, pod) (rate({metric}{{pods}}[$__rate_interval]))");
    Row {
        title: "Pods over time",
        collapsed: true,
        panels: vec![
            series("GPUs held by each pod", "short", "GPUs that each pod holds.")
                .stacked()
                .and(LEGEND, &rate("podmeter_container_allocated_seconds_total")),
            series("GPUs held and idle by each pod", "short", "GPUs that each pod holds and does not use.")
                .stacked()
                .and(LEGEND, &rate("podmeter_container_idle_seconds_total")),
            series(
                "GPUs busy by each pod",
                "short",
                "Busy GPU-seconds per second of each pod, borrowed time included.",
            )
            .stacked()
            .and(LEGEND, &rate("podmeter_container_busy_seconds_total")),
            series(
                "SM activity of each pod",
                "percentunit",
                "SM activity of pods with exclusive devices; lower than busy.",
            )
            .and(LEGEND, "avg by (namespace, pod) (podmeter_container_sm_active_ratio{pods})"),
            series("Memory used by each pod", "bytes", "Device memory that each pod uses.")
                .stacked()
                .and(LEGEND, "sum by (namespace, pod) (podmeter_container_memory_used_bytes{pods})"),
            series("Memory use ratio of each pod", "percentunit", "Near 1, a pod is about to run out of memory.").and(
                "{{namespace}}/{{pod}}/{{container}}",
                "max by (namespace, pod, container) \
                 (podmeter_container_memory_used_bytes{pods} / podmeter_container_memory_limit_bytes{pods})",
            ),
            series("Power of each pod", "watt", "Energy attributed to each pod, per second.")
                .width(24)
                .stacked()
                .and(LEGEND, &rate("podmeter_container_energy_joules_total")),
        ],
    }
}

fn holdings() -> Row {
    Row {
        title: "Now",
        collapsed: false,
        panels: vec![
            table(
                "GPUs held",
                &[
                    "cluster",
                    "node",
                    "namespace",
                    "pod",
                    "container",
                    "resource",
                    "sharing",
                    "attribution",
                    "gpu_uuid",
                    "mig_uuid",
                ],
                "Which container holds which device, and how its use is attributed.",
            )
            .column("-", "none", "max {by} (podmeter_container_allocation_info{pods})"),
            table(
                "Devices of every vendor",
                &["cluster", "node", "namespace", "pod", "container", "resource", "source", "device"],
                "Devices that the containers hold by the kubelet's answer, including GPUs.",
            )
            .column("-", "none", "max {by} (podmeter_container_device_info{pods})"),
            table(
                "GPUs used but not held",
                &["cluster", "node", "namespace", "pod", "container", "gpu_uuid"],
                "Containers with processes on a GPU that is not allocated to them.",
            )
            .height(5)
            .empty("None reported")
            .column("-", "none", "max {by} (podmeter_container_unallocated_use{pods})"),
        ],
    }
}
