use std::os::unix::fs::symlink;

use super::*;
use crate::plugin::config::{GroupedNode, NodeGroup, OnConflict};

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

/// A host whose nodes are plain files: making device nodes takes privileges.
fn host(nodes: &[&str]) -> (tempfile::TempDir, HostRoots) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let roots = HostRoots { host: root.join("root"), dev: root.join("dev"), sys: root.join("sys") };
    for node in nodes {
        let path = roots.local_path(Path::new(node));
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
    // One node has two names: that of the node counts, not the link's.
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
    assert_eq!(roots.local_path(Path::new("/devices/x")), Path::new("/devices/x"));
}

#[test]
fn a_group_is_one_device_and_needs_all_that_is_not_optional() {
    let (directory, roots) = host(&["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"]);
    let member =
        |path: &str, optional| GroupedNode { path: path.to_owned(), container_path: None, permissions: None, optional };
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
    let ids = |pattern: &str| find(&config(&[pattern]), &here).into_iter().map(|found| found.id).collect::<Vec<_>>();
    assert_eq!(ids("/dev/nul[l]"), ["null".into()]);
    assert_eq!(ids("/etc/host*"), []);
}

#[test]
fn long_paths_make_short_ids_that_differ() {
    let long = |end: &str| id(&format!("/dev/serial/by-id/{}-{end}", "x".repeat(80)));
    assert!(long("a").len() <= LONGEST_UNSHARED_ID);
    assert_ne!(long("a"), long("b"));
    assert_ne!(id(&format!("/dev/a{}", "x".repeat(80))), id(&format!("/dev/b{}", "x".repeat(80))));
    assert_eq!(long("a"), long("a"));
    assert!(id(&format!("/dev/{}", "ü".repeat(80))).len() <= LONGEST_UNSHARED_ID);
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
