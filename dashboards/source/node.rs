//! One node: who held which device when, and how its devices do.

use super::panel::{Panel, events, matrix, series, stat, timeline};
use super::{CLUSTER, Dashboard, JOB, ONE_NODE, Row, gpus_now, resources};

/// Per thing that can be held now, whole GPU or MIG device, a `device` name and its `holder`. A shared device names none of
/// its holders: any one of them would be arbitrary.
const HOLDERS: &str = "\
(
  (
    label_join({holdings}, \"holder\", \"/\", \"namespace\", \"pod\")
      and on (cluster, node, gpu_uuid, mig_uuid) count by (cluster, node, gpu_uuid, mig_uuid) ({holdings}) == 1
  ) or label_replace(
    count_values by (cluster, node, gpu_uuid, mig_uuid) (
      \"holder\", count by (cluster, node, gpu_uuid, mig_uuid) ({holdings}) > 1
    ),
    \"holder\", \"$1 pods\", \"holder\", \"(.+)\"
  )
)
* on (cluster, node, gpu_uuid, mig_uuid) group_left (device) ({devices})
or label_replace(
  ({devices}) unless on (cluster, node, gpu_uuid, mig_uuid) {holdings},
  \"holder\", \"free\", \"\", \"\"
)";
const HOLDINGS: &str =
    "max by (cluster, node, gpu_uuid, mig_uuid, namespace, pod) (podmeter_container_allocation_info{scrape})";
const DEVICES: &str = "\
label_join(
  max by (cluster, node, gpu_uuid, gpu) (podmeter_device_info{scrape})
    unless on (cluster, node, gpu_uuid) podmeter_mig_device_info{scrape},
  \"device\", \" GPU \", \"node\", \"gpu\"
) or label_join(
  max by (cluster, node, gpu_uuid, mig_uuid, profile, gpu_instance) (podmeter_mig_device_info{scrape})
    * on (cluster, node, gpu_uuid) group_left (gpu) max by (cluster, node, gpu_uuid, gpu) (podmeter_device_info{scrape}),
  \"device\", \" \", \"node\", \"gpu\", \"profile\", \"gpu_instance\"
)";

pub fn dashboard() -> Dashboard {
    Dashboard {
        name: "node",
        title: "Node",
        description: "The devices of a node over time: holders, use, faults.",
        variables: vec![JOB, CLUSTER, ONE_NODE],
        rows: vec![now(), holders(), work(), faults(), host()],
    }
}

fn now() -> Row {
    let power = stat("Power", "watt", "sum(podmeter_device_power_watts{scrape})", "Power drawn by the boards.");
    Row {
        title: "Now; busy and idle: the last 5 minutes",
        collapsed: false,
        panels: gpus_now().into_iter().chain([power]).collect(),
    }
}

fn holders() -> Row {
    let query = HOLDERS.replace("{devices}", DEVICES).replace("{holdings}", HOLDINGS);
    Row {
        title: "Devices over time",
        collapsed: false,
        panels: vec![
            matrix(
                "Holders of each device",
                "device",
                "holder",
                &query,
                "The pod that held each GPU or MIG device; the number of pods where several shared it; free where no pod did; \
                 a gap where podmeter did not know.",
            )
            .states(&[("^free$", "free", "dark-green"), ("^[0-9]+ pods$", "", "purple")])
            .height(12),
            timeline(
                "Health",
                "GPU {{gpu}}",
                "max by (cluster, node, gpu, gpu_uuid) (podmeter_device_healthy{scrape})",
                "The health of each device.",
            )
            .states(&[("1", "healthy", "green"), ("0", "unhealthy", "red")])
            .height(7),
            resources(&["cluster", "node", "resource"]).height(6),
        ],
    }
}

/// One curve per GPU.
fn per_gpu(title: &'static str, unit: &'static str, query: &str, description: &'static str) -> Panel {
    series(title, unit, description).and("GPU {{gpu}}", query)
}

fn work() -> Row {
    Row {
        title: "Work",
        collapsed: false,
        panels: vec![
            per_gpu(
                "Busy",
                "percentunit",
                "rate(podmeter_device_busy_seconds_total{scrape}[$__rate_interval])",
                "Fraction of time in which at least one kernel ran.",
            ),
            per_gpu(
                "SM activity",
                "percentunit",
                "podmeter_device_sm_active_ratio{scrape}",
                "SM activity; lower than busy. Hopper and later.",
            ),
            per_gpu(
                "Memory used",
                "bytes",
                "podmeter_device_memory_bytes{scrape,state=\"used\"}",
                "Device memory in use.",
            ),
            per_gpu("Power", "watt", "podmeter_device_power_watts{scrape}", "Power drawn by the board."),
            series("Module power", "watt", "Power of each superchip, with its CPU and its GPUs.")
                .empty("No superchip reports its power")
                .and("module {{module}}", "podmeter_module_power_watts{scrape}"),
            per_gpu(
                "PCIe",
                "Bps",
                "sum by (cluster, node, gpu, gpu_uuid) (rate(podmeter_device_pcie_bytes_total{scrape}[$__rate_interval]))",
                "Bytes in both directions.",
            ),
            per_gpu(
                "NVLink",
                "Bps",
                "sum by (cluster, node, gpu, gpu_uuid) (rate(podmeter_device_nvlink_bytes_total{scrape}[$__rate_interval]))",
                "Bytes in both directions over all links.",
            ),
            series(
                "Busy outside allocations",
                "short",
                "GPUs kept busy by what holds none of them: processes of the host, of ended \
                 pods, and of pods that were not given the GPU.",
            )
            .stacked()
            .and(
                "{{reason}}",
                "sum by (reason) (rate(podmeter_device_unattributed_busy_seconds_total{scrape}[$__rate_interval]))",
            ),
            series("Memory outside allocations", "bytes", "Unattributed device memory.")
                .stacked()
                .and("{{reason}}", "sum by (reason) (podmeter_device_unattributed_memory_bytes{scrape})"),
        ],
    }
}

fn faults() -> Row {
    Row {
        title: "Heat and faults",
        collapsed: false,
        panels: vec![
            per_gpu(
                "Temperature",
                "celsius",
                "podmeter_device_temperature_celsius{scrape,sensor=\"gpu\"}",
                "Temperature of each GPU's chip.",
            ),
            per_gpu(
                "Degrees left to slowdown",
                "celsius",
                "podmeter_device_temperature_margin_celsius{scrape}",
                "How far each GPU is below the temperature at which it slows down. Below the line, PodmeterDeviceHot fires.",
            )
            .steps(&[(5.0, "red")]),
            series("Throttled clocks", "percentunit", "Fraction of time, of the worst GPU; reasons overlap.").and(
                "{{reason}}",
                "max by (cluster, node, reason) (rate(podmeter_device_throttled_seconds_total{scrape}[$__rate_interval]))",
            ),
            timeline(
                "Unhealthy over time",
                "GPU {{gpu}}: {{reason}}",
                "max by (cluster, node, gpu, gpu_uuid, reason) (podmeter_device_unhealthy_reason{scrape})",
                "One row per GPU and reason.",
            )
            .width(12)
            .empty("None reported")
            .states(&[("1", "unhealthy", "red")]),
            events(
                "XIDs",
                "GPU {{gpu}}: {{class}}",
                "sum by (cluster, node, gpu, gpu_uuid, class) (increase(podmeter_xid_errors_total{scrape}[$__rate_interval])) > 0",
                "Errors that the driver reported, by class.",
            ),
            events(
                "ECC errors",
                "GPU {{gpu}}: {{error}}",
                "sum by (cluster, node, gpu, gpu_uuid, error) \
                 (increase(podmeter_device_ecc_errors_total{scrape}[$__rate_interval])) > 0",
                "By whether they could be corrected.",
            ),
        ],
    }
}

/// Not every kubelet has these managers.
fn host() -> Row {
    Row {
        title: "CPUs and memory as the kubelet allocates them",
        collapsed: true,
        panels: vec![
            series(
                "CPUs",
                "none",
                "As the kubelet's CPU manager allocates them; shared is allocatable minus exclusive.",
            )
            .and("{{node}} {{state}}", "sum by (cluster, node, state) (podmeter_node_cpus{scrape})"),
            series("Memory and hugepages", "bytes", "As the kubelet's memory manager allocates them.").and(
                "{{node}} {{memory_type}} {{state}}",
                "sum by (cluster, node, memory_type, state) (podmeter_node_memory_bytes{scrape})",
            ),
        ],
    }
}
