//! An entry of kind `path`: device nodes of the host, usually below `/dev`.

use std::path::Path;

use serde::Deserialize;

use super::check::{LONGEST_UNSHARED_ID, MOST_SLOTS, PluginConfigError, check_absolute, check_range, refuse};
#[cfg(test)]
use super::values::schema;
use super::values::{OnConflict, a_resource_name, one_or_several};
use crate::domain::model::ResourceName;
use crate::input::{Pattern, has_wildcards};

/// Device nodes of the host, usually in `/dev`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PathConfig {
    #[serde(deserialize_with = "a_resource_name")]
    pub name: ResourceName,
    /// Patterns with `*`, `?` and `[…]`; each node that fits one is a device.
    #[serde(default, deserialize_with = "one_or_several")]
    #[cfg_attr(test, schemars(schema_with = "schema::one_or_several::<String>"))]
    pub paths: Vec<String>,
    /// Several nodes as one device.
    #[serde(default)]
    pub groups: Vec<NodeGroup>,
    /// The slots of each device.
    #[serde(default = "one")]
    #[cfg_attr(test, schemars(range(min = 1, max = MOST_SLOTS)))]
    pub shared: u32,
    /// The device cgroup permissions: `r`, `w` and `m`.
    #[serde(default = "read_write")]
    pub permissions: String,
    /// The node's path in the container; with `/` at the end, the directory for it. Default: the path on the host.
    #[serde(default)]
    pub container_path: Option<String>,
    #[serde(default)]
    pub on_conflict: OnConflict,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NodeGroup {
    /// The device's id.
    pub id: String,
    /// Each must exist unless it is `optional`; a pattern means every path that matches, at least one.
    pub paths: Vec<GroupedNode>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct GroupedNode {
    pub path: String,
    #[serde(default)]
    pub container_path: Option<String>,
    #[serde(default)]
    pub permissions: Option<String>,
    /// Whether the device is offered without it too.
    #[serde(default)]
    pub optional: bool,
}

fn one() -> u32 {
    1
}

fn read_write() -> String {
    "rw".to_owned()
}

impl PathConfig {
    pub(super) fn validate(&self, key: &str) -> Result<(), PluginConfigError> {
        if self.paths.is_empty() && self.groups.is_empty() {
            return refuse(key, "neither paths nor groups", "give one of them");
        }
        check_range(&format!("{key}.shared"), self.shared, 1, MOST_SLOTS)?;
        check_permissions(&format!("{key}.permissions"), &self.permissions)?;
        for path in &self.paths {
            check_node_pattern(&format!("{key}.paths"), path)?;
        }
        let one_node = matches!(self.paths.as_slice(), [path] if !has_wildcards(path));
        check_container_path(&format!("{key}.containerPath"), self.container_path.as_deref(), one_node)?;
        for (index, group) in self.groups.iter().enumerate() {
            let key = format!("{key}.groups[{index}]");
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
            if !(1..=LONGEST_UNSHARED_ID).contains(&group.id.len()) || !group.id.bytes().all(plain) {
                let accepted = format!(
                    "accepted: 1 to {LONGEST_UNSHARED_ID} letters, digits, dashes, dots, slashes or underscores"
                );
                return refuse(&format!("{key}.id"), &group.id, accepted);
            }
            if self.groups[..index].iter().any(|other| other.id == group.id) {
                return refuse(&format!("{key}.id"), &group.id, "another group has it: ids are unique");
            }
            if group.paths.is_empty() {
                return refuse(&format!("{key}.paths"), "[]", "name at least one node");
            }
            for node in &group.paths {
                check_node_pattern(&format!("{key}.paths.path"), &node.path)?;
                let key_of_path = format!("{key}.paths.containerPath");
                check_container_path(&key_of_path, node.container_path.as_deref(), !has_wildcards(&node.path))?;
                if let Some(text) = &node.permissions {
                    check_permissions(&format!("{key}.paths.permissions"), text)?;
                }
            }
        }
        Ok(())
    }
}

fn check_node_pattern(key: &str, path: &str) -> Result<(), PluginConfigError> {
    check_absolute(key, Path::new(path))?;
    // Each part of the path is matched separately.
    match path.split('/').filter(|part| !part.is_empty()).find_map(|part| Pattern::new(part).err()) {
        Some(problem) => refuse(key, path, problem),
        None => Ok(()),
    }
}

fn check_container_path(key: &str, path: Option<&str>, one_node: bool) -> Result<(), PluginConfigError> {
    let Some(path) = path else { return Ok(()) };
    check_absolute(key, Path::new(path))?;
    if one_node || path.ends_with('/') {
        return Ok(());
    }
    refuse(key, path, "several nodes cannot be in one place: end it with / for a directory")
}

fn check_permissions(key: &str, text: &str) -> Result<(), PluginConfigError> {
    let once = |letter: char| text.matches(letter).count() == 1;
    if !text.is_empty() && text.chars().all(|letter| "rwm".contains(letter) && once(letter)) {
        return Ok(());
    }
    refuse(key, text, "accepted: r, w and m, each at most once, as rw")
}
