//! Each check, by its observations.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::CheckStatus::{Failed, Ok as Good, Skipped, Warning};
use super::observe::{
    AgentResponses, DriverState, ListSummary, NotObserved, Observations, ObservedAgent, ObservedMachine,
};
use super::{CheckStatus, DoctorSettings, checks};
use crate::commands::client::{AgentTarget, ClientError};
use crate::domain::model::{
    Allocatable, AppliedProfile, DriverInfo, Gpu, GpuUuid, HardwareSource, Inventory, UnixSeconds,
};
use crate::node::kubelet::CallError;
use crate::node::kubelet::claim_files::ClaimDirectories;
use crate::node::plugin::{NodeGpus, NvidiaConfig, OnConflict, PluginPlan, ResourceConfig};
use crate::node::processes::{Mode, Survey};

const NOW: f64 = 1_800_000_000.0;
const SOCKET: &str = "/k/pod-resources/kubelet.sock";

fn settings() -> DoctorSettings {
    DoctorSettings {
        agent: Some(AgentTarget::Socket("/run/podmeter.sock".into())),
        only_agent: false,
        agent_is_named: false,
        listeners: vec![],
        pod_resources_socket: SOCKET.into(),
        device_plugin_directory: "/k/device-plugins".into(),
        pods_api_socket: "/k/pods-api/pods-api.sock".into(),
        claim_directories: ClaimDirectories {
            plugins: "/k/plugins".into(),
            cdi: "/var/run/cdi".into(),
            proc: "/proc".into(),
        },
        kubelet_deadline: Duration::from_secs(5),
        driver_deadline: Duration::from_secs(20),
        hardware: HardwareSource::Nvml,
        plan: Some(PluginPlan::default()),
        node_name: "node".to_owned(),
        attribution: Mode::Auto,
        proc_root: "/proc".into(),
        sys_root: "/sys".into(),
        pod_logs_root: "/var/log/pods".into(),
    }
}

fn node() -> Value {
    let healthy = json!({"healthy": true, "causes": []});
    json!({
        "at": {"unix": NOW - 1.0},
        "kubelet": {"problem": null},
        "hardware": {"problem": null, "released": null, "source": "nvml", "node_devices": {"expected": 1},
            "inventory": {"gpus": {"GPU-1": {"present": true}}}},
        "plugin": {"problems": [], "resources": {"nvidia.com/gpu":
            {"registered": true, "problem": null, "conflict": null, "ended": null, "devices": {"GPU-1": null}}}},
        "processes": {"problem": null},
        "config_reload": {"successful": true},
        "violations": {"busy": 0},
        "health": {"gpus": {"GPU-1": {"whole": healthy, "instances": {"MIG-1": healthy}}}},
    })
}

fn answers() -> AgentResponses {
    AgentResponses {
        target: AgentTarget::Socket("/run/podmeter.sock".into()),
        record: Ok(json!({"running": {"version": "1.2.3", "revision": "abc"}})),
        node: Ok(node()),
        ready: Ok(()),
        pages: vec![(AgentTarget::Url("http://127.0.0.1:9410".parse().unwrap()), Ok(2))],
        guarded: vec![],
    }
}

fn driver(version: &str, gpus: usize) -> DriverState {
    let driver = DriverInfo {
        driver_version: version.into(),
        cuda_version: Some("12.8".into()),
        nvml_version: Some("12".into()),
    };
    let gpu = |index: usize| {
        let uuid = GpuUuid::new(format!("GPU-{index}"));
        let gpu = Gpu::listed(uuid.clone(), 0);
        (uuid, gpu)
    };
    DriverState {
        inventory: Inventory {
            generation: 1,
            driver: Some(driver),
            gpus: (0..gpus).map(gpu).collect(),
            ..Inventory::default()
        },
        problems: vec![],
    }
}

fn profile(decision: &'static str) -> Option<(AppliedProfile, Option<NodeGpus>)> {
    let name = (decision == "profile").then(|| "h100".into());
    let gpus = (decision != "undecided").then(|| NodeGpus { count: 2, models: ["NVIDIA H100".into()].into() });
    Some((AppliedProfile { decision, name }, gpus))
}

/// A node that passes every check.
fn well() -> Observations {
    let allocatable = BTreeMap::from([("nvidia.com/gpu".into(), ["GPU-1".into()].into())]);
    Observations {
        settings: settings(),
        version: "1.2.3",
        now: UnixSeconds(NOW),
        agent: ObservedAgent::Responding(Box::new(answers())),
        machine: Some(ObservedMachine {
            list: Ok(ListSummary { pods: 3, holders: 1, claimed: 1 }),
            allocatable: Some(Ok(Allocatable { devices: allocatable, ..Allocatable::default() })),
            registration: Ok(()),
            pods_api: Ok(()),
            writable: Ok(()),
            plugin_sockets: Ok(vec!["podmeter-nvidia.com_gpu-0123456789ab.sock".to_owned()]),
            driver: Ok(driver("570.1", 1)),
            profile: profile("profile"),
            offers: offers(OnConflict::default()),
            module_version: Ok(Some("570.1".to_owned())),
            bus: Ok(1),
            processes: Ok(Survey { of_the_host: true, processes: 9, in_pods: 3, unreadable: 0 }),
            named_pods: Ok(3),
            claim_files: Ok(vec![("/k/plugins/gpu.nvidia.com/checkpoint.json".into(), Ok(()))]),
        }),
    }
}

fn offers(on_conflict: OnConflict) -> Option<Vec<ResourceConfig>> {
    Some(vec![ResourceConfig::Nvidia(Box::new(NvidiaConfig { on_conflict, ..NvidiaConfig::default() }))])
}

type Change = Box<dyn Fn(&mut Observations)>;

fn settings_with(edit: impl Fn(&mut DoctorSettings) + 'static) -> Change {
    Box::new(move |observations| edit(&mut observations.settings))
}

fn on(edit: impl Fn(&mut ObservedMachine) + 'static) -> Change {
    Box::new(move |observations| edit(observations.machine.as_mut().expect("it is checked")))
}

/// A changed answer of the agent about itself.
fn agent(edit: impl Fn(&mut AgentResponses) + 'static) -> Change {
    Box::new(move |observations| {
        let ObservedAgent::Responding(answers) = &mut observations.agent else { panic!("it answers") };
        edit(answers);
    })
}

fn says(pointer: &'static str, value: Value) -> Change {
    agent(move |answers| {
        let node = answers.node.as_mut().expect("a node");
        *node.pointer_mut(pointer).expect("it is there") = value.clone();
    })
}

/// The agent's answer on the source of process utilization.
fn process_source(source: &'static str) -> Change {
    agent(move |answers| {
        let node = answers.node.as_mut().expect("a node");
        let medium = json!({"value": {"process_utilization_source": source}});
        node["hardware"]["readings"] = json!({"GPU-1": {"medium": medium}});
    })
}

fn call(error: impl Fn(PathBuf) -> CallError + 'static) -> Change {
    on(move |machine| (machine.list, machine.allocatable) = (Err(error(SOCKET.into())), None))
}

fn failed<T>(problem: &str) -> Result<T, NotObserved> {
    Err(NotObserved::Failed(problem.to_owned(), None))
}

fn silent(error: impl Fn() -> ClientError + 'static) -> Change {
    Box::new(move |observations| observations.agent = ObservedAgent::Silent(error()))
}

fn absent() -> ClientError {
    ClientError::NoAgentOnSocket { socket: "/a".to_owned() }
}

fn late() -> ClientError {
    ClientError::Late { target: "/a".to_owned(), limit: Duration::from_secs(5) }
}

#[test]
fn a_healthy_node_passes_every_check() {
    for check in checks(&well()) {
        assert_eq!(check.status, CheckStatus::Ok, "{check:?}");
        assert_eq!(check.to_do, None, "{check:?}");
    }
}

type Case = (&'static str, Change, CheckStatus, &'static str);

fn kubelet_cases() -> Vec<Case> {
    vec![
        ("pod_resources", call(CallError::SocketMissing), Failed, "there is no socket /k/pod-resources/kubelet.sock"),
        ("pod_resources", call(CallError::Refused), Failed, "no process listens"),
        ("allocatable", call(CallError::Refused), Skipped, "List had no answer"),
        (
            "allocatable",
            on(|machine| machine.allocatable = Some(Err(CallError::Unimplemented("GetAllocatableResources")))),
            Warning,
            "does not implement GetAllocatableResources",
        ),
        ("allocatable", on(|machine| machine.allocatable = Some(Ok(Allocatable::default()))), Good, "no devices"),
        (
            "registration_socket",
            on(|machine| machine.registration = Err(CallError::SocketMissing(SOCKET.into()))),
            Failed,
            "there is no socket",
        ),
        ("registration_socket", on(|machine| machine.offers = None), Skipped, "plugin is off"),
        (
            "plugin_directory",
            on(|machine| machine.writable = failed("Read-only")),
            Failed,
            "/device-plugins: Read-only",
        ),
        ("plugin_directory", on(|machine| machine.offers = None), Skipped, "plugin is off"),
        (
            "plugin_conflicts",
            on(|machine| machine.plugin_sockets = Ok(vec!["nvidia-gpu.sock".into()])),
            Failed,
            "another device plugin serves nvidia.com/gpu on nvidia-gpu.sock",
        ),
        (
            "plugin_conflicts",
            on(|machine| machine.plugin_sockets.as_mut().unwrap().push("nvidia-mig-1g.10gb.sock".into())),
            Good,
            "no conflict over nvidia.com/gpu",
        ),
        (
            "plugin_conflicts",
            on(|machine| {
                machine.plugin_sockets = Ok(vec!["nvidia-gpu.sock".into()]);
                machine.offers = offers(OnConflict::Takeover);
            }),
            Good,
            "no conflict",
        ),
        (
            "plugin_conflicts",
            on(|machine| machine.plugin_sockets = Ok(vec![])),
            Warning,
            "lists 1 devices of nvidia.com/gpu",
        ),
        ("plugin_conflicts", call(CallError::Refused), Warning, "is unknown"),
        ("plugin_conflicts", on(|machine| machine.offers = None), Skipped, "plugin is off"),
        ("plugin_profile", on(|_| {}), Good, "profile h100 applies to node node with 2 GPUs (NVIDIA H100)"),
        ("plugin_profile", on(|machine| machine.profile = profile("common")), Good, "common settings apply"),
        ("plugin_profile", on(|machine| machine.profile = profile("undecided")), Warning, "undecided"),
        ("plugin_profile", on(|machine| machine.profile = None), Skipped, "no profiles"),
        (
            "pods_api",
            on(|machine| machine.pods_api = Err(CallError::SocketMissing(SOCKET.into()))),
            Skipped,
            "gate PodsAPI is off",
        ),
        (
            "pods_api",
            on(|machine| machine.pods_api = Err(CallError::Refused(SOCKET.into()))),
            Warning,
            "no process listens",
        ),
        (
            "pods_api",
            on(|machine| machine.pods_api = Err(CallError::PermissionDenied(SOCKET.into()))),
            Failed,
            "no permission",
        ),
        (
            "claim_files",
            on(|machine| machine.claim_files.as_mut().unwrap()[0].1 = Err("permission denied".to_owned())),
            Warning,
            "checkpoint.json: permission denied",
        ),
        ("claim_files", on(|machine| machine.list.as_mut().unwrap().claimed = 0), Skipped, "no claim"),
    ]
}

fn driver_and_host_cases() -> Vec<Case> {
    vec![
        ("driver", on(|machine| machine.driver = failed("it was not found")), Failed, "it was not found"),
        ("driver", on(|machine| machine.driver = Err(NotObserved::Skipped("released".into()))), Skipped, "released"),
        (
            "driver_versions",
            on(|machine| machine.module_version = Ok(Some("560.2".into()))),
            Failed,
            "module is 560.2, the library 570.1",
        ),
        ("driver_versions", on(|machine| machine.module_version = Ok(None)), Warning, "not found"),
        ("driver_versions", on(|machine| machine.driver = failed("late")), Skipped, "does not answer"),
        ("devices", on(|machine| machine.bus = Ok(8)), Failed, "8 expected, 1 seen"),
        ("devices", on(|machine| machine.bus = failed("no bus")), Warning, "an unknown number expected"),
        (
            "devices",
            Box::new(|observations| {
                observations.agent = ObservedAgent::NotConfigured;
                observations.machine.as_mut().unwrap().driver = failed("late");
            }),
            Failed,
            "an unknown number seen",
        ),
        (
            "devices",
            on(|machine| (machine.bus, machine.driver) = (Ok(0), Ok(driver("570.1", 0)))),
            Warning,
            "0 expected, 0 seen",
        ),
        (
            "devices",
            on(|machine| machine.driver = Err(NotObserved::Skipped("simulated".into()))),
            Good,
            "1 expected, 1 seen",
        ),
        (
            "device_answers",
            on(|machine| machine.driver.as_mut().unwrap().problems = vec!["nvmlX: unknown".into()]),
            Warning,
            "nvmlX: unknown",
        ),
        ("host_processes", on(|machine| machine.processes = Ok(Survey::default())), Warning, "divided equally"),
        (
            "host_processes",
            Box::new(|observations| {
                observations.settings.attribution = Mode::On;
                observations.machine.as_mut().unwrap().processes = Ok(Survey::default());
            }),
            Failed,
            "attribution is on",
        ),
        ("host_processes", on(|machine| machine.processes = failed("not there")), Failed, "not there"),
        ("host_processes", settings_with(|settings| settings.attribution = Mode::Off), Skipped, "is off"),
        ("host_processes", on(|machine| machine.processes.as_mut().unwrap().in_pods = 0), Warning, "0 of them in pods"),
        ("host_processes", on(|machine| machine.processes.as_mut().unwrap().unreadable = 2), Warning, "2 of 9"),
        ("host_processes", on(|machine| machine.named_pods = Ok(0)), Good, "3 of them in pods"),
        (
            "host_processes",
            on(|machine| {
                machine.named_pods = failed("not there");
                machine.pods_api = Err(CallError::SocketMissing(SOCKET.into()));
            }),
            Warning,
            "names no pod",
        ),
    ]
}

fn agent_cases() -> Vec<Case> {
    vec![
        ("agent", Box::new(|observations| observations.agent = ObservedAgent::NotConfigured), Skipped, "--url"),
        ("agent", silent(absent), Skipped, "no agent listens on /a"),
        (
            "agent",
            Box::new(|observations| {
                observations.agent = ObservedAgent::Silent(absent());
                observations.settings.agent_is_named = true;
            }),
            Failed,
            "no agent listens on /a",
        ),
        ("agent", silent(late), Failed, "did not respond"),
        ("agent", silent(|| ClientError::Forbidden { socket: "/a".to_owned() }), Failed, "by its owner only"),
        (
            "agent",
            Box::new(|observations| observations.version = "1.3.0"),
            Warning,
            "podmeter 1.2.3 (abc) on unix:/run/podmeter.sock, and this is 1.3.0",
        ),
        ("agent", agent(|answers| answers.record = Err("404".into())), Warning, "without its version"),
        ("agent_ready", agent(|answers| answers.ready = Err("waiting for the kubelet".into())), Failed, "waiting"),
        ("agent_ready", silent(late), Skipped, "no agent answers"),
        ("agent_problems", says("/at/unix", json!(NOW - 100.0)), Failed, "the last snapshot is 100 s old"),
        ("agent_problems", says("/kubelet/problem", json!("no process listens")), Failed, "no process listens"),
        ("agent_problems", says("/config_reload/successful", json!(false)), Failed, "not reloaded"),
        ("agent_problems", says("/plugin/problems", json!(["too many slots"])), Warning, "too many slots"),
        ("agent_problems", says("/hardware/released", json!({})), Warning, "released"),
        ("agent_problems", says("/violations/busy", json!(2)), Warning, "busy did not add up to their device 2 times"),
        ("agent_problems", says("/hardware", json!({})), Warning, "does not report /hardware/problem"),
        ("agent_problems", agent(|answers| answers.node = Err("no JSON".into())), Failed, "no JSON"),
        ("process_utilization", process_source("nvmlDeviceGetProcessUtilization"), Good, "no GPU is busy without"),
        ("process_utilization", process_source("none"), Warning, "neither driver call lists a process: GPU-1"),
        (
            "device_health",
            says(
                "/health/gpus/GPU-1/instances/MIG-1",
                json!({"healthy": false, "causes": [{"detail": "XID 79", "clears": "recovers after a reset"}]}),
            ),
            Failed,
            "MIG-1 is unhealthy: XID 79 (recovers after a reset)",
        ),
        ("device_health", says("/health/gpus", json!({})), Skipped, "no devices"),
        (
            "registrations",
            says("/plugin/resources/nvidia.com~1gpu/registered", json!(false)),
            Failed,
            "nvidia.com/gpu is not registered",
        ),
        (
            "registrations",
            says("/plugin/resources/nvidia.com~1gpu/conflict", json!("another plugin")),
            Failed,
            "another plugin",
        ),
        ("registrations", says("/plugin/resources", json!({})), Warning, "nothing to offer"),
        ("registrations", says("/plugin", Value::Null), Skipped, "is off"),
        ("scrape", agent(|answers| answers.pages[0].1 = Err("line 3: this is not a sample".into())), Failed, "line 3"),
        ("scrape", agent(|answers| answers.pages.clear()), Warning, "where it listens"),
        (
            "scrape",
            agent(|answers| (answers.pages, answers.guarded) = (vec![], vec!["0.0.0.0:9410".to_owned()])),
            Skipped,
            "0.0.0.0:9410 require the credentials of the web configuration",
        ),
        ("scrape", silent(absent), Skipped, "no agent"),
    ]
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
