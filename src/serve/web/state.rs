//! What the routes read, and the commands that they call.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

use super::{Admin, CachedBodies, EventStreams, GrafanaUrl, Scrapes};
use crate::clock::Clock;
use crate::domain::model::{GpuUuid, Snapshot};
use crate::serve::metrics::dcgm::Generation;

/// A check of the agent: `Err` with the reason as text. Called for each request, so it must not wait.
pub type Probe = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The form in which a governance record is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GovernanceRequest {
    /// Whether the response is YAML instead of JSON.
    pub yaml: bool,
    /// Whether the request came over the admin socket.
    pub is_admin: bool,
}

/// Writes the governance record of a snapshot. It reads files of the kernel, on blocking threads, and waits for no disk.
pub type GovernanceSource = Arc<dyn Fn(&Snapshot, GovernanceRequest) -> Result<String, String> + Send + Sync>;

/// Takes the query string of `/api/v1/allocations` and returns JSON; the error names what is wrong with the query. It
/// reads files, so it is called on blocking threads.
pub type AllocationSource = Arc<dyn Fn(&str) -> Result<Vec<u8>, String> + Send + Sync>;

/// Sets the GPUs that are read each second. Returns false if the call must be repeated.
pub type WatchGpus = Arc<dyn Fn(BTreeSet<GpuUuid>) -> bool + Send + Sync>;

/// Marks requests over the admin socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByAdminSocket;

/// What the routes read.
#[derive(Clone)]
pub struct WebState {
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    /// The generation of `/metrics/dcgm` without a query.
    pub dcgm_generation: Generation,
    /// The Grafana that rows of the page link to.
    pub grafana_url: Option<GrafanaUrl>,
    pub scrapes: Scrapes,
    pub clock: Clock,
    /// Succeeds while snapshots are published and loading the driver's library does not hang; independent of any GPU.
    pub healthy: Probe,
    /// Succeeds once the kubelet, the devices and each resource of the plugin have an outcome.
    pub ready: Probe,
    pub governance: GovernanceSource,
    pub allocations: AllocationSource,
    /// The commands of the admin socket.
    pub admin: Admin,
    pub watch: WatchGpus,
    /// The history of the last minutes, and the event streams.
    pub streams: EventStreams,
    /// The cached bodies, shared by all servers.
    pub cached_bodies: CachedBodies,
}

impl WebState {
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshots.borrow())
    }
}
