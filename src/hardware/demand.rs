//! Sends to the hardware threads what the GPUs are read for.

use std::collections::BTreeSet;
use std::sync::mpsc::SyncSender;

use super::messages::SupervisorMessage;
use crate::domain::model::GpuUuid;

/// Cheap to clone. Each call is false while the hardware threads are busy; it is then to be repeated.
#[derive(Clone, Debug)]
pub struct DemandSender {
    pub(super) to_supervisor: SyncSender<SupervisorMessage>,
}

impl DemandSender {
    /// The GPUs that containers hold, and those whose holders have changed, which are read at once.
    pub fn held(&self, held: BTreeSet<GpuUuid>, changed: BTreeSet<GpuUuid>) -> bool {
        self.to_supervisor.try_send(SupervisorMessage::Held { held, changed }).is_ok()
    }

    /// The GPUs that somebody watches.
    pub fn watched(&self, gpus: BTreeSet<GpuUuid>) -> bool {
        self.to_supervisor.try_send(SupervisorMessage::Watched(gpus)).is_ok()
    }
}
