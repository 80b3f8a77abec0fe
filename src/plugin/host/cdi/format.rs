//! One CDI specification, by the rules of runtimes: a file that breaks one of them is not loaded at all.
//!
//! In: the text of a file. Out: its devices, or the first rule that it breaks. Pure. The rules are those of the Go
//! library that containerd and CRI-O use (container-device-interface 1.1.0); what it accepts with a warning is
//! accepted.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// The versions of the specification, the oldest first.
const VERSIONS: [&str; 10] = ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];
const HOOKS: [&str; 6] = ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

/// A file that runtimes load.
#[derive(Clone, Debug, PartialEq)]
pub struct Specification {
    pub kind: String,
    pub devices: BTreeMap<String, Edits>,
    /// The edits of every container that gets one of the devices.
    pub edits: Edits,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SpecificationFile {
    cdi_version: String,
    kind: String,
    annotations: Option<BTreeMap<String, String>>,
    devices: Option<Vec<Device>>,
    container_edits: Option<Edits>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Device {
    name: String,
    annotations: Option<BTreeMap<String, String>>,
    container_edits: Option<Edits>,
}

/// What a runtime changes for a container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Edits {
    env: Option<Vec<String>>,
    device_nodes: Option<Vec<DeviceNode>>,
    net_devices: Option<Vec<NetDevice>>,
    hooks: Option<Vec<Hook>>,
    mounts: Option<Vec<Mount>>,
    intel_rdt: Option<IntelRdt>,
    additional_gids: Option<Vec<u32>>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceNode {
    /// The path in the container.
    pub path: String,
    host_path: Option<String>,
    r#type: Option<String>,
    major: Option<i64>,
    minor: Option<i64>,
    #[serde(rename = "fileMode")]
    _file_mode: Option<u32>,
    permissions: Option<String>,
    #[serde(rename = "uid")]
    _uid: Option<u32>,
    #[serde(rename = "gid")]
    _gid: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NetDevice {
    host_interface_name: String,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Hook {
    hook_name: String,
    path: String,
    #[serde(rename = "args")]
    _args: Option<Vec<String>>,
    env: Option<Vec<String>>,
    #[serde(rename = "timeout")]
    _timeout: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Mount {
    host_path: String,
    container_path: String,
    #[serde(rename = "options")]
    _options: Option<Vec<String>>,
    r#type: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct IntelRdt {
    #[serde(rename = "closID")]
    clos_id: Option<String>,
    #[serde(rename = "l3CacheSchema")]
    _l3_cache_schema: Option<String>,
    #[serde(rename = "memBwSchema")]
    _mem_bw_schema: Option<String>,
    schemata: Option<Vec<String>>,
    enable_monitoring: Option<bool>,
}

/// Parses YAML, of which JSON is a subset, and checks every rule.
pub fn parse(text: &str) -> Result<Specification, String> {
    let file: SpecificationFile = serde_saphyr::from_str(text).map_err(|error| first_line(&error.to_string()))?;
    validate_version(&file)?;
    let (vendor, class) = file.kind.split_once('/').unwrap_or_default();
    if !is_name(vendor, "_-.") || !is_name(class, "_-.") || !starts_with_letter(vendor) || !starts_with_letter(class) {
        return Err(format!("`{}` is no kind: it is <vendor>/<class>", file.kind));
    }
    let edits = file.container_edits.unwrap_or_default();
    edits.validate()?;
    let mut devices = BTreeMap::new();
    for Device { name, container_edits, .. } in file.devices.into_iter().flatten() {
        let edits = container_edits.unwrap_or_default();
        if !is_name(&name, "_-.:") {
            return Err(format!("`{name}` is no device name"));
        }
        if edits.is_empty() {
            return Err(format!("its device `{name}` has empty containerEdits"));
        }
        edits.validate().map_err(|error| format!("its device `{name}`: {error}"))?;
        if devices.insert(name.clone(), edits).is_some() {
            return Err(format!("it has the device `{name}` twice"));
        }
    }
    if devices.is_empty() {
        return Err("it has no devices".to_owned());
    }
    Ok(Specification { kind: file.kind, devices, edits })
}

/// The kind of a file that runtimes may reject.
pub fn kind(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Kind {
        kind: String,
    }
    serde_saphyr::from_str(text).ok().map(|Kind { kind }| kind)
}

/// An error's first line: the lines after it quote the file.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

fn validate_version(file: &SpecificationFile) -> Result<(), String> {
    let version = file.cdi_version.strip_prefix('v').unwrap_or(&file.cdi_version);
    let position = |version| VERSIONS.iter().position(|known| *known == version);
    let Some(given) = position(version) else {
        return Err(format!("cdiVersion {version} is none that runtimes have ({} to {})", VERSIONS[2], VERSIONS[9]));
    };
    let needed = needed_version(file);
    if position(needed).is_some_and(|needed| given < needed) {
        return Err(format!("cdiVersion {version} is too low for its content: it needs {needed}"));
    }
    Ok(())
}

/// The first version that has every field used in the file. 0.8.0 and 1.0.0 added none.
fn needed_version(file: &SpecificationFile) -> &'static str {
    let devices = || file.devices.iter().flatten();
    let edits = || file.container_edits.iter().chain(devices().filter_map(|device| device.container_edits.as_ref()));
    let is_extended = |rdt: &IntelRdt| rdt.schemata.is_some() || rdt.enable_monitoring == Some(true);
    let is_annotated = |map: &Option<BTreeMap<_, _>>| map.as_ref().is_some_and(|map| !map.is_empty());
    let begins_with_digit = |device: &Device| device.name.starts_with(|first: char| first.is_ascii_digit());
    let has_host_path = |node: &DeviceNode| is_given(node.host_path.as_deref());
    if edits().any(|edits| has_any(&edits.net_devices) || edits.intel_rdt.as_ref().is_some_and(is_extended)) {
        "1.1.0"
    } else if edits().any(|edits| edits.intel_rdt.is_some() || has_any(&edits.additional_gids)) {
        "0.7.0"
    } else if is_annotated(&file.annotations)
        || devices().any(|device| is_annotated(&device.annotations))
        || file.kind.split_once('/').is_some_and(|(_, class)| class.contains('.'))
    {
        "0.6.0"
    } else if devices().any(begins_with_digit) || edits().any(|edits| edits.nodes().any(has_host_path)) {
        "0.5.0"
    } else if edits().any(|edits| edits.mounts.iter().flatten().any(|mount| is_given(mount.r#type.as_deref()))) {
        "0.4.0"
    } else {
        "0.3.0"
    }
}

fn has_any<T>(list: &Option<Vec<T>>) -> bool {
    list.as_ref().is_some_and(|list| !list.is_empty())
}

fn is_given(text: Option<&str>) -> bool {
    text.is_some_and(|text| !text.is_empty())
}

fn starts_with_letter(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
}

/// Whether `name` has only letters, digits and characters of `between`, which are neither first nor last.
fn is_name(name: &str, between: &str) -> bool {
    let is_end = |end: Option<char>| end.is_some_and(|end| end.is_ascii_alphanumeric());
    is_end(name.chars().next())
        && is_end(name.chars().last())
        && name.chars().all(|character| character.is_ascii_alphanumeric() || between.contains(character))
}

impl Edits {
    pub fn nodes(&self) -> impl Iterator<Item = &DeviceNode> {
        self.device_nodes.iter().flatten()
    }

    /// What the host must have for a container to start: what is mounted, and the programs of hooks.
    pub fn host_paths(&self) -> impl Iterator<Item = &str> {
        let mounted = self.mounts.iter().flatten().map(|mount| mount.host_path.as_str());
        // Other sources are names of file systems, such as `tmpfs`.
        mounted.chain(self.hooks.iter().flatten().map(|hook| hook.path.as_str())).filter(|path| path.starts_with('/'))
    }

    fn is_empty(&self) -> bool {
        let Self { env, device_nodes, net_devices, hooks, mounts, intel_rdt, additional_gids } = self;
        !(has_any(env)
            || has_any(device_nodes)
            || has_any(net_devices)
            || has_any(hooks)
            || has_any(mounts)
            || intel_rdt.is_some()
            || has_any(additional_gids))
    }

    fn validate(&self) -> Result<(), String> {
        let variables = self.env.iter().chain(self.hooks.iter().flatten().filter_map(|hook| hook.env.as_ref()));
        if let Some(variable) = variables.flatten().find(|text| text.find('=').is_none_or(|at| at == 0)) {
            return Err(format!("`{variable}` is no environment variable"));
        }
        self.nodes().try_for_each(DeviceNode::validate)?;
        if let Some(hook) = self.hooks.iter().flatten().find(|hook| !HOOKS.contains(&hook.hook_name.as_str())) {
            return Err(format!("there is no hook `{}`", hook.hook_name));
        }
        if self.hooks.iter().flatten().any(|hook| hook.path.is_empty()) {
            return Err("a hook has no path".to_owned());
        }
        let is_half = |mount: &Mount| mount.host_path.is_empty() || mount.container_path.is_empty();
        if self.mounts.iter().flatten().any(is_half) {
            return Err("a mount has no hostPath or no containerPath".to_owned());
        }
        let clos_id = self.intel_rdt.as_ref().and_then(|rdt| rdt.clos_id.as_deref()).unwrap_or_default();
        let is_file_name = clos_id.len() < 4096 && ![".", ".."].contains(&clos_id) && !clos_id.contains(['/', '\n']);
        if !is_file_name && clos_id != "/" {
            return Err("closID of intelRdt is no file name".to_owned());
        }
        let (mut hosts, mut names) = (BTreeSet::new(), BTreeSet::new());
        for net in self.net_devices.iter().flatten() {
            let is_whole = !net.host_interface_name.is_empty() && !net.name.is_empty();
            if !is_whole || !hosts.insert(&net.host_interface_name) || !names.insert(&net.name) {
                return Err(format!("its net device `{}` lacks a name, or has that of another net device", net.name));
            }
        }
        Ok(())
    }
}

impl DeviceNode {
    /// The node's path on the host, and the minor number that the file sets. Runtimes read the numbers of a node from
    /// the host unless the file has type and major.
    pub fn on_host(&self) -> (&str, Option<i64>) {
        let host_path = self.host_path.as_deref().filter(|path| !path.is_empty());
        let has_numbers = is_given(self.r#type.as_deref()) && self.major.is_some_and(|major| major != 0);
        (host_path.unwrap_or(&self.path), has_numbers.then(|| self.minor.unwrap_or(0)))
    }

    fn validate(&self) -> Result<(), String> {
        let Self { path, r#type, permissions, .. } = self;
        if path.is_empty() {
            return Err("a device node has no path".to_owned());
        }
        if !["", "b", "c", "u", "p"].contains(&r#type.as_deref().unwrap_or_default()) {
            return Err(format!("the type of {path} is none of b, c, u, p"));
        }
        let permissions = permissions.as_deref().unwrap_or_default();
        if permissions != "none" && !permissions.chars().all(|permission| "rwm".contains(permission)) {
            return Err(format!("the permissions of {path} are not of r, w, m"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<(), &str>) {
        let parsed = parse(text);
        match (&parsed, expected) {
            (Ok(_), Ok(())) => {}
            (Err(error), Err(part)) if error.contains(part) => {}
            _ => panic!("{parsed:?} and not {expected:?} of {text}"),
        }
    }

    /// `more` is added to the file, and `edits` to its device.
    fn file(version: &str, name: &str, edits: &str, more: &str) -> String {
        format!(
            "---\ncdiVersion: {version}\nkind: nvidia.com/gpu\ndevices:\n- name: {name}\n  containerEdits: {{{edits}}}\n{more}"
        )
    }

    #[test]
    fn a_file_is_loaded_by_the_rules_of_runtimes() {
        const NODE: &str = "deviceNodes: [{path: /dev/nvidia0}]";
        for (text, expected) in [
            (file("0.3.0", "GPU-0", NODE, ""), Ok(())),
            (file("v0.3.0", "GPU-0", NODE, ""), Ok(())),
            (file("\"0.5.0\"", "0", NODE, ""), Ok(())),
            (file("0.4.0", "\"0\"", NODE, ""), Err("needs 0.5.0")),
            (file("0.4.0", "a", "deviceNodes: [{path: /dev/a, hostPath: /dev/b}]", ""), Err("needs 0.5.0")),
            (file("0.3.0", "a", "mounts: [{hostPath: /a, containerPath: /a, type: bind}]", ""), Err("needs 0.4.0")),
            (file("0.5.0", "a", NODE, "annotations: {a: b}"), Err("needs 0.6.0")),
            (file("0.6.0", "a", "additionalGids: [44]", ""), Err("needs 0.7.0")),
            (file("1.0.0", "a", "netDevices: [{hostInterfaceName: a, name: b}]", ""), Err("needs 1.1.0")),
            (file("1.1.0", "a", "netDevices: [{hostInterfaceName: a, name: b}]", ""), Ok(())),
            (file("1.2.0", "a", NODE, ""), Err("none that runtimes have")),
            (file("0.2.0", "a", NODE, ""), Err("needs 0.3.0")),
            (file("0.5.0", "a", NODE, "devicesx: []"), Err("devicesx")),
            (file("0.5.0", "a", "deviceNodes: [{path: /dev/a, mode: 1}]", ""), Err("mode")),
            (file("0.5.0", "a", "", ""), Err("empty containerEdits")),
            (file("0.5.0", "a", "deviceNodes: []", ""), Err("empty containerEdits")),
            (file("0.5.0", "a", NODE, &format!("- {{name: a, containerEdits: {{{NODE}}}}}")), Err("`a` twice")),
            (file("0.5.0", "a_", NODE, ""), Err("no device name")),
            (file("0.5.0", "a", "env: [A]", ""), Err("environment variable")),
            (file("0.5.0", "a", "hooks: [{hookName: before, path: /a}]", ""), Err("no hook `before`")),
            (file("0.5.0", "a", "deviceNodes: [{path: /dev/a, permissions: rx}]", ""), Err("permissions")),
            (file("0.5.0", "a", "deviceNodes: [{path: /dev/a, type: d}]", ""), Err("type")),
            (file("0.5.0", "a", "deviceNodes: [{path: ''}]", ""), Err("no path")),
            (file("0.5.0", "a", "mounts: [{hostPath: /a, containerPath: ''}]", ""), Err("mount")),
            (file("0.7.0", "a", "intelRdt: {closID: a/b}", ""), Err("closID")),
            (file("0.5.0", "a", NODE, "kind: b/c"), Err("kind")),
            ("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: []\n".to_owned(), Err("no devices")),
            ("cdiVersion: 0.5.0\nkind: gpu\ndevices: []\n".to_owned(), Err("no kind")),
            (
                r#"{"cdiVersion":"0.5.0","kind":"a.b/c","containerEdits":null,"devices":
                    [{"name":"0","annotations":null,"containerEdits":{"env":["A=b"],"deviceNodes":null}}]}"#
                    .to_owned(),
                Ok(()),
            ),
            ("{".to_owned(), Err("")),
        ] {
            check(&text, expected);
        }
        assert_eq!(kind("kind: a/b\nother: 1\n").as_deref(), Some("a/b"));
        assert_eq!(kind("{"), None);
    }

    #[test]
    fn a_node_has_the_numbers_of_the_host_unless_the_file_has_type_and_major() {
        let node = |text: &str| serde_saphyr::from_str::<DeviceNode>(text).unwrap();
        assert_eq!(node("path: /dev/nvidia1").on_host(), ("/dev/nvidia1", None));
        assert_eq!(node("{path: /dev/nvidia1, hostPath: /d/nvidia2, minor: 7}").on_host(), ("/d/nvidia2", None));
        assert_eq!(node("{path: /dev/nvidia1, type: c, major: 195, minor: 7}").on_host(), ("/dev/nvidia1", Some(7)));
    }

    proptest::proptest! {
        #[test]
        fn anything_is_survived(text in ".{0,200}") {
            let _ = (parse(&text), kind(&text));
        }
    }
}
