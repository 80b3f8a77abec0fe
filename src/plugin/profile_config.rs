//! The section `profiles` of the configuration file: what differs on some of the nodes that share the file.
//!
//! In: the section, and the section `devicePlugin`. Out: a plan, validated, or what is wrong and where.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};

use super::config::{
    Config, ConfigError, DeviceIdStrategy, DeviceListStrategy, DriverMount, MigStrategy, NamePatterns, NewName,
    NvidiaConfig, OnConflict, PathConfig, PreStartCheck, Preferred, ResourceConfig, Sharing, SimulatedConfig,
    refuse_equal_names, sharing_or_none,
};
use super::pattern;
use super::profile::{Match, Plan, Profile};
use super::values::one_or_several;
#[cfg(test)]
use super::values::schema;
use crate::input::SwitchOr;

/// Characters of a name, as of a label in Kubernetes.
const LONGEST_NAME: usize = 63;

/// Settings for the nodes that match. The first profile that matches applies.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ProfileConfig {
    /// In the log, on the page and in `podmeter_plugin_profile_info`: letters, digits, dashes, dots and underscores.
    #[cfg_attr(test, schemars(length(max = LONGEST_NAME), pattern("^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")))]
    pub name: String,
    /// Which nodes it is for. Without it: every node that no profile before it matches.
    #[serde(default, rename = "match")]
    pub conditions: Match,
    /// What differs from the common section `devicePlugin`; `off`: nothing is offered.
    #[serde(default)]
    pub device_plugin: SwitchOr<ChangedSection>,
}

/// Keys that are not given are those of the common section.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct ChangedSection {
    /// Laid over the common entries: an entry of kind nvidia changes the keys that it gives, another one replaces the
    /// entry of its name or is added.
    pub resources: Vec<ResourceChange>,
    /// A `version: v1` file of NVIDIA's plugin, in place of the common entry of kind nvidia.
    pub nvidia_config: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum ResourceChange {
    Nvidia(Box<NvidiaChanges>),
    Path(PathConfig),
    Simulated(SimulatedConfig),
}

/// Keys of an entry of kind nvidia. Each replaces the common value as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct NvidiaChanges {
    pub name: Option<NewName>,
    pub names: Option<NamePatterns>,
    pub mig_strategy: Option<MigStrategy>,
    #[serde(deserialize_with = "given_sharing")]
    pub sharing: Option<Sharing>,
    #[serde(deserialize_with = "given_strategies")]
    #[cfg_attr(test, schemars(schema_with = "schema::one_or_several::<DeviceListStrategy>"))]
    pub device_list_strategy: Option<Vec<DeviceListStrategy>>,
    #[serde(rename = "deviceIDStrategy")]
    pub device_id_strategy: Option<DeviceIdStrategy>,
    pub pass_device_specs: Option<bool>,
    pub preferred: Option<Preferred>,
    pub on_conflict: Option<OnConflict>,
    pub pre_start_check: Option<PreStartCheck>,
    pub device_root: Option<PathBuf>,
    pub driver_mounts: Option<Vec<DriverMount>>,
    pub mps_root: Option<PathBuf>,
    pub cdi_annotation_prefix: Option<String>,
    pub environment: Option<BTreeMap<String, String>>,
}

fn given_sharing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Sharing>, D::Error> {
    sharing_or_none(deserializer).map(Some)
}

fn given_strategies<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<DeviceListStrategy>>, D::Error> {
    one_or_several(deserializer).map(Some)
}

impl Plan {
    /// `read` gives the text of a file.
    pub fn resolve(
        common: &Config,
        profiles: &[ProfileConfig],
        mut read: impl FnMut(&Path) -> std::io::Result<String>,
    ) -> Result<Self, ConfigError> {
        let common = common.resolve(&mut read)?;
        let mut plan = Self::from(common);
        for (place, profile) in profiles.iter().enumerate() {
            let key = format!("profiles[{place}]");
            check_name(&format!("{key}.name"), &profile.name, &profiles[..place])?;
            check_conditions(&format!("{key}.match"), &profile.conditions)?;
            if let Some(earlier) = profiles[..place].iter().position(|one| one.conditions.covers(&profile.conditions)) {
                let name = profiles[earlier].name.clone();
                return Err(ConfigError::NeverApplies { key, name: profile.name.clone(), earlier, other: name });
            }
            let entries = match &profile.device_plugin {
                SwitchOr::Switch(false) => vec![],
                SwitchOr::Switch(true) => plan.common.clone(),
                SwitchOr::Section(section) => section.over(&plan.common, &format!("{key}.devicePlugin"), &mut read)?,
            };
            let (name, conditions) = (profile.name.as_str().into(), profile.conditions.clone());
            plan.profiles.push(Profile { name, conditions, entries });
        }
        Ok(plan)
    }
}

impl ChangedSection {
    fn over(
        &self,
        common: &[ResourceConfig],
        key: &str,
        read: impl FnOnce(&Path) -> std::io::Result<String>,
    ) -> Result<Vec<ResourceConfig>, ConfigError> {
        let mut entries = common.to_vec();
        if let Some(file) = &self.nvidia_config {
            let nvidia = ResourceConfig::from_nvidia_file(&format!("{key}.nvidiaConfig"), file, read)?;
            replace(&mut entries, is_nvidia, nvidia);
        }
        for (place, change) in self.resources.iter().enumerate() {
            let key = format!("{key}.resources[{place}]");
            let entry = match change {
                ResourceChange::Nvidia(changes) => {
                    if self.resources[..place].iter().any(|other| matches!(other, ResourceChange::Nvidia(_))) {
                        let accepted = "another entry has the keys of kind nvidia: write them in one".to_owned();
                        return Err(ConfigError::Value { key, value: "kind: nvidia".to_owned(), accepted });
                    }
                    ResourceConfig::Nvidia(Box::new(changes.over(&entries)))
                }
                ResourceChange::Path(path) => ResourceConfig::Path(path.clone()),
                ResourceChange::Simulated(simulated) => ResourceConfig::Simulated(simulated.clone()),
            };
            entry.validate(&key)?;
            match &entry {
                ResourceConfig::Nvidia(_) => replace(&mut entries, is_nvidia, entry),
                _ => {
                    let name = entry.name().clone();
                    replace(&mut entries, |one| !is_nvidia(one) && *one.name() == name, entry);
                }
            }
        }
        refuse_equal_names(&format!("{key}.resources"), &entries)?;
        Ok(entries)
    }
}

fn is_nvidia(entry: &ResourceConfig) -> bool {
    matches!(entry, ResourceConfig::Nvidia(_))
}

/// In its place, or at the end.
fn replace(entries: &mut Vec<ResourceConfig>, which: impl Fn(&ResourceConfig) -> bool, entry: ResourceConfig) {
    match entries.iter_mut().find(|one| which(one)) {
        Some(one) => *one = entry,
        None => entries.push(entry),
    }
}

impl NvidiaChanges {
    /// Of the entry of kind nvidia; where there is none, of its defaults.
    fn over(&self, entries: &[ResourceConfig]) -> NvidiaConfig {
        let common = entries.iter().find_map(|entry| match entry {
            ResourceConfig::Nvidia(nvidia) => Some((**nvidia).clone()),
            _ => None,
        });
        let mut changed = common.unwrap_or_default();
        macro_rules! replace {
            ($($key:ident),*) => {$(
                if let Some(value) = &self.$key {
                    changed.$key = value.clone();
                }
            )*};
        }
        if let Some(NewName(name)) = &self.name {
            changed.name = name.clone();
        }
        if let Some(check) = &self.pre_start_check {
            changed.pre_start_check = Some(check.clone());
        }
        replace!(names, mig_strategy, sharing, device_list_strategy, device_id_strategy, pass_device_specs, preferred);
        replace!(on_conflict, device_root, driver_mounts, mps_root, cdi_annotation_prefix, environment);
        changed
    }
}

fn check_name(key: &str, name: &str, earlier: &[ProfileConfig]) -> Result<(), ConfigError> {
    let refuse = |accepted: &str| {
        Err(ConfigError::Value { key: key.to_owned(), value: format!("{name:?}"), accepted: accepted.to_owned() })
    };
    let is_plain = |letter: char| letter.is_ascii_alphanumeric();
    let is_name = name.len() <= LONGEST_NAME
        && name.chars().all(|letter| is_plain(letter) || "-_.".contains(letter))
        && name.starts_with(is_plain)
        && name.ends_with(is_plain);
    if !is_name {
        return refuse(
            "accepted: 1 to 63 letters, digits, dashes, dots or underscores, a letter or digit at both ends",
        );
    }
    if earlier.iter().any(|one| one.name == name) {
        return refuse("another profile has it: names are unique");
    }
    Ok(())
}

fn check_conditions(key: &str, conditions: &Match) -> Result<(), ConfigError> {
    let refuse = |key: &str, value: String, accepted: &str| {
        Err(ConfigError::Value { key: key.to_owned(), value, accepted: accepted.to_owned() })
    };
    for (name, patterns) in [("gpuModel", &conditions.gpu_model), ("nodeName", &conditions.node_name)] {
        for pattern in patterns {
            if let Err(problem) = pattern::check(pattern) {
                return refuse(&format!("{key}.{name}"), format!("{pattern:?}"), problem);
            }
        }
    }
    match conditions.gpu_count {
        Some(range) if range.min > range.max => {
            refuse(&format!("{key}.gpuCount"), format!("{} to {}", range.min, range.max), "give min up to max")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use schemars::SchemaGenerator;

    use super::*;

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct File {
        #[serde(default)]
        device_plugin: Config,
        profiles: Vec<ProfileConfig>,
    }

    fn plan(text: &str) -> Result<Plan, String> {
        let file: File = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        let read = |_: &Path| Ok("version: v1\nflags: {migStrategy: mixed}".to_owned());
        Plan::resolve(&file.device_plugin, &file.profiles, read).map_err(|error| error.to_string())
    }

    fn first(text: &str) -> Vec<ResourceConfig> {
        plan(text).expect(text).profiles.remove(0).entries
    }

    fn nvidia(entries: &[ResourceConfig]) -> &NvidiaConfig {
        let found = entries.iter().find_map(|entry| match entry {
            ResourceConfig::Nvidia(nvidia) => Some(nvidia),
            _ => None,
        });
        found.expect("an entry of kind nvidia")
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
        assert_eq!(nvidia(&mixed).sharing, Sharing::None);
        assert_eq!(nvidia(&mixed).device_list_strategy, [DeviceListStrategy::CdiCri], "not given: as in common");
        let shared = change("{resources: [{kind: nvidia, sharing: {timeSlicing: {replicas: 2}}}]}");
        let Sharing::TimeSlicing(sharing) = &nvidia(&shared).sharing else { panic!("time-slicing") };
        assert!(!sharing.rename_by_default, "a key is replaced as a whole");
        let paths = change(
            "{resources: [{kind: path, name: example.com/fuse, paths: /dev/fuse, shared: 9},
                          {kind: simulated, name: example.com/more, devices: 1}]}",
        );
        assert_eq!((paths.len(), &paths[0]), (3, &unchanged[0]));
        assert!(matches!(&paths[1], ResourceConfig::Path(path) if path.shared == 9));
        assert_eq!(change("off"), []);
        assert_eq!(change("false"), []);
        assert_eq!(change("on"), unchanged);
        let file = change("{nvidiaConfig: /n.yaml, resources: [{kind: nvidia, preferred: packed}]}");
        assert_eq!((file.len(), nvidia(&file).mig_strategy), (2, MigStrategy::Mixed));
        assert_eq!((nvidia(&file).preferred, &nvidia(&file).sharing), (Preferred::Packed, &Sharing::None));
        let alone = first(
            "devicePlugin: {resources: []}\nprofiles: [{name: p, devicePlugin: {resources: [{kind: nvidia, preferred: packed}]}}]",
        );
        assert_eq!(nvidia(&alone), &NvidiaConfig { preferred: Preferred::Packed, ..NvidiaConfig::default() });
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let changes = |text: &str| format!("- {{name: p, devicePlugin: {{resources: [{text}]}}}}");
        for (profiles, parts) in [
            ("- {match: {}}".to_owned(), vec!["name"]),
            ("- {name: a b}".to_owned(), vec!["profiles[0].name", "a b", "letters"]),
            ("- {name: p, listen: []}".to_owned(), vec!["listen", "devicePlugin"]),
            ("- {name: p, match: {gpuModel: ''}}".to_owned(), vec!["profiles[0].match.gpuModel", "empty"]),
            ("- {name: p, match: {nodeName: 'gpu-[0'}}".to_owned(), vec!["profiles[0].match.nodeName", "gpu-[0", "]"]),
            (
                "- {name: p, match: {gpuCount: {min: 4, max: 2}}}".to_owned(),
                vec!["profiles[0].match.gpuCount", "4 to 2"],
            ),
            ("- {name: p}\n- {name: p, match: {gpuCount: 1}}".to_owned(), vec!["profiles[1].name", "unique"]),
            ("- {name: p}\n- {name: q}".to_owned(), vec!["profiles[1] (q)", "never applies", "profiles[0] (p)"]),
            (
                "- {name: p, match: {gpuModel: '*T4*'}}\n- {name: q, match: {gpuModel: Tesla T4, gpuCount: 2}}"
                    .to_owned(),
                vec!["profiles[1] (q)", "never applies"],
            ),
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
        let error = plan("profiles:\n- name: p\n  match:\n    gpuModels: x\n").unwrap_err();
        assert!(error.contains("gpuModels") && error.contains("line 4"), "{error}");
    }

    #[test]
    fn a_profile_can_change_every_key_of_an_entry_of_kind_nvidia() {
        fn keys<T: schemars::JsonSchema>() -> Vec<String> {
            let schema = SchemaGenerator::default().into_root_schema_for::<T>();
            schema.get("properties").and_then(|properties| properties.as_object()).unwrap().keys().cloned().collect()
        }
        assert_eq!(keys::<NvidiaChanges>(), keys::<NvidiaConfig>());
    }
}
