//! The JSON of `/api/v1/node`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::model::{
    Account, ClaimGpu, ConfigReload, ContainerXid, DividedQuantity, HardwareState, HealthState, InventoryDrift,
    JournalState, KubeletState, Moment, Overview, PluginState, ProcessState, Snapshot, UnallocatedUse, Unattributed,
    UnixSeconds, UnresolvedDevices,
};

/// `/api/v1/node`, and each event of `/api/v1/stream`. The fields are those of a snapshot, without what only metrics show.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NodeResponse {
    pub sequence: u64,
    pub at: Moment,
    pub started: UnixSeconds,
    pub node_name: Arc<str>,
    pub hardware: Arc<HardwareState>,
    pub kubelet: Arc<KubeletState>,
    pub health: Arc<HealthState>,
    pub plugin: Option<Arc<PluginState>>,
    pub processes: Option<Arc<ProcessState>>,
    pub accounts: Vec<Account>,
    pub unattributed: Vec<Unattributed>,
    pub unallocated_uses: Vec<UnallocatedUse>,
    #[serde(skip_deserializing)]
    pub container_xids: Vec<ContainerXid>,
    pub violations: BTreeMap<DividedQuantity, u64>,
    #[serde(skip_deserializing)]
    pub unresolved: Vec<UnresolvedDevices>,
    #[serde(skip_deserializing)]
    pub claim_gpus: Vec<ClaimGpu>,
    #[serde(skip_deserializing)]
    pub drift: Vec<InventoryDrift>,
    pub journal: Option<JournalState>,
    pub config_reload: Option<ConfigReload>,
    pub overview: Overview,
}

impl From<&Snapshot> for NodeResponse {
    fn from(snapshot: &Snapshot) -> Self {
        let snapshot = snapshot.clone();
        Self {
            sequence: snapshot.sequence,
            at: snapshot.at,
            started: snapshot.started,
            node_name: snapshot.node_name,
            hardware: snapshot.hardware,
            kubelet: snapshot.kubelet,
            health: snapshot.health,
            plugin: snapshot.plugin,
            processes: snapshot.processes,
            accounts: snapshot.accounts,
            unattributed: snapshot.unattributed,
            unallocated_uses: snapshot.unallocated_uses,
            container_xids: snapshot.container_xids,
            violations: snapshot.violations,
            unresolved: snapshot.unresolved,
            claim_gpus: snapshot.claim_gpus,
            drift: snapshot.drift,
            journal: snapshot.journal,
            config_reload: snapshot.config_reload,
            overview: snapshot.overview,
        }
    }
}
