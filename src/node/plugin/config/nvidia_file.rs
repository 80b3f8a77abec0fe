//! The configuration file of NVIDIA's k8s-device-plugin (`version: v1`), as that plugin reads it in v0.20: its keys become
//! those of an entry of kind nvidia, as YAML values.
//!
//! What is read is honoured, or is an error that names the field. Accepted without any effect are only:
//! `failOnInitError` (we wait for the driver either way), `useNodeFeatureAPI` and `gfd` (feature discovery reads the
//! same file for itself), `imex.required` (channels are refused), and what shapes NVIDIA's own CDI specification while no
//! CDI strategy needs one. `resources`, and `rename` under `sharing`, are honoured; NVIDIA's plugin ignores them with a
//! warning.

use std::collections::BTreeMap;

use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::check::{PluginConfigError, refuse};
use super::nvidia::{NvidiaConfig, ResourceReplication, SharingConfig};
use crate::input;

const DOMAIN: &str = "nvidia.com/";

/// Every key of such a file. With a second name: it becomes that key of an entry of kind nvidia; where two do, the later
/// one counts.
const KEYS: [(&str, Option<&str>); 25] = [
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
    ("flags.gfd", None),
    ("resources.gpus", None),
    ("resources.mig", None),
    ("sharing.timeSlicing", None),
    ("sharing.mps", None),
    ("imex.channelIDs", None),
    ("imex.required", None),
];

/// A key, which of its values are accepted, and why the others are not.
type Restriction = (&'static str, fn(&Value) -> bool, &'static str);

const RESTRICTED: [Restriction; 3] = [
    ("version", |value| value == "v1", "this reads v1"),
    ("flags.deviceDiscoveryStrategy", |value| value == "auto" || value == "nvml", "accepted: auto, nvml"),
    ("imex.channelIDs", |value| *value == json!([]), "IMEX channels are not supported"),
];
/// They shape NVIDIA's own specification, in whose place is ours; other strategies use none.
const RESTRICTED_WITH_CDI: [Restriction; 2] = [
    ("flags.plugin.nvidiaCTKPath", |value| value == "/usr/bin/nvidia-ctk", DEVICE_NODES_ONLY),
    ("flags.plugin.containerDriverRoot", |value| value == "/driver-root", DEVICE_NODES_ONLY),
];
/// Of `sharing.timeSlicing` and `sharing.mps`.
const SHARING: [&str; 3] = ["renameByDefault", "failRequestsGreaterThanOne", "resources"];
const DEVICE_NODES_ONLY: &str =
    "our CDI specification holds device nodes only, without hooks or driver files; remove it";

/// The text of such a file as our own configuration of one entry. Any text gives a result; none panics. `values` are those
/// that have not been converted or checked yet: first those with a key of ours, then the others.
pub fn parse(text: &str) -> Result<NvidiaConfig, PluginConfigError> {
    // A file of comments alone is a file with every default.
    let file: Value = input::yaml(text).map_err(PluginConfigError)?.unwrap_or_default();
    let mut values = BTreeMap::new();
    collect("", file, &mut values)?;
    let (mut keys, mut path_by_key) = (Map::new(), BTreeMap::new());
    for (path, ours) in KEYS.into_iter().filter_map(|(path, ours)| Some((path, ours?))) {
        // An empty root is the default.
        if let Some(value) = values.remove(path).filter(|value| !(path.ends_with("Root") && value == "")) {
            NvidiaConfig::check(path, ours, &value)?;
            keys.insert(ours.to_owned(), value);
            path_by_key.insert(ours, path);
        }
    }
    keys.insert("names".to_owned(), names(&mut values)?);
    for kind in ["timeSlicing", "mps"] {
        let key = format!("sharing.{kind}");
        let Some(section) = values.remove(&key) else { continue };
        let sharing = json!({ kind: replication(&key, section.clone())? });
        SharingConfig::deserialize(&sharing).or_else(|error| refuse(&key, section, error))?;
        if keys.insert("sharing".to_owned(), sharing).is_some() {
            return refuse("sharing.timeSlicing", "beside sharing.mps", "a GPU is shared in one way: remove one");
        }
    }
    let mut config = NvidiaConfig::default().with("flags", &keys)?;
    for (field, variable) in [
        ("flags.gdrcopyEnabled", "NVIDIA_GDRCOPY"),
        ("flags.gdsEnabled", "NVIDIA_GDS"),
        ("flags.mofedEnabled", "NVIDIA_MOFED"),
    ] {
        match values.remove(field) {
            None | Some(Value::Bool(false)) => {}
            Some(Value::Bool(true)) if !config.uses_cdi() => {
                config.environment.insert(variable.to_owned(), "enabled".to_owned());
            }
            Some(other) => return refuse(field, other, "accepted: false, and true without a CDI strategy"),
        }
    }
    let with_cdi = config.uses_cdi().then_some(RESTRICTED_WITH_CDI).into_iter().flatten();
    for (field, is_accepted, reason) in RESTRICTED.into_iter().chain(with_cdi) {
        if let Some(other) = values.remove(field).filter(|value| !is_accepted(value)) {
            return refuse(field, other, reason);
        }
    }
    // Keys of `sharing` are equal, but for the list of resources.
    config.validate(|ours| path_by_key.get(ours).copied().unwrap_or(ours).replace(".perResource[", ".resources["))?;
    Ok(config)
}

/// The values by the paths of `KEYS`. A key without a value is not given.
fn collect(path: &str, value: Value, values: &mut BTreeMap<String, Value>) -> Result<(), PluginConfigError> {
    if value.is_null() {
        return Ok(());
    }
    if KEYS.iter().any(|(key, _)| *key == path) {
        values.insert(path.to_owned(), value);
        return Ok(());
    }
    let Value::Object(section) = value else { return refuse(path, value, "it is no section with keys") };
    let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
    let known = KEYS.iter().filter_map(|(key, _)| key.strip_prefix(&prefix)?.split('.').next());
    let mut known: Vec<&str> = known.collect();
    known.dedup();
    for (key, value) in section {
        if !known.contains(&key.as_str()) {
            return Err(PluginConfigError(format!("unknown key `{prefix}{key}`{}", input::suggestion(&key, &known))));
        }
        collect(&format!("{prefix}{key}"), value, values)?;
    }
    Ok(())
}

fn names(values: &mut BTreeMap<String, Value>) -> Result<Value, PluginConfigError> {
    let mut names = Map::new();
    for kind in ["gpus", "mig"] {
        let field = format!("resources.{kind}");
        let Some(mut patterns) = values.remove(&field) else { continue };
        let patterns_of = patterns.as_array_mut().into_iter().flatten();
        patterns_of.filter_map(|pattern| pattern.get_mut("name")).for_each(with_domain);
        NvidiaConfig::check(&field, "names", &json!({ kind: patterns }))?;
        names.insert(kind.to_owned(), patterns);
    }
    Ok(Value::Object(names))
}

/// The section with its list of resources as our map by name.
fn replication(key: &str, mut section: Value) -> Result<Value, PluginConfigError> {
    let Some(keys) = section.as_object_mut() else { return refuse(key, section, "it is no section with keys") };
    if let Some(unknown) = keys.keys().find(|key| !SHARING.contains(&key.as_str())) {
        let suggestion = input::suggestion(unknown, &SHARING);
        return Err(PluginConfigError(format!("unknown key `{key}.{unknown}`{suggestion}")));
    }
    let field = format!("{key}.resources");
    let resources = match keys.remove("resources").unwrap_or(json!([])) {
        Value::Array(resources) if !resources.is_empty() => resources,
        other => return refuse(&field, other, "give a list of at least one resource"),
    };
    let mut by_name = Map::new();
    for mut resource in resources {
        let Some(keys) = resource.as_object_mut() else { return refuse(&field, resource, "a resource has a name") };
        let mut name = keys.remove("name").unwrap_or_default();
        with_domain(&mut name);
        let Value::String(name) = name else { return refuse(&field, name, "a resource has a name") };
        let field = format!("{field}[{name}]");
        keys.retain(|key, value| key != "rename" || *value != "");
        keys.get_mut("rename").into_iter().for_each(with_domain);
        if let Some(devices) = keys.remove("devices").filter(|devices| devices != "all") {
            let accepted = "accepted: all; to share some of the GPUs, use perGpu of devicePlugin.resources";
            return refuse(&format!("{field}.devices"), devices, accepted);
        }
        ResourceReplication::deserialize(&resource).or_else(|error| refuse(&field, &resource, error))?;
        if by_name.insert(name, resource).is_some() {
            return refuse(&field, "a second time", "name each resource once");
        }
    }
    section["perResource"] = Value::Object(by_name);
    Ok(section)
}

/// NVIDIA's plugin puts its domain before each name that does not begin with it.
fn with_domain(name: &mut Value) {
    if let Value::String(name) = name
        && !name.starts_with(DOMAIN)
    {
        name.insert_str(0, DOMAIN);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;
    use crate::domain::model::ResourceName;
    use crate::domain::preference::SlotPolicy;
    use crate::node::plugin::config::nvidia::{DeviceIdStrategy, DeviceListStrategy, MigStrategy, NewName};

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
imex: {channelIDs: [], required: false}
";

    #[test]
    fn a_full_file_is_honoured() {
        let config = parse(FULL).unwrap();
        assert_eq!(config.mig_strategy, MigStrategy::Mixed);
        assert_eq!(config.device_list_strategy, [DeviceListStrategy::Envvar, DeviceListStrategy::VolumeMounts]);
        assert_eq!(config.device_id_strategy, DeviceIdStrategy::Index);
        assert_eq!(config.slot_policy, SlotPolicy::Packed);
        assert!(config.pass_device_specs);
        assert_eq!(config.device_root, PathBuf::from("/run/nvidia/driver"));
        let variables: Vec<&str> = config.environment.keys().map(String::as_str).collect();
        assert_eq!(variables, ["NVIDIA_GDRCOPY", "NVIDIA_MOFED"]);
        assert_eq!(config.names.gpus[0].name.as_str(), "nvidia.com/h100");
        let SharingConfig::TimeSlicing(sharing) = config.sharing else { panic!("time-slicing") };
        assert_eq!(sharing.replicas, None, "what is not named is not shared");
        assert_eq!(sharing.fail_requests_greater_than_one, Some(true));
        let rule = |name: &str| &sharing.per_resource[&ResourceName::from(name)];
        assert_eq!(rule("nvidia.com/gpu").replicas, 10);
        assert_eq!(rule("nvidia.com/mig-1g.10gb").rename, Some(NewName("nvidia.com/mig-part".into())));
    }

    #[test]
    fn little_is_enough() {
        for text in
            ["", "# none\n", "version: v1\n", "flags:\n", "version: v1\nflags: {plugin: {deviceListStrategy: envvar}}"]
        {
            assert_eq!(parse(text).unwrap(), NvidiaConfig::default(), "{text:?}");
        }
        let mps = parse("sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}").unwrap();
        assert!(matches!(mps.sharing, SharingConfig::Mps(_)));
    }

    #[test]
    fn what_cannot_be_honoured_is_named() {
        let sharing = |resources: &str| format!("sharing: {{timeSlicing: {{resources: [{resources}]}}}}");
        let cdi = |key: &str| format!("flags: {{plugin: {{deviceListStrategy: cdi-cri, {key}: /x}}}}");
        for (text, start, part) in [
            ("version: v2".to_owned(), "version: \"v2\"", "v1"),
            ("version: []".to_owned(), "version: []", "v1"),
            ("flag: {}".to_owned(), "unknown key `flag`", "`flags`"),
            ("flags: {migStrategy: double}".to_owned(), "flags.migStrategy: \"double\"", "`single`"),
            ("flags: {passDeviceSpecs: true}".to_owned(), "unknown key `flags.passDeviceSpecs`", "plugin"),
            ("flags: {deviceDiscoveryStrategy: []}".to_owned(), "flags.deviceDiscoveryStrategy: []", "nvml"),
            ("flags: {deviceDiscoveryStrategy: tegra}".to_owned(), "flags.deviceDiscoveryStrategy: \"tegra\"", "nvml"),
            (
                "flags: {plugin: {deviceListStrategy: env}}".to_owned(),
                "flags.plugin.deviceListStrategy: \"env\"",
                "`envvar`",
            ),
            (
                "flags: {plugin: {deviceIDStrategy: name}}".to_owned(),
                "flags.plugin.deviceIDStrategy: \"name\"",
                "`uuid`",
            ),
            (
                "flags: {gdsEnabled: true, plugin: {deviceListStrategy: cdi-cri}}".to_owned(),
                "flags.gdsEnabled: true",
                "CDI",
            ),
            (cdi("nvidiaCTKPath"), "flags.plugin.nvidiaCTKPath: \"/x\"", "remove it"),
            (cdi("containerDriverRoot"), "flags.plugin.containerDriverRoot: \"/x\"", "remove it"),
            ("imex: {channelIDs: [0]}".to_owned(), "imex.channelIDs: [0]", "not supported"),
            ("resources: {migs: []}".to_owned(), "unknown key `resources.migs`", "`mig`"),
            ("resources: {gpus: [{pattern: '*'}]}".to_owned(), "resources.gpus: ", "name"),
            ("resources: {gpus: [{pattern: '*', name: a/b}]}".to_owned(), "resources.gpus: ", "a/b"),
            ("sharing: {timeSlicing: {}}".to_owned(), "sharing.timeSlicing.resources: []", "at least one"),
            ("sharing: {mps: {resources: {}}}".to_owned(), "sharing.mps.resources: {}", "a list"),
            ("sharing: {mps: {perResource: {}}}".to_owned(), "unknown key `sharing.mps.perResource`", "`resources`"),
            (sharing("{name: gpu, replicas: -4}"), "sharing.timeSlicing.resources[nvidia.com/gpu]: ", "-4"),
            (sharing("{name: gpu}"), "sharing.timeSlicing.resources[nvidia.com/gpu]: ", "replicas"),
            (
                sharing("{name: gpu, replicas: 2, devices: some}"),
                "sharing.timeSlicing.resources[nvidia.com/gpu].devices: \"some\"",
                "all",
            ),
            (
                sharing("{name: gpu, replicas: 2, devices: [0]}"),
                "sharing.timeSlicing.resources[nvidia.com/gpu].devices: [0]",
                "perGpu of devicePlugin.resources",
            ),
            (
                sharing("{name: gpu, replicas: 2}, {name: nvidia.com/gpu, replicas: 3}"),
                "sharing.timeSlicing.resources[nvidia.com/gpu]: a second time",
                "once",
            ),
            (
                "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}, \
                 mps: {resources: [{name: gpu, replicas: 2}]}}"
                    .to_owned(),
                "sharing.timeSlicing: beside sharing.mps",
                "in one way",
            ),
        ] {
            let error = parse(&text).expect_err(&text).to_string();
            assert!(error.starts_with(start) && error.contains(part), "{error} of {text}");
        }
    }

    #[test]
    fn an_error_names_the_key_of_nvidias_file() {
        let absolute = "accepted: an absolute path without ..";
        let sharing = |kind: &str, rest: &str| format!("sharing: {{{kind}: {{resources: [{{name: gpu, {rest}}}]}}}}");
        for (text, key_and_value, accepted) in [
            (
                "flags: {plugin: {deviceListStrategy: []}}".to_owned(),
                "flags.plugin.deviceListStrategy: []",
                "accepted: envvar, volume-mounts, cdi-annotations, cdi-cri, device-nodes, or several of them",
            ),
            (
                "flags: {plugin: {cdiAnnotationPrefix: x}}".to_owned(),
                "flags.plugin.cdiAnnotationPrefix: x",
                "accepted: a domain and a slash, as cdi.k8s.io/",
            ),
            ("flags: {mpsRoot: mps}".to_owned(), "flags.mpsRoot: mps", absolute),
            ("flags: {nvidiaDriverRoot: run}".to_owned(), "flags.nvidiaDriverRoot: run", absolute),
            ("flags: {nvidiaDriverRoot: run, nvidiaDevRoot: ''}".to_owned(), "flags.nvidiaDriverRoot: run", absolute),
            ("flags: {nvidiaDriverRoot: /run, nvidiaDevRoot: dev}".to_owned(), "flags.nvidiaDevRoot: dev", absolute),
            (
                sharing("timeSlicing", "replicas: 1"),
                "sharing.timeSlicing.resources[nvidia.com/gpu].replicas: 1",
                "accepted: 2 to 1024",
            ),
            (
                sharing("mps", "replicas: 2000"),
                "sharing.mps.resources[nvidia.com/gpu].replicas: 2000",
                "accepted: 2 to 1024",
            ),
            (
                format!("flags: {{migStrategy: mixed}}\n{}", sharing("mps", "replicas: 2")),
                "flags.migStrategy: mixed with sharing.mps",
                "MPS cannot share MIG devices: use none or single, or timeSlicing",
            ),
            (
                "sharing: {timeSlicing: {renameByDefault: 3, resources: [{name: gpu, replicas: 2}]}}".to_owned(),
                "sharing.timeSlicing: {\"renameByDefault\":3,\"resources\":[{\"name\":\"gpu\",\"replicas\":2}]}",
                "invalid type: integer `3`, expected a boolean",
            ),
        ] {
            let error = parse(&text).expect_err(&text).to_string();
            assert_eq!(error, format!("{key_and_value} cannot be used; {accepted}"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_a_result(text in "\\PC{0,80}") {
            let _ = parse(&text);
        }

        #[test]
        fn a_damaged_file_gives_a_result(index in 0..FULL.len(), letter in "[ -~\n]") {
            let _ = parse(&format!("{}{letter}{}", &FULL[..index], &FULL[(index + 1).min(FULL.len())..]));
            let _ = parse(&FULL[..index]);
        }
    }
}
