//! What the plugin reads of other modules, and what it notifies them of.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use crate::domain::model::{HardwareState, HealthState, KubeletState};

#[derive(Clone, Debug)]
pub struct PluginInputs {
    pub hardware: watch::Receiver<Arc<HardwareState>>,
    /// Of each GPU and MIG device.
    pub health: watch::Receiver<Arc<HealthState>>,
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    /// Notified of each allocation that was granted.
    pub allocated: Arc<Notify>,
    /// Notified when the kubelet's allocatable devices may have changed.
    pub refresh_allocatable: Arc<Notify>,
}
