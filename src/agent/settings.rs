//! The settings of the agent, and those of its modules made from them.
//!
//! In: validated values. Out: one settings value for each module. Does not use: where the values come from.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;

use crate::clock::Clock;
use crate::domain::health::HealthConfig;
use crate::domain::model::{HardwareSource, ResourceName};
use crate::hardware::nvml::{LibrarySearch, NvmlDriver};
use crate::hardware::simulated::{SimulatedDriver, SimulatedProfile};
use crate::hardware::{Driver, HardwareSettings};
use crate::journal::JournalSettings;
use crate::kubelet::KubeletSettings;
use crate::kubelet::pods::PodsSettings;
use crate::plugin::{PluginPlan, PluginSettings};
use crate::processes::ProcessesSettings;
use crate::serve::governance::ReadFile;
use crate::serve::metrics::dcgm::Generation;
use crate::serve::web::{GrafanaUrl, Limits, ListenAddress};

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
    /// The listener of the kubelet's probes alone, without TLS or a password.
    pub probe_listen: Option<ListenAddress>,
    /// Read again when it changes.
    pub web_config: Option<PathBuf>,
    pub web_limits: Limits,
    pub admin_socket: Option<PathBuf>,
    /// Whether to end when it cannot be bound: it was configured explicitly.
    pub admin_socket_required: bool,
    pub node_name: String,
    pub kubelet: KubeletSettings,
    pub hardware: HardwareSource,
    pub nvml: LibrarySearch,
    /// Whether to time each call of the driver.
    pub nvml_call_durations: bool,
    pub devices: HardwareSettings,
    pub plugin: PluginSettings,
    pub pods: PodsSettings,
    pub processes: ProcessesSettings,
    pub log_format: LogFormat,
    pub health: HealthConfig,
    /// The file for repair systems; `None`: it is not written.
    pub condition_file: Option<PathBuf>,
    /// Where and how much is written of who held what; `None`: nothing is.
    pub journal: Option<JournalSettings>,
    /// The names of `/metrics/dcgm` without a query.
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
    /// The limit of the series of containers on the page.
    pub series_limit: usize,
    pub log_level: String,
    /// Read for these settings, with their digests.
    pub files: Vec<ReadFile>,
    /// What the bundled device plugin offers; `None` while it is off, which no reload changes.
    pub device_plugin: Option<PluginPlan>,
}

impl Reloadable {
    /// Whether the bundled plugin may offer GPUs as this resource.
    pub(super) fn may_offer_gpus_as(&self, resource: &ResourceName) -> bool {
        let mut entries = self.device_plugin.iter().flat_map(PluginPlan::all_entries);
        entries.any(|entry| entry.may_offer_gpus_as(resource))
    }
}

impl AgentSettings {
    /// The admin socket, beside which the faults of devices are kept. Those of simulated devices are not.
    pub(super) fn faults_beside(&self) -> Option<&Path> {
        self.admin_socket.as_deref().filter(|_| self.hardware == HardwareSource::Nvml)
    }

    pub fn driver(&self, clock: Clock) -> Option<Box<dyn Driver>> {
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
}
