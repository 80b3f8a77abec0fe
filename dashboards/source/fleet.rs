//! All nodes: how much is held, how much of that works, what is broken, who wastes most.

use super::panel::{bars, events, series, stat, table, timeline};
use super::{BUSY_SHARE, CLUSTER, Dashboard, FREE_GPUS, JOB, NODE, Row, gpus_now, resources};

pub fn dashboard() -> Dashboard {
    Dashboard {
        name: "fleet",
        title: "Fleet",
        description: "GPUs of all nodes: allocated, free, busy, idle, unhealthy, and the most idle holders.",
        variables: vec![JOB, CLUSTER, NODE],
        rows: vec![now(), capacity(), history(), waste(), faults(), racks()],
    }
}

fn now() -> Row {
    let nodes = stat(
        "GPU nodes",
        "none",
        "count(sum by (cluster, node) (podmeter_node_devices{scrape,state=\"expected\"}) > 0)",
        "Nodes with GPUs whose podmeter was scraped.",
    );
    Row {
        title: "Now; busy and idle: the last 5 minutes",
        collapsed: false,
        panels: std::iter::once(nodes).chain(gpus_now()).collect(),
    }
}

/// A value per GPU × its model and the version of its podmeter, which a table can group by.
fn of_models(value: &str) -> String {
    format!(
        "({value}) * on (cluster, node, gpu_uuid) group_left (model) \
         max by (cluster, node, gpu_uuid, model) (podmeter_device_info{{scrape}})"
    )
}

fn capacity() -> Row {
    let sum = |value: &str| format!("sum {{by}} ({})", of_models(value));
    let average = |value: &str| format!("avg {{by}} ({})", of_models(value));
    let busy = average("rate(podmeter_device_busy_seconds_total{scrape}[5m])");
    let idle = sum("rate(podmeter_container_idle_seconds_total{scrape}[5m])");
    let (allocated, free) = (sum("podmeter_device_allocated_ratio{scrape}"), sum(FREE_GPUS));
    let unhealthy = sum("1 - podmeter_device_healthy{scrape}");
    Row {
        title: "Capacity now",
        collapsed: false,
        panels: vec![
            table(
                "Nodes",
                &["cluster", "node", "model"],
                "A node with several models has a line for each. Free GPUs are healthy and held by no container; of a \
                 shared or partitioned GPU, the free fraction.",
            )
            .by_name()
            .height(9)
            .column("GPUs", "none", "count {by} (podmeter_device_info{scrape})")
            .column("Allocated", "short", &allocated)
            .column("Free", "short", &free)
            .share("Busy, 5 min", &busy)
            .column("Held and idle, 5 min", "short", &idle)
            .alarm("Unhealthy", 1.0, &unhealthy)
            .labelled(
                "podmeter",
                "version",
                "max by (cluster, node, version) (podmeter_build_info{scrape})",
            ),
            table(
                "GPU models",
                &["cluster", "model"],
                "Free GPUs are healthy and held by no container; of a shared or partitioned GPU, the free fraction.",
            )
            .width(12)
            .height(7)
            .column("GPUs", "none", "count {by} (podmeter_device_info{scrape})")
            .column("Allocated", "short", &allocated)
            .column("Free", "short", &free)
            .share("Busy, 5 min", &busy)
            .alarm("Unhealthy", 1.0, &unhealthy),
            resources(&["cluster", "resource"]).width(12).height(7),
        ],
    }
}

fn history() -> Row {
    Row {
        title: "Over time",
        collapsed: false,
        panels: vec![
            series("GPUs", "short", "GPUs that exist, are schedulable, are allocated, and are busy.")
                .and("all", "sum(podmeter_node_devices{scrape,state=\"visible\"})")
                .and("schedulable", "sum(podmeter_device_schedulable{scrape})")
                .and("allocated", "sum(podmeter_device_allocated_ratio{scrape})")
                .and("busy", "sum(rate(podmeter_device_busy_seconds_total{scrape}[$__rate_interval]))"),
            series(
                "Busy share of held GPUs",
                "percentunit",
                "Busy fraction of the GPU time that the containers of a namespace hold, without time of which the use is \
                 unknown and without borrowed time.",
            )
            .and("{{namespace}}", &BUSY_SHARE.replace("{by}", "by (namespace)").replace("{window}", "$__rate_interval")),
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
        collapsed: false,
        panels: vec![
            table(
                "Pods with most idle GPU-hours",
                &["cluster", "namespace", "pod"],
                "The twenty pods that held GPUs idle for longest. Hours are GPU-hours: a shared slot counts its share.",
            )
            .width(16)
            .column("Idle hours", "short", &format!("{TOP} / 3600"))
            .column(
                "GPU-hours",
                "short",
                &of_those("sum {by} (increase(podmeter_container_allocated_seconds_total{scrape}[$__range])) / 3600"),
            )
            .column(
                "Since last active",
                "s",
                &of_those("time() - max {by} (podmeter_container_last_active_timestamp_seconds{scrape})"),
            )
            .column(
                "Memory used",
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
        collapsed: false,
        panels: vec![
            table(
                "Unhealthy GPUs",
                &["cluster", "node", "gpu", "reason", "gpu_uuid"],
                "What is unhealthy now, and why.",
            )
            .width(12)
            .height(6)
            .empty("None reported")
            .column("-", "none", "max {by} (podmeter_device_unhealthy_reason{scrape})"),
            table(
                "Pods on unhealthy GPUs",
                &["cluster", "node", "namespace", "pod", "gpu_uuid"],
                "They keep running; new pods do not get these GPUs.",
            )
            .width(12)
            .height(6)
            .empty("None reported")
            .column(
                "-",
                "none",
                "max {by} (podmeter_container_allocation_info{scrape}) \
                 and on (cluster, node, gpu_uuid) (podmeter_device_healthy{scrape} == 0)",
            ),
            events(
                "XIDs by class",
                "{{class}}",
                "sum by (class) (increase(podmeter_xid_errors_total{scrape}[$__rate_interval])) > 0",
                "Errors that the drivers reported, by class.",
            ),
            timeline(
                "Unhealthy over time",
                "{{node}} GPU {{gpu}}: {{reason}}",
                "max by (cluster, node, gpu, gpu_uuid, reason) (podmeter_device_unhealthy_reason{scrape})",
                "One row per GPU and reason.",
            )
            .width(12)
            .empty("None reported")
            .states(&[("1", "unhealthy", "red")]),
        ],
    }
}

/// Of one GPU, by the NVLink domain and clique that it is in.
const IN_DOMAIN: &str =
    "* on (cluster, node, gpu_uuid) group_left (cluster_uuid, clique_id) podmeter_device_fabric_info{scrape}";

/// Collapsed: most fleets have none of this.
fn racks() -> Row {
    let of_domain = |query: &str| format!("sum {{by}} ({query} {IN_DOMAIN})");
    Row {
        title: "NVLink racks, superchips, and GPUs of virtual machines",
        collapsed: true,
        panels: vec![
            table(
                "NVLink domains",
                &["cluster", "cluster_uuid", "clique_id"],
                "GPUs of one domain and clique reach each other over NVLink, across nodes. A domain is a rack.",
            )
            .height(6)
            .empty("No GPU is in an NVLink domain")
            .column(
                "Nodes",
                "none",
                "count {by} (count by (cluster, node, cluster_uuid, clique_id) (podmeter_device_fabric_info{scrape}))",
            )
            .column("GPUs", "none", "count {by} (podmeter_device_fabric_info{scrape})")
            .column("Allocated", "short", &of_domain("podmeter_device_allocated_ratio{scrape}"))
            .column("Power of the GPUs", "watt", &of_domain("podmeter_device_power_watts{scrape}"))
            .alarm("Unhealthy", 1.0, &of_domain("(1 - podmeter_device_healthy{scrape})"))
            .alarm(
                "Fabric impaired",
                1.0,
                &of_domain("max by (cluster, node, gpu_uuid) (podmeter_device_fabric_condition{scrape})"),
            ),
            series("Module power by node", "watt", "Power of superchips, with their CPUs and GPUs.")
                .empty("No superchip reports its power")
                .stacked()
                .and("{{node}}", "sum by (cluster, node) (podmeter_module_power_watts{scrape})"),
            table(
                "GPUs of virtual machines",
                &["cluster", "node", "pci_bus_id", "kernel_driver", "iommu_group", "namespace", "pod"],
                "Passed through by the kernel, with the pods that hold them. The host has no readings of them.",
            )
            .width(12)
            .empty("No GPU is passed through")
            .column(
                "-",
                "none",
                "max by (cluster, node, gpu_uuid, namespace, pod) (podmeter_container_allocation_info{scrape}) \
                 * on (cluster, node, gpu_uuid) group_left (pci_bus_id, kernel_driver, iommu_group) \
                 podmeter_device_passthrough_info{scrape} or podmeter_device_passthrough_info{scrape} \
                 unless on (cluster, node, gpu_uuid) podmeter_container_allocation_info{scrape}",
            ),
        ],
    }
}
