//! The section `profiles` of the configuration file: what differs on some of the nodes that share the file.
//!
//! In: the section, and the section `devicePlugin`. Out: a plan, validated, or what is wrong and where.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::check::{PluginConfigError, refuse};
use super::entries::{EntryConfig, PluginConfig, refuse_duplicates};
use super::profile::{CountRange, PluginPlan, PluginProfile, ProfileMatch};
use crate::input::SwitchOr;

/// The most profiles: more than any cluster has kinds of nodes.
const MOST: usize = 100;
/// The most characters of a name, the same as for a label value in Kubernetes.
const LONGEST_NAME: usize = 63;

/// Settings for the nodes that match. The first profile that matches applies.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ProfileConfig {
    /// The name for log, page and `podmeter_plugin_profile_info`: letters, digits, dashes, dots and underscores.
    #[cfg_attr(test, schemars(length(max = LONGEST_NAME), pattern("^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")))]
    pub name: String,
    /// Which nodes it is for. Without it: every node that no profile before it matches.
    #[serde(default, rename = "match")]
    pub conditions: ProfileMatch,
    /// What differs from the common section `devicePlugin`; `off`: nothing is offered.
    #[serde(default)]
    pub device_plugin: SwitchOr<ChangedSection>,
}

/// The section of a profile; keys that are not given have the values of the common section.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ChangedSection {
    /// Entries that change the common ones: one of kind nvidia replaces the keys that it gives, each as a whole;
    /// another one replaces the entry of its name or is added.
    #[cfg_attr(test, schemars(with = "Vec<EntryConfig>"))]
    pub resources: Vec<Map<String, Value>>,
    /// A `version: v1` file of NVIDIA's plugin, in place of the common entry of kind nvidia.
    pub nvidia_config: Option<PathBuf>,
}

impl PluginPlan {
    /// The plan, validated. `read` returns the text of a file.
    pub fn resolve(
        common: &PluginConfig,
        profiles: &[ProfileConfig],
        mut read: impl FnMut(&Path) -> std::io::Result<String>,
    ) -> Result<Self, PluginConfigError> {
        if profiles.len() > MOST {
            return refuse("profiles", profiles.len(), format!("give up to {MOST}: a pattern fits several nodes"));
        }
        let common = common.resolve(&mut read)?;
        let mut plan = Self::from(common);
        for (index, profile) in profiles.iter().enumerate() {
            let key = format!("profiles[{index}]");
            check_name(&format!("{key}.name"), &profile.name, &profiles[..index])?;
            if let Some(count) = profile.conditions.gpu_count.map(CountRange::bounds).filter(RangeInclusive::is_empty) {
                let value = format!("{} to {}", count.start(), count.end());
                return refuse(&format!("{key}.match.gpuCount"), value, "give min up to max");
            }
            let SwitchOr { on, section } = &profile.device_plugin;
            let entries = match on {
                Some(false) => vec![],
                _ => section.over(&plan.common, &format!("{key}.devicePlugin"), &mut read)?,
            };
            let (name, conditions) = (profile.name.as_str().into(), profile.conditions.clone());
            plan.profiles.push(PluginProfile { name, conditions, entries });
        }
        Ok(plan)
    }
}

impl ChangedSection {
    fn over(
        &self,
        common: &[EntryConfig],
        key: &str,
        read: impl FnOnce(&Path) -> std::io::Result<String>,
    ) -> Result<Vec<EntryConfig>, PluginConfigError> {
        let mut entries = common.to_vec();
        if let Some(file) = &self.nvidia_config {
            let nvidia = EntryConfig::from_nvidia_file(&format!("{key}.nvidiaConfig"), file, read)?;
            replace(&mut entries, nvidia);
        }
        for (index, change) in self.resources.iter().enumerate() {
            let key = format!("{key}.resources[{index}]");
            let is_of_nvidia = |change: &Map<String, Value>| change.get("kind").is_some_and(|kind| kind == "nvidia");
            let mut given = change.clone();
            let entry = if is_of_nvidia(change) {
                if self.resources[..index].iter().any(is_of_nvidia) {
                    let accepted = "another entry has the keys of kind nvidia: write them in one";
                    return refuse(&key, "kind: nvidia", accepted);
                }
                given.remove("kind");
                let common = entries.iter().find_map(EntryConfig::nvidia).cloned();
                EntryConfig::Nvidia(Box::new(common.unwrap_or_default().with(&key, &given)?))
            } else {
                let given = Value::Object(given);
                EntryConfig::deserialize(&given).or_else(|error| refuse(&key, &given, error))?
            };
            entry.validate(&key)?;
            replace(&mut entries, entry);
        }
        refuse_duplicates(&format!("{key}.resources"), &entries)?;
        Ok(entries)
    }
}

/// Replaces the entry of kind nvidia, or of another kind and the same name; else adds it at the end.
fn replace(entries: &mut Vec<EntryConfig>, entry: EntryConfig) {
    let is_nvidia = entry.nvidia().is_some();
    let is_same = |one: &EntryConfig| one.nvidia().is_some() == is_nvidia && (is_nvidia || one.name() == entry.name());
    match entries.iter().position(is_same) {
        Some(index) => entries[index] = entry,
        None => entries.push(entry),
    }
}

fn check_name(key: &str, name: &str, earlier: &[ProfileConfig]) -> Result<(), PluginConfigError> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric();
    let is_name = name.len() <= LONGEST_NAME
        && name.chars().all(|letter| is_plain(letter) || "-_.".contains(letter))
        && name.starts_with(is_plain)
        && name.ends_with(is_plain);
    if !is_name {
        let accepted = "accepted: 1 to 63 letters, digits, dashes, dots or underscores, a letter or digit at both ends";
        return refuse(key, format!("{name:?}"), accepted);
    }
    if earlier.iter().any(|one| one.name == name) {
        return refuse(key, name, "another profile has it: names are unique");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::preference::SlotPolicy;
    use crate::plugin::config::{DeviceListStrategy, MigStrategy, NvidiaConfig, SharingConfig};

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct AgentFile {
        #[serde(default)]
        device_plugin: PluginConfig,
        profiles: Vec<ProfileConfig>,
    }

    fn plan(text: &str) -> Result<PluginPlan, String> {
        let file: AgentFile = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        let read = |_: &Path| Ok("version: v1\nflags: {migStrategy: mixed}".to_owned());
        PluginPlan::resolve(&file.device_plugin, &file.profiles, read).map_err(|error| error.to_string())
    }

    fn first(text: &str) -> Vec<EntryConfig> {
        plan(text).expect(text).profiles.remove(0).entries
    }

    fn nvidia(entries: &[EntryConfig]) -> &NvidiaConfig {
        entries.iter().find_map(EntryConfig::nvidia).expect("an entry of kind nvidia")
    }

    const COMMON: &str = "
devicePlugin:
  resources:
  - {kind: nvidia, deviceListStrategy: cdi-cri, sharing: {timeSlicing: {replicas: 4, renameByDefault: true}}}
  - {kind: path, name: example.com/fuse, paths: /dev/fuse}
profiles:
";

    #[test]
    fn a_profile_is_laid_over_the_common_entries() {
        let change = |text: &str| first(&format!("{COMMON}- {{name: p, devicePlugin: {text}}}"));
        let unchanged = change("{}");
        assert_eq!(unchanged, plan(&format!("{COMMON}- {{name: p}}")).unwrap().common);
        let mixed = change("{resources: [{kind: nvidia, migStrategy: mixed, sharing: none}]}");
        assert_eq!(nvidia(&mixed).mig_strategy, MigStrategy::Mixed);
        assert_eq!(nvidia(&mixed).sharing, SharingConfig::None);
        assert_eq!(nvidia(&mixed).device_list_strategy, [DeviceListStrategy::CdiCri], "not given: as in common");
        let shared = change("{resources: [{kind: nvidia, sharing: {timeSlicing: {replicas: 2}}}]}");
        let SharingConfig::TimeSlicing(sharing) = &nvidia(&shared).sharing else { panic!("time-slicing") };
        assert!(!sharing.rename_by_default, "a key is replaced as a whole");
        let per_gpu = change("{resources: [{kind: nvidia, sharing: {mps: {perGpu: {0: 2, '1:0': 3}}}}]}");
        assert!(matches!(&nvidia(&per_gpu).sharing, SharingConfig::Mps(sharing) if sharing.per_gpu.len() == 2));
        let paths = change(
            "{resources: [{kind: path, name: example.com/fuse, paths: /dev/fuse, shared: 9},
                          {kind: simulated, name: example.com/more, devices: 1}]}",
        );
        assert_eq!((paths.len(), &paths[0]), (3, &unchanged[0]));
        assert!(matches!(&paths[1], EntryConfig::Path(path) if path.shared == 9));
        assert_eq!(change("off"), []);
        assert_eq!(change("false"), []);
        assert_eq!(change("on"), unchanged);
        let file = change("{nvidiaConfig: /n.yaml, resources: [{kind: nvidia, preferred: packed}]}");
        assert_eq!((file.len(), nvidia(&file).mig_strategy), (2, MigStrategy::Mixed));
        assert_eq!((nvidia(&file).slot_policy, &nvidia(&file).sharing), (SlotPolicy::Packed, &SharingConfig::None));
        let alone = first(
            "devicePlugin: {resources: []}\nprofiles: [{name: p, devicePlugin: {resources: [{kind: nvidia, preferred: packed}]}}]",
        );
        assert_eq!(nvidia(&alone), &NvidiaConfig { slot_policy: SlotPolicy::Packed, ..NvidiaConfig::default() });
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let changes = |text: &str| format!("- {{name: p, devicePlugin: {{resources: [{text}]}}}}");
        for (profiles, parts) in [
            ("- {match: {}}".to_owned(), vec!["name"]),
            ("- {name: a b}".to_owned(), vec!["profiles[0].name", "a b", "letters"]),
            ("- {name: p, listen: []}".to_owned(), vec!["listen", "devicePlugin"]),
            ("- {name: p, match: {gpuModel: ''}}".to_owned(), vec!["empty", "line"]),
            ("- {name: p, match: {nodeName: 'gpu-[0'}}".to_owned(), vec!["gpu-[0", "pattern", "line"]),
            (
                "- {name: p, match: {gpuCount: {min: 4, max: 2}}}".to_owned(),
                vec!["profiles[0].match.gpuCount", "4 to 2"],
            ),
            ("- {name: p}\n- {name: p, match: {gpuCount: 1}}".to_owned(), vec!["profiles[1].name", "unique"]),
            (
                changes("{kind: nvidia, migStrategy: mixed, sharing: {mps: {replicas: 2}}}"),
                vec!["profiles[0].devicePlugin.resources[0].migStrategy", "MPS"],
            ),
            (
                changes("{kind: simulated, name: a.b/c, devices: 0}"),
                vec!["profiles[0].devicePlugin.resources[0].devices", "1 to 10000"],
            ),
            (
                changes("{kind: nvidia, preferred: packed}, {kind: nvidia, migStrategy: mixed}"),
                vec!["profiles[0].devicePlugin.resources[1]", "in one"],
            ),
            (
                changes("{kind: nvidia, name: example.com/fuse}"),
                vec!["profiles[0].devicePlugin.resources", "example.com/fuse", "own name"],
            ),
            (changes("{kind: nvidia, migstrategy: mixed}"), vec!["migstrategy", "migStrategy"]),
            ("- {name: p, devicePlugin: maybe}".to_owned(), vec!["maybe", "off"]),
        ] {
            let error = plan(&format!("{COMMON}{profiles}")).expect_err(&profiles);
            for part in parts {
                assert!(error.contains(part), "{part:?} in {error}");
            }
        }
        let many = |count| {
            plan(&format!("profiles: [{}]", (0..count).map(|n| format!("{{name: p{n}}},")).collect::<String>()))
        };
        assert!(many(MOST).is_ok());
        let error = many(MOST + 1).unwrap_err();
        assert!(error.contains("profiles: 101") && error.contains("up to 100"), "{error}");
        let error = plan("profiles:\n- name: p\n  match:\n    gpuModels: x\n").unwrap_err();
        assert!(error.contains("gpuModels") && error.contains("line 4"), "{error}");
    }
}
