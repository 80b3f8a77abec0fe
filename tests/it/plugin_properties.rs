//! Random walks of kubelet restarts, lost streams, health changes, allocations, hot-plug and MIG layout changes over
//! the real plugin, under both versions of the kubelet, against a model of what the kubelet must end up with.
//!
//! `WALK_SEED=n` walks another way.

use crate::support::links;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::support::kubelet::{AdmissionOutcome, KubeletNode, KubeletVersion, Options, PodSpec, asking_pod, node};
use crate::support::links::Random;
use crate::support::plugin_harness::{GPU, PluginHarness, gpu, hardware, mig_devices, mixed, uuid};
use crate::support::polling::poll;
use podmeter::domain::model::{DeviceReadings, Gpu, GpuUuid};

const STEPS: usize = 9;
const PROFILES: [&str; 2] = ["1g.10gb", "3g.40gb"];
const RESOURCES: [&str; 3] = [GPU, "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"];

/// By id: the GPU behind it, and whether it is healthy.
type ExpectedDevices = BTreeMap<String, (u32, bool)>;

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_an_older_kubelet_ends_up_with_what_there_is() {
    walk(KubeletVersion::UpTo136).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_a_newer_kubelet_ends_up_with_what_there_is() {
    walk(KubeletVersion::From137).await;
}

struct PluginTrial {
    node: KubeletNode,
    harness: PluginHarness,
    random: Random,
    gpus: BTreeMap<u32, Gpu>,
    /// By their readings.
    ill: BTreeSet<u32>,
    /// By resource, what was sent to the kubelet and may still be listed there.
    sent: BTreeMap<&'static str, BTreeMap<String, u32>>,
    pods: Vec<String>,
    made: u32,
    steps: Vec<String>,
}

impl PluginTrial {
    async fn start(version: KubeletVersion, seed: u64) -> Self {
        let node = node(Options { version, seed, ..Options::default() }).await;
        // A kubelet that lists no pod at all is accepted only after half a minute.
        node.runs(PodSpec::new("team", "idle")).await;
        let gpus: BTreeMap<u32, Gpu> = (0..4).map(|index| (index, gpu(index))).collect();
        let harness = PluginHarness::refreshing(node.root.path(), mixed(), hardware(gpus.values().cloned()));
        let random = links::seeded(seed);
        let steps = vec![format!("{version:?}, WALK_SEED={seed}")];
        Self { node, harness, random, gpus, ill: BTreeSet::new(), sent: BTreeMap::new(), pods: vec![], made: 0, steps }
    }

    fn offered(&self, resource: &str) -> ExpectedDevices {
        let mut offered = ExpectedDevices::new();
        for (index, gpu) in &self.gpus {
            let is_partitioned = gpu.mig_enabled == Some(true);
            // A pod that holds the whole of it keeps its MIG devices from others.
            let is_held = is_partitioned && self.held(RESOURCES[0]).contains(gpu.uuid.as_str());
            let state = (*index, gpu.present && !self.ill.contains(index) && !is_held);
            if is_partitioned {
                let of_resource = gpu.mig_devices.iter().filter(|mig| resource.ends_with(&*mig.profile));
                offered.extend(of_resource.map(|mig| (mig.uuid.to_string(), state)));
            } else if resource == RESOURCES[0] {
                offered.insert(gpu.uuid.to_string(), state);
            }
        }
        offered
    }

    fn held(&self, resource: &str) -> BTreeSet<String> {
        let devices = self.pods.iter().flat_map(|pod| self.node.devices_of("team", pod, "main"));
        devices.filter(|(name, _)| name == resource).map(|(_, id)| id).collect()
    }

    fn sockets(&self, resource: &str) -> usize {
        let prefix = format!("podmeter-{}-", resource.replace('/', "_"));
        let entries = std::fs::read_dir(self.node.device_plugin_directory()).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(&prefix)).count()
    }

    /// `Err` with what is not yet, or not, as it must be; `Ok` with what the kubelet has now.
    fn check(&self, resource: &'static str) -> Result<BTreeMap<String, u32>, String> {
        let (offered, held) = (self.offered(resource), self.held(resource));
        let mut may = self.sent.get(resource).cloned().unwrap_or_default();
        may.extend(offered.iter().map(|(id, (gpu, _))| (id.clone(), *gpu)));
        let missing: BTreeMap<_, _> = may.iter().filter(|(id, _)| !offered.contains_key(*id)).collect();
        // Held, or out of sight: the kubelet's list keeps them, and with them all that vanished.
        let is_kept = |(id, gpu): (&&String, &&u32)| held.contains(*id) || !self.gpus[*gpu].present;
        let keeps = missing.iter().any(|(id, gpu)| is_kept((id, gpu)));
        let sockets = self.sockets(resource);
        let registered =
            self.harness.state.borrow().resources.get(&resource.into()).is_some_and(|state| state.registered);
        let is_held = missing.keys().any(|id| held.contains(*id));
        if offered.is_empty() && !is_held {
            let has_ended = self.node.listed(resource).is_none() && self.node.allocatable_ids(resource).is_empty();
            match (has_ended, registered, sockets) {
                (true, false, 0) => return Ok(BTreeMap::new()),
                // Unobservable devices may have been sent, or have come and gone between two checks.
                _ if keeps => {}
                _ => return Err(format!("{resource} has not ended: registered {registered}, {sockets} sockets")),
            }
        }
        let Some(listed) = self.node.listed(resource) else { return Err(format!("{resource} is not connected")) };
        if !registered || sockets != 1 {
            return Err(format!("{resource}: registered {registered}, {sockets} sockets"));
        }
        for (id, healthy) in &listed {
            let expected = match offered.get(id) {
                Some((_, healthy)) => *healthy,
                None if keeps && may.contains_key(id) => false,
                None => return Err(format!("{resource} still lists {id}")),
            };
            if *healthy != expected {
                return Err(format!("{resource}: {id} is healthy: {healthy}"));
            }
        }
        let must = offered.keys().chain(missing.keys().copied().filter(|id| held.contains(*id)));
        for id in must {
            if !listed.contains_key(id) {
                return Err(format!("{resource} does not list {id}"));
            }
        }
        Ok(listed.into_keys().map(|id| (id.clone(), may[&id])).collect())
    }

    /// Waits until the state matches the model.
    fn settle(&mut self) {
        let mut problem = String::new();
        let settled = poll(|| {
            let dropped = self.node.dropped_devices();
            assert!(dropped.is_empty(), "dropped from a living list: {dropped:?} after {:#?}", self.steps);
            let now: Result<BTreeMap<_, _>, String> =
                RESOURCES.iter().map(|resource| Ok((*resource, self.check(resource)?))).collect();
            now.map_err(|now| problem = now).ok()
        });
        let Some(sent) = settled else {
            panic!("{problem} after {:#?}\n{:#?}", self.steps, self.harness.state.borrow())
        };
        self.sent = sent;
    }

    /// What is free by the model can be had.
    async fn allocate_what_is_free(&mut self) {
        let resource = RESOURCES[self.random.below(RESOURCES.len())];
        let held = self.held(resource);
        let free = |(id, (_, healthy)): (&String, &(u32, bool))| *healthy && !held.contains(id);
        if self.offered(resource).iter().any(free) {
            assert!(self.add_pod(resource).await, "{resource} has a free device after {:#?}", self.steps);
        }
    }

    async fn add_pod(&mut self, resource: &str) -> bool {
        self.made += 1;
        let name = format!("pod-{}", self.made);
        let admitted = self.node.add_pod(asking_pod(&name, resource, 1)).await;
        self.steps.push(format!("{name} asks for {resource}: {admitted:?}"));
        match admitted {
            AdmissionOutcome::Running => self.pods.push(name),
            AdmissionOutcome::Rejected { .. } => drop(self.node.remove_pod("team", &name)),
        }
        admitted == AdmissionOutcome::Running
    }

    /// Publishes the GPU as it is in the model now.
    fn publish(&self, index: u32) {
        let ill = self.ill.contains(&index);
        self.harness.hardware.send_modify(|hardware| {
            let hardware = Arc::make_mut(hardware);
            let readings = DeviceReadings { lost: ill, ..DeviceReadings::default() };
            hardware.readings.insert(GpuUuid::new(uuid(index)), Arc::new(readings));
            let inventory = Arc::make_mut(&mut hardware.inventory);
            inventory.generation += 1;
            inventory.gpus.insert(GpuUuid::new(uuid(index)), self.gpus[&index].clone());
        });
    }

    async fn step(&mut self) {
        let index = u32::try_from(self.random.below(self.gpus.len())).unwrap();
        let resource = RESOURCES[self.random.below(RESOURCES.len())];
        let kind = self.random.below(10);
        match kind {
            0 => {
                self.steps.push("the kubelet restarts".to_owned());
                self.node.restart().unwrap();
                self.node.ready().await;
            }
            1 => {
                let lost = self.node.lose_stream(resource);
                self.steps.push(format!("the stream of {resource} is lost: {lost}"));
            }
            2 => {
                if !self.ill.remove(&index) {
                    self.ill.insert(index);
                }
                self.steps.push(format!("GPU {index} is ill: {}", self.ill.contains(&index)));
                self.publish(index);
            }
            3 => {
                let gpu = self.gpus.get_mut(&index).unwrap();
                gpu.present = !gpu.present;
                self.steps.push(format!("GPU {index} is present: {}", gpu.present));
                self.publish(index);
            }
            4 if self.gpus.len() < 6 => {
                let index = u32::try_from(self.gpus.len()).unwrap();
                self.steps.push(format!("GPU {index} is plugged in"));
                self.gpus.insert(index, gpu(index));
                self.publish(index);
            }
            4 | 5 if !self.pods.is_empty() => {
                let pod = self.pods.swap_remove(self.random.below(self.pods.len()));
                self.steps.push(format!("{pod} ends"));
                assert!(self.node.remove_pod("team", &pod));
            }
            4..7 => drop(self.add_pod(resource).await),
            _ => {
                let numbers: Vec<u32> = (0..self.random.below(4)).map(|_| self.number()).collect();
                let profile = PROFILES[self.random.below(PROFILES.len())];
                self.steps.push(format!("GPU {index} has {} of {profile}", numbers.len()));
                let gpu = self.gpus.get_mut(&index).unwrap();
                gpu.mig_enabled = Some(!numbers.is_empty());
                gpu.mig_devices = mig_devices(profile, &numbers);
                self.publish(index);
            }
        }
        // It may have been sent to the kubelet already.
        for resource in RESOURCES {
            let offered = self.offered(resource).into_iter().map(|(id, (gpu, _))| (id, gpu));
            self.sent.entry(resource).or_default().extend(offered);
        }
    }

    /// Of a MIG device that never was.
    fn number(&mut self) -> u32 {
        self.made += 1;
        self.made
    }
}

async fn walk(version: KubeletVersion) {
    let seed = std::env::var("WALK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_121);
    let mut trial = PluginTrial::start(version, seed).await;
    trial.settle();
    for _ in 0..STEPS {
        for _ in 0..1 + trial.random.below(3) {
            trial.step().await;
            let pause = trial.random.below(40) as u64;
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        trial.steps.push("settles".to_owned());
        trial.settle();
        trial.allocate_what_is_free().await;
    }
}
