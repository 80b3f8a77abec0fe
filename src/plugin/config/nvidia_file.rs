//! The configuration file of NVIDIA's k8s-device-plugin (`version: v1`), as that plugin reads it in v0.20: its keys become
//! those of an entry of kind nvidia, as YAML values.
//!
//! Each key takes effect, or is an error that names it. Only these are accepted without effect: `failOnInitError`
//! (podmeter waits for the driver either way), `useNodeFeatureAPI` and `gfd` (feature discovery reads the same file
//! itself), `imex.required` (channels are refused), what changes NVIDIA's CDI specification while no CDI strategy needs
//! one, and with a warning what NVIDIA's plugin ignores since v0.12: `resources`, and under `sharing` each resource's
//! `rename` and `devices`.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::check::{PluginConfigError, refuse};
use super::nvidia::{NvidiaConfig, ResourceReplication, SharingConfig};
use super::nvidia_keys::{self, Environment, KEYS, SHARED_RESOURCE, SHARING, unknown_key};

const DOMAIN: &str = "nvidia.com/";

/// A key, whether a value is accepted, and why the others are not.
type Restriction = (&'static str, fn(&Value) -> bool, &'static str);

const RESTRICTED: [Restriction; 3] = [
    ("version", |value| value == "v1", "this reads v1"),
    ("flags.deviceDiscoveryStrategy", |value| value == "auto" || value == "nvml", "accepted: auto, nvml"),
    ("imex.channelIDs", |value| *value == json!([]), "IMEX channels are not supported"),
];
/// Restrictions of keys that change NVIDIA's CDI specification, which ours replaces; other strategies use none.
const RESTRICTED_WITH_CDI: [Restriction; 2] = [
    ("flags.plugin.nvidiaCTKPath", |value| value == "/usr/bin/nvidia-ctk", DEVICE_NODES_ONLY),
    ("flags.plugin.containerDriverRoot", |value| value == "/driver-root", DEVICE_NODES_ONLY),
];
const DEVICE_NODES_ONLY: &str =
    "our CDI specification holds device nodes only, without hooks or driver files; remove it";

/// Converts the text of such a file, with the variables of the plugin's container, to our configuration of one entry.
/// No text panics. `values` has those that are not converted or checked yet: first those with a key of ours, then the
/// others.
pub fn parse(text: &str, environment: &Environment) -> Result<NvidiaConfig, PluginConfigError> {
    let mut values = nvidia_keys::values(text, environment)?;
    let mut ignored = BTreeSet::new();
    let (mut keys, mut name_by_key) = (Map::new(), BTreeMap::new());
    for (path, ours) in KEYS.into_iter().filter_map(|(path, ours, ..)| Some((path, ours?))) {
        // An empty root means the default.
        if let Some(given) = values.remove(path).filter(|given| !(path.ends_with("Root") && given.value == "")) {
            NvidiaConfig::check(&given.name, ours, &given.value)?;
            keys.insert(ours.to_owned(), given.value);
            name_by_key.insert(ours, given.name);
        }
    }
    for (path, ours) in [("resources.gpus", "names.gpus"), ("resources.mig", "names.mig")] {
        if values.remove(path).is_some_and(|given| given.value != json!([])) {
            ignored.insert(ignored_key(path, ours));
        }
    }
    for kind in ["timeSlicing", "mps"] {
        let key = format!("sharing.{kind}");
        let Some(section) = values.remove(key.as_str()).map(|given| given.value) else { continue };
        let sharing = json!({ kind: replication(&key, section.clone(), &mut ignored)? });
        SharingConfig::deserialize(&sharing).or_else(|error| refuse(&key, section, error))?;
        if keys.insert("sharing".to_owned(), sharing).is_some() {
            return refuse("sharing.timeSlicing", "beside sharing.mps", "a GPU is shared in one way: remove one");
        }
    }
    let mut config = NvidiaConfig::default().with("flags", &keys)?;
    for (path, variable) in [
        ("flags.gdrcopyEnabled", "NVIDIA_GDRCOPY"),
        ("flags.gdsEnabled", "NVIDIA_GDS"),
        ("flags.mofedEnabled", "NVIDIA_MOFED"),
    ] {
        let Some(given) = values.remove(path).filter(|given| given.value != json!(false)) else { continue };
        if given.value != json!(true) || config.uses_cdi() {
            return refuse(&given.name, given.value, "accepted: false, and true without a CDI strategy");
        }
        config.environment.insert(variable.to_owned(), "enabled".to_owned());
    }
    let with_cdi = config.uses_cdi().then_some(RESTRICTED_WITH_CDI).into_iter().flatten();
    for (path, is_accepted, reason) in RESTRICTED.into_iter().chain(with_cdi) {
        let Some(given) = values.remove(path).filter(|given| !is_accepted(&given.value)) else { continue };
        if !given.is_variable {
            return refuse(&given.name, given.value, reason);
        }
        ignored.insert(format!("{}={}: {reason}", given.name, given.value));
    }
    // The keys of `sharing` are the same as ours, except for the list of resources.
    config
        .validate(|ours| name_by_key.get(ours).map_or(ours, String::as_str).replace(".perResource[", ".resources["))?;
    Ok(NvidiaConfig { ignored: ignored.into_iter().collect(), ..config })
}

fn ignored_key(key: &str, ours: &str) -> String {
    format!("{key} has no effect, as in NVIDIA's plugin; podmeter's own key is devicePlugin.resources[].{ours}")
}

/// The section with our map by name in place of its list of resources.
fn replication(key: &str, mut section: Value, ignored: &mut BTreeSet<String>) -> Result<Value, PluginConfigError> {
    let Some(keys) = section.as_object_mut() else { return refuse(key, section, "it is no mapping (KEY: VALUE)") };
    if let Some(unknown) = keys.keys().find(|key| !SHARING.contains(&key.as_str())) {
        return Err(unknown_key(key, unknown, &SHARING));
    }
    let suffix = if keys.get("renameByDefault") == Some(&json!(true)) { ".shared" } else { "" };
    let field = format!("{key}.resources");
    let resources = match keys.remove("resources").unwrap_or(json!([])) {
        Value::Array(resources) if !resources.is_empty() => resources,
        other => return refuse(&field, other, "give a list of at least one resource"),
    };
    let mut by_name: BTreeMap<String, u32> = BTreeMap::new();
    for mut resource in resources {
        let Some(keys) = resource.as_object_mut() else { return refuse(&field, resource, "a resource has a name") };
        let mut name = keys.remove("name").unwrap_or_default();
        with_domain(&mut name);
        let Value::String(name) = name else { return refuse(&field, name, "a resource has a name") };
        let mut rename =
            keys.remove("rename").filter(|rename| *rename != "").unwrap_or_else(|| json!(format!("{name}{suffix}")));
        with_domain(&mut rename);
        if rename != format!("{name}{suffix}") {
            ignored.insert(ignored_key(&format!("{field}[].rename"), &format!("{key}.perResource.*.rename")));
        }
        if keys.remove("devices").is_some_and(|devices| devices != "all") {
            ignored.insert(ignored_key(&format!("{field}[].devices"), &format!("{key}.perGpu")));
        }
        let field = format!("{field}[{name}]");
        if let Some(unknown) = keys.keys().find(|key| *key != "replicas") {
            return Err(unknown_key(&format!("{key}.resources[]"), unknown, &SHARED_RESOURCE));
        }
        let rule = ResourceReplication::deserialize(&resource).or_else(|error| refuse(&field, &resource, error))?;
        let earlier = by_name.get(&name).copied();
        if earlier.is_some() {
            ignored
                .insert(format!("{field} is there more than once: the largest replicas count, as in NVIDIA's plugin"));
        }
        by_name.insert(name, rule.replicas.max(earlier.unwrap_or_default()));
    }
    let rules = by_name.into_iter().map(|(name, replicas)| (name, json!({ "replicas": replicas })));
    section["perResource"] = Value::Object(rules.collect());
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

    use super::*;
    use crate::domain::model::ResourceName;
    use crate::domain::preference::SlotPolicy;
    use crate::plugin::config::nvidia::{DeviceIdStrategy, DeviceListStrategy, MigStrategy, NamePatterns};

    fn parse(text: &str) -> Result<NvidiaConfig, PluginConfigError> {
        super::parse(text, &Environment::new())
    }

    /// A file with every key of that plugin, as its documentation and chart write them.
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
    - {name: nvidia.com/gpu, rename: gpu.shared, replicas: 10}
    - {name: mig-1g.10gb, rename: mig-part, devices: [0, '1:0'], replicas: 2}
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
        let SharingConfig::TimeSlicing(sharing) = &config.sharing else { panic!("time-slicing") };
        assert_eq!(sharing.replicas, None, "what is not named is not shared");
        assert_eq!(sharing.fail_requests_greater_than_one, Some(true));
        let rule = |name: &str| &sharing.per_resource[&ResourceName::from(name)];
        assert_eq!(rule("nvidia.com/gpu").replicas, 10);
        assert_eq!((config.names, rule("nvidia.com/mig-1g.10gb").rename.clone()), (NamePatterns::default(), None));
        let own = |key: &str, ours: &str| {
            format!("{key} has no effect, as in NVIDIA's plugin; podmeter's own key is devicePlugin.resources[].{ours}")
        };
        let slices = "sharing.timeSlicing";
        assert_eq!(
            config.ignored,
            [
                own("resources.gpus", "names.gpus"),
                own("resources.mig", "names.mig"),
                own(&format!("{slices}.resources[].devices"), &format!("{slices}.perGpu")),
                own(&format!("{slices}.resources[].rename"), &format!("{slices}.perResource.*.rename")),
            ]
        );
    }

    #[test]
    fn a_key_without_a_value_is_not_given() {
        let rule = "resources: [{name: gpu, rename: null, devices: null, replicas: 2}]";
        let text = format!("sharing: {{mps: null, timeSlicing: {{renameByDefault: null, {rule}}}}}");
        let plain = parse("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}").unwrap();
        assert_eq!((parse(&text), plain.ignored.len()), (Ok(plain.clone()), 0));
    }

    /// Users write several rules to name each GPU.
    #[test]
    fn of_several_rules_for_one_resource_the_largest_counts() {
        let rule = |number: u32, replicas: u32| {
            format!(
                "{{name: nvidia.com/gpu, rename: nvidia.com/gpu-{number}, devices: ['{number}'], replicas: {replicas}}}"
            )
        };
        let text = format!("sharing: {{timeSlicing: {{resources: [{}, {}]}}}}", rule(0, 8), rule(1, 4));
        let config = parse(&text).unwrap();
        let rules = &config.sharing.replication().unwrap().per_resource;
        assert_eq!(rules.values().map(|rule| rule.replicas).collect::<Vec<_>>(), [8]);
        assert_eq!(config.ignored.len(), 3, "{:?}", config.ignored);
    }

    #[test]
    fn a_variable_is_named_in_an_error_and_one_without_effect_is_told() {
        let given = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
        let text = "flags: {plugin: {deviceListStrategy: cdi-cri}}";
        let error = super::parse("flags: {mpsRoot: /mps}", &given("MPS_ROOT", "mps")).unwrap_err().to_string();
        assert_eq!(error, "MPS_ROOT: mps cannot be used; accepted: an absolute path without ..");
        let hooks = super::parse(text, &given("NVIDIA_CDI_HOOK_PATH", "/x")).unwrap().ignored;
        assert!(hooks[0].starts_with("NVIDIA_CDI_HOOK_PATH=\"/x\": our CDI specification"), "{hooks:?}");
        assert!(parse("flags: {plugin: {deviceListStrategy: cdi-cri, nvidiaCTKPath: /x}}").is_err());
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

    /// Each line has a file, how its error begins, and what else the error has.
    const REFUSED: &str = r#"
version: v2 | version: "v2" | v1
version: [] | version: [] | v1
flag: {} | unknown key `flag` | `flags`
flags: {migStrategy: double} | flags.migStrategy: "double" | `single`
flags: {passDeviceSpecs: true} | unknown key `flags.passDeviceSpecs` | plugin
flags: {deviceDiscoveryStrategy: []} | flags.deviceDiscoveryStrategy: [] | nvml
flags: {deviceDiscoveryStrategy: tegra} | flags.deviceDiscoveryStrategy: "tegra" | nvml
flags: {mpsRoot: mps} | flags.mpsRoot: mps cannot be used; | accepted: an absolute path without ..
flags: {nvidiaDriverRoot: run} | flags.nvidiaDriverRoot: run cannot be used; | an absolute path
flags: {nvidiaDriverRoot: run, nvidiaDevRoot: ''} | flags.nvidiaDriverRoot: run cannot be used; | an absolute path
flags: {nvidiaDriverRoot: /run, nvidiaDevRoot: dev} | flags.nvidiaDevRoot: dev cannot be used; | an absolute path
flags: {gdsEnabled: true, plugin: {deviceListStrategy: cdi-cri}} | flags.gdsEnabled: true | CDI
flags: {plugin: {deviceListStrategy: env}} | flags.plugin.deviceListStrategy: "env" | `envvar`
flags: {plugin: {deviceListStrategy: []}} | flags.plugin.deviceListStrategy: [] cannot be used; accepted: envvar, | or several
flags: {plugin: {deviceIDStrategy: name}} | flags.plugin.deviceIDStrategy: "name" | `uuid`
flags: {plugin: {cdiAnnotationPrefix: x}} | flags.plugin.cdiAnnotationPrefix: x cannot be used; | a domain and a slash
flags: {plugin: {deviceListStrategy: cdi-cri, nvidiaCTKPath: /x}} | flags.plugin.nvidiaCTKPath: "/x" | remove it
flags: {plugin: {deviceListStrategy: cdi-cri, containerDriverRoot: /x}} | flags.plugin.containerDriverRoot: "/x" | remove it
imex: {channelIDs: [0]} | imex.channelIDs: [0] | not supported
resources: {migs: []} | unknown key `resources.migs` | `mig`
sharing: {timeSlicing: {}} | sharing.timeSlicing.resources: [] | at least one
sharing: {mps: {resources: {}}} | sharing.mps.resources: {} | a list
sharing: {mps: {perResource: {}}} | unknown key `sharing.mps.perResource` | `resources`
sharing: {timeSlicing: {resources: [{name: gpu}]}} | sharing.timeSlicing.resources[nvidia.com/gpu]: | replicas
sharing: {timeSlicing: {resources: [{name: gpu, replicas: -4}]}} | sharing.timeSlicing.resources[nvidia.com/gpu]: | -4
sharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}} | sharing.timeSlicing.resources[nvidia.com/gpu].replicas: 1 | 2 to 60000
sharing: {mps: {resources: [{name: gpu, replicas: 70000}]}} | sharing.mps.resources[nvidia.com/gpu].replicas: 70000 | 2 to 60000
sharing: {timeSlicing: {resources: [{name: gpu, renameByDefault: 1}]}} | unknown key `sharing.timeSlicing.resources[].renameByDefault` | belongs to `sharing.timeSlicing`
sharing: {timeSlicing: {renameByDefault: 3, resources: [{name: gpu, replicas: 2}]}} | sharing.timeSlicing: {"renameByDefault":3, | integer `3`, expected a boolean
sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}, mps: {resources: [{name: gpu, replicas: 2}]}} | sharing.timeSlicing: beside sharing.mps | in one way
{flags: {migStrategy: mixed}, sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}} | flags.migStrategy: mixed with sharing.mps | none or single
"#;

    #[test]
    fn what_cannot_be_honoured_is_named_by_the_key_of_nvidias_file() {
        for row in REFUSED.lines().skip(1) {
            let [text, start, part] = row.split(" | ").collect::<Vec<_>>()[..] else { panic!("{row}") };
            let error = parse(text).expect_err(text).to_string();
            assert!(error.starts_with(start) && error.contains(part), "{error} of {text}");
        }
    }
}
