//! An event of the history, as page and API have it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::model::{ContainerRef, DeviceRef, Moment, named};

/// An event on the node, for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistoryEvent {
    /// Counts all events since the start, from 1.
    pub number: u64,
    pub at: Moment,
    pub kind: HistoryEventKind,
    pub severity: Severity,
    /// A sentence without the names of the devices and containers.
    pub text: Arc<str>,
    pub devices: Vec<DeviceRef>,
    pub containers: Vec<ContainerRef>,
}

named! {
    pub enum HistoryEventKind {
        Health = "health",
        Xid = "xid",
        Allocation = "allocation",
        Kubelet = "kubelet",
        Plugin = "plugin",
        Driver = "driver",
    }
}

named! {
    /// Whether an event is a problem.
    pub enum Severity {
        /// Something works again.
        Good = "good",
        /// As usual.
        Plain = "plain",
        /// Something is wrong.
        Bad = "bad",
    }
}
