use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::Timestamp;
use crate::model::{
    ContainerRef, DeviceHealth, GpuHealth, GpuUuid, HealthTransition, MigUuid, Snapshot, UnhealthyReason, XidClass,
};

/// The verdict on each device, its turns, and how it comes about.
#[derive(Debug, Serialize)]
pub struct Health<'a> {
    pub devices: Vec<Judged<'a>>,
    pub history: History<'a>,
    pub monitoring: Monitoring<'a>,
}

#[derive(Debug, Serialize)]
pub struct Judged<'a> {
    pub gpu: &'a GpuUuid,
    /// `None`: the whole GPU.
    pub mig: Option<&'a MigUuid>,
    pub healthy: bool,
    pub since: Timestamp,
    pub causes: Vec<Cause<'a>>,
    /// By class, of the whole GPU; empty for a MIG device.
    pub xids: BTreeMap<XidClass, u64>,
}

#[derive(Debug, Serialize)]
pub struct Cause<'a> {
    pub reason: UnhealthyReason,
    pub detail: &'a str,
    /// What brings the device back.
    pub clears: &'a str,
}

#[derive(Debug, Serialize)]
pub struct History<'a> {
    /// False: older turns since the start are no longer kept.
    pub complete: bool,
    /// Oldest first.
    pub turns: Vec<Turn<'a>>,
}

#[derive(Debug, Serialize)]
pub struct Turn<'a> {
    /// Counts from 1 since the start.
    pub number: u64,
    pub at: Timestamp,
    pub gpu: &'a GpuUuid,
    pub mig: Option<&'a MigUuid>,
    pub healthy: bool,
    pub reason: UnhealthyReason,
    pub detail: &'a str,
    /// Who held the device then.
    pub holders: &'a [ContainerRef],
}

/// What was configured of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MonitoringPlan {
    pub kernel_log: bool,
    /// An operator may mark devices: the admin socket is there.
    pub marks: bool,
    pub automatic_recovery: bool,
    pub hold_down: Duration,
}

/// From what evidence the verdict comes and whom it reaches.
#[derive(Debug, Serialize)]
pub struct Monitoring<'a> {
    pub sources: Vec<Source>,
    /// `auto`: on evidence, after the hold-down. `manual`: by an operator alone.
    pub recovery: &'static str,
    pub hold_down_seconds: f64,
    /// Resources whose devices the kubelet is told to be unhealthy; empty while the plugin is off.
    pub told_to_kubelet: Vec<&'a str>,
    /// Metrics that show it.
    pub metrics: &'static [&'static str],
}

#[derive(Debug, Serialize)]
pub struct Source {
    /// `fast`, `medium`, `slow` readings, `events` of the driver, `kernel_log`, `operator`.
    pub name: &'static str,
    pub enabled: bool,
    /// `None` where that is not known.
    pub working: Option<bool>,
    pub last_success: Option<Timestamp>,
}

pub fn health<'a>(snapshot: &'a Snapshot, plan: &MonitoringPlan) -> Health<'a> {
    let state = &*snapshot.health;
    let turns: Vec<Turn<'_>> = state.transitions.iter().map(turn).collect();
    Health {
        devices: state.gpus.iter().flat_map(|(gpu, health)| judged(gpu, health)).collect(),
        history: History { complete: turns.first().is_none_or(|turn| turn.number == 1), turns },
        monitoring: monitoring(snapshot, plan),
    }
}

fn judged<'a>(gpu: &'a GpuUuid, health: &'a GpuHealth) -> Vec<Judged<'a>> {
    let one = |mig: Option<&'a MigUuid>, device: &'a DeviceHealth| Judged {
        gpu,
        mig,
        healthy: device.healthy,
        since: device.since.unix.into(),
        causes: device
            .causes
            .iter()
            .map(|cause| Cause { reason: cause.reason, detail: &cause.detail, clears: cause.clears })
            .collect(),
        xids: if mig.is_none() { health.xids.by_class.clone() } else { BTreeMap::new() },
    };
    let mut devices = vec![one(None, &health.whole)];
    devices.extend(health.instances.iter().map(|(mig, device)| one(Some(mig), device)));
    devices
}

fn turn(turn: &HealthTransition) -> Turn<'_> {
    Turn {
        number: turn.number,
        at: turn.at.unix.into(),
        gpu: &turn.gpu,
        mig: turn.mig.as_ref(),
        healthy: turn.to_healthy,
        reason: turn.reason,
        detail: &turn.detail,
        holders: &turn.holders,
    }
}

fn monitoring<'a>(snapshot: &'a Snapshot, plan: &MonitoringPlan) -> Monitoring<'a> {
    let hardware = &*snapshot.hardware;
    let collector = |name: &'static str| {
        let collector = hardware.collectors.get(name);
        Source {
            name,
            enabled: hardware.source != "none" && collector.is_some(),
            working: collector.map(|collector| collector.success && !collector.stuck),
            last_success: collector.and_then(|collector| collector.last_success).map(|at| at.unix.into()),
        }
    };
    let mut sources: Vec<Source> = ["fast", "medium", "slow", "events"].into_iter().map(collector).collect();
    let refused = hardware.errors.get("kmsg").is_some_and(|codes| codes.values().any(|count| *count > 0));
    let working = plan.kernel_log.then_some(!refused);
    sources.push(Source { name: "kernel_log", enabled: plan.kernel_log, working, last_success: None });
    sources.push(Source { name: "operator", enabled: plan.marks, working: None, last_success: None });
    let plugin = snapshot.plugin.as_deref().into_iter();
    let registered = plugin.flat_map(|plugin| &plugin.resources).filter(|(_, resource)| resource.registered);
    Monitoring {
        sources,
        recovery: if plan.automatic_recovery { "auto" } else { "manual" },
        hold_down_seconds: plan.hold_down.as_secs_f64(),
        told_to_kubelet: registered.map(|(name, _)| name.as_str()).collect(),
        metrics: &["podmeter_device_healthy", "podmeter_device_unhealthy_reason", "podmeter_xid_errors_total"],
    }
}
