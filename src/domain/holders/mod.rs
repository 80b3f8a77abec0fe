//! Who holds which device. Pure.
//!
//! In: the kubelet's allocations and checkpoint, the inventory, the GPUs on the PCI bus, the time. Out: holdings, the devices of
//! claims, missing GPUs and those that are not served, and where the kubelet's devices differ from the hardware. Does not know: which
//! allocations are accepted (`kubelet::accepted`), processes and how use is divided (`attribution`). Of readings it uses only when a GPU first answered (`missing`).
//!
//! | question | module | state |
//! |---|---|---|
//! | Which hardware does a device ID or a claim name? | `resolve`, `claims` | |
//! | Which GPUs are missing or not served? | `missing` | device IDs that the kubelet has listed, MIG devices that the driver has enumerated |
//! | Who else holds or offers it? | `held` | |
//! | Which part of which device does a container hold? | `join` | slots of each device |
//! | Do the kubelet and the driver list the same devices? | `drift` | |

mod claims;
mod drift;
mod held;
mod join;
mod missing;
mod resolve;
#[cfg(test)]
mod test_data;

pub use held::{HeldHardware, OtherHolders, other_offer};
pub use join::{HoldingKey, Holdings, Slots, join};
pub use missing::{MissingGpus, expected_on_bus};

use std::sync::Arc;

use crate::domain::model::{HardwareState, KubeletState};

/// The hardware and the kubelet's answers, and their join. `kubelet::holders` publishes one for each change of either, so that all who
/// use holdings and readings, as the ledger does, have those of the same moment. Holdings do not wait for readings: a pod may hold a
/// GPU that has not been read yet.
#[derive(Clone, Debug, Default)]
pub struct HoldersState {
    /// The readings, with the GPUs that the driver does not enumerate.
    pub hardware: Arc<HardwareState>,
    pub kubelet: Arc<KubeletState>,
    pub holdings: Arc<Holdings>,
}
