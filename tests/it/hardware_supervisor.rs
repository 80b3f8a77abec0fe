//! The hardware module with a scripted driver: a failure affects only the part that failed.

use std::time::Duration;

use crate::support::hardware::{gpu, has_fast, quick};
use crate::support::polling::until_true;
use crate::support::scripted_driver::Script;
use crate::support::watching::{stop, wait};
use podmeter::clock::Clock;
use podmeter::domain::model::{HardwareSource, HardwareState, Monotonic, NodeDevices};
use podmeter::hardware::{Due, HardwareHandle, HardwareSettings, PassStatus, Tier, XidSender, start};

/// Everything a hundred times faster than on a node.
fn fastest() -> HardwareSettings {
    let interval = Duration::from_millis(60);
    let sample_interval = Duration::from_millis(20);
    HardwareSettings { sample_interval, medium_interval: interval, slow_interval: interval, ..quick() }
}

fn run(script: &Script) -> HardwareHandle {
    run_with(script, fastest())
}

fn run_with(script: &Script, settings: HardwareSettings) -> HardwareHandle {
    let (xids, []) = XidSender::new();
    start(Box::new(script.clone()), settings, xids, Clock::start()).unwrap()
}

/// For tests of calls that hang.
fn run_impatiently(script: &Script) -> HardwareHandle {
    run_with(script, HardwareSettings { watchdog: Duration::from_secs(1), ..fastest() })
}

fn busy(state: &HardwareState, number: usize) -> f64 {
    state.readings[&gpu(number)].totals.busy_seconds.unwrap()
}

#[test]
fn every_tier_is_read_at_once_health_first() {
    let script = Script::new(3);
    let hardware = run(&script);
    let state = wait(&hardware, "readings of all", |state| {
        (0..3).all(|number| state.readings.get(&gpu(number)).is_some_and(|readings| readings.medium.is_some()))
    });
    assert!(state.readings.values().all(|readings| readings.fast.is_some() && readings.slow.is_some()));
    for number in 0..3 {
        let tiers = script.set(|acts| acts.tiers.clone());
        let first: Vec<Due> =
            tiers.into_iter().filter(|(uuid, _)| *uuid == gpu(number)).map(|(_, due)| due).take(3).collect();
        assert_eq!(first, [Tier::Slow, Tier::Fast, Tier::Medium].map(|tier| [tier].into()));
    }
    assert_eq!((state.source, state.problem.as_deref()), (HardwareSource::Simulated, None));
    assert_eq!(state.node_devices, Some(NodeDevices { expected: 8, ..NodeDevices::default() }));
    let tiers: Vec<_> = state.collectors.iter().map(|(tier, collector)| (*tier, collector.success)).collect();
    assert_eq!(tiers, [("fast", true), ("inventory", true), ("medium", true), ("slow", true)]);
}

#[test]
fn a_driver_loaded_later_is_found_and_the_wait_is_explained() {
    let script = Script::new(1);
    script.set(|acts| acts.absent = true);
    let hardware = run(&script);
    let state = wait(&hardware, "a problem", |state| state.problem.is_some());
    assert_eq!(state.problem.as_deref(), Some("there is no driver; install one"));
    assert!(state.readings.is_empty() && state.errors["open"]["driver_not_loaded"] >= 1);
    script.set(|acts| acts.absent = false);
    let state = wait(&hardware, "readings", |state| has_fast(state, 0));
    assert_eq!(state.problem, None);
}

#[test]
fn a_library_that_hangs_while_it_is_loaded_is_reported_and_fails_the_liveness_check_in_the_end() {
    let script = Script::new(1);
    script.set(|acts| acts.loading_hangs = true);
    let hardware = run_impatiently(&script);
    let reports =
        |state: &HardwareState| state.problem.as_deref().is_some_and(|text| text.contains("loading the driver"));
    wait(&hardware, "the problem", reports);
    let after = |seconds| hardware.loading.check(Monotonic::from_secs(seconds));
    assert_eq!(after(60), Ok(()));
    assert!(after(3600).unwrap_err().contains("the driver library has not been loaded for 3"));
    script.set(|acts| acts.loading_hangs = false);
    wait(&hardware, "readings", |state| has_fast(state, 0) && state.problem.is_none());
    assert_eq!(after(3600), Ok(()));
}

#[test]
fn a_stuck_gpu_is_marked_and_the_others_continue() {
    let script = Script::new(2);
    let hardware = run_impatiently(&script);
    wait(&hardware, "readings of all", |state| (0..2).all(|number| has_fast(state, number)));
    script.set(|acts| acts.stuck = Some(gpu(0)));
    let state = wait(&hardware, "the mark", |state| state.readings[&gpu(0)].stuck && has_fast(state, 1));
    assert!(!has_fast(&state, 0));
    assert!(state.readings[&gpu(0)].medium.is_none() && state.readings[&gpu(0)].slow.is_none());
    assert!(state.collectors.values().any(|collector| collector.stuck));
    let (reads, before) = (script.set(|acts| acts.reads[&gpu(0)]), busy(&state, 1));
    wait(&hardware, "the other going on", |state| busy(state, 1) > before + 0.2);
    assert_eq!(script.set(|acts| acts.reads[&gpu(0)]), reads, "a second call was piled onto the stuck GPU");
    script.set(|acts| acts.stuck = None);
    let state = wait(&hardware, "the return", |state| has_fast(state, 0));
    assert!(!state.readings[&gpu(0)].stuck && state.collectors.values().all(|collector| !collector.stuck));
    // The same reader continues; it has integrated over the hung call, and the totals have not.
    let state = wait(&hardware, "the end of the gap", |state| state.readings[&gpu(0)].totals.gaps.seconds > 0.0);
    let totals = &state.readings[&gpu(0)].totals;
    assert!(totals.gaps.seconds >= 0.5 && totals.gaps.seconds <= totals.uncovered_seconds, "{totals:?}");
    let known = totals.busy_seconds.unwrap() + totals.uncovered_seconds;
    assert!(known <= totals.complete_until.as_duration().as_secs_f64() + 1e-6, "{totals:?}");
}

#[test]
fn a_gpu_that_answers_after_the_first_round_is_not_kept_for_the_next() {
    let script = Script::new(2);
    script.set(|acts| acts.stuck = Some(gpu(1)));
    let minutes = Duration::from_secs(600);
    let settings =
        HardwareSettings { sample_interval: minutes, medium_interval: minutes, watchdog: minutes, ..quick() };
    let hardware = run_with(&script, settings);
    let state = wait(&hardware, "the first round", |state| has_fast(state, 0));
    let readings = &state.readings[&gpu(1)];
    assert!(readings.pass_began.is_some() && !readings.stuck && readings.fast.is_none());
    script.set(|acts| acts.stuck = None);
    let state = wait(&hardware, "the straggler", |state| has_fast(state, 1));
    assert!(state.readings[&gpu(1)].pass_began.is_none());
}

#[test]
fn only_a_driver_that_was_unloaded_counts_as_reloaded() {
    let script = Script::new(2);
    let hardware = run(&script);
    let state = wait(&hardware, "readings", |state| has_fast(state, 1));
    assert_eq!(state.driver_loads, 1);
    script.set(|acts| acts.statuses = [(gpu(1), PassStatus::SessionOver)].into());
    wait(&hardware, "the end", |state| state.problem.is_some());
    script.set(|acts| acts.statuses.clear());
    let state = wait(&hardware, "readings again", |state| has_fast(state, 1) && state.problem.is_none());
    assert!(state.sessions >= 2);
    assert_eq!(state.driver_loads, 1);
    script.set(|acts| {
        acts.absent = true;
        acts.statuses = [(gpu(1), PassStatus::SessionOver)].into();
    });
    wait(&hardware, "a refusal", |state| state.errors.contains_key("open"));
    script.set(|acts| {
        acts.absent = false;
        acts.statuses.clear();
    });
    let state = wait(&hardware, "readings again", |state| has_fast(state, 1));
    assert_eq!(state.driver_loads, 2);
}

#[test]
fn a_session_that_is_over_is_opened_again_and_no_counter_falls() {
    let script = Script::new(2);
    script.set(|acts| acts.corrected = 7);
    let hardware = run(&script);
    let ecc =
        |state: &HardwareState| state.readings[&gpu(0)].slow.as_ref().and_then(|slow| slow.value.ecc[0].corrected);
    let state = wait(&hardware, "readings", |state| has_fast(state, 0) && busy(state, 0) > 0.1);
    assert_eq!(ecc(&state), Some(7));
    let before = busy(&state, 0);
    script.set(|acts| {
        acts.corrected = 2;
        acts.statuses.insert(gpu(1), PassStatus::SessionOver);
    });
    let state = wait(&hardware, "the end", |state| state.problem.is_some());
    assert!(!has_fast(&state, 0) && !state.collectors["fast"].success);
    assert!(busy(&state, 0) >= before);
    script.set(|acts| acts.statuses.clear());
    let state = wait(&hardware, "readings again", |state| has_fast(state, 0));
    assert_eq!((ecc(&state), state.problem.as_deref()), (Some(9), None));
    let (sessions, open) = script.set(|acts| (acts.sessions, acts.open_sessions));
    assert!(sessions >= 2 && open == 1, "{sessions} sessions, {open} open");
    assert!(state.inventory.generation >= 2);
}

#[test]
fn a_call_that_returns_late_does_not_end_the_present_session() {
    let script = Script::new(2);
    let hardware = run_impatiently(&script);
    wait(&hardware, "readings of all", |state| (0..2).all(|number| has_fast(state, number)));
    script.set(|acts| acts.stuck = Some(gpu(0)));
    wait(&hardware, "the mark", |state| state.readings[&gpu(0)].stuck);
    script.set(|acts| acts.statuses = [(gpu(1), PassStatus::SessionOver)].into());
    wait(&hardware, "the end", |state| state.problem.is_some());
    script.set(|acts| acts.statuses.clear());
    let state = wait(&hardware, "the other GPU in a new session", |state| has_fast(state, 1));
    assert!(state.readings[&gpu(0)].stuck);
    let sessions = script.set(|acts| {
        acts.late = Some(PassStatus::SessionOver);
        acts.stuck = None;
        acts.sessions
    });
    wait(&hardware, "the return", |state| has_fast(state, 0));
    assert_eq!(script.set(|acts| (acts.sessions, acts.open_sessions)), (sessions, 1));
}

#[test]
fn all_gpus_lost_means_a_new_session() {
    let script = Script::new(2);
    let hardware = run(&script);
    wait(&hardware, "readings", |state| has_fast(state, 0));
    script.set(|acts| acts.statuses = [(gpu(0), PassStatus::Lost), (gpu(1), PassStatus::Lost)].into());
    wait(&hardware, "the explanation", |state| state.problem.as_deref().is_some_and(|text| text.contains("lost")));
    script.set(|acts| acts.statuses.clear());
    let state = wait(&hardware, "readings again", |state| (0..2).all(|number| has_fast(state, number)));
    assert!(script.set(|acts| acts.sessions) >= 2);
    assert!(state.inventory.gpus.values().all(|gpu| gpu.present));
}

#[test]
fn a_gpu_that_is_added_or_removed_changes_the_inventory() {
    let script = Script::new(1);
    let hardware = run(&script);
    let state = wait(&hardware, "readings", |state| has_fast(state, 0));
    let generation = state.inventory.generation;
    script.set(|acts| {
        acts.gpus = vec![gpu(0), gpu(1)];
        acts.layout_changed = true;
    });
    let state = wait(&hardware, "the new GPU", |state| has_fast(state, 1));
    assert!(state.inventory.generation > generation);
    script.set(|acts| {
        acts.gpus = vec![gpu(1)];
        acts.statuses.insert(gpu(0), PassStatus::Unlisted);
        acts.layout_changed = true;
    });
    let state = wait(&hardware, "the removal", |state| {
        state.readings.get(&gpu(0)).is_some_and(|readings| readings.not_enumerated)
    });
    assert!(!state.inventory.gpus[&gpu(0)].present);
    assert_eq!(state.inventory.visible(), 1);
}

#[test]
fn a_gpu_that_leaves_the_bus_is_gone_also_where_the_driver_lists_none() {
    let script = Script::new(0);
    let hardware = run(&script);
    wait(&hardware, "the GPUs on the bus", |state| {
        state.problem.as_deref().is_some_and(|text| text.contains("8 GPUs"))
    });
    script.set(|acts| acts.expected = 0);
    let state = wait(&hardware, "the empty bus", |state| state.problem.is_none());
    assert_eq!(state.node_devices, Some(NodeDevices::default()));
}

#[test]
fn a_driver_that_no_longer_lists_its_gpus_is_opened_again() {
    let script = Script::new(1);
    let hardware = run(&script);
    let before = wait(&hardware, "readings", |state| has_fast(state, 0)).sessions;
    script.set(|acts| (acts.layout_changed, acts.listing_fails) = (true, true));
    let state = wait(&hardware, "the next session", |state| state.sessions > before && has_fast(state, 0));
    assert!(state.errors.contains_key("list"));
}

#[test]
fn a_session_over_while_the_driver_thread_is_stuck_is_closed_when_its_call_returns() {
    let script = Script::new(1);
    let hardware = run_impatiently(&script);
    wait(&hardware, "readings", |state| has_fast(state, 0));
    script.set(|acts| acts.inspection_hangs = true);
    until_true("the call", || script.set(|acts| acts.is_inspecting && acts.inspection_hangs));
    script.set(|acts| acts.statuses.insert(gpu(0), PassStatus::SessionOver));
    let reports =
        |state: &HardwareState| state.problem.as_deref().is_some_and(|text| text.contains("has not come back"));
    wait(&hardware, "the problem", reports);
    assert_eq!(script.set(|acts| (acts.sessions, acts.open_sessions)), (1, 1));
    script.set(|acts| {
        acts.inspection_hangs = false;
        acts.statuses.clear();
    });
    wait(&hardware, "the next session", |state| has_fast(state, 0) && state.problem.is_none());
    assert_eq!(script.set(|acts| (acts.sessions, acts.open_sessions)), (2, 1));
}

#[test]
fn a_session_that_is_over_after_the_driver_thread_is_stuck_reports_that() {
    let script = Script::new(2);
    let hardware = run_impatiently(&script);
    wait(&hardware, "readings", |state| has_fast(state, 0) && has_fast(state, 1));
    script.set(|acts| acts.inspection_hangs = true);
    until_true("the call", || script.set(|acts| acts.is_inspecting));
    // A later call that is overdue: the inspection is, too.
    script.set(|acts| acts.stuck = Some(gpu(1)));
    wait(&hardware, "the mark", |state| state.readings[&gpu(1)].stuck);
    script.set(|acts| {
        acts.stuck = None;
        acts.statuses.insert(gpu(0), PassStatus::SessionOver);
    });
    wait(&hardware, "the problem", |state| {
        state.problem.as_deref().is_some_and(|text| text.contains("the whole node has not come back"))
    });
    script.set(|acts| acts.inspection_hangs = false);
}

#[test]
fn stopping_closes_the_driver_and_waits_for_no_stuck_call() {
    let script = Script::new(2);
    let hardware = run(&script);
    wait(&hardware, "readings", |state| has_fast(state, 0));
    stop(hardware);
    assert_eq!(script.set(|acts| acts.open_sessions), 0);

    let hardware = run_impatiently(&script);
    wait(&hardware, "readings", |state| has_fast(state, 0));
    script.set(|acts| acts.stuck = Some(gpu(0)));
    wait(&hardware, "the mark", |state| state.readings[&gpu(0)].stuck);
    stop(hardware);
    script.set(|acts| acts.stuck = None);
}

#[test]
fn the_health_of_every_gpu_comes_before_the_use_of_one_unless_a_call_hangs() {
    let script = Script::new(3);
    script.set(|acts| acts.stuck = Some(gpu(1)));
    let hardware = run(&script);
    wait(&hardware, "the others", |state| has_fast(state, 0) && has_fast(state, 2));
    assert!(script.set(|acts| acts.tiers.iter().all(|(uuid, _)| *uuid != gpu(1))), "it is not waited for");
    script.set(|acts| acts.stuck = None);
    wait(&hardware, "all", |state| (0..3).all(|number| has_fast(state, number)));
    let (script, minutes) = (Script::new(3), Duration::from_secs(600));
    let settings = HardwareSettings { sample_interval: minutes, watched_interval: minutes, ..quick() };
    let hardware = run_with(&script, settings);
    wait(&hardware, "all", |state| (0..3).all(|number| has_fast(state, number)));
    let tiers: Vec<Due> = script.set(|acts| acts.tiers.iter().map(|(_, due)| due.clone()).collect());
    assert_eq!(tiers[..3], [Tier::Slow; 3].map(|tier| [tier].into()), "{tiers:?}");
}
