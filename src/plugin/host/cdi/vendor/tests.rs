//! Vendors' files as they are found on nodes, and which of their entries are used.

use std::fmt::Write as _;

use super::*;
use crate::domain::model::Gpu;
use crate::plugin::config::EntryConfig;
use crate::plugin::offer::offers;
use crate::plugin::test_data::{driver_files, gpu, host_roots, inventory, mig_uuid, nvidia, uuid};

const TWO: [(&str, &[&str]); 2] = [("0", &["nvidia7", "dri/card0"]), ("1", &["nvidia6"])];

#[test]
fn an_index_counts_where_the_device_nodes_are_the_gpus() {
    let mut host = host("deviceListStrategy: cdi-cri", [gpu(0, None), gpu(1, None)]);
    host.check(&[], &[]);
    host.write("etc/nvidia.yaml", &toolkit(&TWO, ""));
    host.check(&["nvidia.com/gpu=0", "nvidia.com/gpu=1"], &[]);
    // The file was made when there was another GPU before GPU 1.
    host.write("etc/nvidia.yaml", &toolkit(&[TWO[0], ("1", &["nvidia5"])], ""));
    host.check(&["nvidia.com/gpu=0"], &["etc/nvidia.yaml device_nodes: 1"]);
    let problem = unused_problems(&host.find().unused).remove(0);
    assert!(problem.contains("entry `1` has nvidia5, and the device has nvidia6"), "{problem}");
    assert!(problem.contains("etc/nvidia.yaml is not used for 1 device,"), "{problem}");
    // Edits of every container count too.
    host.write("etc/nvidia.yaml", &toolkit(&TWO, "deviceNodes: [{path: /dev/nvidia7}]"));
    host.check(&["nvidia.com/gpu=0"], &["etc/nvidia.yaml device_nodes: 1"]);
}

#[test]
fn a_uuid_counts_unless_the_device_nodes_are_others() {
    let mut host = host("deviceListStrategy: cdi-cri, deviceIDStrategy: index", [gpu(0, None)]);
    let (zero, name) = (uuid(0), format!("nvidia.com/gpu={}", uuid(0)));
    host.write("etc/nvidia.yaml", &toolkit(&[(&zero, &["nvidia7"]), ("0", &["nvidia0"])], ""));
    host.check(&[&name], &[]);
    host.write("etc/nvidia.yaml", &toolkit(&[(&zero, &["dxg"])], ""));
    host.check(&[&name], &[]);
    host.write("etc/nvidia.yaml", &toolkit(&[(&zero, &["nvidia0"])], ""));
    host.check(&[], &["etc/nvidia.yaml device_nodes: 1"]);
    host.write("etc/nvidia.yaml", &toolkit(&[("0", &["dxg"])], ""));
    host.check(&[], &["etc/nvidia.yaml device_nodes: 1"]);
}

#[test]
fn a_mig_device_counts_by_its_capability_nodes() {
    let mut host = host("deviceListStrategy: cdi-cri, migStrategy: mixed", [gpu(0, Some(&["3g.40gb", "3g.40gb"]))]);
    let cap = |number: u32| format!("nvidia-caps/nvidia-cap{number}");
    let (first, second) = ([cap(10), cap(11)], [cap(20), cap(21)]);
    let nodes = |caps: &'_ [String; 2]| ["nvidia7".to_owned(), caps[0].clone(), caps[1].clone()];
    let write = |host: &Host, zero: &[String], two: &[String]| {
        let [zero, two] = [zero, two].map(|nodes| nodes.iter().map(String::as_str).collect::<Vec<_>>());
        host.write("etc/nvidia.yaml", &toolkit(&[("0:0", &zero), ("0:2", &two)], ""));
    };
    write(&host, &nodes(&first), &nodes(&second));
    host.check(&["nvidia.com/gpu=0:0", "nvidia.com/gpu=0:2"], &[]);
    // The file has the earlier layout.
    write(&host, &nodes(&second), &nodes(&first)[..1]);
    host.check(&[], &["etc/nvidia.yaml device_nodes: 2"]);
    host.write("etc/nvidia.yaml", &toolkit(&[("0", &["nvidia7"])], ""));
    host.check(&[], &["etc/nvidia.yaml not_described: 2"]);
    assert!(host.find().unused.values().all(|unused| unused.detail.contains(&mig_uuid(0, 0))));
}

#[test]
fn a_file_that_no_runtime_loads_is_not_used() {
    let mut host = host("deviceListStrategy: cdi-cri", [gpu(0, None), gpu(1, None)]);
    for (file, text, reason) in [
        ("etc/nvidia.yml", toolkit(&TWO, ""), "invalid"),
        ("etc/nvidia.yaml", toolkit(&TWO, "").replace("0.5.0", "9.9.0"), "invalid"),
        ("etc/nvidia.yaml", toolkit(&TWO, "").replace("0.5.0", "0.4.0"), "invalid"),
        ("etc/nvidia.yaml", toolkit(&TWO, "unknown: 1"), "invalid"),
        ("run/nvidia.json", "{".to_owned(), "invalid"),
    ] {
        host.write(file, &text);
        host.check(&[], &[&format!("{file} {reason}: 2")]);
        fs::remove_file(host.root.path().join(file)).unwrap();
    }
    host.write("etc/nic.json", &of_kind("example.com/nic", &TWO, ""));
    host.write("etc/nic.yaml", &of_kind("example.com/nic", &TWO, "unknown: 1"));
    host.check(&[], &[]);
    host.write("etc/nvidia.yaml", &toolkit(&TWO, ""));
    host.check(&["nvidia.com/gpu=0", "nvidia.com/gpu=1"], &[]);
    // Runtimes use neither of two in one directory, and the later of two directories.
    host.write("etc/other.yaml", &toolkit(&TWO[..1], ""));
    host.check(&["nvidia.com/gpu=1"], &["etc/other.yaml name_twice: 1"]);
    fs::rename(host.root.path().join("etc/other.yaml"), host.root.path().join("run/other.yaml")).unwrap();
    host.check(&["nvidia.com/gpu=0", "nvidia.com/gpu=1"], &[]);
}

#[test]
fn a_file_whose_mounts_are_gone_is_not_used() {
    let mut host = host("deviceListStrategy: cdi-cri", [gpu(0, None)]);
    let mounts = |version: &str| format!("mounts: [{{hostPath: /lib/libcuda.so.{version}, containerPath: /lib/x}}]");
    fs::create_dir(host.root.path().join("lib")).unwrap();
    host.write("lib/libcuda.so.570.86.15", "");
    // NVIDIA's plugin left this file behind, beside the toolkit's current one.
    host.write("run/k8s.json", &of_kind(EARLIER_KIND, &TWO, &mounts("550.54.14")));
    host.check(&[], &["run/k8s.json missing_path: 1"]);
    host.shows_files = false;
    host.check(&[], &["run/k8s.json driver_version: 1"]);
    host.write("run/k8s.json", &of_kind(EARLIER_KIND, &TWO, &mounts("570.86.15")));
    host.check(&["k8s.device-plugin.nvidia.com/gpu=0"], &[]);
    host.shows_files = true;
    host.check(&["k8s.device-plugin.nvidia.com/gpu=0"], &[]);
    host.write("etc/nvidia.yaml", &toolkit(&TWO, &mounts("570.86.15")));
    host.check(&["nvidia.com/gpu=0"], &[]);
    let hook = "hooks: [{hookName: createContainer, path: /usr/bin/nvidia-cdi-hook}]";
    host.write("etc/nvidia.yaml", &toolkit(&TWO, hook));
    host.check(&["k8s.device-plugin.nvidia.com/gpu=0"], &[]);
}

#[test]
fn a_lost_gpu_needs_no_entry() {
    let lost = Gpu { present: false, ..gpu(1, None) };
    let mut host = host("deviceListStrategy: cdi-cri", [gpu(0, None), lost]);
    host.write("etc/nvidia.yaml", &toolkit(&TWO[..1], ""));
    host.check(&["nvidia.com/gpu=0"], &[]);
}

/// A host with the directories `/etc/cdi` and `/run/cdi`; GPU 0 is `/dev/nvidia7` and GPU 1 is `/dev/nvidia6`.
struct Host {
    root: tempfile::TempDir,
    specifications: Specifications,
    offers: Vec<Offer>,
    config: EntryConfig,
    shows_files: bool,
}

fn host(config: &str, gpus: impl IntoIterator<Item = Gpu>) -> Host {
    let root = tempfile::tempdir().unwrap();
    for directory in ["etc", "run"] {
        fs::create_dir(root.path().join(directory)).unwrap();
    }
    let config = nvidia(config);
    let offers = offers(&config, &inventory(gpus), &[]).offers;
    Host { root, specifications: Specifications::default(), offers, config, shows_files: true }
}

impl Host {
    fn write(&self, file: &str, text: &str) {
        fs::write(self.root.path().join(file), text).unwrap();
    }

    fn find(&mut self) -> VendorDevices {
        let directories = ["etc", "run", "none"].map(|name| self.root.path().join(name));
        self.specifications.refresh(&directories);
        let (roots, driver_files) = (host_roots(self.root.path()), driver_files([7]));
        let view = HostView { roots: &roots, shows_files: self.shows_files, driver_version: Some("570.86.15") };
        self.specifications.vendor_devices(self.config.nvidia().unwrap(), &self.offers, &driver_files, view)
    }

    /// Checks the names, and the unused files as `file reason: devices`.
    fn check(&mut self, names: &[&str], unused: &[&str]) {
        let found = self.find();
        assert_eq!(found.names.values().map(String::as_str).collect::<Vec<_>>(), names);
        let show = |((file, reason), unused): (&(PathBuf, UnusedReason), &Unused)| {
            let file = file.strip_prefix(self.root.path()).unwrap().display();
            format!("{file} {}: {}", reason.into_str(), unused.devices.len())
        };
        assert_eq!(found.unused.iter().map(show).collect::<Vec<_>>(), unused, "{:?}", found.unused);
    }
}

/// A specification of the toolkit's kind; `more` are edits of every container.
fn toolkit(devices: &[(&str, &[&str])], more: &str) -> String {
    of_kind("nvidia.com/gpu", devices, more)
}

fn of_kind(kind: &str, devices: &[(&str, &[&str])], more: &str) -> String {
    let mut text = format!("cdiVersion: 0.5.0\nkind: {kind}\ncontainerEdits: {{{more}}}\ndevices:\n");
    for (name, nodes) in devices {
        let nodes: Vec<String> = nodes.iter().map(|node| format!("{{path: /dev/{node}}}")).collect();
        writeln!(text, "- name: \"{name}\"\n  containerEdits: {{deviceNodes: [{}]}}", nodes.join(", ")).unwrap();
    }
    text
}
