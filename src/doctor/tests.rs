//! Each check, by its observations.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::Status::{Failed, Ok as Good, Skipped, Warning};
use super::catalogue::checks;
use super::observations::{Agent, Answers, DriverState, Listed, NotObserved, Observations, SocketState};
use super::{Offer, Settings, Status};
use crate::client::Target;
use crate::governance::{OwnProcess, Status as Privileges};
use crate::kubelet::CallError;
use crate::kubelet::claim_files::Directories;
use crate::model::{
    Allocatable, AppliedProfile, DriverInfo, Gpu, GpuUuid, HardwareSource, Inventory, NodeDevices, UnixSeconds,
};
use crate::plugin::{Gpus, Plan};
use crate::processes::{Mode, Survey};

const NOW: f64 = 1_800_000_000.0;
const SOCKET: &str = "/k/pod-resources/kubelet.sock";

fn settings() -> Settings {
    Settings {
        agent: Some(Target::Socket("/run/podmeter.sock".into())),
        only_agent: false,
        agent_is_named: false,
        listeners: vec![],
        pod_resources_socket: SOCKET.into(),
        device_plugin_directory: "/k/device-plugins".into(),
        pods_api_socket: "/k/pods-api/pods-api.sock".into(),
        claim_directories: Directories {
            plugins: "/k/plugins".into(),
            cdi: "/var/run/cdi".into(),
            proc: "/proc".into(),
        },
        kubelet_deadline: Duration::from_secs(5),
        driver_deadline: Duration::from_secs(20),
        hardware: HardwareSource::Nvml,
        offers: Some(vec![Offer { name: "nvidia.com/gpu".into(), by_profile: false, takes_over: false }]),
        plan: Plan::default(),
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

fn answers() -> Answers {
    Answers {
        target: Target::Socket("/run/podmeter.sock".into()),
        record: Ok(json!({"running": {"version": "1.2.3", "revision": "abc"}})),
        node: Ok(node()),
        ready: Ok(()),
        pages: vec![(Target::Url("http://127.0.0.1:9410".parse().unwrap()), Ok(2))],
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

fn profile(decision: &'static str) -> Option<(AppliedProfile, Option<Gpus>)> {
    let name = (decision == "profile").then(|| "h100".into());
    let gpus = (decision != "undecided").then(|| Gpus { count: 2, models: ["NVIDIA H100".into()].into() });
    Some((AppliedProfile { decision, name }, gpus))
}

/// A node that passes every check.
fn well() -> Observations {
    let allocatable = BTreeMap::from([("nvidia.com/gpu".into(), ["GPU-1".into()].into())]);
    Observations {
        settings: settings(),
        version: "1.2.3",
        now: UnixSeconds(NOW),
        agent: Agent::Answers(Box::new(answers())),
        list: Ok(Listed { pods: 3, holders: 1, claimed: 1 }),
        allocatable: Some(Ok(Allocatable { devices: allocatable, ..Allocatable::default() })),
        registration: SocketState::Listens,
        pods_api: SocketState::Listens,
        writable: Ok(Ok(())),
        plugin_sockets: Ok(vec!["podmeter-nvidia.com_gpu-0123456789ab.sock".to_owned()]),
        driver: Ok(driver("570.1", 1)),
        profile: profile("profile"),
        module_version: Ok(Some("570.1".to_owned())),
        bus: Ok(NodeDevices { expected: 1, ..NodeDevices::default() }),
        processes: Ok(Survey { of_the_host: true, processes: 9, in_pods: 3, unreadable: 0 }),
        named_pods: Ok(3),
        claim_files: Ok(vec![("/k/plugins/gpu.nvidia.com/checkpoint.json".into(), Ok(()))]),
        own: Ok(OwnProcess {
            privileges: Some(Privileges { uid: Some(0), ..Privileges::default() }),
            ..OwnProcess::default()
        }),
        newest_file: Ok(Some((PathBuf::from(SOCKET), UnixSeconds(NOW - 60.0)))),
    }
}

type Change = Box<dyn Fn(&mut Observations)>;

fn change(change: impl Fn(&mut Observations) + 'static) -> Change {
    Box::new(change)
}

/// A changed answer of the agent about itself.
fn agent(edit: impl Fn(&mut Answers) + 'static) -> Change {
    change(move |observations| {
        let Agent::Answers(answers) = &mut observations.agent else { panic!("it answers") };
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
    change(move |observations| (observations.list, observations.allocatable) = (Err(error(SOCKET.into())), None))
}

fn late<T>() -> Result<T, NotObserved> {
    Err(NotObserved::Late(Duration::from_secs(5)))
}

#[test]
fn a_healthy_node_passes_every_check() {
    for check in checks(&well()) {
        assert_eq!(check.status, Status::Ok, "{check:?}");
        assert_eq!(check.to_do, None, "{check:?}");
    }
}

type Case = (&'static str, Change, Status, &'static str);

fn kubelet_cases() -> Vec<Case> {
    vec![
        ("pod_resources", call(CallError::SocketMissing), Failed, "there is no socket /k/pod-resources/kubelet.sock"),
        ("pod_resources", call(CallError::NotASocket), Failed, "is not a socket"),
        ("pod_resources", call(CallError::PermissionDenied), Failed, "no permission"),
        ("pod_resources", call(CallError::Refused), Failed, "no process listens"),
        (
            "pod_resources",
            call(|socket| CallError::DeadlineExceeded { socket, method: "List", deadline: Duration::from_secs(5) }),
            Failed,
            "did not answer List within 5 s",
        ),
        ("allocatable", call(CallError::Refused), Skipped, "List had no answer"),
        (
            "allocatable",
            change(|observations| {
                observations.allocatable = Some(Err(CallError::Unimplemented("GetAllocatableResources")));
            }),
            Warning,
            "does not have GetAllocatableResources",
        ),
        (
            "allocatable",
            change(|observations| observations.allocatable = Some(Ok(Allocatable::default()))),
            Good,
            "no devices",
        ),
        (
            "registration_socket",
            change(|observations| observations.registration = SocketState::Missing),
            Failed,
            "there is no socket",
        ),
        (
            "registration_socket",
            change(|observations| observations.registration = SocketState::Late(Duration::from_secs(5))),
            Failed,
            "within 5 s",
        ),
        ("registration_socket", change(|observations| observations.settings.offers = None), Skipped, "plugin is off"),
        (
            "plugin_directory",
            change(|observations| observations.writable = Ok(Err("Read-only file system".into()))),
            Failed,
            "Read-only",
        ),
        ("plugin_directory", change(|observations| observations.writable = late()), Failed, "within 5 s"),
        ("plugin_directory", change(|observations| observations.settings.offers = None), Skipped, "plugin is off"),
    ]
}

fn plugins_and_driver_cases() -> Vec<Case> {
    vec![
        (
            "plugin_conflicts",
            change(|observations| observations.plugin_sockets = Ok(vec!["nvidia-gpu.sock".into()])),
            Failed,
            "another device plugin serves nvidia.com/gpu on nvidia-gpu.sock",
        ),
        (
            "plugin_conflicts",
            change(|observations| {
                observations.plugin_sockets =
                    Ok(vec!["nvidia-mig-1g.10gb.sock".into(), "podmeter-nvidia.com_gpu-0123456789ab.sock".into()]);
            }),
            Good,
            "no other plugin",
        ),
        (
            "plugin_conflicts",
            change(|observations| {
                observations.plugin_sockets = Ok(vec!["nvidia-gpu.sock".into()]);
                observations.settings.offers.as_mut().expect("on")[0].takes_over = true;
            }),
            Good,
            "taken over, as configured",
        ),
        (
            "plugin_conflicts",
            change(|observations| observations.plugin_sockets = Ok(vec![])),
            Warning,
            "lists 1 devices of nvidia.com/gpu",
        ),
        ("plugin_conflicts", call(CallError::Refused), Warning, "is unknown"),
        ("plugin_conflicts", change(|observations| observations.settings.offers = None), Skipped, "plugin is off"),
        (
            "pods_api",
            change(|observations| observations.pods_api = SocketState::Missing),
            Skipped,
            "gate PodsAPI is off",
        ),
        (
            "pods_api",
            change(|observations| observations.pods_api = SocketState::Refused),
            Warning,
            "no process listens",
        ),
        ("pods_api", change(|observations| observations.pods_api = SocketState::Denied), Failed, "no permission"),
        ("driver", change(|observations| observations.driver = late()), Failed, "did not answer within 5 s"),
        (
            "driver",
            change(|observations| {
                observations.driver =
                    Err(NotObserved::Refused { problem: "it was not found".into(), remedy: "install it" });
            }),
            Failed,
            "it was not found",
        ),
        ("plugin_profile", change(|_| {}), Good, "profile h100 applies to node node with 2 GPUs (NVIDIA H100)"),
        (
            "plugin_profile",
            change(|observations| observations.profile = profile("common")),
            Good,
            "common settings apply",
        ),
        ("plugin_profile", change(|observations| observations.profile = profile("undecided")), Warning, "undecided"),
        ("plugin_profile", change(|observations| observations.profile = None), Skipped, "no profiles"),
        (
            "driver",
            change(|observations| observations.driver = Err(NotObserved::Skipped("released".into()))),
            Skipped,
            "released",
        ),
    ]
}

fn devices_cases() -> Vec<Case> {
    vec![
        (
            "driver_versions",
            change(|observations| observations.module_version = Ok(Some("560.2".into()))),
            Failed,
            "module is 560.2, the library 570.1",
        ),
        ("driver_versions", change(|observations| observations.module_version = Ok(None)), Warning, "not found"),
        ("driver_versions", change(|observations| observations.driver = late()), Warning, "does not answer"),
        (
            "devices",
            change(|observations| observations.bus = Ok(NodeDevices { expected: 8, ..NodeDevices::default() })),
            Failed,
            "8 expected, 1 seen",
        ),
        (
            "devices",
            change(|observations| observations.bus = Err(NotObserved::Failed("no bus".into()))),
            Warning,
            "an unknown number expected",
        ),
        ("devices", change(|observations| observations.driver = late()), Failed, "an unknown number seen"),
        (
            "devices",
            change(|observations| {
                observations.bus = Ok(NodeDevices::default());
                observations.driver = Ok(driver("570.1", 0));
            }),
            Warning,
            "0 expected, 0 seen",
        ),
        (
            "devices",
            change(|observations| observations.driver = Err(NotObserved::Skipped("simulated".into()))),
            Good,
            "1 expected, 1 seen",
        ),
        (
            "device_answers",
            change(|observations| {
                observations.driver.as_mut().expect("driver").problems = vec!["nvmlX: unknown".into()];
            }),
            Warning,
            "nvmlX: unknown",
        ),
        ("device_answers", change(|observations| observations.driver = late()), Skipped, "does not answer"),
        ("process_utilization", change(|_| ()), Good, "no GPU has been busy enough"),
        ("process_utilization", process_source("nvmlDeviceGetProcessUtilization"), Good, "1 GPUs by nvmlDeviceGetP"),
        ("process_utilization", process_source("none"), Warning, "neither driver call lists a process: GPU-1"),
        (
            "claim_files",
            change(|observations| {
                let denied = Err("permission denied".to_owned());
                observations.claim_files = Ok(vec![("/k/plugins/gpu.nvidia.com/checkpoint.json".into(), denied)]);
            }),
            Warning,
            "checkpoint.json: permission denied",
        ),
        ("claim_files", change(|observations| observations.list.as_mut().unwrap().claimed = 0), Skipped, "no claim"),
    ]
}

fn host_cases() -> Vec<Case> {
    vec![
        (
            "host_processes",
            change(|observations| observations.processes = Ok(Survey::default())),
            Warning,
            "divided equally",
        ),
        (
            "host_processes",
            change(|observations| {
                (observations.processes, observations.settings.attribution) = (Ok(Survey::default()), Mode::On);
            }),
            Failed,
            "attribution is on",
        ),
        ("host_processes", change(|observations| observations.processes = late()), Failed, "within 5 s"),
        ("host_processes", change(|observations| observations.settings.attribution = Mode::Off), Skipped, "is off"),
        ("cgroups", change(|observations| observations.processes = Ok(Survey::default())), Skipped, "not visible"),
        (
            "cgroups",
            change(|observations| observations.processes.as_mut().expect("seen").in_pods = 0),
            Warning,
            "none of 9",
        ),
        (
            "cgroups",
            change(|observations| observations.processes.as_mut().expect("seen").unreadable = 2),
            Warning,
            "2 of 9",
        ),
        ("pod_names", change(|observations| observations.named_pods = Ok(0)), Good, "Pods API"),
        (
            "pod_names",
            change(|observations| {
                (observations.named_pods, observations.pods_api) =
                    (Err(NotObserved::Failed("not there".into())), SocketState::Missing);
            }),
            Warning,
            "not there",
        ),
        (
            "privileges",
            change(|observations| {
                let own = observations.own.as_mut().expect("read");
                own.privileges.as_mut().expect("said").uid = Some(65532);
            }),
            Warning,
            "uid 65532",
        ),
        ("privileges", change(|observations| observations.own = Ok(OwnProcess::default())), Warning, "does not show"),
        ("clock", change(|observations| observations.now = UnixSeconds(0.0)), Failed, "1970"),
        (
            "clock",
            change(|observations| observations.newest_file = Ok(Some((SOCKET.into(), UnixSeconds(NOW + 3600.0))))),
            Warning,
            "3600 s in the future",
        ),
    ]
}

fn agent_cases() -> Vec<Case> {
    vec![
        ("agent", change(|observations| observations.agent = Agent::NotConfigured), Skipped, "--url"),
        (
            "agent",
            change(|observations| observations.agent = Agent::Absent(Target::Socket("/a".into()))),
            Skipped,
            "nothing answers on unix:/a",
        ),
        (
            "agent",
            change(|observations| {
                observations.agent = Agent::Absent(Target::Url("http://x".parse().unwrap()));
                observations.settings.agent_is_named = true;
            }),
            Failed,
            "no agent listens on http://x",
        ),
        ("agent", silent(), Failed, "did not respond"),
        (
            "agent",
            change(|observations| observations.agent = Agent::Denied(Target::Socket("/a".into()))),
            Failed,
            "accessible to its owner only",
        ),
        (
            "agent",
            change(|observations| observations.version = "1.3.0"),
            Warning,
            "podmeter 1.2.3 (abc) on unix:/run/podmeter.sock, and this is 1.3.0",
        ),
        ("agent", agent(|answers| answers.record = Err("404".into())), Warning, "without its version"),
        ("agent_ready", agent(|answers| answers.ready = Err("waiting for the kubelet".into())), Failed, "waiting"),
        ("agent_ready", silent(), Skipped, "does not answer"),
        ("agent_problems", says("/at/unix", json!(NOW - 100.0)), Failed, "the last snapshot is 100 s old"),
        ("agent_problems", says("/kubelet/problem", json!("no process listens")), Failed, "no process listens"),
        ("agent_problems", says("/config_reload/successful", json!(false)), Failed, "not reloaded"),
        ("agent_problems", says("/plugin/problems", json!(["too many slots"])), Warning, "too many slots"),
        ("agent_problems", says("/hardware/released", json!({})), Warning, "released"),
        ("agent_problems", says("/violations/busy", json!(2)), Warning, "busy did not add up to their device 2 times"),
        ("agent_problems", says("/hardware", json!({})), Warning, "does not report /hardware/problem"),
        ("agent_problems", agent(|answers| answers.node = Err("no JSON".into())), Failed, "no JSON"),
        (
            "device_health",
            says(
                "/health/gpus/GPU-1/instances/MIG-1",
                json!({"healthy": false, "causes": [{"detail": "XID 79", "clears": "recovers after a reset"}]}),
            ),
            Failed,
            "MIG-1 is unhealthy: XID 79 (recovers after a reset)",
        ),
        ("device_health", says("/health/gpus/GPU-1/whole", json!({})), Failed, "the reason is unknown"),
        ("device_health", says("/health/gpus", json!({})), Skipped, "no devices"),
    ]
}

fn scrape_cases() -> Vec<Case> {
    vec![
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
            agent(|answers| {
                answers.pages.clear();
                answers.guarded = vec!["0.0.0.0:9410".to_owned()];
            }),
            Skipped,
            "0.0.0.0:9410 require the credentials of the web configuration",
        ),
        ("scrape", change(|observations| observations.agent = Agent::NotConfigured), Skipped, "no agent"),
    ]
}

#[test]
fn each_check_reports_its_fault() {
    let cases =
        [kubelet_cases(), plugins_and_driver_cases(), devices_cases(), host_cases(), agent_cases(), scrape_cases()];
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

fn silent() -> Change {
    change(|observations| {
        let problem = "/a did not respond within 5 s".into();
        observations.agent = Agent::Unresponsive { problem, to_do: "see its log" };
    })
}
