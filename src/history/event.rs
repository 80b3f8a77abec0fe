use std::sync::Arc;

use serde::Serialize;

use super::Device;
use crate::model::{ContainerRef, Moment};

/// An event on the node, for people.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    /// Counts all events since the start, from 1.
    pub number: u64,
    pub at: Moment,
    pub kind: EventKind,
    pub severity: Severity,
    /// A sentence without the names of the devices and containers.
    pub text: Arc<str>,
    pub devices: Vec<Device>,
    pub containers: Vec<ContainerRef>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    Health,
    Xid,
    Allocation,
    Kubelet,
    Plugin,
    Driver,
}

impl EventKind {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Xid => "xid",
            Self::Allocation => "allocation",
            Self::Kubelet => "kubelet",
            Self::Plugin => "plugin",
            Self::Driver => "driver",
        }
    }
}

/// Whether an event is a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Something works again.
    Good,
    /// As usual.
    Plain,
    /// Something is wrong.
    Bad,
}
