//! An event of the history, for page and API.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use crate::domain::model::{ContainerRef, DeviceRef, Moment};

/// An event on the node.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryEvent {
    /// The number of the event since the start, from 1.
    pub number: u64,
    pub at: Moment,
    pub kind: HistoryEventKind,
    pub severity: Severity,
    /// A sentence without the names of the devices and containers.
    pub text: Arc<str>,
    pub devices: Vec<DeviceRef>,
    pub containers: Vec<ContainerRef>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum HistoryEventKind {
    Health,
    Xid,
    Allocation,
    Kubelet,
    Plugin,
    Driver,
}

/// Whether an event is a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A problem has ended.
    Good,
    /// No problem.
    Plain,
    /// A problem has begun.
    Bad,
}
