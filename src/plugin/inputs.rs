//! What the plugin reads of other modules, and the notices that it sends them.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use crate::domain::holders::HoldersState;
use crate::domain::model::{HealthState, KubeletState};
use crate::tasks::changed;

#[derive(Clone, Debug)]
pub struct PluginInputs {
    pub holders: watch::Receiver<Arc<HoldersState>>,
    /// The health of each GPU and MIG device.
    pub health: watch::Receiver<Arc<HealthState>>,
    /// Notified of each allocation that was granted.
    pub allocated: Arc<Notify>,
    /// Notified when the kubelet's allocatable devices may have changed.
    pub refresh_allocatable: Arc<Notify>,
}

impl PluginInputs {
    pub fn kubelet(&self) -> Arc<KubeletState> {
        Arc::clone(&self.holders.borrow().kubelet)
    }

    /// Waits for a state of the kubelet other than `known`. Cancel safe.
    pub async fn kubelet_changed(&mut self, known: &Arc<KubeletState>) {
        while Arc::ptr_eq(&self.holders.borrow_and_update().kubelet, known) {
            changed(&mut self.holders).await;
        }
    }
}
