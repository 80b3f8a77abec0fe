//! Observations of a node that passes every check, and changes of them.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::commands::cli::check_text;
use crate::commands::client::{AgentTarget, ClientError};
use crate::commands::doctor::DoctorSettings;
use crate::commands::doctor::observe::{DriverState, ListSummary, NotObserved, Observations, ObservedMachine};
use crate::commands::doctor::observe_agent::{AgentResponses, ObservedAgent};
use crate::domain::model::{AppliedProfile, DriverInfo, Gpu, GpuUuid, Inventory, NodeDevices, UnixSeconds};
use crate::kubelet::CallError;
use crate::plugin::{EntryConfig, NodeGpus, NvidiaConfig, OnConflict};
use crate::processes::ProcessCounts;
use crate::test_data;

pub const NOW: f64 = 1_800_000_000.0;
pub const SOCKET: &str = "/k/pod-resources/kubelet.sock";

pub fn settings() -> DoctorSettings {
    let node = check_text("kubeletRoot: /k\nnodeName: node\n").expect("valid");
    DoctorSettings { remote: None, driver_deadline: Duration::from_secs(20), node }
}

pub fn node() -> Value {
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

pub fn answers() -> AgentResponses {
    AgentResponses {
        target: AgentTarget::Socket("/run/podmeter.sock".into()),
        record: Ok(json!({"node": {"name": "gpu-1"}, "running": {"version": "1.2.3", "revision": "abc"}})),
        node: Ok(node()),
        ready: Ok(()),
        pages: vec![(AgentTarget::Url("http://127.0.0.1:9410".parse().unwrap()), Ok(2))],
        guarded: vec![],
    }
}

/// A bus with this number of GPUs, without details of each.
pub fn bus(expected: usize) -> NodeDevices {
    NodeDevices { expected, ..NodeDevices::default() }
}

pub fn driver(version: &str, gpus: usize) -> DriverState {
    let driver = DriverInfo {
        driver_version: version.into(),
        cuda_version: Some("12.8".into()),
        nvml_version: Some("12".into()),
    };
    let gpus = (0..gpus).map(|index| Gpu::listed(GpuUuid::new(format!("GPU-{index}")), 0));
    DriverState { inventory: Inventory { driver: Some(driver), ..test_data::inventory(gpus) }, problems: vec![] }
}

pub fn profile(decision: &'static str) -> Option<(AppliedProfile, Option<NodeGpus>)> {
    let name = (decision == "profile").then(|| "h100".into());
    let gpus = (decision != "undecided").then(|| NodeGpus { count: 2, models: ["NVIDIA H100".into()].into() });
    Some((AppliedProfile { decision, name }, gpus))
}

/// A node that passes every check.
pub fn well() -> Observations {
    Observations {
        settings: settings(),
        version: "1.2.3",
        now: UnixSeconds(NOW),
        agent: ObservedAgent::Responding(Box::new(answers())),
        machine: Some(ObservedMachine {
            list: Ok(ListSummary { pods: 3, holders: 1, claimed: 1 }),
            allocatable: Some(Ok(test_data::allocatable("nvidia.com/gpu", &["GPU-1"]))),
            registration: Ok(()),
            pods_api: Ok(()),
            writable: Ok(()),
            plugin_sockets: Ok(vec!["podmeter-nvidia.com_gpu-0123456789ab.sock".to_owned()]),
            driver: Ok(driver("570.1", 1)),
            profile: profile("profile"),
            offers: offers(OnConflict::default()),
            module_version: Ok(Some("570.1".to_owned())),
            bus: Ok(bus(1)),
            processes: Ok(ProcessCounts { of_the_host: true, processes: 9, in_pods: 3, unreadable: 0 }),
            named_pods: Ok(3),
            claim_files: Ok(vec![("/k/plugins/gpu.nvidia.com/checkpoint.json".into(), Ok(()))]),
        }),
    }
}

pub fn offers(on_conflict: OnConflict) -> Option<Vec<EntryConfig>> {
    Some(vec![EntryConfig::Nvidia(Box::new(NvidiaConfig { on_conflict, ..NvidiaConfig::default() }))])
}

pub type ObservedChange = Box<dyn Fn(&mut Observations)>;

pub fn settings_with(edit: impl Fn(&mut DoctorSettings) + 'static) -> ObservedChange {
    Box::new(move |observations| edit(&mut observations.settings))
}

pub fn on(edit: impl Fn(&mut ObservedMachine) + 'static) -> ObservedChange {
    Box::new(move |observations| edit(observations.machine.as_mut().expect("it is checked")))
}

/// A change of the agent's responses.
pub fn agent(edit: impl Fn(&mut AgentResponses) + 'static) -> ObservedChange {
    Box::new(move |observations| {
        let ObservedAgent::Responding(answers) = &mut observations.agent else { panic!("it answers") };
        edit(answers);
    })
}

pub fn says(pointer: &'static str, value: Value) -> ObservedChange {
    agent(move |answers| {
        let node = answers.node.as_mut().expect("a node");
        *node.pointer_mut(pointer).expect("it is there") = value.clone();
    })
}

/// A change of the source of process utilization in the agent's response.
pub fn process_source(source: &'static str) -> ObservedChange {
    agent(move |answers| {
        let node = answers.node.as_mut().expect("a node");
        let medium = json!({"value": {"process_utilization_source": source}});
        node["hardware"]["readings"] = json!({"GPU-1": {"medium": medium}});
    })
}

pub fn call(error: impl Fn(PathBuf) -> CallError + 'static) -> ObservedChange {
    on(move |machine| (machine.list, machine.allocatable) = (Err(error(SOCKET.into())), None))
}

pub fn failed<T>(problem: &str) -> Result<T, NotObserved> {
    Err(NotObserved::Failed(problem.to_owned(), None))
}

pub fn silent(error: impl Fn() -> ClientError + 'static) -> ObservedChange {
    Box::new(move |observations| observations.agent = ObservedAgent::Silent(error()))
}

pub fn absent() -> ClientError {
    ClientError::Unreachable { target: "unix:/a".to_owned(), error: io::ErrorKind::NotFound.into() }
}

pub fn forbidden() -> ClientError {
    ClientError::Unreachable { target: "unix:/a".to_owned(), error: io::ErrorKind::PermissionDenied.into() }
}

pub fn late() -> ClientError {
    ClientError::Late { target: "/a".to_owned(), limit: Duration::from_secs(5) }
}
