//! The options of `podmeter agent`, one row each.
//!
//! In: flags, environment variables, the keys of a configuration file. Out: their values, defaults filled in. Does not
//! use: what an option is for.
//!
//! To add an option, for instance the limit for calls to the kubelet:
//!
//! 1. A row in a group of `options!`, below, under its help as `///`:
//!    `kubelet_deadline "DUR": Duration = "5s" in "1s"..="1m", restart;`. Flag, variable, key, help, schema and the accessor
//!    `AgentOptions::kubelet_deadline` follow from it.
//! 2. A field in the settings of the module that uses it: `KubeletSettings::deadline`; for `reload` a field of
//!    `Reloadable`. The module takes it in place of a constant.
//! 3. Its value in `settings` of `commands/cli/settings.rs`: `deadline: *options.kubelet_deadline()`, where `*` gives the
//!    `Duration` of `std`; for `reload` in `configure` there.
//! 4. For a type without `OptionType`: `FromStr`, and a line of `values!` in `value`.
//! 5. A value in `other_value` of the tests below, if `20s` (of a row with a range) or `x` is invalid or the default.
//! 6. `UPDATE_GOLDEN=1 cargo test --lib cli::` writes `docs/options.md` and the schema, `deploy/sync` the chart. A line under
//!    `[Unreleased]` of CHANGELOG.md, and a test of its effect in the module.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::Args;
use serde::Deserialize;

use super::value::{GrafanaOrNone, LogFilter, OptionType, PathOrNone, Switch, parsed, read, whole_number};
use crate::agent::{HardwareSource, HealthConfig, ListenAddress, LogFormat, PluginConfig, ProfileConfig};
use crate::domain::model::PciBusId;
use crate::input::{Duration, Size, SwitchOr};
use crate::processes::ProcessAttribution;
use crate::serve::metrics::dcgm::Generation;

/// From what likeness on (Jaro) an environment variable was probably meant to be an option.
const NEARLY: f64 = 0.9;

/// What help, error messages and documentation need of an option.
#[derive(Debug)]
pub struct OptionRow {
    pub(super) name: &'static str,
    /// Heading in help and documentation; empty for the usual ones.
    group: &'static str,
    pub flag: String,
    pub variable: String,
    /// In the configuration file; empty where the file has no such key.
    pub key: String,
    pub help: &'static str,
    /// In words where no constant is the default; empty where nothing is.
    pub default: &'static str,
    pub range: &'static str,
    pub is_reloadable: bool,
}

impl OptionRow {
    fn heading(&self) -> Option<&'static str> {
        Some(self.group).filter(|group| !group.is_empty())
    }

    /// The text that `--help` shows.
    fn full_help(&self) -> String {
        let range = if self.range.is_empty() { String::new() } else { format!("; {}", self.range) };
        match self.default {
            "" => self.help.to_owned(),
            default => format!("{} [default: {default}{range}]", self.help),
        }
    }
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |key, word| key + &word[..1].to_uppercase() + &word[1..])
}

pub fn row(name: &str) -> &'static OptionRow {
    ROWS.iter().find(|row| row.name == name).expect("every option is a row")
}

/// Names of environment variables that are nearly an option's, each with the option's. Those that Kubernetes sets for a
/// Service named podmeter are not.
pub fn misspelt_variables(present: impl Iterator<Item = String>) -> Vec<(String, &'static str)> {
    let variables = || ROWS.iter().map(|row| row.variable.as_str());
    let meant = |name: &str| {
        let word = |variable: &str| variable.strip_prefix("PODMETER_").map(str::to_owned);
        let likeness = |variable| strsim::jaro(&word(name).unwrap_or_default(), &word(variable).unwrap_or_default());
        variables()
            .find(|variable| likeness(variable) >= NEARLY)
            .filter(|_| variables().all(|variable| variable != name))
    };
    present.filter_map(|name| meant(&name).map(|meant| (name, meant))).collect()
}

/// A row `name "VALUE": Type = "default" in "low"..="high", reload` is the flag `--name`, the variable `PODMETER_NAME` and the key
/// `name` of the configuration file. `=> "words"` describes a default that depends on more than the option. A changed
/// option takes effect on `reload` or needs a `restart`. `arg` has more attributes of the flag. `key("other": …)` has another key and
/// serde's attributes of the field; with `skip` the row does not read the file. `-h` shows the group without a heading, `--help` all.
macro_rules! options {
    (
        $($group:literal {
        $(
            $(#[doc = $help:literal])+
            $name:ident $value:literal : $type:ty
                $(= $default:literal $(in $low:literal..=$high:literal)?)? $(=> $words:literal)?,
                $reload:ident $(, arg($($arg:tt)*))? $(, key($key:literal: $($serde:tt)*))?;
        )*
        })*
    ) => {
        pub static ROWS: LazyLock<Vec<OptionRow>> = LazyLock::new(|| vec![$($(
            OptionRow {
                name: stringify!($name),
                group: $group,
                flag: stringify!($name).replace('_', "-"),
                variable: format!("PODMETER_{}", stringify!($name).to_uppercase()),
                key: None::<&str>$(.or(Some($key)))?.map_or_else(|| camel_case(stringify!($name)), str::to_owned),
                help: concat!($($help),+).trim(),
                default: concat!($($default)? $($words)?),
                range: concat!($($($low, " to ", $high)?)?),
                is_reloadable: matches!(stringify!($reload), "reload"),
            },
        )*)*]);

        /// What flags and variables set, or a configuration file; `None` where they leave the default.
        #[derive(Clone, Debug, Default, Args, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "camelCase", default)]
        pub struct AgentOptions {
            $($(
                #[arg(
                    long,
                    help_heading = row(stringify!($name)).heading(),
                    hide_short_help = row(stringify!($name)).heading().is_some(),
                    env = row(stringify!($name)).variable.as_str(),
                    help = row(stringify!($name)).full_help(),
                    value_name = $value,
                    value_delimiter = <$type as OptionType>::DELIMITER,
                    hide_env_values = true,
                    allow_hyphen_values = matches!($value, "DUR" | "N"),
                    $($($arg)*)?
                )]
                #[serde(deserialize_with = "read" $(, $($serde)*)?)]
                pub $name: Option<$type>,
            )*)*
            /// Only in the file.
            #[arg(skip)]
            pub health: HealthConfig,
            /// The key `devicePlugin`: a switch, over which the flag takes precedence, or a section.
            #[arg(skip)]
            #[serde(rename = "devicePlugin")]
            pub plugin_section: SwitchOr<PluginConfig>,
            /// Only in the file.
            #[arg(skip)]
            pub profiles: Vec<ProfileConfig>,
        }

        impl AgentOptions {
            $($(options! { @value $name: $type $(, $default)? })*)*

            /// The sections are those of `file`.
            pub fn or(self, file: Self) -> Self {
                let Self { health, plugin_section, profiles, .. } = file;
                Self { $($($name: self.$name.or(file.$name),)*)* health, plugin_section, profiles }
            }

            /// The error: an option and its value, which is out of range.
            pub fn check(&self) -> Result<(), (&'static OptionRow, String)> {
                $($($($(
                    if !(parsed($low)..=parsed($high)).contains(&self.$name()) {
                        return Err((row(stringify!($name)), self.$name().to_string()));
                    }
                )?)?)*)*
                Ok(())
            }

            /// Keys of what differs in `other` and takes effect only after a restart. Of the sections only `health` needs one.
            pub fn restart_needed_for(&self, other: &Self) -> Vec<&'static str> {
                let changed = [$($((stringify!($name), self.$name() != other.$name())),*),*];
                let changed = changed.into_iter().filter(|(_, changed)| *changed).map(|(name, _)| row(name));
                let health = (self.health != other.health).then_some("health");
                changed.filter(|row| !row.is_reloadable).map(|row| row.key.as_str()).chain(health).collect()
            }

            #[cfg(test)]
            fn values(&self) -> Vec<String> {
                vec![$($(format!("{:?}", self.$name())),*),*]
            }
        }

        /// The schema of each value in the configuration file, and its default, by name.
        #[cfg(test)]
        pub fn schemas() -> std::collections::BTreeMap<&'static str, (serde_json::Value, Option<&'static str>)> {
            [$($((stringify!($name), (<$type as OptionType>::schema(), None::<&'static str>$(.or(Some($default)))?))),*),*].into()
        }
    };
    (@value $name:ident: $type:ty) => {
        pub fn $name(&self) -> Option<$type> {
            self.$name.clone()
        }
    };
    (@value $name:ident: $type:ty, $default:literal) => {
        pub fn $name(&self) -> $type {
            self.$name.clone().unwrap_or_else(|| parsed($default))
        }
    };
}

options! {
    "" {
        /// YAML file with the same options (`refreshInterval: 5s`)
        config "FILE": PathBuf, reload, key("": skip);
        /// Address of metrics and page: `IP:PORT`, `:PORT` (every IPv4 address), `localhost:PORT` or `unix:PATH`; repeatable
        listen "ADDR": Vec<ListenAddress> = "0.0.0.0:9410", restart;
        /// TLS, client certificates, passwords and headers for `--listen`: a web configuration file as for Prometheus exporters; read
        /// again when it or its certificates change
        web_config "FILE": PathBuf => "none", restart;
        /// Root directory of the kubelet
        kubelet_root "DIR": PathBuf = "/var/lib/kubelet", restart;
        /// Run the bundled device plugin
        device_plugin "on|off": Switch => "on; off for simulated hardware", reload, key("devicePlugin": skip);
        /// Source of device readings
        hardware "SOURCE": HardwareSource = "nvml", restart;
        /// Root directory of a host or containerized driver; repeatable
        driver_root "DIR": Vec<PathBuf> = "/, /run/nvidia/driver, /home/kubernetes/bin/nvidia", restart;
        /// Pod label to export in `podmeter_pod_info`, where the kubelet serves its Pods API; repeatable
        pod_label "KEY": Vec<String> => "none", restart, key("podLabels": rename = "podLabels");
        /// Directory of the journal, which keeps for `podmeter usage` which container held which device
        state_dir "DIR": PathBuf => "none", restart;
        /// Level of the log, or a filter such as `info,podmeter::kubelet=debug`
        log_level "FILTER": LogFilter = "info", reload;
    }
    "Web server" {
        /// Address of the kubelet's probes `/-/healthy` and `/-/ready` and nothing else, without TLS and password
        probe_listen "ADDR": ListenAddress => "none", restart;
        /// Connections per listener; further clients wait until one is closed
        web_max_connections "N": usize = "64" in "4"..="10000", restart, arg(value_parser = whole_number::<usize>);
        /// Time limit to receive a request's head, and to wait for the next request on a connection
        web_read_timeout "DUR": Duration = "65s" in "1s"..="10m", restart;
        /// Time limit to accept 32 KiB of a response
        web_write_timeout "DUR": Duration = "10s" in "1s"..="10m", restart;
        /// Size limit of a request line with its headers
        web_max_header_bytes "N": usize = "32768" in "8192"..="1048576", restart, arg(value_parser = whole_number::<usize>);
        /// Unix socket for local commands, mode 0600; `none` disables it
        admin_socket "PATH": PathBuf => "/run/podmeter/podmeter.sock", restart;
        /// Address of a Grafana with podmeter's dashboards, to which rows of the page link
        grafana_url "URL": GrafanaOrNone = "none", restart;
    }
    "Kubelet" {
        /// Node name in Kubernetes; never a metric label
        node_name "NAME": String => "$NODE_NAME, else the host name", restart;
        /// Interval between requests to the kubelet when nothing triggers one earlier
        refresh_interval "DUR": Duration = "5s" in "1s"..="10m", reload;
        /// Socket of the kubelet's PodResources API
        pod_resources_socket "PATH": PathBuf => "pod-resources/kubelet.sock under the kubelet root", restart;
        /// Directory of the kubelet's device plugin sockets
        device_plugin_dir "DIR": PathBuf => "device-plugins under the kubelet root", restart;
        /// Configuration file of NVIDIA's device plugin (`version: v1`), in place of `devicePlugin.resources` of kind nvidia
        nvidia_config "FILE": PathBuf => "none", reload, key("devicePlugin.nvidiaConfig": skip);
    }
    "Driver" {
        /// Path of `libnvidia-ml.so.1`
        nvml_library "PATH": PathBuf => "the loader's search path, then the driver roots", restart;
        /// PCI address of a display card that the driver does not list and podmeter ignores; repeatable
        // clap would take any text, by `From`.
        ignore_gpu "ADDRESS": Vec<PciBusId> => "none", restart, arg(value_parser = PciBusId::parse),
            key("ignoreGpus": rename = "ignoreGpus");
        /// Interval between readings of use and energy; at most 1s for a GPU on a live page, in `top` or read as JSON
        sample_interval "DUR": Duration = "10s" in "100ms"..="15s", restart;
        /// Export the duration of each NVML call, as a histogram by call
        nvml_call_durations "BOOL": bool = "false", restart,
            arg(num_args = 0..=1, require_equals = true, default_missing_value = "true");
    }
    "Processes and host directories" {
        /// Attribute a device's use by process; `auto`: where host process IDs are visible
        process_attribution "auto|on|off": ProcessAttribution = "auto", restart;
        /// Where the host's `/proc` is mounted
        proc_root "DIR": PathBuf = "/proc", restart;
        /// Where the host's `/sys` is mounted
        sys_root "DIR": PathBuf = "/sys", restart;
        /// Where the host's `/dev` is mounted; containers are given device nodes of `/dev` nevertheless
        dev_root "DIR": PathBuf = "/dev", restart;
        /// The kubelet's log directories, whose names contain pod UIDs
        pod_logs_root "DIR": PathBuf = "/var/log/pods", restart;
    }
    "Health" {
        /// File with the condition of the node's devices, for node-problem-detector and other repair systems; rewritten every ten
        /// seconds
        condition_file "FILE": PathOrNone = "none", restart;
    }
    "Metrics, journal and log" {
        /// How long the counters of an ended container are exported
        retention "DUR": Duration = "5m" in "0s"..="1d", reload;
        /// Limit of exported container series; beyond that, those of the containers that ended first are dropped, then those of the
        /// newest
        series_limit "N": usize = "20000" in "100"..="1000000", reload, arg(value_parser = whole_number::<usize>);
        /// Names of `/metrics/dcgm` without a query: those of dcgm-exporter up to 4.8, from 4.9 on, or both
        dcgm_generation "4.8|4.9|both": Generation = "4.8", restart, arg(value_parser = Generation::parse);
        /// Size limit of the journal; beyond that, the holdings that ended first are deleted
        state_max_size "SIZE": Size = "64MiB" in "4MiB"..="16GiB", restart;
        /// How long the journal keeps ended holdings
        state_max_age "DUR": Duration = "90d" in "1h"..="7300d", restart;
        /// Format of the log; `text` is logfmt
        log_format "FORMAT": LogFormat = "text", restart;
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;
    use crate::commands::cli::settings::parse as parse_file;

    /// A value that is not the default, as in a flag.
    fn other_value(row: &OptionRow) -> &'static str {
        match row.name {
            "listen" => "127.0.0.1:1,unix:/tmp/x.sock",
            "probe_listen" => "0.0.0.0:9411",
            "hardware" => "simulated",
            "nvml_call_durations" => "true",
            "process_attribution" | "device_plugin" => "off",
            "log_format" => "json",
            "log_level" => "debug",
            "state_max_size" => "8MiB",
            "series_limit" | "web_max_connections" | "web_max_header_bytes" => "9999",
            "dcgm_generation" => "both",
            "driver_root" | "pod_label" => "a,b",
            "ignore_gpu" => "0000:65:00.0,00000000:B3:00.0",
            "condition_file" => "/x",
            "grafana_url" => "https://grafana.example",
            "state_max_age" => "1d",
            "sample_interval" => "2s",
            _ if !row.range.is_empty() => "20s",
            _ => "x",
        }
    }

    fn parse(arguments: &[&str]) -> AgentOptions {
        let command = AgentOptions::augment_args(Command::new("agent").no_binary_name(true));
        let matches = command.try_get_matches_from(arguments).expect("valid flags");
        AgentOptions::from_arg_matches(&matches).expect("valid flags")
    }

    #[test]
    fn every_option_means_the_same_as_a_flag_and_in_a_file() {
        AgentOptions::default().check().expect("defaults in range");
        let defaults = AgentOptions::default().values();
        for row in ROWS.iter() {
            let value = other_value(row);
            let flag = parse(&[&format!("--{}={value}", row.flag)]);
            flag.check().expect("in range");
            assert_ne!(flag.values(), defaults, "{}", row.flag);
            if row.key.is_empty() || row.key.starts_with("devicePlugin") {
                continue;
            }
            let text = match value.contains(',') {
                true => format!("{}: [\"{}\"]", row.key, value.replace(',', "\", \"")),
                false => format!("{}: {value}", row.key),
            };
            let file = parse_file(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(format!("{file:?}"), format!("{flag:?}"), "{text}");
            let null = parse_file(&format!("{}:\n", row.key)).expect("a key without a value");
            assert_eq!(format!("{null:?}"), format!("{:?}", AgentOptions::default()), "{}", row.key);
        }
    }

    #[test]
    fn a_misspelt_variable_is_found_and_no_other() {
        let misspelt = |names: &[&str]| misspelt_variables(names.iter().map(|name| (*name).to_owned()));
        assert_eq!(
            misspelt(&["PODMETER_REFRESH_INTERVALL", "PODMETER_LSITEN"]),
            [
                ("PODMETER_REFRESH_INTERVALL".to_owned(), "PODMETER_REFRESH_INTERVAL"),
                ("PODMETER_LSITEN".to_owned(), "PODMETER_LISTEN"),
            ]
        );
        let right: Vec<&str> = ROWS.iter().map(|row| row.variable.as_str()).collect();
        assert_eq!(misspelt(&right), []);
        let of_the_chart =
            ["PODMETER_IMAGE", "PODMETER_POD_NAME", "PODMETER_POD_NAMESPACE", "PODMETER_UPDATE_STRATEGY"];
        let of_a_service = ["PODMETER_SERVICE_HOST", "PODMETER_SERVICE_PORT_METRICS", "PODMETER_PORT_9410_TCP_ADDR"];
        assert_eq!(misspelt(&[&of_the_chart[..], &of_a_service].concat()), []);
    }

    /// `UPDATE_GOLDEN=1 cargo test documented_options` accepts a change.
    #[test]
    fn documented_options_are_the_rows() {
        let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
        let reloadable: Vec<String> =
            ROWS.iter().filter(|row| row.is_reloadable && !row.key.is_empty()).map(|row| code(&row.key)).collect();
        let mut document = format!(
            "# Options of the agent\n\nA flag takes precedence over its environment variable, a variable over the \
             configuration file (`--config`), the file over the default.\nThe variable is `PODMETER_` and the flag in \
             capitals (`PODMETER_LOG_LEVEL`), the key the flag in camel case (`logLevel`), where the table names no other. The \
             file alone has [health](health.md) and the other keys of [devicePlugin](configure.md).\nSIGHUP applies {}; other \
             keys need a restart.\n",
            reloadable.join(", ")
        );
        let mut group = None;
        for row in ROWS.iter() {
            if group.replace(row.group) != Some(row.group) {
                document += &format!("\n## {}\n\n", row.heading().unwrap_or("Usual options"));
                document += "flag | default | meaning\n---|---|---\n";
            }
            let flag = &row.flag;
            let range = if row.range.is_empty() { String::new() } else { format!(" ({})", row.range) };
            let (default, help) = (row.default.replace(",/", ", /"), row.help);
            let is_derived = row.key.is_empty() || row.key == camel_case(&flag.replace('-', "_"));
            let key = if is_derived { String::new() } else { format!(" (key {})", code(&row.key)) };
            document += &format!("`--{flag}`{key} | {default}{range} | {help}\n");
        }
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/options.md");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&file, &document).expect("written");
        }
        let documented = std::fs::read_to_string(&file).expect("docs/options.md");
        assert!(documented == document, "docs/options.md differs from the rows of src/commands/cli/options.rs");
    }
}
