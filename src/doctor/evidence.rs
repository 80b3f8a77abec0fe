use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::Settings;
use super::scrape::Page;
use crate::client::Target;
use crate::governance::OwnProcess;
use crate::kubelet::CallError;
use crate::model::{Allocatable, Inventory, NodeDevices, PodResourcesApi, UnixSeconds};
use crate::processes::Survey;

/// What one look brought.
pub type Look<T> = Result<T, Missed>;

/// Why a look brought nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missed {
    /// It did not come back in time, and was left behind.
    Late(Duration),
    Failed(String),
    /// It failed, and whoever failed knows the remedy.
    Refused {
        problem: String,
        remedy: &'static str,
    },
    /// There was a reason not to look.
    NotAsked(String),
}

/// Everything that was seen, at about one moment.
#[derive(Debug)]
pub struct Evidence {
    pub settings: Settings,
    /// Our own.
    pub version: &'static str,
    pub now: UnixSeconds,
    pub agent: Agent,
    pub list: Result<Listed, CallError>,
    /// `None`: not asked, because `List` had no answer.
    pub allocatable: Option<Result<Allocatable, CallError>>,
    pub registration: Dialled,
    pub pods_api: Dialled,
    /// Whether a socket could be made in the device-plugin directory; the error says why not.
    pub writable: Look<Result<(), String>>,
    /// Other sockets in the device-plugin directory that somebody listens on.
    pub plugin_sockets: Look<Vec<String>>,
    pub driver: Look<Driven>,
    /// Of the kernel's module; `None` where it is not loaded, or does not show here.
    pub module_version: Look<Option<String>>,
    pub bus: Look<NodeDevices>,
    pub processes: Look<Survey>,
    /// Pods that log directories name.
    pub named_pods: Look<usize>,
    pub kernel_log: Look<()>,
    pub own: Look<OwnProcess>,
    /// The file of the kubelet's that changed last.
    pub newest_file: Look<Option<(PathBuf, UnixSeconds)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    pub api: PodResourcesApi,
    pub pods: usize,
    /// Containers that hold a device or a claim.
    pub holders: usize,
}

/// What came of connecting to a socket, and hanging up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dialled {
    Listens,
    Missing,
    NotASocket,
    Denied,
    /// Nobody listens.
    Refused,
    Late(Duration),
    Other(String),
}

/// What the driver said when it was opened.
#[derive(Clone, Debug, Default)]
pub struct Driven {
    pub inventory: Inventory,
    /// `call: code` of what some GPU refused.
    pub problems: Vec<String>,
}

/// The agent that may run here.
#[derive(Debug)]
pub enum Agent {
    /// Nobody said where to ask.
    NotLooked,
    /// Nothing listens there.
    Absent(Target),
    /// Something is there, and this user may not ask it.
    Denied(Target),
    /// Something is there and does not answer as an agent does.
    Silent {
        target: Target,
        problem: String,
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
    /// `/metrics` of each listener.
    pub pages: Vec<(Target, Result<Page, String>)>,
    /// Listeners that ask for what the web configuration says, which the doctor does not have.
    pub guarded: Vec<String>,
}
