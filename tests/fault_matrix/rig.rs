//! A node with eight GPUs, a pod with one of them, and the real binary. Rows cause and end faults on it.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use podmeter::wire::v1beta1::device_plugin_client::DevicePluginClient;
use podmeter::wire::v1beta1::{AllocateRequest, ContainerAllocateRequest};
use serde_json::{Value, json};

use crate::support::agent::{self, Answer, Page, Running, binary, post};
use crate::support::fake_nvml::FakeNvml;
use crate::support::hardware::{add_pci_device, bind, pci_bus_id};
pub use crate::support::kubelet::GPU;
use crate::support::kubelet::{AdmissionOutcome, DeviceCount, KubeletNode, Options, asking_pod, connect, node};
pub use crate::support::polling::until_true as until;
use crate::support::sick_node::eight_gpus;

pub const TRAINER: &[&str] = &["namespace=\"team\"", "pod=\"trainer\"", "container=\"main\""];
/// The condition file.
pub const CONDITION: &str = "health.json";
pub const CONFIG: &str = "health: {holdDown: 300ms, stuckLimit: 3s}\n";
/// Additional open files that a recovered process may have: connections of scrapes that have just ended.
const FILES: f64 = 12.0;

/// How podmeter is started on the node.
#[derive(Default)]
pub struct AgentSetup {
    pub arguments: Vec<String>,
    pub environment: Vec<(&'static str, PathBuf)>,
    /// Gives it a PCI bus with the GPUs.
    pub pci_bus: bool,
    /// Preloads a wall clock that `Rig::set_clock_ahead` sets.
    pub skewed_clock: bool,
}

pub struct Rig {
    pub kubelet: KubeletNode,
    pub driver: FakeNvml,
    setup: AgentSetup,
    running: Option<Running>,
    /// Logs of ended processes.
    past: String,
    /// Resources of the current fault, dropped at its end: sockets, locks.
    held: Vec<Box<dyn Any>>,
    files: f64,
    guests: usize,
}

/// Blocks a row, which runs on a thread of the runtime, until the future is done.
pub fn wait_for<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(future))
}

pub fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

impl Rig {
    /// Starts podmeter, waits until it is registered, and adds pod `team/trainer` with one GPU.
    pub async fn start(setup: AgentSetup) -> Self {
        let (kubelet, driver) = (node(Options::default()).await, FakeNvml::start(eight_gpus()));
        let (past, held) = (String::new(), vec![]);
        let mut rig = Self { kubelet, driver, setup, running: None, past, held, files: 0.0, guests: 0 };
        rig.write("podmeter.yaml", CONFIG);
        rig.write("web-config.yaml", "http_server_config: {headers: {X-Frame-Options: deny}}\n");
        rig.write("clock", "\0\0\0\0\0\0\0\0");
        if rig.setup.pci_bus {
            (0..8).for_each(|gpu| rig.bind(gpu, "nvidia"));
            rig.setup.arguments.extend(["--sys-root".to_owned(), rig.path("sys").to_str().unwrap().to_owned()]);
        }
        if rig.setup.skewed_clock {
            rig.setup.environment.extend([("LD_PRELOAD", rig.skewed_clock()), ("SKEWED_CLOCK", rig.path("clock"))]);
        }
        rig.begin();
        let offered = |status: &BTreeMap<String, DeviceCount>| status.get(GPU).is_some_and(|gpu| gpu.allocatable == 8);
        until("eight devices at the kubelet", || offered(&rig.kubelet.node_status()));
        rig.kubelet.runs(asking_pod("trainer", GPU, 1)).await;
        rig
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.kubelet.root.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn arguments(&self) -> Vec<String> {
        let root = self.kubelet.root.path().to_str().unwrap();
        let arguments = format!(
            "agent --listen 127.0.0.1:0 --kubelet-root {root} --config {root}/podmeter.yaml \
             --web-config {root}/web-config.yaml --admin-socket {root}/admin.sock --state-dir {root}/state \
             --condition-file {root}/{CONDITION} --sample-interval 100ms --refresh-interval 1s"
        );
        arguments.split(' ').map(str::to_owned).chain(self.setup.arguments.iter().cloned()).collect()
    }

    /// Starts podmeter; it must not be running.
    pub fn begin(&mut self) {
        assert!(self.running.is_none(), "podmeter already runs");
        let arguments = self.arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut environment = self.driver.env();
        environment.extend(self.setup.environment.iter().cloned());
        self.running = Some(Running::start_binary(&binary(), &arguments, &environment, None));
    }

    /// Starts podmeter, which must fail. Returns its exit code and adds its output to the log.
    pub fn start_failing(&mut self, more: &[&str]) -> i32 {
        let arguments = self.arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let (code, output) = agent::ended(&arguments);
        self.past.push_str(&output);
        code
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.running().kill();
        self.forget();
    }

    /// Waits for the end after a signal and returns the exit code.
    pub fn ended(&mut self) -> Option<i32> {
        let code = self.running().wait().code();
        self.forget();
        code
    }

    /// Sends SIGTERM and expects exit code 0.
    pub fn stop(&mut self) {
        self.signal("TERM");
        assert_eq!(self.ended(), Some(0), "{}", self.log());
    }

    fn forget(&mut self) {
        if let Some(running) = self.running.take() {
            self.past.push_str(&running.log());
        }
    }

    fn running(&mut self) -> &mut Running {
        self.running.as_mut().expect("podmeter runs")
    }

    fn now(&self) -> &Running {
        self.running.as_ref().expect("podmeter runs")
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    pub fn pid(&self) -> u32 {
        self.now().pid()
    }

    pub fn address(&self) -> String {
        self.now().address.clone()
    }

    pub fn signal(&self, name: &str) {
        self.now().signal(name);
    }

    /// Stops reading the log and fills its pipe.
    pub fn block_log(&self) {
        self.now().block_log();
    }

    pub fn unblock_log(&self) {
        self.now().unblock_log();
    }

    pub fn reload(&self, config: &str) {
        self.write("podmeter.yaml", config);
        self.signal("HUP");
    }

    pub fn order(&self, path: &str, body: &str) -> Answer {
        post(&self.path("admin.sock"), path, body)
    }

    pub fn log(&self) -> String {
        self.past.clone() + &self.running.as_ref().map(Running::log).unwrap_or_default()
    }

    pub fn get(&self, path: &str) -> Option<Answer> {
        self.running.as_ref().map(|running| running.get(path))
    }

    /// Empty while podmeter does not run.
    pub fn metrics(&self) -> Page {
        Page(self.get("/metrics").map(|answer| answer.body).unwrap_or_default())
    }

    pub fn gpu(&self, gpu: usize, change: impl Fn(&mut Value)) {
        self.driver.update(|state| change(&mut state["gpus"][gpu]));
    }

    /// Binds a GPU on the PCI bus to a kernel driver.
    pub fn bind(&self, gpu: usize, driver: &str) {
        let attributes = [("device", "0x2330"), ("numa_node", "-1")];
        let device = add_pci_device(&self.path("sys"), &pci_bus_id(gpu), &attributes);
        bind(&device, driver);
        let group = device.join("iommu_group");
        let _ = std::fs::remove_file(&group);
        std::os::unix::fs::symlink(format!("../../../../kernel/iommu_groups/{}", 40 + gpu), group).unwrap();
    }

    pub fn gpus(&self, change: impl Fn(&mut Value)) {
        self.driver.update(|state| state["gpus"].as_array_mut().unwrap().iter_mut().for_each(&change));
    }

    pub fn driver_state(&self) -> Value {
        let mut state = Value::Null;
        self.driver.update(|now| state = now.clone());
        state
    }

    pub fn hold(&mut self, what: impl Any) {
        self.held.push(Box::new(what));
    }

    pub fn drop_held(&mut self) {
        self.held.clear();
    }

    pub fn set_clock_ahead(&self, seconds: i64) {
        // Written in place, because podmeter has it mapped.
        let file = std::fs::File::options().write(true).open(self.path("clock")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &seconds.to_ne_bytes(), 0).unwrap();
    }

    /// A preloaded library that replaces the clock of the C library.
    fn skewed_clock(&self) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fault_matrix/skewed_clock.c");
        let library = self.path("skewed_clock.so");
        let mut compiler = std::process::Command::new("cc");
        let status = compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
        assert!(status.expect("cc is installed").success(), "skewed_clock.c does not compile");
        library
    }

    fn guest(&mut self) -> (String, AdmissionOutcome) {
        self.guests += 1;
        let name = format!("guest-{}", self.guests);
        let admission = wait_for(self.kubelet.add_pod(asking_pod(&name, GPU, 1)));
        (name, admission)
    }

    /// Adds and removes a pod with one GPU; an error if it is not admitted.
    pub fn admits(&mut self) -> Result<(), String> {
        let (name, admission) = self.guest();
        self.kubelet.remove_pod("team", &name);
        if admission == AdmissionOutcome::Running { Ok(()) } else { Err(format!("a new pod: {admission:?}")) }
    }

    /// Runs a pod until the page has it, so that the journal has a change to write.
    pub fn run_a_pod(&mut self) {
        let (name, admission) = self.guest();
        assert_eq!(admission, AdmissionOutcome::Running);
        let label = format!("pod=\"{name}\"");
        until("the pod is on the page", || self.metrics().count("podmeter_container_allocation_info", &[&label]) == 1);
        self.kubelet.remove_pod("team", &name);
    }

    /// Requests the page, makes a device unhealthy and healthy again at the kubelet, and calls Allocate.
    pub fn toggle_health_and_allocate(&self) {
        assert_eq!(self.get("/metrics").map(|answer| answer.status), Some(200));
        let listed = || self.kubelet.listed(GPU).unwrap_or_default();
        let mut healthy = listed().into_iter().filter_map(|(id, is_healthy)| is_healthy.then_some(id));
        let device = healthy.next_back().expect("a healthy device");
        let (mark, unmark) = (json!({"device": device, "reason": "test"}), json!({ "device": device }));
        for (order, body, is_healthy) in [("/mark", mark, false), ("/unmark", unmark, true)] {
            let answer = self.order(order, &body.to_string());
            assert_eq!(answer.status, 200, "{}", answer.body);
            until("the kubelet lists the change", || listed().get(&device) == Some(&is_healthy));
        }
        let answered = wait_for(async {
            let mut plugin = DevicePluginClient::new(connect(&self.own_socket()).await.unwrap());
            let container_requests = vec![ContainerAllocateRequest { devices_ids: vec![device] }];
            plugin.allocate(AllocateRequest { container_requests }).await
        });
        answered.expect("allocated");
    }

    /// The plugin's socket in the kubelet's directory.
    pub fn own_socket(&self) -> PathBuf {
        let entries = std::fs::read_dir(self.kubelet.device_plugin_directory()).unwrap();
        let mut paths = entries.map(|entry| entry.unwrap().path());
        paths.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("podmeter-")).expect("a socket")
    }

    /// The number of devices of the running pod.
    pub fn devices_of_the_pod(&self) -> usize {
        self.kubelet.held("trainer").len()
    }

    pub fn healthy_devices(&self) -> usize {
        self.kubelet.node_status().get(GPU).map_or(0, |count| count.allocatable)
    }

    pub fn count_open_files(&mut self) {
        self.files = self.metrics().value("process_open_fds", &[]).unwrap_or(self.files);
    }

    /// No more open files than before a row, except connections of scrapes that have just ended.
    pub fn has_few_files(&self) -> bool {
        self.files == 0.0 || self.metrics().value("process_open_fds", &[]).unwrap_or_default() <= self.files + FILES
    }

    /// Whether the node has no fault; otherwise which.
    pub fn recovered(&self) -> Result<(), String> {
        if !self.is_running() {
            return Err("podmeter does not run".into());
        }
        for path in ["/-/healthy", "/-/ready"] {
            let answer = self.get(path).expect("podmeter runs");
            if answer.status != 200 {
                return Err(format!("{path}: {}", answer.body));
            }
        }
        let page = self.metrics();
        let all = |name: &str, value: f64, least: usize| {
            let is = page.count(name, &[]) >= least && page.samples(name, &[]).all(|(_, found)| found == value);
            if is { Ok(()) } else { Err(format!("{name} is not {value} on {least} series or more")) }
        };
        all("podmeter_device_healthy", 1.0, 8)?;
        all("podmeter_plugin_registered", 1.0, 1)?;
        all("podmeter_plugin_conflict", 0.0, 0)?;
        all("podmeter_collector_success", 1.0, 5)?;
        all("podmeter_collector_stuck", 0.0, 0)?;
        all("podmeter_podresources_pods_truncated", 0.0, 0)?;
        all("podmeter_journal_up", 1.0, 1)?;
        all("podmeter_config_last_reload_successful", 1.0, 1)?;
        all("podmeter_released", 0.0, 0)?;
        for (name, labels, count) in [
            ("podmeter_device_power_watts", &[][..], 8),
            ("podmeter_device_unhealthy_reason", &[], 0),
            ("podmeter_container_allocation_info", TRAINER, 1),
            ("podmeter_container_busy_seconds_total", TRAINER, 1),
        ] {
            if page.count(name, labels) != count {
                return Err(format!("{name}{labels:?} has {} series, not {count}", page.count(name, labels)));
            }
        }
        let devices = self.healthy_devices();
        if devices != 8 {
            return Err(format!("{devices} devices at the kubelet"));
        }
        if self.has_few_files() { Ok(()) } else { Err(format!("files are left open, more than {}", self.files)) }
    }
}
