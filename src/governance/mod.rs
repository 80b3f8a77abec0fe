//! The governance record: what runs on the node, with which privileges, what it offers, its holders, and its health.
//!
//! Inputs: a snapshot, facts of our own process, and settings that describe the deployment. Output: one value that is
//! written as JSON or YAML (`docs/record.schema.json`). Does not use: HTTP, the kubelet, the driver. Only `process`
//! reads files, those of this process; the rest is a pure function. It has no secrets: of the configuration only
//! digests.

mod device_health;
mod holders;
mod offered;
mod process;

use std::path::PathBuf;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::model::{GpuUuid, Inventory, MigDevice, Moment, NodeDevices, PciBusId, Snapshot, Timestamp};
pub use device_health::{Health, MonitoringPlan};
pub use holders::Holders;
pub use offered::Offered;
pub use process::{Mount, Namespace, OwnProcess, Status, read as read_own_process};

/// Changes with every incompatible change.
pub const SCHEMA: &str = "podmeter.record/v1";

/// Inputs besides the snapshot.
#[derive(Clone, Debug)]
pub struct Facts {
    pub at: Moment,
    pub deployment: Deployment,
    pub configuration: Configuration,
    /// As in `--listen`, the admin socket last.
    pub listeners: Vec<ListenerSummary>,
    pub monitoring: MonitoringPlan,
    pub process: OwnProcess,
    /// Serial numbers of devices are for the owner of the node only.
    pub with_serials: bool,
}

/// What cannot be read from inside the container: set by the deployment, or absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Deployment {
    pub image: Option<String>,
    pub namespace: Option<String>,
    pub pod: Option<String>,
    /// How it is replaced: `RollingUpdate, maxUnavailable 1`.
    pub update_strategy: Option<String>,
}

/// The configuration, as digests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Configuration {
    /// Of the settings in force, defaults, flags and variables included; comparable between agents of one version.
    pub settings_sha256: String,
    /// Of each file read for them, as `sha256sum` prints it.
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
    /// Under the web configuration: TLS, a certificate, a password.
    pub guarded: bool,
}

/// 64 hex digits.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Debug, Serialize)]
pub struct GovernanceRecord<'a> {
    pub schema: &'static str,
    pub at: Timestamp,
    pub node: Node<'a>,
    pub running: Running<'a>,
    pub configuration: Loaded<'a>,
    pub listeners: &'a [ListenerSummary],
    pub hardware: Hardware<'a>,
    /// `None` while the bundled device plugin is off.
    pub device_plugin: Option<Offered<'a>>,
    pub allocations: Holders<'a>,
    pub health: Health<'a>,
    pub process: &'a OwnProcess,
}

#[derive(Debug, Serialize)]
pub struct Node<'a> {
    pub name: &'a str,
    pub kernel: Option<&'a str>,
    pub architecture: &'static str,
}

#[derive(Debug, Serialize)]
pub struct Running<'a> {
    pub name: &'static str,
    pub version: &'static str,
    pub revision: &'static str,
    pub compiler: &'static str,
    pub started: Timestamp,
    #[serde(flatten)]
    pub deployment: &'a Deployment,
}

#[derive(Debug, Serialize)]
pub struct Loaded<'a> {
    #[serde(flatten)]
    pub configuration: &'a Configuration,
    pub last_reload_successful: Option<bool>,
    pub loaded_at: Option<Timestamp>,
}

#[derive(Debug, Serialize)]
pub struct Hardware<'a> {
    /// `nvml`, `simulated` or `none`.
    pub source: &'static str,
    pub driver_version: Option<&'a str>,
    pub cuda_version: Option<&'a str>,
    pub nvml_version: Option<&'a str>,
    /// How often the driver was loaded since the start of podmeter, as far as known.
    pub driver_loads: u64,
    /// GPUs on the PCI bus, without those of virtual machines; `None` where the bus cannot be read.
    pub expected: Option<&'a NodeDevices>,
    pub released: Option<Released>,
    pub problem: Option<&'a str>,
    pub devices: Vec<Device<'a>>,
}

#[derive(Debug, Serialize)]
pub struct Released {
    pub since: Timestamp,
    pub until: Timestamp,
}

#[derive(Debug, Serialize)]
pub struct Device<'a> {
    pub uuid: &'a GpuUuid,
    /// `None`: the driver has not listed it.
    pub index: Option<u32>,
    pub present: bool,
    pub model: Option<&'a str>,
    pub architecture: Option<&'a str>,
    pub pci_bus_id: Option<&'a PciBusId>,
    /// On the admin socket only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<&'a str>,
    /// Of the chassis or rack that the GPU is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chassis_serial: Option<&'a str>,
    /// Firmware.
    pub vbios_version: Option<&'a str>,
    pub memory_bytes: Option<u64>,
    pub numa_node: Option<u32>,
    /// `None` where the GPU has no MIG.
    pub mig_enabled: Option<bool>,
    pub mig_devices: &'a [MigDevice],
}

/// A pure function.
#[must_use]
pub fn record<'a>(snapshot: &'a Snapshot, facts: &'a Facts) -> GovernanceRecord<'a> {
    GovernanceRecord {
        schema: SCHEMA,
        at: facts.at.unix.into(),
        node: Node {
            name: &snapshot.node_name,
            kernel: facts.process.kernel.as_deref(),
            architecture: std::env::consts::ARCH,
        },
        running: Running {
            name: "podmeter",
            version: env!("CARGO_PKG_VERSION"),
            revision: env!("PODMETER_BUILD_REVISION"),
            compiler: env!("PODMETER_BUILD_RUSTC"),
            started: snapshot.started.into(),
            deployment: &facts.deployment,
        },
        configuration: Loaded {
            configuration: &facts.configuration,
            last_reload_successful: snapshot.config_reload.map(|reload| reload.successful),
            loaded_at: snapshot.config_reload.map(|reload| reload.last_success.into()),
        },
        listeners: &facts.listeners,
        hardware: hardware(snapshot, facts.with_serials),
        device_plugin: snapshot.plugin.as_deref().map(offered::offered),
        allocations: holders::holders(snapshot),
        health: device_health::health(snapshot, &facts.monitoring),
        process: &facts.process,
    }
}

fn hardware(snapshot: &Snapshot, with_serials: bool) -> Hardware<'_> {
    let state = &*snapshot.hardware;
    let inventory: &Inventory = &state.inventory;
    let driver = inventory.driver.as_ref();
    let mut gpus: Vec<_> = inventory.gpus.values().collect();
    gpus.sort_by_key(|gpu| gpu.order());
    Hardware {
        source: state.source.as_str(),
        driver_version: driver.map(|driver| &*driver.driver_version),
        cuda_version: driver.and_then(|driver| driver.cuda_version.as_deref()),
        nvml_version: driver.and_then(|driver| driver.nvml_version.as_deref()),
        driver_loads: state.driver_loads,
        expected: state.node_devices.as_ref(),
        released: state
            .released
            .map(|released| Released { since: released.since.unix.into(), until: released.until.unix.into() }),
        problem: state.problem.as_deref(),
        devices: gpus
            .into_iter()
            .map(|gpu| Device {
                uuid: &gpu.uuid,
                index: gpu.index,
                present: gpu.present,
                model: gpu.model.as_deref(),
                architecture: gpu.architecture.as_deref(),
                pci_bus_id: gpu.pci_bus_id.as_ref(),
                serial: gpu.serial.as_deref().filter(|_| with_serials),
                chassis_serial: gpu
                    .platform
                    .as_ref()
                    .and_then(|platform| platform.chassis_serial.as_deref())
                    .filter(|_| with_serials),
                vbios_version: gpu.vbios_version.as_deref(),
                memory_bytes: gpu.memory_bytes,
                numa_node: gpu.numa_node,
                mig_enabled: gpu.mig_enabled,
                mig_devices: &gpu.mig_devices,
            })
            .collect(),
    }
}

/// How a record is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Json,
    Yaml,
}

impl GovernanceRecord<'_> {
    /// Ends in a line feed.
    pub fn write(&self, form: Form) -> Result<String, String> {
        match form {
            Form::Json => serde_json::to_string_pretty(self).map(|text| text + "\n").map_err(|error| error.to_string()),
            Form::Yaml => serde_saphyr::to_string(self).map_err(|error| error.to_string()),
        }
    }
}
