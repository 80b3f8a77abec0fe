use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::Settings;
use crate::client::Target;
use crate::governance::OwnProcess;
use crate::kubelet::CallError;
use crate::model::{Allocatable, AppliedProfile, Inventory, NodeDevices, UnixSeconds};
use crate::plugin::Gpus;
use crate::processes::Survey;

/// Of this podmeter.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What was observed, or why not.
pub type Observed<T> = Result<T, NotObserved>;

/// Why something was not observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotObserved {
    /// It did not finish in time, and was abandoned.
    Late(Duration),
    Failed(String),
    /// It failed with a known remedy.
    Refused {
        problem: String,
        remedy: &'static str,
    },
    /// There was a reason not to observe it.
    Skipped(String),
}

/// Everything that was observed, at about one moment.
#[derive(Debug)]
pub struct Observations {
    pub settings: Settings,
    /// Our own.
    pub version: &'static str,
    pub now: UnixSeconds,
    pub agent: Agent,
    pub list: Result<Listed, CallError>,
    /// `None`: not called, because `List` had no answer.
    pub allocatable: Option<Result<Allocatable, CallError>>,
    pub registration: SocketState,
    pub pods_api: SocketState,
    /// Whether a socket can be created in the device-plugin directory; the error has the reason.
    pub writable: Observed<Result<(), String>>,
    /// Other sockets in the device-plugin directory that a process listens on.
    pub plugin_sockets: Observed<Vec<String>>,
    pub driver: Observed<DriverState>,
    /// Which profile applies, and to which GPUs; `None` without profiles.
    pub profile: Option<(AppliedProfile, Option<Gpus>)>,
    /// Of the kernel's module; `None` where it is not loaded, or does not show here.
    pub module_version: Observed<Option<String>>,
    pub bus: Observed<NodeDevices>,
    pub processes: Observed<Survey>,
    /// Pods that log directories name.
    pub named_pods: Observed<usize>,
    /// By file of NVIDIA's DRA driver, why it cannot be read.
    pub claim_files: Observed<Vec<(PathBuf, Result<(), String>)>>,
    pub own: Observed<OwnProcess>,
    /// The file of the kubelet's that changed last.
    pub newest_file: Observed<Option<(PathBuf, UnixSeconds)>>,
}

impl Observations {
    /// Without this machine.
    pub fn of_agent(settings: Settings, agent: Agent, now: UnixSeconds) -> Self {
        fn left_out<T>() -> Observed<T> {
            Err(NotObserved::Skipped("only the agent is checked".to_owned()))
        }
        Self {
            version: VERSION,
            now,
            agent,
            list: Err(CallError::SocketMissing(settings.pod_resources_socket.clone())),
            allocatable: None,
            registration: SocketState::Missing,
            pods_api: SocketState::Missing,
            writable: left_out(),
            plugin_sockets: left_out(),
            driver: left_out(),
            profile: None,
            module_version: left_out(),
            bus: left_out(),
            processes: left_out(),
            named_pods: left_out(),
            claim_files: left_out(),
            own: left_out(),
            newest_file: left_out(),
            settings,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    pub pods: usize,
    /// Containers that hold a device or a claim.
    pub holders: usize,
    /// Devices of claims of NVIDIA's DRA driver.
    pub claimed: usize,
}

/// The result of connecting to a socket and closing the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketState {
    Listens,
    Missing,
    NotASocket,
    Denied,
    /// No process listens.
    Refused,
    Late(Duration),
    Other(String),
}

/// What the driver reported when it was opened.
#[derive(Clone, Debug, Default)]
pub struct DriverState {
    pub inventory: Inventory,
    /// `call: code` of what some GPU refused.
    pub problems: Vec<String>,
}

/// The agent that may run here.
#[derive(Debug)]
pub enum Agent {
    /// No target is configured.
    NotConfigured,
    /// Nothing listens there.
    Absent(Target),
    /// It exists, and this user may not connect to it.
    Denied(Target),
    /// It exists and does not answer as an agent does.
    Unresponsive {
        problem: String,
        to_do: &'static str,
    },
    Answers(Box<Answers>),
}

#[derive(Debug)]
pub struct Answers {
    pub target: Target,
    /// `/api/v1/record`
    pub record: Result<Value, String>,
    /// `/api/v1/node`
    pub node: Result<Value, String>,
    /// `/-/ready`; the error is its reason.
    pub ready: Result<(), String>,
    /// The number of series on `/metrics` of each listener.
    pub pages: Vec<(Target, Result<usize, String>)>,
    /// Listeners that need the credentials of the web configuration, which the doctor does not have.
    pub guarded: Vec<String>,
}
