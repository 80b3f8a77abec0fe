//! The condition of a node's devices, for repair systems: healthy, unhealthy or unknown, with the devices and pods
//! concerned.
//!
//! Inputs: a snapshot and the time. Output: one value, served at `/api/v1/health` and written to the condition file.
//! Does not use: files, HTTP, clocks. Healthy needs evidence: missing, old or stopped data is unknown, never healthy.

mod message;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use crate::domain::model::{
    DeviceHealth, DeviceReadings, Gpu, GpuHealth, GpuUuid, HardwareSource, HealthCause, MigUuid, Moment, Snapshot,
    Timestamp, UnhealthyReason, UnixSeconds, recovery_action,
};
use crate::domain::periods::{CONDITION_READINGS, CONDITION_VALIDITY, SNAPSHOTS_LATE};

/// Changes with every incompatible change.
pub const SCHEMA: &str = "podmeter.condition/v1";
/// Pods named of one device.
const PODS: usize = 64;

/// In the order in which they decide for the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum ConditionStatus {
    Unhealthy,
    Unknown,
    Healthy,
    /// The state of a device only: an operator's mark is its one cause. Nothing needs repair by it.
    Marked,
}

/// The condition of the node's devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeCondition {
    pub schema: Cow<'static, str>,
    pub status: ConditionStatus,
    /// Unix seconds. After `until` the condition is unknown.
    pub written: u64,
    pub until: u64,
    pub node: String,
    /// One line of printable ASCII without quotes and backslashes, at most [`message::BYTES`] long. It changes only when
    /// something else here changes.
    pub message: String,
    /// Healthy GPUs.
    pub healthy_gpus: usize,
    /// Those that are not healthy, in the order of their GPUs: a GPU, or its MIG devices where only these are not. A GPU
    /// without current readings is a further one beside its MIG devices, or beside itself as marked.
    pub devices: Vec<DeviceCondition>,
}

/// A device that is not healthy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceCondition {
    pub status: ConditionStatus,
    pub gpu_uuid: GpuUuid,
    /// The driver's number; `None` for a GPU that it has not listed.
    pub gpu: Option<u32>,
    pub mig_uuid: Option<MigUuid>,
    /// When its health changed last, or it was read last.
    pub since: String,
    pub reasons: Vec<ConditionReason>,
    /// What the driver requests; `None` where it requests nothing or does not report it.
    pub recovery_action: Option<Cow<'static, str>>,
    /// The pods that hold the device or a part of it, as `namespace/pod`; `None` until the kubelet has answered.
    pub pods: Option<Vec<String>>,
    /// Further pods.
    pub pods_omitted: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConditionReason {
    /// `xid`, `lost`, …; `no_readings`
    pub reason: Cow<'static, str>,
    pub detail: String,
    /// When the device recovers.
    pub clears: String,
}

impl NodeCondition {
    pub fn assess(snapshot: &Snapshot, now: Moment) -> Self {
        let mut healthy_gpus = 0;
        let mut devices = vec![];
        for (gpu, health) in in_order(snapshot) {
            let found = conditions(snapshot, now, gpu, health);
            healthy_gpus += usize::from(found.is_empty());
            devices.extend(found);
        }
        let problem = problem(snapshot, now, healthy_gpus + devices.len());
        let worst = devices.iter().map(|device| device.status).fold(ConditionStatus::Healthy, ConditionStatus::min);
        // A fault that was seen stands; nothing else is certain without data.
        let status = if problem.is_some() { worst.min(ConditionStatus::Unknown) } else { worst };
        let written = now.unix.0.max(0.0) as u64;
        Self {
            schema: SCHEMA.into(),
            status,
            written,
            until: written + CONDITION_VALIDITY.as_secs(),
            node: snapshot.node_name.to_string(),
            message: message::message(status, healthy_gpus, problem.as_deref(), &devices),
            healthy_gpus,
            devices,
        }
    }

    /// Each field in a line of its own, for readers without a JSON parser.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain values are JSON") + "\n"
    }

    /// Whether a reader would act differently.
    #[must_use]
    pub fn differs_from(&self, other: &Self) -> bool {
        let without_times = |condition: &Self| Self { written: 0, until: 0, ..condition.clone() };
        without_times(self) != without_times(other)
    }
}

/// Why nothing is known of the node as a whole.
fn problem(snapshot: &Snapshot, now: Moment, known: usize) -> Option<String> {
    let hardware = &*snapshot.hardware;
    if now.monotonic.since(snapshot.at.monotonic) > SNAPSHOTS_LATE {
        return Some("podmeter no longer publishes its state".to_owned());
    }
    if hardware.source == HardwareSource::None {
        return Some("podmeter runs without a driver".to_owned());
    }
    if let Some(problem) = &hardware.problem {
        return Some(problem.to_string());
    }
    if hardware.released.is_some() {
        return Some("the driver is released on request".to_owned());
    }
    if hardware.inventory.generation == 0 {
        return Some("the devices have not been read yet".to_owned());
    }
    // A node whose only GPU has left the bus looks the same as one that never had any.
    (known == 0).then(|| "the driver lists no GPU".to_owned())
}

fn in_order(snapshot: &Snapshot) -> Vec<(&GpuUuid, &GpuHealth)> {
    let gpus = &snapshot.hardware.inventory.gpus;
    let mut all: Vec<_> = snapshot.health.gpus.iter().collect();
    all.sort_by_key(|(uuid, _)| (gpus.get(*uuid).map_or((true, None), Gpu::order), (*uuid).clone()));
    all
}

/// Empty for a GPU that is healthy with all of its parts.
fn conditions(snapshot: &Snapshot, now: Moment, gpu: &GpuUuid, health: &GpuHealth) -> Vec<DeviceCondition> {
    let readings = snapshot.hardware.readings.get(gpu);
    let device = |mig: Option<&MigUuid>, status, since: UnixSeconds, reasons| {
        let (pods, pods_omitted) = pods(snapshot, gpu, mig);
        let slow = readings.and_then(|readings| readings.slow.as_ref());
        let action = slow.and_then(|slow| slow.value.recovery_action).and_then(recovery_action);
        DeviceCondition {
            status,
            gpu_uuid: gpu.clone(),
            gpu: snapshot.hardware.inventory.gpus.get(gpu).and_then(|gpu| gpu.index),
            mig_uuid: mig.cloned(),
            since: Timestamp(since).to_string(),
            reasons,
            recovery_action: action.filter(|action| *action != "none").map(Cow::Borrowed),
            pods,
            pods_omitted,
        }
    };
    let unhealthy = |mig, health: &DeviceHealth| device(mig, status(health), health.since.unix, reasons(health));
    let mut found: Vec<DeviceCondition> = if health.whole.healthy {
        let parts = health.mig_devices.iter().filter(|(_, part)| !part.healthy);
        parts.map(|(mig, part)| unhealthy(Some(mig), part)).collect()
    } else {
        vec![unhealthy(None, &health.whole)]
    };
    let has_no_fault = health.whole.healthy || status(&health.whole) == ConditionStatus::Marked;
    if has_no_fault && !readings.is_some_and(|readings| is_read(readings, now)) {
        // Before the first reading: since it is listed.
        let last = readings.and_then(|readings| readings.totals.last_pass());
        let since = last.map_or(health.whole.since.unix, |at| health.whole.since.unix_at(at));
        let reason = ConditionReason {
            reason: "no_readings".into(),
            detail: "the driver gives no current readings".to_owned(),
            clears: "recovers with the next readings".to_owned(),
        };
        found.push(device(None, ConditionStatus::Unknown, since, vec![reason]));
    }
    found
}

/// A device that was not checked is not known to be faulty, and a mark is an operator's decision.
fn status(health: &DeviceHealth) -> ConditionStatus {
    let status = |cause: &HealthCause| match cause.reason {
        UnhealthyReason::Admin => ConditionStatus::Marked,
        UnhealthyReason::Unknown => ConditionStatus::Unknown,
        _ => ConditionStatus::Unhealthy,
    };
    health.causes.iter().map(status).min().unwrap_or(ConditionStatus::Unknown)
}

fn reasons(health: &DeviceHealth) -> Vec<ConditionReason> {
    let reason = |cause: &HealthCause| ConditionReason {
        reason: cause.reason.into_str().into(),
        detail: cause.detail.to_string(),
        clears: cause.clears.to_string(),
    };
    health.causes.iter().map(reason).collect()
}

/// Whether the GPU has answered lately.
fn is_read(readings: &DeviceReadings, now: Moment) -> bool {
    let is_recent = |at| now.monotonic.since(at) <= CONDITION_READINGS;
    !readings.stuck && !readings.lost && readings.last_read().is_some_and(is_recent)
}

/// The first ones by name, and how many more; `None` until the kubelet has answered.
fn pods(snapshot: &Snapshot, gpu: &GpuUuid, mig: Option<&MigUuid>) -> (Option<Vec<String>>, usize) {
    if snapshot.kubelet.allocations.is_none() {
        return (None, 0);
    }
    let holders = snapshot.holders(gpu, mig);
    let pods: BTreeSet<String> = holders.map(|holder| format!("{}/{}", holder.namespace, holder.pod)).collect();
    let omitted = pods.len().saturating_sub(PODS);
    (Some(pods.into_iter().take(PODS).collect()), omitted)
}
