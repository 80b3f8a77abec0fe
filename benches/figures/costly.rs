//! Idle cost and start on a driver whose calls use the processor as an H100's do, beside other programs in the same run.
//!
//! The peers are nvitop-exporter and NVIDIA's device plugin, at their defaults like podmeter; `--before` is another podmeter.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use serde_json::json;

use crate::beside::{Other, free_port};
use crate::measure::{median, process_seconds, row};
use crate::support::agent::{Running, binary};
use crate::support::fake_nvml::{FakeNvml, h100};
use crate::support::kubelet::KubeletNode;
use crate::{Bench, GPUS, quiet};

/// Twice podmeter's longest interval.
const UNSCRAPED: Duration = Duration::from_secs(120);
/// The start costs more than the time after it.
const SETTLED: Duration = Duration::from_secs(10);
const STARTS: usize = 7;
const FIRST_PAGE: Duration = Duration::from_secs(30);
/// Of nvmlInit, which is a guess: the profile's, and the most with which NVIDIA's plugin, which makes four, can have
/// registered as soon as it was seen to on an H100 (30 to 36 ms).
const INIT: [u64; 2] = [15, 5];

pub fn idle(bench: &Bench) {
    // nvitop-exporter reads use by process only where there is a process.
    let process = json!({"pid": std::process::id(), "memory_bytes": 1 << 30, "sm": 50});
    let busy = json!({"utilization": {"gpu": 50, "memory": 20}, "processes": [process]});
    for (state, gpu) in [("idle GPUs", json!({})), ("a process on each GPU", busy)] {
        for gpus in [1, GPUS] {
            unscraped(bench, &FakeNvml::start(h100(vec![gpu.clone(); gpus])), gpus, state);
        }
    }
}

pub fn start(bench: &Bench) {
    for milliseconds in INIT {
        for gpus in [1, GPUS] {
            starts(bench, gpus, milliseconds);
        }
    }
}

/// With idle GPUs.
pub fn driver(gpus: usize) -> FakeNvml {
    FakeNvml::start(h100(vec![json!({}); gpus]))
}

/// All run at the same time, so that other load on the machine affects each.
fn unscraped(bench: &Bench, driver: &FakeNvml, gpus: usize, state: &str) {
    let nodes: Vec<_> = binaries(bench).map(|binary| (bench.empty_node(), binary)).collect();
    let agents: Vec<_> = nodes.iter().map(|(node, binary)| agent(binary, node, driver)).collect();
    let mut peer = bench.compared.nvitop.as_ref().map(|command| {
        let mut command = Command::new(command);
        Other::start(command.args(["--port", &free_port().to_string()]).envs(quiet(driver)).stderr(Stdio::null()))
    });
    std::thread::sleep(SETTLED);
    let pids: Vec<u32> = agents.iter().map(Running::pid).chain(peer.as_ref().map(Other::pid)).collect();
    let used = || pids.iter().map(|pid| process_seconds(*pid));
    let (before, began) = (used().collect::<Vec<_>>(), Instant::now());
    std::thread::sleep(UNSCRAPED);
    let seconds = began.elapsed().as_secs_f64();
    let mut costs = used().zip(before).map(|(now, before)| (now - before) / seconds / gpus as f64 * 100.0);
    assert!(peer.as_mut().is_none_or(Other::is_running), "nvitop-exporter has ended");
    let ours = costs.next().expect("podmeter runs");
    let before = bench.compared.before.as_ref().and_then(|_| costs.next());
    let seconds = UNSCRAPED.as_secs();
    let figure = format!("no scrape, {state}, {}, % of a core per GPU, over {seconds} s", counted(gpus));
    row(&figure, &beside(ours, before, "nvitop-exporter", costs.next()), "≤ 0.4 of nvitop-exporter");
}

/// From exec until the kubelet has listed the devices, and until the page has each of them, in turns.
fn starts(bench: &Bench, gpus: usize, init: u64) {
    let driver = driver(gpus);
    driver.update(|state| state["cost"]["nvmlInit_v2"] = json!(init * 1_000));
    let _inside = bench.runtime.enter();
    let mut ours: Vec<_> = binaries(bench).map(|binary| (binary, bench.empty_node(), vec![], vec![])).collect();
    let theirs = bench.compared.nvidia_plugin.as_ref().map(|plugin| (plugin, bench.empty_node()));
    let mut their_seconds = vec![];
    for _ in 0..STARTS {
        for (binary, node, listed, shown) in &mut ours {
            let began = Instant::now();
            let running = agent(binary, node, &driver);
            until_listed(bench, node, gpus);
            listed.push(began.elapsed().as_secs_f64());
            while !has_devices(&running.metrics().0, gpus) {
                assert!(began.elapsed() < FIRST_PAGE, "no page with all devices within {FIRST_PAGE:?}");
                std::thread::sleep(Duration::from_millis(1));
            }
            shown.push(began.elapsed().as_secs_f64());
            drop(running);
            until_listed(bench, node, 0);
        }
        if let Some((plugin, node)) = &theirs {
            let (plugin, began) = nvidia_plugin(plugin, node, &driver);
            until_listed(bench, node, gpus);
            their_seconds.push(began.elapsed().as_secs_f64());
            drop(plugin);
            until_listed(bench, node, 0);
        }
        // Without a pause the plugins exceed the kubelet's request limit.
        std::thread::sleep(Duration::from_millis(250));
    }
    let theirs = theirs.map(|_| milliseconds(their_seconds));
    let (listed, shown): (Vec<_>, Vec<_>) =
        ours.into_iter().map(|(_, _, listed, shown)| (milliseconds(listed), milliseconds(shown))).unzip();
    let conditions = format!("{}, nvmlInit {init} ms, median of {STARTS}, ms", counted(gpus));
    let registered = beside(listed[0], listed.get(1).copied(), "NVIDIA's plugin", theirs);
    row(&format!("exec → registered and listed, {conditions}"), &registered, "≤ 0.8 of NVIDIA's plugin");
    let page = beside(shown[0], shown.get(1).copied(), "", None);
    row(&format!("exec → first page with each device's power and energy, {conditions}"), &page, "≤ 150 with 8 GPUs");
}

fn binaries(bench: &Bench) -> impl Iterator<Item = PathBuf> {
    std::iter::once(binary()).chain(bench.compared.before.clone())
}

/// Plugin and exporter at their defaults.
fn agent(binary: &Path, node: &KubeletNode, driver: &FakeNvml) -> Running {
    let root = node.root.path().to_str().unwrap();
    let arguments = ["agent", "--listen", "127.0.0.1:0", "--admin-socket", "none", "--kubelet-root", root];
    Running::start_binary(binary, &arguments, &quiet(driver), None)
}

fn until_listed(bench: &Bench, node: &KubeletNode, count: usize) {
    let is_listed =
        node.node_status_becomes(|status| status.get("nvidia.com/gpu").is_some_and(|gpu| gpu.allocatable == count));
    assert!(bench.runtime.block_on(is_listed), "{:?}", node.node_status());
}

/// Begun at exec. It creates its socket in `/var/lib/kubelet/device-plugins`, which is the simulated kubelet's in a mount
/// namespace of its own. The kubelet's has a relative path: the plugin gives it as its HTTP/2 authority, and the simulated
/// kubelet's library refuses an authority with slashes.
fn nvidia_plugin(plugin: &Path, node: &KubeletNode, driver: &FakeNvml) -> (Other, Instant) {
    const SCRIPT: &str = r#"mount -t tmpfs none /var/lib && mkdir -p /var/lib/kubelet/device-plugins &&
        mount --bind "$1" /var/lib/kubelet/device-plugins || exit 1
        cd "$1" && read -r _ <"$2"
        exec "$3" --kubelet-socket kubelet.sock"#;
    let begin = node.root.path().join("begin");
    let _ = mknodat(CWD, &begin, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0);
    let directory = node.device_plugin_directory();
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh"]);
    command.args([directory.as_os_str(), begin.as_os_str(), OsStr::new(plugin)]);
    let mut plugin = Other::start(command.envs(quiet(driver)).stderr(Stdio::null()));
    let mut options = File::options();
    let options = options.write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    // The shell reads once its mounts are made.
    while options.open(&begin).is_err() {
        assert!(plugin.is_running(), "no mount namespace for NVIDIA's plugin: run as root or allow user namespaces");
        std::thread::sleep(Duration::from_millis(1));
    }
    (plugin, Instant::now())
}

fn has_devices(page: &str, gpus: usize) -> bool {
    let each = |name: &str| page.matches(&format!("\n{name}{{")).count() == gpus;
    each("podmeter_device_power_watts") && each("podmeter_device_energy_joules_total")
}

fn milliseconds(seconds: Vec<f64>) -> f64 {
    median(seconds) * 1e3
}

fn counted(gpus: usize) -> String {
    if gpus == 1 { "1 GPU".to_owned() } else { format!("{gpus} GPUs") }
}

fn beside(ours: f64, before: Option<f64>, peer: &str, theirs: Option<f64>) -> String {
    let before = before.map(|before| format!("; before {before:.3}"));
    let theirs = theirs.map(|theirs| format!("; {peer} {theirs:.3}, ratio {:.2}", ours / theirs));
    format!("{ours:.3}{}{}", before.unwrap_or_default(), theirs.unwrap_or_default())
}
