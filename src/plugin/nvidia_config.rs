//! The configuration file of NVIDIA's k8s-device-plugin (`version: v1`), as that plugin reads it in v0.20.
//!
//! What is read is honoured, or is an error that names the field. Accepted without any effect are only:
//! `failOnInitError` (we wait for the driver either way), `useNodeFeatureAPI` and `gfd` (feature discovery reads the
//! same file for itself), and what shapes NVIDIA's own CDI specification while no CDI strategy needs one. `resources`,
//! and `rename` and `devices` under `sharing`, are honoured; NVIDIA's plugin ignores them with a warning.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::config::{
    DeviceIdStrategy, DeviceListStrategy, MOST_SLOTS, MigStrategy, NamePattern, NamePatterns, NewName, NvidiaConfig,
    Preferred, Replication, ResourceReplication, SharedDevices, Sharing,
};
use super::values::{DeviceReference, one_or_several, resource_name};
use crate::input;
use crate::model::ResourceName;

const DOMAIN: &str = "nvidia.com/";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvidiaConfigError {
    /// Not such a file: the parser's message, with line and column.
    #[error("{0}")]
    Invalid(String),
    #[error("{field}: {value} cannot be honoured: {reason}")]
    NotHonoured { field: String, value: String, reason: String },
}

/// The text of such a file as our own configuration of one entry. Any text gives a result; none panics.
pub fn parse(text: &str) -> Result<NvidiaConfig, NvidiaConfigError> {
    // A file of comments alone is a file with every default.
    let file: Option<File> = input::yaml(text).map_err(NvidiaConfigError::Invalid)?;
    file.map_or_else(|| Ok(NvidiaConfig::default()), convert)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: Option<String>,
    flags: Option<Flags>,
    resources: Option<Resources>,
    sharing: Option<SharingSection>,
    imex: Option<Imex>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Flags {
    mig_strategy: Option<MigStrategy>,
    #[serde(rename = "failOnInitError")]
    _fail_on_init_error: Option<bool>,
    mps_root: Option<PathBuf>,
    nvidia_driver_root: Option<PathBuf>,
    nvidia_dev_root: Option<PathBuf>,
    gdrcopy_enabled: Option<bool>,
    gds_enabled: Option<bool>,
    mofed_enabled: Option<bool>,
    #[serde(rename = "useNodeFeatureAPI")]
    _use_node_feature_api: Option<bool>,
    device_discovery_strategy: Option<String>,
    plugin: Option<PluginFlags>,
    #[serde(rename = "gfd")]
    _gfd: Option<FeatureDiscoveryFlags>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct PluginFlags {
    pass_device_specs: Option<bool>,
    device_list_strategy: Option<Strategies>,
    #[serde(rename = "deviceIDStrategy")]
    device_id_strategy: Option<DeviceIdStrategy>,
    #[serde(rename = "cdiAnnotationPrefix")]
    cdi_annotation_prefix: Option<String>,
    #[serde(rename = "nvidiaCTKPath")]
    nvidia_ctk_path: Option<String>,
    container_driver_root: Option<String>,
    shared_devices_allocation_policy: Option<Preferred>,
}

#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct Strategies(#[serde(deserialize_with = "one_or_several")] Vec<DeviceListStrategy>);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct FeatureDiscoveryFlags {
    #[serde(rename = "oneshot")]
    _oneshot: Option<bool>,
    #[serde(rename = "noTimestamp")]
    _no_timestamp: Option<bool>,
    #[serde(rename = "sleepInterval")]
    _sleep_interval: IgnoredAny,
    #[serde(rename = "outputFile")]
    _output_file: Option<String>,
    #[serde(rename = "machineTypeFile")]
    _machine_type_file: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Resources {
    gpus: Option<Vec<Pattern>>,
    mig: Option<Vec<Pattern>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pattern {
    pattern: String,
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct SharingSection {
    time_slicing: Option<Replicated>,
    mps: Option<Replicated>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Replicated {
    rename_by_default: Option<bool>,
    fail_requests_greater_than_one: Option<bool>,
    resources: Vec<ReplicatedResource>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicatedResource {
    name: String,
    rename: Option<String>,
    devices: Option<Devices>,
    replicas: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Imex {
    #[serde(rename = "channelIDs")]
    channel_ids: Option<Vec<i64>>,
    #[serde(rename = "required")]
    _required: Option<bool>,
}

/// `all`, a number, or a list of references.
#[derive(Debug)]
struct Devices(SharedDevices);

impl<'de> Deserialize<'de> for Devices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = Devices;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("all, a number of devices, or a list of devices")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Devices, E> {
                if text == "all" {
                    return Ok(Devices(SharedDevices::All));
                }
                Err(E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_u64<E: de::Error>(self, count: u64) -> Result<Devices, E> {
                match u32::try_from(count) {
                    Ok(count) if count > 0 => Ok(Devices(SharedDevices::Count(count))),
                    _ => Err(E::invalid_value(de::Unexpected::Unsigned(count), &self)),
                }
            }

            fn visit_i64<E: de::Error>(self, count: i64) -> Result<Devices, E> {
                match u64::try_from(count) {
                    Ok(count) => self.visit_u64(count),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(count), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Devices, A::Error> {
                let mut references: Vec<DeviceReference> = vec![];
                while let Some(reference) = list.next_element()? {
                    references.push(reference);
                }
                Ok(Devices(SharedDevices::List(references)))
            }
        }
        deserializer.deserialize_any(Form)
    }
}

fn convert(file: File) -> Result<NvidiaConfig, NvidiaConfigError> {
    if let Some(version) = file.version.filter(|version| version != "v1") {
        return Err(not_honoured("version", &version, "this reads v1"));
    }
    let flags = file.flags.unwrap_or_default();
    let plugin = flags.plugin.unwrap_or_default();
    let default = NvidiaConfig::default();
    let mut config = NvidiaConfig {
        mig_strategy: flags.mig_strategy.unwrap_or_default(),
        device_list_strategy: plugin.device_list_strategy.map_or(default.device_list_strategy, |list| list.0),
        device_id_strategy: plugin.device_id_strategy.unwrap_or_default(),
        pass_device_specs: plugin.pass_device_specs.unwrap_or_default(),
        preferred: plugin.shared_devices_allocation_policy.unwrap_or_default(),
        device_root: flags
            .nvidia_dev_root
            .filter(|root| !root.as_os_str().is_empty())
            .or(flags.nvidia_driver_root)
            .unwrap_or(default.device_root),
        mps_root: flags.mps_root.filter(|root| !root.as_os_str().is_empty()).unwrap_or(default.mps_root),
        cdi_annotation_prefix: plugin.cdi_annotation_prefix.unwrap_or(default.cdi_annotation_prefix),
        names: names(file.resources.unwrap_or_default())?,
        sharing: sharing(file.sharing.unwrap_or_default())?,
        ..NvidiaConfig::default()
    };
    if config.includes(DeviceListStrategy::DeviceNodes) {
        let reason = "it is podmeter's own: set it under devicePlugin.resources";
        return Err(not_honoured("flags.plugin.deviceListStrategy", "device-nodes", reason));
    }
    for (field, enabled, variable) in [
        ("flags.gdrcopyEnabled", flags.gdrcopy_enabled, "NVIDIA_GDRCOPY"),
        ("flags.gdsEnabled", flags.gds_enabled, "NVIDIA_GDS"),
        ("flags.mofedEnabled", flags.mofed_enabled, "NVIDIA_MOFED"),
    ] {
        if enabled != Some(true) {
            continue;
        }
        if config.uses_cdi() {
            let reason = "our CDI specification holds device nodes only; set false, or no cdi strategy";
            return Err(not_honoured(field, "true", reason));
        }
        config.environment.insert(variable.to_owned(), "enabled".to_owned());
    }
    for (field, value, default) in [
        ("flags.plugin.nvidiaCTKPath", plugin.nvidia_ctk_path, "/usr/bin/nvidia-ctk"),
        ("flags.plugin.containerDriverRoot", plugin.container_driver_root, "/driver-root"),
    ] {
        if let Some(value) = value.filter(|value| value != default && config.uses_cdi()) {
            let reason = "our CDI specification holds device nodes only, without hooks or driver files; remove it";
            return Err(not_honoured(field, &value, reason));
        }
    }
    match flags.device_discovery_strategy.as_deref() {
        None | Some("auto" | "nvml") => {}
        Some(other) => {
            return Err(not_honoured("flags.deviceDiscoveryStrategy", other, "accepted: auto, nvml"));
        }
    }
    let channels = file.imex.unwrap_or_default().channel_ids.unwrap_or_default();
    if !channels.is_empty() {
        return Err(not_honoured("imex.channelIDs", &format!("{channels:?}"), "IMEX channels are not supported"));
    }
    config.validate("flags").map_err(|error| NvidiaConfigError::Invalid(error.to_string()))?;
    Ok(config)
}

fn names(resources: Resources) -> Result<NamePatterns, NvidiaConfigError> {
    let patterns = |field: &str, patterns: Option<Vec<Pattern>>| {
        let one = |pattern: Pattern| {
            Ok(NamePattern { pattern: pattern.pattern, name: name(&format!("resources.{field}.name"), &pattern.name)? })
        };
        patterns.unwrap_or_default().into_iter().map(one).collect::<Result<Vec<_>, _>>()
    };
    Ok(NamePatterns { gpus: patterns("gpus", resources.gpus)?, mig: patterns("mig", resources.mig)? })
}

fn sharing(section: SharingSection) -> Result<Sharing, NvidiaConfigError> {
    match (section.time_slicing, section.mps) {
        (None, None) => Ok(Sharing::None),
        (Some(slicing), None) => Ok(Sharing::TimeSlicing(replication("sharing.timeSlicing", slicing)?)),
        (None, Some(mps)) => Ok(Sharing::Mps(replication("sharing.mps", mps)?)),
        (Some(_), Some(_)) => {
            Err(not_honoured("sharing.timeSlicing", "beside sharing.mps", "a GPU is shared in one way: remove one"))
        }
    }
}

fn replication(field: &str, section: Replicated) -> Result<Replication, NvidiaConfigError> {
    if section.resources.is_empty() {
        return Err(not_honoured(&format!("{field}.resources"), "[]", "name at least one resource"));
    }
    let mut per_resource = BTreeMap::new();
    for resource in section.resources {
        let field = format!("{field}.resources[{}]", resource.name);
        let replicas = u32::try_from(resource.replicas).ok().filter(|count| (2..=MOST_SLOTS).contains(count));
        let Some(replicas) = replicas else {
            let accepted = format!("accepted: 2 to {MOST_SLOTS}");
            return Err(not_honoured(&format!("{field}.replicas"), &resource.replicas.to_string(), &accepted));
        };
        let rename = resource.rename.filter(|text| !text.is_empty());
        let rename = rename.map(|text| name(&format!("{field}.rename"), &text).map(NewName)).transpose()?;
        let devices = resource.devices.map_or(SharedDevices::All, |devices| devices.0);
        let known = name(&format!("{field}.name"), &resource.name)?;
        if per_resource.insert(known, ResourceReplication { replicas, rename, devices }).is_some() {
            return Err(not_honoured(&field, "a second time", "name each resource once"));
        }
    }
    Ok(Replication {
        per_resource,
        rename_by_default: section.rename_by_default.unwrap_or_default(),
        fail_requests_greater_than_one: section.fail_requests_greater_than_one,
        ..Replication::default()
    })
}

/// NVIDIA's plugin puts its domain before a name without one.
fn name(field: &str, text: &str) -> Result<ResourceName, NvidiaConfigError> {
    let whole = if text.starts_with(DOMAIN) { text.to_owned() } else { format!("{DOMAIN}{text}") };
    resource_name(&whole).map_err(|reason| not_honoured(field, text, &reason))
}

fn not_honoured(field: &str, value: &str, reason: &str) -> NvidiaConfigError {
    NvidiaConfigError::NotHonoured { field: field.to_owned(), value: value.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// With every key of that plugin, as its documentation and chart write them.
    const FULL: &str = "
version: v1
flags:
  migStrategy: mixed
  failOnInitError: true
  mpsRoot: /run/nvidia/mps
  nvidiaDriverRoot: /run/nvidia/driver
  gdrcopyEnabled: true
  gdsEnabled: false
  mofedEnabled: true
  useNodeFeatureAPI: false
  deviceDiscoveryStrategy: auto
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, volume-mounts]
    deviceIDStrategy: index
    cdiAnnotationPrefix: cdi.k8s.io/
    nvidiaCTKPath: /elsewhere/nvidia-ctk
    containerDriverRoot: /driver-root
    sharedDevicesAllocationPolicy: packed
  gfd: {oneshot: false, noTimestamp: false, sleepInterval: 60s, outputFile: /x, machineTypeFile: /y}
resources:
  gpus: [{pattern: '*H100*', name: h100}]
  mig: [{pattern: '1g.*', name: nvidia.com/mig-small}]
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - {name: nvidia.com/gpu, replicas: 10}
    - {name: mig-1g.10gb, rename: mig-part, devices: all, replicas: 2}
    - {name: nvidia.com/a, devices: 2, replicas: 3}
    - {name: nvidia.com/b, devices: [0, '1:2', GPU-b1028956-cfa2-0990-bf4a-5da9abb51763], replicas: 3}
imex: {channelIDs: [], required: false}
";

    #[test]
    fn a_full_file_is_honoured() {
        let config = parse(FULL).unwrap();
        assert_eq!(config.mig_strategy, MigStrategy::Mixed);
        assert_eq!(config.device_list_strategy, [DeviceListStrategy::Envvar, DeviceListStrategy::VolumeMounts]);
        assert_eq!(config.device_id_strategy, DeviceIdStrategy::Index);
        assert_eq!(config.preferred, Preferred::Packed);
        assert!(config.pass_device_specs);
        assert_eq!(config.device_root, PathBuf::from("/run/nvidia/driver"));
        let variables: Vec<&str> = config.environment.keys().map(String::as_str).collect();
        assert_eq!(variables, ["NVIDIA_GDRCOPY", "NVIDIA_MOFED"]);
        assert_eq!(config.names.gpus[0].name.as_str(), "nvidia.com/h100");
        let Sharing::TimeSlicing(sharing) = config.sharing else { panic!("time-slicing") };
        assert_eq!(sharing.replicas, None, "what is not named is not shared");
        assert_eq!(sharing.fail_requests_greater_than_one, Some(true));
        let rule = |name: &str| &sharing.per_resource[&ResourceName::from(name)];
        assert_eq!(rule("nvidia.com/gpu").replicas, 10);
        assert_eq!(rule("nvidia.com/mig-1g.10gb").rename, Some(NewName("nvidia.com/mig-part".into())));
        assert_eq!(rule("nvidia.com/a").devices, SharedDevices::Count(2));
        assert!(matches!(&rule("nvidia.com/b").devices, SharedDevices::List(list) if list.len() == 3));
    }

    #[test]
    fn little_is_enough() {
        for text in
            ["", "# none\n", "version: v1\n", "flags:\n", "version: v1\nflags: {plugin: {deviceListStrategy: envvar}}"]
        {
            assert_eq!(parse(text).unwrap(), NvidiaConfig::default(), "{text:?}");
        }
        let mps = parse("sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}").unwrap();
        assert!(matches!(mps.sharing, Sharing::Mps(_)));
    }

    #[test]
    fn what_cannot_be_honoured_is_named() {
        let sharing = |resources: &str| format!("sharing: {{timeSlicing: {{resources: [{resources}]}}}}");
        for (text, parts) in [
            ("version: v2".to_owned(), vec!["version", "v2", "v1"]),
            ("flag: {}".to_owned(), vec!["flag", "flags", "line 1"]),
            ("flags: {migStrategy: double}".to_owned(), vec!["double", "single"]),
            ("flags: {passDeviceSpecs: true}".to_owned(), vec!["passDeviceSpecs", "plugin"]),
            ("flags: {deviceDiscoveryStrategy: tegra}".to_owned(), vec!["flags.deviceDiscoveryStrategy", "tegra"]),
            ("flags: {plugin: {deviceListStrategy: env}}".to_owned(), vec!["env", "envvar"]),
            (
                "flags: {plugin: {deviceListStrategy: device-nodes}}".to_owned(),
                vec!["deviceListStrategy", "device-nodes"],
            ),
            ("flags: {plugin: {deviceListStrategy: []}}".to_owned(), vec!["deviceListStrategy"]),
            ("flags: {plugin: {deviceIDStrategy: name}}".to_owned(), vec!["name", "uuid"]),
            (
                "flags: {gdsEnabled: true, plugin: {deviceListStrategy: cdi-cri}}".to_owned(),
                vec!["flags.gdsEnabled", "CDI"],
            ),
            (
                "flags: {plugin: {deviceListStrategy: cdi-cri, nvidiaCTKPath: /x}}".to_owned(),
                vec!["flags.plugin.nvidiaCTKPath", "/x"],
            ),
            (
                "flags: {plugin: {deviceListStrategy: cdi-cri, containerDriverRoot: /x}}".to_owned(),
                vec!["flags.plugin.containerDriverRoot", "/x"],
            ),
            ("flags: {gfd: {oneshots: true}}".to_owned(), vec!["oneshots"]),
            ("imex: {channelIDs: [0]}".to_owned(), vec!["imex.channelIDs", "[0]"]),
            ("resources: {migs: []}".to_owned(), vec!["migs", "mig"]),
            ("resources: {gpus: [{pattern: '*'}]}".to_owned(), vec!["name"]),
            ("resources: {gpus: [{pattern: '*', name: a/b}]}".to_owned(), vec!["resources.gpus.name", "a/b"]),
            ("sharing: {timeSlicing: {}}".to_owned(), vec!["resources"]),
            ("sharing: {timeSlicing: {resources: []}}".to_owned(), vec!["sharing.timeSlicing.resources"]),
            (sharing("{name: gpu, replicas: 1}"), vec!["sharing.timeSlicing.resources[gpu].replicas", "1", "2 to"]),
            (sharing("{name: gpu, replicas: -4}"), vec!["replicas", "-4"]),
            (sharing("{name: gpu}"), vec!["replicas"]),
            (sharing("{name: gpu, replicas: 2, devices: some}"), vec!["some", "all"]),
            (sharing("{name: gpu, replicas: 2, devices: 0}"), vec!["0", "all"]),
            (sharing("{name: gpu, replicas: 2, devices: [GPU-none]}"), vec!["GPU-none"]),
            (sharing("{name: gpu, replicas: 2}, {name: nvidia.com/gpu, replicas: 3}"), vec!["second time"]),
            (
                "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}, \
                 mps: {resources: [{name: gpu, replicas: 2}]}}"
                    .to_owned(),
                vec!["sharing.timeSlicing", "sharing.mps"],
            ),
            (
                "flags: {migStrategy: mixed}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}".to_owned(),
                vec!["migStrategy", "MPS"],
            ),
        ] {
            let error = parse(&text).expect_err(&text).to_string();
            for part in parts {
                assert!(error.contains(part), "{part:?} in {error} of {text}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_a_result(text in "\\PC{0,80}") {
            let _ = parse(&text);
        }

        #[test]
        fn a_damaged_file_gives_a_result(place in 0..FULL.len(), letter in "[ -~\n]") {
            let _ = parse(&format!("{}{letter}{}", &FULL[..place], &FULL[(place + 1).min(FULL.len())..]));
            let _ = parse(&FULL[..place]);
        }
    }
}
