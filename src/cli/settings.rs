use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing_subscriber::filter::{LevelFilter, Targets};

use super::arguments::{AgentArguments, Switch};
use super::config_file::{self, ConfigFileError};
use crate::agent::{
    HardwareSource, JournalBounds, JournalSettings, LibrarySearch, ListenAddress, LogFormat, PluginConfigError,
    PodLabel, PodLabelError, ReadFile, Reloadable, Settings, Size, WebConfig, WebConfigError, WebLimits, sha256,
};

/// 0.0.0.0:9410
const EVERYWHERE: ListenAddress = ListenAddress::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 9410));
/// Its own answers take milliseconds; a loaded node may need seconds.
const KUBELET_DEADLINE: Duration = Duration::from_secs(5);

/// Many times what the busiest node has: eight GPUs in ten slots each make about 800.
const SERIES_LIMIT: usize = 20_000;

#[derive(Debug, thiserror::Error)]
pub enum InvalidSettings {
    #[error(transparent)]
    ConfigFile(#[from] ConfigFileError),
    #[error("{}{error}", file.as_deref().map(|file| format!("{}: ", file.display())).unwrap_or_default())]
    DevicePlugin { file: Option<PathBuf>, error: PluginConfigError },
    #[error(transparent)]
    WebConfig(#[from] WebConfigError),
    #[error("--pod-label (podLabels in a file): {0}")]
    PodLabel(#[from] PodLabelError),
    #[error("--{flag} ({} {value}: {problem}", place(flag, file.as_deref()))]
    Value { flag: &'static str, file: Option<PathBuf>, value: String, problem: &'static str },
}

/// The flag's other name: `refreshInterval in FILE)`.
fn place(flag: &str, file: Option<&Path>) -> String {
    let mut key = String::new();
    for (number, word) in flag.split('-').enumerate() {
        let capital = if number == 0 { word.get(..1).map(str::to_owned) } else { word.get(..1).map(str::to_uppercase) };
        key.push_str(&capital.unwrap_or_default());
        key.push_str(word.get(1..).unwrap_or_default());
    }
    file.map_or_else(|| format!("{key} in a file)"), |file| format!("{key} in {})", file.display()))
}

/// Flags and variables, completed from the file that they name, with every default filled in.
pub fn resolve(arguments: AgentArguments) -> Result<Settings, InvalidSettings> {
    let mut files = vec![];
    let arguments = config_file::complete(arguments, &mut files)?;
    let settings = settings(arguments, files, |file| std::fs::read_to_string(file))?;
    settings.web_config.as_deref().map(check_web_config).transpose()?;
    Ok(settings)
}

/// What `podmeter check-config` says of a file with this text, as far as no other file is needed: one that it names counts as
/// not readable, and the web configuration is not looked at.
pub fn check_text(text: &str) -> Result<Settings, String> {
    let arguments = config_file::arguments_of(text)?;
    let no_files = |_: &Path| Err(std::io::Error::other("other files are not read here"));
    settings(arguments, vec![], no_files).map_err(|error| error.to_string())
}

/// `read` gives the text of a file, which is added to `files`.
fn settings(
    arguments: AgentArguments,
    mut files: Vec<ReadFile>,
    read: impl FnOnce(&Path) -> std::io::Result<String>,
) -> Result<Settings, InvalidSettings> {
    let kubelet_root = arguments.kubelet_root.unwrap_or_else(|| "/var/lib/kubelet".into());
    let admin_socket_required = arguments.admin_socket.is_some();
    let admin_socket = arguments.admin_socket.unwrap_or_else(|| "/run/podmeter/podmeter.sock".into());
    let socket = || kubelet_root.join("pod-resources/kubelet.sock");
    let plugins = || kubelet_root.join("device-plugins");
    let mut plugin_config = arguments.plugin_config;
    plugin_config.nvidia_config = arguments.nvidia_config.or(plugin_config.nvidia_config);
    // Said even while the plugin is off: the section is wrong either way.
    let offered = plugin_config.resolve(|file| {
        let text = read(file)?;
        files.push(ReadFile { path: file.to_owned(), sha256: sha256(text.as_bytes()) });
        Ok(text)
    });
    let offered = offered.map_err(|error| InvalidSettings::DevicePlugin { file: arguments.config.clone(), error })?;
    let hardware = arguments.hardware.unwrap_or(HardwareSource::Nvml);
    let device_plugin = match arguments.device_plugin {
        Some(Switch::Off) => None,
        // GPUs that are not there are no kubelet's to give, unless somebody insists.
        None if hardware == HardwareSource::Simulated => None,
        _ => Some(offered),
    };
    let usual_limits = WebLimits::default();
    let settings = Settings {
        listen: if arguments.listen.is_empty() { vec![EVERYWHERE] } else { arguments.listen },
        probe_listen: arguments.probe_listen,
        web_config: arguments.web_config,
        web_limits: WebLimits {
            connections: arguments.web_max_connections.unwrap_or(usual_limits.connections),
            read_timeout: arguments.web_read_timeout.unwrap_or(usual_limits.read_timeout),
            write_timeout: arguments.web_write_timeout.unwrap_or(usual_limits.write_timeout),
            header_bytes: arguments.web_max_header_bytes.unwrap_or(usual_limits.header_bytes),
        },
        admin_socket: (admin_socket.as_os_str() != "none").then_some(admin_socket),
        admin_socket_required,
        node_name: arguments.node_name.unwrap_or_else(node_name),
        pod_resources_socket: arguments.pod_resources_socket.unwrap_or_else(socket),
        device_plugin_directory: arguments.device_plugin_dir.unwrap_or_else(plugins),
        kubelet_deadline: KUBELET_DEADLINE,
        hardware,
        nvml: library_search(arguments.nvml_library, arguments.driver_root),
        nvml_call_durations: arguments.nvml_call_durations.unwrap_or(false),
        sample_interval: arguments.sample_interval.unwrap_or(Duration::from_secs(1)),
        hardware_pace: 1,
        proc_root: arguments.proc_root.unwrap_or_else(|| "/proc".into()),
        sys_root: arguments.sys_root.unwrap_or_else(|| "/sys".into()),
        dev_root: arguments.dev_root.unwrap_or_else(|| "/dev".into()),
        pods_api_socket: kubelet_root.join("pods-api/pods-api.sock"),
        process_attribution: arguments.process_attribution.unwrap_or_default(),
        pod_logs_root: arguments.pod_logs_root.unwrap_or_else(|| "/var/log/pods".into()),
        pod_labels: PodLabel::all(&arguments.pod_label)?,
        log_format: arguments.log_format.unwrap_or(LogFormat::Text),
        health: arguments.health,
        journal: arguments
            .state_dir
            .map(|directory| journal_settings(&directory, arguments.state_max_size, arguments.state_max_age)),
        reloadable: Reloadable {
            refresh_interval: arguments.refresh_interval.unwrap_or(Duration::from_secs(5)),
            retention: arguments.retention.unwrap_or(Duration::from_secs(300)),
            series_limit: arguments.series_limit.unwrap_or(SERIES_LIMIT),
            log_level: arguments.log_level.unwrap_or_else(|| "info".into()),
            files,
            device_plugin,
        },
    };
    check(&settings, arguments.config.as_deref())?;
    Ok(settings)
}

/// 64 MiB hold some 60,000 holdings: for a busy node, months.
pub fn journal_settings(directory: &Path, size: Option<Size>, age: Option<Duration>) -> JournalSettings {
    let bytes = size.map_or(64 << 20, |size| size.0);
    let age = age.unwrap_or(Duration::from_secs(90 * 24 * 60 * 60));
    JournalSettings { directory: directory.to_owned(), bounds: JournalBounds { bytes, age } }
}

/// A host's driver, a driver container's, and Google Kubernetes Engine's.
pub fn library_search(library: Option<PathBuf>, driver_roots: Vec<PathBuf>) -> LibrarySearch {
    let usual = || ["/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia"].map(PathBuf::from).to_vec();
    LibrarySearch { library, driver_roots: if driver_roots.is_empty() { usual() } else { driver_roots } }
}

/// `podmeter check-config`.
pub fn check_file(file: &Path) -> Result<(), InvalidSettings> {
    resolve(AgentArguments { config: Some(file.to_owned()), ..AgentArguments::default() }).map(|_| ())
}

/// `podmeter check-config --web-config`.
pub fn check_web_config(file: &Path) -> Result<Vec<String>, WebConfigError> {
    WebConfig::load(file).map(|config| config.warnings)
}

fn check(settings: &Settings, file: Option<&Path>) -> Result<(), InvalidSettings> {
    let file = file.map(Path::to_owned);
    let range = |flag, value: Duration, low: Duration, high: Duration, problem| {
        let value_text = || humantime::format_duration(value).to_string();
        let valid = (low..=high).contains(&value);
        if valid {
            Ok(())
        } else {
            Err(InvalidSettings::Value { flag, file: file.clone(), value: value_text(), problem })
        }
    };
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    let Reloadable { refresh_interval, retention, series_limit, log_level, .. } = &settings.reloadable;
    range("refresh-interval", *refresh_interval, second, 10 * minute, "must be 1s to 10m")?;
    range("sample-interval", settings.sample_interval, second / 10, minute, "must be 100ms to 1m")?;
    range("retention", *retention, Duration::ZERO, 24 * 60 * minute, "must be 0s to 1day")?;
    if let Some(JournalSettings { bounds, .. }) = &settings.journal {
        range("state-max-age", bounds.age, 60 * minute, 20 * 366 * 24 * 60 * minute, "must be 1h to 20years")?;
        if !((4 << 20)..=(16 << 30)).contains(&bounds.bytes) {
            let (flag, value) = ("state-max-size", Size(bounds.bytes).to_string());
            return Err(InvalidSettings::Value { flag, file, value, problem: "must be 4MiB to 16GiB" });
        }
    }
    let count = |flag, value: usize, valid: std::ops::RangeInclusive<usize>, problem| match valid.contains(&value) {
        true => Ok(()),
        false => Err(InvalidSettings::Value { flag, file: file.clone(), value: value.to_string(), problem }),
    };
    count("series-limit", *series_limit, 100..=1_000_000, "must be 100 to 1000000")?;
    let web = settings.web_limits;
    count("web-max-connections", web.connections, 4..=10_000, "must be 4 to 10000")?;
    count("web-max-header-bytes", web.header_bytes, 8_192..=1_048_576, "must be 8192 to 1048576")?;
    range("web-read-timeout", web.read_timeout, second, 10 * minute, "must be 1s to 10m")?;
    range("web-write-timeout", web.write_timeout, second, 10 * minute, "must be 1s to 10m")?;
    // A word alone would be taken for a target, and everything else be silent.
    let is_level = |part: &str| part.contains('=') || part.trim().parse::<LevelFilter>().is_ok();
    if !log_level.split(',').all(is_level) || log_level.parse::<Targets>().is_err() {
        let problem = "must be error, warn, info, debug, trace, or a filter such as info,podmeter::kubelet=debug";
        return Err(InvalidSettings::Value { flag: "log-level", file, value: log_level.clone(), problem });
    }
    Ok(())
}

fn node_name() -> String {
    let named = std::env::var("NODE_NAME").ok().filter(|name| !name.is_empty());
    named.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_wins_over_the_file_and_the_file_over_the_default() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("podmeter.yaml");
        std::fs::write(&file, "refreshInterval: 7s\nretention: 9s\nkubeletRoot: /k\n").expect("written");
        let retention = Some(Duration::from_secs(11));
        let arguments = AgentArguments { config: Some(file), retention, ..AgentArguments::default() };
        let settings = resolve(arguments).expect("valid");
        assert_eq!(settings.reloadable.retention, Duration::from_secs(11));
        assert_eq!(settings.reloadable.refresh_interval, Duration::from_secs(7));
        assert_eq!(settings.pod_resources_socket, Path::new("/k/pod-resources/kubelet.sock"));
        assert_eq!(settings.sample_interval, Duration::from_secs(1));
    }

    #[test]
    fn what_a_reload_does_not_change_is_named() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("podmeter.yaml");
        let read = |text: &str| {
            std::fs::write(&file, text).expect("written");
            resolve(AgentArguments { config: Some(file.clone()), ..AgentArguments::default() }).expect("valid")
        };
        let before = read("refreshInterval: 7s\n");
        assert_eq!(before.restart_needed_for(&read("refreshInterval: 9s\nretention: 9s\n")), Vec::<&str>::new());
        let after = read("sampleInterval: 2s\nhealth: {holdDown: 5s}\n");
        assert_eq!(before.restart_needed_for(&after), ["sampleInterval", "health"]);
    }

    #[test]
    fn the_journal_has_a_directory_and_bounds() {
        assert_eq!(resolve(AgentArguments::default()).expect("valid").journal, None);
        let arguments = AgentArguments { state_dir: Some("/s".into()), ..AgentArguments::default() };
        let journal = resolve(arguments.clone()).expect("valid").journal.expect("asked for");
        assert_eq!((journal.bounds.bytes, journal.bounds.age.as_secs()), (64 << 20, 90 * 86_400));
        let small = AgentArguments { state_max_size: Some(Size(1 << 20)), ..arguments };
        let error = resolve(small).expect_err("invalid").to_string();
        assert_eq!(error, "--state-max-size (stateMaxSize in a file) 1MiB: must be 4MiB to 16GiB");
    }

    #[test]
    fn the_hosts_directories_are_where_they_are_said_to_be() {
        let usual = resolve(AgentArguments::default()).expect("valid");
        assert_eq!([usual.proc_root, usual.sys_root, usual.dev_root], ["/proc", "/sys", "/dev"].map(PathBuf::from));
        let arguments = AgentArguments {
            proc_root: Some("/host/proc".into()),
            dev_root: Some("/host/dev".into()),
            ..AgentArguments::default()
        };
        let settings = resolve(arguments).expect("valid");
        let seen = [settings.proc_root, settings.sys_root, settings.dev_root];
        assert_eq!(seen, ["/host/proc", "/sys", "/host/dev"].map(PathBuf::from));
    }

    #[test]
    fn pod_labels_that_prometheus_cannot_tell_apart_are_refused() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("podmeter.yaml");
        std::fs::write(&file, "podLabels: [app.name, app-name]\nprocessAttribution: off\n").expect("written");
        let arguments = AgentArguments { config: Some(file), ..AgentArguments::default() };
        let error = resolve(arguments.clone()).expect_err("invalid").to_string();
        assert!(error.starts_with("--pod-label (podLabels in a file): \"app-name\" and \"app.name\""), "{error}");
        let settings = resolve(AgentArguments { pod_label: vec!["team".into()], ..arguments }).expect("valid");
        assert_eq!(settings.pod_labels[0].name, "label_team");
        assert_eq!(settings.process_attribution, crate::agent::ProcessAttribution::Off);
    }

    #[test]
    fn values_out_of_range_name_their_flag_and_the_range() {
        let error = |arguments| resolve(arguments).expect_err("invalid").to_string();
        let zero = AgentArguments { refresh_interval: Some(Duration::ZERO), ..AgentArguments::default() };
        assert_eq!(error(zero), "--refresh-interval (refreshInterval in a file) 0s: must be 1s to 10m");
        let few = AgentArguments { series_limit: Some(5), ..AgentArguments::default() };
        assert_eq!(error(few), "--series-limit (seriesLimit in a file) 5: must be 100 to 1000000");
        for level in ["a=b=c", "loud", "info,podmeter"] {
            let filter = AgentArguments { log_level: Some(level.into()), ..AgentArguments::default() };
            let problem = format!("--log-level (logLevel in a file) {level}: must be error");
            assert!(error(filter).starts_with(&problem), "{level}");
        }
        let nowhere = AgentArguments { config: Some("/nowhere.yaml".into()), ..AgentArguments::default() };
        assert!(error(nowhere).contains("/nowhere.yaml"));
    }
}
