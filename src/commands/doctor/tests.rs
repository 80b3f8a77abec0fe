//! The finding of each check for given observations.

mod observations;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::CheckStatus::{Failed, Ok as Good, Skipped, Warning};
use super::observe::NotObserved;
use super::observe_agent::ObservedAgent;
use super::{CheckStatus, checks};
use crate::domain::model::Allocatable;
use crate::kubelet::CallError;
use crate::plugin::OnConflict;
use crate::processes::{ProcessAttribution, ProcessCounts};
use observations::*;

#[test]
fn a_healthy_node_passes_every_check() {
    for check in checks(&well()) {
        assert_eq!(check.status, CheckStatus::Ok, "{check:?}");
        assert_eq!(check.to_do, None, "{check:?}");
    }
}

type DoctorCase = (&'static str, ObservedChange, CheckStatus, &'static str);

/// Each case has a check, what is changed for it, the resulting status, and a part of what it finds.
macro_rules! cases {
    ($($check:literal, $change:expr, $status:ident, $part:literal;)*) => {
        vec![$(($check, $change, $status, $part)),*]
    };
}

fn kubelet_cases() -> Vec<DoctorCase> {
    cases! {
        "pod_resources", call(CallError::SocketMissing), Failed, "there is no socket /k/pod-resources/kubelet.sock";
        "pod_resources", call(CallError::Refused), Failed, "no process listens";
        "allocatable", call(CallError::Refused), Skipped, "List had no answer";
        "allocatable",
            on(|machine| machine.allocatable = Some(Err(CallError::Unimplemented("GetAllocatableResources")))),
            Warning, "does not implement GetAllocatableResources";
        "allocatable", on(|machine| machine.allocatable = Some(Ok(Allocatable::default()))), Good, "no devices";
        "registration_socket", on(|machine| machine.registration = Err(CallError::SocketMissing(SOCKET.into()))),
            Failed, "there is no socket";
        "registration_socket", on(|machine| machine.offers = None), Skipped, "plugin is off";
        "plugin_directory", on(|machine| machine.writable = failed("Read-only")), Failed, "/device-plugins: Read-only";
        "plugin_directory", on(|machine| machine.offers = None), Skipped, "plugin is off";
        "plugin_conflicts", on(|machine| machine.plugin_sockets = Ok(vec!["nvidia-gpu.sock".into()])),
            Failed, "another device plugin serves nvidia.com/gpu on nvidia-gpu.sock";
        "plugin_conflicts",
            on(|machine| machine.plugin_sockets.as_mut().unwrap().push("nvidia-mig-1g.10gb.sock".into())),
            Good, "no conflict over nvidia.com/gpu";
        "plugin_conflicts", on(|machine| {
            machine.plugin_sockets = Ok(vec!["nvidia-gpu.sock".into()]);
            machine.offers = offers(OnConflict::Takeover);
        }), Good, "no conflict";
        "plugin_conflicts", on(|machine| machine.plugin_sockets = Ok(vec![])),
            Warning, "lists 1 device of nvidia.com/gpu";
        "plugin_conflicts", on(|machine| {
            let listed = machine.allocatable.as_mut().unwrap().as_mut().unwrap();
            let id = "GPU-5fb06b79-9d4d-4a0e-9d37-1c3c8f5a7e21::3".into();
            listed.devices.insert("nvidia.com/gpu.shares".into(), [id].into());
        }), Failed, "the device plugin of nvidia.com/gpu.shares offers 1 device on the GPUs of nvidia.com/gpu";
        "plugin_conflicts", on(|machine| {
            machine.allocatable.as_mut().unwrap().as_mut().unwrap().devices.clear();
            machine.plugin_sockets = Ok(vec!["nvidia-gpu.sock".into()]);
        }), Failed, "lists no healthy device of nvidia.com/gpu, although a device plugin listens on nvidia-gpu.sock";
        "plugin_conflicts", call(CallError::Refused), Warning, "is unknown";
        "plugin_conflicts", on(|machine| machine.offers = None), Skipped, "plugin is off";
        "plugin_profile", on(|_| {}), Good, "profile h100 applies to node node with 2 GPUs (NVIDIA H100)";
        "plugin_profile", on(|machine| machine.profile = profile("common")), Good, "common settings apply";
        "plugin_profile", on(|machine| machine.profile = profile("undecided")), Warning, "undecided";
        "plugin_profile", on(|machine| machine.profile = None), Skipped, "no profiles";
        "pods_api", on(|machine| machine.pods_api = Err(CallError::SocketMissing(SOCKET.into()))),
            Skipped, "gate PodsAPI is off";
        "pods_api", on(|machine| machine.pods_api = Err(CallError::Refused(SOCKET.into()))),
            Warning, "no process listens";
        "pods_api", on(|machine| machine.pods_api = Err(CallError::PermissionDenied(SOCKET.into()))),
            Failed, "no permission";
        "claim_files", on(|machine| machine.claim_files.as_mut().unwrap()[0].1 = Err("permission denied".to_owned())),
            Warning, "checkpoint.json: permission denied";
        "claim_files", on(|machine| machine.list.as_mut().unwrap().claimed = 0), Skipped, "no claim";
    }
}

fn driver_and_host_cases() -> Vec<DoctorCase> {
    cases! {
        "driver", on(|machine| machine.driver = failed("it was not found")), Failed, "it was not found";
        "driver", on(|machine| machine.driver = Err(NotObserved::Skipped("released".into()))), Skipped, "released";
        "driver_versions", on(|machine| machine.module_version = Ok(Some("560.2".into()))),
            Failed, "module is 560.2, the library 570.1";
        "driver_versions", on(|machine| machine.module_version = Ok(None)), Warning, "not found";
        "driver_versions", on(|machine| machine.driver = failed("late")), Skipped, "does not answer";
        "devices", on(|machine| machine.bus = Ok(bus(8))), Failed, "8 expected, 1 seen";
        "devices", on(|machine| machine.bus = failed("no bus")), Warning, "an unknown number expected";
        "devices", Box::new(|observations| {
            observations.agent = ObservedAgent::NotConfigured;
            observations.machine.as_mut().unwrap().driver = failed("late");
        }), Failed, "an unknown number seen";
        "devices", on(|machine| (machine.bus, machine.driver) = (Ok(bus(0)), Ok(driver("570.1", 0)))),
            Warning, "0 expected, 0 seen";
        "devices", on(|machine| machine.driver = Err(NotObserved::Skipped("simulated".into()))),
            Good, "1 expected, 1 seen";
        "device_answers", on(|machine| machine.driver.as_mut().unwrap().problems = vec!["nvmlX: unknown".into()]),
            Warning, "nvmlX: unknown";
        "host_processes", on(|machine| machine.processes = Ok(ProcessCounts::default())), Warning, "divided equally";
        "host_processes", Box::new(|observations| {
            observations.settings.node.processes.mode = ProcessAttribution::On;
            observations.machine.as_mut().unwrap().processes = Ok(ProcessCounts::default());
        }), Failed, "attribution is on";
        "host_processes", on(|machine| machine.processes = failed("not there")), Failed, "not there";
        "host_processes", settings_with(|settings| settings.node.processes.mode = ProcessAttribution::Off),
            Skipped, "is off";
        "host_processes", on(|machine| machine.processes.as_mut().unwrap().in_pods = 0), Warning, "0 of them in pods";
        "host_processes", on(|machine| machine.processes.as_mut().unwrap().unreadable = 2), Warning, "2 of 9";
        "host_processes", on(|machine| machine.named_pods = Ok(0)), Good, "3 of them in pods";
        "host_processes", on(|machine| {
            machine.named_pods = failed("not there");
            machine.pods_api = Err(CallError::SocketMissing(SOCKET.into()));
        }), Warning, "names no pod";
    }
}

fn agent_cases() -> Vec<DoctorCase> {
    cases! {
        "agent", Box::new(|observations| observations.agent = ObservedAgent::NotConfigured), Skipped, "--url";
        "agent", silent(absent), Skipped, "start `podmeter agent`";
        "agent", Box::new(|observations| {
            observations.agent = ObservedAgent::Silent(absent());
            observations.settings.node.admin_socket_required = true;
        }), Failed, "start `podmeter agent`";
        "agent", silent(late), Failed, "did not respond";
        "agent", silent(forbidden), Failed, "permission denied";
        "agent", Box::new(|observations| observations.version = "1.3.0"),
            Warning, "podmeter 1.2.3 (abc) of node gpu-1 on unix:/run/podmeter.sock, and this is 1.3.0";
        "agent", agent(|answers| answers.record = Err("404".into())), Warning, "without its version";
        "agent_ready", agent(|answers| answers.ready = Err("waiting for the kubelet".into())), Failed, "waiting";
        "agent_ready", silent(late), Skipped, "no agent answers";
        "agent_problems", says("/at/unix", json!(NOW - 100.0)), Failed, "the last snapshot is 100 s old";
        "agent_problems", says("/kubelet/problem", json!("no process listens")), Failed, "no process listens";
        "agent_problems", says("/config_reload/successful", json!(false)), Failed, "not reloaded";
        "agent_problems", says("/plugin/problems", json!(["too many slots"])), Warning, "too many slots";
        "agent_problems", says("/hardware/released", json!({})), Warning, "released";
        "agent_problems", says("/violations/busy", json!(2)), Warning, "busy did not add up to their device 2 times";
        "agent_problems", says("/hardware", json!({})), Warning, "does not report /hardware/problem";
        "agent_problems", agent(|answers| answers.node = Err("no JSON".into())), Failed, "no JSON";
        "process_utilization", process_source("nvmlDeviceGetProcessUtilization"), Good, "no GPU is busy without";
        "process_utilization", process_source("none"), Warning, "neither driver call lists a process: GPU-1";
        "device_health", says("/health/gpus/GPU-1/instances/MIG-1",
            json!({"healthy": false, "causes": [{"detail": "XID 79", "clears": "recovers after a reset"}]})), Failed,
            "MIG-1 is unhealthy: XID 79 (recovers after a reset)";
        "device_health", says("/health/gpus/GPU-1/whole", json!({"causes": [{"reason": "admin", "detail": "smells"}]})),
            Warning, "GPU-1 is marked: smells";
        "device_health", says("/health/gpus", json!({})), Skipped, "no devices";
        "registrations", says("/plugin/resources/nvidia.com~1gpu/registered", json!(false)),
            Failed, "nvidia.com/gpu is not registered";
        "registrations", says("/plugin/resources/nvidia.com~1gpu/conflict", json!("another plugin")),
            Failed, "another plugin";
        "registrations", says("/plugin/resources", json!({})), Warning, "nothing to offer";
        "registrations", says("/plugin", Value::Null), Skipped, "is off";
        "scrape", agent(|answers| answers.pages[0].1 = Err("line 3: this is not a sample".into())), Failed, "line 3";
        "scrape", agent(|answers| answers.pages.clear()), Warning, "where it listens";
        "scrape", agent(|answers| (answers.pages, answers.guarded) = (vec![], vec!["0.0.0.0:9410".to_owned()])),
            Skipped, "0.0.0.0:9410 require the credentials of the web configuration";
        "scrape", silent(absent), Skipped, "no agent";
    }
}

#[test]
fn each_check_reports_its_fault() {
    let cases = [kubelet_cases(), driver_and_host_cases(), agent_cases()];
    let mut covered: BTreeSet<&str> = BTreeSet::new();
    for (id, change, status, part) in cases.into_iter().flatten() {
        let mut observations = well();
        change(&mut observations);
        let checks = checks(&observations);
        let check = checks.iter().find(|check| check.id == id).expect(id);
        assert!(check.status == status && check.found.contains(part), "wanted {status:?} with {part:?}: {check:?}");
        let has_remedy = check.to_do.as_ref().is_some_and(|to_do| !to_do.is_empty());
        assert_eq!(has_remedy, matches!(status, Failed | Warning), "{check:?}");
        covered.insert(id);
    }
    let all: BTreeSet<&str> = checks(&well()).iter().map(|check| check.id).collect();
    assert_eq!(covered, all, "each has a case");
}
