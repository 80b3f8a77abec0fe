use std::fmt::Write as _;

use super::evidence::{Evidence, Missed};
use super::report::{Check, Status};
use super::{agent, driver, node};

/// One thing to judge.
struct Known {
    id: &'static str,
    title: &'static str,
    why: &'static str,
    /// What the check says in each state, for the document.
    says: &'static str,
    judge: fn(&Evidence) -> Finding,
}

/// What a judge says of the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub status: Status,
    pub found: String,
    pub to_do: Option<String>,
}

impl Finding {
    pub fn ok(found: impl Into<String>) -> Self {
        Self { status: Status::Ok, found: found.into(), to_do: None }
    }

    pub fn warning(found: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self { status: Status::Warning, found: found.into(), to_do: Some(to_do.into()) }
    }

    pub fn failed(found: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self { status: Status::Failed, found: found.into(), to_do: Some(to_do.into()) }
    }

    pub fn skipped(reason: impl Into<String>) -> Self {
        Self { status: Status::Skipped, found: reason.into(), to_do: None }
    }

    /// Of a look that brought nothing.
    pub fn missed(missed: &Missed, to_do: &str) -> Self {
        match missed {
            Missed::Late(limit) => Self::failed(format!("did not answer within {} s", limit.as_secs_f64()), to_do),
            Missed::Failed(problem) => Self::failed(problem, to_do),
            Missed::Refused { problem, remedy } => Self::failed(problem, *remedy),
            Missed::NotAsked(reason) => Self::skipped(reason),
        }
    }
}

const KNOWN: [Known; 23] = [
    Known {
        id: "pod_resources",
        title: "PodResources socket",
        why: "without the kubelet's answers nobody knows which container holds a device",
        says: "fails when the socket is missing, is no socket, refuses, hangs or speaks something else; warns of the old API v1alpha1",
        judge: node::pod_resources,
    },
    Known {
        id: "allocatable",
        title: "Allocatable devices",
        why: "what is free, what is unhealthy to the kubelet, and a plugin's conflicts are seen from it",
        says: "fails when `GetAllocatableResources` fails; warns where the kubelet does not have it",
        judge: node::allocatable,
    },
    Known {
        id: "registration_socket",
        title: "Registration socket",
        why: "the device plugin registers its resources there",
        says: "fails when nobody listens on the kubelet's socket in the device-plugin directory; skipped while the plugin is off",
        judge: node::registration_socket,
    },
    Known {
        id: "plugin_directory",
        title: "Device-plugin directory",
        why: "the device plugin makes its sockets in it",
        says: "fails when it is missing or cannot be written to; skipped while the plugin is off",
        judge: node::plugin_directory,
    },
    Known {
        id: "plugin_conflicts",
        title: "Other device plugins",
        why: "the kubelet believes the last plugin that registers a resource, and does not tell the other",
        says: "fails when another plugin serves a resource that podmeter is to offer; warns when the kubelet lists devices of it that nobody here is seen to offer",
        judge: node::plugin_conflicts,
    },
    Known {
        id: "pods_api",
        title: "Pods API",
        why: "it names pods by their UIDs and gives their labels",
        says: "fails when its socket is there and does not answer; warns when nobody listens on it; skipped where there is none (kubelets before 1.36, and 1.36 without the feature gate PodsAPI)",
        judge: node::pods_api,
    },
    Known {
        id: "driver",
        title: "Driver",
        why: "readings, health and the devices to offer come from it",
        says: "fails when the library is not found, does not load, does not start or hangs; skipped without `--hardware nvml` and while the driver is let go of",
        judge: driver::driver,
    },
    Known {
        id: "driver_versions",
        title: "Driver versions",
        why: "a library that is not of the loaded module's version refuses every call",
        says: "fails when the kernel module and the library differ; warns when one of the two is not told",
        judge: driver::versions,
    },
    Known {
        id: "devices",
        title: "Devices expected and seen",
        why: "a GPU that is on the bus and not in the driver is lost, and nobody can be given it",
        says: "fails when the driver shows fewer GPUs than the PCI bus; warns when one of the two is not known",
        judge: driver::devices,
    },
    Known {
        id: "device_answers",
        title: "Answers of each GPU",
        why: "what a GPU refuses to tell is missing from the page",
        says: "warns of calls that a GPU refused while it was listed",
        judge: driver::answers,
    },
    Known {
        id: "process_utilization",
        title: "Utilization by process",
        why: "the busy time of a shared GPU is divided by it; without it the parts are equal",
        says: "warns when a GPU is busy and neither of the driver's calls lists a process; skipped when no agent runs",
        judge: driver::process_utilization,
    },
    Known {
        id: "kernel_log",
        title: "Kernel's log",
        why: "XIDs with their process come from it, where that was asked for",
        says: "fails when `health.kmsg` is on and it cannot be read",
        judge: driver::kernel_log,
    },
    Known {
        id: "host_processes",
        title: "Host process ids",
        why: "use of a shared device can be given to the container that causes it only where its processes are seen",
        says: "warns when they are not visible; skipped with `--process-attribution off`",
        judge: node::host_processes,
    },
    Known {
        id: "cgroups",
        title: "Cgroups",
        why: "a process's cgroup says which pod it belongs to",
        says: "warns when no process is seen in a pod's cgroup, or when cgroups cannot be read; skipped without host process ids",
        judge: node::cgroups,
    },
    Known {
        id: "pod_names",
        title: "Names of pods",
        why: "cgroups have UIDs; names come from the log directories or the Pods API",
        says: "warns when neither is there; skipped without host process ids",
        judge: node::pod_names,
    },
    Known {
        id: "privileges",
        title: "Privileges",
        why: "the kubelet's directories belong to root",
        says: "warns when not run as uid 0",
        judge: node::privileges,
    },
    Known {
        id: "clock",
        title: "Clock",
        why: "counters begin, and records are dated, by it",
        says: "fails when it is before this version was made; warns when the kubelet's files are from the future",
        judge: node::clock,
    },
    Known {
        id: "agent",
        title: "Agent",
        why: "the agent is what serves metrics and devices",
        says: "fails when something is there and does not answer, or nothing is where `--url` or `--admin-socket` says; skipped when none runs; warns when its version is not this one",
        judge: agent::agent,
    },
    Known {
        id: "agent_ready",
        title: "Agent's readiness",
        why: "Kubernetes sends nobody to a pod that is not ready",
        says: "fails when `/-/ready` says no",
        judge: agent::ready,
    },
    Known {
        id: "agent_problems",
        title: "Agent's own problems",
        why: "the agent works on without what it misses, and says so",
        says: "fails when it cannot reach the kubelet or the driver, when its last snapshot is old, or when a reload failed; warns of what it offers or names less of",
        judge: agent::problems,
    },
    Known {
        id: "device_health",
        title: "Device health",
        why: "an unhealthy device is given to nobody",
        says: "fails when a device is unhealthy, with the reason and what clears it",
        judge: agent::device_health,
    },
    Known {
        id: "registrations",
        title: "Registered resources",
        why: "pods can ask only for what is registered",
        says: "fails when a resource of the agent is not registered, or is another plugin's; skipped while the plugin is off",
        judge: agent::registrations,
    },
    Known {
        id: "scrape",
        title: "Scrape",
        why: "this is what Prometheus does",
        says: "fails when `/metrics` of a listener does not answer, or is no page of metrics",
        judge: agent::scrape,
    },
];

/// Judges everything.
pub fn checks(evidence: &Evidence) -> Vec<Check> {
    let judged = |known: &Known| {
        let Finding { status, found, to_do } = (known.judge)(evidence);
        Check { id: known.id, title: known.title, status, found, why: known.why, to_do }
    };
    KNOWN.iter().map(judged).collect()
}

/// The table of `docs/doctor.md`.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from("| id | check | why it matters | when it is not ok |\n|---|---|---|---|\n");
    for Known { id, title, why, says, .. } in &KNOWN {
        let _ = writeln!(text, "| `{id}` | {title} | {why} | {says} |");
    }
    text
}
