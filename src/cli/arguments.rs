use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::settings::{journal_settings, library_search};
use crate::agent::{
    DemoSettings, HardwareSource, HealthConfig, ListenAddress, LogFormat, PluginConfig, ProcessAttribution, Profile,
    Size,
};
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
    Agent(Box<AgentArguments>),
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

/// Every flag is also the environment variable `PODMETER_<FLAG>` and a key of the file given by `--config`.
/// A flag wins over a variable, a variable over the file.
#[derive(Clone, Debug, Default, Args)]
pub struct AgentArguments {
    /// YAML file with the same settings (`refreshInterval: 5s`).
    #[arg(long, env = "PODMETER_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Metrics and page: `IP:PORT` or `unix:PATH`; repeatable [default: 0.0.0.0:9410].
    #[arg(long, env = "PODMETER_LISTEN", value_name = "ADDR", value_delimiter = ',')]
    pub listen: Vec<ListenAddress>,
    /// Answers the kubelet's probes, `/-/healthy` and `/-/ready`, here alone without TLS and password [default: nowhere].
    #[arg(long, env = "PODMETER_PROBE_LISTEN", value_name = "ADDR")]
    pub probe_listen: Option<ListenAddress>,
    /// TLS, client certificates, passwords and headers for what `--listen` serves: a web configuration file as Prometheus'
    /// exporters have; re-read when it or its certificates change.
    #[arg(long, env = "PODMETER_WEB_CONFIG", value_name = "FILE")]
    pub web_config: Option<PathBuf>,
    /// Connections to each listener at once; past it the one that is missed least is closed [default: 64].
    #[arg(long, env = "PODMETER_WEB_MAX_CONNECTIONS", value_name = "N")]
    pub web_max_connections: Option<usize>,
    /// For a request's head to arrive, and for the next one on a kept connection [default: 65s].
    #[arg(long, env = "PODMETER_WEB_READ_TIMEOUT", value_name = "DUR", value_parser = humantime::parse_duration)]
    pub web_read_timeout: Option<Duration>,
    /// For an answer to be taken by a client that is slow to read [default: 10s].
    #[arg(long, env = "PODMETER_WEB_WRITE_TIMEOUT", value_name = "DUR", value_parser = humantime::parse_duration)]
    pub web_write_timeout: Option<Duration>,
    /// Of a request's line and headers [default: 32768].
    #[arg(long, env = "PODMETER_WEB_MAX_HEADER_BYTES", value_name = "N")]
    pub web_max_header_bytes: Option<usize>,
    /// Shown on the page, never a metric label [default: $NODE_NAME, else the host name].
    #[arg(long, env = "PODMETER_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,
    /// The kubelet's root directory [default: /var/lib/kubelet].
    #[arg(long, env = "PODMETER_KUBELET_ROOT", value_name = "DIR")]
    pub kubelet_root: Option<PathBuf>,
    /// [default: pod-resources/kubelet.sock under the kubelet root].
    #[arg(long, env = "PODMETER_POD_RESOURCES_SOCKET", value_name = "PATH")]
    pub pod_resources_socket: Option<PathBuf>,
    /// [default: device-plugins under the kubelet root].
    #[arg(long, env = "PODMETER_DEVICE_PLUGIN_DIR", value_name = "DIR")]
    pub device_plugin_dir: Option<PathBuf>,
    /// How often the kubelet is asked when nothing triggers it earlier [default: 5s].
    #[arg(long, env = "PODMETER_REFRESH_INTERVAL", value_name = "DUR", value_parser = humantime::parse_duration)]
    pub refresh_interval: Option<Duration>,
    /// Where device readings come from [default: nvml].
    #[arg(long, env = "PODMETER_HARDWARE", value_enum)]
    pub hardware: Option<HardwareSource>,
    /// `libnvidia-ml.so.1` [default: the loader's path, then the driver roots].
    #[arg(long, env = "PODMETER_NVML_LIBRARY", value_name = "PATH")]
    pub nvml_library: Option<PathBuf>,
    /// Show how long each call of the driver takes, as a histogram by call.
    #[arg(
        long,
        env = "PODMETER_NVML_CALL_DURATIONS",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub nvml_call_durations: Option<bool>,
    /// Where a host or containerized driver may live; repeatable
    /// [default: /, /run/nvidia/driver, /home/kubernetes/bin/nvidia].
    #[arg(long, env = "PODMETER_DRIVER_ROOT", value_name = "DIR", value_delimiter = ',')]
    pub driver_root: Vec<PathBuf>,
    /// Fast tier of device sampling [default: 1s].
    #[arg(long, env = "PODMETER_SAMPLE_INTERVAL", value_name = "DUR", value_parser = humantime::parse_duration)]
    pub sample_interval: Option<Duration>,
    /// Where the host's `/proc` is seen [default: /proc].
    #[arg(long, env = "PODMETER_PROC_ROOT", value_name = "DIR")]
    pub proc_root: Option<PathBuf>,
    /// Where the host's `/sys` is seen [default: /sys].
    #[arg(long, env = "PODMETER_SYS_ROOT", value_name = "DIR")]
    pub sys_root: Option<PathBuf>,
    /// Where the host's `/dev` is seen; containers are still given the nodes of `/dev` [default: /dev].
    #[arg(long, env = "PODMETER_DEV_ROOT", value_name = "DIR")]
    pub dev_root: Option<PathBuf>,
    /// Shares of a device by process; `auto` = when host process ids are visible [default: auto].
    #[arg(long, env = "PODMETER_PROCESS_ATTRIBUTION", value_enum, value_name = "auto|on|off")]
    pub process_attribution: Option<ProcessAttribution>,
    /// The kubelet's log directories, which name pods by their UIDs [default: /var/log/pods].
    #[arg(long, env = "PODMETER_POD_LOGS_ROOT", value_name = "DIR")]
    pub pod_logs_root: Option<PathBuf>,
    /// A pod label to show on `podmeter_pod_info`, where the kubelet's Pods API is served; repeatable.
    #[arg(long, env = "PODMETER_POD_LABEL", value_name = "KEY", value_delimiter = ',')]
    pub pod_label: Vec<String>,
    /// The bundled device plugin [default: on; off for simulated hardware].
    #[arg(long, env = "PODMETER_DEVICE_PLUGIN", value_enum, value_name = "on|off")]
    pub device_plugin: Option<Switch>,
    /// A configuration file of NVIDIA's device plugin (`version: v1`), in place of `devicePlugin.resources` of kind
    /// nvidia.
    #[arg(long, env = "PODMETER_NVIDIA_CONFIG", value_name = "FILE")]
    pub nvidia_config: Option<PathBuf>,
    /// The file's section `devicePlugin`, which no flag spells out.
    #[arg(skip)]
    pub plugin_config: PluginConfig,
    /// The file's section `health`, which no flag spells out.
    #[arg(skip)]
    pub health: HealthConfig,
    /// Keep a journal of who held which device in this directory, for `podmeter usage` [default: none].
    #[arg(long, env = "PODMETER_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// How large the journal may become; past it what ended longest ago goes [default: 64MiB].
    #[arg(long, env = "PODMETER_STATE_MAX_SIZE", value_name = "SIZE")]
    pub state_max_size: Option<Size>,
    /// How long the journal remembers what has ended [default: 90days].
    #[arg(long, env = "PODMETER_STATE_MAX_AGE", value_name = "DUR", value_parser = humantime::parse_duration)]
    pub state_max_age: Option<Duration>,
    /// Local HTTP for this binary's own clients, mode 0600; `none` for none [default: /run/podmeter/podmeter.sock].
    #[arg(long, env = "PODMETER_ADMIN_SOCKET", value_name = "PATH")]
    pub admin_socket: Option<PathBuf>,
    /// How long an ended container's counters stay on the page [default: 5m].
    #[arg(long, env = "PODMETER_RETENTION", value_name = "DUR", value_parser = humantime::parse_duration)]
    pub retention: Option<Duration>,
    /// How many series containers may have on the page; past it the longest ended go first, then the youngest
    /// [default: 20000].
    #[arg(long, env = "PODMETER_SERIES_LIMIT", value_name = "N")]
    pub series_limit: Option<usize>,
    /// [default: text].
    #[arg(long, env = "PODMETER_LOG_FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,
    /// `info`, or a filter such as `info,podmeter::kubelet=debug` [default: info].
    #[arg(long, env = "PODMETER_LOG_LEVEL", value_name = "FILTER")]
    pub log_level: Option<String>,
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
    #[arg(long, default_value = "5s", value_name = "DUR", value_parser = humantime::parse_duration)]
    pub refresh_interval: Duration,
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
    #[must_use]
    pub fn settings(&self) -> DemoSettings {
        let usual = if self.faults { Profile::H100TimeSliced } else { Profile::H100 };
        DemoSettings {
            listen: self.listen.clone(),
            profile: self.profile.unwrap_or(usual),
            faults: self.faults.then_some(self.fault_speed),
            churn: self.churn,
            seed: self.seed,
            hardware: self.hardware,
            nvml: library_search(self.nvml_library.clone(), vec![]),
            refresh_interval: self.refresh_interval,
            ground_truth: self.ground_truth.clone(),
            admin_socket: self.admin_socket.clone(),
            journal: self.state_dir.as_ref().map(|directory| journal_settings(directory, None, None)),
        }
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
    pub agent: AgentArguments,
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
    pub driver_root: Vec<PathBuf>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum MetricsFormat {
    Markdown,
    Json,
}
