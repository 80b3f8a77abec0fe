//! The kubelet's Pods API (from 1.37; in 1.36 behind the feature gate `PodsAPI`): UIDs, labels and container ids,
//! without the API server.
//!
//! In: the socket. Out: a `PodDirectory`, which stays published while the stream is lost. `start` also runs `pod_logs`, the
//! other source of pods. It uses no allocations.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tokio::sync::watch;
use tonic::{Code, Request, Status, Streaming};

use super::client::{CallError, chain, dial, explain};
use super::pod_logs;
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::domain::model::{ContainerId, PodDirectory, PodIdentity, PodLogs, PodRef, PodUid};
use crate::tasks::Tasks;
use crate::wire::v1alpha1::pods_client::PodsClient;
use crate::wire::v1alpha1::{EventType, WatchPodsEvent, WatchPodsRequest};
use crate::wire::{channel_over, core_v1};

/// One pod with all its status; etcd holds none larger than 1.5 MiB.
const MESSAGE_LIMIT: usize = 8 << 20;
/// First and longest pause after a failure. The longest is also how late a kubelet that was replaced by a newer one is
/// noticed.
const RETRIES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// From connecting to the end of the first list.
const SYNC_DEADLINE: Duration = Duration::from_secs(10);
/// Put on pods from manifests: the UID that cgroups and directories have.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

#[derive(Clone, Debug)]
pub struct PodsSettings {
    /// `pods-api/pods-api.sock` under the kubelet's root.
    pub socket: PathBuf,
    /// Keys of the labels to keep; all others are dropped at once.
    pub labels: Vec<Arc<str>>,
    /// Laid out as `/var/log/pods`.
    pub logs_root: PathBuf,
}

/// The sources of pods and their UIDs beside the kubelet's answers and its checkpoint.
#[derive(Clone, Debug)]
pub struct PodSources {
    pub directory: watch::Receiver<Arc<PodDirectory>>,
    pub logs: watch::Receiver<Arc<PodLogs>>,
}

impl Default for PodSources {
    /// Neither source has pods.
    fn default() -> Self {
        Self { directory: watch::channel(Arc::default()).1, logs: watch::channel(Arc::default()).1 }
    }
}

/// Why the watch ended.
#[derive(Debug, thiserror::Error)]
enum WatchError {
    #[error("this kubelet has no Pods API")]
    NotServed,
    #[error(transparent)]
    NotConnected(CallError),
    #[error("{0} did not send its pods within {SYNC_DEADLINE:?}; retrying")]
    Late(PathBuf),
    #[error("the watch of pods ended ({0}); retrying")]
    Ended(String),
}

/// Publishes the pods of both sources for as long as the tasks run. A kubelet without the API is queried again at intervals: it may be
/// replaced.
pub fn start(settings: PodsSettings, clock: Clock, tasks: &mut Tasks) -> PodSources {
    let (publish_logs, logs) = watch::channel(Arc::default());
    tasks.spawn("pod logs", pod_logs::watch(settings.logs_root.clone(), clock, publish_logs));
    let (publish, directory) = watch::channel(Arc::default());
    tasks.spawn("Pods API", watch(settings, publish));
    PodSources { directory, logs }
}

async fn watch(settings: PodsSettings, publish: watch::Sender<Arc<PodDirectory>>) {
    let mut watch = PodsApiWatch { settings, publish, directory: PodDirectory::default() };
    let mut retries = Backoff::new(RETRIES);
    loop {
        let Err(error) = watch.follow_stream().await;
        let was_complete = watch.directory.complete;
        watch.lost(&error);
        if was_complete {
            retries.reset();
        }
        tokio::time::sleep(retries.pause()).await;
    }
}

struct PodsApiWatch {
    settings: PodsSettings,
    publish: watch::Sender<Arc<PodDirectory>>,
    /// To be published.
    directory: PodDirectory,
}

impl PodsApiWatch {
    /// Follows one stream to its end. The published state changes only once the new list is complete.
    async fn follow_stream(&mut self) -> Result<Infallible, WatchError> {
        let mut fresh = BTreeMap::new();
        let sync = async {
            let mut events = self.open().await?;
            loop {
                let event = next(&mut events).await?;
                if event.r#type() == EventType::InitialSyncComplete {
                    return Ok(events);
                }
                apply(&mut fresh, &event, &self.settings.labels);
            }
        };
        let late = |_| WatchError::Late(self.settings.socket.clone());
        let mut events = tokio::time::timeout(SYNC_DEADLINE, sync).await.map_err(late)??;
        self.directory = PodDirectory { complete: true, pods: fresh, problem: None };
        tracing::info!(pods = self.directory.pods.len(), "watching pods through the kubelet's Pods API");
        self.publish();
        loop {
            let event = next(&mut events).await?;
            if apply(&mut self.directory.pods, &event, &self.settings.labels) {
                self.publish();
            }
        }
    }

    async fn open(&self) -> Result<Streaming<WatchPodsEvent>, WatchError> {
        let stream = dial(&self.settings.socket, SYNC_DEADLINE).await.map_err(|error| match error {
            CallError::SocketMissing(_) => WatchError::NotServed,
            error => WatchError::NotConnected(error),
        })?;
        let channel = channel_over(stream).await.map_err(|error| WatchError::Ended(chain(&error)))?;
        let mut client = PodsClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
        Ok(client.watch_pods(Request::new(WatchPodsRequest {})).await.map_err(|status| ended(&status))?.into_inner())
    }

    /// The last pods stay published, marked as incomplete.
    fn lost(&mut self, error: &WatchError) {
        let problem = match error {
            WatchError::NotServed => None,
            error => Some(Arc::<str>::from(error.to_string())),
        };
        self.directory.complete = false;
        if problem != self.directory.problem {
            if let Some(problem) = &problem {
                tracing::info!("{problem}");
            }
            self.directory.problem = problem;
        }
        self.publish();
    }

    fn publish(&self) {
        // Repeated failures do not wake subscribers.
        self.publish.send_if_modified(|published| {
            let differs = **published != self.directory;
            if differs {
                *published = Arc::new(self.directory.clone());
            }
            differs
        });
    }
}

async fn next(events: &mut Streaming<WatchPodsEvent>) -> Result<WatchPodsEvent, WatchError> {
    match events.message().await {
        Ok(Some(event)) => Ok(event),
        Ok(None) => Err(WatchError::Ended("the kubelet closed it".into())),
        Err(status) => Err(ended(&status)),
    }
}

fn ended(status: &Status) -> WatchError {
    match status.code() {
        Code::Unimplemented => WatchError::NotServed,
        _ => WatchError::Ended(explain(status)),
    }
}

/// Whether the event changed anything. An unreadable pod is skipped, so that the others are kept.
pub(crate) fn apply(
    pods: &mut BTreeMap<PodUid, Arc<PodIdentity>>,
    event: &WatchPodsEvent,
    labels: &[Arc<str>],
) -> bool {
    let kind = event.r#type();
    if !matches!(kind, EventType::Added | EventType::Modified | EventType::Deleted) {
        return false;
    }
    let identity = match core_v1::Pod::decode(event.pod.as_slice()).map(|pod| identity(pod, labels)) {
        Ok(Some(identity)) => identity,
        Ok(None) => return false,
        Err(error) => {
            tracing::debug!(%error, "a pod from the Pods API cannot be read");
            return false;
        }
    };
    if kind == EventType::Deleted {
        return pods.remove(&identity.uid).is_some();
    }
    let uid = identity.uid.clone();
    let identity = Arc::new(identity);
    pods.insert(uid, Arc::clone(&identity)).is_none_or(|before| before != identity)
}

/// `None` for a pod without a UID.
fn identity(pod: core_v1::Pod, labels: &[Arc<str>]) -> Option<PodIdentity> {
    let mut metadata = pod.metadata?;
    if metadata.uid.is_empty() {
        return None;
    }
    let status = pod.status.unwrap_or_default();
    let uid = PodUid::new(metadata.uid);
    let hash = metadata.annotations.remove(CONFIG_HASH).map(PodUid::new);
    let statuses =
        [status.init_container_statuses, status.container_statuses, status.ephemeral_container_statuses].concat();
    let container = |container: core_v1::ContainerStatus| {
        // The runtime's name precedes the ID.
        let (_, id) = container.container_id.split_once("://")?;
        Some((ContainerId::from(id), Arc::<str>::from(container.name)))
    };
    let label = |key: &Arc<str>| Some((Arc::clone(key), Arc::<str>::from(metadata.labels.get(&**key)?.as_str())));
    Some(PodIdentity {
        pod: PodRef::new(&metadata.namespace, &metadata.name),
        runtime_uid: hash.filter(|hash| !hash.as_str().is_empty() && *hash != uid),
        uid,
        labels: labels.iter().filter_map(label).collect(),
        terminal: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
        containers: statuses.into_iter().filter_map(container).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> core_v1::Pod {
        let status = |name: &str, id: &str| core_v1::ContainerStatus { name: name.into(), container_id: id.into() };
        core_v1::Pod {
            metadata: Some(core_v1::ObjectMeta {
                name: "web-0".into(),
                namespace: "default".into(),
                uid: uid.into(),
                labels: [("app".into(), "web".into()), ("secret".into(), "x".into())].into(),
                annotations: [(CONFIG_HASH.into(), "229836ee3ad078911e99a2b8134d6713".into())].into(),
            }),
            status: Some(core_v1::PodStatus {
                phase: "Running".into(),
                container_statuses: vec![status("main", "containerd://aa"), status("late", "")],
                init_container_statuses: vec![status("setup", "cri-o://bb")],
                ephemeral_container_statuses: vec![status("debug", "docker://cc")],
            }),
        }
    }

    fn event(kind: EventType, pod: &core_v1::Pod) -> WatchPodsEvent {
        WatchPodsEvent { r#type: kind.into(), pod: pod.encode_to_vec() }
    }

    #[test]
    fn a_pod_is_read_with_the_configured_labels() {
        let identity = identity(pod("mirror"), &["app".into(), "team".into()]).unwrap();
        assert_eq!(identity.pod, PodRef::new("default", "web-0"));
        assert_eq!(identity.uid.as_str(), "mirror");
        assert_eq!(identity.runtime_uid.as_ref().map(PodUid::as_str), Some("229836ee3ad078911e99a2b8134d6713"));
        assert_eq!(identity.labels, [("app".into(), "web".into())].into());
        let names: Vec<&str> = identity.containers.values().map(|name| &**name).collect();
        assert_eq!(names, ["main", "setup", "debug"], "those with an id");
        assert!(!identity.terminal);
    }

    #[test]
    fn events_change_the_picture_and_broken_ones_do_not() {
        let mut pods = BTreeMap::new();
        assert!(apply(&mut pods, &event(EventType::Added, &pod("a")), &[]));
        assert!(!apply(&mut pods, &event(EventType::Modified, &pod("a")), &[]), "nothing new");
        let mut finished = pod("a");
        finished.status.as_mut().unwrap().phase = "Succeeded".into();
        assert!(apply(&mut pods, &event(EventType::Modified, &finished), &[]));
        assert!(pods[&PodUid::from("a")].terminal);
        let broken = WatchPodsEvent { r#type: EventType::Added.into(), pod: vec![0xff; 9] };
        assert!(!apply(&mut pods, &broken, &[]));
        assert!(!apply(&mut pods, &event(EventType::Added, &core_v1::Pod::default()), &[]), "without a UID");
        assert!(!apply(&mut pods, &event(EventType::Unspecified, &pod("b")), &[]));
        // Nothing but name, namespace and UID.
        let mut gone = pod("a");
        gone.status = None;
        assert!(apply(&mut pods, &event(EventType::Deleted, &gone), &[]));
        assert!(pods.is_empty());
    }
}
