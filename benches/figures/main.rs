//! Measures docs/engineering/figures.md on the shipped binary (profile dist): `scripts/bench`.
//!
//! Conditions, unless a part has its own: fake driver library through the real `dlopen`, eight GPUs, eight GPU pods and
//! thirty plain pods from a fake kubelet on a real socket, everything on this machine. Prints tables; checks no limit.
//! `cargo bench --bench figures -- PART...` measures parts alone, `-- --peer COMMAND URL` another exporter in turns
//! with podmeter, `-- allocate --beside SOCKET` calls another device plugin in turns, and `-- costly-idle costly-start
//! --nvitop COMMAND --nvidia-plugin BINARY --before BINARY` runs each of these beside podmeter.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints its results")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock and starts the binary")]

mod allocate;
mod beside;
mod costly;
mod dcgm;
mod faults;
mod health;
mod hostile;
mod idle;
mod line;
mod load;
mod measure;
mod peer;
mod plugin;
mod resident;
mod restart;
mod scale;
#[path = "../../tests/support/mod.rs"]
mod support;
mod usual;

use crate::support::agent;
use std::cell::RefCell;
use std::path::PathBuf;

use crate::support::agent::Running;
use crate::support::fake_nvml::FakeNvml;
use crate::support::kubelet::{ContainerSpec, KubeletNode, ListedDevice, Options, PodSpec, node};
use serde_json::json;

const GPUS: usize = 8;
const PLAIN_PODS: usize = 30;

type BenchPart = fn(&Bench);

const PARTS: [(&str, BenchPart); 15] = [
    ("costly-idle", costly::idle),
    ("costly-start", costly::start),
    ("start", usual::start),
    ("steady", usual::steady),
    ("allocations", usual::new_allocations),
    ("idle", idle::measure),
    ("dcgm", dcgm::measure),
    ("plugin", plugin::measure),
    ("restart", restart::measure),
    ("health", health::measure),
    ("resident", resident::measure),
    ("faults", faults::measure),
    ("hostile", hostile::measure),
    ("scale", scale::measure),
    ("allocate", allocate::measure),
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (mut wanted, mut peer, mut compared, mut is_bench) = (vec![], None, ComparedPrograms::default(), false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // `cargo bench` passes `--bench`; `cargo test --benches` does not and measures nothing.
            "--bench" => is_bench = true,
            "--peer" => match (arguments.next(), arguments.next()) {
                (Some(command), Some(url)) => peer = Some((command, url)),
                _ => refuse("--peer needs two arguments: the command that starts the exporter and the URL of its page"),
            },
            "--beside" => compared.beside = Some(path("--beside needs a plugin's socket", arguments.next())),
            "--before" => compared.before = Some(path("--before needs a podmeter binary", arguments.next())),
            "--nvitop" => compared.nvitop = Some(path("--nvitop needs nvitop-exporter's command", arguments.next())),
            "--nvidia-plugin" => {
                compared.nvidia_plugin = Some(path("--nvidia-plugin needs its binary", arguments.next()));
            }
            name => match PARTS.iter().find(|(part, _)| *part == name) {
                Some((_, part)) => wanted.push(*part),
                None => refuse(&format!("no part {name:?}; the parts are {}", PARTS.map(|(part, _)| part).join(" "))),
            },
        }
    }
    if !is_bench {
        return;
    }
    let bench = Bench::new(compared);
    println!("| figure | measured | target |\n|---|---|---|");
    match &peer {
        Some((command, url)) => peer::measure(&bench, command, url),
        None if wanted.is_empty() => wanted.extend(PARTS.map(|(_, part)| part)),
        None => {}
    }
    for part in wanted {
        part(&bench);
    }
    print!("{}", bench.later.take());
}

fn path(reason: &str, argument: Option<String>) -> PathBuf {
    argument.unwrap_or_else(|| refuse(reason)).into()
}

fn refuse(reason: &str) -> ! {
    eprintln!("figures: {reason}");
    std::process::exit(2);
}

/// The common inputs of the parts.
struct Bench {
    runtime: tokio::runtime::Runtime,
    driver: FakeNvml,
    compared: ComparedPrograms,
    /// Tables with other columns, printed after the first.
    later: RefCell<String>,
}

/// What runs beside podmeter, where given.
#[derive(Default)]
struct ComparedPrograms {
    /// Another device plugin's socket, which is called in turns with podmeter's.
    beside: Option<PathBuf>,
    /// An earlier podmeter.
    before: Option<PathBuf>,
    /// nvitop-exporter's command.
    nvitop: Option<PathBuf>,
    /// The binary of NVIDIA's device plugin.
    nvidia_plugin: Option<PathBuf>,
}

impl Bench {
    fn new(compared: ComparedPrograms) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { runtime, driver: driver(GPUS), compared, later: RefCell::default() }
    }

    fn usual_node(&self) -> KubeletNode {
        let node = self.empty_node();
        let offered = |gpu| ListedDevice { id: uuid(gpu), healthy: true, numa_nodes: Some(vec![i64::from(gpu > 3)]) };
        node.set_devices("nvidia.com/gpu", (0..GPUS).map(offered).collect());
        node.set_pods(pods(PLAIN_PODS));
        node
    }

    fn empty_node(&self) -> KubeletNode {
        self.runtime.block_on(node(Options::default()))
    }
}

fn driver(gpus: usize) -> FakeNvml {
    FakeNvml::start(json!({ "gpus": vec![json!({ "utilization": { "gpu": 60, "memory": 30 } }); gpus] }))
}

fn uuid(index: usize) -> String {
    format!("GPU-00000000-0000-0000-0000-{index:012}")
}

fn plain_pod(number: usize) -> PodSpec {
    PodSpec::new("web", &format!("plain-{number}")).container(ContainerSpec::new("main"))
}

fn pods(plain: usize) -> Vec<PodSpec> {
    let gpu = |gpu| {
        let container = ContainerSpec::new("main").holds("nvidia.com/gpu", &uuid(gpu), &[i64::from(gpu > 3)]);
        PodSpec::new("team-a", &format!("trainer-{gpu}")).container(container)
    };
    (0..GPUS).map(gpu).chain((0..plain).map(plain_pod)).collect()
}

/// The fake driver polls for events, where a real one sleeps, and logs its calls: neither is podmeter's cost.
fn quiet(driver: &FakeNvml) -> Vec<(&'static str, PathBuf)> {
    let mut environment = driver.env();
    environment.retain(|(name, _)| *name != "FAKE_NVML_CALLS");
    environment.push(("FAKE_NVML_READ_MICROS", "10000000".into()));
    environment
}

/// An exporter without the device plugin, after its first complete page.
fn exporter(node: &KubeletNode, driver: &FakeNvml) -> Running {
    let running = agent::agent(node.root.path(), &["--device-plugin=off"], &quiet(driver));
    running.until("a complete page", |page| complete(&page.0));
    running
}

/// Whether the page has device data and the holder's labels.
fn complete(page: &str) -> bool {
    page.contains("podmeter_device_power_watts{") && page.contains("podmeter_container_allocated_seconds_total{")
}
