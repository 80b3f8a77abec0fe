use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::model::{
    ContainerRef, DeviceHealth, GpuHealth, GpuUuid, HardwareSource, HealthCause, HealthTransition, MigUuid, Snapshot,
    Timestamp, UnhealthyReason, XidClass,
};

/// The health of each device, its transitions, and how it is determined.
#[derive(Debug, Serialize)]
pub struct Health<'a> {
    pub devices: Vec<DeviceEntry<'a>>,
    pub history: History<'a>,
    pub monitoring: Monitoring<'a>,
}

#[derive(Debug, Serialize)]
pub struct DeviceEntry<'a> {
    pub gpu: &'a GpuUuid,
    /// `None`: the whole GPU.
    pub mig: Option<&'a MigUuid>,
    pub healthy: bool,
    pub since: Timestamp,
    pub causes: &'a [HealthCause],
    /// By class, of the whole GPU; empty for a MIG device.
    pub xids: BTreeMap<XidClass, u64>,
}

#[derive(Debug, Serialize)]
pub struct History<'a> {
    /// False: older transitions since the start are no longer kept.
    pub complete: bool,
    /// Oldest first.
    pub transitions: Vec<Transition<'a>>,
}

#[derive(Debug, Serialize)]
pub struct Transition<'a> {
    /// Counts from 1 since the start.
    pub number: u64,
    pub at: Timestamp,
    pub gpu: &'a GpuUuid,
    pub mig: Option<&'a MigUuid>,
    pub healthy: bool,
    pub reason: UnhealthyReason,
    pub detail: &'a str,
    /// The holders of the device at that time.
    pub holders: &'a [ContainerRef],
}

/// The health settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MonitoringPlan {
    /// An operator may mark devices: the admin socket is there.
    pub marks: bool,
    pub automatic_recovery: bool,
    pub hold_down: Duration,
}

/// The inputs of the health, and where it is reported.
#[derive(Debug, Serialize)]
pub struct Monitoring<'a> {
    pub sources: Vec<Source>,
    /// `auto`: when the cause has ended, after the hold-down. `manual`: by an operator only.
    pub recovery: &'static str,
    pub hold_down_seconds: f64,
    /// Resources whose unhealthy devices are reported to the kubelet; empty while the plugin is off.
    pub reported_to_kubelet: Vec<&'a str>,
    /// Metrics that show it.
    pub metrics: &'static [&'static str],
}

#[derive(Debug, Serialize)]
pub struct Source {
    /// `fast`, `medium`, `slow` readings, `events` of the driver, `operator`.
    pub name: &'static str,
    pub enabled: bool,
    /// `None` where it is not known.
    pub working: Option<bool>,
    pub last_success: Option<Timestamp>,
}

pub fn health<'a>(snapshot: &'a Snapshot, plan: &MonitoringPlan) -> Health<'a> {
    let state = &*snapshot.health;
    let transitions: Vec<Transition<'_>> = state.transitions.iter().map(transition).collect();
    Health {
        devices: state.gpus.iter().flat_map(|(gpu, health)| entries(gpu, health)).collect(),
        history: History { complete: transitions.first().is_none_or(|first| first.number == 1), transitions },
        monitoring: monitoring(snapshot, plan),
    }
}

fn entries<'a>(gpu: &'a GpuUuid, health: &'a GpuHealth) -> Vec<DeviceEntry<'a>> {
    let one = |mig: Option<&'a MigUuid>, device: &'a DeviceHealth| DeviceEntry {
        gpu,
        mig,
        healthy: device.healthy,
        since: device.since.unix.into(),
        causes: &device.causes,
        xids: if mig.is_none() { health.xids.by_class.clone() } else { BTreeMap::new() },
    };
    let mut devices = vec![one(None, &health.whole)];
    devices.extend(health.instances.iter().map(|(mig, device)| one(Some(mig), device)));
    devices
}

fn transition(turn: &HealthTransition) -> Transition<'_> {
    Transition {
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
            enabled: hardware.source != HardwareSource::None && collector.is_some(),
            working: collector.map(|collector| collector.success && !collector.stuck),
            last_success: collector.and_then(|collector| collector.last_success).map(|at| at.unix.into()),
        }
    };
    let mut sources: Vec<Source> = ["fast", "medium", "slow", "events"].into_iter().map(collector).collect();
    sources.push(Source { name: "operator", enabled: plan.marks, working: None, last_success: None });
    let plugin = snapshot.plugin.as_deref().into_iter();
    let registered = plugin.flat_map(|plugin| &plugin.resources).filter(|(_, resource)| resource.registered);
    Monitoring {
        sources,
        recovery: if plan.automatic_recovery { "auto" } else { "manual" },
        hold_down_seconds: plan.hold_down.as_secs_f64(),
        reported_to_kubelet: registered.map(|(name, _)| name.as_str()).collect(),
        metrics: &["podmeter_device_healthy", "podmeter_device_unhealthy_reason", "podmeter_xid_errors_total"],
    }
}
