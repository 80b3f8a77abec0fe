//! The fault schedule of a simulated day: each fault, its repair, and its time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::kubelet::FakeKubelet;
use crate::domain::model::GpuUuid;
use crate::hardware::simulated::SimulatedDriver;

/// Simultaneous faults, with a description of what is simulated and where it shows.
struct DayStep {
    second: u64,
    apply: fn(&Stage),
    text: &'static str,
}

/// The length of the day in seconds; then it repeats.
const LENGTH: u64 = 150;

const DAY: [DayStep; 11] = [
    DayStep {
        second: 10,
        apply: |stage| stage.on_gpu(2, |driver, gpu| driver.inject_xids(gpu, 79, 1)),
        text: "XID 79 on GPU 2, which has fallen off the bus: its readings end, and it becomes Unhealthy at the kubelet, with \
               all of its slots; the others go on; look at podmeter_device_unhealthy_reason and the log line with its pods",
    },
    DayStep {
        second: 30,
        apply: |stage| {
            stage.on_gpu(2, SimulatedDriver::put_back_on_bus);
            stage.driver.set_driver_loaded(false);
        },
        text: "GPU 2 is back on the bus, for which the driver is unloaded: readings stop for a moment, no \
               other GPU becomes Unhealthy",
    },
    DayStep {
        second: 34,
        apply: |stage| stage.driver.set_driver_loaded(true),
        text: "the driver is loaded again, which XID 79 requires for recovery: readings go on, no counter has fallen, and GPU 2 is \
               healthy when the hold-down is over",
    },
    DayStep {
        second: 50,
        apply: |stage| stage.on_gpu(5, |driver, gpu| driver.inject_xids(gpu, 48, 1)),
        text: "XID 48 on GPU 5, an uncorrected memory error: Unhealthy, the driver requests a reset, its readings go on",
    },
    DayStep {
        second: 60,
        apply: |stage| stage.on_gpu(5, SimulatedDriver::reset),
        text: "GPU 5 is reset: healthy when the hold-down is over",
    },
    DayStep {
        second: 80,
        apply: |stage| stage.on_gpu(1, |driver, gpu| driver.inject_xids(gpu, 45, 12)),
        text: "12 times XID 45 on GPU 1, as when a job ends: podmeter_xid_errors_total{class=\"corroborating\"} counts each, \
               no device becomes Unhealthy",
    },
    DayStep {
        second: 90,
        apply: |stage| stage.on_gpu(6, |driver, gpu| driver.set_hanging(gpu, true)),
        text: "a driver call on GPU 6 hangs: its readings stop now, podmeter_collector_stuck is 1 after 10 s, and it is \
               Unhealthy with reason stuck after 10 s more; the other GPUs are read as before",
    },
    DayStep {
        second: 100,
        apply: |stage| stage.kubelet.stop(),
        text: "the kubelet is stopped: the page is served from memory, podmeter_podresources_age_seconds grows",
    },
    DayStep {
        second: 103,
        apply: Stage::start_kubelet,
        text: "the kubelet is started: the devices are registered again, no container loses its counters",
    },
    DayStep {
        second: 125,
        apply: |stage| stage.on_gpu(6, |driver, gpu| driver.set_hanging(gpu, false)),
        text: "GPU 6 is reset and its call comes back: healthy when the hold-down is over",
    },
    DayStep { second: 145, apply: |_| {}, text: "the day is over: every simulated fault has ended" },
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
                (step.apply)(&self);
            }
            day_start += pace(LENGTH);
        }
    }

    /// GPUs are named by index. A profile may have fewer, or none.
    fn on_gpu(&self, index: u32, change: fn(&SimulatedDriver, &GpuUuid)) {
        let inventory = self.driver.inventory();
        if let Some(gpu) = inventory.gpus.values().find(|gpu| gpu.index == Some(index)) {
            change(&self.driver, &gpu.uuid);
        }
    }

    fn start_kubelet(&self) {
        if let Err(error) = self.kubelet.restart() {
            tracing::error!(%error, "the simulated kubelet does not start");
        }
    }
}
