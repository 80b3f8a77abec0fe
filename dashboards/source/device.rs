//! One GPU: what it is, who holds it, what each holder takes of it, and everything the driver says of it.

use super::panel::{series, stat, table, timeline};
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
        title: "Now",
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
                "max(rate(podmeter_device_busy_seconds_total{device}[$__rate_interval]))",
                "Fraction of time in which at least one kernel ran.",
            ),
            stat("Power", "watt", "max(podmeter_device_power_watts{device})", "Power drawn by the board."),
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
            .column("-", "none", "max {by} (podmeter_device_info{device})"),
            table("Unhealthy reasons", &["reason"], "Why it is unhealthy; empty while it is healthy.")
                .width(12)
                .column("-", "none", "max {by} (podmeter_device_unhealthy_reason{device})"),
            table("Recovery action", &["action"], "The recovery action that the driver requests.").width(12).column(
                "-",
                "none",
                "max {by} (podmeter_device_recovery_action{device} == 1)",
            ),
        ],
    }
}

fn holders() -> Row {
    Row {
        title: "Holders",
        panels: vec![
            table(
                "Held by",
                &[
                    "cluster",
                    "node",
                    "namespace",
                    "pod",
                    "container",
                    "mig_uuid",
                    "device_id",
                    "sharing",
                    "attribution",
                ],
                "Which containers hold it now, and how their shares are attributed.",
            )
            .column("-", "none", "max {by} (podmeter_container_allocation_info{device})"),
            timeline(
                "Held over time",
                "{{namespace}}/{{pod}}/{{container}} {{mig_uuid}}",
                "max by (namespace, pod, container, mig_uuid) (podmeter_container_allocation_info{device})",
                "One row per holder.",
            )
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
                "sum by (reason) (rate(podmeter_device_unattributed_busy_seconds_total{device}[$__rate_interval]))",
            ),
            series("Memory by holder", "bytes", "Used by each holder, and unattributed.")
                .stacked()
                .and("{{namespace}}/{{pod}}", "sum by (namespace, pod) (podmeter_container_memory_used_bytes{device})")
                .and("outside: {{reason}}", "sum by (reason) (podmeter_device_unattributed_memory_bytes{device})"),
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
                "sum by (reason) (rate(podmeter_device_unattributed_energy_joules_total{device}[$__rate_interval]))",
            ),
            series("Processes", "none", "Of each holder, and unattributed.")
                .and("{{namespace}}/{{pod}}", "sum by (namespace, pod) (podmeter_container_processes{device})")
                .and("outside: {{reason}}", "sum by (reason) (podmeter_device_unattributed_processes{device})"),
        ],
    }
}

fn work() -> Row {
    Row {
        title: "Work",
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
        panels: vec![
            series("Power", "watt", "Power drawn, and the enforced limit.")
                .and("drawn", "max(podmeter_device_power_watts{device})")
                .and("limit", "max(podmeter_device_power_limit_watts{device})"),
            series("Temperature", "celsius", "By sensor, and the margin to the slowdown.")
                .and("{{sensor}}", "max by (sensor) (podmeter_device_temperature_celsius{device})")
                .and("left to slowdown", "min(podmeter_device_temperature_margin_celsius{device})"),
            series("Clocks", "hertz", "By domain.")
                .and("{{clock}}", "max by (clock) (podmeter_device_clock_hertz{device})"),
            series("Throttled clocks", "percentunit", "Fraction of time; reasons overlap.").and(
                "{{reason}}",
                "max by (reason) (rate(podmeter_device_throttled_seconds_total{device}[$__rate_interval]))",
            ),
            timeline(
                "Throttle reasons",
                "{{reason}}",
                "max by (reason) (podmeter_device_clock_event_active{device}) == 1",
                "A bar while the reason is active.",
            )
            .states(&[("1", "active", "orange")]),
        ],
    }
}

fn links() -> Row {
    Row {
        title: "Links",
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
            series("Fabric", "none", "Registration with the NVLink fabric, and its conditions, 0 or 1.")
                .and("{{state}}", "max by (state) (podmeter_device_fabric_state{device}) == 1")
                .and("{{condition}}", "max by (condition) (podmeter_device_fabric_condition{device})"),
            series("Link errors", "short", "PCIe packets retransmitted, and NVLink errors by kind.")
                .and("PCIe replays", "max(increase(podmeter_device_pcie_replays_total{device}[$__rate_interval]))")
                .and(
                    "NVLink {{error}}",
                    "max by (error) (increase(podmeter_device_nvlink_errors_total{device}[$__rate_interval]))",
                ),
        ],
    }
}

fn faults() -> Row {
    Row {
        title: "Events and faults",
        panels: vec![
            series("XIDs", "short", "Errors that the driver reported, by class.")
                .stacked()
                .and("{{class}}", "max by (class) (increase(podmeter_xid_errors_total{device}[$__rate_interval]))"),
            table("Last XIDs", &["xid", "class", "source"], "When each code was last reported, by source.")
                .width(12)
                .column("Last heard", "dateTimeAsIso", "max {by} (podmeter_xid_last_timestamp_seconds{device}) * 1000"),
            series("ECC errors", "short", "By kind and location.").and(
                "{{error}} {{location}}",
                "max by (error, location) (increase(podmeter_device_ecc_errors_total{device}[$__rate_interval]))",
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
                    "banks with {{availability}} spare rows",
                    "max by (availability) (podmeter_device_row_remap_banks{device})",
                ),
        ],
    }
}

fn mig() -> Row {
    Row {
        title: "MIG",
        panels: vec![
            table(
                "MIG devices",
                &["gpu_instance", "compute_instance", "profile", "mig_uuid", "namespace", "pod"],
                "Its MIG devices and their holders.",
            )
            .column(
                "-",
                "none",
                "max by (mig_uuid, namespace, pod) (podmeter_container_allocation_info{device,mig_uuid!=\"\"}) \
                 * on (mig_uuid) group_left (gpu_instance, compute_instance, profile) podmeter_mig_device_info{device} \
                 or podmeter_mig_device_info{device} unless on (mig_uuid) podmeter_container_allocation_info{device}",
            ),
            series("Memory by GPU instance", "bytes", "Used; compute instances of one GPU instance share it.")
                .stacked()
                .and(
                    "instance {{gpu_instance}}",
                    "max by (gpu_instance) (podmeter_mig_memory_bytes{device,state=\"used\"})",
                ),
            series("SM activity by GPU instance", "percentunit", "SM activity of each instance.")
                .and("instance {{gpu_instance}}", "max by (gpu_instance) (podmeter_mig_sm_active_ratio{device})"),
        ],
    }
}
