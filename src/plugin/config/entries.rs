//! The section `devicePlugin` of the configuration file: its entries. NVIDIA's file may give the one of kind `nvidia`.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::check::{PluginConfigError, check_range, refuse};
use super::nvidia::{NvidiaConfig, PreStartCheck, Replication};
use super::nvidia_file;
use super::nvidia_keys::Environment;
use super::path::PathConfig;
use super::values::{OnConflict, a_resource_name};
use crate::domain::model::ResourceName;

const MOST_SIMULATED: u32 = 10_000;

/// What the device plugin offers. Without any key, the same as NVIDIA's plugin without configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct PluginConfig {
    /// Default: one entry of kind nvidia. An empty list offers nothing.
    pub resources: Option<Vec<EntryConfig>>,
    /// A `version: v1` file of NVIDIA's plugin, in place of the entry of kind nvidia.
    pub nvidia_config: Option<PathBuf>,
}

/// One entry, which offers one resource, or several if its kind is `nvidia`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(tag = "kind", rename_all = "lowercase"))]
pub enum EntryConfig {
    Nvidia(Box<NvidiaConfig>),
    Path(PathConfig),
    Simulated(SimulatedConfig),
}

/// Simulated devices.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SimulatedConfig {
    #[serde(deserialize_with = "a_resource_name")]
    pub name: ResourceName,
    #[cfg_attr(test, schemars(range(min = 1, max = MOST_SIMULATED)))]
    pub devices: u32,
    #[serde(default)]
    pub on_conflict: OnConflict,
}

impl PluginConfig {
    /// The entries to serve, validated. NVIDIA's file replaces the default entry; beside an entry of kind `nvidia` it
    /// is an error. `read` returns the text of a file.
    pub fn resolve(
        &self,
        read: impl FnOnce(&Path) -> std::io::Result<String>,
    ) -> Result<Vec<EntryConfig>, PluginConfigError> {
        const KEY: &str = "devicePlugin.resources";
        let mut entries = self.resources.clone().unwrap_or_default();
        for (index, entry) in entries.iter().enumerate() {
            entry.validate(&format!("{KEY}[{index}]"))?;
        }
        match &self.nvidia_config {
            Some(file) => entries.insert(0, EntryConfig::from_nvidia_file("devicePlugin.nvidiaConfig", file, read)?),
            None if self.resources.is_none() => entries.push(EntryConfig::Nvidia(Box::default())),
            None => {}
        }
        refuse_duplicates(KEY, &entries)?;
        Ok(entries)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum EntryKind {
    Nvidia,
    Path,
    Simulated,
}

impl EntryKind {
    fn read<'de, D: Deserializer<'de>>(self, keys: D) -> Result<EntryConfig, D::Error> {
        Ok(match self {
            Self::Nvidia => EntryConfig::Nvidia(Deserialize::deserialize(keys)?),
            Self::Path => EntryConfig::Path(Deserialize::deserialize(keys)?),
            Self::Simulated => EntryConfig::Simulated(Deserialize::deserialize(keys)?),
        })
    }
}

/// Used instead of serde's derived code, which loses the line of what comes after the kind.
impl<'de> Deserialize<'de> for EntryConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = EntryConfig;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a mapping with a kind")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<EntryConfig, M::Error> {
        let mut before = serde_json::Map::new();
        let kind: EntryKind = loop {
            match map.next_key::<String>()? {
                Some(key) if key == "kind" => break map.next_value()?,
                Some(key) => drop(before.insert(key, map.next_value()?)),
                None => return Err(M::Error::missing_field("kind")),
            }
        };
        if before.is_empty() {
            return kind.read(MapAccessDeserializer::new(map));
        }
        while let Some((key, value)) = map.next_entry()? {
            before.insert(key, value);
        }
        kind.read(Value::Object(before)).map_err(M::Error::custom)
    }
}

impl EntryConfig {
    /// The configuration of an entry of kind `nvidia`; `None` for another kind.
    pub fn nvidia(&self) -> Option<&NvidiaConfig> {
        if let Self::Nvidia(nvidia) = self { Some(nvidia) } else { None }
    }

    pub fn pre_start_check(&self) -> Option<&PreStartCheck> {
        self.nvidia()?.pre_start_check.as_ref()
    }

    pub fn name(&self) -> &ResourceName {
        match self {
            Self::Nvidia(nvidia) => &nvidia.name,
            Self::Path(path) => &path.name,
            Self::Simulated(simulated) => &simulated.name,
        }
    }

    /// Whether this entry takes the place of the `other` when the configuration changes: only one offers the GPUs, or the name.
    pub fn replaces(&self, other: &Self) -> bool {
        self.name() == other.name() || self.nvidia().is_some() && other.nvidia().is_some()
    }

    pub fn on_conflict(&self) -> OnConflict {
        match self {
            Self::Nvidia(nvidia) => nvidia.on_conflict,
            Self::Path(path) => path.on_conflict,
            Self::Simulated(simulated) => simulated.on_conflict,
        }
    }

    /// Whether the entry may have offered GPUs, MIG devices or their slots as this resource. Only kind `nvidia` does.
    pub fn may_offer_gpus_as(&self, resource: &ResourceName) -> bool {
        let Some(nvidia) = self.nvidia() else { return false };
        let renamed = |replication: &Replication| {
            let rules = replication.per_resource.values().filter_map(|rule| rule.rename.as_ref());
            rules.into_iter().any(|rename| rename.0 == *resource)
        };
        let base = resource.as_str().strip_suffix(".shared").unwrap_or(resource.as_str());
        let names = nvidia.names.gpus.iter().chain(&nvidia.names.mig).map(|named| &named.name);
        std::iter::once(&nvidia.name).chain(names).any(|name| name.as_str() == base)
            || nvidia.is_profile(base)
            || nvidia.sharing.replication().is_some_and(renamed)
    }

    /// A warning for each setting without effect, as a sentence.
    pub fn warnings(&self) -> Vec<String> {
        self.nvidia().map(NvidiaConfig::warnings).unwrap_or_default()
    }

    pub(super) fn validate(&self, key: &str) -> Result<(), PluginConfigError> {
        match self {
            Self::Nvidia(nvidia) => nvidia.validate(|field| format!("{key}.{field}")),
            Self::Path(path) => path.validate(key),
            Self::Simulated(simulated) => check_range(&format!("{key}.devices"), simulated.devices, 1, MOST_SIMULATED),
        }
    }

    /// The entry in a file of NVIDIA's plugin. `read` returns the text of a file.
    pub(super) fn from_nvidia_file(
        key: &str,
        file: &Path,
        read: impl FnOnce(&Path) -> std::io::Result<String>,
    ) -> Result<Self, PluginConfigError> {
        let failed = |error: String| PluginConfigError(format!("{key}: {}: {error}", file.display()));
        let text = read(file).map_err(|error| failed(format!("{error}; name a file that can be read")))?;
        let nvidia =
            nvidia_file::parse(&text, &Environment::new()).map_err(|PluginConfigError(error)| failed(error))?;
        Ok(Self::Nvidia(Box::new(nvidia)))
    }
}

pub(super) fn refuse_duplicates(key: &str, entries: &[EntryConfig]) -> Result<(), PluginConfigError> {
    for (index, entry) in entries.iter().enumerate() {
        let earlier = &entries[..index];
        if entry.nvidia().is_some() && earlier.iter().any(|other| other.nvidia().is_some()) {
            let accepted = "an entry offers all GPUs, and so does nvidiaConfig: a second one would offer them twice";
            return refuse(key, "kind: nvidia", accepted);
        }
        if earlier.iter().any(|other| other.name() == entry.name()) {
            let accepted = "another entry has it: give each entry its own name";
            return refuse(&format!("{key}: name"), entry.name(), accepted);
        }
    }
    Ok(())
}
