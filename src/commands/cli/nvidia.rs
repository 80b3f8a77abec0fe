//! `podmeter check-config --nvidia-config FILE --env-file FILE`: the configuration of NVIDIA's plugin as podmeter's own.
//!
//! In: the text of its file, the variables of its container. Out: podmeter's configuration file, with what it offers and what
//! differs as comments. Does not use: the node.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::settings::InvalidSettings;
use crate::agent::HealthConfig;
use crate::files;
use crate::plugin::{Environment, MigStrategy, NvidiaConfig, SharingConfig, parse_nvidia_config};

/// Codes of XIDs are smaller.
const XIDS: u32 = 1000;

/// Either may be missing: every value has a default.
pub fn check(file: Option<&Path>, env_file: Option<&Path>) -> Result<String, InvalidSettings> {
    let read = |file: Option<&Path>| {
        let unreadable = |file: &Path, error| InvalidSettings::Unreadable { file: file.to_owned(), error };
        file.map_or(Ok(String::new()), |file| files::read_given_text(file).map_err(|error| unreadable(file, error)))
    };
    let invalid = |file: Option<&Path>, error| InvalidSettings::ConfigFile {
        file: file.unwrap_or(Path::new("--nvidia-config")).to_owned(),
        error,
    };
    let (text, variables) = (read(file)?, read(env_file)?);
    let environment = environment(&variables).map_err(|error| invalid(env_file, error))?;
    // Without the variables first: an error is of the file that has it.
    parse_nvidia_config(&text, &Environment::new()).map_err(|error| invalid(file, error.to_string()))?;
    let config = parse_nvidia_config(&text, &environment).map_err(|error| invalid(env_file, error.to_string()))?;
    Ok(converted(&config, &environment))
}

/// Lines `NAME=VALUE`, as `env` and `kubectl set env --list` print them.
pub fn environment(text: &str) -> Result<Environment, String> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|(number, line)| match line.split_once('=') {
            Some((name, value)) => Ok((name.trim().to_owned(), value.trim_end().to_owned())),
            None => Err(format!("line {number}: {line:?} is no NAME=VALUE, as `env` prints it")),
        })
        .collect()
}

fn converted(config: &NvidiaConfig, environment: &Environment) -> String {
    let (xids, health_notes) = xids(environment);
    let mut entry = changed(config);
    entry.insert("kind".to_owned(), json!("nvidia"));
    let mut file = json!({ "devicePlugin": { "resources": [entry] } });
    if !xids.is_empty() {
        let rules: Map<String, Value> = xids.into_iter().map(|(code, rule)| (code.to_string(), json!(rule))).collect();
        file["health"] = json!({ "xids": rules });
    }
    let mut text = serde_saphyr::to_string(&file).expect("a configuration can be written as YAML");
    let differences = config.warnings().into_iter().chain(health_notes).chain([
        "podmeter reads no variables of NVIDIA's plugin: this file has their values".to_owned(),
        "XIDs: podmeter decides by class, until a reset; NVIDIA's plugin: all but 13, 31, 43, 45, 68 and 109, until it \
         restarts".to_owned(),
    ]);
    for (title, lines) in [("Offered", offered(config)), ("Differs from NVIDIA's plugin", differences.collect())] {
        let _ = writeln!(text, "# {title}:");
        for line in lines {
            let _ = writeln!(text, "# - {line}");
        }
    }
    text
}

/// The keys whose values are not the defaults.
fn changed(config: &NvidiaConfig) -> Map<String, Value> {
    let keys_of = |config: &NvidiaConfig| {
        let value = serde_json::to_value(config).expect("a configuration can be written as JSON");
        value.as_object().cloned().unwrap_or_default()
    };
    let (mut keys, defaults) = (keys_of(config), keys_of(&NvidiaConfig::default()));
    keys.retain(|key, value| defaults.get(key) != Some(value));
    keys.values_mut().for_each(remove_unset);
    keys
}

fn remove_unset(value: &mut Value) {
    let Value::Object(keys) = value else { return };
    keys.values_mut().for_each(remove_unset);
    keys.retain(|_, value| !value.is_null() && *value != json!({}));
}

fn offered(config: &NvidiaConfig) -> Vec<String> {
    let name = &config.name;
    let domain = name.as_str().split('/').next().unwrap_or_default();
    let mut lines = vec![match config.mig_strategy {
        MigStrategy::None => format!("{name}: whole GPUs, also where MIG is enabled"),
        MigStrategy::Single => format!("{name}: whole GPUs, or MIG devices where all have one profile"),
        MigStrategy::Mixed => format!("{name}: whole GPUs; {domain}/mig-PROFILE: MIG devices"),
    }];
    let Some(sharing) = config.sharing.replication() else { return lines };
    let means = if matches!(config.sharing, SharingConfig::Mps(_)) { "MPS" } else { "time slicing" };
    let suffix = if sharing.rename_by_default { ".shared" } else { "" };
    for (name, rule) in sharing.per_resource.iter().filter(|(name, _)| config.may_offer(name)) {
        lines.push(format!("{name}{suffix}: each device of {name} as {} slots, by {means}", rule.replicas));
    }
    lines
}

/// What `health.xids` has for the variables of the health check, and what of them it cannot have.
fn xids(environment: &Environment) -> (BTreeMap<u32, &'static str>, Vec<String>) {
    let (mut rules, mut notes) = (BTreeMap::new(), vec![]);
    let defaults = HealthConfig::default();
    let makes_unhealthy = |code: u32| defaults.xid_rule(code).makes_unhealthy();
    for (variable, rule) in [("DP_DISABLE_HEALTHCHECKS", "count"), ("DP_ENABLE_HEALTHCHECKS", "unhealthy")] {
        let text = environment.get(variable).map(|text| text.to_ascii_lowercase()).unwrap_or_default();
        let is_disabled = rule == "count";
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match (word, word.parse::<u32>()) {
                ("all" | "xids", _) if is_disabled => {
                    rules.extend((0..XIDS).filter(|code| makes_unhealthy(*code)).map(|code| (code, rule)));
                }
                ("all" | "xids", _) => {
                    notes.push(format!("{variable}={word}: health.xids has no value for all codes; list them"));
                }
                (_, Err(_)) => notes.push(format!("{variable}: {word:?} is no XID, and has no effect")),
                (_, Ok(code)) if makes_unhealthy(code) == is_disabled => drop(rules.insert(code, rule)),
                // The default; it wins over the other variable.
                (_, Ok(code)) => drop(rules.remove(&code)),
            }
        }
    }
    (rules, notes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cli::check_text;

    #[test]
    fn the_file_and_the_variables_become_one_configuration_that_podmeter_reads() {
        let file = "{version: v1, flags: {migStrategy: single, plugin: {deviceListStrategy: envvar}}, \
                    resources: {gpus: [{pattern: '*', name: h100}]}, sharing: {timeSlicing: {renameByDefault: true, \
                    resources: [{name: nvidia.com/gpu, replicas: 4}, {name: mig-1g.10gb, rename: slice, replicas: 2}]}}}";
        let variables = "# DaemonSet nvidia-device-plugin\nMIG_STRATEGY=none\nPASS_DEVICE_SPECS=true\n\
                         DEVICE_LIST_STRATEGY=cdi-annotations,cdi-cri\nCDI_ANNOTATION_PREFIX=nvidia.cdi.k8s.io/\n\
                         NVIDIA_CDI_HOOK_PATH=/usr/local/nvidia/toolkit/nvidia-cdi-hook\nNVIDIA_VISIBLE_DEVICES=all\n\
                         DP_DISABLE_HEALTHCHECKS=79,13\nDP_ENABLE_HEALTHCHECKS=31\nMPS_ROOT=/run/nvidia/mps\n";
        let environment = environment(variables).unwrap();
        let config = parse_nvidia_config(file, &environment).unwrap();
        let text = converted(&config, &environment);
        for line in [
            "    passDeviceSpecs: true",
            "# - nvidia.com/gpu: whole GPUs, also where MIG is enabled",
            "# - nvidia.com/gpu.shared: each device of nvidia.com/gpu as 4 slots, by time slicing",
        ] {
            assert!(text.lines().any(|one| one.trim() == line.trim()), "{line:?} in {text}");
        }
        for words in [
            "resources.gpus has no effect",
            "resources[].rename has no effect",
            "the rule for nvidia.com/mig-1g.10gb has no effect",
            "NVIDIA_CDI_HOOK_PATH=\"/usr/local",
        ] {
            assert!(text.contains(words), "{words:?} in {text}");
        }
        assert!(!text.contains("mig-1g.10gb as"), "an idle rule: {text}");
        assert!(!text.contains("mpsRoot") && !text.contains("migStrategy:"), "a default: {text}");
        let settings = check_text(&text).expect(&text);
        assert_eq!(settings.health.xids.len(), 2);
        let plan = settings.reloadable.device_plugin.expect("on");
        assert_eq!(plan.common[0].nvidia(), Some(&NvidiaConfig { ignored: vec![], ..config }));
    }

    #[test]
    fn the_variables_of_the_health_check_become_rules() {
        let rules = |disable: &str, enable: &str| {
            let text = format!("DP_DISABLE_HEALTHCHECKS={disable}\nDP_ENABLE_HEALTHCHECKS={enable}\n");
            let (rules, notes) = xids(&environment(&text).unwrap());
            (rules.into_iter().map(|(code, rule)| format!("{code} {rule}")).collect::<Vec<_>>(), notes.len())
        };
        assert_eq!(rules("", ""), (vec![], 0));
        assert_eq!(rules("48, 13", "31,79"), (vec!["31 unhealthy".to_owned(), "48 count".to_owned()], 0));
        assert_eq!(rules("48", "48"), (vec![], 0));
        assert_eq!(rules("gpu", "ALL"), (vec![], 2));
        let (all, _) = rules("XIDS", "48");
        assert!(all.contains(&"79 count".to_owned()) && !all.contains(&"48 count".to_owned()), "{all:?}");
        assert_eq!(environment("A=1\nB").unwrap_err(), "line 2: \"B\" is no NAME=VALUE, as `env` prints it");
    }
}
