//! Simulated GPUs through the whole module: the published values are the ones that were set.

use std::time::Duration;

use crate::support::watching::wait;
use podmeter::clock::Clock;
use podmeter::hardware::simulated::{Load, Profile, SimulatedDriver};
use podmeter::hardware::{Hardware, Settings, start};
use podmeter::model::{GpuUuid, HardwareSource, HardwareState, Monotonic, NodeDevices, Totals};

fn run(driver: &SimulatedDriver, clock: Clock) -> Hardware {
    let settings = Settings {
        sample_interval: Duration::from_millis(20),
        medium_interval: Duration::from_millis(60),
        slow_interval: Duration::from_millis(60),
        lost_retry: (Duration::from_millis(20), Duration::from_millis(20)),
        ..Settings::default()
    };
    start(Box::new(driver.clone()), settings, clock)
}

fn by_index(driver: &SimulatedDriver, index: u32) -> GpuUuid {
    let inventory = driver.controls().inventory();
    inventory.gpus.values().find(|gpu| gpu.index == Some(index)).unwrap().uuid.clone()
}

fn totals<'a>(state: &'a HardwareState, gpu: &GpuUuid) -> Option<&'a Totals> {
    Some(&state.readings.get(gpu)?.totals)
}

#[test]
fn published_integrals_are_the_integrals_of_the_load() {
    let driver = SimulatedDriver::new(Profile::H100, 11);
    let (gpu, controls) = (by_index(&driver, 0), driver.controls());
    controls.set_load(&gpu, Monotonic::default(), Load::new(0.25, 5 << 30));
    let hardware = run(&driver, Clock::start());
    let first = wait(&hardware, "readings", |state| totals(state, &gpu).is_some_and(|it| it.busy_seconds.is_some()));
    assert_eq!(first.node_devices, Some(NodeDevices { expected: 8, ..NodeDevices::default() }));
    let begin = totals(&first, &gpu).unwrap().clone();
    let change = begin.through + Duration::from_millis(200);
    controls.set_load(&gpu, change, Load::new(1.0, 5 << 30));
    let after = |state: &HardwareState| {
        totals(state, &gpu).is_some_and(|totals| totals.through > change + Duration::from_millis(300))
    };
    let last = wait(&hardware, "half a second", after);
    let end = totals(&last, &gpu).unwrap();
    let expected = 0.25 * change.since(begin.through).as_secs_f64() + end.through.since(change).as_secs_f64();
    let busy = end.busy_seconds.unwrap() - begin.busy_seconds.unwrap();
    assert!((busy - expected).abs() < 1e-6, "{busy} against {expected}");
    assert_eq!((end.uncovered_seconds, last.source), (0.0, HardwareSource::Simulated));
    hardware.stop();
}

#[test]
fn a_gpu_lost_by_command_returns() {
    let driver = SimulatedDriver::new(Profile::H100_MIG, 2);
    let (gpu, controls) = (by_index(&driver, 3), driver.controls());
    let hardware = run(&driver, Clock::start());
    wait(&hardware, "readings", |state| state.inventory.visible() == 8);
    controls.set_lost(&gpu, true);
    let state = wait(&hardware, "the loss", |state| state.inventory.visible() == 7);
    assert!(state.readings[&gpu].lost && state.readings[&gpu].medium.is_none());
    controls.set_lost(&gpu, false);
    let state = wait(&hardware, "the return", |state| state.inventory.visible() == 8);
    assert_eq!(state.readings[&gpu].medium.as_ref().unwrap().value.instances.len(), 2);
    hardware.stop();
}

#[test]
fn a_node_without_gpus_is_no_fault() {
    let hardware = run(&SimulatedDriver::new(Profile::EMPTY, 1), Clock::start());
    let state = wait(&hardware, "the empty node", |state| state.inventory.generation == 1);
    assert_eq!((state.problem.as_deref(), state.node_devices.as_ref()), (None, Some(&NodeDevices::default())));
    hardware.stop();
}
