//! The section `devicePlugin` of the configuration file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use super::nvidia_config;
use super::pattern::{Pattern, has_wildcards};
#[cfg(test)]
use super::values::schema;
use super::values::{DeviceReference, a_resource_name, by_resource_name, one_or_several};
use crate::domain::model::ResourceName;
use crate::domain::preference::SlotPolicy;
use crate::input::Size;

/// 16 GPUs of this many slots stay a quarter below what the kubelet takes in one message (4 MiB).
pub const MOST_SLOTS: u32 = 1024;
const MOST_SIMULATED: u32 = 10_000;

/// What the device plugin offers. Without any key, as NVIDIA's plugin without configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct PluginConfig {
    /// Default: one entry of kind nvidia. An empty list offers nothing.
    pub resources: Option<Vec<ResourceConfig>>,
    /// A `version: v1` file of NVIDIA's plugin, in place of the entry of kind nvidia.
    pub nvidia_config: Option<PathBuf>,
}

/// One entry: of kind `nvidia` it may become several resources, else exactly one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum ResourceConfig {
    Nvidia(Box<NvidiaConfig>),
    Path(PathConfig),
    Simulated(SimulatedConfig),
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct NvidiaConfig {
    /// Of whole GPUs, and of MIG devices under `single`. Under `mixed` its domain goes before `/mig-<profile>`.
    #[serde(deserialize_with = "a_resource_name")]
    pub name: ResourceName,
    /// Other names for some models or profiles; the first pattern that fits decides.
    pub names: NamePatterns,
    pub mig_strategy: MigStrategy,
    /// Offers each device as several slots.
    #[serde(deserialize_with = "sharing_or_none")]
    pub sharing: SharingConfig,
    /// How containers get their devices.
    #[serde(deserialize_with = "one_or_several")]
    #[cfg_attr(test, schemars(schema_with = "schema::one_or_several::<DeviceListStrategy>"))]
    pub device_list_strategy: Vec<DeviceListStrategy>,
    /// How `envvar`, `volume-mounts` and CDI name a device.
    #[serde(rename = "deviceIDStrategy")]
    pub device_id_strategy: DeviceIdStrategy,
    /// Name the device nodes in the answer too.
    pub pass_device_specs: bool,
    pub preferred: SlotPolicy,
    pub on_conflict: OnConflict,
    pub pre_start_check: Option<PreStartCheck>,
    /// Where the host has the `dev` that holds the NVIDIA nodes: `/`, or the driver container's root.
    pub device_root: PathBuf,
    /// Mounted under `device-nodes`.
    pub driver_mounts: Vec<DriverMount>,
    /// Where the MPS control daemon keeps its directories on the host.
    pub mps_root: PathBuf,
    /// Of the keys under `cdi-annotations`.
    pub cdi_annotation_prefix: String,
    /// Variables that every container gets, as NVIDIA's flags for GDRCopy, GPUDirect Storage and MOFED set them.
    pub environment: BTreeMap<String, String>,
}

/// Names by model (`NVIDIA H100*`) and by MIG profile (`1g.*`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct NamePatterns {
    pub gpus: Vec<NamePattern>,
    pub mig: Vec<NamePattern>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NamePattern {
    /// `*` matches any text.
    #[cfg_attr(test, schemars(with = "String"))]
    pub pattern: Pattern,
    #[serde(deserialize_with = "a_resource_name")]
    pub name: ResourceName,
}

/// How MIG devices are offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum MigStrategy {
    /// A GPU with MIG is offered whole.
    #[default]
    None,
    /// MIG devices of one profile, under the name of a GPU.
    Single,
    /// A resource for each profile.
    Mixed,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SharingConfig {
    /// Each device is offered once.
    #[default]
    None,
    TimeSlicing(Replication),
    /// Needs NVIDIA's MPS control daemon on the node.
    Mps(Replication),
}

/// How many slots each device is offered as. A device that nothing names has one, and keeps its plain id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Replication {
    /// For every device not named below.
    #[cfg_attr(test, schemars(range(min = 2, max = MOST_SLOTS)))]
    pub replicas: Option<u32>,
    /// Overrides all other values; 1 means not shared.
    pub per_gpu: BTreeMap<DeviceReference, u32>,
    #[serde(deserialize_with = "by_resource_name")]
    pub per_resource: BTreeMap<ResourceName, ResourceReplication>,
    /// Shared devices get the suffix `.shared`.
    pub rename_by_default: bool,
    /// Default: false for time-slicing, true for MPS, as NVIDIA's plugin.
    pub fail_requests_greater_than_one: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ResourceReplication {
    #[cfg_attr(test, schemars(range(min = 2, max = MOST_SLOTS)))]
    pub replicas: u32,
    #[serde(default)]
    pub rename: Option<NewName>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct NewName(#[serde(deserialize_with = "a_resource_name")] pub ResourceName);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DeviceListStrategy {
    Envvar,
    VolumeMounts,
    CdiAnnotations,
    CdiCri,
    DeviceNodes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DeviceIdStrategy {
    #[default]
    Uuid,
    Index,
}

/// What to do while another plugin serves the resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnConflict {
    #[default]
    Wait,
    Takeover,
}

/// Checks before each start of a container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PreStartCheck {
    /// On every device given.
    #[serde(default)]
    pub minimum_free_memory: Option<Size>,
    /// No process on any device given, other than on those that are shared.
    #[serde(default)]
    pub no_processes: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DriverMount {
    pub host_path: PathBuf,
    pub container_path: PathBuf,
}

/// Nodes of the host's `/dev`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PathConfig {
    #[serde(deserialize_with = "a_resource_name")]
    pub name: ResourceName,
    /// Patterns with `*`, `?` and `[…]`; each node that fits one is a device.
    #[serde(default, deserialize_with = "one_or_several")]
    #[cfg_attr(test, schemars(schema_with = "schema::one_or_several::<String>"))]
    pub paths: Vec<String>,
    /// Several nodes as one device.
    #[serde(default)]
    pub groups: Vec<NodeGroup>,
    /// Slots of each device.
    #[serde(default = "one")]
    #[cfg_attr(test, schemars(range(min = 1, max = MOST_SLOTS)))]
    pub shared: u32,
    /// Of `r`, `w` and `m`.
    #[serde(default = "read_write")]
    pub permissions: String,
    /// Where the container sees the node; with `/` at the end, the directory that it is put into. Default: as the host.
    #[serde(default)]
    pub container_path: Option<String>,
    #[serde(default)]
    pub on_conflict: OnConflict,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NodeGroup {
    /// The device's id.
    pub id: String,
    /// All must exist; a pattern means every path that matches.
    pub paths: Vec<GroupedNode>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct GroupedNode {
    pub path: String,
    #[serde(default)]
    pub container_path: Option<String>,
    #[serde(default)]
    pub permissions: Option<String>,
    /// The device is offered without it too.
    #[serde(default)]
    pub optional: bool,
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

/// What in the section cannot be used, and why: for people. The caller adds the file's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PluginConfigError(pub(crate) String);

impl Default for NvidiaConfig {
    fn default() -> Self {
        let mount =
            |host: &str, container: &str| DriverMount { host_path: host.into(), container_path: container.into() };
        Self {
            name: "nvidia.com/gpu".into(),
            names: NamePatterns::default(),
            mig_strategy: MigStrategy::default(),
            sharing: SharingConfig::None,
            device_list_strategy: vec![DeviceListStrategy::Envvar],
            device_id_strategy: DeviceIdStrategy::default(),
            pass_device_specs: false,
            preferred: SlotPolicy::default(),
            on_conflict: OnConflict::default(),
            pre_start_check: None,
            device_root: "/".into(),
            // Where GKE's nodes have the driver, and where its images expect it.
            driver_mounts: vec![
                mount("/home/kubernetes/bin/nvidia", "/usr/local/nvidia"),
                mount("/home/kubernetes/bin/nvidia/vulkan/icd.d", "/etc/vulkan/icd.d"),
            ],
            mps_root: "/run/nvidia/mps".into(),
            cdi_annotation_prefix: "cdi.k8s.io/".to_owned(),
            environment: BTreeMap::new(),
        }
    }
}

/// Also for a key without a value.
pub(super) fn sharing_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SharingConfig, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn one() -> u32 {
    1
}

fn read_write() -> String {
    "rw".to_owned()
}

impl PluginConfig {
    /// The entries to serve, validated: `resources`, with NVIDIA's file in place of kind `nvidia`.
    /// `read` gives the text of a file.
    pub fn resolve(
        &self,
        read: impl FnOnce(&Path) -> std::io::Result<String>,
    ) -> Result<Vec<ResourceConfig>, PluginConfigError> {
        const KEY: &str = "devicePlugin.resources";
        let mut entries = self.resources.clone().unwrap_or_default();
        for (place, entry) in entries.iter().enumerate() {
            entry.validate(&format!("{KEY}[{place}]"))?;
        }
        match &self.nvidia_config {
            Some(file) => entries.insert(0, ResourceConfig::from_nvidia_file("devicePlugin.nvidiaConfig", file, read)?),
            None if self.resources.is_none() => entries.push(ResourceConfig::Nvidia(Box::default())),
            None => {}
        }
        refuse_duplicates(KEY, &entries)?;
        Ok(entries)
    }
}

impl ResourceConfig {
    pub fn name(&self) -> &ResourceName {
        match self {
            Self::Nvidia(nvidia) => &nvidia.name,
            Self::Path(path) => &path.name,
            Self::Simulated(simulated) => &simulated.name,
        }
    }

    pub fn on_conflict(&self) -> OnConflict {
        match self {
            Self::Nvidia(nvidia) => nvidia.on_conflict,
            Self::Path(path) => path.on_conflict,
            Self::Simulated(simulated) => simulated.on_conflict,
        }
    }

    pub(super) fn validate(&self, key: &str) -> Result<(), PluginConfigError> {
        match self {
            Self::Nvidia(nvidia) => nvidia.validate(key),
            Self::Path(path) => path.validate(key),
            Self::Simulated(simulated) => within(&format!("{key}.devices"), simulated.devices, 1, MOST_SIMULATED),
        }
    }

    /// `read` gives the text of a file, here of one of NVIDIA's plugin.
    pub(super) fn from_nvidia_file(
        key: &str,
        file: &Path,
        read: impl FnOnce(&Path) -> std::io::Result<String>,
    ) -> Result<Self, PluginConfigError> {
        let failed = |error: String| PluginConfigError(format!("{key}: {}: {error}", file.display()));
        let text = read(file).map_err(|error| failed(format!("{error}; name a file that can be read")))?;
        let nvidia = nvidia_config::parse(&text).map_err(|PluginConfigError(error)| failed(error))?;
        Ok(Self::Nvidia(Box::new(nvidia)))
    }
}

impl NvidiaConfig {
    pub fn includes(&self, strategy: DeviceListStrategy) -> bool {
        self.device_list_strategy.contains(&strategy)
    }

    pub fn uses_cdi(&self) -> bool {
        self.includes(DeviceListStrategy::CdiAnnotations) || self.includes(DeviceListStrategy::CdiCri)
    }

    /// Whether the key of this name may have the value. It was written as `key`.
    pub(super) fn check(key: &str, name: &str, value: &Value) -> Result<(), PluginConfigError> {
        Self::deserialize(json!({ name: value })).map(drop).or_else(|error| refuse(key, value, error))
    }

    /// With the given keys in place of its own, each as a whole.
    pub(super) fn with(&self, key: &str, given: &Map<String, Value>) -> Result<Self, PluginConfigError> {
        for (name, value) in given {
            Self::check(&format!("{key}.{name}"), name, value)?;
        }
        let mut keys = serde_json::to_value(self).expect("a configuration can be written as JSON");
        keys.as_object_mut().into_iter().for_each(|keys| keys.extend(given.clone()));
        Ok(Self::deserialize(keys).expect("each key was read before"))
    }

    pub(super) fn validate(&self, key: &str) -> Result<(), PluginConfigError> {
        if self.device_list_strategy.is_empty() {
            let accepted =
                "accepted: envvar, volume-mounts, cdi-annotations, cdi-cri, device-nodes, or several of them";
            return refuse(&format!("{key}.deviceListStrategy"), "[]", accepted);
        }
        if self.cdi_annotation_prefix.trim_end_matches('/').is_empty() || !self.cdi_annotation_prefix.ends_with('/') {
            let accepted = "accepted: a domain and a slash, as cdi.k8s.io/";
            return refuse(&format!("{key}.cdiAnnotationPrefix"), &self.cdi_annotation_prefix, accepted);
        }
        absolute(&format!("{key}.deviceRoot"), &self.device_root)?;
        absolute(&format!("{key}.mpsRoot"), &self.mps_root)?;
        for mount in &self.driver_mounts {
            absolute(&format!("{key}.driverMounts.hostPath"), &mount.host_path)?;
            absolute(&format!("{key}.driverMounts.containerPath"), &mount.container_path)?;
        }
        match &self.sharing {
            SharingConfig::TimeSlicing(replication) => replication.validate(&format!("{key}.sharing.timeSlicing")),
            SharingConfig::Mps(replication) => {
                if self.mig_strategy == MigStrategy::Mixed {
                    let accepted = "MPS cannot share MIG devices: use none or single, or timeSlicing";
                    return refuse(&format!("{key}.migStrategy"), "mixed with sharing.mps", accepted);
                }
                replication.validate(&format!("{key}.sharing.mps"))
            }
            SharingConfig::None => Ok(()),
        }
    }
}

impl Replication {
    fn validate(&self, key: &str) -> Result<(), PluginConfigError> {
        if self.replicas.is_none() && self.per_gpu.is_empty() && self.per_resource.is_empty() {
            return refuse(key, "{}", "give at least one of replicas, perGpu, perResource");
        }
        if let Some(replicas) = self.replicas {
            within(&format!("{key}.replicas"), replicas, 2, MOST_SLOTS)?;
        }
        for (reference, replicas) in &self.per_gpu {
            within(&format!("{key}.perGpu[{reference}]"), *replicas, 1, MOST_SLOTS)?;
        }
        for (name, replication) in &self.per_resource {
            within(&format!("{key}.perResource[{name}].replicas"), replication.replicas, 2, MOST_SLOTS)?;
        }
        Ok(())
    }
}

impl PathConfig {
    fn validate(&self, key: &str) -> Result<(), PluginConfigError> {
        if self.paths.is_empty() && self.groups.is_empty() {
            return refuse(key, "neither paths nor groups", "give one of them");
        }
        within(&format!("{key}.shared"), self.shared, 1, MOST_SLOTS)?;
        permissions(&format!("{key}.permissions"), &self.permissions)?;
        for path in &self.paths {
            node_pattern(&format!("{key}.paths"), path)?;
        }
        let one_node = matches!(self.paths.as_slice(), [path] if !has_wildcards(path));
        container_path(&format!("{key}.containerPath"), self.container_path.as_deref(), one_node)?;
        for (place, group) in self.groups.iter().enumerate() {
            let key = format!("{key}.groups[{place}]");
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
            // Leaves room for `::` and a slot's number.
            if group.id.is_empty() || group.id.len() > 56 || !group.id.bytes().all(plain) {
                let accepted = "accepted: 1 to 56 letters, digits, dashes, dots, slashes or underscores";
                return refuse(&format!("{key}.id"), &group.id, accepted);
            }
            if self.groups[..place].iter().any(|other| other.id == group.id) {
                return refuse(&format!("{key}.id"), &group.id, "another group has it: ids are unique");
            }
            if group.paths.is_empty() {
                return refuse(&format!("{key}.paths"), "[]", "name at least one node");
            }
            for node in &group.paths {
                node_pattern(&format!("{key}.paths.path"), &node.path)?;
                let key_of_path = format!("{key}.paths.containerPath");
                container_path(&key_of_path, node.container_path.as_deref(), !has_wildcards(&node.path))?;
                if let Some(text) = &node.permissions {
                    permissions(&format!("{key}.paths.permissions"), text)?;
                }
            }
        }
        Ok(())
    }
}

pub(super) fn is_nvidia(entry: &ResourceConfig) -> bool {
    matches!(entry, ResourceConfig::Nvidia(_))
}

pub(super) fn refuse_duplicates(key: &str, entries: &[ResourceConfig]) -> Result<(), PluginConfigError> {
    for (place, entry) in entries.iter().enumerate() {
        let earlier = &entries[..place];
        if is_nvidia(entry) && earlier.iter().any(is_nvidia) {
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

fn within(key: &str, value: u32, least: u32, most: u32) -> Result<(), PluginConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    refuse(key, value, format!("accepted: {least} to {most}"))
}

fn absolute(key: &str, path: &Path) -> Result<(), PluginConfigError> {
    let climbs = path.components().any(|part| part == std::path::Component::ParentDir);
    if path.is_absolute() && !climbs {
        return Ok(());
    }
    refuse(key, path.display(), "accepted: an absolute path without ..")
}

fn node_pattern(key: &str, path: &str) -> Result<(), PluginConfigError> {
    absolute(key, Path::new(path))?;
    // Each part of the path is matched by itself.
    match path.split('/').filter(|part| !part.is_empty()).find_map(|part| Pattern::new(part).err()) {
        Some(problem) => refuse(key, path, problem),
        None => Ok(()),
    }
}

fn container_path(key: &str, path: Option<&str>, one_node: bool) -> Result<(), PluginConfigError> {
    let Some(path) = path else { return Ok(()) };
    absolute(key, Path::new(path))?;
    if one_node || path.ends_with('/') {
        return Ok(());
    }
    refuse(key, path, "several nodes cannot be in one place: end it with / for a directory")
}

fn permissions(key: &str, text: &str) -> Result<(), PluginConfigError> {
    let once = |letter: char| text.matches(letter).count() == 1;
    if !text.is_empty() && text.chars().all(|letter| "rwm".contains(letter) && once(letter)) {
        return Ok(());
    }
    refuse(key, text, "accepted: r, w and m, each at most once, as rw")
}

pub(super) fn refuse<T>(
    key: &str,
    value: impl fmt::Display,
    accepted: impl fmt::Display,
) -> Result<T, PluginConfigError> {
    Err(PluginConfigError(format!("{key}: {value} cannot be used; {accepted}")))
}
