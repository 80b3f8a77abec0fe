//! What the plugin reads of other modules, and the notices that it sends them.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use crate::domain::model::{HardwareState, HealthState, KubeletState};

#[derive(Clone, Debug)]
pub struct PluginInputs {
    pub hardware: watch::Receiver<Arc<HardwareState>>,
    /// The health of each GPU and MIG device.
    pub health: watch::Receiver<Arc<HealthState>>,
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    /// Notified of each allocation that was granted.
    pub allocated: Arc<Notify>,
    /// Notified when the kubelet's allocatable devices may have changed.
    pub refresh_allocatable: Arc<Notify>,
}
