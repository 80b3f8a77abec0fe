//! The host's device nodes that entries of kind `path` name.
//!
//! In: the configuration, the host's `/dev` and `/sys`. Out: the nodes that exist now. Does not use: notifications of
//! changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::answer::fnv;
use super::config::PathConfig;
use super::offers::LONGEST_ID;
use super::pattern::{Pattern, has_wildcards};
use crate::domain::model::DeviceId;
use crate::node::wire::v1beta1::DeviceSpec;

/// Leaves room in an id for `::` and a slot's number.
const LONGEST_BASE: usize = LONGEST_ID - 6;

/// One device: a node, or a group of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathDevice {
    pub id: DeviceId,
    pub nodes: Vec<DeviceSpec>,
    pub numa_nodes: BTreeSet<i64>,
}

/// Where this process sees the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoots {
    /// For all but `/dev`: `/`, since what is mounted of the host has its own path here.
    pub host: PathBuf,
    /// The host's `/dev`.
    pub dev: PathBuf,
    pub sys: PathBuf,
}

impl HostRoots {
    /// Where a path of the host is seen from here.
    pub(super) fn inside(&self, path: &Path) -> PathBuf {
        match path.strip_prefix("/dev") {
            Ok(rest) => self.dev.join(rest),
            Err(_) => self.host.join(path.strip_prefix("/").unwrap_or(path)),
        }
    }
}

/// What is there now, sorted by id. What is missing or is no device node is left out.
///
/// A symbolic link is offered under its own name, since that is the lasting one (`/dev/serial/by-id/…`), and its
/// target is what the container gets. A target that several names lead to is offered once, under its own name if that
/// is among them, else under the first.
pub fn find(config: &PathConfig, roots: &HostRoots) -> Vec<PathDevice> {
    find_where(config, roots, |metadata| {
        metadata.file_type().is_char_device() || metadata.file_type().is_block_device()
    })
}

fn find_where(config: &PathConfig, roots: &HostRoots, is_device: fn(&fs::Metadata) -> bool) -> Vec<PathDevice> {
    let node = |path: &str| HostNode::open(roots, path, is_device);
    let mut found: BTreeMap<DeviceId, PathDevice> = BTreeMap::new();
    let mut offer = |id: String, nodes: Vec<DeviceSpec>, opened: &[HostNode]| {
        let id = DeviceId::new(id);
        let numa_nodes = opened.iter().filter_map(|node| numa_node(&roots.sys, node)).collect();
        found.entry(id.clone()).or_insert(PathDevice { id, nodes, numa_nodes });
    };

    for group in &config.groups {
        let mut nodes = vec![];
        let mut opened = vec![];
        let mut complete = true;
        for member in &group.paths {
            let there: Vec<HostNode> = expand(roots, &member.path).iter().filter_map(|path| node(path)).collect();
            complete &= member.optional || !there.is_empty();
            for node in there {
                let permissions = member.permissions.as_deref().unwrap_or(&config.permissions);
                nodes.push(node.given(member.container_path.as_deref(), permissions));
                opened.push(node);
            }
        }
        if complete && !nodes.is_empty() {
            offer(group.id.clone(), nodes, &opened);
        }
    }

    let named: BTreeSet<String> = config.paths.iter().flat_map(|pattern| expand(roots, pattern)).collect();
    let mut by_target: BTreeMap<PathBuf, HostNode> = BTreeMap::new();
    for node in named.iter().filter_map(|path| node(path)) {
        let own_name = node.target == Path::new(&node.name);
        if own_name || !by_target.contains_key(&node.target) {
            by_target.insert(node.target.clone(), node);
        }
    }
    for node in by_target.into_values() {
        let given = node.given(config.container_path.as_deref(), &config.permissions);
        offer(id(&node.name), vec![given], &[node]);
    }
    found.into_values().collect()
}

/// A path as the host names it, and what it leads to.
struct HostNode {
    name: String,
    target: PathBuf,
    /// Of the device, as the kernel packs major and minor.
    number: u64,
    block: bool,
}

impl HostNode {
    fn open(roots: &HostRoots, name: &str, is_device: fn(&fs::Metadata) -> bool) -> Option<Self> {
        let target = resolve(roots, Path::new(name))?;
        let metadata = fs::symlink_metadata(roots.inside(&target)).ok()?;
        is_device(&metadata).then(|| Self {
            name: name.to_owned(),
            number: metadata.rdev(),
            block: metadata.file_type().is_block_device(),
            target,
        })
    }

    fn given(&self, container_path: Option<&str>, permissions: &str) -> DeviceSpec {
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

/// Below `/dev` the rest of the path, else all of it; shortened with a hash where it is too long.
fn id(path: &str) -> String {
    let short = path.strip_prefix("/dev/").unwrap_or(path);
    if short.len() <= LONGEST_BASE {
        return short.to_owned();
    }
    // The end of a path is more specific than its beginning.
    let hash = format!("{:016x}-", fnv(short.bytes()));
    let mut start = short.len() - (LONGEST_BASE - hash.len());
    while !short.is_char_boundary(start) {
        start += 1;
    }
    format!("{hash}{}", &short[start..])
}

/// The paths that fit a pattern, sorted. A path without wildcards is itself, there or not.
fn expand(roots: &HostRoots, pattern: &str) -> Vec<String> {
    let mut paths = vec![String::new()];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        if has_wildcards(part) {
            paths = paths.iter().flat_map(|directory| fitting(roots, directory, part)).collect();
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

fn fitting(roots: &HostRoots, directory: &str, part: &str) -> Vec<String> {
    let Ok(pattern) = Pattern::new(part) else { return vec![] };
    let Some(target) = resolve(roots, Path::new(directory)) else { return vec![] };
    let Ok(entries) = fs::read_dir(roots.inside(&target)) else { return vec![] };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    // As a shell: a leading dot must be spelt out.
    let visible = |name: &String| part.starts_with('.') || !name.starts_with('.');
    names.filter(|name| visible(name) && pattern.matches(name)).map(|name| format!("{directory}/{name}")).collect()
}

/// `path` without symbolic links, as the host names it. `None`: something on the way is missing.
fn resolve(roots: &HostRoots, path: &Path) -> Option<PathBuf> {
    let target = fs::canonicalize(roots.inside(path)).ok()?;
    let below = |root: &Path| Some(target.strip_prefix(fs::canonicalize(root).ok()?).ok()?.to_owned());
    below(&roots.dev)
        .map(|rest| Path::new("/dev").join(rest))
        .or_else(|| Some(Path::new("/").join(below(&roots.host)?)))
}

/// Of the nearest ancestor in sysfs that has one: the PCI device behind a class device.
fn numa_node(sys: &Path, node: &HostNode) -> Option<i64> {
    let (major, minor) = (rustix::fs::major(node.number), rustix::fs::minor(node.number));
    let kind = if node.block { "block" } else { "char" };
    let link = sys.join(format!("dev/{kind}/{major}:{minor}"));
    let device = fs::canonicalize(link).ok()?;
    let root = fs::canonicalize(sys).ok()?;
    let mut ancestors = device.ancestors().take_while(|ancestor| *ancestor != root);
    let text = ancestors.find_map(|ancestor| fs::read_to_string(ancestor.join("numa_node")).ok())?;
    // -1: unknown to the firmware.
    text.trim().parse().ok().filter(|number| *number >= 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::node::plugin::config::{GroupedNode, NodeGroup, OnConflict};

    fn config(paths: &[&str]) -> PathConfig {
        PathConfig {
            name: "example.com/nic".into(),
            paths: paths.iter().map(|path| (*path).to_owned()).collect(),
            groups: vec![],
            shared: 1,
            permissions: "rw".to_owned(),
            container_path: None,
            on_conflict: OnConflict::Wait,
        }
    }

    /// A host whose nodes are plain files: making real ones takes privileges.
    fn host(nodes: &[&str]) -> (tempfile::TempDir, HostRoots) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let roots = HostRoots { host: root.join("root"), dev: root.join("dev"), sys: root.join("sys") };
        for node in nodes {
            let path = roots.inside(Path::new(node));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        (directory, roots)
    }

    fn found(config: &PathConfig, roots: &HostRoots) -> Vec<(String, Vec<(String, String)>)> {
        let nodes = |found: &PathDevice| {
            found.nodes.iter().map(|node| (node.host_path.clone(), node.container_path.clone())).collect()
        };
        let all = find_where(config, roots, fs::Metadata::is_file);
        all.iter().map(|found| (found.id.to_string(), nodes(found))).collect()
    }

    fn same(id: &str, path: &str) -> (String, Vec<(String, String)>) {
        (id.to_owned(), vec![(path.to_owned(), path.to_owned())])
    }

    #[test]
    fn each_matching_node_is_a_device_while_it_exists() {
        let (directory, roots) = host(&["/dev/infiniband/uverbs1", "/dev/infiniband/uverbs0", "/dev/infiniband/issm0"]);
        fs::create_dir(directory.path().join("dev/infiniband/uverbs9")).unwrap();
        let config = config(&["/dev/infiniband/uverbs*", "/dev/fuse"]);
        let both = vec![
            same("infiniband/uverbs0", "/dev/infiniband/uverbs0"),
            same("infiniband/uverbs1", "/dev/infiniband/uverbs1"),
        ];
        assert_eq!(found(&config, &roots), both);
        fs::write(directory.path().join("dev/fuse"), "").unwrap();
        fs::remove_file(directory.path().join("dev/infiniband/uverbs0")).unwrap();
        assert_eq!(found(&config, &roots), [same("fuse", "/dev/fuse"), both[1].clone()]);
    }

    #[test]
    fn links_keep_their_name_and_give_their_target() {
        let (directory, roots) = host(&["/dev/ttyUSB0", "/dev/ttyUSB1"]);
        let by_id = directory.path().join("dev/serial/by-id");
        fs::create_dir_all(&by_id).unwrap();
        symlink("../../ttyUSB0", by_id.join("usb-a")).unwrap();
        symlink("../../ttyUSB1", by_id.join("usb-b")).unwrap();
        symlink("nowhere", by_id.join("usb-c")).unwrap();
        symlink("usb-d", by_id.join("usb-d")).unwrap();
        let link = |name: &str, target: &str| {
            let path = format!("/dev/serial/by-id/{name}");
            (path["/dev/".len()..].to_owned(), vec![(target.to_owned(), path)])
        };
        let expected = [link("usb-a", "/dev/ttyUSB0"), link("usb-b", "/dev/ttyUSB1")];
        assert_eq!(found(&config(&["/dev/serial/by-id/*"]), &roots), expected);
        // Both names of one node: its own counts.
        let both = config(&["/dev/serial/by-id/*", "/dev/ttyUSB0"]);
        assert_eq!(found(&both, &roots), [expected[1].clone(), same("ttyUSB0", "/dev/ttyUSB0")]);
    }

    #[test]
    fn the_hosts_nodes_may_be_seen_elsewhere() {
        let root = tempfile::tempdir().unwrap();
        let roots = HostRoots { host: "/".into(), dev: root.path().join("host-dev"), sys: root.path().join("sys") };
        fs::create_dir_all(roots.dev.join("dri")).unwrap();
        fs::write(roots.dev.join("dri/card0"), "").unwrap();
        symlink("dri/card0", roots.dev.join("card")).unwrap();
        let of_host = ("/dev/dri/card0".to_owned(), "/dev/card".to_owned());
        assert_eq!(found(&config(&["/dev/card"]), &roots), [("card".to_owned(), vec![of_host])]);
        assert_eq!(found(&config(&["/dev/dri/*"]), &roots), [same("dri/card0", "/dev/dri/card0")]);
        assert_eq!(roots.inside(Path::new("/devices/x")), Path::new("/devices/x"));
    }

    #[test]
    fn a_group_is_one_device_and_needs_all_that_is_not_optional() {
        let (directory, roots) =
            host(&["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"]);
        let member = |path: &str, optional| GroupedNode {
            path: path.to_owned(),
            container_path: None,
            permissions: None,
            optional,
        };
        let paths = vec![member("/dev/infiniband/rdma_cm", false), member("/dev/infiniband/uverbs*", true)];
        let group = NodeGroup { id: "rdma".to_owned(), paths };
        let config = PathConfig { groups: vec![group], container_path: None, ..config(&[]) };
        assert_eq!(found(&config, &roots)[0].1.len(), 3);
        fs::remove_file(directory.path().join("dev/infiniband/uverbs0")).unwrap();
        assert_eq!(found(&config, &roots)[0].1.len(), 2);
        fs::remove_file(directory.path().join("dev/infiniband/rdma_cm")).unwrap();
        assert_eq!(found(&config, &roots), []);
    }

    #[test]
    fn the_container_path_may_be_a_directory() {
        let (_directory, roots) = host(&["/dev/a0", "/dev/a1"]);
        let config = PathConfig { container_path: Some("/dev/cards/".to_owned()), ..config(&["/dev/a?"]) };
        let seen: Vec<String> = found(&config, &roots).into_iter().map(|(_, nodes)| nodes[0].1.clone()).collect();
        assert_eq!(seen, ["/dev/cards/a0", "/dev/cards/a1"]);
    }

    #[test]
    fn only_device_nodes_are_devices() {
        let here = HostRoots { host: "/".into(), dev: "/dev".into(), sys: "/nonexistent".into() };
        let ids =
            |pattern: &str| find(&config(&[pattern]), &here).into_iter().map(|found| found.id).collect::<Vec<_>>();
        assert_eq!(ids("/dev/nul[l]"), ["null".into()]);
        assert_eq!(ids("/etc/host*"), []);
    }

    #[test]
    fn long_paths_make_short_ids_that_differ() {
        let long = |end: &str| id(&format!("/dev/serial/by-id/{}-{end}", "x".repeat(80)));
        assert!(long("a").len() <= LONGEST_BASE);
        assert_ne!(long("a"), long("b"));
        assert_ne!(id(&format!("/dev/a{}", "x".repeat(80))), id(&format!("/dev/b{}", "x".repeat(80))));
        assert_eq!(long("a"), long("a"));
        assert!(id(&format!("/dev/{}", "ü".repeat(80))).len() <= LONGEST_BASE);
    }

    #[test]
    fn the_numa_node_is_that_of_the_pci_device_behind() {
        let sys = tempfile::tempdir().unwrap();
        let pci = sys.path().join("devices/pci0000:16/0000:17:00.0");
        fs::create_dir_all(pci.join("infiniband_verbs/uverbs0")).unwrap();
        fs::create_dir_all(sys.path().join("dev/char")).unwrap();
        fs::create_dir_all(sys.path().join("devices/virtual/misc/fuse")).unwrap();
        symlink(pci.join("infiniband_verbs/uverbs0"), sys.path().join("dev/char/231:192")).unwrap();
        symlink(sys.path().join("devices/virtual/misc/fuse"), sys.path().join("dev/char/10:229")).unwrap();
        let node = |major: u64, minor: u64| HostNode {
            name: String::new(),
            target: PathBuf::new(),
            number: (major << 8) | minor,
            block: false,
        };
        for (text, expected) in [("1\n", Some(1)), ("-1\n", None), ("x", None)] {
            fs::write(pci.join("numa_node"), text).unwrap();
            assert_eq!(numa_node(sys.path(), &node(231, 192)), expected, "{text:?}");
        }
        assert_eq!(numa_node(sys.path(), &node(10, 229)), None);
        assert_eq!(numa_node(sys.path(), &node(1, 3)), None);
    }
}
