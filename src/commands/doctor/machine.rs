//! Checks of the kubelet, its directories, the driver and the host.

use std::collections::{BTreeMap, BTreeSet};

use super::DoctorSettings;
use super::observe::{DriverState, NotObserved, ObservedMachine};
use super::report::{CheckOutcome, Finding};
use crate::domain::model::{DeviceForm, DeviceId, ResourceName};
use crate::kubelet::CallError;
use crate::plugin::{self, EntryConfig, MigStrategy, OnConflict, OtherPlugin};
use crate::processes::{ProcessAttribution, ProcessesSettings};
use crate::words::counted;

/// A check with its ID, title, and why it matters.
type MachineCheck = (&'static str, &'static str, &'static str, fn(&DoctorSettings, &ObservedMachine) -> CheckOutcome);

pub const CHECKS: [MachineCheck; 12] = [
    ("pod_resources", "PodResources socket", "only its answers name the holders of devices", pod_resources),
    ("allocatable", "Allocatable devices", "free devices and plugin conflicts are derived from them", allocatable),
    ("registration_socket", "Registration socket", "the device plugin registers its resources there", registration),
    ("plugin_directory", "Device-plugin directory", "the device plugin creates its sockets in it", plugin_directory),
    ("plugin_conflicts", "Other device plugins", "the kubelet uses the last that registers a resource", conflicts),
    ("plugin_profile", "Profile of this node", "what the device plugin offers can differ by node", plugin_profile),
    ("pods_api", "Pods API", "it has the UIDs and labels of pods", pods_api),
    ("claim_files", "Files of the DRA driver", "they name the hardware behind claims, and observers", claim_files),
    ("driver", "Driver", "readings, health and the devices to offer come from it", driver),
    ("driver_versions", "Driver versions", "a library of another version than the module fails", driver_versions),
    ("device_answers", "Answers of each GPU", "what a GPU does not report is missing from the metrics", device_answers),
    ("host_processes", "Host process ids", "by these the use of shared devices is divided", host_processes),
];

const KUBELET: &str = "start the kubelet, or see its log; mount its directory here (the directory, not the socket: the kubelet \
                       replaces it at each start), and run as uid 0; for another root directory set --kubelet-root";
const DRIVER: &str = "check whether nvidia-smi works on the node; if the driver is elsewhere, mount it below a --driver-root or set \
                      --nvml-library";

fn call_failed(error: &CallError) -> Finding {
    Finding::failed(error.to_string().trim_end_matches("; retrying"), KUBELET)
}

fn pod_resources(_: &DoctorSettings, machine: &ObservedMachine) -> CheckOutcome {
    let listed = machine.list.as_ref().map_err(call_failed)?;
    Ok(Finding::ok(format!("{}, {} with devices", counted(listed.pods, "pod"), counted(listed.holders, "container"))))
}

fn allocatable(_: &DoctorSettings, machine: &ObservedMachine) -> CheckOutcome {
    Ok(match &machine.allocatable {
        None => Finding::skipped("skipped, because List had no answer"),
        Some(Ok(allocatable)) => {
            let resources = allocatable.devices.iter().map(|(name, ids)| format!("{} {name}", ids.len()));
            Finding::ok(joined(resources, "no devices of any plugin"))
        }
        Some(Err(error @ CallError::Unimplemented(_))) => Finding::warning(
            error.to_string(),
            "upgrade the kubelet to 1.23 or newer; until then free devices and conflicts are unknown",
        ),
        Some(Err(error)) => call_failed(error),
    })
}

fn registration(settings: &DoctorSettings, machine: &ObservedMachine) -> CheckOutcome {
    offers(machine)?;
    machine.registration.as_ref().map_err(call_failed)?;
    Ok(Finding::ok(format!(
        "{} answers",
        plugin::kubelet_socket(&settings.node.kubelet.device_plugin_directory).display()
    )))
}

/// What the plugin offers, or the finding that it is off.
fn offers(machine: &ObservedMachine) -> Result<&[EntryConfig], Finding> {
    machine.offers.as_deref().ok_or_else(|| Finding::skipped("the bundled device plugin is off"))
}

fn plugin_directory(settings: &DoctorSettings, machine: &ObservedMachine) -> CheckOutcome {
    offers(machine)?;
    let directory = settings.node.kubelet.device_plugin_directory.display();
    let to_do = "mount the kubelet's device-plugins directory without readOnly, and run as uid 0; for another directory set \
                 --device-plugin-dir; without the plugin, --device-plugin=off";
    machine.writable.as_ref().map_err(|missing| missing.finding(to_do).about(directory.to_string()))?;
    Ok(Finding::ok(format!("{directory} can be written to")))
}

fn conflicts(_: &DoctorSettings, machine: &ObservedMachine) -> CheckOutcome {
    let offers = offers(machine)?;
    let live = machine.plugin_sockets.as_ref();
    let live = live.map_err(|missing| missing.finding("check what hangs in the device-plugin directory"))?;
    let listed = machine.allocatable.as_ref().and_then(|answer| answer.as_ref().ok()).map(|listed| &listed.devices);
    let known: BTreeSet<ResourceName> = live.iter().filter_map(|socket| plugin::known_resource(socket)).collect();
    let resources: BTreeSet<&ResourceName> =
        known.iter().chain(listed.into_iter().flat_map(|ids| ids.keys())).collect();
    let is_ours = |resource: &ResourceName| {
        offers.iter().any(|entry| offers_resource(entry, resource) && entry.on_conflict() != OnConflict::Takeover)
    };
    for resource in resources.into_iter().filter(|resource| is_ours(resource)) {
        let ids = listed.and_then(|listed| listed.get(resource)).cloned().unwrap_or_default();
        // The doctor has sent no IDs; those of a running podmeter do not conflict, because its socket is live.
        let Some(other) = plugin::other_plugin(resource, &ids, |_| false, live) else { continue };
        return Ok(match &other {
            OtherPlugin::Socket(socket) if listed.is_some() && ids.is_empty() => {
                Finding::failed(plugin::unserved(resource, socket), "restart that plugin's pod, or remove it")
            }
            OtherPlugin::Socket(_) => Finding::failed(other.text(resource), "remove one of the two plugins"),
            OtherPlugin::Listed(_) => Finding::warning(
                other.text(resource),
                "nothing if a podmeter has just ended: they disappear within minutes",
            ),
        });
    }
    if let Some(conflict) = offers.iter().find_map(|entry| other_resource(entry, listed?)) {
        return Ok(Finding::failed(conflict, "remove one of the two plugins"));
    }
    let unknown = "the kubelet's list, which shows the devices of an unknown plugin, is unknown";
    listed.ok_or_else(|| Finding::warning(unknown, "fix the check of allocatable devices"))?;
    let names = offers.iter().map(|entry| entry.name().to_string());
    Ok(Finding::ok(format!("no conflict over {}", joined(names, "any resource: none is offered"))))
}

/// A plugin that offers GPUs as a resource that this entry, which offers all GPUs, does not have, with a remedy.
fn other_resource(entry: &EntryConfig, listed: &BTreeMap<ResourceName, BTreeSet<DeviceId>>) -> Option<String> {
    entry.nvidia().filter(|nvidia| nvidia.on_conflict != OnConflict::Takeover)?;
    let names_gpu =
        |id: &&DeviceId| id.gpu().is_some() || id.mig().is_some() || matches!(id.form(), DeviceForm::Minor { .. });
    let count = |(resource, ids): (_, &BTreeSet<DeviceId>)| (resource, ids.iter().filter(names_gpu).count());
    let others = listed.iter().filter(|(resource, _)| !entry.may_offer_gpus_as(resource));
    let (other, count) = others.map(count).find(|(_, count)| *count > 0)?;
    Some(plugin::other_resource_text(other, count, entry.name()))
}

/// Whether the entry may offer the resource, decided without its devices.
fn offers_resource(entry: &EntryConfig, resource: &ResourceName) -> bool {
    let by_profile = matches!(entry, EntryConfig::Nvidia(nvidia) if nvidia.mig_strategy == MigStrategy::Mixed);
    entry.name() == resource || (by_profile && resource.as_str().starts_with("nvidia.com/mig-"))
}

fn joined(texts: impl Iterator<Item = String>, none: &str) -> String {
    let texts: Vec<String> = texts.collect();
    if texts.is_empty() { none.to_owned() } else { texts.join(", ") }
}

fn plugin_profile(settings: &DoctorSettings, machine: &ObservedMachine) -> CheckOutcome {
    let none = || Finding::skipped("the configuration has no profiles");
    let (applied, gpus) = machine.profile.as_ref().ok_or_else(none)?;
    let gpus = gpus.as_ref().map(|gpus| format!(" with {gpus}")).unwrap_or_default();
    let node = format!("node {}{gpus}", settings.node.node_name);
    Ok(match (&applied.name, applied.decision) {
        (Some(name), _) => Finding::ok(format!("profile {name} applies to {node}")),
        (None, "common") => Finding::ok(format!("no profile matches {node}: the common settings apply")),
        (None, _) => Finding::warning(
            format!("undecided for {node}: the driver reports no GPU models"),
            "fix the driver first; until then only what every profile has is offered",
        ),
    })
}

fn pods_api(settings: &DoctorSettings, machine: &ObservedMachine) -> CheckOutcome {
    let socket = settings.node.pods.socket.display();
    Ok(match &machine.pods_api {
        Ok(()) => Finding::ok(format!("{socket} answers")),
        Err(CallError::SocketMissing(_)) => Finding::skipped(format!(
            "there is no socket {socket}: the kubelet's feature gate PodsAPI is off, as it is by default before 1.37, or the \
             directory is not mounted"
        )),
        // The kubelet leaves the file behind when the gate is switched off; podmeter does not depend on this API alone.
        Err(CallError::Refused(_)) => Finding::warning(
            format!("no process listens on {socket}: the kubelet is down, or its feature gate PodsAPI was disabled"),
            "remove the file where the gate is off; pod names then come from the log directories",
        ),
        Err(error) => call_failed(error),
    })
}

fn claim_files(_: &DoctorSettings, machine: &ObservedMachine) -> CheckOutcome {
    if machine.list.as_ref().map_or(0, |listed| listed.claimed) == 0 {
        return Ok(Finding::skipped("the kubelet lists no claim of NVIDIA's DRA driver"));
    }
    let to_do = "set mounts.dra=true in the chart, or mount the directories; without them claims are joined by device name, \
                 and observers count as holders";
    let files = machine.claim_files.as_ref().map_err(|missing| missing.finding(to_do))?;
    let unread = files.iter().filter_map(|(file, read)| Some(format!("{}: {}", file.display(), read.as_ref().err()?)));
    let unread: Vec<String> = unread.collect();
    Ok(match unread.is_empty() {
        true => Finding::ok(joined(files.iter().map(|(file, _)| file.display().to_string()), "") + " can be read"),
        false => Finding::warning(unread.join("; "), to_do),
    })
}

fn driver(_: &DoctorSettings, machine: &ObservedMachine) -> CheckOutcome {
    let driver = machine.driver.as_ref().map_err(|missing| missing.finding(DRIVER))?;
    let version = driver.inventory.driver.as_ref().map_or("of unknown version", |driver| &*driver.driver_version);
    Ok(Finding::ok(format!("driver {version}, {}", counted(driver.inventory.visible(), "GPU"))))
}

/// The opened driver; that it does not answer is the finding of another check.
fn opened(machine: &ObservedMachine) -> Result<&DriverState, Finding> {
    machine.driver.as_ref().map_err(|missing| match missing {
        NotObserved::Skipped(reason) => Finding::skipped(reason),
        NotObserved::Failed(..) => Finding::skipped("the driver does not answer"),
    })
}

fn driver_versions(_: &DoctorSettings, machine: &ObservedMachine) -> CheckOutcome {
    let unknown = || Finding::warning("the driver does not report its version", DRIVER);
    let library = &*opened(machine)?.inventory.driver.as_ref().ok_or_else(unknown)?.driver_version;
    Ok(match machine.module_version.as_ref().ok().and_then(Option::as_deref) {
        Some(module) if module == library => Finding::ok(format!("library and kernel module are {library}")),
        Some(module) => Finding::failed(
            format!("the kernel module is {module}, the library {library}"),
            "finish the driver upgrade: unload the module and load the new one, or reboot the node; a container needs the \
             libraries of the loaded driver",
        ),
        None => Finding::warning(
            format!("the library is {library}; the kernel module's version is not found under --proc-root"),
            "nothing while the driver answers",
        ),
    })
}

fn device_answers(_: &DoctorSettings, machine: &ObservedMachine) -> CheckOutcome {
    let problems = &opened(machine)?.problems;
    Ok(match problems.is_empty() {
        true => Finding::ok("no call failed"),
        false => Finding::warning(
            problems.join(", "),
            "not_supported is normal for a GPU without the feature; for other codes see docs/troubleshooting.md",
        ),
    })
}

fn host_processes(settings: &DoctorSettings, machine: &ObservedMachine) -> CheckOutcome {
    const MOUNT: &str = "set hostPID=true in the chart, or mount the host's /proc and set --proc-root";
    let ProcessesSettings { mode, proc_root, .. } = &settings.node.processes;
    if *mode == ProcessAttribution::Off {
        return Ok(Finding::skipped("process attribution is off"));
    }
    let (proc_root, logs) = (proc_root.display(), settings.node.pods.logs_root.display());
    let seen = machine.processes.as_ref().map_err(|missing| missing.finding("check --proc-root"))?;
    let processes = counted(seen.processes, "process");
    let found = format!("{proc_root} shows {processes}, {} of them in pods", seen.in_pods);
    let names_pods = machine.named_pods.as_ref().is_ok_and(|count| *count > 0) || machine.pods_api.is_ok();
    Ok(match mode {
        ProcessAttribution::On if !seen.of_the_host => Finding::failed(
            format!("{proc_root} shows no host process ids, and process attribution is on"),
            format!("{MOUNT}; or --process-attribution auto"),
        ),
        _ if !seen.of_the_host => Finding::warning(
            format!("{proc_root} shows no host process ids: use of a shared device is divided equally"),
            format!("{MOUNT}; not needed where no device is shared"),
        ),
        _ if seen.unreadable > 0 => Finding::warning(
            format!("{} of {processes} do not show their cgroup", seen.unreadable),
            "run as uid 0; hidepid on /proc hides the processes of others",
        ),
        _ if seen.in_pods == 0 => Finding::warning(
            found,
            "nothing if no pod runs here; else please report the text of /proc/<pid>/cgroup of a pod's process",
        ),
        _ if !names_pods => Finding::warning(
            format!("{found}; {logs} names no pod, and there is no Pods API"),
            "mount the host's /var/log/pods read-only, or set --pod-logs-root",
        ),
        _ => Finding::ok(found),
    })
}
