//! The watch of a kubelet as the agent runs it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use podmeter::clock::Clock;
use podmeter::domain::model::{KubeletState, PodDirectory};
use podmeter::kubelet::{KubeletSettings, PodSources, pods, start};
use podmeter::tasks::Tasks;
use tokio::sync::{Notify, watch};

use super::kubelet::client_settings;
use super::polling::until_published;

/// Past any answer of a kubelet that does not hang.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The watch as the agent runs it.
pub struct WatchedKubelet {
    pub state: watch::Receiver<Arc<KubeletState>>,
    /// `None`: the Pods API is not watched.
    pub directory: Option<watch::Receiver<Arc<PodDirectory>>>,
    pub allocated: Arc<Notify>,
    _tasks: Tasks,
}

impl WatchedKubelet {
    pub fn start(root: &Path, refresh_interval: Duration) -> Self {
        Self::start_beside(root, &root.join("device-plugins"), refresh_interval)
    }

    pub fn start_beside(root: &Path, device_plugins: &Path, refresh_interval: Duration) -> Self {
        Self::with(root, device_plugins, refresh_interval, None, Tasks::default())
    }

    /// And the Pods API is watched, as the agent does.
    pub fn start_with_pods_api(root: &Path, refresh_interval: Duration) -> Self {
        let watched = pods::PodsSettings {
            socket: root.join("pods-api/pods-api.sock"),
            labels: vec![],
            logs_root: root.join("no-pod-logs"),
        };
        let mut tasks = Tasks::default();
        let PodSources { directory, .. } = pods::start(watched, Clock::start(), &mut tasks);
        Self::with(root, &root.join("device-plugins"), refresh_interval, Some(directory), tasks)
    }

    fn with(
        root: &Path,
        device_plugins: &Path,
        refresh_interval: Duration,
        directory: Option<watch::Receiver<Arc<PodDirectory>>>,
        mut tasks: Tasks,
    ) -> Self {
        let settings =
            KubeletSettings { device_plugin_directory: device_plugins.to_owned(), ..client_settings(root, DEADLINE) };
        let mut sources = PodSources::default();
        if let Some(directory) = &directory {
            sources.directory = directory.clone();
        }
        let kubelet = start(settings, Box::new(move || refresh_interval), sources, Clock::start(), &mut tasks);
        Self { state: kubelet.states.clone(), directory, allocated: kubelet.allocated.clone(), _tasks: tasks }
    }

    /// Until the kubelet's answer has settled, and the Pods API, where it is watched, has listed all its pods.
    pub async fn until_settled(&mut self) {
        self.until("a settled answer", |state| state.settled).await;
        if let Some(directory) = &mut self.directory {
            until_published(directory, "all pods of the Pods API", |directory| directory.complete).await;
        }
    }

    pub async fn until(&mut self, what: &str, condition: impl Fn(&KubeletState) -> bool) -> Arc<KubeletState> {
        until_published(&mut self.state, what, |state| condition(state)).await
    }

    pub async fn until_problem(&mut self, words: &[&str]) -> Arc<KubeletState> {
        let state = self.until("a problem", |state| state.problem.is_some()).await;
        let problem = state.problem.as_deref().unwrap_or_default();
        for word in words {
            assert!(problem.contains(word), "{word:?} in {problem:?}");
        }
        state
    }
}
