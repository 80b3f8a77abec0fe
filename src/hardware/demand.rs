//! Sends to the hardware threads which GPUs are held and which are watched.

use std::collections::BTreeSet;
use std::sync::mpsc::SyncSender;

use super::messages::SupervisorMessage;
use crate::domain::model::GpuUuid;

/// Sends the sets of held and of watched GPUs; cheap to clone. A call returns false while the hardware threads are
/// busy; the caller repeats it.
#[derive(Clone, Debug)]
pub struct DemandSender {
    pub(super) to_supervisor: SyncSender<SupervisorMessage>,
}

impl DemandSender {
    /// Sends the GPUs that containers hold, and those whose holders have changed, which are read at once.
    pub fn held(&self, held: BTreeSet<GpuUuid>, changed: BTreeSet<GpuUuid>) -> bool {
        self.to_supervisor.try_send(SupervisorMessage::Held { held, changed }).is_ok()
    }

    /// Sends the GPUs that a page or `top` shows.
    pub fn watched(&self, gpus: BTreeSet<GpuUuid>) -> bool {
        self.to_supervisor.try_send(SupervisorMessage::Watched(gpus)).is_ok()
    }
}
