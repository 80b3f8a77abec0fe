use std::fmt::Write as _;

use super::observations::Observations;
use super::report::{Check, Finding};
use super::{Settings, agent, driver, node};

/// One check.
struct Row {
    id: &'static str,
    title: &'static str,
    why: &'static str,
    /// When it fails, warns or is skipped, for the document.
    statuses: &'static str,
    check: fn(&Observations) -> Finding,
}

/// Of the machine on which the doctor runs.
const MACHINE: [Row; 16] = [
    Row {
        id: "pod_resources",
        title: "PodResources socket",
        why: "the kubelet's answers are the only source for which container holds a device",
        statuses: "fails when the socket is missing, is no socket, refuses, hangs or has another protocol",
        check: node::pod_resources,
    },
    Row {
        id: "allocatable",
        title: "Allocatable devices",
        why: "free devices, devices unhealthy to the kubelet and plugin conflicts are derived from it",
        statuses: "fails when `GetAllocatableResources` fails; warns where the kubelet does not have it",
        check: node::allocatable,
    },
    Row {
        id: "registration_socket",
        title: "Registration socket",
        why: "the device plugin registers its resources there",
        statuses: "fails when no process listens on the kubelet's socket in the device-plugin directory; skipped while the plugin is off",
        check: node::registration_socket,
    },
    Row {
        id: "plugin_directory",
        title: "Device-plugin directory",
        why: "the device plugin creates its sockets in it",
        statuses: "fails when it is missing or cannot be written to; skipped while the plugin is off",
        check: node::plugin_directory,
    },
    Row {
        id: "plugin_conflicts",
        title: "Other device plugins",
        why: "the kubelet uses the last plugin that registers a resource, and does not notify the other",
        statuses: "fails when another plugin serves a resource that podmeter is to offer; warns when the kubelet lists devices of it that no visible plugin offers",
        check: node::plugin_conflicts,
    },
    Row {
        id: "plugin_profile",
        title: "Profile of this node",
        why: "what the device plugin offers can differ from node to node",
        statuses: "warns while the driver reports no GPU models, so that no profile can be chosen; skipped without `profiles`",
        check: node::plugin_profile,
    },
    Row {
        id: "pods_api",
        title: "Pods API",
        why: "it has the UIDs and labels of pods",
        statuses: "fails when its socket exists and does not answer; warns when no process listens on it; skipped where there is none (kubelets before 1.36, and 1.36 without the feature gate PodsAPI)",
        check: node::pods_api,
    },
    Row {
        id: "claim_files",
        title: "Files of the DRA driver",
        why: "they name the hardware of a claim's device by UUID, and the claims that only observe",
        statuses: "warns when NVIDIA's driver has a claim and its checkpoint or the CDI directory cannot be read; skipped without such a claim",
        check: node::claim_files,
    },
    Row {
        id: "driver",
        title: "Driver",
        why: "readings, health and the devices to offer come from it",
        statuses: "fails when the library is not found, does not load, does not start or hangs; skipped without `--hardware nvml` and while the driver is released",
        check: driver::driver,
    },
    Row {
        id: "driver_versions",
        title: "Driver versions",
        why: "a library that is not of the loaded module's version refuses every call",
        statuses: "fails when the kernel module and the library differ; warns when one of the two is unknown",
        check: driver::versions,
    },
    Row {
        id: "device_answers",
        title: "Answers of each GPU",
        why: "what a GPU does not report is missing from the metrics",
        statuses: "warns of driver calls that failed while the GPUs were listed",
        check: driver::answers,
    },
    Row {
        id: "host_processes",
        title: "Host process ids",
        why: "use of a shared device can be attributed to a container only where its processes are visible",
        statuses: "warns when they are not visible; skipped with `--process-attribution off`",
        check: node::host_processes,
    },
    Row {
        id: "cgroups",
        title: "Cgroups",
        why: "a process's cgroup identifies its pod",
        statuses: "warns when no process is in a pod's cgroup, or when cgroups cannot be read; skipped without host process ids",
        check: node::cgroups,
    },
    Row {
        id: "pod_names",
        title: "Names of pods",
        why: "cgroups have UIDs; the names come from the log directories or the Pods API",
        statuses: "warns when neither is available; skipped without host process ids",
        check: node::pod_names,
    },
    Row {
        id: "privileges",
        title: "Privileges",
        why: "the kubelet's directories belong to root",
        statuses: "warns when not run as uid 0",
        check: node::privileges,
    },
    Row {
        id: "clock",
        title: "Clock",
        why: "timestamps of counters, logs and records come from it",
        statuses: "fails when it is before the release of this version; warns when the kubelet's files are from the future",
        check: node::clock,
    },
];

/// Of an agent, by its answers, wherever it runs.
const AGENT: [Row; 8] = [
    Row {
        id: "agent",
        title: "Agent",
        why: "the agent serves metrics and devices",
        statuses: "fails when it does not answer, or is not at `--url` or `--admin-socket`; skipped when none runs; warns when its version is another",
        check: agent::agent,
    },
    Row {
        id: "agent_ready",
        title: "Agent's readiness",
        why: "Kubernetes routes nothing to a pod that is not ready",
        statuses: "fails when `/-/ready` does not answer 200",
        check: agent::ready,
    },
    Row {
        id: "agent_problems",
        title: "Agent's own problems",
        why: "the agent keeps working with reduced data and reports why",
        statuses: "fails when it cannot reach the kubelet or the driver, when its last snapshot is old, or when a reload failed; warns of its other problems",
        check: agent::problems,
    },
    Row {
        id: "devices",
        title: "Devices expected and seen",
        why: "a GPU that is on the bus and not in the driver is lost and cannot be allocated",
        statuses: "fails when the driver shows fewer GPUs than the PCI bus; warns when one of the two counts is unknown",
        check: driver::devices,
    },
    Row {
        id: "process_utilization",
        title: "Utilization by process",
        why: "the busy time of a shared GPU is divided by it; without it the shares are equal",
        statuses: "warns when a GPU is busy and neither of the driver's calls lists a process; skipped when no agent runs",
        check: driver::process_utilization,
    },
    Row {
        id: "device_health",
        title: "Device health",
        why: "an unhealthy device is not allocated",
        statuses: "fails when a device is unhealthy, with the reason and what clears it",
        check: agent::device_health,
    },
    Row {
        id: "registrations",
        title: "Registered resources",
        why: "pods can request only registered resources",
        statuses: "fails when a resource of the agent is not registered, or another plugin serves it; skipped while the plugin is off",
        check: agent::registrations,
    },
    Row {
        id: "scrape",
        title: "Scrape",
        why: "Prometheus does the same",
        statuses: "fails when `/metrics` of a listener does not answer, or not with metrics",
        check: agent::scrape,
    },
];

/// How many checks are left out where only an agent is checked.
pub fn left_out(settings: &Settings) -> usize {
    if settings.only_agent { MACHINE.len() } else { 0 }
}

/// Runs every check that is not left out.
pub fn checks(observations: &Observations) -> Vec<Check> {
    let run = |row: &Row| {
        let Finding { status, found, to_do } = (row.check)(observations);
        Check { id: row.id, title: row.title, status, found, why: row.why, to_do }
    };
    let machine = if observations.settings.only_agent { &[][..] } else { &MACHINE };
    machine.iter().chain(&AGENT).map(run).collect()
}

/// The table of `docs/engineering/doctor.md`.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from("| id | check | why it matters | when it is not ok |\n|---|---|---|---|\n");
    for Row { id, title, why, statuses, .. } in MACHINE.iter().chain(&AGENT) {
        let _ = writeln!(text, "| `{id}` | {title} | {why} | {statuses} |");
    }
    text
}
