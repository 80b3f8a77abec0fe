//! Bad input and faults: our plugin answers with a status, or waits and logs why; it never panics, hangs or stops
//! retrying.

use crate::support::agent;
use std::fs::Permissions;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::kubelet::{FakeKubelet, KubeletVersion, Method, Options, asking_pod, node};
use crate::support::plugin_harness::{
    GPU, PluginClient, PluginHarness, gpus, plugin_on_node, resources, sockets, time_sliced, uuid,
};
use crate::support::polling::until_true;
use podmeter::domain::model::PluginState;

#[tokio::test(flavor = "multi_thread")]
async fn a_preference_among_strange_ids_is_no_preference() {
    let (node, podmeter) = plugin_on_node(KubeletVersion::UpTo136, "{}", gpus(4), 4).await;
    let mut client = PluginClient::connect(&node).await;
    let all: Vec<String> = (0..4).map(uuid).collect();
    for (what, available, must, size) in [
        ("unknown", [&all[..], &["GPU-unknown".to_owned()]].concat(), vec![], 2),
        ("must that is not available", all[..2].to_vec(), all[3..].to_vec(), 1),
        ("negative", all.clone(), vec![], -1),
    ] {
        assert_eq!(client.preferred(&available, &must, size).await, [""; 0], "{what}");
    }
    assert_eq!(podmeter.now(GPU).preferred_fallbacks.values().sum::<u64>(), 2);
    let mut chosen = client.preferred(&[&all[..], &all[..]].concat(), &[], 2).await;
    chosen.sort();
    chosen.dedup();
    assert!(chosen.is_empty() || chosen.len() == 2, "a duplicate is one device: {chosen:?}");
    assert_eq!(client.preferred(&all, &[], 2).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_refusal_of_a_device_before_a_start_reaches_the_pod() {
    let (node, podmeter) =
        plugin_on_node(KubeletVersion::UpTo136, "resources: [{kind: nvidia, preStartCheck: {}}]", gpus(4), 4).await;
    node.runs(asking_pod("trainer", GPU, 1)).await;
    node.start_container("team", "trainer", "main").await.unwrap().unwrap();
    let index = (0..4).find(|index| node.held("trainer") == [uuid(*index)]).unwrap();
    podmeter.lose(index, true);
    node.counts(GPU, 4, 3).await;
    let error = node.start_container("team", "trainer", "main").await.unwrap().unwrap_err();
    assert!(error.contains("code = FailedPrecondition") && error.contains("lost"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_a_thousand_slots_is_served() {
    let (node, podmeter) = plugin_on_node(KubeletVersion::UpTo136, &time_sliced(1000), gpus(4), 4000).await;
    node.runs(asking_pod("swarm", GPU, 1000)).await;
    assert_eq!(node.held("swarm").len(), 1000);
    let options = node.start_container("team", "swarm", "main").await.unwrap().unwrap();
    assert_eq!(options.envs["NVIDIA_VISIBLE_DEVICES"].split(',').count(), 4, "each GPU once");
    assert!(podmeter.now(GPU).preferred_fallbacks.values().all(|count| *count == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_killed_within_a_registration_is_registered_with_when_it_returns() {
    for method in [Method::Register, Method::GetDevicePluginOptions, Method::ListAndWatch] {
        let node = node(Options::default()).await;
        node.hang(method);
        let podmeter = PluginHarness::start(node.root.path());
        serving(&node).await;
        node.stop();
        // Registered, but its list is not open yet: the new kubelet's socket is the first sign of it.
        if method != Method::ListAndWatch {
            podmeter.until(GPU, "a reason", |state| !state.registered && state.problem.is_some()).await;
        }
        node.heal();
        node.restart().unwrap();
        node.ready().await;
        node.counts(GPU, 4, 4).await;
        podmeter.registered(GPU, 1).await;
        assert_eq!(sockets(&node.device_plugin_directory()).len(), 1, "{method:?}");
    }
}

/// Until our socket is there: a registration is under way, or about to be.
async fn serving(node: &FakeKubelet) {
    until_true("a socket", || !sockets(&node.device_plugin_directory()).is_empty());
    // The Register follows within a moment; before it, the same must hold.
    tokio::time::sleep(Duration::from_millis(30)).await;
}

/// The agent as a user without rights on the directory.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_read_only_is_named_and_taken_up_when_it_is_not() {
    let node = node(Options::default()).await;
    let mode = |path: &Path, mode: u32| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let directory = node.device_plugin_directory();
    mode(&directory, 0o555);
    mode(&directory.join("kubelet.sock"), 0o777);
    let config = node.root.path().join("config.yaml");
    let toy = "devicePlugin: {resources: [{kind: simulated, name: example.com/toy, devices: 2}]}\n";
    std::fs::write(&config, toy).unwrap();
    mode(&config, 0o644);
    let arguments = ["agent", "--listen", "127.0.0.1:0", "--admin-socket", "none", "--hardware", "none", "--config"];
    let [config, root, plugins] = [&config, node.root.path(), &directory].map(|path| path.to_str().unwrap());
    let arguments = [&arguments[..], &[config, "--kubelet-root", root, "--device-plugin-dir", plugins]].concat();
    let running = agent::Running::start_unprivileged(node.root.path(), &arguments);
    running.until("not registered", |page| page.value("podmeter_plugin_registered", &[]) == Some(0.0));
    let path = format!("{}/podmeter-example.com_toy-", directory.display());
    let log = running.until_logged("must be there and writable");
    assert!(log.contains(&path), "{log}");
    mode(&directory, 0o777);
    node.counts("example.com/toy", 2, 2).await;
    running.until("registered", |page| page.value("podmeter_plugin_registered", &[]) == Some(1.0));
}

/// In a container the directory is a mount, which stays the removed directory when another takes its place.
#[tokio::test(flavor = "multi_thread")]
async fn it_ends_when_its_directory_was_replaced_under_a_mount() {
    let (node, mount) = (node(Options::default()).await, tempfile::tempdir().unwrap());
    let directory = node.device_plugin_directory();
    let opened = std::fs::File::open(&directory).unwrap();
    let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
    std::os::unix::fs::symlink(link, mount.path().join("device-plugins")).unwrap();
    let mut podmeter = PluginHarness::start(mount.path());
    podmeter.registered(GPU, 1).await;
    // Fails where the plugin creates a socket again meanwhile.
    while std::fs::remove_dir_all(&directory).is_err() {}
    std::fs::create_dir(&directory).unwrap();
    podmeter.ended().await;
}

/// A file whose reader hangs until this is dropped.
struct Hanging(PathBuf);

impl Hanging {
    fn make(path: PathBuf) -> Self {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        Self(path)
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        use rustix::fs::{Mode, OFlags, open};
        // Rejected where the file has no reader.
        let writer = open(&self.0, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
        let _ = std::fs::remove_file(&self.0);
        drop(writer);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_scan_that_hangs_delays_no_health_change_and_ends_no_registration() {
    let yaml = "resources: [{kind: nvidia, passDeviceSpecs: true}]";
    let (node, podmeter) = plugin_on_node(KubeletVersion::UpTo136, yaml, gpus(4), 4).await;
    let capabilities = node.root.path().join("proc/driver/nvidia/capabilities/gpu0/mig/gi1");
    let hanging = Hanging::make(capabilities.join("access"));
    let hangs = |state: &PluginState| state.problems.iter().any(|problem| problem.contains("has hung for 10 s"));
    podmeter.until_state("the problem", hangs).await;
    // Which nodes containers get of the changed entry is unknown until the scan returns.
    let shared = yaml.replace("}]", ", sharing: {timeSlicing: {replicas: 2}}}]");
    podmeter.plugin.configure(&resources(&shared).into());
    podmeter.lose(1, true);
    node.counts(GPU, 4, 3).await;
    node.runs(asking_pod("trainer", GPU, 1)).await;
    assert_eq!(podmeter.now(GPU).registrations, 1);
    drop(hanging);
    podmeter.until_state("its end", |state| !hangs(state)).await;
    podmeter.registered(GPU, 2).await;
    node.counts(GPU, 8, 4).await;
    podmeter.end().await;
}
