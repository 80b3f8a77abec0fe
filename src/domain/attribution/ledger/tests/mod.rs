mod boards;
mod cases;
mod counters;
mod laws;
mod now;
mod parts;
mod random_node;
mod reference;
mod segments;

use super::*;
use crate::domain::model::{DeviceTotals, Medium, Stamped, UnixSeconds};

const GPU: &str = "GPU-aaaaaaaa-0000-0000-0000-000000000000";

/// Tests count from a second after the agent's start, so that a reading at 0 is one.
fn monotonic(milliseconds: u64) -> Monotonic {
    Monotonic::from_millis(1000 + milliseconds)
}

fn moment(milliseconds: u64) -> Moment {
    let unix = UnixSeconds(1_700_000_000.0 + milliseconds as f64 / 1000.0);
    Moment { monotonic: monotonic(milliseconds), unix }
}

/// A ledger with one device whose holders, processes and readings the test sets.
struct OneDeviceLedger {
    ledger: Ledger,
    holdings: Holdings,
    inventory: Inventory,
    readings: BTreeMap<GpuUuid, Arc<DeviceReadings>>,
    processes: BTreeMap<GpuUuid, DeviceProcesses>,
    /// The totals of the next reading, except its time, busy seconds and joules.
    totals: DeviceTotals,
    unattributed: Vec<Unattributed>,
    scrapes: u64,
}

impl OneDeviceLedger {
    /// A world in which readings are late after this many seconds.
    fn new(readings_late: u64) -> Self {
        Self {
            ledger: Ledger::new(Duration::from_secs(readings_late)),
            holdings: Holdings::default(),
            inventory: Inventory::default(),
            readings: BTreeMap::new(),
            processes: BTreeMap::new(),
            totals: DeviceTotals::default(),
            unattributed: vec![],
            scrapes: 0,
        }
    }

    fn observe(&mut self, milliseconds: u64) -> LedgerOutput {
        let published = self.ledger.advance(&Observation {
            now: moment(milliseconds),
            holdings: &self.holdings,
            inventory: &self.inventory,
            readings: &self.readings,
            processes: &self.processes,
            retention: Retention { time: Duration::from_secs(300), scrapes: self.scrapes },
        });
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
