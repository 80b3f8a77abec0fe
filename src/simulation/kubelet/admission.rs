//! The admission of a pod: devices are chosen and allocated container by container, on one main loop. The start of a
//! container: the device configuration that the runtime gets.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use super::FakeKubelet;
use super::device_manager::{AssignmentKey, DeviceManager, DeviceSelection};
use super::faults::Method;
use super::registration::in_go;
use super::shared::SharedKubelet;
use super::spec::{ContainerKind, PodSpec};
use super::state::{Boot, PodPhase, SimulatedPod};
use crate::wire::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse, ContainerPreferredAllocationRequest,
    PreStartContainerRequest, PreferredAllocationRequest,
};
use prost::Message;

const PRE_START_DEADLINE: Duration = Duration::from_secs(30);

/// The outcome of a pod's admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionOutcome {
    Running,
    /// The pod has failed; the kubelet's reason and message.
    Rejected {
        reason: &'static str,
        message: String,
    },
}

/// The containers for which the device manager is called. The others run, and keep the devices of the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmittedContainers {
    All,
    /// The init containers of a running pod. They keep the devices of the checkpoint too, but only if these are healthy,
    /// which they are once their plugin is registered.
    Ended,
}

fn rejected(reason: &'static str, message: &str) -> AdmissionOutcome {
    AdmissionOutcome::Rejected { reason, message: message.to_owned() }
}

impl FakeKubelet {
    /// Admits a pod, with the device manager and the registered plugins. Waits for the pods before it and, like the
    /// kubelet, without limit for the plugin; ends when the kubelet does.
    pub async fn add_pod(&self, spec: PodSpec) -> AdmissionOutcome {
        let shared = &self.shared;
        let _turn = shared.admission.lock().await;
        self.ready().await;
        if shared.boot() == Boot::Off {
            return rejected("KubeletNotRunning", "the kubelet is stopped");
        }
        let (uid, name) = {
            let mut state = shared.state.lock();
            state.free_devices_of_gone_pods();
            state.insert(spec.clone())
        };
        shared.changed();
        let outcome = tokio::select! {
            outcome = allocate_all(shared, &uid, &spec, AdmittedContainers::All) => outcome,
            () = shared.until(|| shared.boot() == Boot::Off) => {
                Err(rejected("KubeletNotRunning", "the kubelet was stopped"))
            }
        };
        let phase = if outcome.is_ok() { PodPhase::Running } else { PodPhase::Failed };
        shared.state.lock().set_phase(&spec.namespace, &name, phase);
        shared.changed();
        outcome.err().unwrap_or(AdmissionOutcome::Running)
    }

    /// Restarts the machine: when the kubelet is ready again, every pod that has not ended is admitted again, with what
    /// it holds. The phase of an admitted pod stays; the caller ends its processes. Returns the outcome of each pod, by
    /// `<namespace>/<name>`.
    pub async fn reboot(&self) -> io::Result<BTreeMap<String, AdmissionOutcome>> {
        self.stop();
        let early_window = self.shared.state.lock().options.early_window;
        self.switch_on(early_window, Vec::new())?;
        self.ready().await;
        let pods = self.shared.state.lock().pods.clone();
        Ok(admit_again(&self.shared, &pods, AdmittedContainers::All).await)
    }

    /// Starts or restarts a container: returns the runtime's input, or why the container does not start. `None`: there
    /// is no such pod. Allocate is not called again; PreStartContainer is, where required.
    pub async fn start_container(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> Option<Result<ContainerAllocateResponse, String>> {
        let uid = self.uid(namespace, pod)?;
        let answers = self.shared.state.lock().devices.answers_of(&uid, container);
        let mut options = ContainerAllocateResponse::default();
        for (resource, (devices, answer)) in answers {
            if let Err(error) = pre_start(&self.shared, &resource, devices).await {
                return Some(Err(error));
            }
            // Two messages one after the other decode as both, merged. A checkpoint may contain anything.
            let _ = options.merge(answer.as_slice());
        }
        Some(Ok(options))
    }
}

/// Admits the active ones of `pods` again. Those that the device manager rejects have ended: the kubelet kills what runs
/// of them and never starts it again. Returns the outcome of each, by `<namespace>/<name>`.
pub async fn admit_again(
    shared: &SharedKubelet,
    pods: &[SimulatedPod],
    containers: AdmittedContainers,
) -> BTreeMap<String, AdmissionOutcome> {
    let _turn = shared.admission.lock().await;
    let mut outcomes = BTreeMap::new();
    for pod in pods {
        let (namespace, name) = (&pod.spec.namespace, &pod.name);
        if !shared.state.lock().pod(namespace, name).is_some_and(|now| now.uid == pod.uid && now.phase.is_active()) {
            continue;
        }
        let admission = match allocate_all(shared, &pod.uid, &pod.spec, containers).await {
            Ok(()) => AdmissionOutcome::Running,
            Err(rejected) => {
                // As the API server shows it where the pod ran.
                let ran = containers == AdmittedContainers::Ended;
                let phase = if ran && !pod.spec.static_pod { PodPhase::Succeeded } else { PodPhase::Failed };
                shared.state.lock().set_phase(namespace, name, phase);
                rejected
            }
        };
        outcomes.insert(format!("{namespace}/{name}"), admission);
    }
    shared.changed();
    outcomes
}

async fn allocate_all(
    shared: &SharedKubelet,
    uid: &str,
    spec: &PodSpec,
    containers: AdmittedContainers,
) -> Result<(), AdmissionOutcome> {
    let mut reusable: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (number, (kind, container)) in spec.all_containers().enumerate() {
        if containers == AdmittedContainers::Ended && kind != ContainerKind::Init {
            continue;
        }
        if number > 0 {
            // Only a hang has an effect here.
            let _ = shared.fault(Method::NextContainer).await;
        }
        let mut is_given = false;
        for (number, (resource, wanted)) in container.requests.iter().enumerate() {
            if number > 0 {
                // Only a hang has an effect here.
                let _ = shared.fault(Method::NextResource).await;
            }
            let key = (uid.to_owned(), container.name.clone(), resource.clone());
            let of_resource = reusable.entry(resource).or_default();
            let chosen = allocate(shared, key, *wanted, of_resource).await.map_err(|error| {
                rejected("UnexpectedAdmissionError", &format!("Allocate failed due to {error}, which is unexpected"))
            })?;
            is_given |= !chosen.is_empty();
            match kind {
                // A later container of the pod may get the devices of an init container.
                ContainerKind::Init => of_resource.extend(chosen),
                ContainerKind::Sidecar | ContainerKind::App => of_resource.retain(|id| !chosen.contains(id)),
            }
        }
        if is_given {
            shared.write_checkpoint(&shared.state.lock());
        }
    }
    Ok(())
}

/// Allocates one resource to one container: chooses, and calls the plugin once. The checkpoint is written once the
/// container has all its devices.
async fn allocate(
    shared: &SharedKubelet,
    key: AssignmentKey,
    wanted: usize,
    reusable: &BTreeSet<String>,
) -> Result<Vec<String>, String> {
    let resource = key.2.clone();
    let (selection, client, prefers) = {
        let mut state = shared.state.lock();
        let mut random = state.random.clone();
        let selection = state.devices.select(&key, wanted, reusable, &mut random)?;
        state.random = random;
        if selection != DeviceSelection::Nothing && state.devices.is_stopped(&resource) {
            return Err(format!("endpoint {resource} has been stopped"));
        }
        let serial = state.devices.plugin(&resource);
        drop(state);
        let plugins = shared.plugins.lock();
        let plugin = serial.and_then(|serial| plugins.get(&serial));
        if serial.is_some() && plugin.is_none() && selection != DeviceSelection::Nothing {
            return Err("rpc error: code = Unavailable desc = connection error".to_owned());
        }
        (selection, plugin.map(|plugin| plugin.client.clone()), plugin.is_some_and(|plugin| plugin.prefers))
    };
    let devices = match selection {
        DeviceSelection::Nothing => return Ok(Vec::new()),
        DeviceSelection::Take(devices) => devices,
        DeviceSelection::Choose { available, must } => {
            let mut preferred = Vec::new();
            if let (true, Some(mut client)) = (prefers, client.clone()) {
                let answer = client.get_preferred_allocation(preference(&available, &must, wanted)).await;
                let answer = answer.map_err(|status| {
                    format!("device plugin GetPreferredAllocation rpc failed with err: {}", in_go(&status))
                })?;
                preferred =
                    answer.into_inner().container_responses.into_iter().flat_map(|one| one.device_i_ds).collect();
            }
            DeviceManager::choose(&available, &must, &preferred, wanted)
        }
    };
    let answer = match client {
        None => Vec::new(),
        Some(mut client) => {
            let request = ContainerAllocateRequest { devices_ids: devices.clone() };
            let answer = match shared.fault(Method::Allocate).await {
                Ok(()) => client.allocate(AllocateRequest { container_requests: vec![request] }).await,
                Err(status) => Err(status),
            };
            let answer = answer.map_err(|status| in_go(&status))?.into_inner();
            let response = answer.container_responses.into_iter().next();
            response.ok_or("no containers return in allocation response")?.encode_to_vec()
        }
    };
    shared.state.lock().devices.assign(key, &devices, answer);
    Ok(devices)
}

fn preference(available: &[String], must: &[String], wanted: usize) -> PreferredAllocationRequest {
    let request = ContainerPreferredAllocationRequest {
        available_device_i_ds: available.to_vec(),
        must_include_device_i_ds: must.to_vec(),
        allocation_size: i32::try_from(wanted).unwrap_or(i32::MAX),
    };
    PreferredAllocationRequest { container_requests: vec![request] }
}

async fn pre_start(shared: &SharedKubelet, resource: &str, devices_ids: Vec<String>) -> Result<(), String> {
    let failed = |text| format!("device plugin PreStartContainer rpc failed with err: {text}");
    let serial = {
        let state = shared.state.lock();
        if !state.devices.pre_start.contains(resource) {
            return Ok(());
        }
        state.devices.plugin(resource)
    };
    let client = serial.and_then(|serial| shared.plugins.lock().get(&serial).map(|plugin| plugin.client.clone()));
    let Some(mut client) = client else { return Err(failed(format!("endpoint of {resource} has been stopped"))) };
    let call = client.pre_start_container(PreStartContainerRequest { devices_ids });
    match tokio::time::timeout(PRE_START_DEADLINE, call).await {
        Ok(answer) => answer.map(drop).map_err(|status| failed(in_go(&status))),
        Err(_) => Err(failed("context deadline exceeded".to_owned())),
    }
}
