//! `podmeter doctor`: checks what the agent needs on a node, once, and names what to do.
//!
//! Inputs: where the kubelet, the driver and the agent are found. Output: a `Report`, one finding for each check. Does
//! not use: attribution, metrics, the web server. `gather` makes the `Observations`, each with a deadline;
//! `catalogue`, `node`, `driver` and `agent` check them and do no I/O. Nothing here changes anything: it registers
//! nothing, removes nothing, starts no process, and only connects to the sockets of other plugins.

mod agent;
mod catalogue;
mod driver;
mod gather;
mod node;
mod observations;
mod report;
mod scrape;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use crate::client::Target;
use crate::clock::Clock;
use crate::hardware::Driver;
use crate::kubelet::claim_files::Directories;
use crate::model::{HardwareSource, ResourceName};
use crate::plugin::{MigStrategy, OnConflict, Plan, ResourceConfig};
use crate::processes::Mode;
pub use catalogue::markdown;
pub use report::{Check, Report, Status};

/// Where to observe what, with the agent's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `None`: no agent is queried.
    pub agent: Option<Target>,
    /// Its public listeners: queried when it is not found otherwise.
    pub listeners: Vec<Target>,
    /// This machine is not observed: its checks are left out.
    pub only_agent: bool,
    /// The target was given explicitly, so an agent is expected there.
    pub agent_is_named: bool,
    pub pod_resources_socket: PathBuf,
    pub device_plugin_directory: PathBuf,
    pub pods_api_socket: PathBuf,
    /// Of the files of DRA drivers.
    pub claim_directories: Directories,
    /// For each call to the kubelet.
    pub kubelet_deadline: Duration,
    /// For the driver to be opened and to list its GPUs.
    pub driver_deadline: Duration,
    /// `nvml`, `simulated` or `none`.
    pub hardware: HardwareSource,
    /// What the bundled device plugin would offer; `None` while it is off. With profiles: what applies here.
    pub offers: Option<Vec<Offer>>,
    /// Empty without profiles.
    pub plan: Plan,
    /// For the profiles.
    pub node_name: String,
    pub attribution: Mode,
    pub proc_root: PathBuf,
    pub sys_root: PathBuf,
    pub pod_logs_root: PathBuf,
}

/// A resource that the plugin would offer, as far as it is known without devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub name: ResourceName,
    /// Also resources of MIG devices, by profile.
    pub by_profile: bool,
    /// It is to be taken from another plugin.
    pub takes_over: bool,
}

impl Offer {
    #[must_use]
    pub fn of(entry: &ResourceConfig) -> Self {
        let (name, by_profile, on_conflict) = match entry {
            ResourceConfig::Nvidia(entry) => (&entry.name, entry.mig_strategy == MigStrategy::Mixed, entry.on_conflict),
            ResourceConfig::Path(entry) => (&entry.name, false, entry.on_conflict),
            ResourceConfig::Simulated(entry) => (&entry.name, false, entry.on_conflict),
        };
        Self { name: name.clone(), by_profile, takes_over: on_conflict == OnConflict::Takeover }
    }

    fn is_for(&self, resource: &ResourceName) -> bool {
        self.name == *resource || (self.by_profile && resource.as_str().starts_with("nvidia.com/mig-"))
    }
}

/// Observes everything concurrently, the driver last; ends within a minute whatever hangs. `driver` is what NVML
/// readings come from.
pub async fn examine(settings: Settings, driver: Option<Box<dyn Driver>>, clock: Clock) -> Report {
    let observations = gather::gather(settings, driver, clock).await;
    Report::new(observations.now, catalogue::checks(&observations), catalogue::left_out(&observations.settings))
}
