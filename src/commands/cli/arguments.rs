//! The arguments of each command, with their help.
//!
//! In: a command line. Out: values that clap has checked. Does not use: what a command does with them.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::options::AgentOptions;
use super::settings::{self, InvalidSettings};
use super::value::{parsed, whole_number};
use super::{Failed, misused};
use crate::agent::{DemoSettings, ListenAddress, SimulatedProfile};
use crate::commands::client::{Access, AgentTarget, Certificates, HttpUrl};
use crate::input::Duration;
use crate::journal::Price;

const START: &str =
    "Start here: `podmeter demo` for a simulated node, `podmeter agent` on a real one. Examples: docs/cli.md";

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("PODMETER_BUILD_REVISION"), ")");

/// Kubernetes device plugin and GPU exporter: reports which container uses which device.
#[derive(Debug, Parser)]
#[command(name = "podmeter", version = VERSION, after_help = START)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Run on a node: export devices and their containers to Prometheus, and offer devices to the kubelet.
    Agent(Box<AgentOptions>),
    /// Run a simulated node in one process: kubelet, GPUs and workloads.
    Demo(DemoArguments),
    /// Show devices and their containers live in a terminal, or once as text.
    Top(TopArguments),
    /// Print the metric catalogue.
    Metrics {
        #[arg(short, long, value_parser = ["markdown", "json"], default_value = "markdown")]
        output: String,
    },
    /// Validate a configuration file.
    CheckConfig {
        /// podmeter's configuration file; `-`: standard input.
        #[arg(required_unless_present_any = ["web_config", "nvidia_config", "env_file"])]
        file: Option<PathBuf>,
        /// A web configuration, with the certificates that it names.
        #[arg(long, value_name = "FILE")]
        web_config: Option<PathBuf>,
        /// A file of NVIDIA's plugin: prints podmeter's own for the same, what it offers and what differs.
        #[arg(long, value_name = "FILE")]
        nvidia_config: Option<PathBuf>,
        /// Variables of the plugin's container, which win over its file: lines NAME=VALUE.
        #[arg(long, value_name = "FILE")]
        env_file: Option<PathBuf>,
    },
    /// Check everything that the agent needs on this node, and a running agent; each failed check names the remedy.
    Doctor(Box<DoctorArguments>),
    /// Print whether the node's devices are healthy, for repair systems.
    ///
    /// Exit code 0: every device is healthy, or only marked; 1: one is not; 2: unknown, such as without an agent.
    Health(HealthArguments),
    /// Mark a device as unhealthy, so that the kubelet allocates it to no new pod.
    Mark(MarkArguments),
    /// Remove the mark of a device; its faults remain.
    Unmark(DeviceArguments),
    /// After a repair, remove what keeps a device unhealthy: its XIDs and the faults that have ended.
    ///
    /// For a repair that the driver does not report. The device's mark, and faults that the driver still reports, remain.
    ClearFaults(DeviceArguments),
    /// Close the driver for a driver upgrade, a GPU reset or a change of the MIG layout.
    ///
    /// Cordon the node and drain the pods that use GPUs first. Exit code 0: the library is unloaded and no device node is
    /// open; 1: the message names the call that hangs.
    Release(ReleaseArguments),
    /// Open the driver again before the end of its release.
    Resume(AdminSocket),
    /// Print the governance record of a node, from a running agent.
    Record(RecordArguments),
    /// Report past use by namespace, pod or device, from a running agent or from its journal.
    Usage(UsageArguments),
    /// Print the completions of a shell.
    Completion { shell: Shell },
    /// Write the man pages.
    #[command(hide = true)]
    Man { directory: PathBuf },
}

/// The running agent to query: at a URL, at its admin socket, or on this machine.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Agent")]
pub struct AgentAddress {
    #[command(flatten)]
    pub remote: RemoteAgent,
    #[command(flatten)]
    pub socket: AdminSocket,
}

/// An agent by its URL.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Agent")]
pub struct RemoteAgent {
    /// Address of an agent: `http://HOST:9410` or `https://HOST:9410`; takes precedence over the admin socket.
    #[arg(long, value_name = "URL")]
    pub url: Option<HttpUrl>,
    /// Certificates of the authorities that sign the server's certificate, as PEM [default: those of the system].
    #[arg(long, value_name = "FILE", requires = "url")]
    ca_file: Option<PathBuf>,
    /// Client certificate for a server that requires one, as PEM.
    #[arg(long, value_name = "FILE", requires_all = ["url", "key_file"])]
    cert_file: Option<PathBuf>,
    /// Private key of the client certificate, as PEM.
    #[arg(long, value_name = "FILE", requires = "cert_file")]
    key_file: Option<PathBuf>,
    /// User for a server that requires a password.
    #[arg(long, value_name = "NAME", requires_all = ["url", "password_file"])]
    user: Option<String>,
    /// File with the user's password.
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
}

/// The admin socket of an agent on this machine.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Agent")]
pub struct AdminSocket {
    /// Admin socket of the agent [default: /run/podmeter/podmeter.sock].
    #[arg(long, env = "PODMETER_ADMIN_SOCKET", value_name = "PATH")]
    admin_socket: Option<PathBuf>,
}

impl AgentAddress {
    /// Without a socket and URL, an agent on this machine.
    pub fn target(self) -> Result<AgentTarget, Failed> {
        Ok(match self.remote.target()? {
            Some(target) => target,
            None => self.socket.path().map_or(AgentTarget::Local, AgentTarget::Socket),
        })
    }
}

impl RemoteAgent {
    /// The target, with the certificates and the password in the files.
    pub fn target(self) -> Result<Option<AgentTarget>, Failed> {
        let Some(mut url) = self.url else { return Ok(None) };
        if !url.is_https() && (self.ca_file.is_some() || self.cert_file.is_some()) {
            return Err(misused(format!("--ca-file and --cert-file are for https: {url} is not encrypted")));
        }
        let own = self.cert_file.zip(self.key_file);
        let certificates = Certificates { authorities: self.ca_file, own };
        let password = self.user.as_deref().zip(self.password_file.as_deref());
        url.access = Access::read(url.is_https().then_some(&certificates), password).map_err(misused)?;
        Ok(Some(AgentTarget::Url(url)))
    }
}

impl AdminSocket {
    /// `None`: the default; also for `none`, which disables the socket in the agent's option of the same variable.
    pub fn path(self) -> Option<PathBuf> {
        self.admin_socket.filter(|socket| socket.as_os_str() != "none")
    }
}

#[derive(Clone, Debug, Args)]
pub struct TopArguments {
    /// Print plain text once, even in a terminal.
    #[arg(long)]
    pub once: bool,
    /// Interval between requests to the agent, 200ms to 1h.
    #[arg(long, default_value = "1s", value_name = "DUR", allow_hyphen_values = true, value_parser = within("200ms", "1h"))]
    pub interval: Duration,
    #[command(flatten)]
    pub agent: AgentAddress,
}

fn within(least: &'static str, most: &'static str) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| {
        let duration = text.parse()?;
        let is_within = (parsed(least)..=parsed(most)).contains(&duration);
        is_within.then_some(duration).ok_or_else(|| format!("must be {least} to {most}"))
    }
}

#[derive(Clone, Debug, Args)]
pub struct DemoArguments {
    /// Address of metrics and page: `IP:PORT`, `:PORT` (every IPv4 address), `localhost:PORT` or `unix:PATH`.
    #[arg(long, default_value = "127.0.0.1:9410", value_name = "ADDR")]
    pub listen: ListenAddress,
    #[arg(long, value_parser = <SimulatedProfile as FromStr>::from_str, help = profile_help())]
    pub profile: Option<SimulatedProfile>,
    /// Start and end pods.
    #[arg(long)]
    pub churn: bool,
    /// The same seed gives the same node.
    #[arg(long, default_value_t = 1, allow_hyphen_values = true, value_parser = whole_number::<u64>)]
    pub seed: u64,
    /// Repeat a scripted day of 150 s in which GPUs, driver and kubelet fail and recover; the log names each fault and where
    /// it shows.
    #[arg(long, conflicts_with = "hardware")]
    pub faults: bool,
    /// Speed-up factor for `demo --faults`; limits and intervals shrink by it.
    #[arg(long, hide = true, requires = "faults", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub fault_speed: u32,
    /// Source of devices: `nvml` uses this machine's GPUs with the simulated kubelet.
    #[arg(long, value_parser = ["simulated", "nvml"], default_value = "simulated")]
    pub hardware: String,
    /// Path of `libnvidia-ml.so.1` with `--hardware nvml`.
    #[arg(long, value_name = "PATH")]
    pub nvml_library: Option<PathBuf>,
    /// Interval between requests to the kubelet when nothing triggers one earlier.
    #[arg(long, default_value = "5s", value_name = "DUR", allow_hyphen_values = true)]
    pub refresh_interval: Duration,
    /// File for the true use of each device as JSON lines, to compare the metrics with.
    #[arg(long, value_name = "FILE")]
    pub ground_truth: Option<PathBuf>,
    /// Directory of the journal, which keeps for `podmeter usage` which container held which device.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Unix socket for local commands [default: in a temporary directory].
    #[arg(long, value_name = "PATH")]
    pub admin_socket: Option<PathBuf>,
}

fn profile_help() -> String {
    let (default, shared) = (SimulatedProfile::H100.name, SimulatedProfile::H100_TIME_SLICED.name);
    format!("{} [default: {default}; {shared} with --faults]", SimulatedProfile::names())
}

impl DemoArguments {
    pub fn settings(self) -> Result<DemoSettings, InvalidSettings> {
        let default_profile = if self.faults { SimulatedProfile::H100_TIME_SLICED } else { SimulatedProfile::H100 };
        let options = AgentOptions {
            listen: Some(vec![self.listen]),
            admin_socket: self.admin_socket,
            node_name: Some("demo".to_owned()),
            hardware: ValueEnum::from_str(&self.hardware, false).ok(),
            nvml_library: self.nvml_library,
            refresh_interval: Some(self.refresh_interval),
            pod_label: Some(vec!["app".to_owned()]),
            state_dir: self.state_dir,
            ..AgentOptions::default()
        };
        Ok(DemoSettings {
            agent: settings::resolve(options)?.settings,
            profile: self.profile.unwrap_or(default_profile),
            faults: self.faults.then_some(self.fault_speed),
            churn: self.churn,
            seed: self.seed,
            ground_truth: self.ground_truth,
        })
    }
}

#[derive(Clone, Debug, Args)]
pub struct MarkArguments {
    /// UUID of a GPU or MIG device, or index of a GPU.
    pub device: String,
    /// Why: one line, in the log, the page and the API.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Remove the mark after this time [default: it stays until `unmark` or a reboot of the node].
    #[arg(long = "for", value_name = "DUR", allow_hyphen_values = true)]
    pub duration: Option<Duration>,
    #[command(flatten)]
    pub socket: AdminSocket,
}

#[derive(Clone, Debug, Args)]
pub struct DeviceArguments {
    /// UUID of a GPU or MIG device, or index of a GPU.
    pub device: String,
    #[command(flatten)]
    pub socket: AdminSocket,
}

#[derive(Clone, Debug, Args)]
pub struct ReleaseArguments {
    /// How long, 1s to 24h; `resume` ends it earlier.
    #[arg(long = "for", value_name = "DUR", default_value = "10m", allow_hyphen_values = true, value_parser = within("1s", "24h"))]
    pub duration: Duration,
    #[command(flatten)]
    pub socket: AdminSocket,
}

#[derive(Clone, Debug, Args)]
pub struct DoctorArguments {
    #[arg(short, long, value_parser = ["text", "json"], default_value = "text")]
    pub output: String,
    /// With `--url`, only that agent is checked, not this machine.
    #[command(flatten)]
    pub remote: RemoteAgent,
    /// Check an agent at each address of the URL's host, such as a headless Service.
    #[arg(long, requires = "url", help_heading = "Agent")]
    pub each_address: bool,
    #[command(flatten)]
    pub agent: AgentOptions,
}

#[derive(Clone, Debug, Args)]
pub struct HealthArguments {
    /// `npd`: one line, as node-problem-detector's custom plugins print.
    #[arg(short, long, value_enum, default_value_t = HealthFormat::Text)]
    pub output: HealthFormat,
    /// The agent's condition file, in place of the agent.
    // No conflict with the admin socket: clap counts its variable, which the chart may set, as given.
    #[arg(long, value_name = "FILE", conflicts_with = "url")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub agent: AgentAddress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HealthFormat {
    Text,
    Json,
    Npd,
}

#[derive(Clone, Debug, Args)]
pub struct RecordArguments {
    #[arg(short, long, value_parser = ["json", "yaml"], default_value = "json")]
    pub output: String,
    /// Only the admin socket gives serial numbers.
    #[command(flatten)]
    pub agent: AgentAddress,
}

#[derive(Clone, Debug, Args)]
pub struct UsageArguments {
    /// Start: how long ago (24h), or a time in UTC (2026-01-31T12:00:00Z, 2026-01-31).
    #[arg(long, default_value = "24h", value_name = "WHEN", allow_hyphen_values = true)]
    pub since: String,
    /// End, in the same form [default: now].
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    pub until: Option<String>,
    /// Sums by namespace, pod or device.
    #[arg(long, value_enum, default_value_t = UsageBy::Namespace, conflicts_with = "pod")]
    pub by: UsageBy,
    /// List each holding of this pod, with its devices, in place of sums.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub pod: Option<String>,
    /// Price per hour of a whole GPU: `2.80`, or `PATTERN=2.80` of a model or MIG profile, such as `NVIDIA H100*=2.80`;
    /// may be repeated: the first that matches is the device's.
    #[arg(long, value_name = "PRICE", allow_hyphen_values = true)]
    pub price: Vec<Price>,
    /// The currency of the prices, such as EUR: a text for the titles.
    #[arg(long, value_name = "TEXT", requires = "price")]
    pub currency: Option<String>,
    #[arg(short, long, value_enum, default_value_t = UsageFormat::Table)]
    pub output: UsageFormat,
    /// Directory of the journal to read if no agent answers.
    #[arg(long, env = "PODMETER_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    #[command(flatten)]
    pub agent: AgentAddress,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum UsageBy {
    Namespace,
    Pod,
    Device,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum UsageFormat {
    Table,
    Csv,
    Json,
}
