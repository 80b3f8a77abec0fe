//! Letting go of a driver library that is loaded like the real one, and taking it up again.

use std::fs;
use std::time::Duration;

use crate::support::fake_nvml::FakeNvml;
use crate::support::hardware::{self, gpu, quick, run};
use crate::support::polling::until;
use crate::support::watching::{block_on, stop, wait};
use podmeter::domain::model::{HardwareState, Released};
use podmeter::hardware::{HardwareHandle, HardwareSettings, ReleaseError};
use serde_json::json;

const LONG: Duration = Duration::from_secs(600);

/// A request to release waits for three seconds.
fn impatient() -> HardwareSettings {
    HardwareSettings { release_limit: Duration::from_secs(3), ..hardware::impatient() }
}

fn release(hardware: &HardwareHandle, duration: Duration) -> Result<Released, ReleaseError> {
    block_on(hardware.lease.release(duration))
}

fn reads(state: &HardwareState) -> bool {
    let has_events = state.collectors.get("events").is_some_and(|collector| collector.success);
    has_events && (0..2).all(|index| state.readings.get(&gpu(index)).is_some_and(|readings| readings.medium.is_some()))
}

/// Mapped into this process, as the kernel sees it.
fn is_loaded(fake: &FakeNvml) -> bool {
    fs::read_to_string("/proc/self/maps").unwrap().contains(fake.library_path().to_str().unwrap())
}

fn holds_device_nodes() -> bool {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    links.into_iter().any(|path| path.starts_with("/dev") && path.to_string_lossy().contains("nvidia"))
}

#[test]
fn a_released_driver_is_closed_unloaded_and_left_alone_until_the_release_ends() {
    let fake = FakeNvml::start(json!({"gpus": [{}, {}]}));
    let hardware = run(&fake, quick());
    let before = wait(&hardware, "readings", reads);
    assert!(is_loaded(&fake) && before.released.is_none());
    let released = release(&hardware, LONG).unwrap();

    let calls = fake.calls();
    assert_eq!((calls["nvmlInit_v2"], calls["nvmlShutdown"]), (1, 1));
    assert_eq!((calls["nvmlEventSetCreate"], calls["nvmlEventSetFree"]), (1, 1));
    assert!(calls["nvmlGpmSampleAlloc"] > 0);
    assert_eq!(calls["nvmlGpmSampleAlloc"], calls["nvmlGpmSampleFree"]);
    assert!(!is_loaded(&fake), "shut down, and still in memory");

    let state = wait(&hardware, "the release", |state| state.released == Some(released));
    assert_eq!(released.until.monotonic.since(released.since.monotonic), LONG);
    assert!(state.problem.as_deref().unwrap().contains("podmeter resume"), "{:?}", state.problem);
    assert_eq!(state.inventory, before.inventory, "who they are is still known");
    assert!(state.readings.values().all(|readings| readings.fast.is_none() && readings.medium.is_none()));
    assert!(state.collectors.values().all(|collector| !collector.success && !collector.stuck));

    // Again, for many times the longest pause between two tries.
    release(&hardware, Duration::from_secs(1)).unwrap();
    assert!(!is_loaded(&fake) && !holds_device_nodes());
    let state = wait(&hardware, "readings again", reads);
    assert_eq!((state.released, state.problem.as_deref()), (None, None));
    assert_eq!(state.sessions, before.sessions + 1, "opened once, at the end");
}

#[test]
fn a_release_ends_by_itself() {
    let fake = FakeNvml::start(json!({"gpus": [{}, {}]}));
    let hardware = run(&fake, quick());
    wait(&hardware, "readings", reads);
    // On a busy machine the shorter ones are over before the driver is closed.
    let released = (0..12).find_map(|doubled| release(&hardware, Duration::from_millis(300) * (1 << doubled)).ok());
    let released = released.unwrap();
    let state = wait(&hardware, "readings again", reads);
    assert_eq!(state.released, None);
    // Requested again while released: the time restarts, the beginning stays.
    let first = release(&hardware, LONG).unwrap();
    let second = release(&hardware, LONG * 2).unwrap();
    assert!(first.since > released.since && first.since == second.since && second.until > first.until);
    block_on(hardware.lease.resume()).unwrap();
    wait(&hardware, "readings after a resume", reads);
}

#[test]
fn a_stuck_call_is_named_and_the_driver_closes_when_it_returns() {
    let fake = FakeNvml::start(json!({"gpus": [{}, {}]}));
    let hardware = run(&fake, impatient());
    wait(&hardware, "readings", reads);
    fake.update(|state| state["gpus"][1]["hang"] = json!(["*"]));
    wait(&hardware, "a stuck call", |state| state.readings[&gpu(1)].stuck);
    let problem = release(&hardware, LONG).unwrap_err().to_string();
    assert!(problem.contains("3 s") && problem.contains(gpu(1).as_str()), "{problem}");
    assert!(!problem.contains(gpu(0).as_str()), "{problem}");
    let state = hardware.states.borrow().clone();
    assert!(state.released.is_some(), "no new call is made");
    fake.update(|state| state["gpus"][1]["hang"] = json!([]));
    until("the release", || release(&hardware, LONG).ok());
    assert!(!is_loaded(&fake));
    block_on(hardware.lease.resume()).unwrap();
    wait(&hardware, "readings again", reads);
}

#[test]
fn a_wait_for_events_that_hangs_is_named() {
    let fake = FakeNvml::start(json!({"gpus": [{}, {}]}));
    let hardware = run(&fake, impatient());
    wait(&hardware, "readings", reads);
    fake.update(|state| state["hang"] = json!(["nvmlEventSetWait_v2"]));
    wait(&hardware, "a stuck wait", |state| state.collectors["events"].stuck);
    let problem = release(&hardware, LONG).unwrap_err().to_string();
    assert!(problem.contains("the wait for events"), "{problem}");
}

#[test]
fn a_driver_that_opens_while_it_is_released_is_closed_unread() {
    let fake = FakeNvml::start(json!({"gpus": [{}, {}], "delay": {"nvmlInit_v2": 400}}));
    let hardware = run(&fake, quick());
    let released = release(&hardware, LONG).unwrap();
    let state = wait(&hardware, "the release", |state| state.released == Some(released));
    assert!(!is_loaded(&fake) && state.readings.values().all(|readings| readings.fast.is_none()));
    let calls = fake.calls();
    assert_eq!((state.sessions, calls["nvmlInit_v2"], calls["nvmlShutdown"]), (1, 1, 1));
}

#[test]
fn whoever_resumes_ends_the_wait_for_a_release() {
    let fake = FakeNvml::start(json!({"gpus": [{}, {}], "delay": {"nvmlInit_v2": 400}}));
    let hardware = run(&fake, quick());
    let lease = hardware.lease.clone();
    let (released, resumed) = block_on(async { tokio::join!(lease.release(LONG), lease.resume()) });
    assert_eq!((released, resumed), (Err(ReleaseError::Resumed), Ok(())));
    wait(&hardware, "readings", reads);
    stop(hardware);
    assert_eq!(block_on(lease.release(LONG)), Err(ReleaseError::Unavailable));
}
