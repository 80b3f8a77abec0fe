//! One GPU: what it is, who holds it, what each holder takes of it, and everything that the driver reports of it.

use super::panel::{events, series, stat, table, timeline};
use super::{CLUSTER, Dashboard, GPU, JOB, NODE, Row};

pub fn dashboard() -> Dashboard {
    Dashboard {
        name: "device",
        title: "Device",
        description: "Everything about one GPU: its holders and their shares, its state, its events.",
        variables: vec![JOB, CLUSTER, NODE, GPU],
        rows: vec![now(), holders(), work(), board(), links(), faults(), mig()],
    }
}

fn now() -> Row {
    Row {
        title: "Now; busy and throttled: the last 5 minutes",
        collapsed: false,
        panels: vec![
            stat("Health", "none", "min(podmeter_device_healthy{device})", "The health that the kubelet receives.")
                .states(&[("1", "healthy", "green"), ("0", "unhealthy", "red")]),
            stat(
                "Schedulable",
                "none",
                "min(podmeter_device_schedulable{device})",
                "Whether the plugin offers it as healthy now.",
            )
            .states(&[("1", "yes", "green"), ("0", "no", "orange")]),
            stat(
                "Allocated",
                "percentunit",
                "max(podmeter_device_allocated_ratio{device})",
                "Fraction that containers hold.",
            ),
            stat(
                "Busy",
                "percentunit",
                "max(rate(podmeter_device_busy_seconds_total{device}[5m]))",
                "Fraction of time in which at least one kernel ran.",
            ),
            stat(
                "Memory used",
                "percentunit",
                "max(podmeter_device_memory_bytes{device,state=\"used\"}) / max(podmeter_device_memory_capacity_bytes{device})",
                "Fraction of the device memory in use.",
            )
            .steps(&[(0.95, "orange")]),
            stat("Power", "watt", "max(podmeter_device_power_watts{device})", "Power drawn by the board."),
            stat(
                "Temperature",
                "celsius",
                "max(podmeter_device_temperature_celsius{device,sensor=\"gpu\"})",
                "Temperature of the chip.",
            ),
            stat(
                "Left to slowdown",
                "celsius",
                "min(podmeter_device_temperature_margin_celsius{device})",
                "Degrees below the temperature at which it slows down. At less than 5, PodmeterDeviceHot fires.",
            )
            .base("red")
            .steps(&[(5.0, "orange"), (10.0, "green")]),
            stat(
                "Throttled",
                "percentunit",
                "max(rate(podmeter_device_throttled_seconds_total{device,reason=~\"hw_thermal_slowdown|hw_power_brake_slowdown\"}[5m]))",
                "Fraction of time in which the hardware throttled the clocks, for heat or the power brake.",
            )
            .steps(&[(0.001, "orange"), (0.05, "red")]),
            stat(
                "XIDs",
                "short",
                "sum(increase(podmeter_xid_errors_total{device}[$__range]))",
                "Errors that the driver reported in the time range, of every class.",
            )
            .whole()
            .steps(&[(1.0, "orange")]),
            stat(
                "Uncorrected ECC",
                "none",
                "sum(podmeter_device_ecc_errors_total{device,error=\"uncorrected\"})",
                "Uncorrected ECC errors since the driver was loaded.",
            )
            .steps(&[(1.0, "red")]),
            stat(
                "Row remaps",
                "none",
                "max(2 * podmeter_device_row_remap_failed{device} or podmeter_device_row_remap_pending{device})",
                "Pending: reset the GPU. Failed: replace the board.",
            )
            .states(&[("0", "none", "green"), ("1", "pending", "orange"), ("2", "failed", "red")]),
            stat(
                "PCIe lanes",
                "percentunit",
                "min(podmeter_device_pcie_link_width_lanes{device} / podmeter_device_pcie_link_width_lanes_max{device})",
                "Lanes in use, of those that GPU and slot have.",
            )
            .base("orange")
            .steps(&[(1.0, "green")]),
            stat(
                "Holders",
                "none",
                "count(count by (namespace, pod, container) (podmeter_container_allocation_info{device})) \
                 or 0 * max(podmeter_device_allocated_ratio{device})",
                "Containers that hold it or a part of it.",
            ),
            stat(
                "Memory outside",
                "bytes",
                "sum(podmeter_device_unattributed_memory_bytes{device})",
                "Memory in use that is no holder's: the driver's, the host's, and that of pods that do not hold the GPU.",
            ),
            stat(
                "Performance state",
                "none",
                "max(podmeter_device_performance_state{device})",
                "0 is the fastest, 15 the slowest.",
            ),
            table(
                "What it is",
                &[
                    "cluster",
                    "node",
                    "gpu",
                    "model",
                    "architecture",
                    "pci_bus_id",
                    "minor",
                    "numa_node",
                    "vbios_version",
                ],
                "The driver's model name.",
            )
            .height(4)
            .column("-", "none", "max {by} (podmeter_device_info{device})"),
            table("Unhealthy reasons", &["reason"], "Why it is unhealthy.")
                .width(12)
                .height(4)
                .empty("None reported")
                .column("-", "none", "max {by} (podmeter_device_unhealthy_reason{device})"),
            table("Recovery action", &["action"], "The recovery action that the driver requests.")
                .width(12)
                .height(4)
                .empty("Not reported by the driver")
                .column("-", "none", "max {by} (podmeter_device_recovery_action{device} == 1)"),
        ],
    }
}

fn holders() -> Row {
    Row {
        title: "Holders",
        collapsed: false,
        panels: vec![
            table(
                "Held by",
                &[
                    "cluster",
                    "node",
                    "namespace",
                    "pod",
                    "container",
                    "sharing",
                    "attribution",
                    "device_id",
                ],
                "Which containers hold it now, and how their shares are attributed.",
            )
            .height(6)
            .empty("Held by no container")
            .column("-", "none", "max {by} (podmeter_container_allocation_info{device})"),
            timeline(
                "Held over time",
                "{{namespace}}/{{pod}}/{{container}} {{mig_uuid}}",
                "max by (namespace, pod, container, mig_uuid) (podmeter_container_allocation_info{device})",
                "One row per holder.",
            )
            .height(6)
            .states(&[("1", "holds", "blue")]),
            series(
                "Busy by holder",
                "percentunit",
                "GPU-seconds per second of each holder, and unattributed.",
            )
            .stacked()
            .and(
                "{{namespace}}/{{pod}}",
                "sum by (namespace, pod) (rate(podmeter_container_busy_seconds_total{device}[$__rate_interval]))",
            )
            .and(
                "outside: {{reason}}",
                "sum by (reason) (rate(podmeter_device_unattributed_busy_seconds_total{device}[$__rate_interval])) > 0",
            ),
            series("Memory by holder", "bytes", "Used by each holder, and unattributed.")
                .stacked()
                .and("{{namespace}}/{{pod}}", "sum by (namespace, pod) (podmeter_container_memory_used_bytes{device})")
                .and("outside: {{reason}}", "sum by (reason) (podmeter_device_unattributed_memory_bytes{device}) > 0"),
            series(
                "Power by holder",
                "watt",
                "Energy attributed to each holder per second, and unattributed.",
            )
            .stacked()
            .and(
                "{{namespace}}/{{pod}}",
                "sum by (namespace, pod) (rate(podmeter_container_energy_joules_total{device}[$__rate_interval]))",
            )
            .and(
                "outside: {{reason}}",
                "sum by (reason) (rate(podmeter_device_unattributed_energy_joules_total{device}[$__rate_interval])) > 0",
            ),
            series("Processes", "none", "Of each holder, and unattributed.")
                .and("{{namespace}}/{{pod}}", "sum by (namespace, pod) (podmeter_container_processes{device})")
                .and("outside: {{reason}}", "sum by (reason) (podmeter_device_unattributed_processes{device}) > 0"),
        ],
    }
}

fn work() -> Row {
    Row {
        title: "Work",
        collapsed: false,
        panels: vec![
            series(
                "Activity",
                "percentunit",
                "Busy counts any kernel; the others count how much of the GPU was active. Hopper and later.",
            )
            .and("busy", "max(rate(podmeter_device_busy_seconds_total{device}[$__rate_interval]))")
            .and("SM active", "max(podmeter_device_sm_active_ratio{device})")
            .and("SM occupancy", "max(podmeter_device_sm_occupancy_ratio{device})")
            .and("DRAM active", "max(podmeter_device_dram_active_ratio{device})"),
            series("Pipes", "percentunit", "Fraction of time in which each arithmetic pipe was active; pipes overlap.")
                .and("{{pipe}}", "max by (pipe) (podmeter_device_pipe_active_ratio{device})"),
            series("Memory", "bytes", "By state; the states add up to the capacity.")
                .stacked()
                .and("{{state}}", "max by (state) (podmeter_device_memory_bytes{device})"),
            series("Media engines", "percentunit", "Fraction of time in which each engine was busy.").and(
                "{{engine}}",
                "max by (engine) (rate(podmeter_device_engine_busy_seconds_total{device}[$__rate_interval]))",
            ),
        ],
    }
}

fn board() -> Row {
    Row {
        title: "Board",
        collapsed: false,
        panels: vec![
            series("Power", "watt", "Power drawn, and the enforced limit.")
                .limit("limit")
                .and("drawn", "max(podmeter_device_power_watts{device})")
                .and("limit", "max(podmeter_device_power_limit_watts{device})"),
            series(
                "Temperature",
                "celsius",
                "By sensor, and where the GPU slows down: its temperature plus the margin that the driver reports.",
            )
            .limit("slows down")
            .and("{{sensor}}", "max by (sensor) (podmeter_device_temperature_celsius{device})")
            .and(
                "slows down",
                "max(podmeter_device_temperature_celsius{device,sensor=\"gpu\"}) \
                 + min(podmeter_device_temperature_margin_celsius{device})",
            ),
            series("Clocks", "hertz", "By domain.")
                .and("{{clock}}", "max by (clock) (podmeter_device_clock_hertz{device})"),
            series("Throttled clocks", "percentunit", "Fraction of time; reasons overlap.").and(
                "{{reason}}",
                "max by (reason) (rate(podmeter_device_throttled_seconds_total{device}[$__rate_interval]))",
            ),
            timeline(
                "Throttle reasons",
                "{{reason}}",
                "max by (reason) (podmeter_device_clock_event_active{device,reason!=\"idle\"}) == 1",
                "A bar while the reason is active.",
            )
            .states(&[("1", "active", "orange")])
            .height(5)
            .empty("None active"),
        ],
    }
}

fn links() -> Row {
    Row {
        title: "Links",
        collapsed: true,
        panels: vec![
            series("PCIe", "Bps", "Bytes, in the GPU's direction.").and(
                "{{direction}}",
                "max by (direction) (rate(podmeter_device_pcie_bytes_total{device}[$__rate_interval]))",
            ),
            series("NVLink", "Bps", "Bytes by direction over all links.").and(
                "{{direction}}",
                "max by (direction) (rate(podmeter_device_nvlink_bytes_total{device}[$__rate_interval]))",
            ),
            series("PCIe link", "none", "Generation and lanes; an idle GPU lowers its generation.")
                .and("generation", "max(podmeter_device_pcie_link_generation{device})")
                .and("lanes", "max(podmeter_device_pcie_link_width_lanes{device})"),
            series("NVLinks", "none", "Links by state.")
                .and("{{state}}", "max by (state) (podmeter_device_nvlink_links{device})"),
            series("NVLink-C2C", "Bps", "To and from the CPU of its superchip, by direction.")
                .empty("Not a superchip")
                .and("{{direction}}", "max by (direction) (podmeter_device_c2c_bytes_per_second{device})"),
            series("Fabric", "none", "Registration with the NVLink fabric, and its conditions, 0 or 1.")
                .empty("Not part of a fabric")
                .and("{{state}}", "max by (state) (podmeter_device_fabric_state{device}) == 1")
                .and("{{condition}}", "max by (condition) (podmeter_device_fabric_condition{device})"),
            table(
                "NVLink domain",
                &["cluster_uuid", "clique_id"],
                "The rack and the clique of GPUs that it reaches over NVLink.",
            )
            .width(12)
            .height(4)
            .empty("In no NVLink domain")
            .column("-", "none", "max {by} (podmeter_device_fabric_info{device})"),
            table(
                "Place",
                &["slot", "tray", "host_id", "gpu_module_id", "module", "peer_type"],
                "Where it is in its chassis or rack.",
            )
            .width(12)
            .height(4)
            .empty("Not reported by the driver")
            .column("-", "none", "max {by} (podmeter_device_platform_info{device})"),
            events(
                "Link errors",
                "PCIe replays",
                "max(increase(podmeter_device_pcie_replays_total{device}[$__rate_interval])) > 0",
                "PCIe packets retransmitted, and NVLink errors by kind.",
            )
            .and(
                "NVLink {{error}}",
                "max by (error) (increase(podmeter_device_nvlink_errors_total{device}[$__rate_interval])) > 0",
            ),
        ],
    }
}

fn faults() -> Row {
    Row {
        title: "Events and faults",
        collapsed: true,
        panels: vec![
            events(
                "XIDs by class",
                "{{class}}",
                "max by (class) (increase(podmeter_xid_errors_total{device}[$__rate_interval])) > 0",
                "Errors that the driver reported, by class.",
            ),
            table("Last XIDs", &["xid", "class", "source"], "When each code was last reported, by source.")
                .width(12)
                .empty("None reported")
                .column(
                    "Last reported",
                    "dateTimeAsIso",
                    "max {by} (podmeter_xid_last_timestamp_seconds{device}) * 1000",
                ),
            events(
                "ECC errors",
                "{{error}} {{location}}",
                "max by (error, location) (increase(podmeter_device_ecc_errors_total{device}[$__rate_interval])) > 0",
                "By kind and location.",
            ),
            table("Memory errors so far", &["error"], "ECC errors, by whether they could be corrected.")
                .width(12)
                .column("Since the driver was loaded", "none", "sum {by} (podmeter_device_ecc_errors_total{device})")
                .column(
                    "Over the lifetime of the board",
                    "none",
                    "max {by} (podmeter_device_ecc_lifetime_errors_total{device})",
                ),
            series("Row remaps", "none", "A pending remap needs a reset; after a failed one, replace the board.")
                .and("pending", "max(podmeter_device_row_remap_pending{device})")
                .and("failed", "max(podmeter_device_row_remap_failed{device})")
                .and(
                    "banks, spare rows: {{availability}}",
                    "max by (availability) (podmeter_device_row_remap_banks{device})",
                )
                .width(24),
        ],
    }
}

fn mig() -> Row {
    Row {
        title: "MIG",
        collapsed: true,
        panels: vec![
            table(
                "MIG devices",
                &["gpu_instance", "compute_instance", "profile", "mig_uuid", "namespace", "pod"],
                "Its MIG devices and their holders.",
            )
            .empty("Not partitioned")
            .column(
                "-",
                "none",
                "max by (mig_uuid, namespace, pod) (podmeter_container_allocation_info{device,mig_uuid!=\"\"}) \
                 * on (mig_uuid) group_left (gpu_instance, compute_instance, profile) podmeter_mig_device_info{device} \
                 or podmeter_mig_device_info{device} unless on (mig_uuid) podmeter_container_allocation_info{device}",
            ),
            series("Memory by GPU instance", "bytes", "Used; compute instances of one GPU instance share it.")
                .empty("Not partitioned")
                .stacked()
                .and(
                    "instance {{gpu_instance}}",
                    "max by (gpu_instance) (podmeter_mig_memory_bytes{device,state=\"used\"})",
                ),
            series("SM activity by GPU instance", "percentunit", "SM activity of each instance.")
                .empty("Not partitioned")
                .and("instance {{gpu_instance}}", "max by (gpu_instance) (podmeter_mig_sm_active_ratio{device})"),
        ],
    }
}
