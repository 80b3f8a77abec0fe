use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::arguments::{AgentArguments, Switch};
use crate::agent::{
    HardwareSource, HealthConfig, ListenAddress, LogFormat, PluginConfig, ProcessAttribution, ReadFile, Size, sha256,
};

/// The flags as keys. Unknown keys are errors.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct ConfigFile {
    listen: Vec<Parsed<ListenAddress>>,
    probe_listen: Option<Parsed<ListenAddress>>,
    web_config: Option<PathBuf>,
    web_max_connections: Option<usize>,
    web_read_timeout: Option<Parsed<humantime::Duration>>,
    web_write_timeout: Option<Parsed<humantime::Duration>>,
    web_max_header_bytes: Option<usize>,
    node_name: Option<String>,
    kubelet_root: Option<PathBuf>,
    pod_resources_socket: Option<PathBuf>,
    device_plugin_dir: Option<PathBuf>,
    refresh_interval: Option<Parsed<humantime::Duration>>,
    hardware: Option<HardwareSource>,
    nvml_library: Option<PathBuf>,
    nvml_call_durations: Option<bool>,
    driver_root: Vec<PathBuf>,
    sample_interval: Option<Parsed<humantime::Duration>>,
    proc_root: Option<PathBuf>,
    sys_root: Option<PathBuf>,
    dev_root: Option<PathBuf>,
    process_attribution: Option<Attribution>,
    pod_logs_root: Option<PathBuf>,
    pod_labels: Vec<String>,
    device_plugin: DevicePlugin,
    state_dir: Option<PathBuf>,
    state_max_size: Option<Parsed<Size>>,
    state_max_age: Option<Parsed<humantime::Duration>>,
    admin_socket: Option<PathBuf>,
    retention: Option<Parsed<humantime::Duration>>,
    series_limit: Option<usize>,
    log_format: Option<LogFormat>,
    log_level: Option<String>,
    health: HealthConfig,
}

/// `devicePlugin: off`, or what it is to offer.
#[derive(Debug)]
enum DevicePlugin {
    Switch(Switch),
    Section(PluginConfig),
}

impl Default for DevicePlugin {
    fn default() -> Self {
        Self::Section(PluginConfig::default())
    }
}

impl<'de> Deserialize<'de> for DevicePlugin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DevicePluginVisitor)
    }
}

/// By hand: an untagged enum would forget where in the section an error is.
struct DevicePluginVisitor;

impl<'de> Visitor<'de> for DevicePluginVisitor {
    type Value = DevicePlugin;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("on, off, or a section with resources or nvidiaConfig")
    }

    /// YAML of old reads `on` and `off` so.
    fn visit_bool<E: serde::de::Error>(self, on: bool) -> Result<DevicePlugin, E> {
        Ok(DevicePlugin::Switch(if on { Switch::On } else { Switch::Off }))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<DevicePlugin, E> {
        match text {
            "on" => self.visit_bool(true),
            "off" => self.visit_bool(false),
            _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
        }
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<DevicePlugin, E> {
        Ok(DevicePlugin::default())
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<DevicePlugin, M::Error> {
        PluginConfig::deserialize(MapAccessDeserializer::new(map)).map(DevicePlugin::Section)
    }
}

/// `auto`, `on` or `off`.
#[derive(Debug)]
struct Attribution(ProcessAttribution);

impl<'de> Deserialize<'de> for Attribution {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AttributionVisitor).map(Self)
    }
}

struct AttributionVisitor;

impl Visitor<'_> for AttributionVisitor {
    type Value = ProcessAttribution;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("auto, on or off")
    }

    /// YAML of old reads `on` and `off` so.
    fn visit_bool<E: serde::de::Error>(self, on: bool) -> Result<ProcessAttribution, E> {
        Ok(if on { ProcessAttribution::On } else { ProcessAttribution::Off })
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ProcessAttribution, E> {
        match text {
            "auto" => Ok(ProcessAttribution::Auto),
            "on" => Ok(ProcessAttribution::On),
            "off" => Ok(ProcessAttribution::Off),
            _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
        }
    }
}

/// A value written as text in its flag's own form.
#[derive(Debug)]
struct Parsed<T>(T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(|error| serde::de::Error::custom(format!("{text:?}: {error}")))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    #[error("{file}: {error}; give --config a file that can be read")]
    Unreadable { file: PathBuf, error: std::io::Error },
    #[error("{file}: {error}")]
    Invalid { file: PathBuf, error: String },
}

/// `arguments` with what they leave open taken from the file that they name, which is added to `files`.
pub fn complete(arguments: AgentArguments, files: &mut Vec<ReadFile>) -> Result<AgentArguments, ConfigFileError> {
    let Some(file) = &arguments.config else { return Ok(arguments) };
    let read = read(file, files)?;
    Ok(fill(arguments, read))
}

/// As a file with this text and no flag.
pub fn arguments_of(text: &str) -> Result<AgentArguments, String> {
    parse(text).map(|read| fill(AgentArguments::default(), read))
}

fn fill(arguments: AgentArguments, read: ConfigFile) -> AgentArguments {
    let (switch, plugin_config) = match read.device_plugin {
        DevicePlugin::Switch(switch) => (Some(switch), PluginConfig::default()),
        DevicePlugin::Section(section) => (None, section),
    };
    let or = |flags: Vec<PathBuf>, file: Vec<PathBuf>| if flags.is_empty() { file } else { flags };
    let duration =
        |flag: Option<Duration>, file: Option<Parsed<humantime::Duration>>| flag.or(file.map(|file| file.0.into()));
    AgentArguments {
        listen: if arguments.listen.is_empty() {
            read.listen.into_iter().map(|address| address.0).collect()
        } else {
            arguments.listen
        },
        probe_listen: arguments.probe_listen.or(read.probe_listen.map(|address| address.0)),
        web_config: arguments.web_config.or(read.web_config),
        web_max_connections: arguments.web_max_connections.or(read.web_max_connections),
        web_read_timeout: duration(arguments.web_read_timeout, read.web_read_timeout),
        web_write_timeout: duration(arguments.web_write_timeout, read.web_write_timeout),
        web_max_header_bytes: arguments.web_max_header_bytes.or(read.web_max_header_bytes),
        node_name: arguments.node_name.or(read.node_name),
        kubelet_root: arguments.kubelet_root.or(read.kubelet_root),
        pod_resources_socket: arguments.pod_resources_socket.or(read.pod_resources_socket),
        device_plugin_dir: arguments.device_plugin_dir.or(read.device_plugin_dir),
        refresh_interval: duration(arguments.refresh_interval, read.refresh_interval),
        hardware: arguments.hardware.or(read.hardware),
        nvml_library: arguments.nvml_library.or(read.nvml_library),
        nvml_call_durations: arguments.nvml_call_durations.or(read.nvml_call_durations),
        driver_root: or(arguments.driver_root, read.driver_root),
        sample_interval: duration(arguments.sample_interval, read.sample_interval),
        proc_root: arguments.proc_root.or(read.proc_root),
        sys_root: arguments.sys_root.or(read.sys_root),
        dev_root: arguments.dev_root.or(read.dev_root),
        process_attribution: arguments.process_attribution.or(read.process_attribution.map(|read| read.0)),
        pod_logs_root: arguments.pod_logs_root.or(read.pod_logs_root),
        pod_label: if arguments.pod_label.is_empty() { read.pod_labels } else { arguments.pod_label },
        device_plugin: arguments.device_plugin.or(switch),
        nvidia_config: arguments.nvidia_config,
        plugin_config,
        state_dir: arguments.state_dir.or(read.state_dir),
        state_max_size: arguments.state_max_size.or(read.state_max_size.map(|read| read.0)),
        state_max_age: duration(arguments.state_max_age, read.state_max_age),
        admin_socket: arguments.admin_socket.or(read.admin_socket),
        retention: duration(arguments.retention, read.retention),
        series_limit: arguments.series_limit.or(read.series_limit),
        log_format: arguments.log_format.or(read.log_format),
        log_level: arguments.log_level.or(read.log_level),
        health: read.health,
        config: arguments.config,
    }
}

fn read(file: &Path, files: &mut Vec<ReadFile>) -> Result<ConfigFile, ConfigFileError> {
    let text =
        std::fs::read_to_string(file).map_err(|error| ConfigFileError::Unreadable { file: file.to_owned(), error })?;
    files.push(ReadFile { path: file.to_owned(), sha256: sha256(text.as_bytes()) });
    parse(&text).map_err(|error| ConfigFileError::Invalid { file: file.to_owned(), error })
}

fn parse(text: &str) -> Result<ConfigFile, String> {
    // A file of comments alone is a file with every default.
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(ConfigFile::default());
    }
    serde_saphyr::from_str(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> String {
        parse(text).expect_err("must not parse")
    }

    #[test]
    fn every_key_is_read() {
        let text = "listen: [\"127.0.0.1:1\", \"unix:/tmp/x.sock\"]\nprobeListen: 0.0.0.0:9411\nwebConfig: /w\nwebMaxConnections: 9\n\
                    webReadTimeout: 3s\nwebWriteTimeout: 4s\nwebMaxHeaderBytes: 9000\nnodeName: n\nkubeletRoot: /k\n\
                    podResourcesSocket: /p\ndevicePluginDir: /d\nrefreshInterval: 2s\nhardware: simulated\n\
                    nvmlLibrary: /l\nnvmlCallDurations: true\ndriverRoot: [/a, /b]\nsampleInterval: 500ms\nadminSocket: /x\n\
                    procRoot: /host/proc\nsysRoot: /host/sys\ndevRoot: /host/dev\nretention: 1m 30s\nseriesLimit: 500\nstateDir: /s\nstateMaxSize: 8MiB\nstateMaxAge: 7days\nlogFormat: json\nlogLevel: debug\n";
        let file = parse(text).expect("parses");
        assert_eq!(file.listen.len(), 2);
        assert_eq!(file.probe_listen.map(|parsed| parsed.0.to_string()), Some("0.0.0.0:9411".to_owned()));
        assert_eq!(file.web_config, Some("/w".into()));
        assert_eq!((file.web_max_connections, file.web_max_header_bytes), (Some(9), Some(9000)));
        let timeouts =
            [file.web_read_timeout, file.web_write_timeout].map(|parsed| parsed.map(|parsed| parsed.0.as_secs()));
        assert_eq!(timeouts, [Some(3), Some(4)]);
        assert_eq!(file.retention.map(|parsed| *parsed.0), Some(Duration::from_secs(90)));
        assert_eq!(file.state_max_size.map(|parsed| parsed.0), Some(Size(8 << 20)));
        assert_eq!(file.hardware, Some(HardwareSource::Simulated));
        assert_eq!((file.driver_root.len(), file.nvml_call_durations), (2, Some(true)));
        let roots = [file.proc_root, file.sys_root, file.dev_root].map(|root| root.expect("read"));
        assert_eq!(roots, ["/host/proc", "/host/sys", "/host/dev"].map(PathBuf::from));
    }

    #[test]
    fn the_device_plugin_is_a_switch_or_a_section() {
        let plugin = |text: &str| parse(text).expect("parses").device_plugin;
        assert!(matches!(plugin("devicePlugin: off\n"), DevicePlugin::Switch(Switch::Off)));
        assert!(matches!(plugin("devicePlugin: on\n"), DevicePlugin::Switch(Switch::On)));
        let text = "devicePlugin:\n  resources:\n    - kind: simulated\n      name: example.com/x\n      devices: 2\n";
        let DevicePlugin::Section(section) = plugin(text) else { panic!("a section") };
        assert_eq!(section.resources.map(|resources| resources.len()), Some(1));
        for (text, parts) in [
            ("devicePlugin: maybe\n", ["maybe", "off"]),
            ("processAttribution: maybe\n", ["maybe", "auto, on or off"]),
            ("devicePlugin:\n  resource: []\n", ["resource", "line 2"]),
            ("devicePlugin:\n  resources:\n    - kind: gpu\n", ["gpu", "nvidia"]),
        ] {
            let error = error_of(text);
            for part in parts {
                assert!(error.contains(part), "{part:?} in {error}");
            }
        }
    }

    #[test]
    fn an_empty_file_has_every_default() {
        for text in ["", "\n", "# nothing yet\n"] {
            assert!(parse(text).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn a_misspelt_key_is_named_with_its_line_and_the_keys_there_are() {
        let error = error_of("nodeName: n\nrefreshIntervall: 5s\n");
        for part in ["refreshIntervall", "line 2", "refreshInterval"] {
            assert!(error.contains(part), "{part:?} in {error}");
        }
    }

    #[test]
    fn a_bad_value_is_named_with_its_line() {
        for (text, parts) in [
            ("refreshInterval: soon\n", ["soon", "line 1"]),
            ("hardware: gpu\n", ["gpu", "line 1"]),
            ("listen: [\"nowhere\"]\n", ["nowhere", "line 1"]),
        ] {
            let error = error_of(text);
            for part in parts {
                assert!(error.contains(part), "{part:?} in {error}");
            }
        }
    }
}
