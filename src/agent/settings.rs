use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::Deserialize;

use crate::web::ListenAddress;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HardwareSource {
    Nvml,
    Simulated,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

/// How to run, validated. Nothing has been opened or bound.
#[derive(Clone, Debug)]
pub struct Settings {
    pub listen: Vec<ListenAddress>,
    pub admin_socket: Option<PathBuf>,
    pub node_name: String,
    pub pod_resources_socket: PathBuf,
    pub device_plugin_directory: PathBuf,
    /// For each call to the kubelet.
    pub kubelet_deadline: Duration,
    pub hardware: HardwareSource,
    pub nvml_library: Option<PathBuf>,
    pub driver_roots: Vec<PathBuf>,
    pub sample_interval: Duration,
    pub sys_root: PathBuf,
    pub log_format: LogFormat,
    pub reloadable: Reloadable,
}

/// What a reload changes in a running agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reloadable {
    pub refresh_interval: Duration,
    pub retention: Duration,
    pub log_level: String,
}
