mod boards;
mod cases;
mod counters;
mod laws;
mod now;
mod parts;
mod random_node;
mod reference;
mod segments;

use std::ops::{Deref, DerefMut};

use super::*;
use crate::domain::model::{DeviceTotals, Gpu, Medium, Stamped};
use crate::test_data::{self, LedgerNode};

const GPU: &str = "GPU-aaaaaaaa-0000-0000-0000-000000000000";

/// Tests count from a second after the agent's start, so that a reading at 0 is one.
fn monotonic(milliseconds: u64) -> Monotonic {
    Monotonic::from_millis(1000 + milliseconds)
}

fn moment(milliseconds: u64) -> Moment {
    Moment { monotonic: monotonic(milliseconds), ..test_data::at_millisecond(milliseconds) }
}

/// A ledger with one device whose holders, processes and readings the test sets.
struct OneDeviceLedger {
    node: LedgerNode,
    /// The totals of the next reading, except its time, busy seconds and joules.
    totals: DeviceTotals,
    unattributed: Vec<Unattributed>,
}

impl Deref for OneDeviceLedger {
    type Target = LedgerNode;

    fn deref(&self) -> &LedgerNode {
        &self.node
    }
}

impl DerefMut for OneDeviceLedger {
    fn deref_mut(&mut self) -> &mut LedgerNode {
        &mut self.node
    }
}

impl OneDeviceLedger {
    /// A node whose readings are late after this many seconds.
    fn new(readings_late: u64) -> Self {
        let node = LedgerNode::new(Inventory::default(), Duration::from_secs(readings_late));
        Self { node, totals: DeviceTotals::default(), unattributed: vec![] }
    }

    /// With the device in the inventory.
    fn enumerated(readings_late: u64) -> Self {
        let mut case = Self::new(readings_late);
        case.inventory = test_data::inventory([Gpu::listed(GPU.into(), 0)]);
        case
    }

    fn observe(&mut self, milliseconds: u64) -> LedgerOutput {
        let published = self.node.advance(moment(milliseconds));
        self.unattributed.clone_from(&published.unattributed);
        published
    }

    fn set_reading(&mut self, milliseconds: u64, busy: Option<f64>, energy: Option<f64>, medium: Option<Medium>) {
        let at = monotonic(milliseconds);
        let totals =
            DeviceTotals { complete_until: at, busy_seconds: busy, energy_joules: energy, ..self.totals.clone() };
        let medium = medium.map(|value| Stamped { at, value });
        self.readings.insert(GPU.into(), Arc::new(DeviceReadings { totals, medium, ..DeviceReadings::default() }));
    }
}
