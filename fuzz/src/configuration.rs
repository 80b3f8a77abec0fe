use std::collections::BTreeSet;

use crate::commands::cli;
use crate::plugin::{EntryConfig, PluginConfig, parse_nvidia_config, resource_name};
use crate::serve::web::WebConfig;

/// The text of our own configuration file.
pub fn configuration(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let settings = match cli::check_text(&text) {
        Ok(settings) => settings,
        Err(problem) => {
            assert!(!problem.trim().is_empty(), "refused without a reason: {text:?}");
            return;
        }
    };
    let plan = settings.reloadable.device_plugin.clone().unwrap_or_default();
    for entries in plan.profiles.iter().map(|profile| &profile.entries).chain([&plan.common]) {
        let names: BTreeSet<&str> = entries.iter().map(|entry| entry.name().as_str()).collect();
        assert_eq!(names.len(), entries.len(), "two entries have one name: {text:?}");
        for name in names {
            assert_eq!(resource_name(name).map(|name| name.to_string()).as_deref(), Ok(name), "{text:?}");
        }
        assert_valid(entries.clone());
    }
    // The same text gives the same settings.
    let again = cli::check_text(&text).map(|settings| format!("{settings:?}"));
    assert_eq!(again, Ok(format!("{settings:?}")), "{text:?}");
}

/// The text of a configuration file of NVIDIA's plugin, and after a line `---` its environment variables.
pub fn nvidia_config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (file, variables) = text.split_once("\n---\n").unwrap_or((&text, ""));
    let Ok(environment) = cli::environment(variables) else { return };
    match parse_nvidia_config(file, &environment) {
        Ok(config) => {
            let names = config.sharing.replication().into_iter().flat_map(|sharing| sharing.per_resource.keys());
            for name in names {
                assert!(resource_name(name.as_str()).is_ok(), "{name:?} in {text:?}");
            }
            assert_valid(vec![EntryConfig::Nvidia(Box::new(config))]);
        }
        Err(problem) => assert!(!problem.to_string().trim().is_empty(), "refused without a reason: {text:?}"),
    }
}

fn assert_valid(entries: Vec<EntryConfig>) {
    let config = PluginConfig { resources: Some(entries), nvidia_config: None };
    let again = config.resolve(|_| unreachable!());
    assert!(again.is_ok(), "accepted, and refused when checked again: {config:?}, {again:?}");
}

/// The text of a web configuration, without the files that it names.
pub fn web_config(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match WebConfig::of_text(bytes) {
        Ok(config) => {
            assert!(config.users.keys().all(|name| !name.contains(':')), "{text:?}");
        }
        Err(problem) => assert!(!problem.trim().is_empty(), "refused without a reason: {text:?}"),
    }
}
