//! Options made into the settings of the agent.
//!
//! In: options from flags, variables and a file. Out: validated settings, or what is wrong and where. Does not use:
//! what the settings do.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::options::{AgentOptions, OptionRow};
use super::value::Switch;
use crate::agent::{
    AgentSettings, EntryConfig, HardwareSource, JournalBounds, JournalSettings, LibrarySearch, PluginConfigError,
    PluginPlan, PodLabel, PodLabelError, ReadFile, Reloadable, WebConfig, WebConfigError, WebLimits, sha256,
};
use crate::commands::client::DEFAULT_SOCKET;
use crate::files;
use crate::hardware::HardwareSettings;
use crate::input::{self, SwitchOr};
use crate::kubelet::KubeletSettings;
use crate::kubelet::claim_files::ClaimDirectories;
use crate::kubelet::pods::PodsSettings;
use crate::plugin::host::cdi;
use crate::plugin::host::path_devices::HostRoots;
use crate::plugin::{HostPaths, PluginSettings};
use crate::processes::ProcessesSettings;
use crate::terminal::harmless;

/// The kubelet answers within milliseconds; on a loaded node within seconds.
const KUBELET_DEADLINE: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum InvalidSettings {
    #[error("{file}: {error}")]
    Unreadable { file: PathBuf, error: std::io::Error },
    #[error("{file}: {error}")]
    ConfigFile { file: PathBuf, error: String },
    #[error("{}{error}", file.as_deref().map(|file| format!("{}: ", file.display())).unwrap_or_default())]
    DevicePlugin { file: Option<PathBuf>, error: PluginConfigError },
    #[error(transparent)]
    WebConfig(#[from] WebConfigError),
    #[error("--pod-label (podLabels in a file): {0}")]
    PodLabel(#[from] PodLabelError),
    #[error("--{} {value}: must be {}", row.flag, row.range)]
    OutOfRange { row: &'static OptionRow, value: String },
}

/// Options and the settings made from them.
#[derive(Clone, Debug)]
pub struct ResolvedOptions {
    pub options: AgentOptions,
    pub settings: AgentSettings,
}

/// Reads the files that the options name.
pub fn resolve(options: AgentOptions) -> Result<ResolvedOptions, InvalidSettings> {
    resolve_with(options, files::read_named_text)
}

fn resolve_with(
    options: AgentOptions,
    read: fn(&Path) -> std::io::Result<String>,
) -> Result<ResolvedOptions, InvalidSettings> {
    let mut files = vec![];
    let options = match options.config.clone() {
        Some(file) => {
            let text = read(&file).map_err(|error| InvalidSettings::Unreadable { file: file.clone(), error })?;
            files.push(ReadFile { path: file.clone(), sha256: sha256(text.as_bytes()) });
            let in_file = parse(&text).and_then(|options| match options.check() {
                Ok(()) => Ok(options),
                Err((row, value)) => Err(format!("{} {value}: must be {}", row.key, row.range)),
            });
            options.or(in_file.map_err(|error| InvalidSettings::ConfigFile { file, error })?)
        }
        None => options,
    };
    let configuration = configure(options, files, read)?;
    configuration.settings.web_config.as_deref().map(check_web_config).transpose()?;
    Ok(configuration)
}

/// The options that the text of a configuration file sets. An error names the key and the line.
pub fn parse(text: &str) -> Result<AgentOptions, String> {
    let is_nvidias = text.lines().any(|line| line.starts_with("version:"));
    input::yaml(text).map(Option::unwrap_or_default).map_err(|error| match is_nvidias {
        true => {
            format!("a file of NVIDIA's plugin: give it with --nvidia-config (key devicePlugin.nvidiaConfig)\n{error}")
        }
        false => error,
    })
}

/// Checks the text of a configuration file without any other file: one that it names counts as unreadable, and the web
/// configuration is not checked.
pub fn check_text(text: &str) -> Result<AgentSettings, String> {
    let no_files = |_: &Path| Err(std::io::Error::other("other files are not read here"));
    let configuration = configure(parse(text)?, vec![], no_files);
    configuration.map(|configuration| configuration.settings).map_err(|error| error.to_string())
}

/// `read` gives the text of a file, which is added to `files`.
fn configure(
    options: AgentOptions,
    mut files: Vec<ReadFile>,
    read: impl FnMut(&Path) -> std::io::Result<String>,
) -> Result<ResolvedOptions, InvalidSettings> {
    let file = options.config.clone();
    options.check().map_err(|(row, value)| InvalidSettings::OutOfRange { row, value })?;
    let device_plugin =
        device_plugin(&options, &mut files, read).map_err(|error| InvalidSettings::DevicePlugin { file, error })?;
    let reloadable = Reloadable {
        refresh_interval: *options.refresh_interval(),
        retention: *options.retention(),
        series_limit: options.series_limit(),
        log_level: options.log_level().0,
        files,
        device_plugin,
    };
    let settings = settings(&options, reloadable)?;
    Ok(ResolvedOptions { options, settings })
}

/// What the device plugin offers; `None` while it is off. Checked even then.
fn device_plugin(
    options: &AgentOptions,
    files: &mut Vec<ReadFile>,
    mut read: impl FnMut(&Path) -> std::io::Result<String>,
) -> Result<Option<PluginPlan>, PluginConfigError> {
    let SwitchOr { on: in_file, mut section } = options.plugin_section.clone();
    let flag = options.device_plugin().map(|switch| switch == Switch::On);
    if flag.is_none() && in_file == Some(false) && !options.profiles.is_empty() {
        let problem = "profiles: none applies while devicePlugin is off; for nodes that no profile matches write \
                       devicePlugin: {resources: []}";
        return Err(PluginConfigError(problem.to_owned()));
    }
    section.nvidia_config = options.nvidia_config().or(section.nvidia_config);
    let plan = PluginPlan::resolve(&section, &options.profiles, |file| {
        let text = read(file)?;
        files.push(ReadFile { path: file.to_owned(), sha256: sha256(text.as_bytes()) });
        Ok(text)
    })?;
    // Simulated GPUs are offered to a kubelet only on request.
    let is_on = flag.or(in_file).unwrap_or(options.hardware() != HardwareSource::Simulated);
    Ok(is_on.then_some(plan))
}

/// The settings of each module.
fn settings(options: &AgentOptions, reloadable: Reloadable) -> Result<AgentSettings, PodLabelError> {
    let admin_socket = options.admin_socket().unwrap_or_else(|| DEFAULT_SOCKET.into());
    let node_name = harmless(&options.node_name().unwrap_or_else(node_name));
    let (root, proc_root, sys_root) = (options.kubelet_root(), options.proc_root(), options.sys_root());
    let pod_resources_socket = options.pod_resources_socket();
    let device_plugin_directory = options.device_plugin_dir().unwrap_or_else(|| root.join("device-plugins"));
    let pod_labels = PodLabel::all(&options.pod_label().unwrap_or_default())?;
    Ok(AgentSettings {
        listen: options.listen(),
        probe_listen: options.probe_listen(),
        web_config: options.web_config(),
        web_limits: WebLimits {
            connections: options.web_max_connections(),
            read_timeout: *options.web_read_timeout(),
            write_timeout: *options.web_write_timeout(),
            header_bytes: options.web_max_header_bytes(),
        },
        admin_socket: (admin_socket.as_os_str() != "none").then_some(admin_socket),
        // `none` counts as given explicitly, too.
        admin_socket_required: options.admin_socket.is_some(),
        kubelet: KubeletSettings {
            pod_resources_socket: pod_resources_socket.unwrap_or_else(|| root.join("pod-resources/kubelet.sock")),
            device_plugin_directory: device_plugin_directory.clone(),
            claim_directories: ClaimDirectories {
                plugins: root.join("plugins"),
                cdi: "/var/run/cdi".into(),
                proc: proc_root.clone(),
            },
            node_name: node_name.clone(),
            deadline: KUBELET_DEADLINE,
        },
        hardware: options.hardware(),
        nvml: LibrarySearch { library: options.nvml_library(), driver_roots: options.driver_root() },
        nvml_call_durations: options.nvml_call_durations(),
        devices: HardwareSettings {
            sample_interval: *options.sample_interval(),
            proc_root: proc_root.clone(),
            sys_root: sys_root.clone(),
            ignored_gpus: options.ignore_gpu().into_iter().flatten().collect(),
            ..HardwareSettings::default()
        },
        plugin: PluginSettings {
            directory: device_plugin_directory,
            node_name: node_name.clone(),
            host_paths: HostPaths {
                roots: HostRoots { host: "/".into(), dev: options.dev_root(), sys: sys_root },
                proc: proc_root.clone(),
                cdi: cdi::DIRECTORIES.map(PathBuf::from).to_vec(),
            },
        },
        node_name,
        pods: PodsSettings {
            socket: root.join("pods-api/pods-api.sock"),
            labels: pod_labels.iter().map(|label| label.key.as_str().into()).collect(),
            logs_root: options.pod_logs_root(),
        },
        processes: ProcessesSettings { mode: options.process_attribution(), proc_root, pod_labels },
        dcgm_generation: options.dcgm_generation(),
        grafana_url: options.grafana_url().0,
        log_format: options.log_format(),
        health: options.health.clone(),
        condition_file: options.condition_file().0,
        journal: options.state_dir().map(|directory| JournalSettings {
            directory,
            bounds: JournalBounds { bytes: options.state_max_size().0, age: *options.state_max_age() },
        }),
        reloadable,
    })
}

/// `podmeter check-config`: what has no effect, each a sentence.
pub fn check_file(file: &Path) -> Result<Vec<String>, InvalidSettings> {
    let options = AgentOptions { config: Some(file.to_owned()), ..AgentOptions::default() };
    let resolved = resolve_with(options, files::read_given_text)?;
    let plan = resolved.settings.reloadable.device_plugin.unwrap_or_default();
    let warnings: BTreeSet<String> = plan.all_entries().flat_map(EntryConfig::warnings).collect();
    Ok(warnings.into_iter().collect())
}

/// `podmeter check-config --web-config`.
pub fn check_web_config(file: &Path) -> Result<Option<&'static str>, WebConfigError> {
    WebConfig::load(file).map(|config| config.warning())
}

fn node_name() -> String {
    let variable = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    variable.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Size;
    use crate::processes::ProcessAttribution;

    fn settings(options: AgentOptions) -> AgentSettings {
        resolve(options).expect("valid").settings
    }

    fn error(options: AgentOptions) -> String {
        resolve(options).expect_err("invalid").to_string()
    }

    fn seconds(seconds: u64) -> Option<input::Duration> {
        Some(input::Duration(Duration::from_secs(seconds)))
    }

    /// A configuration file with this text.
    fn file(text: &str) -> (tempfile::TempDir, AgentOptions) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("podmeter.yaml");
        std::fs::write(&file, text).expect("written");
        (directory, AgentOptions { config: Some(file), ..AgentOptions::default() })
    }

    #[test]
    fn the_device_plugin_is_a_switch_or_a_section() {
        let plugin = |text: &str| parse(text).expect("parses").plugin_section;
        let text = "devicePlugin:\n  resources:\n    - kind: simulated\n      name: example.com/x\n      devices: 2\n";
        let SwitchOr { on, section } = plugin(text);
        assert_eq!((on, section.resources.map(|resources| resources.len())), (None, Some(1)));
        // Helm writes `on` and `off` as booleans.
        for (text, is_on) in [("on", true), ("true", true), ("off", false), ("false", false)] {
            let text = format!("processAttribution: {text}\ndevicePlugin: {text}\n");
            assert_eq!(plugin(&text).on, Some(is_on), "{text}");
            let attribution = if is_on { ProcessAttribution::On } else { ProcessAttribution::Off };
            assert_eq!(parse(&text).expect("parses").process_attribution, Some(attribution));
        }
    }

    #[test]
    fn an_error_of_a_file_names_the_line_and_what_is_accepted() {
        for (text, parts) in [
            ("devicePlugin: maybe\n", ["maybe", "off"]),
            ("processAttribution: maybe\n", ["maybe", "auto, on, off"]),
            ("webMaxConnections: many\n", ["line 1 column 20", "\"many\": must be a whole number"]),
            ("retention: -1s\n", ["line 1 column 12", "\"-1s\": must be a duration, such as 30s"]),
            ("stateMaxSize: big\n", ["line 1 column 15", "\"big\": must be a size, such as 64MiB"]),
            (
                "devicePlugin:\n  resources:\n  - kind: nvidia\n    sharing: {timeSlicing: {}, mps: {}}\n",
                ["line 4", "timeSlicing and mps exclude each other; give one of them"],
            ),
            ("devicePlugin:\n  resource: []\n", ["line 2", "`resource`: did you mean `resources`?"]),
            ("devicePlugin:\n  resources:\n    - kind: gpu\n", ["gpu", "nvidia"]),
            ("health:\n  holdDwn: 5s\n", ["line 2", "`holdDwn`: did you mean `holdDown`?"]),
            ("refreshInterval: soon\n", ["soon", "line 1"]),
            ("hardware: gpu\n", ["gpu", "line 1"]),
            ("listen: [\"nowhere\"]\n", ["nowhere", "line 1"]),
            ("version: v1\nflags: {}\n", ["unknown key `version`", "--nvidia-config"]),
        ] {
            let error = parse(text).expect_err("must not parse");
            for part in parts {
                assert!(error.contains(part), "{part:?} in {error}");
            }
        }
    }

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let (_directory, options) = file("refreshInterval: 7s\nretention: 9s\nkubeletRoot: /k\n");
        let settings = settings(AgentOptions { retention: seconds(11), ..options });
        assert_eq!(settings.reloadable.retention, Duration::from_secs(11));
        assert_eq!(settings.reloadable.refresh_interval, Duration::from_secs(7));
        assert_eq!(settings.kubelet.pod_resources_socket, Path::new("/k/pod-resources/kubelet.sock"));
        assert_eq!(settings.devices.sample_interval, Duration::from_secs(10));
    }

    #[test]
    fn changed_options_that_need_a_restart_are_named() {
        let read = |text: &str| resolve(file(text).1).expect("valid").options;
        let before = read("refreshInterval: 7s\nwebReadTimeout: 60s\n");
        let none: [&str; 0] = [];
        for same in
            ["refreshInterval: 9s\nretention: 9s\nwebReadTimeout: 1m\n", "webReadTimeout: 60s\nprocRoot: /proc\n"]
        {
            assert_eq!(before.restart_needed_for(&read(same)), none, "{same}");
        }
        let after = read("kubeletRoot: /k\nsampleInterval: 2s\npodLabels: [app]\nhealth: {holdDown: 5s}\n");
        let keys = ["kubeletRoot", "podLabels", "webReadTimeout", "sampleInterval", "health"];
        assert_eq!(before.restart_needed_for(&after), keys);
    }

    #[test]
    fn the_defaults_are_those_of_the_modules() {
        let defaults = settings(AgentOptions::default());
        assert_eq!(defaults.web_limits, WebLimits::default());
        assert_eq!(defaults.journal, None);
        let journal = settings(AgentOptions { state_dir: Some("/s".into()), ..AgentOptions::default() }).journal;
        let bounds = journal.expect("a journal").bounds;
        assert_eq!((bounds.bytes, bounds.age.as_secs()), (64 << 20, 90 * 86_400));
    }

    #[test]
    fn a_node_name_controls_no_terminal_and_no_page() {
        let named = AgentOptions { node_name: Some("a\u{1b}[2J\u{202e}b".to_owned()), ..AgentOptions::default() };
        assert_eq!(settings(named).node_name, "a\u{fffd}[2J\u{fffd}b");
    }

    #[test]
    fn pod_labels_that_give_the_same_metric_label_are_refused() {
        let (_directory, options) = file("podLabels: [app.name, app-name]\nprocessAttribution: off\n");
        let problem = error(options.clone());
        assert!(problem.starts_with("--pod-label (podLabels in a file): \"app-name\" and \"app.name\""), "{problem}");
        let settings = settings(AgentOptions { pod_label: Some(vec!["team".into()]), ..options });
        assert_eq!(settings.processes.pod_labels[0].name, "label_team");
        assert_eq!(settings.processes.mode, ProcessAttribution::Off);
    }

    #[test]
    fn values_out_of_range_name_their_flag_and_the_range() {
        let zero = AgentOptions { refresh_interval: seconds(0), ..AgentOptions::default() };
        assert_eq!(error(zero), "--refresh-interval 0s: must be 1s to 10m");
        let few = AgentOptions { series_limit: Some(5), ..AgentOptions::default() };
        assert_eq!(error(few), "--series-limit 5: must be 100 to 1000000");
        let small = AgentOptions { state_max_size: Some(Size(1 << 20)), ..AgentOptions::default() };
        assert_eq!(error(small), "--state-max-size 1MiB: must be 4MiB to 16GiB");
        let (_directory, options) = file("refreshInterval: 90m\n");
        let problem = error(options);
        assert!(problem.ends_with("podmeter.yaml: refreshInterval 1h30m: must be 1s to 10m"), "{problem}");
        for level in ["a=b=c", "loud", "info,podmeter"] {
            let (_directory, options) = file(&format!("logLevel: {level}\n"));
            assert!(error(options).contains(&format!("\"{level}\": must be error")), "{level}");
        }
        for name in ["\"\"", "/", "health.json", "/run/podmeter/"] {
            let (_directory, options) = file(&format!("conditionFile: {name}\n"));
            assert!(error(options).contains("must be none or the absolute path of a file"), "{name}");
        }
        for (name, path) in [("none", None), ("/run/health.json", Some(Path::new("/run/health.json")))] {
            let (_directory, options) = file(&format!("conditionFile: {name}\n"));
            assert_eq!(settings(options).condition_file.as_deref(), path);
        }
        let (_directory, options) = file("grafanaUrl: none\n");
        assert_eq!(settings(options).grafana_url, None);
        let missing = AgentOptions { config: Some("/missing.yaml".into()), ..AgentOptions::default() };
        assert!(error(missing).contains("/missing.yaml"));
    }
}
