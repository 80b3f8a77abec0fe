//! Two containers on a time-sliced GPU, whose driver attributes each of its samples to one process: driver library, totals and
//! ledger together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use podmeter::domain::attribution::{DeviceProcesses, Ledger, LedgerOutput, Observation};
use podmeter::domain::holders::{HoldingKey, Join};
use podmeter::domain::model::{ContainerRef, DeviceReadings, Inventory, Owner, ProcessSmSeconds, SharingForm};
use podmeter::node::hardware::{GpuReader, GpuState, Staleness};
use serde_json::json;

use crate::support::fake_nvml::{FakeNvml, h100};
use crate::support::hardware::{ALL, at, gpu, open};
use crate::support::test_data::{holding, process};

const PODS: [&str; 2] = ["a", "b"];
const STALENESS: Staleness =
    Staleness { fast: Duration::from_secs(30), medium: Duration::from_secs(30), slow: Duration::from_secs(180) };

fn container(pod: &str) -> ContainerRef {
    ContainerRef::new("team", pod, "main")
}

/// The GPU is busy for `percent` of the time, half of it for each container.
struct TimeSlicedNode {
    fake: FakeNvml,
    inventory: Inventory,
    reader: Box<dyn GpuReader>,
    totals: GpuState,
    ledger: Ledger,
    join: Join,
}

impl TimeSlicedNode {
    fn start(percent: u32) -> Self {
        let fake = FakeNvml::start(h100(vec![json!({
            "utilization": {"gpu": percent},
            "processes": [{"pid": 1, "sm": percent / 2}, {"pid": 2, "sm": percent / 2}]
        })]));
        fake.update(|state| {
            state["cost"] = json!({});
            state["clock_microseconds"] = json!(100_000_000);
        });
        let session = open(&fake);
        let key = |pod| HoldingKey { container: container(pod), gpu: gpu(0), mig: None };
        let held = |pod| (key(pod), holding(gpu(0).as_str(), SharingForm::TimeSlicing, 0.5));
        Self {
            inventory: session.inventory().unwrap().0,
            reader: session.reader(&gpu(0)).unwrap(),
            totals: GpuState::default(),
            ledger: Ledger::new(Duration::from_secs(30)),
            join: Join { holdings: PODS.map(held).into(), ..Join::default() },
            fake,
        }
    }

    fn read(&mut self, second: u64) -> (DeviceReadings, LedgerOutput) {
        self.fake.update(|state| state["clock_microseconds"] = json!((100 + second) * 1_000_000));
        let now = at(second + 1);
        let pass = self.reader.read(ALL, now);
        self.totals.add_pass(now.monotonic, second == 0, pass);
        let readings = Arc::new(self.totals.readings(now.monotonic, STALENESS));
        let used = readings.totals.process_sm_seconds.iter().flatten();
        let owned = |(pid, used): (&u32, &ProcessSmSeconds)| {
            process(*pid, Owner::Container(container(PODS[*pid as usize - 1])), used.sm_seconds)
        };
        let has_sm_seconds = readings.totals.process_sm_seconds.is_some();
        let processes = DeviceProcesses { has_sm_seconds, processes: used.map(owned).collect() };
        let output = self.ledger.advance(&Observation {
            now,
            join: &self.join,
            inventory: &self.inventory,
            readings: &[(gpu(0), Arc::clone(&readings))].into(),
            processes: &BTreeMap::from([(gpu(0), processes)]),
            retention: Duration::from_secs(300),
            scrapes: 0,
        });
        (Arc::unwrap_or_clone(readings), output)
    }
}

#[test]
fn a_container_with_half_of_a_time_sliced_gpu_shows_half_in_every_reading() {
    for period in [1, 10] {
        let mut node = TimeSlicedNode::start(100);
        let mut counted = vec![];
        for second in (0..=60).step_by(period) {
            let (readings, output) = node.read(second);
            let now: Vec<_> = output.accounts.iter().map(|account| account.gpu_utilization_ratio).collect();
            if second >= 10 {
                let is_half = |now: &Option<f64>| now.is_some_and(|now| (0.45..=0.55).contains(&now));
                assert!(now.iter().all(is_half), "second {second}, read every {period} s: {now:?}");
                let device = readings.fast.unwrap().value.utilization_ratio.unwrap();
                let sum: f64 = now.iter().flatten().sum();
                assert!((device - 1.0).abs() < 1e-6 && (sum - device).abs() < 1e-6, "{device}, of which {now:?}");
            }
            counted = output.accounts.iter().filter_map(|account| account.figures.busy_seconds).collect();
        }
        // To one sample.
        assert!(counted.iter().all(|busy| (busy - 30.0).abs() <= 0.2), "{counted:?}, read every {period} s");
    }
}
