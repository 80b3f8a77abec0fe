use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::options::AgentOptions;
use super::settings::{self, InvalidSettings};
use crate::agent::{DemoSettings, HardwareSource, ListenAddress, Profile};
use crate::client::{HttpUrl, Target};

/// Hands out accelerators on a Kubernetes node and tells truthfully who uses them.
#[derive(Debug, Parser)]
#[command(name = "podmeter", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run on a node: who holds which device, and what the device does, for Prometheus.
    Agent(Box<AgentOptions>),
    /// A whole simulated node in this one process: kubelet, GPUs and workloads.
    Demo(DemoArguments),
    /// Devices and the containers on them, live in a terminal; elsewhere once, as text.
    Top(TopArguments),
    /// Print the metric catalogue.
    Metrics {
        #[arg(short, long, value_enum, default_value_t = MetricsFormat::Markdown)]
        output: MetricsFormat,
    },
    /// Validate a configuration file.
    CheckConfig {
        #[arg(required_unless_present = "web_config")]
        file: Option<PathBuf>,
        /// A web configuration, with the certificates that it names.
        #[arg(long, value_name = "FILE")]
        web_config: Option<PathBuf>,
    },
    /// Look at everything that the agent needs on this node, and at the agent where one runs, and say what to do.
    Doctor(Box<DoctorArguments>),
    /// The governance record of this node, from the agent that runs here.
    Record(RecordArguments),
    /// Who used how much of which device, and which hardware a pod had: from a running agent, or from its journal.
    Usage(UsageArguments),
    /// Call every NVML function that the agent uses on every GPU, and report support, latency and errors.
    ProbeNvml(ProbeArguments),
    /// Print a shell's completions of this command line.
    Completions { shell: Shell },
}

/// Where a running agent is asked.
#[derive(Clone, Debug, Default, Args)]
pub struct AgentAddress {
    /// An agent's port, here or elsewhere: `http://HOST:9410`; wins over the socket.
    #[arg(long, value_name = "URL")]
    pub url: Option<HttpUrl>,
    /// The agent's admin socket [default: /run/podmeter/podmeter.sock, and where nobody can be reached there,
    /// http://127.0.0.1:9410].
    #[arg(long, env = "PODMETER_ADMIN_SOCKET", value_name = "PATH")]
    pub admin_socket: Option<PathBuf>,
}

impl AgentAddress {
    #[must_use]
    pub fn target(self) -> Target {
        match (self.url, self.admin_socket) {
            (Some(url), _) => Target::Url(url),
            (None, Some(socket)) if socket.as_os_str() != "none" => Target::Socket(socket),
            (None, _) => Target::Local,
        }
    }
}

#[derive(Clone, Debug, Args)]
pub struct TopArguments {
    #[command(flatten)]
    pub agent: AgentAddress,
    /// Print plain text once, also in a terminal.
    #[arg(long)]
    pub once: bool,
    /// How often the agent is asked, 200ms to 1h.
    #[arg(long, default_value = "1s", value_name = "DUR", value_parser = poll_interval)]
    pub interval: Duration,
}

fn poll_interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    let range = Duration::from_millis(200)..=Duration::from_secs(3600);
    if range.contains(&interval) { Ok(interval) } else { Err("must be 200ms to 1h".to_owned()) }
}

#[derive(Clone, Debug, Args)]
pub struct DemoArguments {
    #[arg(long, default_value = "127.0.0.1:9410", value_name = "ADDR")]
    pub listen: ListenAddress,
    /// 8xh100, 8xh100-timesliced, 8xh100-mig, 8xa100 or empty [default: 8xh100; 8xh100-timesliced with --faults].
    #[arg(long, value_parser = Profile::from_str)]
    pub profile: Option<Profile>,
    /// Pods come and go.
    #[arg(long)]
    pub churn: bool,
    /// The same seed gives the same node.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A day of two and a half minutes, again and again, on which GPUs break and recover, the driver and the kubelet go and
    /// come back; the log says what is simulated and where to look.
    #[arg(long, conflicts_with = "hardware")]
    pub faults: bool,
    /// Play that day so many times as fast, and let everything that waits wait so much shorter.
    #[arg(long, hide = true, requires = "faults", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20))]
    pub fault_speed: u32,
    /// Where the devices come from: `nvml` puts the simulated kubelet on this machine's real GPUs.
    #[arg(long, value_enum, default_value = "simulated")]
    pub hardware: HardwareSource,
    /// With `--hardware nvml`: see `podmeter agent --help`.
    #[arg(long, value_name = "PATH")]
    pub nvml_library: Option<PathBuf>,
    /// As of the agent.
    #[arg(long, default_value = "5s", value_name = "DUR")]
    pub refresh_interval: humantime::Duration,
    /// Write what the simulation really did to this file, as JSON lines, to compare the metrics with.
    #[arg(long, value_name = "FILE")]
    pub ground_truth: Option<PathBuf>,
    /// Keep a journal of who held which device in this directory, for `podmeter usage`.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// As of the agent; by default in a directory of the demo's own, which goes with it.
    #[arg(long, value_name = "PATH")]
    pub admin_socket: Option<PathBuf>,
}

impl DemoArguments {
    pub fn settings(self) -> Result<DemoSettings, InvalidSettings> {
        let default_profile = if self.faults { Profile::H100TimeSliced } else { Profile::H100 };
        let options = AgentOptions {
            listen: Some(vec![self.listen]),
            admin_socket: self.admin_socket,
            node_name: Some("demo".to_owned()),
            hardware: Some(self.hardware),
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
pub struct DoctorArguments {
    /// Ask the agent there, and not at its admin socket: `http://HOST:PORT`.
    #[arg(long, value_name = "URL")]
    pub url: Option<HttpUrl>,
    #[arg(short, long, value_enum, default_value_t = DoctorFormat::Text)]
    pub output: DoctorFormat,
    #[command(flatten)]
    pub agent: AgentOptions,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum DoctorFormat {
    Text,
    Json,
}

#[derive(Clone, Debug, Args)]
pub struct RecordArguments {
    /// As of the agent: names the admin socket.
    #[arg(long, env = "PODMETER_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Serial numbers are told on the admin socket alone.
    #[command(flatten)]
    pub agent: AgentAddress,
    #[arg(short, long, value_enum, default_value_t = RecordFormat::Json)]
    pub output: RecordFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RecordFormat {
    Json,
    Yaml,
}

#[derive(Clone, Debug, Args)]
pub struct UsageArguments {
    /// How long ago (24h), or a time in UTC (2026-01-31T12:00:00Z, 2026-01-31).
    #[arg(long, default_value = "24h", value_name = "WHEN")]
    pub since: String,
    /// Likewise [default: now].
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,
    #[arg(long, value_enum, default_value_t = UsageBy::Namespace, conflicts_with = "pod")]
    pub by: UsageBy,
    /// Each holding of this pod instead of sums: which devices it had, and what became of them.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub pod: Option<String>,
    #[arg(short, long, value_enum, default_value_t = UsageFormat::Table)]
    pub output: UsageFormat,
    #[command(flatten)]
    pub agent: AgentAddress,
    /// Read the journal in this directory if no agent answers.
    #[arg(long, env = "PODMETER_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
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

#[derive(Clone, Debug, Args)]
pub struct ProbeArguments {
    #[arg(long, value_name = "PATH")]
    pub nvml_library: Option<PathBuf>,
    #[arg(long, value_name = "DIR", value_delimiter = ',')]
    pub driver_root: Option<Vec<PathBuf>>,
    /// Passes over each GPU, one sample interval apart.
    #[arg(long, default_value_t = 20)]
    pub passes: u32,
    /// How long the driver may take to be opened, to list its GPUs, and for the passes over each.
    #[arg(long, default_value = "1m", value_name = "DUR", value_parser = humantime::parse_duration)]
    pub deadline: Duration,
    #[arg(short, long, value_enum, default_value_t = ProbeFormat::Json)]
    pub output: ProbeFormat,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ProbeFormat {
    Json,
    Text,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum MetricsFormat {
    Markdown,
    Json,
}
