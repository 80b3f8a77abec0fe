//! A node with GPU faults: the real binary over a fake driver library and a fake kubelet.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::agent::{Answer, Page, Running, post};
use super::fake_nvml::FakeNvml;
pub use super::kubelet::GPU;
use super::kubelet::{DeviceCount, KubeletNode, Options, asking_pod, node};
pub use super::test_data::uuid;

pub const QUICK: &str = "health: {holdDown: 300ms}\n";
pub const MIXED: &str = "devicePlugin: {resources: [{kind: nvidia, migStrategy: mixed}]}\n";

pub struct SickNode {
    pub kubelet: KubeletNode,
    pub driver: FakeNvml,
    pub running: Running,
    arguments: Vec<String>,
}

pub fn slot(gpu: usize, number: usize) -> String {
    format!("{}::{number}", uuid(gpu))
}

/// As the fake library names the MIG device at this position.
pub fn mig(gpu: usize, position: usize) -> String {
    format!("MIG-00000000-0000-0000-{gpu:04}-{position:012}")
}

/// The label.
pub fn on_gpu(gpu: usize) -> String {
    format!("gpu_uuid=\"{}\"", uuid(gpu))
}

/// Whole.
pub fn eight_gpus() -> Value {
    json!({ "gpus": vec![json!({ "utilization": { "gpu": 50, "memory": 20 }, "power_milliwatts": 300_000 }); 8] })
}

/// Two GPUs of three equal MIG devices each.
pub fn partitioned() -> Value {
    let gpu = |gpu: usize| {
        let instance = |position: usize| json!({"profile": "1g.10gb", "uuid": mig(gpu, position)});
        json!({"mig": {"enabled": true, "instances": [instance(0), instance(1), instance(2)]}})
    };
    json!({"gpus": [gpu(0), gpu(1)]})
}

impl SickNode {
    /// Registered, and hearing the driver's events.
    pub async fn start(machine: Value, config: &str) -> Self {
        Self::start_with(machine, config, &[]).await
    }

    /// Eight GPUs, which the kubelet has as healthy.
    pub async fn healthy(config: &str) -> Self {
        let node = Self::start(eight_gpus(), config).await;
        node.until_unhealthy("nvidia.com/gpu", &[]).await;
        node
    }

    pub async fn start_with(machine: Value, config: &str, more: &[&str]) -> Self {
        let (kubelet, driver) = (node(Options::default()).await, FakeNvml::start(machine));
        let root = kubelet.root.path().to_str().unwrap();
        std::fs::write(kubelet.root.path().join("podmeter.yaml"), config).unwrap();
        let arguments = format!(
            "agent --listen 127.0.0.1:0 --kubelet-root {root} --config {root}/podmeter.yaml \
             --admin-socket {root}/admin.sock --sample-interval 100ms"
        );
        let arguments: Vec<String> = arguments.split(' ').chain(more.iter().copied()).map(str::to_owned).collect();
        let running = run(&arguments, &driver);
        Self { kubelet, driver, running, arguments }
    }

    /// Kills the binary and starts another once the kubelet has noticed.
    pub async fn restart(&mut self) {
        self.running.kill();
        let gone =
            |_: &BTreeMap<String, DeviceCount>| self.kubelet.node_status().values().all(|count| count.allocatable == 0);
        assert!(self.kubelet.node_status_becomes(gone).await, "{:?}", self.kubelet.node_status());
        self.driver.forget_calls();
        self.running = run(&self.arguments, &self.driver);
    }

    pub fn end(&mut self) {
        self.running.signal("TERM");
        assert_eq!(self.running.wait().code(), Some(0), "{}", self.running.log());
    }

    /// Until the last GPU has been read for so long. It must be half busy, as in `eight_gpus`.
    pub fn until_read_for(&self, seconds: f64) {
        let busy = |page: &Page| page.value("podmeter_device_busy_seconds_total", &[&on_gpu(7)]).unwrap_or(0.0);
        let before = busy(&self.running.metrics());
        self.running.until("more readings", |page| busy(page) >= before + seconds / 2.0);
    }

    pub fn inject(&self, gpu: usize, events: Value) {
        self.driver.update(|state| state["gpus"][gpu]["events"] = events);
    }

    /// The driver's recovery action, and the event that reports its change.
    pub fn recovery_action(&self, gpu: usize, action: u32, sequence: u64) {
        self.driver.update(|state| {
            state["gpus"][gpu]["recovery_action"] = json!(action);
            state["gpus"][gpu]["events"] = json!([{"sequence": sequence, "kind": 0x8000}]);
        });
    }

    /// As after a reload of the driver, which restarts the energy counters.
    pub fn reload(&self) {
        self.driver.update(|state| {
            state["generation"] = json!(2);
            for gpu in state["gpus"].as_array_mut().unwrap() {
                gpu["energy_millijoules"] = json!(0);
            }
        });
    }

    pub fn hardware(&self) -> Value {
        self.running.node()["hardware"].clone()
    }

    pub fn post(&self, path: &str, body: &str) -> Answer {
        post(&self.kubelet.root.path().join("admin.sock"), path, body)
    }

    /// Sorted ids, as the kubelet has them. Empty too while it has no plugin of the resource.
    pub fn unhealthy(&self, resource: &str) -> Vec<String> {
        let listed = self.kubelet.listed(resource).unwrap_or_default();
        listed.into_iter().filter(|(_, healthy)| !healthy).map(|(id, _)| id).collect()
    }

    /// Until the kubelet has the resource with exactly these unhealthy, and the driver's events arrive.
    pub async fn until_unhealthy(&self, resource: &str, unhealthy: &[String]) {
        let any_healthy =
            || self.kubelet.listed(resource).is_some_and(|listed| listed.values().any(|healthy| *healthy));
        let is = || any_healthy() || !unhealthy.is_empty();
        for _ in 0..4 {
            let becomes = self.kubelet.node_status_becomes(|_| is() && self.unhealthy(resource) == unhealthy);
            if becomes.await {
                // A session in which every GPU is lost has none to wait for.
                if any_healthy() {
                    self.running.until("events are awaited", |_| self.calls("nvmlEventSetWait_v2") > 0);
                }
                return;
            }
        }
        panic!("{resource}: {unhealthy:?}, not {:?}\n{}", self.kubelet.listed(resource), self.running.log());
    }

    pub fn until_page(&self, what: &str, condition: impl FnMut(&Page) -> bool) -> Page {
        let condition = std::cell::RefCell::new(condition);
        self.running.until(what, |page| (condition.borrow_mut())(page))
    }

    /// The device that the pod got.
    pub async fn runs(&self, pod: &str, resource: &str) -> String {
        self.kubelet.runs(asking_pod(pod, resource, 1)).await;
        self.kubelet.held(pod).remove(0)
    }

    /// Every transition so far.
    pub fn transitions(&self) -> Vec<Value> {
        self.running.node()["health"]["transitions"].as_array().unwrap().clone()
    }

    /// The first cause against the whole GPU.
    pub fn cause(&self, gpu: usize) -> Value {
        self.running.node()["health"]["gpus"][uuid(gpu)]["whole"]["causes"][0].clone()
    }

    /// Neither in podmeter's account nor in any list that the kubelet was sent: once healthy, always healthy.
    pub fn assert_others_stay_healthy(&self, sick: &[usize]) {
        let is_of_sick = |transition: &Value| sick.iter().any(|gpu| transition["gpu"] == json!(uuid(*gpu)));
        let transitions = self.transitions();
        assert!(transitions.iter().all(is_of_sick), "{transitions:?}");
        let is_sick = |device: &str| {
            // The ids of its MIG devices begin with this.
            let part = |gpu: usize| mig(gpu, 0)[..28].to_owned();
            sick.iter().any(|gpu| device.starts_with(&uuid(*gpu)) || device.starts_with(&part(*gpu)))
        };
        for resource in self.kubelet.node_status().keys() {
            let mut known: BTreeMap<String, bool> = BTreeMap::new();
            for list in self.kubelet.received(resource) {
                for (device, healthy) in list {
                    let was_healthy = known.insert(device.clone(), healthy).unwrap_or(false);
                    assert!(healthy || !was_healthy || is_sick(&device), "{device} became unhealthy at the kubelet");
                }
            }
        }
    }

    pub fn calls(&self, name: &str) -> u64 {
        self.driver.calls().get(name).copied().unwrap_or(0)
    }

    /// Of all running threads, from the scheduler's account.
    pub fn processor_seconds(&self) -> f64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.running.pid())).unwrap();
        let nanoseconds = threads.filter_map(|thread| {
            let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<f64>().ok()
        });
        nanoseconds.sum::<f64>() / 1e9
    }
}

fn run(arguments: &[String], driver: &FakeNvml) -> Running {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Running::start(&arguments, &driver.env(), None)
}
