//! Our specifications across starts of podmeter, changes of the hardware and of what containers hold.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::domain::model::Gpu;
use crate::plugin::test_data::{driver_files, gpu, host_roots, inventory, mig_uuid, uuid};

#[test]
fn every_device_of_the_node_is_described_with_its_nodes() {
    let mut node = node();
    assert_eq!(node.update([gpu(0, Some(&["3g.40gb"])), gpu(1, None)]), [""; 0]);
    let mig = format!("{}: /dev/nvidia7 /dev/nvidia-caps/nvidia-cap10 /dev/nvidia-caps/nvidia-cap11", mig_uuid(0, 0));
    assert_eq!(
        node.file(0),
        [format!("{}: /dev/nvidia7", uuid(0)), format!("{}: /dev/nvidia6", uuid(1)), mig],
        "by UUID, whatever is offered"
    );
    assert_eq!(node.file(1), [""; 0]);
    let file = node.root.path().join("cdi").join(FILES[0]);
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(fs::read_dir(node.root.path().join("cdi")).unwrap().count(), 1, "nothing temporary stays");
}

#[test]
fn nodes_have_the_mode_and_the_place_that_the_host_has() {
    let mut node = node();
    let path = node.root.path().join("dev/nvidia7");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    node.update([gpu(0, None), gpu(1, None)]);
    let text = fs::read_to_string(node.root.path().join("cdi").join(FILES[0])).unwrap();
    let read: Value = serde_json::from_str(&text).unwrap();
    let first = json!({ "path": "/dev/nvidia7", "permissions": "rw", "fileMode": 0o444 });
    assert_eq!(read["devices"][0]["containerEdits"]["deviceNodes"][0], first);
    assert_eq!(read["devices"][1]["containerEdits"]["deviceNodes"][0]["fileMode"], Value::Null, "not known");
    assert_eq!(read["containerEdits"]["deviceNodes"][0]["path"], "/dev/nvidiactl");
    assert!(!text.contains("hostPath"));
}

#[test]
fn a_name_that_a_container_holds_stays_without_the_nodes_of_others() {
    let mut node = node();
    let (lost, mig) = (ours(&uuid(1)), mig_uuid(0, 0));
    node.hold(&[lost.clone(), ours(&mig)]);
    node.update([gpu(0, Some(&["3g.40gb"])), gpu(1, None)]);
    // Another podmeter starts; the driver no longer lists GPU 1, and GPU 0 has no MIG devices.
    for is_first in [true, false] {
        node.written = WrittenSpecifications::default();
        let problems = node.update([gpu(0, None)]);
        let whole = format!("{}: /dev/nvidia7", uuid(0));
        let absent = format!("{mig}: PODMETER_ABSENT_DEVICE={mig}");
        assert_eq!(node.file(0), [whole, format!("{}: /dev/nvidia6", uuid(1)), absent], "{is_first}");
        assert!(problems[0].contains(&mig) && !problems[0].contains(&lost), "{problems:?}");
    }
    // GPU 2 has the nodes of GPU 1 now.
    let next = || Gpu { minor: Some(6), ..gpu(2, None) };
    node.update([gpu(0, None), next()]);
    assert!(node.file(0).contains(&format!("{0}: PODMETER_ABSENT_DEVICE={0}", uuid(1))), "{:?}", node.file(0));
    node.hold(&[]);
    assert_eq!(node.update([gpu(0, None), next()]), [""; 0]);
    assert_eq!(node.file(0).len(), 2, "no container holds the others");
}

#[test]
fn a_lost_gpu_stays_described_until_its_node_is_anothers() {
    let mut node = node();
    let lost = || Gpu { present: false, ..gpu(1, None) };
    node.update([gpu(0, None), lost()]);
    assert_eq!(node.file(0)[1], format!("{}: /dev/nvidia6", uuid(1)));
    node.update([Gpu { minor: Some(6), ..gpu(0, None) }, lost()]);
    assert_eq!(node.file(0)[1], format!("{0}: PODMETER_ABSENT_DEVICE={0}", uuid(1)));
    assert_eq!(node.file(0)[0], format!("{}: /dev/nvidia6", uuid(0)));
}

#[test]
fn a_name_of_the_earlier_kind_is_described_while_it_is_held_and_only_by_us() {
    let mut node = node();
    let earlier = |name: &str| format!("{EARLIER_KIND}={name}");
    node.hold(&[earlier(&uuid(0)), earlier("1"), earlier("8")]);
    let gpus = || [gpu(0, None), gpu(1, None)];
    node.update(gpus());
    let [first, second] = [format!("{}: /dev/nvidia7", uuid(0)), "1: /dev/nvidia6".to_owned()];
    assert_eq!(node.file(1), [&*second, &first], "and not 8, of which nothing is known");
    node.written = WrittenSpecifications::default();
    node.held = None;
    node.update(gpus());
    assert_eq!(node.file(1), [&*second, &first], "the checkpoint cannot be read: as before");
    // NVIDIA's plugin is there.
    node.described = vec![uuid(0)];
    node.update(gpus());
    assert_eq!(node.file(1), [&*second]);
    node.hold(&[earlier(&uuid(0))]);
    node.update(gpus());
    assert_eq!(node.file(1), [""; 0], "the file is removed");
}

#[test]
fn without_cdi_strategies_only_what_may_be_held_is_kept() {
    let mut node = node();
    node.is_used = false;
    node.hold(&[ours(&uuid(0))]);
    assert_eq!(node.update([gpu(0, None)]), [""; 0]);
    assert_eq!(node.file(0), [""; 0], "the directory is not mounted");
    fs::create_dir(node.root.path().join("cdi")).unwrap();
    node.update([gpu(0, None)]);
    assert_eq!(node.file(0).len(), 1);
    node.hold(&[]);
    node.update([gpu(0, None), gpu(1, None)]);
    assert_eq!(node.file(0).len(), 2, "the file stays");
    let blocked = node.root.path().join("cdi");
    fs::remove_dir_all(&blocked).unwrap();
    fs::write(&blocked, "").unwrap();
    node.is_used = true;
    let problems = node.update([gpu(0, None)]);
    assert!(problems[0].contains(FILES[0]) && problems[0].contains("writable"), "{problems:?}");
}

/// A node on which the test starts and ends podmeter.
struct CdiNode {
    root: tempfile::TempDir,
    written: WrittenSpecifications,
    held: Option<BTreeSet<String>>,
    described: Vec<String>,
    is_used: bool,
}

fn node() -> CdiNode {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("dev")).unwrap();
    let (written, held) = (WrittenSpecifications::default(), Some(BTreeSet::new()));
    CdiNode { root, written, held, described: vec![], is_used: true }
}

impl CdiNode {
    fn hold(&mut self, names: &[String]) {
        self.held = Some(names.iter().cloned().collect());
    }

    fn update(&mut self, gpus: impl IntoIterator<Item = Gpu>) -> Vec<String> {
        self.written.update(&SpecificationInputs {
            directory: &self.root.path().join("cdi"),
            roots: &host_roots(self.root.path()),
            device_root: Path::new("/"),
            control_nodes: &["/dev/nvidiactl".to_owned()],
            devices: &node_devices(&inventory(gpus), &driver_files([7])),
            held: self.held.as_ref(),
            described: self.described.iter().map(String::as_str).collect(),
            is_used: self.is_used,
        })
    }

    /// The devices of the file with this number, each as `name: nodes or variables`.
    fn file(&self, number: usize) -> Vec<String> {
        let text = fs::read_to_string(self.root.path().join("cdi").join(FILES[number])).unwrap_or_default();
        if text.is_empty() {
            return vec![];
        }
        format::parse(&text).expect("runtimes load it");
        let file: Value = serde_json::from_str(&text).unwrap();
        let devices = file["devices"].as_array().unwrap().iter().map(|device| {
            let edits = &device["containerEdits"];
            let nodes = edits["deviceNodes"].as_array().into_iter().flatten().map(|node| &node["path"]);
            let all = nodes.chain(edits["env"].as_array().into_iter().flatten());
            let all: Vec<&str> = all.map(|one| one.as_str().unwrap()).collect();
            format!("{}: {}", device["name"].as_str().unwrap(), all.join(" "))
        });
        devices.collect()
    }
}

fn ours(name: &str) -> String {
    format!("{KIND}={name}")
}
