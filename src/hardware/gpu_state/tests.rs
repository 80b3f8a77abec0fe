use super::*;
use crate::domain::model::LinkCounters;
use crate::domain::periods::LONGEST_SAMPLE_INTERVAL;
use crate::hardware::HardwareSettings;

const STALENESS: Staleness =
    Staleness { fast: Duration::from_secs(5), medium: Duration::from_secs(30), slow: Duration::from_secs(180) };

fn pass(busy: f64) -> Pass {
    Pass {
        integrals: Integrals { busy_seconds: Some(busy), ..Integrals::default() },
        fast: Some(Fast { utilization_ratio: Some(0.5), power_watts: None, ..Fast::default() }),
        ..Pass::default()
    }
}

fn counting(counter: u64, energy: f64) -> Pass {
    let integrals = Integrals { energy_joules: Some(energy), ..pass(0.5).integrals };
    Pass { energy_counter: Some(counter), counter_is_of_gpu: Some(true), integrals, ..pass(0.5) }
}

#[test]
fn a_counter_of_the_module_has_no_joules_for_a_gap() {
    for (before, after, joules) in
        [(Some(true), None, 18_300.0), (Some(false), None, 300.0), (None, None, 300.0), (None, Some(true), 18_300.0)]
    {
        let with = |counter_is_of_gpu, counter, energy| Pass { counter_is_of_gpu, ..counting(counter, energy) };
        let mut state = GpuState::default();
        state.add_pass(Monotonic::from_secs(1), true, with(before, 1_000, 0.0));
        state.add_pass(Monotonic::from_secs(2), false, with(before, 301_000, 300.0));
        state.withdraw();
        state.add_pass(Monotonic::from_secs(62), true, with(after, 18_301_000, 0.0));
        let totals = state.readings(Monotonic::from_secs(62), STALENESS).totals;
        assert_eq!(totals.energy_joules, Some(joules), "{before:?} {after:?}");
    }
}

#[test]
fn a_counter_missing_in_the_first_pass_still_spans_the_gap() {
    let mut state = GpuState::default();
    state.add_pass(Monotonic::from_secs(1), true, counting(1_000, 0.0));
    state.add_pass(Monotonic::from_secs(11), true, pass(0.5));
    state.add_pass(Monotonic::from_secs(12), false, counting(4_000, 0.0));
    state.add_pass(Monotonic::from_secs(13), false, counting(5_000, 1.0));
    let totals = state.readings(Monotonic::from_secs(13), STALENESS).totals;
    assert_eq!((totals.energy_joules, totals.gaps.energy_joules), (Some(4.0), 3.0));
}

#[test]
fn traffic_comes_from_counters_without_gpm() {
    let mut state = GpuState::default();
    let pass = |bytes: f64| {
        let mut slow = Slow::default();
        slow.pcie.transmitted_bytes = Some(bytes);
        let link =
            LinkCounters { transmitted_bytes: Some(bytes), received_bytes: Some(bytes), ..LinkCounters::default() };
        slow.nvlink.of_links = [(0, link)].into();
        let mut medium = Medium::default();
        medium.rates.traffic.nvlink_received = Some(7.0);
        Pass { slow: Some(slow), medium: Some(medium), ..Pass::default() }
    };
    let traffic = |state: &GpuState, at: u64| {
        state.readings(Monotonic::from_secs(at), STALENESS).medium.unwrap().value.rates.traffic
    };
    let link0 = |state: &GpuState, at: u64| {
        state.readings(Monotonic::from_secs(at), STALENESS).medium.unwrap().value.rates.link0_bytes_per_second
    };
    state.add_pass(Monotonic::from_secs(1), true, pass(1000.0));
    assert_eq!(traffic(&state, 1).pcie_transmitted, None, "one reading is no rate");
    state.add_pass(Monotonic::from_secs(61), false, pass(7000.0));
    let read = traffic(&state, 61);
    assert_eq!((read.pcie_transmitted, read.pcie_received), (Some(100.0), None));
    assert_eq!(read.nvlink_received, Some(7.0), "GPM takes precedence");
    assert_eq!(read.nvlink_transmitted, Some(100.0), "of the links");
    assert_eq!(link0(&state, 61), Some(200.0), "both ways");
    state.add_pass(Monotonic::from_secs(121), true, pass(13_000.0));
    assert_eq!(traffic(&state, 121).pcie_transmitted, Some(100.0), "across a new reader");
    state.add_pass(Monotonic::from_secs(181), false, pass(600.0));
    assert_eq!(traffic(&state, 181).pcie_transmitted, None, "the counter restarted or wrapped");
}

#[test]
fn bytes_read_after_a_hung_call_are_not_divided_by_the_time_since_its_start() {
    let mut state = GpuState::default();
    let pass = |bytes| {
        let mut slow = Slow::default();
        slow.pcie.transmitted_bytes = Some(bytes);
        Pass { slow: Some(slow), medium: Some(Medium::default()), ..Pass::default() }
    };
    let mut rates = vec![];
    for (second, is_late, bytes) in [(1, true, 5_900.0), (61, false, 6_100.0), (121, false, 12_100.0)] {
        let at = Monotonic::from_secs(second);
        if is_late {
            state.add_late_pass(at, pass(bytes));
        } else {
            state.add_pass(at, false, pass(bytes));
        }
        rates.push(state.readings(at, STALENESS).medium.unwrap().value.rates.traffic.pcie_transmitted);
    }
    assert_eq!(rates, [None, None, Some(100.0)]);
}

#[test]
fn an_instance_without_a_value_restarts_at_zero() {
    let mut state = GpuState::default();
    let pass = |instances: Option<Vec<(u32, f64)>>| Pass {
        integrals: Integrals { instance_busy_seconds: instances, ..Integrals::default() },
        ..pass(0.0)
    };
    let mut add_pass = |second, instances| {
        state.add_pass(Monotonic::from_secs(second), false, pass(instances));
        state.readings(Monotonic::from_secs(second), STALENESS).totals.instance_busy_seconds
    };
    add_pass(1, Some(vec![(3, 0.5), (4, 0.25)]));
    assert_eq!(add_pass(2, Some(vec![(3, 0.5)])), [(3, 1.0)].into());
    assert_eq!(add_pass(3, None), [(3, 1.0)].into(), "not read");
    assert_eq!(add_pass(4, Some(vec![(3, f64::NAN), (4, 0.25)])), [(3, 1.0), (4, 0.25)].into());
}

#[test]
fn a_clock_event_that_is_active_after_a_gap_has_not_become_active() {
    let mut state = GpuState::default();
    let mut starts = |second, fresh, is_active| {
        let medium = Medium { clock_events: [("idle", is_active)].into(), ..Medium::default() };
        state.add_pass(Monotonic::from_secs(second), fresh, Pass { medium: Some(medium), ..Pass::default() });
        let readings = state.readings(Monotonic::from_secs(second), STALENESS);
        readings.medium.unwrap().value.clock_event_starts["idle"]
    };
    let steps = [(1, true, false), (11, false, true), (21, false, false), (31, true, true)];
    assert_eq!(steps.map(|(second, fresh, is_active)| starts(second, fresh, is_active)), [0, 1, 1, 1]);
}

#[test]
fn a_process_is_kept_for_a_minute_after_it_was_active_or_listed_and_then_restarts_at_zero() {
    let mut state = GpuState::default();
    let mut totals = |second, worked: &[(u32, f64)], listed: &[u32]| {
        let integrals = Integrals { process_sm_seconds: Some(worked.to_vec()), ..Integrals::default() };
        let (fast, pids) = (Some(Fast::default()), Some(listed.iter().copied().collect()));
        state.add_pass(Monotonic::from_secs(second), false, Pass { integrals, fast, pids, ..Pass::default() });
        state.totals().process_sm_seconds.clone().unwrap()
    };
    totals(1, &[(7, 0.5), (8, 0.25), (9, f64::NAN), (10, 0.0)], &[]);
    assert_eq!(totals(2, &[(7, 0.5)], &[]), [(7, 1.0), (8, 0.25)].into());
    assert_eq!(totals(61, &[], &[]).len(), 2);
    assert_eq!(totals(62, &[], &[]), [(7, 1.0)].into());
    // It was idle for longer, but never absent: its total continues.
    assert_eq!(totals(70, &[(7, 0.125)], &[]), [(7, 1.125)].into());
    assert_eq!(totals(100, &[], &[7]), [(7, 1.125)].into());
    assert_eq!(totals(160, &[], &[]), [(7, 1.125)].into(), "it was listed a minute ago");
    assert_eq!(totals(161, &[], &[]), [].into());
    assert_eq!(totals(162, &[(7, 0.125)], &[]), [(7, 0.125)].into());
}

#[test]
fn stale_readings_are_absent_and_totals_stay() {
    let mut state = GpuState::default();
    state.add_pass(Monotonic::from_secs(1), true, pass(0.25));
    assert!(state.readings(Monotonic::from_secs(6), STALENESS).fast.is_some());
    let readings = state.readings(Monotonic::from_millis(6001), STALENESS);
    assert_eq!((readings.fast, readings.totals.busy_seconds), (None, Some(0.25)));
}

#[test]
fn utilization_is_the_mean_of_the_last_ten_seconds_read_and_begins_anew_after_a_gap() {
    let mut state = GpuState::default();
    // The driver's last sample is always 0.5.
    let mut now = |second, fresh, busy: f64| {
        let mut medium = Medium::default();
        medium.rates.memory_utilization_ratio = Some(0.5);
        medium.rates.engine_utilization_ratios = [("encoder", 0.5)].into();
        let fast = Fast { instance_utilization_ratios: [(7, 0.5)].into(), ..pass(busy).fast.unwrap() };
        let integrals = Integrals {
            memory_busy_seconds: Some(busy / 2.0),
            engine_busy_seconds: vec![("encoder", busy / 4.0)],
            instance_busy_seconds: Some(vec![(7, busy / 8.0)]),
            ..pass(busy).integrals
        };
        let at = Monotonic::from_secs(second);
        state.add_pass(at, fresh, Pass { integrals, fast: Some(fast), medium: Some(medium), ..Pass::default() });
        let readings = state.readings(at, STALENESS);
        let (fast, rates) = (readings.fast.unwrap().value, readings.medium.unwrap().value.rates);
        [
            fast.utilization_ratio.unwrap(),
            rates.memory_utilization_ratio.unwrap(),
            rates.engine_utilization_ratios["encoder"],
            fast.instance_utilization_ratios[&7],
        ]
    };
    assert_eq!(now(1, true, 0.0), [0.5; 4], "no time is read yet");
    assert_eq!(now(5, false, 4.0), [1.0, 0.5, 0.25, 0.125]);
    assert_eq!(now(13, false, 0.0), [0.2, 0.1, 0.05, 0.025], "of the first four seconds two");
    assert_eq!(now(43, true, 30.0), [0.5; 4], "a new reader");
    assert_eq!(now(44, false, 0.0), [0.0; 4]);
}

#[test]
fn samples_that_come_in_steps_make_no_second_of_a_busy_gpu_idle_or_longer() {
    let mut state = GpuState::default();
    let mut busy = |milliseconds, fresh, seconds| {
        let at = Monotonic::from_millis(milliseconds);
        state.add_pass(at, fresh, pass(seconds));
        let readings = state.readings(at, STALENESS);
        let rounded = |value: f64| (value * 1e6).round() / 1e6;
        (
            rounded(readings.totals.busy_seconds.unwrap()),
            rounded(readings.fast.unwrap().value.utilization_ratio.unwrap()),
        )
    };
    busy(1000, true, 0.0);
    assert_eq!(busy(2000, false, 0.8), (0.8, 0.8), "the last sample has not ended");
    assert_eq!(busy(3000, false, 1.2), (1.8, 0.9), "no more than the second");
    assert_eq!(busy(4000, false, 0.8), (2.8, 0.933333), "with the rest of the one before");
    assert_eq!(busy(5000, false, 1.2), (3.8, 0.95));
    assert_eq!(busy(65_000, true, 0.0), (4.0, 0.5), "what was read is not lost in a gap");
    assert_eq!(busy(66_000, false, 0.0), (4.0, 0.0));
}

/// The published bytes after each pass. A pass is its second, whether the reader is new, GPM's rate and the driver's
/// counter, equal in both directions.
fn pcie_bytes(passes: &[(u64, bool, Option<f64>, Option<f64>)]) -> Vec<Option<f64>> {
    let mut state = GpuState::default();
    let mut read = |&(second, fresh, rate, counter): &(u64, bool, Option<f64>, Option<f64>)| {
        let (mut medium, mut slow) = (Medium::default(), Slow::default());
        (medium.rates.traffic.pcie_transmitted, medium.rates.traffic.pcie_received) = (rate, rate);
        (slow.pcie.transmitted_bytes, slow.pcie.received_bytes) = (counter, counter);
        let at = Monotonic::from_secs(second);
        state.add_pass(at, fresh, Pass { medium: Some(medium), slow: Some(slow), ..Pass::default() });
        let pcie = state.readings(at, STALENESS).slow.unwrap().value.pcie;
        assert_eq!(pcie.transmitted_bytes, pcie.received_bytes);
        pcie.transmitted_bytes
    };
    passes.iter().map(&mut read).collect()
}

#[test]
fn bytes_over_pcie_are_counted_by_gpm_where_the_driver_has_no_counters() {
    let passes = [
        (1, true, None, None),
        (11, false, Some(100.0), None),
        (31, false, Some(10.0), None),
        (41, false, None, None),
        (91, true, None, None),
        (101, false, Some(1.0), None),
        (111, false, Some(1.0), Some(9e12)),
        (121, false, Some(1.0), Some(9e12)),
    ];
    let expected =
        [0.0, 1e3, 1.2e3, 1.2e3, 1.2e3, 1.21e3, 1.22e3, 1.23e3].map(|bytes| Some(bytes).filter(|bytes| *bytes > 0.0));
    assert_eq!(pcie_bytes(&passes), expected, "a gap adds nothing, nor does a counter that appears later");
}

#[test]
fn bytes_over_pcie_that_the_driver_counts_are_not_counted_again() {
    let passes = [(1, true, None, Some(9e12)), (11, false, Some(100.0), Some(9.1e12)), (21, false, Some(100.0), None)];
    assert_eq!(pcie_bytes(&passes), [Some(9e12), Some(9.1e12), None]);
}

#[test]
fn bytes_over_pcie_of_a_hung_call_are_not_counted() {
    let mut state = GpuState::default();
    let mut counted = vec![];
    for (second, is_late) in [(1, false), (11, false), (21, true), (91, false), (101, false)] {
        let mut medium = Medium::default();
        medium.rates.traffic.pcie_transmitted = (second > 1).then_some(1.0);
        let (at, pass) = (Monotonic::from_secs(second), Pass::default());
        let pass = Pass { medium: Some(medium), slow: Some(Slow::default()), ..pass };
        if is_late {
            state.withdraw();
            state.add_late_pass(at, pass);
        } else {
            state.add_pass(at, false, pass);
        }
        counted.push(state.readings(at, STALENESS).slow.unwrap().value.pcie.transmitted_bytes);
    }
    assert_eq!(counted, [None, Some(10.0), Some(10.0), Some(10.0), Some(20.0)]);
}

#[test]
fn a_process_is_kept_longer_than_a_list_that_has_it_is_published() {
    let readings =
        HardwareSettings { sample_interval: LONGEST_SAMPLE_INTERVAL, ..HardwareSettings::default() }.staleness();
    assert!(readings.fast.max(readings.medium) < PROCESS_RETENTION);
}
