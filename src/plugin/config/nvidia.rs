//! An entry of kind `nvidia`: how GPUs and MIG devices are offered, and how containers get them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use super::check::{MOST_SLOTS, PluginConfigError, check_absolute, check_range, refuse};
#[cfg(test)]
use super::values::schema;
use super::values::{DeviceReference, OnConflict, a_resource_name, by_resource_name, one_or_several};
use crate::domain::model::ResourceName;
use crate::domain::preference::SlotPolicy;
use crate::input::{Pattern, Size};

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct NvidiaConfig {
    /// The resource of whole GPUs, and of MIG devices under `single`. `mixed` uses its domain, before `/mig-<profile>`.
    #[serde(deserialize_with = "a_resource_name")]
    pub name: ResourceName,
    /// Other names for some models or profiles; the first pattern that fits decides.
    pub names: NamePatterns,
    pub mig_strategy: MigStrategy,
    /// Offers each device as several slots.
    pub sharing: SharingConfig,
    /// How containers get their devices.
    #[serde(deserialize_with = "one_or_several")]
    #[cfg_attr(test, schemars(schema_with = "schema::one_or_several::<DeviceListStrategy>"))]
    pub device_list_strategy: Vec<DeviceListStrategy>,
    /// How `envvar`, `volume-mounts` and, where it has both, a vendor's CDI specification name a device.
    #[serde(rename = "deviceIDStrategy")]
    pub device_id_strategy: DeviceIdStrategy,
    /// Whether the answer has the device nodes too.
    pub pass_device_specs: bool,
    #[serde(rename = "preferred")]
    pub slot_policy: SlotPolicy,
    pub on_conflict: OnConflict,
    pub pre_start_check: Option<PreStartCheck>,
    /// Where the host has the `dev` that holds the NVIDIA nodes: `/`, or the driver container's root.
    pub device_root: PathBuf,
    /// Mounted under `device-nodes`.
    pub driver_mounts: Vec<DriverMount>,
    /// Where the MPS control daemon keeps its directories on the host.
    pub mps_root: PathBuf,
    /// The prefix of the annotations' keys under `cdi-annotations`.
    pub cdi_annotation_prefix: String,
    /// Variables that every container gets, as NVIDIA's flags for GDRCopy, GPUDirect Storage and MOFED set them.
    pub environment: BTreeMap<String, String>,
    /// A warning for each setting of NVIDIA's file without effect, as a sentence.
    #[serde(skip)]
    pub ignored: Vec<String>,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, strum::IntoStaticStr)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum MigStrategy {
    /// A GPU with MIG is offered whole.
    #[default]
    None,
    /// Devices of one kind only: MIG devices of one profile, or whole GPUs.
    Single,
    /// A resource for each profile.
    Mixed,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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

/// How many slots each device is offered as. A device that no key names has one, and keeps its plain ID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Replication {
    /// The slots of every device not named below.
    #[cfg_attr(test, schemars(range(min = 2, max = MOST_SLOTS)))]
    pub replicas: Option<u32>,
    /// Overrides all other values; 1 means not shared.
    pub per_gpu: BTreeMap<DeviceReference, u32>,
    #[serde(deserialize_with = "by_resource_name")]
    pub per_resource: BTreeMap<ResourceName, ResourceReplication>,
    /// Shared devices get the suffix `.shared`.
    pub rename_by_default: bool,
    /// Default: false for time-slicing, true for MPS, as in NVIDIA's plugin.
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

impl DeviceIdStrategy {
    /// The two names of a device, the preferred one first.
    pub fn ordered(self, [uuid, index]: [String; 2]) -> [String; 2] {
        match self {
            Self::Uuid => [uuid, index],
            Self::Index => [index, uuid],
        }
    }
}

/// Checks before each start of a container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PreStartCheck {
    /// The memory that must be free on every device of the container.
    #[serde(default)]
    pub minimum_free_memory: Option<Size>,
    /// Whether no process may be on a device of the container, except on shared devices.
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
            slot_policy: SlotPolicy::default(),
            on_conflict: OnConflict::default(),
            pre_start_check: None,
            device_root: "/".into(),
            // GKE's nodes have the driver at the first path, and its images expect it at the second.
            driver_mounts: vec![
                mount("/home/kubernetes/bin/nvidia", "/usr/local/nvidia"),
                mount("/home/kubernetes/bin/nvidia/vulkan/icd.d", "/etc/vulkan/icd.d"),
            ],
            mps_root: "/run/nvidia/mps".into(),
            cdi_annotation_prefix: "cdi.k8s.io/".to_owned(),
            environment: BTreeMap::new(),
            ignored: vec![],
        }
    }
}

/// Accepts a key without a value, too.
impl<'de> Deserialize<'de> for SharingConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SharingVisitor)
    }
}

/// Used instead of serde's derived code, whose errors do not name the keys.
struct SharingVisitor;

impl<'de> Visitor<'de> for SharingVisitor {
    type Value = SharingConfig;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("none, or a mapping with timeSlicing or mps")
    }

    fn visit_unit<E: Error>(self) -> Result<SharingConfig, E> {
        Ok(SharingConfig::None)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<SharingConfig, E> {
        (text == "none").then_some(SharingConfig::None).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<SharingConfig, M::Error> {
        let mut sharing = SharingConfig::None;
        while let Some(key) = map.next_key::<String>()? {
            if sharing != SharingConfig::None {
                return Err(M::Error::custom("sharing: timeSlicing and mps exclude each other; give one of them"));
            }
            sharing = match &*key {
                "timeSlicing" => SharingConfig::TimeSlicing(map.next_value()?),
                "mps" => SharingConfig::Mps(map.next_value()?),
                _ => return Err(M::Error::unknown_field(&key, &["timeSlicing", "mps"])),
            };
        }
        Ok(sharing)
    }
}

impl NvidiaConfig {
    pub fn includes(&self, strategy: DeviceListStrategy) -> bool {
        self.device_list_strategy.contains(&strategy)
    }

    pub fn uses_cdi(&self) -> bool {
        self.includes(DeviceListStrategy::CdiAnnotations) || self.includes(DeviceListStrategy::CdiCri)
    }

    pub fn shares_through_mps(&self) -> bool {
        matches!(self.sharing, SharingConfig::Mps(_))
    }

    /// Whether its answers name device nodes, or a specification of them.
    pub fn names_nodes(&self) -> bool {
        self.uses_cdi() || self.pass_device_specs || self.includes(DeviceListStrategy::DeviceNodes)
    }

    /// A warning for each setting without effect, as a sentence.
    pub fn warnings(&self) -> Vec<String> {
        let rules = self.sharing.replication().into_iter().flat_map(|replication| replication.per_resource.keys());
        let idle = rules.filter(|name| !self.may_offer(name)).map(|name| {
            let strategy = self.mig_strategy.into_str();
            format!("sharing: the rule for {name} has no effect: with migStrategy {strategy} no resource of this name is offered")
        });
        self.ignored.iter().cloned().chain(idle).collect()
    }

    /// Whether it may offer devices as this resource, before a shared resource gets another name.
    pub fn may_offer(&self, resource: &ResourceName) -> bool {
        let mig = if self.mig_strategy == MigStrategy::None { &[][..] } else { &self.names.mig };
        let mut names = self.names.gpus.iter().chain(mig).map(|named| &named.name).chain([&self.name]);
        names.any(|name| name == resource)
            || self.mig_strategy == MigStrategy::Mixed && self.is_profile(resource.as_str())
    }

    /// Whether `name` is that of a MIG profile under `mixed`.
    pub(super) fn is_profile(&self, name: &str) -> bool {
        let domain = self.name.as_str().split_once('/').map_or("", |(domain, _)| domain);
        name.strip_prefix(domain).is_some_and(|rest| rest.starts_with("/mig-"))
    }

    /// Whether the field may have the value that the user's file has under `key`.
    pub(super) fn check(key: &str, field: &str, value: &Value) -> Result<(), PluginConfigError> {
        Self::deserialize(json!({ field: value })).map(drop).or_else(|error| refuse(key, value, error))
    }

    /// This configuration with the given fields replaced, each as a whole. The user's file has them under `key`.
    pub(super) fn with(&self, key: &str, given: &Map<String, Value>) -> Result<Self, PluginConfigError> {
        for (field, value) in given {
            Self::check(&format!("{key}.{field}"), field, value)?;
        }
        let mut fields = serde_json::to_value(self).expect("a configuration can be written as JSON");
        fields.as_object_mut().into_iter().for_each(|fields| fields.extend(given.clone()));
        let config = Self::deserialize(fields).expect("each field was read before");
        Ok(Self { ignored: self.ignored.clone(), ..config })
    }

    /// Checks the values. `key` returns the key under which the user's file has a field.
    pub(super) fn validate(&self, key: impl Fn(&str) -> String) -> Result<(), PluginConfigError> {
        if self.device_list_strategy.is_empty() {
            let accepted =
                "accepted: envvar, volume-mounts, cdi-annotations, cdi-cri, device-nodes, or several of them";
            return refuse(&key("deviceListStrategy"), "[]", accepted);
        }
        if self.cdi_annotation_prefix.trim_end_matches('/').is_empty() || !self.cdi_annotation_prefix.ends_with('/') {
            let accepted = "accepted: a domain and a slash, as cdi.k8s.io/";
            return refuse(&key("cdiAnnotationPrefix"), &self.cdi_annotation_prefix, accepted);
        }
        check_absolute(&key("deviceRoot"), &self.device_root)?;
        check_absolute(&key("mpsRoot"), &self.mps_root)?;
        for mount in &self.driver_mounts {
            check_absolute(&key("driverMounts.hostPath"), &mount.host_path)?;
            check_absolute(&key("driverMounts.containerPath"), &mount.container_path)?;
        }
        if self.shares_through_mps() && self.mig_strategy == MigStrategy::Mixed {
            let accepted = "MPS cannot share MIG devices: use none or single, or timeSlicing";
            return refuse(&key("migStrategy"), "mixed with sharing.mps", accepted);
        }
        let section = if self.shares_through_mps() { "sharing.mps" } else { "sharing.timeSlicing" };
        self.sharing.replication().map_or(Ok(()), |replication| replication.validate(section, key))
    }
}

impl SharingConfig {
    pub fn replication(&self) -> Option<&Replication> {
        match self {
            Self::None => None,
            Self::TimeSlicing(replication) | Self::Mps(replication) => Some(replication),
        }
    }
}

impl Replication {
    fn validate(&self, section: &str, key: impl Fn(&str) -> String) -> Result<(), PluginConfigError> {
        if self.replicas.is_none() && self.per_gpu.is_empty() && self.per_resource.is_empty() {
            return refuse(&key(section), "{}", "give at least one of replicas, perGpu, perResource");
        }
        if let Some(replicas) = self.replicas {
            check_range(&key(&format!("{section}.replicas")), replicas, 2, MOST_SLOTS)?;
        }
        for (reference, replicas) in &self.per_gpu {
            check_range(&key(&format!("{section}.perGpu[{}]", reference.as_str())), *replicas, 1, MOST_SLOTS)?;
        }
        for (name, replication) in &self.per_resource {
            check_range(&key(&format!("{section}.perResource[{name}].replicas")), replication.replicas, 2, MOST_SLOTS)?;
        }
        Ok(())
    }
}
