//! The governance record: what runs on the node, with which privileges and host mounts, what it offers, how it is replaced
//! and how it monitors health. Readings and allocations are in `/api/v1/node`. `agent::governance` collects the facts.
//!
//! Inputs: a snapshot, facts of this process, and settings that describe the deployment. Output: one value that is
//! written as JSON or YAML. Does not use: HTTP, the kubelet, the driver. Only `process` reads files, those of this
//! process; the rest is a pure function. It has no secrets: of the configuration only digests.

mod process;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::domain::model::{Gpu, Moment, PluginResource, ResourceName, Snapshot, Timestamp};
pub use process::{MountPoint, Namespace, OwnProcess, Privileges, read as read_own_process};

/// The record's schema version; every incompatible change increments it.
pub const SCHEMA: &str = "podmeter.record/v2";

/// Inputs besides the snapshot.
#[derive(Clone, Debug)]
pub struct GovernanceFacts {
    pub at: Moment,
    pub deployment: Deployment,
    pub configuration: ConfigurationDigests,
    /// The bound addresses, including the probe listener's; last the admin socket, bound or awaited.
    pub listeners: Vec<ListenerSummary>,
    /// How a device becomes healthy again: `auto` or `manual`.
    pub recovery: &'static str,
    /// How long a device stays unhealthy after its fault ended.
    pub hold_down: Duration,
    pub process: OwnProcess,
    /// Whether the record has the devices' serial numbers: only on the admin socket.
    pub with_serials: bool,
}

/// What cannot be read from inside the container: set by the deployment, or absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deployment {
    pub image: Option<String>,
    pub namespace: Option<String>,
    pub pod: Option<String>,
    /// How the pod is replaced: `RollingUpdate, maxUnavailable 1`.
    pub update_strategy: Option<String>,
}

/// The configuration, as digests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigurationDigests {
    /// The digest of all settings in force, including defaults; comparable between agents of one version.
    pub settings_sha256: String,
    /// The configuration file and NVIDIA's file, each with its digest as `sha256sum` prints it.
    pub files: Vec<ReadFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReadFile {
    pub path: PathBuf,
    pub sha256: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListenerSummary {
    /// `0.0.0.0:9410`, `unix:/run/podmeter/podmeter.sock`
    pub address: String,
    /// Accepts commands; its owner alone can open it.
    pub admin: bool,
    /// Serves health and readiness only.
    pub probes: bool,
    /// Whether clients need TLS, a certificate or a password.
    pub guarded: bool,
}

/// The SHA-256 of `bytes` as 64 hex digits.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The governance record, without I/O. Null is unknown; `resources` is null while the bundled device plugin is off.
pub fn record(snapshot: &Snapshot, facts: &GovernanceFacts) -> Value {
    let plugin = snapshot.plugin.as_deref();
    json!({
        "schema": SCHEMA,
        "at": Timestamp(facts.at.unix),
        "node": {
            "name": &*snapshot.node_name,
            "kernel": facts.process.kernel,
            "architecture": std::env::consts::ARCH,
        },
        "running": {
            "name": "podmeter",
            "version": env!("CARGO_PKG_VERSION"),
            "revision": env!("PODMETER_BUILD_REVISION"),
            "compiler": env!("PODMETER_BUILD_RUSTC"),
            "started": Timestamp(snapshot.started),
            "image": facts.deployment.image,
            "namespace": facts.deployment.namespace,
            "pod": facts.deployment.pod,
            "update_strategy": facts.deployment.update_strategy,
        },
        "configuration": facts.configuration,
        "listeners": facts.listeners,
        "hardware": hardware(snapshot, facts.with_serials),
        "resources": plugin.map(|plugin| {
            let resource = |(name, state): (&ResourceName, &PluginResource)| {
                json!({ "name": name, "api": "v1beta1", "registered": state.registered })
            };
            plugin.resources.iter().map(resource).collect::<Vec<_>>()
        }),
        "health_monitoring": monitoring(snapshot, facts),
        "process": facts.process,
    })
}

fn hardware(snapshot: &Snapshot, with_serials: bool) -> Value {
    let inventory = &*snapshot.hardware.inventory;
    let mut gpus: Vec<_> = inventory.gpus.values().collect();
    gpus.sort_by_key(|gpu| gpu.order());
    let device = |gpu: &Gpu| {
        let mut device = json!({ "uuid": gpu.uuid, "model": gpu.model });
        if with_serials {
            device["serial"] = json!(gpu.serial);
            device["chassis_serial"] =
                json!(gpu.platform.as_ref().and_then(|platform| platform.chassis_serial.clone()));
        }
        device
    };
    json!({
        "source": snapshot.hardware.source.into_str(),
        "driver_version": inventory.driver.as_ref().map(|driver| &driver.driver_version),
        "devices": gpus.into_iter().map(device).collect::<Vec<_>>(),
    })
}

fn monitoring(snapshot: &Snapshot, facts: &GovernanceFacts) -> Value {
    let collectors = &snapshot.hardware.collectors;
    let sources = [
        // A driver is configured, whether or not it can be opened: `hardware::rounds` always publishes its tiers.
        ("readings", collectors.contains_key("fast")),
        // The driver was opened with events once: its supervisor publishes them from then on.
        ("events", collectors.contains_key("events")),
        // An admin socket, bound or awaited, accepts marks.
        ("operator", facts.listeners.iter().any(|listener| listener.admin)),
    ];
    json!({
        "sources": sources.iter().filter(|(_, is_present)| *is_present).map(|(name, _)| name).collect::<Vec<_>>(),
        "recovery": facts.recovery,
        "hold_down_seconds": facts.hold_down.as_secs_f64(),
        "metrics": ["podmeter_device_healthy", "podmeter_device_unhealthy_reason", "podmeter_xid_errors_total"],
        "routes": ["/api/v1/health", "/api/v1/node"],
    })
}

/// The record as JSON or YAML; ends in a line feed.
pub fn write(record: &Value, yaml: bool) -> Result<String, String> {
    if yaml {
        return serde_saphyr::to_string(record).map_err(|error| error.to_string());
    }
    serde_json::to_string_pretty(record).map(|text| text + "\n").map_err(|error| error.to_string())
}
