//! The keys of NVIDIA's file (`version: v1`), and the environment variables of its plugin, which override them.
//!
//! In: a file's text, the variables. Out: each value, under its path in the file and with the name that the user gave it.
//! Does not use: what a value means.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use self::Form::{List, Switch, Text};
use super::check::{PluginConfigError, refuse};
use crate::input;

/// The environment variables of a container of NVIDIA's plugin.
pub type Environment = BTreeMap<String, String>;

/// The form of a variable's value.
#[derive(Clone, Copy)]
pub enum Form {
    Text,
    Switch,
    List,
}

/// A path in the file; its key in an entry of kind nvidia (of two with the same key, the later one counts); its
/// variables, of which the first that is set counts.
type Key = (&'static str, Option<&'static str>, &'static [&'static str], Form);

/// Every key of such a file, as the plugin reads it in v0.20.
pub const KEYS: [Key; 25] = [
    ("version", None, &[], Text),
    ("flags.migStrategy", Some("migStrategy"), &["MIG_STRATEGY"], Text),
    ("flags.failOnInitError", None, &["FAIL_ON_INIT_ERROR"], Switch),
    ("flags.mpsRoot", Some("mpsRoot"), &["MPS_ROOT"], Text),
    ("flags.nvidiaDriverRoot", Some("deviceRoot"), &["NVIDIA_DRIVER_ROOT"], Text),
    ("flags.nvidiaDevRoot", Some("deviceRoot"), &["NVIDIA_DEV_ROOT"], Text),
    ("flags.gdrcopyEnabled", None, &["GDRCOPY_ENABLED"], Switch),
    ("flags.gdsEnabled", None, &["GDS_ENABLED"], Switch),
    ("flags.mofedEnabled", None, &["MOFED_ENABLED"], Switch),
    ("flags.useNodeFeatureAPI", None, &[], Switch),
    ("flags.deviceDiscoveryStrategy", None, &["DEVICE_DISCOVERY_STRATEGY"], Text),
    ("flags.plugin.passDeviceSpecs", Some("passDeviceSpecs"), &["PASS_DEVICE_SPECS"], Switch),
    ("flags.plugin.deviceListStrategy", Some("deviceListStrategy"), &["DEVICE_LIST_STRATEGY"], List),
    ("flags.plugin.deviceIDStrategy", Some("deviceIDStrategy"), &["DEVICE_ID_STRATEGY"], Text),
    ("flags.plugin.cdiAnnotationPrefix", Some("cdiAnnotationPrefix"), &["CDI_ANNOTATION_PREFIX"], Text),
    ("flags.plugin.nvidiaCTKPath", None, &["NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"], Text),
    ("flags.plugin.containerDriverRoot", None, &["DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"], Text),
    ("flags.plugin.sharedDevicesAllocationPolicy", Some("preferred"), &["SHARED_DEVICES_ALLOCATION_POLICY"], Text),
    ("flags.gfd", None, &[], Text),
    ("resources.gpus", None, &[], List),
    ("resources.mig", None, &[], List),
    ("sharing.timeSlicing", None, &[], Text),
    ("sharing.mps", None, &[], Text),
    ("imex.channelIDs", None, &["IMEX_CHANNEL_IDS"], List),
    ("imex.required", None, &["IMEX_REQUIRED"], Switch),
];

/// The keys of `sharing.timeSlicing` and `sharing.mps`.
pub const SHARING: [&str; 3] = ["renameByDefault", "failRequestsGreaterThanOne", "resources"];
/// The keys of each of their resources.
pub const SHARED_RESOURCE: [&str; 4] = ["name", "rename", "devices", "replicas"];

pub struct Given {
    /// The path in the file, or the variable.
    pub name: String,
    pub value: Value,
    pub is_variable: bool,
}

/// The values by the paths of `KEYS`.
pub type Values = BTreeMap<&'static str, Given>;

pub fn values(text: &str, environment: &Environment) -> Result<Values, PluginConfigError> {
    // A file with only comments has every default.
    let file: Value = input::yaml(text).map_err(PluginConfigError)?.unwrap_or_default();
    if file.get("kind").is_some() && file.get("data").is_some() {
        return refuse("kind", &file["kind"], "give the text of one key of its data as the file");
    }
    let mut values = BTreeMap::new();
    collect("", file, &mut values)?;
    for (path, _, variables, form) in KEYS {
        let Some((name, text)) = variables.iter().find_map(|name| environment.get_key_value(*name)) else { continue };
        values.insert(path, Given { name: name.clone(), value: written(name, text, form)?, is_variable: true });
    }
    Ok(values)
}

/// The value of a variable, read as by the plugin's command line.
fn written(name: &str, text: &str, form: Form) -> Result<Value, PluginConfigError> {
    Ok(match form {
        Text => json!(text),
        List => json!(text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>()),
        Switch => match text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => json!(true),
            "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => json!(false),
            _ => return refuse(name, text, "accepted: true, false"),
        },
    })
}

/// Collects the values below `path`. A key without a value counts as absent.
fn collect(path: &str, value: Value, values: &mut Values) -> Result<(), PluginConfigError> {
    if value.is_null() {
        return Ok(());
    }
    if let Some((path, ..)) = KEYS.iter().find(|(key, ..)| *key == path) {
        let given = Given { name: (*path).to_owned(), value: without_nulls(value), is_variable: false };
        values.insert(path, given);
        return Ok(());
    }
    let Value::Object(section) = value else {
        let at = if path.is_empty() { "the file" } else { path };
        return refuse(at, value, "it is no mapping (KEY: VALUE)");
    };
    let prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
    let known = KEYS.iter().filter_map(|(key, ..)| key.strip_prefix(&prefix)?.split('.').next());
    let mut known: Vec<&str> = known.collect();
    known.dedup();
    for (key, value) in section {
        if !known.contains(&key.as_str()) {
            return Err(unknown_key(path, &key, &known));
        }
        collect(&format!("{prefix}{key}"), value, values)?;
    }
    Ok(())
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(keys) => keys
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect(),
        Value::Array(values) => values.into_iter().map(without_nulls).collect(),
        value => value,
    }
}

/// The error for an unknown key, with the section where the key is known, else the most similar key.
pub fn unknown_key(section: &str, key: &str, known: &[&str]) -> PluginConfigError {
    let prefix = if section.is_empty() { String::new() } else { format!("{section}.") };
    let place = sections_of(key).into_iter().filter(|place| place != section);
    // The nearest section counts: `renameByDefault` of a resource under `mps` belongs to `sharing.mps`.
    let common = |place: &String| place.bytes().zip(section.bytes()).take_while(|(one, other)| one == other).count();
    let hint = match place.max_by_key(common) {
        Some(place) if !known.contains(&key) => format!(": it belongs to `{place}`"),
        _ => input::suggestion(key, known),
    };
    PluginConfigError(format!("unknown key `{prefix}{key}`{hint}"))
}

fn sections_of(key: &str) -> BTreeSet<String> {
    let sharing = ["sharing.timeSlicing", "sharing.mps"].into_iter().flat_map(|section| {
        let resource = SHARED_RESOURCE.map(|key| format!("{section}.resources[].{key}"));
        SHARING.map(|key| format!("{section}.{key}")).into_iter().chain(resource)
    });
    let paths = KEYS.iter().map(|(path, ..)| (*path).to_owned()).chain(sharing);
    // `flags.plugin.x` also has the section `flags.plugin`.
    let paths = paths.flat_map(|path| {
        let ends: Vec<usize> = path.match_indices('.').map(|(end, _)| end).chain([path.len()]).collect();
        ends.into_iter().map(|end| path[..end].to_owned()).collect::<Vec<_>>()
    });
    let section =
        |path: String| path.rsplit_once('.').filter(|(_, last)| *last == key).map(|(section, _)| section.to_owned());
    paths.filter_map(section).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_says_where_it_belongs() {
        for (text, words) in [
            ("passDeviceSpecs: true", "unknown key `passDeviceSpecs`: it belongs to `flags.plugin`"),
            ("migStrategy: none", "unknown key `migStrategy`: it belongs to `flags`"),
            ("flags: {deviceIDStrategy: uuid}", "`flags.deviceIDStrategy`: it belongs to `flags.plugin`"),
            ("flags: {plugin: {migStrategy: none}}", "`flags.plugin.migStrategy`: it belongs to `flags`"),
            ("plugin: {}", "unknown key `plugin`: it belongs to `flags`"),
            ("timeSlicing: {}", "unknown key `timeSlicing`: it belongs to `sharing`"),
            ("sharing: {replicas: 4}", "`sharing.replicas`: it belongs to `sharing.timeSlicing.resources[]`"),
            ("flags: {migstrategy: none}", "unknown key `flags.migstrategy`: did you mean `migStrategy`?"),
            (
                "{apiVersion: v1, kind: ConfigMap, data: {}}",
                "kind: \"ConfigMap\" cannot be used; give the text of one key",
            ),
        ] {
            let error = values(text, &Environment::new()).err().expect(text).to_string();
            assert!(error.contains(words), "{words:?} in {error}");
        }
    }

    #[test]
    fn a_variable_wins_over_the_file() {
        let environment = [
            ("MIG_STRATEGY", "mixed"),
            ("PASS_DEVICE_SPECS", ""),
            ("DEVICE_LIST_STRATEGY", "envvar, cdi-cri"),
            ("NVIDIA_CTK_PATH", "/old"),
            ("NVIDIA_CDI_HOOK_PATH", "/new"),
            ("NVIDIA_VISIBLE_DEVICES", "all"),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let text = "flags: {migStrategy: single, mpsRoot: /mps, plugin: {passDeviceSpecs: true}}";
        let values = values(text, &environment).unwrap();
        let given: Vec<_> =
            values.iter().map(|(path, given)| format!("{path} {} {}", given.name, given.value)).collect();
        assert_eq!(
            given,
            [
                "flags.migStrategy MIG_STRATEGY \"mixed\"",
                "flags.mpsRoot flags.mpsRoot \"/mps\"",
                "flags.plugin.deviceListStrategy DEVICE_LIST_STRATEGY [\"envvar\",\"cdi-cri\"]",
                "flags.plugin.nvidiaCTKPath NVIDIA_CDI_HOOK_PATH \"/new\"",
                "flags.plugin.passDeviceSpecs PASS_DEVICE_SPECS false",
            ]
        );
        let unclear = [("GDS_ENABLED".to_owned(), "maybe".to_owned())].into();
        let error = super::values("", &unclear).err().unwrap().to_string();
        assert_eq!(error, "GDS_ENABLED: maybe cannot be used; accepted: true, false");
    }
}
