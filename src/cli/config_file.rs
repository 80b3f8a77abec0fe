//! The configuration file.
//!
//! In: its text. Out: the options that it sets; an error names the key and the line. Does not use: flags, defaults.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::options::AgentOptions;
use super::value::Switch;
use crate::agent::{PluginConfig, ReadFile, sha256};
use crate::input;

/// `devicePlugin: off`, or a section.
#[derive(Clone, Debug)]
pub enum DevicePlugin {
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

/// In place of an untagged enum, whose errors have no line.
struct DevicePluginVisitor;

impl<'de> Visitor<'de> for DevicePluginVisitor {
    type Value = DevicePlugin;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("on, off, or a section with resources or nvidiaConfig")
    }

    /// YAML 1.1 has `on` and `off` as booleans.
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

#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    #[error("{file}: {error}; give --config a file that can be read")]
    Unreadable { file: PathBuf, error: std::io::Error },
    #[error("{file}: {error}")]
    Invalid { file: PathBuf, error: String },
}

/// The file is added to `files`.
pub fn read(file: &Path, files: &mut Vec<ReadFile>) -> Result<AgentOptions, ConfigFileError> {
    let text =
        std::fs::read_to_string(file).map_err(|error| ConfigFileError::Unreadable { file: file.to_owned(), error })?;
    files.push(ReadFile { path: file.to_owned(), sha256: sha256(text.as_bytes()) });
    parse(&text).map_err(|error| ConfigFileError::Invalid { file: file.to_owned(), error })
}

pub fn parse(text: &str) -> Result<AgentOptions, String> {
    input::yaml(text).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> String {
        parse(text).expect_err("must not parse")
    }

    #[test]
    fn the_device_plugin_is_a_switch_or_a_section() {
        let plugin = |text: &str| parse(text).expect("parses").plugin_section;
        assert!(matches!(plugin("devicePlugin: off\n"), DevicePlugin::Switch(Switch::Off)));
        assert!(matches!(plugin("devicePlugin: on\n"), DevicePlugin::Switch(Switch::On)));
        let text = "devicePlugin:\n  resources:\n    - kind: simulated\n      name: example.com/x\n      devices: 2\n";
        let DevicePlugin::Section(section) = plugin(text) else { panic!("a section") };
        assert_eq!(section.resources.map(|resources| resources.len()), Some(1));
        for (text, parts) in [
            ("devicePlugin: maybe\n", ["maybe", "off"]),
            ("processAttribution: maybe\n", ["maybe", "auto, on, off"]),
            ("devicePlugin:\n  resource: []\n", ["resource", "line 2"]),
            ("devicePlugin:\n  resources:\n    - kind: gpu\n", ["gpu", "nvidia"]),
        ] {
            let error = error_of(text);
            for part in parts {
                assert!(error.contains(part), "{part:?} in {error}");
            }
        }
    }

    /// As Helm writes `on` and `off`.
    #[test]
    fn booleans_are_switches() {
        use crate::agent::ProcessAttribution::{Off, On};
        for (text, attribution, plugin) in [("true", On, Switch::On), ("false", Off, Switch::Off)] {
            let options = parse(&format!("processAttribution: {text}\ndevicePlugin: {text}\n")).expect("parses");
            assert_eq!(options.process_attribution, Some(attribution));
            assert!(matches!(options.plugin_section, DevicePlugin::Switch(switch) if switch == plugin));
        }
    }

    #[test]
    fn a_misspelt_key_is_named_with_its_line_and_the_key_that_is_meant() {
        for (text, parts) in [
            ("nodeName: n\nrefreshIntervall: 5s\n", ["line 2", "`refreshIntervall`: did you mean `refreshInterval`?"]),
            ("health:\n  holdDwn: 5s\n", ["line 2", "`holdDwn`: did you mean `holdDown`?"]),
            ("devicePlugin:\n  resource: []\n", ["line 2", "`resource`: did you mean `resources`?"]),
            ("health:\n  colour: red\n", ["line 2", "`colour`; there are "]),
        ] {
            let error = error_of(text);
            for part in parts {
                assert!(error.contains(part), "{part:?} in {error}");
            }
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
