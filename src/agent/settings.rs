//! The settings of the agent, and those of its modules made from them.
//!
//! In: validated values. Out: one settings value for each module. Does not use: where the values come from.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::domain::health::HealthConfig;
use crate::domain::model::{HardwareSource, ResourceName};
use crate::hardware::HardwareSettings;
use crate::hardware::nvml::{LibrarySearch, NvmlDriver};
use crate::hardware::simulated::{SimulatedDriver, SimulatedProfile};
use crate::journal::JournalSettings;
use crate::kubelet::claim_files::ClaimDirectories;
use crate::kubelet::pods::PodsSettings;
use crate::processes::ProcessesSettings;
use crate::serve::governance::ReadFile;
use crate::serve::metrics::dcgm::Generation;
use crate::serve::web::{GrafanaUrl, Limits, ListenAddress};
use crate::{hardware, kubelet, plugin};

/// The same simulated GPUs at every start.
const SIMULATED_SEED: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// How to run, validated. Nothing has been opened or bound.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    pub listen: Vec<ListenAddress>,
    /// For the kubelet's probes alone, without TLS or a password.
    pub probe_listen: Option<ListenAddress>,
    /// Read again when it changes.
    pub web_config: Option<PathBuf>,
    pub web_limits: Limits,
    pub admin_socket: Option<PathBuf>,
    /// Whether to end when it cannot be bound: it was configured explicitly.
    pub admin_socket_required: bool,
    pub node_name: String,
    pub pod_resources_socket: PathBuf,
    pub device_plugin_directory: PathBuf,
    pub claim_directories: ClaimDirectories,
    /// For each call to the kubelet.
    pub kubelet_deadline: Duration,
    pub hardware: HardwareSource,
    pub nvml: LibrarySearch,
    /// Whether to time each call of the driver.
    pub nvml_call_durations: bool,
    pub devices: HardwareSettings,
    /// Where the host's `/dev` is mounted.
    pub dev_root: PathBuf,
    pub pods: PodsSettings,
    pub processes: ProcessesSettings,
    pub log_format: LogFormat,
    pub health: HealthConfig,
    /// For repair systems; `None`: it is not written.
    pub condition_file: Option<PathBuf>,
    /// Where and how much is written of who held what; `None`: nothing is.
    pub journal: Option<JournalSettings>,
    /// Of `/metrics/dcgm` without a query.
    pub dcgm_generation: Generation,
    /// To which rows of the page link.
    pub grafana_url: Option<GrafanaUrl>,
    pub reloadable: Reloadable,
}

/// What a reload changes in a running agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reloadable {
    pub refresh_interval: Duration,
    pub retention: Duration,
    /// Of containers' series on the page.
    pub series_limit: usize,
    pub log_level: String,
    /// Read for these settings, with their digests.
    pub files: Vec<ReadFile>,
    /// What the bundled device plugin offers; `None` while it is off, which no reload changes.
    pub device_plugin: Option<plugin::PluginPlan>,
}

impl Reloadable {
    /// Whether the bundled plugin may offer GPUs as this resource.
    pub(super) fn may_offer_gpus_as(&self, resource: &ResourceName) -> bool {
        let mut entries = self.device_plugin.iter().flat_map(plugin::PluginPlan::all_entries);
        entries.any(|entry| entry.may_offer_gpus_as(resource))
    }
}

impl AgentSettings {
    /// The admin socket, beside which the faults of devices are kept. Those of simulated devices are not.
    pub(super) fn faults_beside(&self) -> Option<&Path> {
        self.admin_socket.as_deref().filter(|_| self.hardware == HardwareSource::Nvml)
    }

    pub fn driver(&self, clock: Clock) -> Option<Box<dyn hardware::Driver>> {
        match self.hardware {
            HardwareSource::Nvml => {
                Some(Box::new(NvmlDriver::new(self.nvml.clone(), self.nvml_call_durations.then_some(clock))))
            }
            HardwareSource::Simulated => {
                let driver = SimulatedDriver::new(SimulatedProfile::H100, SIMULATED_SEED);
                Some(Box::new(driver.with_constant_loads(SIMULATED_SEED)))
            }
            HardwareSource::None => None,
        }
    }

    pub(super) fn plugin_settings(&self) -> Option<plugin::PluginSettings> {
        Some(plugin::PluginSettings {
            directory: self.device_plugin_directory.clone(),
            plan: self.reloadable.device_plugin.clone()?,
            node_name: self.node_name.clone(),
            host_paths: plugin::HostPaths {
                roots: plugin::host::path_devices::HostRoots {
                    host: "/".into(),
                    dev: self.dev_root.clone(),
                    sys: self.devices.sys_root.clone(),
                },
                proc: self.devices.proc_root.clone(),
                cdi: plugin::host::cdi::DIRECTORIES.map(PathBuf::from).to_vec(),
                shows_files: plugin::host::shows_files(&self.devices.proc_root),
            },
        })
    }

    pub(super) fn kubelet_settings(&self, reloadable: watch::Receiver<Reloadable>) -> kubelet::KubeletSettings {
        kubelet::KubeletSettings {
            pod_resources_socket: self.pod_resources_socket.clone(),
            device_plugin_directory: self.device_plugin_directory.clone(),
            claim_directories: self.claim_directories.clone(),
            refresh_interval: Box::new(move || reloadable.borrow().refresh_interval),
            deadline: self.kubelet_deadline,
        }
    }
}
