//! The Pods API: served by kubelets from 1.37, and by 1.36 with its gate on.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, async_trait};

use super::shared::SharedKubelet;
use super::state::{Boot, PodPhase, SimulatedPod};
use crate::simulation::random::Random;
use crate::wire::core_v1;
use crate::wire::v1alpha1::pods_server::Pods;
use crate::wire::v1alpha1::{EventType, WatchPodsEvent, WatchPodsRequest};

/// The most events that wait for a client; one that falls further behind is dropped.
const EVENTS_BEHIND: usize = 100;

#[derive(Debug)]
pub struct PodsApi(pub Arc<SharedKubelet>);

/// The encoded pod, and the encoded few fields that a deletion has, by UID.
type Picture = BTreeMap<String, (Vec<u8>, Vec<u8>)>;

#[async_trait]
impl Pods for PodsApi {
    type WatchPodsStream = Pin<Box<dyn Stream<Item = Result<WatchPodsEvent, Status>> + Send>>;

    async fn watch_pods(&self, _: Request<WatchPodsRequest>) -> Result<Response<Self::WatchPodsStream>, Status> {
        let mut changes = self.0.changes.subscribe();
        let first = picture(&self.0, |_| true)?;
        let added = first.values().map(|(pod, _)| event(EventType::Added, pod));
        let first_events: Vec<WatchPodsEvent> = added.chain([event(EventType::InitialSyncComplete, &[])]).collect();
        let (send, receive) = mpsc::channel(EVENTS_BEHIND);
        let shared = Arc::clone(&self.0);
        tokio::spawn(async move {
            let mut before = first;
            loop {
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return },
                    () = send.closed() => return,
                }
                // Between two starts there are no pods, and no events are sent.
                // A pod is added with its first status, which it gets at the end of its admission.
                let Ok(now) = picture(&shared, |pod| pod.admitted || before.contains_key(&pod.uid)) else { continue };
                for event in difference(&before, &now) {
                    if send.try_send(event).is_err() {
                        return;
                    }
                }
                before = now;
            }
        });
        let behind = Status::resource_exhausted("the watch fell too far behind");
        let rest = ReceiverStream::new(receive).map(Ok).chain(tokio_stream::once(Err(behind)));
        Ok(Response::new(Box::pin(tokio_stream::iter(first_events.into_iter().map(Ok)).chain(rest))))
    }
}

fn picture(shared: &SharedKubelet, is_shown: impl Fn(&SimulatedPod) -> bool) -> Result<Picture, Status> {
    let state = shared.state.lock();
    if state.boot != Boot::Ready {
        return Err(Status::failed_precondition("pod sources are not synced yet"));
    }
    let entry = |pod: &SimulatedPod| {
        let whole = message(pod);
        let mut deleted = whole.clone();
        deleted.status = None;
        if let Some(metadata) = &mut deleted.metadata {
            metadata.labels.clear();
            metadata.annotations.clear();
        }
        (pod.uid.clone(), (whole.encode_to_vec(), deleted.encode_to_vec()))
    };
    Ok(state.pods.iter().filter(|pod| is_shown(pod)).map(entry).collect())
}

fn difference(before: &Picture, now: &Picture) -> Vec<WatchPodsEvent> {
    let gone = before.iter().filter(|(uid, _)| !now.contains_key(*uid));
    let gone = gone.map(|(_, (_, deleted))| event(EventType::Deleted, deleted));
    let changed = now.iter().filter_map(|(uid, (pod, _))| match before.get(uid) {
        None => Some(event(EventType::Added, pod)),
        Some((known, _)) if known != pod => Some(event(EventType::Modified, pod)),
        Some(_) => None,
    });
    gone.chain(changed).collect()
}

fn event(kind: EventType, pod: &[u8]) -> WatchPodsEvent {
    WatchPodsEvent { r#type: kind.into(), pod: pod.to_vec() }
}

fn message(pod: &SimulatedPod) -> core_v1::Pod {
    let started = pod.phase != PodPhase::Pending;
    let status = |name: &str| core_v1::ContainerStatus {
        name: name.to_owned(),
        container_id: if started { format!("containerd://{}", container_id(&pod.uid, name)) } else { String::new() },
    };
    let hash = pod.spec.static_pod.then(|| ("kubernetes.io/config.hash".to_owned(), pod.uid.clone()));
    let phase = match pod.phase {
        PodPhase::Pending => "Pending",
        // A terminating pod has the phase `Running`, and a deletion time stamp.
        PodPhase::Running | PodPhase::Terminating => "Running",
        PodPhase::Succeeded => "Succeeded",
        PodPhase::Failed => "Failed",
    };
    core_v1::Pod {
        metadata: Some(core_v1::ObjectMeta {
            name: pod.name.clone(),
            namespace: pod.spec.namespace.clone(),
            uid: pod.uid.clone(),
            labels: pod.spec.labels.clone(),
            annotations: hash.into_iter().collect(),
        }),
        status: Some(core_v1::PodStatus {
            phase: phase.to_owned(),
            container_statuses: pod.spec.containers.iter().map(|container| status(&container.name)).collect(),
            init_container_statuses: pod.spec.init_containers.iter().map(|container| status(&container.name)).collect(),
            ephemeral_container_statuses: vec![],
        }),
    }
}

/// A container ID as of a runtime: 64 hex digits, different for each container.
pub fn container_id(uid: &str, container: &str) -> String {
    let text = format!("{uid}/{container}");
    let seed = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mut random = Random::seeded(seed);
    (0..4).map(|_| format!("{:016x}", random.next())).collect()
}
