//! The simulated node: pods that request devices from a simulated kubelet and load them.

mod pods;
mod resources;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::dra_driver::{self, AllocatedClaim};
use super::kubelet::{AdmissionOutcome, ContainerSpec, DeviceCount, FakeKubelet, Gates, Options, PodSpec};
use super::proc_tree::{ContainerIdentity, ProcTree};
use super::random::Random;
use super::truth::Truth;
use super::workload::{Level, Workload, WorkloadKind};
use crate::clock::Clock;
use crate::domain::model::{ContainerRef, Gpu, GpuUuid, Monotonic};
use crate::hardware::simulated::{Load, SimulatedDriver};

pub use resources::{Replicas, SimulatedDevice, SimulatedResource, resources};

use pods::{DeviceRequest, PodStart, pods_with_claims, pods_with_devices};
use resources::device_of_claim;

/// Load curves are constant within a second of a workload's age; reading it four times as often misses no change.
const STEP: Duration = Duration::from_millis(250);
const CONTAINER: &str = "main";
/// The number before the process ID of the first pod.
const FIRST_PID: u32 = 20_000;
/// The largest part of a device's memory that its pods use in total.
const FULLEST: f64 = 0.95;
/// The kernel's ticks per step, a hundred a second.
const TICKS_PER_STEP: u64 = STEP.as_millis() as u64 / 10;
const PLAIN_PODS: [(&str, &str, usize); 4] =
    [("web", "frontend", 12), ("web", "checkout", 8), ("monitoring", "agent", 6), ("kube-system", "proxy", 4)];

#[derive(Clone, Debug)]
pub struct NodePlan {
    pub resources: Vec<SimulatedResource>,
    /// The claims allocated by a DRA driver; one or two pods use each.
    pub claims: Vec<AllocatedClaim>,
    pub seed: u64,
    /// Whether pods end and others replace them.
    pub churn: bool,
}

/// A kubelet and pods. Any plugin may offer the devices. Dropping it ends all of them.
pub struct SimulatedNode {
    pub kubelet: Arc<FakeKubelet>,
    /// The files of `/proc` and of the logs, with a process for each container that has devices.
    pub files: ProcTree,
    /// The simulation's account of holders and their use.
    pub truth: Arc<Mutex<Truth>>,
    clock: Clock,
    plan: NodePlan,
    /// The devices by device ID, or by `claim/<name of a DRA device>`.
    devices: BTreeMap<String, SimulatedDevice>,
    driver: Option<SimulatedDriver>,
    random: Random,
    running: Vec<RunningPod>,
    waiting: Vec<WaitingPod>,
    step: u64,
    started: usize,
}

/// A pod that ended or was rejected. Its controller replaces it at a step.
struct WaitingPod {
    name: String,
    start: PodStart,
    due_step: u64,
}

struct RunningPod {
    start: PodStart,
    container: ContainerRef,
    /// The ID of its only process.
    pid: u32,
    workload: Workload,
    uid: String,
    devices: Vec<String>,
    since_step: u64,
    /// The step at which it ends; `None`: it runs as long as the node.
    ends_at_step: Option<u64>,
    level: Option<Level>,
}

impl SimulatedNode {
    /// Starts the kubelet under `root`, in place of `/var/lib/kubelet`. `driver` are the simulated GPUs to load;
    /// without them pods only hold devices.
    pub async fn start(root: &Path, plan: NodePlan, driver: Option<SimulatedDriver>, clock: Clock) -> io::Result<Self> {
        let gates = Gates { pods_api: true, ..Gates::default() };
        let kubelet = FakeKubelet::start(root, Options { seed: plan.seed, gates, ..Options::default() }).await?;
        let files = ProcTree::create(&root.join("node"))?;
        let devices = plan.resources.iter().flat_map(|resource| &resource.devices).cloned();
        let devices = devices.chain(plan.claims.iter().flat_map(|claim| &claim.devices).map(device_of_claim));
        Ok(Self {
            kubelet: Arc::new(kubelet),
            files,
            devices: devices.map(|device| (device.id.clone(), device)).collect(),
            driver,
            truth: Arc::default(),
            clock,
            random: Random::seeded(plan.seed),
            plan,
            running: vec![],
            waiting: vec![],
            step: 0,
            started: 0,
        })
    }

    /// The first pods start once a plugin offers the devices that they request; those without devices do not wait.
    async fn populate(&mut self) {
        for (namespace, name, count) in PLAIN_PODS {
            for _ in 0..count {
                let full_name = self.unique(name);
                let pod = PodSpec::new(namespace, &full_name).label("app", name);
                self.kubelet.add_pod(pod.container(ContainerSpec::new(CONTAINER))).await;
                self.write_logs(namespace, &full_name);
            }
        }
        let NodePlan { resources, claims, .. } = self.plan.clone();
        let offered = |status: &BTreeMap<String, DeviceCount>, resource: &SimulatedResource| {
            status.get(&resource.name).is_some_and(|count| count.allocatable == resource.devices.len())
        };
        while !self.kubelet.node_status_becomes(|status| resources.iter().all(|one| offered(status, one))).await {
            tracing::warn!("no device plugin has offered the simulated kubelet all of the node's devices yet");
        }
        if !claims.is_empty() {
            warn_on_failure(dra_driver::prepare(&self.kubelet, &claims));
        }
        for start in pods_with_devices(&resources).into_iter().chain(pods_with_claims(claims)) {
            self.admit(start).await;
        }
    }

    /// Runs the workloads until dropped.
    pub async fn run(mut self) {
        self.populate().await;
        let mut steps = tokio::time::interval(STEP);
        steps.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            steps.tick().await;
            self.step += 1;
            self.work();
            if self.plan.churn {
                self.end_due();
            }
            self.replace_due().await;
        }
    }

    /// Sets the load of each device to that of its holders now.
    fn work(&mut self) {
        let mut changed = false;
        for running in &mut self.running {
            let age = (self.step - running.since_step) * STEP.as_millis() as u64 / 1000;
            let level = running.workload.level(age);
            changed |= running.level.replace(level) != Some(level);
        }
        if changed {
            self.apply_loads(self.clock.now().monotonic);
        }
    }

    /// Sets the devices, and the truth, to the total load of the running pods. Where they request more than a device
    /// has, each gets the same part of its request.
    fn apply_loads(&self, now: Monotonic) {
        let totals = self.total_levels();
        let mut truth = self.truth.lock();
        for running in &self.running {
            let Some(level) = running.level else { continue };
            for device in &running.devices {
                let sum = self.devices.get(device).and_then(|device| totals.get(&(&device.gpu, device.gpu_instance)));
                let part = sum.map_or(1.0, |sum| 1.0 / sum.utilization.max(1.0));
                truth.set(now, &running.container, device, level.utilization * part);
            }
        }
        drop(truth);
        let Some(driver) = &self.driver else { return };
        let inventory = driver.inventory();
        for running in &self.running {
            let Some(level) = running.level else { continue };
            // Several slots of one GPU have one process on it, which does the work of all of them.
            let mut slots: BTreeMap<(&GpuUuid, Option<u32>), f64> = BTreeMap::new();
            for device in running.devices.iter().filter_map(|id| self.devices.get(id)) {
                *slots.entry((&device.gpu, device.gpu_instance)).or_default() += 1.0;
            }
            for (key, slots) in slots {
                let (Some(gpu), sum) = (inventory.gpus.get(key.0), totals[&key]) else { continue };
                let part = Level {
                    utilization: slots * level.utilization / sum.utilization.max(1.0),
                    memory: slots * level.memory * (FULLEST / sum.memory).min(1.0),
                };
                driver.set_process_load(&gpu.uuid, key.1, running.pid, now, load(gpu, key.1, part));
            }
        }
        for ((gpu, gpu_instance), level) in totals {
            let Some(gpu) = inventory.gpus.get(gpu) else { continue };
            let load = load(gpu, gpu_instance, level);
            driver.set_load(&gpu.uuid, gpu_instance, now, load);
        }
    }

    /// The total level of the holders of each GPU and GPU instance; absent for one without holders.
    fn total_levels(&self) -> BTreeMap<(&GpuUuid, Option<u32>), Level> {
        let none = Level { utilization: 0.0, memory: 0.0 };
        let mut totals: BTreeMap<_, Level> =
            self.devices.values().map(|device| ((&device.gpu, device.gpu_instance), none)).collect();
        for running in &self.running {
            let level = running.level.unwrap_or(none);
            for device in running.devices.iter().filter_map(|id| self.devices.get(id)) {
                let sum = totals.entry((&device.gpu, device.gpu_instance)).or_insert(none);
                sum.utilization += level.utilization;
                sum.memory += level.memory;
            }
        }
        totals
    }

    fn end_due(&mut self) {
        let step = self.step;
        let is_over = |running: &mut RunningPod| running.ends_at_step.is_some_and(|end| step >= end);
        let ended: Vec<RunningPod> = self.running.extract_if(.., is_over).collect();
        if ended.is_empty() {
            return;
        }
        let now = self.clock.now().monotonic;
        for running in ended {
            let ContainerRef { namespace, pod, container, .. } = &running.container;
            self.kubelet.finish_container(namespace, pod, container);
            let identity = ContainerIdentity { namespace, pod, uid: &running.uid, container };
            warn_on_failure(self.files.end(running.pid).and_then(|()| self.files.remove_pod_logs(identity)));
            for id in &running.devices {
                self.truth.lock().release(now, &running.container, id);
                if let (Some(driver), Some(device)) = (&self.driver, self.devices.get(id)) {
                    driver.end_process(&device.gpu, running.pid, now);
                }
            }
            let due_step = step + self.random.below(60) as u64 + 8;
            self.waiting.push(WaitingPod { name: running.container.pod.to_string(), start: running.start, due_step });
        }
        self.apply_loads(now);
    }

    async fn replace_due(&mut self) {
        let step = self.step;
        let due: Vec<WaitingPod> = self.waiting.extract_if(.., |pod| step >= pod.due_step).collect();
        for WaitingPod { name, start, .. } in due {
            self.kubelet.remove_pod(start.namespace, &name);
            self.admit(start).await;
        }
    }

    async fn admit(&mut self, start: PodStart) {
        // A job ends after 20 to 120 seconds.
        let is_job = start.kind == WorkloadKind::Batch;
        let ends_at_step = is_job.then(|| self.step + 80 + self.random.below(400) as u64);
        let name = self.unique(start.name);
        let container = ContainerSpec::new(CONTAINER);
        let container = match &start.devices {
            DeviceRequest::Resource(resource) => container.asks(resource, 1),
            DeviceRequest::Claim(claim) => container.claim(claim.name),
        };
        let pod = PodSpec::new(start.namespace, &name).label("app", start.name).container(container);
        match self.kubelet.add_pod(pod).await {
            AdmissionOutcome::Running => {}
            AdmissionOutcome::Rejected { reason, message } => {
                tracing::debug!(pod = name, reason, message, "a simulated pod was rejected");
                self.waiting.push(WaitingPod { name, start, due_step: self.step + 40 });
                return;
            }
        }
        let devices = match &start.devices {
            DeviceRequest::Claim(claim) if claim.admin_access => vec![],
            DeviceRequest::Claim(claim) => claim.devices.iter().map(|device| device_of_claim(device).id).collect(),
            DeviceRequest::Resource(_) => {
                let devices = self.kubelet.devices_of(start.namespace, &name, CONTAINER);
                devices.into_iter().map(|(_, device)| device).collect()
            }
        };
        let uid = self.write_logs(start.namespace, &name);
        let pid = FIRST_PID + self.started as u32;
        let identity = ContainerIdentity { namespace: start.namespace, pod: &name, uid: &uid, container: CONTAINER };
        warn_on_failure(self.files.start(pid, self.step * TICKS_PER_STEP, identity));
        let workload = Workload { kind: start.kind, seed: self.random.next() };
        let running = RunningPod {
            container: ContainerRef::new(start.namespace, &name, CONTAINER),
            devices,
            workload,
            uid,
            pid,
            since_step: self.step,
            ends_at_step,
            level: None,
            start,
        };
        self.running.push(running);
        self.work();
    }

    /// Writes the pod's log directory and returns its UID.
    fn write_logs(&self, namespace: &str, pod: &str) -> String {
        let uid = self.kubelet.uid(namespace, pod).unwrap_or_default();
        warn_on_failure(self.files.add_container(ContainerIdentity {
            namespace,
            pod,
            uid: &uid,
            container: CONTAINER,
        }));
        uid
    }

    /// A name as of a controller, such as `trainer-7f3a9`.
    fn unique(&mut self, name: &str) -> String {
        self.started += 1;
        format!("{name}-{:02x}{:03x}", self.started, self.random.below(0x1000))
    }
}

/// A simulated node with a full disk continues without the file.
fn warn_on_failure(written: io::Result<()>) {
    if let Err(error) = written {
        tracing::warn!(%error, "cannot write the files of a simulated process or log");
    }
}

fn load(gpu: &Gpu, gpu_instance: Option<u32>, level: Level) -> Load {
    let instance = |gi: u32| gpu.mig_devices.iter().find(|mig| mig.gpu_instance == gi);
    let total = match gpu_instance {
        Some(gi) => instance(gi).and_then(|mig| mig.memory_bytes),
        None => gpu.memory_bytes,
    };
    let used = (total.unwrap_or(0) as f64 * level.memory.min(FULLEST)) as u64;
    Load::new(level.utilization, used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::kubelet::PodPhase;

    #[tokio::test]
    async fn a_pod_that_ended_is_not_listed_for_ever() {
        let root = tempfile::tempdir().unwrap();
        let plan = NodePlan { resources: vec![], claims: vec![], seed: 1, churn: true };
        let mut node = SimulatedNode::start(root.path(), plan, None, Clock::start()).await.unwrap();
        let devices = DeviceRequest::Resource("example.com/unregistered".to_owned());
        node.admit(PodStart { namespace: "research", name: "sweep", kind: WorkloadKind::Batch, devices }).await;
        let ended = node.running[0].container.pod.to_string();
        node.step = 1_000;
        node.end_due();
        assert_eq!(node.kubelet.phase("research", &ended), Some(PodPhase::Succeeded));
        node.step = 2_000;
        node.replace_due().await;
        assert_eq!(node.kubelet.phase("research", &ended), None);
        assert_eq!(node.running.len(), 1, "its successor");
    }
}
