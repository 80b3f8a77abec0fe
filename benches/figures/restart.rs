//! From a restarted kubelet's registration socket until the plugin is registered, and until the kubelet has its devices.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::allocate::beside_pages;
use crate::measure::{quantiles, row};
use crate::support::agent::{self, Running};
use crate::support::kubelet::{KubeletNode, Options, node};
use crate::{Bench, GPUS, quiet};

const RESTARTS: usize = 40;
const CLIENTS: usize = 60;
/// How long the kubelet is away.
const AWAY: Duration = Duration::from_millis(300);
const POLL: Duration = Duration::from_micros(100);
/// Of each of two resources: a list has at most 4 MiB.
const SLOTS: usize = 57_344;
/// The resources of the plugin, and how many devices each has.
type OfferedCounts = [(&'static str, usize)];
const GPU_ONLY: &OfferedCounts = &[("nvidia.com/gpu", GPUS)];
const SHARED: &OfferedCounts = &[("nvidia.com/gpu", SLOTS), ("example.com/null", SLOTS)];

pub fn measure(bench: &Bench) {
    let _inside = bench.runtime.enter();
    let rig = RestartedNode::start(bench, Options::default(), GPU_ONLY);
    rig.restarts("nothing else", &mut |_| ());
    bench.driver.update(|state| state["delay"] = json!({ "*": 100 }));
    rig.restarts("each driver call takes 100 ms", &mut |_| ());
    bench.driver.update(|state| state["delay"] = json!({}));
    beside_pages(&rig.running.address, CLIENTS, || {
        rig.restarts(&format!("{CLIENTS} clients load pages"), &mut |_| ());
    });
    rig.beside_releases();
    drop(rig);
    let slots = SHARED.iter().map(|(_, count)| count).sum::<usize>();
    RestartedNode::start(bench, Options::default(), SHARED)
        .restarts(&format!("{slots} slots of two resources"), &mut |_| ());
    // Counted from the bind.
    let refuses = Options { bind_to_listen: Duration::from_millis(10), ..Options::default() };
    RestartedNode::start(bench, refuses, GPU_ONLY).restarts("the kubelet listens 10 ms after its bind", &mut |_| ());
}

struct RestartedNode<'a> {
    bench: &'a Bench,
    node: KubeletNode,
    running: Running,
    offered: &'static OfferedCounts,
}

impl<'a> RestartedNode<'a> {
    fn start(bench: &'a Bench, options: Options, offered: &'static OfferedCounts) -> Self {
        let node = bench.runtime.block_on(node(options));
        let path = |name: &str| node.root.path().join(name).to_str().unwrap().to_owned();
        let config = match offered {
            GPU_ONLY => "{}".to_owned(),
            _ => format!(
                "devicePlugin:\n  resources:\n  - {{kind: nvidia, sharing: {{timeSlicing: {{replicas: {}}}}}}}\n  \
                 - {{kind: path, name: example.com/null, paths: [/dev/null], shared: {SLOTS}}}\n",
                SLOTS / GPUS
            ),
        };
        std::fs::write(path("podmeter.yaml"), config).unwrap();
        let (root, admin, config) = (path(""), path("admin.sock"), path("podmeter.yaml"));
        let arguments = ["agent", "--listen", "127.0.0.1:0", "--kubelet-root", &root, "--admin-socket", &admin];
        let running = Running::start(&[&arguments[..], &["--config", &config]].concat(), &quiet(&bench.driver), None);
        let rig = Self { bench, node, running, offered };
        rig.until_listed();
        rig
    }

    fn until_listed(&self) {
        let is_listed = self.node.node_status_becomes(|status| {
            self.offered.iter().all(|(name, count)| status.get(*name).is_some_and(|now| now.allocatable == *count))
        });
        assert!(self.bench.runtime.block_on(is_listed), "{:?}", self.node.node_status());
    }

    /// Restarts the kubelet, and prints the times; `begin` gets the number of each restart.
    fn restarts(&self, conditions: &str, begin: &mut dyn FnMut(usize)) {
        let socket = self.node.device_plugin_directory().join("kubelet.sock");
        let made = || std::fs::metadata(&socket).and_then(|file| file.modified()).ok();
        let (mut registered, mut listed) = (vec![], vec![]);
        for restart in 0..RESTARTS {
            self.node.stop();
            std::thread::sleep(AWAY);
            begin(restart);
            let before = made();
            self.node.restart().unwrap();
            while made().is_none_or(|made| Some(made) == before) {
                std::thread::sleep(POLL);
            }
            let began = Instant::now();
            while !self.offered.iter().all(|(name, _)| self.node.connected_plugins(name) > 0) {
                std::thread::sleep(POLL);
            }
            registered.push(began.elapsed().as_secs_f64());
            self.until_listed();
            listed.push(began.elapsed().as_secs_f64());
        }
        for (what, seconds, target) in [("registered", registered, "≤ 20 / 100 ms"), ("listed", listed, "–")] {
            let figure = format!("kubelet's socket → {what}, {conditions}, median / worst of {RESTARTS}");
            row(&figure, &quantiles(seconds, 1.0, 1e3, "ms"), target);
        }
    }

    /// The driver is released at every other restart, and opened again at the next.
    fn beside_releases(&self) {
        let admin = self.node.root.path().join("admin.sock");
        let (restarts, begun) = channel::<usize>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for restart in begun {
                    let (path, body) = [("/release", r#"{"for": "10m"}"#), ("/resume", "")][restart % 2];
                    agent::post(&admin, path, body);
                }
            });
            self.restarts("the driver is released or opened again", &mut |restart| restarts.send(restart).unwrap());
            drop(restarts);
        });
    }
}
