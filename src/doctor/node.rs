//! Checks of the kubelet, its directories, and the host.

use std::collections::BTreeSet;

use super::Settings;
use super::observations::{Agent, Observations, SocketState};
use super::report::Finding;
use crate::kubelet::CallError;
use crate::model::ResourceName;
use crate::plugin;
use crate::processes::Mode;

const MOUNT: &str = "start the kubelet, and mount its directory here (the directory, not the socket: the kubelet replaces it at \
                     each start); for another root directory set --kubelet-root";
const ROOT: &str = "run as uid 0: the directory belongs to root (0750)";
const HUNG: &str = "check the kubelet's log and load; restart it if it does not recover";
/// 2026-01-01, before which there was no podmeter.
const FIRST_VERSION: f64 = 1_767_225_600.0;
/// What file systems and clocks may differ by.
const SKEW: f64 = 60.0;

pub fn pod_resources(observations: &Observations) -> Finding {
    match &observations.list {
        Ok(listed) => Finding::ok(format!("{} pods, {} containers with devices", listed.pods, listed.holders)),
        Err(error) => call_failed(error),
    }
}

pub fn allocatable(observations: &Observations) -> Finding {
    match &observations.allocatable {
        None => Finding::skipped("skipped, because List had no answer"),
        Some(Ok(allocatable)) => {
            let resources = allocatable.devices.iter().map(|(name, ids)| format!("{} {name}", ids.len()));
            let resources: Vec<String> = resources.collect();
            Finding::ok(if resources.is_empty() { "no devices of any plugin".to_owned() } else { resources.join(", ") })
        }
        Some(Err(CallError::Unimplemented(method))) => Finding::warning(
            format!("this kubelet does not have {method}"),
            "upgrade the kubelet to 1.23 or newer; until then free devices and conflicts are unknown",
        ),
        Some(Err(error)) => call_failed(error),
    }
}

fn call_failed(error: &CallError) -> Finding {
    let (found, to_do) = match error {
        CallError::SocketMissing(socket) => (format!("there is no socket {}", socket.display()), MOUNT.to_owned()),
        CallError::NotASocket(socket) => (
            format!("{} is not a socket", socket.display()),
            "point --pod-resources-socket at the kubelet's".to_owned(),
        ),
        CallError::PermissionDenied(socket) => {
            (format!("no permission to connect to {}", socket.display()), ROOT.to_owned())
        }
        CallError::Refused(socket) => (
            format!("no process listens on {}", socket.display()),
            "the kubelet is down or restarting: see systemctl status kubelet on the node".to_owned(),
        ),
        CallError::Unavailable { socket, reason } => {
            (format!("the connection to {} broke: {reason}", socket.display()), HUNG.to_owned())
        }
        CallError::DeadlineExceeded { socket, method, deadline } => (
            format!("{} did not answer {method} within {} s", socket.display(), deadline.as_secs_f64()),
            HUNG.to_owned(),
        ),
        CallError::RateLimited(method) => (
            format!("the kubelet's rate limit refused {method}"),
            "find the client of the socket that sends more than a hundred requests a second".to_owned(),
        ),
        CallError::Malformed { socket, reason } => (
            format!("{} does not implement PodResources: {reason}", socket.display()),
            "point --pod-resources-socket at the kubelet's".to_owned(),
        ),
        CallError::TooLarge { .. } => {
            (error.to_string(), "find the pod whose DRA claim is listed many times, and restart it".to_owned())
        }
        CallError::Unimplemented(_) | CallError::Other { .. } => {
            (error.to_string(), "see the kubelet's log for the reason".to_owned())
        }
    };
    Finding::failed(found, to_do)
}

pub fn registration_socket(observations: &Observations) -> Finding {
    if observations.settings.offers.is_none() {
        return plugin_off();
    }
    let socket = plugin::kubelet_socket(&observations.settings.device_plugin_directory);
    socket_finding(&observations.registration, &socket.display().to_string(), "--device-plugin-dir")
}

fn socket_finding(outcome: &SocketState, socket: &str, flag: &str) -> Finding {
    match outcome {
        SocketState::Listens => Finding::ok(format!("{socket} answers")),
        SocketState::Missing => Finding::failed(format!("there is no socket {socket}"), format!("{MOUNT}, or {flag}")),
        SocketState::NotASocket => Finding::failed(
            format!("{socket} is not a socket"),
            format!("remove the file and restart the kubelet, or set {flag}"),
        ),
        SocketState::Denied => Finding::failed(format!("no permission to connect to {socket}"), ROOT),
        SocketState::Refused => Finding::failed(
            format!("no process listens on {socket}"),
            "the kubelet is down or restarting: see systemctl status kubelet on the node",
        ),
        SocketState::Late(limit) => {
            Finding::failed(format!("{socket} did not answer within {} s", limit.as_secs_f64()), HUNG)
        }
        SocketState::Other(problem) => Finding::failed(format!("{socket}: {problem}"), HUNG),
    }
}

pub fn claim_files(observations: &Observations) -> Finding {
    let claimed = observations.list.as_ref().map_or(0, |listed| listed.claimed);
    if claimed == 0 {
        return Finding::skipped("the kubelet lists no claim of NVIDIA's DRA driver");
    }
    let to_do = "set mounts.dra=true in the chart, or mount the directories; without them claims are joined by device name, \
                 and observers count as holders";
    let files = match &observations.claim_files {
        Ok(files) => files,
        Err(missing) => return Finding::not_observed(missing, to_do),
    };
    let unread = files.iter().filter_map(|(file, read)| Some(format!("{}: {}", file.display(), read.as_ref().err()?)));
    let unread: Vec<String> = unread.collect();
    if unread.is_empty() {
        let names: Vec<String> = files.iter().map(|(file, _)| file.display().to_string()).collect();
        Finding::ok(format!("{} can be read", names.join(" and ")))
    } else {
        Finding::warning(unread.join("; "), to_do)
    }
}

pub fn plugin_directory(observations: &Observations) -> Finding {
    if observations.settings.offers.is_none() {
        return plugin_off();
    }
    let directory = observations.settings.device_plugin_directory.display();
    let to_do = "mount the kubelet's device-plugins directory without readOnly, and run as uid 0; for another directory set \
                 --device-plugin-dir; without the plugin, --device-plugin=off";
    match &observations.writable {
        Ok(Ok(())) => Finding::ok(format!("{directory} can be written to")),
        Ok(Err(problem)) => Finding::failed(format!("{directory}: {problem}"), to_do),
        Err(missing) => Finding::not_observed(missing, to_do),
    }
}

pub fn plugin_profile(observations: &Observations) -> Finding {
    let Some((applied, gpus)) = &observations.profile else {
        return Finding::skipped("the configuration has no profiles");
    };
    let Settings { node_name, plan, .. } = &observations.settings;
    let gpus = gpus.as_ref().map(|gpus| format!(" with {gpus}")).unwrap_or_default();
    match (&applied.name, applied.decision) {
        (Some(name), _) => Finding::ok(format!("profile {name} applies to node {node_name}{gpus}")),
        (None, "common") => Finding::ok(format!(
            "none of {} profiles matches node {node_name}{gpus}: the common settings apply",
            plan.profiles.len()
        )),
        (None, _) => Finding::warning(
            format!("undecided for node {node_name}{gpus}: the driver reports no GPU models"),
            "fix the driver first; until then only what every profile has is offered",
        ),
    }
}

fn plugin_off() -> Finding {
    Finding::skipped("the bundled device plugin is off")
}

pub fn plugin_conflicts(observations: &Observations) -> Finding {
    const REMOVE: &str = "remove the other plugin, disable this one with --device-plugin=off, or set onConflict: takeover for the resource";
    let Some(offers) = &observations.settings.offers else { return plugin_off() };
    let live = match &observations.plugin_sockets {
        Ok(live) => live,
        Err(missing) => return Finding::not_observed(missing, "check what hangs in the device-plugin directory"),
    };
    let others: Vec<_> = live
        .iter()
        .filter_map(|socket| Some((socket, plugin::known_resource(socket)?)))
        .filter_map(|(socket, resource)| Some((socket, offers.iter().find(|offer| offer.is_for(&resource))?, resource)))
        .collect();
    if let Some((socket, _, resource)) = others.iter().find(|(_, offer, _)| !offer.takes_over) {
        return Finding::failed(format!("another device plugin serves {resource} on {socket}"), REMOVE);
    }
    if let Some((socket, _, resource)) = others.first() {
        return Finding::ok(format!("{resource} on {socket} is taken over, as configured"));
    }
    let is_ours = |resource: &ResourceName| {
        let nothing = BTreeSet::new();
        let listed = BTreeSet::from(["listed".into()]);
        // Another plugin's devices, unless a podmeter serves the resource now.
        plugin::conflict(resource, &listed, &nothing, live).is_none()
    };
    let allocatable = observations.allocatable.as_ref().and_then(|answer| answer.as_ref().ok());
    let Some(allocatable) = allocatable else {
        return Finding::warning(
            format!(
                "{} sockets, none of a known plugin for the offered resources; the kubelet's list is unknown",
                live.len()
            ),
            "fix the check of allocatable devices: an unknown plugin shows there",
        );
    };
    let foreign = allocatable.devices.iter().find(|(resource, ids)| {
        !ids.is_empty() && offers.iter().any(|offer| offer.is_for(resource) && !offer.takes_over) && !is_ours(resource)
    });
    match foreign {
        Some((resource, ids)) => Finding::warning(
            format!("the kubelet lists {} devices of {resource}, and no podmeter serves it", ids.len()),
            format!("nothing if a podmeter has just ended: they disappear within minutes; else {REMOVE}"),
        ),
        None => Finding::ok(format!("no other plugin for {}", names(offers.iter().map(|offer| offer.name.as_str())))),
    }
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "any resource: none is offered".to_owned() } else { names.join(", ") }
}

pub fn pods_api(observations: &Observations) -> Finding {
    let socket = observations.settings.pods_api_socket.display().to_string();
    match &observations.pods_api {
        SocketState::Missing => Finding::skipped(format!(
            "there is no socket {socket}: the kubelet's feature gate PodsAPI is off, as it is by default before 1.37, or the \
             directory is not mounted"
        )),
        // The kubelet leaves the file behind when the gate is switched off; nothing depends on this API alone.
        SocketState::Refused => Finding::warning(
            format!(
                "no process listens on {socket}: the kubelet is down, or its feature gate PodsAPI was disabled and the \
                 file remained"
            ),
            "remove the file where the gate is off; pod names then come from the log directories",
        ),
        outcome => socket_finding(outcome, &socket, "--kubelet-root"),
    }
}

pub fn host_processes(observations: &Observations) -> Finding {
    let Settings { attribution, proc_root, .. } = &observations.settings;
    let proc_root = proc_root.display();
    let to_do = "set hostPID: true for podmeter's pod, or mount the host's /proc and set --proc-root";
    match (&observations.processes, attribution) {
        (_, Mode::Off) => attribution_off(),
        (Ok(seen), _) if seen.of_the_host => Finding::ok(format!("{proc_root} shows {} processes", seen.processes)),
        (Ok(_), Mode::On) => Finding::failed(
            format!("{proc_root} shows no host process ids, and process attribution is on"),
            format!("{to_do}; or --process-attribution auto"),
        ),
        (Ok(_), Mode::Auto) => Finding::warning(
            format!("{proc_root} shows no host process ids: use of a shared device is divided equally"),
            format!("{to_do}; not needed where no device is shared"),
        ),
        (Err(missing), _) => Finding::not_observed(missing, "check --proc-root"),
    }
}

fn attribution_off() -> Finding {
    Finding::skipped("process attribution is off")
}

/// Why cgroups and names of pods are of no use.
fn no_processes(observations: &Observations) -> Option<Finding> {
    let seen = observations.processes.as_ref().is_ok_and(|seen| seen.of_the_host);
    match observations.settings.attribution {
        Mode::Off => Some(attribution_off()),
        _ if !seen => Some(Finding::skipped("host process ids are not visible")),
        _ => None,
    }
}

pub fn cgroups(observations: &Observations) -> Finding {
    if let Some(skipped) = no_processes(observations) {
        return skipped;
    }
    match &observations.processes {
        Err(missing) => Finding::not_observed(missing, "check --proc-root"),
        Ok(seen) if seen.unreadable > 0 => Finding::warning(
            format!("{} of {} processes do not show their cgroup", seen.unreadable, seen.processes),
            "run as uid 0; hidepid on /proc hides the processes of others",
        ),
        Ok(seen) if seen.in_pods == 0 => Finding::warning(
            format!("none of {} processes is in a cgroup that names a pod", seen.processes),
            "nothing if no pod runs here; else please report the text of /proc/<pid>/cgroup of a pod's process",
        ),
        Ok(seen) => Finding::ok(format!("{} of {} processes are in pods", seen.in_pods, seen.processes)),
    }
}

pub fn pod_names(observations: &Observations) -> Finding {
    if let Some(skipped) = no_processes(observations) {
        return skipped;
    }
    let root = observations.settings.pod_logs_root.display();
    match (&observations.named_pods, &observations.pods_api) {
        (Ok(count), _) if *count > 0 => Finding::ok(format!("{root} names {count} pods")),
        (_, SocketState::Listens) => Finding::ok("the Pods API names them"),
        (Ok(_), _) => Finding::warning(
            format!("{root} names no pod, and there is no Pods API"),
            "nothing if no pod runs here; else mount the host's /var/log/pods, or set --pod-logs-root",
        ),
        (Err(missing), _) => {
            let found =
                Finding::not_observed(missing, "mount the host's /var/log/pods read-only, or set --pod-logs-root");
            let found_text = format!("{root}: {}", found.found);
            Finding::warning(found_text, found.to_do.unwrap_or_default())
        }
    }
}

pub fn privileges(observations: &Observations) -> Finding {
    let status = match &observations.own {
        Ok(own) => own.privileges.as_ref(),
        Err(missing) => return Finding::not_observed(missing, "mount /proc"),
    };
    let unknown = || Finding::warning("/proc/self/status does not show the user", "mount /proc");
    let Some(status) = status else { return unknown() };
    let Some(uid) = status.uid else { return unknown() };
    let capabilities = match &status.capabilities.effective {
        Some(names) if names.is_empty() => "no capabilities".to_owned(),
        Some(names) => format!("{} capabilities", names.len()),
        None => "unknown capabilities".to_owned(),
    };
    let found = format!("uid {uid}, {capabilities}");
    if uid == 0 {
        Finding::ok(found)
    } else {
        Finding::warning(found, "run as uid 0, as the chart does; no capability is needed")
    }
}

pub fn clock(observations: &Observations) -> Finding {
    let now = observations.now.0;
    let to_do = "set the clock, and check chrony or systemd-timesyncd";
    if now < FIRST_VERSION {
        return Finding::failed(format!("it shows {}", crate::model::Timestamp(observations.now)), to_do);
    }
    match &observations.newest_file {
        Ok(Some((path, at))) if at.0 > now + SKEW => Finding::warning(
            format!("{} is from {:.0} s in the future: the clock was set back", path.display(), at.0 - now),
            to_do,
        ),
        Ok(Some(_)) => {
            Finding::ok("not earlier than the kubelet's files; its synchronisation cannot be checked from here")
        }
        Ok(None) | Err(_) => Finding::ok("plausible; there is no file of the kubelet to compare it with"),
    }
}

/// Why the driver must not be opened: an agent has released it on request, or may have.
pub fn driver_is_released(agent: &Agent) -> Option<&'static str> {
    match agent {
        Agent::NotConfigured | Agent::Absent(_) => None,
        Agent::Denied(_) | Agent::Unresponsive { .. } => {
            Some("an agent exists that cannot be asked whether the driver is released on request")
        }
        Agent::Answers(answers) => {
            let node = answers.node.as_ref().ok();
            let released = node.and_then(|node| node.pointer("/hardware/released"));
            released
                .is_some_and(|released| !released.is_null())
                .then_some("the agent has released the driver on request")
        }
    }
}
