//! The host's device nodes that entries of kind `path` name.
//!
//! In: the configuration, the host's directories that it names (usually below `/dev`), `/sys`. Out: the nodes that
//! exist now. Does not use: notifications of changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::domain::model::DeviceId;
use crate::input::{Pattern, has_wildcards};
use crate::plugin::config::{LONGEST_UNSHARED_ID, PathConfig};
use crate::plugin::hash::stable_hash;
use crate::plugin::offer::PathDevice;
use crate::wire::v1beta1::DeviceSpec;

/// The host's directories, as this process sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoots {
    /// The root of the host's paths other than `/dev`; `/` on a node: host directories are mounted at the same paths.
    pub host: PathBuf,
    /// The host's `/dev`.
    pub dev: PathBuf,
    pub sys: PathBuf,
}

impl HostRoots {
    /// The path at which this process sees a path of the host.
    pub fn local_path(&self, path: &Path) -> PathBuf {
        match path.strip_prefix("/dev") {
            Ok(rest) => self.dev.join(rest),
            Err(_) => self.host.join(path.strip_prefix("/").unwrap_or(path)),
        }
    }
}

/// The devices that exist now, sorted by ID. What is missing or is no device node is left out.
///
/// A symbolic link is offered under the link's name, which is the stable one (`/dev/serial/by-id/…`), and the container
/// gets its target. A target that several names lead to is offered once, under the target's name if that is among them,
/// else under the first.
pub fn find(config: &PathConfig, roots: &HostRoots) -> Vec<PathDevice> {
    find_where(config, roots, |metadata| {
        metadata.file_type().is_char_device() || metadata.file_type().is_block_device()
    })
}

fn find_where(config: &PathConfig, roots: &HostRoots, is_device: fn(&fs::Metadata) -> bool) -> Vec<PathDevice> {
    let node = |path: &str| HostNode::open(roots, path, is_device);
    let mut found: BTreeMap<DeviceId, PathDevice> = BTreeMap::new();
    let mut add = |id: String, nodes: Vec<DeviceSpec>, opened: &[HostNode]| {
        let id = DeviceId::new(id);
        let numa_nodes = opened.iter().filter_map(|node| numa_node(&roots.sys, node)).collect();
        found.entry(id.clone()).or_insert(PathDevice { id, nodes: nodes.into(), numa_nodes });
    };

    // All nodes of a group are one device.
    for group in &config.groups {
        let (mut nodes, mut opened, mut is_complete) = (vec![], vec![], true);
        for member in &group.paths {
            let existing: Vec<HostNode> = expand(roots, &member.path).iter().filter_map(|path| node(path)).collect();
            is_complete &= member.optional || !existing.is_empty();
            for node in existing {
                let permissions = member.permissions.as_deref().unwrap_or(&config.permissions);
                nodes.push(node.device_spec(member.container_path.as_deref(), permissions));
                opened.push(node);
            }
        }
        if is_complete && !nodes.is_empty() {
            add(group.id.clone(), nodes, &opened);
        }
    }

    // Each target of `paths` is one device.
    let named: BTreeSet<String> = config.paths.iter().flat_map(|pattern| expand(roots, pattern)).collect();
    let mut by_target: BTreeMap<PathBuf, HostNode> = BTreeMap::new();
    for node in named.iter().filter_map(|path| node(path)) {
        let own_name = node.target == Path::new(&node.name);
        if own_name || !by_target.contains_key(&node.target) {
            by_target.insert(node.target.clone(), node);
        }
    }
    for node in by_target.into_values() {
        let spec = node.device_spec(config.container_path.as_deref(), &config.permissions);
        add(id(&node.name), vec![spec], &[node]);
    }
    found.into_values().collect()
}

/// A path of the host, and the node that it leads to.
struct HostNode {
    name: String,
    target: PathBuf,
    /// The device number, with major and minor as the kernel packs them.
    number: u64,
    block: bool,
}

impl HostNode {
    fn open(roots: &HostRoots, name: &str, is_device: fn(&fs::Metadata) -> bool) -> Option<Self> {
        let target = resolve(roots, Path::new(name))?;
        let metadata = fs::symlink_metadata(roots.local_path(&target)).ok()?;
        is_device(&metadata).then(|| Self {
            name: name.to_owned(),
            number: metadata.rdev(),
            block: metadata.file_type().is_block_device(),
            target,
        })
    }

    fn device_spec(&self, container_path: Option<&str>, permissions: &str) -> DeviceSpec {
        let container_path = match container_path {
            None => self.name.clone(),
            Some(directory) if directory.ends_with('/') => {
                format!("{directory}{}", self.name.rsplit('/').next().unwrap_or_default())
            }
            Some(path) => path.to_owned(),
        };
        let host_path = self.target.display().to_string();
        DeviceSpec { host_path, container_path, permissions: permissions.to_owned() }
    }
}

/// The device ID: the path below `/dev`, else all of it; shortened with a hash where it is too long.
fn id(path: &str) -> String {
    let short = path.strip_prefix("/dev/").unwrap_or(path);
    if short.len() <= LONGEST_UNSHARED_ID {
        return short.to_owned();
    }
    // The end of a path is more specific than its beginning.
    let hash = format!("{:016x}-", stable_hash(short.bytes()));
    let mut start = short.len() - (LONGEST_UNSHARED_ID - hash.len());
    while !short.is_char_boundary(start) {
        start += 1;
    }
    format!("{hash}{}", &short[start..])
}

/// The paths that match a pattern, sorted. A path without wildcards stays as it is, whether or not it exists.
fn expand(roots: &HostRoots, pattern: &str) -> Vec<String> {
    let mut paths = vec![String::new()];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        if has_wildcards(part) {
            paths = paths.iter().flat_map(|directory| matching_entries(roots, directory, part)).collect();
        } else {
            for path in &mut paths {
                path.push('/');
                path.push_str(part);
            }
        }
    }
    paths.retain(|path| !path.is_empty());
    paths.sort();
    paths
}

fn matching_entries(roots: &HostRoots, directory: &str, part: &str) -> Vec<String> {
    let Ok(pattern) = Pattern::new(part) else { return vec![] };
    let Some(target) = resolve(roots, Path::new(directory)) else { return vec![] };
    let Ok(entries) = fs::read_dir(roots.local_path(&target)) else { return vec![] };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    // As in a shell, wildcards do not match a leading dot.
    let visible = |name: &String| part.starts_with('.') || !name.starts_with('.');
    names.filter(|name| visible(name) && pattern.matches(name)).map(|name| format!("{directory}/{name}")).collect()
}

/// The host's `path` with symbolic links resolved. `None`: a part of it is missing.
fn resolve(roots: &HostRoots, path: &Path) -> Option<PathBuf> {
    let target = fs::canonicalize(roots.local_path(path)).ok()?;
    let below = |root: &Path| Some(target.strip_prefix(fs::canonicalize(root).ok()?).ok()?.to_owned());
    below(&roots.dev)
        .map(|rest| Path::new("/dev").join(rest))
        .or_else(|| Some(Path::new("/").join(below(&roots.host)?)))
}

/// The NUMA node of the nearest ancestor in sysfs that has one: the PCI device of a class device.
fn numa_node(sys: &Path, node: &HostNode) -> Option<i64> {
    let (major, minor) = (rustix::fs::major(node.number), rustix::fs::minor(node.number));
    let kind = if node.block { "block" } else { "char" };
    let link = sys.join(format!("dev/{kind}/{major}:{minor}"));
    let device = fs::canonicalize(link).ok()?;
    let root = fs::canonicalize(sys).ok()?;
    let mut ancestors = device.ancestors().take_while(|ancestor| *ancestor != root);
    let text = ancestors.find_map(|ancestor| fs::read_to_string(ancestor.join("numa_node")).ok())?;
    // -1 means that the firmware does not report it.
    text.trim().parse().ok().filter(|number| *number >= 0)
}

#[cfg(test)]
mod tests;
