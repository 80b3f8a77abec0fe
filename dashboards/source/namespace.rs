//! What a team used: GPU-hours, waste and energy, by namespace and by pod.

use super::panel::{bars, series, stat, table};
use super::{CLUSTER, Dashboard, JOB, NAMESPACE, NODE, POD, Row};

pub fn dashboard() -> Dashboard {
    Dashboard {
        name: "namespace",
        title: "Namespace",
        description: "GPU-hours, idle time and energy of namespaces and their pods over the time range, and their current holdings.",
        variables: vec![JOB, CLUSTER, NODE, NAMESPACE, POD],
        rows: vec![bill(), history(), holdings()],
    }
}

fn bill() -> Row {
    let hours = |metric: &str, group: &str| format!("sum{group} (increase({metric}{{pods}}[$__range])) / 3600");
    let allocated = "podmeter_container_allocated_seconds_total";
    let (busy, idle) = ("podmeter_container_busy_seconds_total", "podmeter_container_idle_seconds_total");
    let energy = |group: &str| {
        format!("sum{group} (increase(podmeter_container_energy_joules_total{{pods}}[$__range])) / 3.6e6")
    };
    Row {
        title: "Over the time range",
        panels: vec![
            stat(
                "GPU-hours",
                "short",
                &hours(allocated, ""),
                "Held: a shared slot counts its share, a MIG device its slices.",
            )
            .width(6),
            stat("Idle GPU-hours", "short", &hours(idle, ""), "Held and not used.").width(6),
            stat(
                "Use of held GPUs",
                "percentunit",
                "sum(increase(podmeter_container_busy_seconds_total{pods}[$__range])) \
                 / (sum(increase(podmeter_container_busy_seconds_total{pods}[$__range])) \
                 + sum(increase(podmeter_container_idle_seconds_total{pods}[$__range])))",
                "Busy fraction of the GPU-hours with known use.",
            )
            .width(6),
            stat("Energy", "kwatth", &energy(""), "Energy attributed to the containers.").width(6),
            bars(
                "GPU-hours by namespace",
                "short",
                "{{namespace}}",
                &format!("sort_desc({})", hours(allocated, " by (namespace)")),
                "Held by the pods of each namespace.",
            ),
            bars(
                "Idle GPU-hours by namespace",
                "short",
                "{{namespace}}",
                &format!("sort_desc({})", hours(idle, " by (namespace)")),
                "Held by the pods of each namespace and not used.",
            ),
            bars(
                "Energy by namespace",
                "kwatth",
                "{{namespace}}",
                &format!("sort_desc({})", energy(" by (namespace)")),
                "Energy attributed to the pods of each namespace.",
            ),
            table(
                "Pods",
                &["cluster", "namespace", "pod"],
                "Use by pod, including ended pods. Empty means unknown, not zero.",
            )
            .column("Held hours", "short", &hours(allocated, " {by}"))
            .column("Busy hours", "short", &hours(busy, " {by}"))
            .column("Idle hours", "short", &hours(idle, " {by}"))
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
    Row {
        title: "Over time",
        panels: vec![
            series("GPUs held", "short", "GPUs that each pod holds.").stacked().and(
                "{{namespace}}/{{pod}}",
                "sum by (namespace, pod) (rate(podmeter_container_allocated_seconds_total{pods}[$__rate_interval]))",
            ),
            series("GPUs idle", "short", "GPUs that each pod holds and does not use.").stacked().and(
                "{{namespace}}/{{pod}}",
                "sum by (namespace, pod) (rate(podmeter_container_idle_seconds_total{pods}[$__rate_interval]))",
            ),
            series("GPUs busy", "short", "Busy GPU-seconds per second of each pod.").stacked().and(
                "{{namespace}}/{{pod}}",
                "sum by (namespace, pod) (rate(podmeter_container_busy_seconds_total{pods}[$__rate_interval]))",
            ),
            series("SM activity", "percentunit", "SM activity of pods with exclusive devices; lower than busy.").and(
                "{{namespace}}/{{pod}}",
                "avg by (namespace, pod) (podmeter_container_sm_active_ratio{pods})",
            ),
            series("Memory used", "bytes", "Device memory that each pod uses.").stacked().and(
                "{{namespace}}/{{pod}}",
                "sum by (namespace, pod) (podmeter_container_memory_used_bytes{pods})",
            ),
            series("Memory use ratio", "percentunit", "Near 1, a pod is about to run out of memory.").and(
                "{{namespace}}/{{pod}}/{{container}}",
                "max by (namespace, pod, container) \
                 (podmeter_container_memory_used_bytes{pods} / podmeter_container_memory_limit_bytes{pods})",
            ),
            series("Power", "watt", "Energy attributed to each pod, per second.").stacked().and(
                "{{namespace}}/{{pod}}",
                "sum by (namespace, pod) (rate(podmeter_container_energy_joules_total{pods}[$__rate_interval]))",
            ),
            series("XIDs", "short", "XIDs attributed to the pods.").stacked().and(
                "{{namespace}}/{{pod}}: {{xid}} {{class}}",
                "sum by (namespace, pod, xid, class) (increase(podmeter_container_xid_errors_total{pods}[$__rate_interval]))",
            ),
        ],
    }
}

fn holdings() -> Row {
    Row {
        title: "Now",
        panels: vec![
            table(
                "GPUs held",
                &[
                    "cluster",
                    "node",
                    "namespace",
                    "pod",
                    "container",
                    "gpu_uuid",
                    "mig_uuid",
                    "resource",
                    "sharing",
                    "attribution",
                ],
                "Which container holds which device, and how its use is attributed.",
            )
            .column("-", "none", "max {by} (podmeter_container_allocation_info{pods})"),
            table(
                "Devices of every vendor",
                &["cluster", "node", "namespace", "pod", "container", "resource", "device", "source"],
                "Devices that the containers hold by the kubelet's answer, including GPUs.",
            )
            .column("-", "none", "max {by} (podmeter_container_device_info{pods})"),
            table(
                "GPUs used but not held",
                &["cluster", "node", "namespace", "pod", "container", "gpu_uuid"],
                "Containers with processes on a GPU that is not allocated to them.",
            )
            .column("-", "none", "max {by} (podmeter_container_unallocated_use{pods})"),
        ],
    }
}
