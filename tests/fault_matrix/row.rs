//! A row of the matrix: the fault, its symptoms, and what keeps working. Plain data and its wording; `run` acts on it.

use std::fmt::{self, Display, Formatter};

use crate::rig::{AgentSetup, Rig};
use crate::support::agent::Page;

/// Faults that share one kind of node.
pub struct Area {
    pub name: &'static str,
    pub rows: &'static [FaultRow],
    /// Changes the node before it starts.
    pub setup: fn(&mut AgentSetup),
}

pub struct FaultRow {
    pub id: &'static str,
    pub happens: &'static str,
    pub how: fn(&mut Rig),
    /// The symptoms: each of them at some time.
    pub metrics: &'static [Sample],
    pub log: Logged,
    pub page: Option<Reply>,
    pub goes_on: &'static [GoesOn],
    /// What ends it, in words.
    pub undone: &'static str,
    /// `None`: it passes by itself.
    pub undo: Option<fn(&mut Rig)>,
    /// Seconds from then, or from the fault where podmeter recovers without help, until the node has recovered.
    pub within: u64,
}

/// What most rows have: nothing stops working, and podmeter recovers by itself.
pub const ROW: FaultRow = FaultRow {
    id: "",
    happens: "",
    how: |_| {},
    metrics: &[],
    log: Logged::Silent,
    page: None,
    goes_on: ALL,
    undone: "not needed",
    undo: None,
    within: 10,
};

pub const READY: Option<Reply> = Some(Reply("/-/ready", "200 OK"));
pub const HEALTHY: Option<Reply> = Some(Reply("/-/healthy", "200 OK"));

pub enum Logged {
    Line(&'static str),
    /// Neither a warning nor an error: what a client may repeat at will does not fill the log.
    Silent,
}

/// Part of an answer, its head included.
pub struct Reply(pub &'static str, pub &'static str);

pub struct Sample(pub &'static str, pub &'static [&'static str], pub Is);

#[derive(Clone, Copy)]
pub enum Is {
    /// Every series that matches; at least one does.
    Value(f64),
    AtLeast(f64),
    /// This many series match.
    Series(usize),
    Absent,
    /// Above what it was before.
    Rises,
    /// Seconds that a time stamp is ahead of the test's clock, or behind it.
    Ahead(f64),
    Behind(f64),
}

#[derive(Clone, Copy)]
pub enum GoesOn {
    /// `/metrics`, `/` and `/-/healthy` answer.
    Pages,
    /// The pod that has a GPU is on the page, and its seconds run.
    Holder,
    /// This many GPUs are read.
    Readings(usize),
    /// This many devices are healthy at the kubelet.
    Devices(usize),
    /// A new pod gets a GPU.
    Admits,
    /// The pod that runs keeps its GPU.
    Pod,
    /// Page, the kubelet's list of devices and Allocate, in turn, in less time than waiting in each for what hangs.
    Promptly,
}

/// As without a fault.
pub const ALL: &[GoesOn] = &[GoesOn::Pages, GoesOn::Holder, GoesOn::Readings(8), GoesOn::Devices(8), GoesOn::Admits];

impl Sample {
    pub fn holds(&self, page: &Page, before: &Page, now: f64) -> bool {
        let Self(name, labels, is) = *self;
        let mut values = page.samples(name, labels).map(|(_, value)| value);
        let sum = |page: &Page| page.samples(name, labels).map(|(_, value)| value).sum::<f64>();
        match is {
            Is::Value(expected) => page.count(name, labels) > 0 && values.all(|value| (value - expected).abs() < 1e-9),
            Is::AtLeast(least) => values.any(|value| value >= least),
            Is::Series(count) => page.count(name, labels) == count,
            Is::Absent => page.count(name, labels) == 0,
            Is::Rises => sum(page) > sum(before),
            Is::Ahead(seconds) => values.any(|value| value >= now + seconds),
            Is::Behind(seconds) => values.any(|value| value <= now - seconds),
        }
    }
}

impl Display for Sample {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        let Self(name, labels, is) = self;
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        write!(f, "`{name}{labels}` ")?;
        match is {
            Is::Value(value) => write!(f, "is {value}"),
            Is::AtLeast(value) => write!(f, "is {value} or more"),
            Is::Series(count) => write!(f, "has {count} series"),
            Is::Absent => write!(f, "is absent"),
            Is::Rises => write!(f, "rises"),
            Is::Ahead(seconds) => write!(f, "is {seconds} s ahead"),
            Is::Behind(seconds) => write!(f, "is {seconds} s behind"),
        }
    }
}

/// The symptoms.
impl Display for FaultRow {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        for metric in self.metrics {
            write!(f, "{metric}<br>")?;
        }
        match self.log {
            Logged::Line(text) => write!(f, "log: `{text}`")?,
            Logged::Silent => write!(f, "log: nothing")?,
        }
        match &self.page {
            Some(Reply(route, text)) => write!(f, "<br>`{route}`: `{text}`"),
            None => Ok(()),
        }
    }
}

impl Display for GoesOn {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self {
            Self::Pages => write!(f, "pages answer"),
            Self::Holder => write!(f, "the holder's seconds run"),
            Self::Readings(count) => write!(f, "{count} GPUs are read"),
            Self::Devices(count) => write!(f, "{count} devices at the kubelet"),
            Self::Admits => write!(f, "a new pod gets a GPU"),
            Self::Pod => write!(f, "the pod keeps its GPU"),
            Self::Promptly => write!(f, "pages, `ListAndWatch` and `Allocate` do not wait for it"),
        }
    }
}
