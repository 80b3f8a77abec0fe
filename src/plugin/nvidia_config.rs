//! The configuration file of NVIDIA's k8s-device-plugin (`version: v1`), as that plugin reads it in v0.20: its keys become
//! those of an entry of kind nvidia, as YAML values.
//!
//! What is read is honoured, or is an error that names the field. Accepted without any effect are only:
//! `failOnInitError` (we wait for the driver either way), `useNodeFeatureAPI` and `gfd` (feature discovery reads the
//! same file for itself), and what shapes NVIDIA's own CDI specification while no CDI strategy needs one. `resources`,
//! and `rename` and `devices` under `sharing`, are honoured; NVIDIA's plugin ignores them with a warning.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::config::{MOST_SLOTS, NamePatterns, NvidiaConfig, Replication, ResourceReplication, SharedDevices, Sharing};
use super::values::resource_name;
use crate::input;

const DOMAIN: &str = "nvidia.com/";

/// Every key of such a file. With a second name: it becomes that key of an entry of kind nvidia; where two do, the later
/// one counts.
const KEYS: [(&str, Option<&str>); 33] = [
    ("version", None),
    ("flags.migStrategy", Some("migStrategy")),
    ("flags.failOnInitError", None),
    ("flags.mpsRoot", Some("mpsRoot")),
    ("flags.nvidiaDriverRoot", Some("deviceRoot")),
    ("flags.nvidiaDevRoot", Some("deviceRoot")),
    ("flags.gdrcopyEnabled", None),
    ("flags.gdsEnabled", None),
    ("flags.mofedEnabled", None),
    ("flags.useNodeFeatureAPI", None),
    ("flags.deviceDiscoveryStrategy", None),
    ("flags.plugin.passDeviceSpecs", Some("passDeviceSpecs")),
    ("flags.plugin.deviceListStrategy", Some("deviceListStrategy")),
    ("flags.plugin.deviceIDStrategy", Some("deviceIDStrategy")),
    ("flags.plugin.cdiAnnotationPrefix", Some("cdiAnnotationPrefix")),
    ("flags.plugin.nvidiaCTKPath", None),
    ("flags.plugin.containerDriverRoot", None),
    ("flags.plugin.sharedDevicesAllocationPolicy", Some("preferred")),
    ("flags.gfd.oneshot", None),
    ("flags.gfd.noTimestamp", None),
    ("flags.gfd.sleepInterval", None),
    ("flags.gfd.outputFile", None),
    ("flags.gfd.machineTypeFile", None),
    ("resources.gpus", None),
    ("resources.mig", None),
    ("sharing.timeSlicing.renameByDefault", None),
    ("sharing.timeSlicing.failRequestsGreaterThanOne", None),
    ("sharing.timeSlicing.resources", None),
    ("sharing.mps.renameByDefault", None),
    ("sharing.mps.failRequestsGreaterThanOne", None),
    ("sharing.mps.resources", None),
    ("imex.channelIDs", None),
    ("imex.required", None),
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvidiaConfigError {
    /// Not such a file, or a value that podmeter's own key does not accept.
    #[error("{0}")]
    Invalid(String),
    #[error("{field}: {value} cannot be honoured: {reason}")]
    NotHonoured { field: String, value: String, reason: String },
}

/// The text of such a file as our own configuration of one entry. Any text gives a result; none panics.
pub fn parse(text: &str) -> Result<NvidiaConfig, NvidiaConfigError> {
    // A file of comments alone is a file with every default.
    let file: Value = input::yaml(text).map_err(NvidiaConfigError::Invalid)?.unwrap_or_default();
    let mut keys = Keys::default();
    keys.read("", &file)?;
    convert(&file, keys)
}

/// The values of a file by their path.
#[derive(Debug, Default)]
struct Keys(BTreeMap<String, Value>);

impl Keys {
    /// A key without a value is not given.
    fn read(&mut self, path: &str, value: &Value) -> Result<(), NvidiaConfigError> {
        if value.is_null() {
            return Ok(());
        }
        if KEYS.iter().any(|(key, _)| *key == path) {
            self.0.insert(path.to_owned(), value.clone());
            return Ok(());
        }
        let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
        let Value::Object(section) = value else {
            return Err(not_honoured(
                if path.is_empty() { "the file" } else { path },
                value,
                "it is no section with keys",
            ));
        };
        let known = KEYS.iter().filter_map(|(key, _)| key.strip_prefix(&prefix)?.split('.').next());
        let mut known: Vec<&str> = known.collect();
        known.dedup();
        for (key, value) in section {
            if !known.contains(&key.as_str()) {
                let suggestion = input::suggestion(key, &known);
                return Err(NvidiaConfigError::Invalid(format!("unknown key `{prefix}{key}`{suggestion}")));
            }
            self.read(&format!("{prefix}{key}"), value)?;
        }
        Ok(())
    }

    fn take<T: DeserializeOwned>(&mut self, path: &str) -> Result<Option<T>, NvidiaConfigError> {
        self.0.remove(path).map(|value| typed(path, value)).transpose()
    }
}

fn typed<T: DeserializeOwned>(field: &str, value: Value) -> Result<T, NvidiaConfigError> {
    T::deserialize(&value).map_err(|error| not_honoured(field, &value, &error.to_string()))
}

fn convert(file: &Value, mut keys: Keys) -> Result<NvidiaConfig, NvidiaConfigError> {
    if let Some(version) = keys.0.remove("version").filter(|version| version != "v1") {
        return Err(not_honoured("version", &version, "this reads v1"));
    }
    let mut given = Map::new();
    for (path, ours) in KEYS.into_iter().filter_map(|(path, ours)| Some((path, ours?))) {
        let is_given = |value: &Value| !(path.ends_with("Root") && value == "");
        if let Some(value) = keys.0.remove(path).filter(is_given) {
            let is_device_nodes = |value: &Value| value == "device-nodes";
            if is_device_nodes(&value) || value.as_array().is_some_and(|all| all.iter().any(is_device_nodes)) {
                return Err(not_honoured(path, &value, "it is podmeter's own: set it under devicePlugin.resources"));
            }
            typed::<NvidiaConfig>(path, json!({ ours: value })).map_err(|error| match error {
                NvidiaConfigError::NotHonoured { field, reason, .. } => not_honoured(&field, &value, &reason),
                invalid => invalid,
            })?;
            given.insert(ours.to_owned(), value);
        }
    }
    let mut config: NvidiaConfig = typed("flags", Value::Object(given))?;
    config.names = NamePatterns { gpus: names("gpus", &mut keys)?, mig: names("mig", &mut keys)? };
    let is_shared = |kind: &str| file.pointer(&format!("/sharing/{kind}")).is_some_and(|section| !section.is_null());
    config.sharing = match (is_shared("timeSlicing"), is_shared("mps")) {
        (false, false) => Sharing::None,
        (true, false) => Sharing::TimeSlicing(replication("sharing.timeSlicing", &mut keys)?),
        (false, true) => Sharing::Mps(replication("sharing.mps", &mut keys)?),
        (true, true) => {
            let reason = "a GPU is shared in one way: remove one";
            return Err(not_honoured("sharing.timeSlicing", &json!("beside sharing.mps"), reason));
        }
    };
    for (field, variable) in [
        ("flags.gdrcopyEnabled", "NVIDIA_GDRCOPY"),
        ("flags.gdsEnabled", "NVIDIA_GDS"),
        ("flags.mofedEnabled", "NVIDIA_MOFED"),
    ] {
        if keys.take(field)? != Some(true) {
            continue;
        }
        if config.uses_cdi() {
            let reason = "our CDI specification holds device nodes only; set false, or no cdi strategy";
            return Err(not_honoured(field, &json!(true), reason));
        }
        config.environment.insert(variable.to_owned(), "enabled".to_owned());
    }
    for (field, default) in
        [("flags.plugin.nvidiaCTKPath", "/usr/bin/nvidia-ctk"), ("flags.plugin.containerDriverRoot", "/driver-root")]
    {
        if let Some(value) = keys.0.remove(field).filter(|value| value != default && config.uses_cdi()) {
            let reason = "our CDI specification holds device nodes only, without hooks or driver files; remove it";
            return Err(not_honoured(field, &value, reason));
        }
    }
    if let Some(other) =
        keys.0.remove("flags.deviceDiscoveryStrategy").filter(|value| value != "auto" && value != "nvml")
    {
        return Err(not_honoured("flags.deviceDiscoveryStrategy", &other, "accepted: auto, nvml"));
    }
    if let Some(channels) = keys.0.remove("imex.channelIDs").filter(|channels| *channels != json!([])) {
        return Err(not_honoured("imex.channelIDs", &channels, "IMEX channels are not supported"));
    }
    config.validate("flags").map_err(|error| NvidiaConfigError::Invalid(error.to_string()))?;
    Ok(config)
}

fn names<T: DeserializeOwned + Default>(kind: &str, keys: &mut Keys) -> Result<T, NvidiaConfigError> {
    let field = format!("resources.{kind}");
    let Some(mut patterns) = keys.0.remove(&field) else { return Ok(T::default()) };
    patterns.as_array_mut().into_iter().flatten().filter_map(|pattern| pattern.get_mut("name")).for_each(with_domain);
    typed(&field, patterns)
}

fn replication(section: &str, keys: &mut Keys) -> Result<Replication, NvidiaConfigError> {
    let field = format!("{section}.resources");
    let resources: Vec<Map<String, Value>> = keys.take(&field)?.unwrap_or_default();
    if resources.is_empty() {
        return Err(not_honoured(&field, &json!([]), "name at least one resource"));
    }
    let mut per_resource = BTreeMap::new();
    for mut resource in resources {
        let mut name = resource.remove("name").unwrap_or_default();
        let field = format!("{field}[{}]", name.as_str().unwrap_or_default());
        with_domain(&mut name);
        let name = name.as_str().ok_or_else(|| not_honoured(&field, &name, "a resource has a name"))?;
        let name = resource_name(name).map_err(|reason| not_honoured(&field, &json!(name), &reason))?;
        resource.retain(|key, value| key != "rename" || *value != "");
        if let Some(rename) = resource.get_mut("rename") {
            with_domain(rename);
        }
        if let Some(devices) = resource.get_mut("devices") {
            // `all`, a number, or a list of references.
            *devices = match devices.take() {
                count @ Value::Number(_) => json!({ "count": count }),
                list @ Value::Array(_) => json!({ "list": list }),
                other => other,
            };
        }
        let resource: ResourceReplication = typed(&field, Value::Object(resource))?;
        if !(2..=MOST_SLOTS).contains(&resource.replicas) {
            let accepted = format!("accepted: 2 to {MOST_SLOTS}");
            return Err(not_honoured(&format!("{field}.replicas"), &json!(resource.replicas), &accepted));
        }
        if resource.devices == SharedDevices::Count(0) {
            let accepted = "accepted: all, a number of devices, or a list of devices";
            return Err(not_honoured(&format!("{field}.devices"), &json!(0), accepted));
        }
        if per_resource.insert(name, resource).is_some() {
            return Err(not_honoured(&field, &json!("a second time"), "name each resource once"));
        }
    }
    Ok(Replication {
        per_resource,
        rename_by_default: keys.take(&format!("{section}.renameByDefault"))?.unwrap_or_default(),
        fail_requests_greater_than_one: keys.take(&format!("{section}.failRequestsGreaterThanOne"))?,
        ..Replication::default()
    })
}

/// NVIDIA's plugin puts its domain before a name without one.
fn with_domain(name: &mut Value) {
    if let Value::String(name) = name
        && !name.starts_with(DOMAIN)
    {
        name.insert_str(0, DOMAIN);
    }
}

fn not_honoured(field: &str, value: &Value, reason: &str) -> NvidiaConfigError {
    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    NvidiaConfigError::NotHonoured { field: field.to_owned(), value, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;
    use crate::model::ResourceName;
    use crate::plugin::config::{DeviceIdStrategy, DeviceListStrategy, MigStrategy, NewName, Preferred};

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
            ("flag: {}".to_owned(), vec!["flag", "flags"]),
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
            ("resources: {gpus: [{pattern: '*', name: a/b}]}".to_owned(), vec!["resources.gpus", "a/b"]),
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
