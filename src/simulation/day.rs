//! The fault schedule of a simulated day: each fault, its repair, and its time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::kubelet::FakeKubelet;
use crate::domain::model::GpuUuid;
use crate::hardware::simulated::SimulatedDriver;

/// One fault or repair. GPUs are named by index.
#[derive(Clone, Copy, Debug)]
pub enum DayEvent {
    Xid { gpu: u32, code: u32, count: u64 },
    Reset { gpu: u32 },
    BackOnBus { gpu: u32 },
    Hangs { gpu: u32, hangs: bool },
    DriverLoaded(bool),
    KubeletRuns(bool),
}

/// Simultaneous faults, with a description of what is simulated and where it shows.
#[derive(Clone, Copy, Debug)]
pub struct DayStep {
    pub second: u64,
    pub events: &'static [DayEvent],
    pub text: &'static str,
}

/// The length of the day in seconds; then it repeats.
pub const LENGTH: u64 = 150;

use DayEvent::{BackOnBus, DriverLoaded, Hangs, KubeletRuns, Reset, Xid};

pub const DAY: [DayStep; 11] = [
    DayStep {
        second: 10,
        events: &[Xid { gpu: 2, code: 79, count: 1 }],
        text: "XID 79 on GPU 2, which has fallen off the bus: its readings end, and it becomes Unhealthy at the kubelet, with \
               all of its slots; the others go on; look at podmeter_device_unhealthy_reason and the log line with its pods",
    },
    DayStep {
        second: 30,
        events: &[BackOnBus { gpu: 2 }, DriverLoaded(false)],
        text: "GPU 2 is back on the bus, for which the driver is unloaded: readings stop for a moment, no \
               other GPU becomes Unhealthy",
    },
    DayStep {
        second: 34,
        events: &[DriverLoaded(true)],
        text: "the driver is loaded again, which XID 79 requires for recovery: readings go on, no counter has fallen, and GPU 2 is \
               healthy when the hold-down is over",
    },
    DayStep {
        second: 50,
        events: &[Xid { gpu: 5, code: 48, count: 1 }],
        text: "XID 48 on GPU 5, an uncorrected memory error: Unhealthy, the driver requests a reset, its readings go on",
    },
    DayStep { second: 60, events: &[Reset { gpu: 5 }], text: "GPU 5 is reset: healthy when the hold-down is over" },
    DayStep {
        second: 80,
        events: &[Xid { gpu: 1, code: 45, count: 12 }],
        text: "12 times XID 45 on GPU 1, as when a job ends: podmeter_xid_errors_total{class=\"corroborating\"} counts each, \
               no device becomes Unhealthy",
    },
    DayStep {
        second: 90,
        events: &[Hangs { gpu: 6, hangs: true }],
        text: "a driver call on GPU 6 hangs: its readings stop now, podmeter_collector_stuck is 1 after 10 s, and it is \
               Unhealthy with reason stuck after 10 s more; the other GPUs are read as before",
    },
    DayStep {
        second: 100,
        events: &[KubeletRuns(false)],
        text: "the kubelet is stopped: the page is served from memory, podmeter_podresources_age_seconds grows",
    },
    DayStep {
        second: 103,
        events: &[KubeletRuns(true)],
        text: "the kubelet is started: the devices are registered again, no container loses its counters",
    },
    DayStep {
        second: 125,
        events: &[Hangs { gpu: 6, hangs: false }],
        text: "GPU 6 is reset and its call comes back: healthy when the hold-down is over",
    },
    DayStep { second: 145, events: &[], text: "the day is over: every simulated fault has ended" },
];

/// The simulated parts that the day acts on.
#[derive(Clone, Debug)]
pub struct Stage {
    pub driver: SimulatedDriver,
    pub kubelet: Arc<FakeKubelet>,
}

impl Stage {
    /// Repeats the day, `speed` times as fast, until it is dropped.
    pub async fn play(self, speed: u32) {
        let pace = |second: u64| Duration::from_secs(second) / speed.max(1);
        let mut day_start = Instant::now();
        loop {
            for step in &DAY {
                tokio::time::sleep_until(day_start + pace(step.second)).await;
                tracing::info!(second = step.second, "simulated: {}", step.text);
                for event in step.events {
                    self.apply(*event);
                }
            }
            day_start += pace(LENGTH);
        }
    }

    fn apply(&self, event: DayEvent) {
        let on = |index: u32, change: &dyn Fn(&GpuUuid)| {
            let inventory = self.driver.inventory();
            // A profile may have fewer GPUs, or none.
            if let Some(gpu) = inventory.gpus.values().find(|gpu| gpu.index == Some(index)) {
                change(&gpu.uuid);
            }
        };
        match event {
            Xid { gpu, code, count } => on(gpu, &|gpu| self.driver.inject_xids(gpu, code, count)),
            Reset { gpu } => on(gpu, &|gpu| self.driver.reset(gpu)),
            BackOnBus { gpu } => on(gpu, &|gpu| self.driver.put_back_on_bus(gpu)),
            Hangs { gpu, hangs } => on(gpu, &|gpu| self.driver.set_hanging(gpu, hangs)),
            DriverLoaded(loaded) => self.driver.set_driver_loaded(loaded),
            KubeletRuns(false) => self.kubelet.stop(),
            KubeletRuns(true) => {
                if let Err(error) = self.kubelet.restart() {
                    tracing::error!(%error, "the simulated kubelet does not start");
                }
            }
        }
    }
}
