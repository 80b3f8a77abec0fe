//! Values of options, written the same in a flag, a variable and a configuration file.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use strum::VariantArray;
use tracing_subscriber::filter::{LevelFilter, Targets};

use crate::agent::{GrafanaUrl, HardwareSource, ListenAddress, LogFormat};
use crate::domain::model::PciBusId;
use crate::input::{Duration, Size};
use crate::processes::ProcessAttribution;
use crate::serve::metrics::dcgm::Generation;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

/// An absolute path, or `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathOrNone(pub Option<PathBuf>);

impl FromStr for PathOrNone {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let path = Path::new(text);
        match path.is_absolute() && path.file_name().is_some() && !text.ends_with('/') {
            _ if text == "none" => Ok(Self(None)),
            true => Ok(Self(Some(path.to_owned()))),
            false => Err("must be none or the absolute path of a file"),
        }
    }
}

/// The address of a Grafana, or `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrafanaOrNone(pub Option<GrafanaUrl>);

impl FromStr for GrafanaOrNone {
    type Err = <GrafanaUrl as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" { Ok(Self(None)) } else { text.parse().map(|url| Self(Some(url))) }
    }
}

/// A level, or levels by target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(pub String);

impl FromStr for LogFilter {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A word that is no level would be the name of a target, and everything else be off.
        let is_level = |part: &str| part.contains('=') || part.trim().parse::<LevelFilter>().is_ok();
        if text.split(',').all(is_level) && text.parse::<Targets>().is_ok() {
            return Ok(Self(text.to_owned()));
        }
        Err("must be error, warn, info, debug, trace, or a filter such as info,podmeter::kubelet=debug")
    }
}

pub trait OptionType: Sized {
    /// Between the values of a list.
    const DELIMITER: Option<char> = None;

    fn parse(text: &str) -> Result<Self, String>;

    fn from_file<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(|problem| D::Error::custom(format!("{text:?}: {problem}")))
    }

    /// The schema of the value in the configuration file.
    #[cfg(test)]
    fn schema() -> serde_json::Value;

    /// An empty list leaves the default.
    fn is_set(&self) -> bool {
        true
    }
}

macro_rules! values {
    (text: $($text:ty = $schema:tt $(or $words:literal)?),*; named: $($named:ty),*;) => {
        $(impl OptionType for $text {
            fn parse(text: &str) -> Result<Self, String> {
                text.parse().map_err(|problem: <Self as FromStr>::Err| {
                    None::<&str>$(.or(Some($words)))?.map_or_else(|| problem.to_string(), str::to_owned)
                })
            }

            #[cfg(test)]
            fn schema() -> serde_json::Value {
                serde_json::json!($schema)
            }
        })*
        $(impl OptionType for $named {
            fn parse(text: &str) -> Result<Self, String> {
                let names = Self::value_variants().iter().filter_map(ValueEnum::to_possible_value);
                let names = names.map(|name| name.get_name().to_owned()).collect::<Vec<_>>();
                ValueEnum::from_str(text, false).map_err(|_| format!("must be one of {}", names.join(", ")))
            }

            #[cfg(test)]
            fn schema() -> serde_json::Value {
                let names = Self::value_variants().iter().filter_map(ValueEnum::to_possible_value);
                let names = names.flat_map(|name| name.get_name_and_aliases().map(str::to_owned).collect::<Vec<_>>());
                // YAML 1.1 has `on` and `off` as booleans: those are aliases.
                let value = |name: String| name.parse::<bool>().map_or(serde_json::json!(name), serde_json::Value::Bool);
                serde_json::json!({ "enum": names.map(value).collect::<Vec<_>>() })
            }
        })*
    };
}

values! {
    text: String = { "type": "string" },
        PathBuf = { "type": "string" },
        GrafanaOrNone = { "type": "string", "pattern": "^(none$|https?://)" },
        PciBusId = { "type": "string", "pattern": "^([0-9a-fA-F]{4}){1,2}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}[.][0-9a-fA-F]$" },
        usize = { "type": "integer" } or "must be a whole number",
        bool = { "type": "boolean" } or "must be true or false",
        Size = (<Size as schemars::JsonSchema>::json_schema(&mut schemars::SchemaGenerator::default())),
        Duration = { "type": "string", "pattern": (crate::agent::DURATION_PATTERN) },
        ListenAddress = { "type": "string", "pattern": r"^(unix:.+|([0-9.]*|localhost):[0-9]+|\[[0-9a-fA-F:.%]+\]:[0-9]+)$" },
        LogFilter = { "type": "string" },
        PathOrNone = { "type": "string", "pattern": "^(none|/(.*/)?[^/]+)$" },
        Generation = { "type": "string", "pattern": r"^(4\.8|4\.9|both)$" }
            or "must be 4.8, 4.9 or both: the names of dcgm-exporter up to 4.8, from 4.9 on, or all";
    named: HardwareSource, LogFormat, ProcessAttribution, Switch;
}

impl ValueEnum for HardwareSource {
    fn value_variants<'a>() -> &'a [Self] {
        Self::VARIANTS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.into_str()))
    }
}

impl ValueEnum for ProcessAttribution {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Auto, Self::On, Self::Off]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        // YAML 1.1 has `on` and `off` as booleans.
        Some(match self {
            Self::Auto => PossibleValue::new("auto"),
            Self::On => PossibleValue::new("on").alias("true"),
            Self::Off => PossibleValue::new("off").alias("false"),
        })
    }
}

impl<T: OptionType> OptionType for Vec<T> {
    const DELIMITER: Option<char> = Some(',');

    fn parse(text: &str) -> Result<Self, String> {
        text.split(',').map(|part| T::parse(part.trim())).collect()
    }

    fn from_file<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = Vec::<FromFile<T>>::deserialize(deserializer)?;
        Ok(values.into_iter().map(|FromFile(value)| value).collect())
    }

    #[cfg(test)]
    fn schema() -> serde_json::Value {
        serde_json::json!({ "type": "array", "items": T::schema() })
    }

    fn is_set(&self) -> bool {
        !self.is_empty()
    }
}

struct FromFile<T>(T);

impl<'de, T: OptionType> Deserialize<'de> for FromFile<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::from_file(deserializer).map(Self)
    }
}

/// A flag's number.
pub fn whole_number<N: FromStr>(text: &str) -> Result<N, &'static str> {
    text.parse().map_err(|_| "must be a whole number")
}

/// Reads the value of a key; used with `deserialize_with`.
pub fn read<'de, T: OptionType, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let value = Option::<FromFile<T>>::deserialize(deserializer)?;
    Ok(value.map(|FromFile(value)| value).filter(OptionType::is_set))
}

/// A constant of the table of options.
pub fn parsed<T: OptionType>(text: &str) -> T {
    T::parse(text).expect("a test reads every default and range")
}
