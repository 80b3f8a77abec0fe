use super::super::*;
use super::{GPU, OneDeviceLedger, moment, monotonic};
use crate::domain::model::{Account, Cost, DeviceTotals, ReadingGaps, SharingForm, UnattributedReason};
use crate::test_data::holdings;

impl OneDeviceLedger {
    /// The pod `a` has the device to itself from 0 on, when its totals are 0.
    fn held(energy: Option<f64>) -> Self {
        let mut case = Self::new(5);
        case.read(0, Some(0.0), energy);
        case.relate(0, exclusive(&["a"]));
        case
    }

    fn read(&mut self, milliseconds: u64, busy: Option<f64>, energy: Option<f64>) -> Vec<Account> {
        self.set_reading(milliseconds, busy, energy, None);
        self.tick(milliseconds)
    }

    fn relate(&mut self, milliseconds: u64, holdings: Holdings) -> Vec<Account> {
        self.holdings = holdings;
        self.tick(milliseconds)
    }

    /// Reads a gap since the last reading, with so many joules in total.
    fn end_gap(&mut self, milliseconds: u64, energy: f64) -> Vec<Account> {
        let until = monotonic(milliseconds);
        let last = self.readings[&GPU.into()].totals.clone();
        let seconds = last.gaps.seconds + until.since(last.complete_until).as_secs_f64();
        let energy_joules = last.gaps.energy_joules + energy - last.energy_joules.unwrap();
        let gaps = ReadingGaps { seconds, energy_joules, until };
        self.totals = DeviceTotals { uncovered_seconds: seconds, gaps, ..DeviceTotals::default() };
        self.read(milliseconds, Some(0.0), Some(energy))
    }

    fn tick(&mut self, milliseconds: u64) -> Vec<Account> {
        self.observe(milliseconds).accounts
    }
}

fn exclusive(pods: &[&str]) -> Holdings {
    holdings(pods, GPU, SharingForm::Exclusive, 1.0)
}

fn energies(accounts: &[Account]) -> Vec<(&str, f64)> {
    accounts.iter().map(|one| (&*one.container.pod, one.counters.energy_joules.unwrap())).collect()
}

/// A pod with its GPU time held, busy time, idle time and energy.
type AccountRow = (String, f64, Option<f64>, Option<f64>, Option<f64>);

fn rows(accounts: &[Account]) -> Vec<AccountRow> {
    // The values are rounded to the microsecond, so that floating point does not matter.
    let round = |value: f64| (value * 1e6).round() / 1e6;
    let row = |account: &Account| {
        let parts = [account.counters.busy_seconds, account.counters.idle_seconds, account.counters.energy_joules]
            .map(|part| part.map(round));
        (
            account.container.pod.to_string(),
            round(account.counters.allocated_seconds.unwrap_or_default()),
            parts[0],
            parts[1],
            parts[2],
        )
    };
    accounts.iter().map(row).collect()
}

/// Two seconds half busy, then 45 s in which the driver is released, then a second half busy again: the pod holds the
/// device alone throughout.
#[test]
fn a_release_of_the_driver_is_not_idle_time() {
    let notice = |accounts: &[Account], is_late: bool| {
        let idle = accounts[0].counters.idle_seconds.unwrap();
        assert!(idle <= 1.5 + 1e-9, "{idle} s idle");
        if is_late {
            assert_eq!(accounts[0].last_active, None, "not known to be idle");
            assert!(accounts[0].counters.uncovered_seconds.unwrap() > 4.0);
        }
    };
    let mut case = OneDeviceLedger::held(Some(0.0));
    case.read(2000, Some(1.0), Some(600.0));
    (3..47).for_each(|second| notice(&case.tick(second * 1000), second > 7));
    let gaps = ReadingGaps { seconds: 45.0, energy_joules: 13_500.0, until: monotonic(47_000) };
    case.totals = DeviceTotals { uncovered_seconds: 45.0, gaps, ..DeviceTotals::default() };
    case.read(47_000, Some(1.0), Some(14_100.0));
    notice(&case.read(48_000, Some(1.5), Some(14_400.0)), false);
    let accounts = case.tick(48_000);
    assert_eq!(rows(&accounts), [("a".into(), 48.0, Some(1.5), Some(1.5), Some(14_400.0))]);
    assert_eq!(accounts[0].counters.uncovered_seconds, Some(45.0));
    assert_eq!(case.ledger.devices[&GpuUuid::from(GPU)].idle_power.watts(), None, "nothing is learned from it");
}

#[test]
fn energy_of_a_gap_reported_later_is_divided_among_its_holders() {
    let mut case = OneDeviceLedger::held(Some(0.0));
    case.relate(15_000, exclusive(&["b"]));
    case.end_gap(45_000, 0.0);
    case.totals.gaps.energy_joules = 13_500.0;
    let accounts = case.read(46_000, Some(0.0), Some(13_570.0));
    assert_eq!(energies(&accounts), [("a", 4500.0), ("b", 9070.0)]);
    assert_eq!(case.unattributed[0].energy_joules[&UnattributedReason::Unknown], 0.0);
    assert_eq!(case.ledger.devices[&GpuUuid::from(GPU)].idle_power.watts(), Some(70.0));
    case.end_gap(50_000, 13_570.0);
    case.totals.gaps.energy_joules = 14_000.0;
    let accounts = case.read(51_000, Some(0.0), Some(14_070.0));
    assert_eq!(energies(&accounts), [("a", 4500.0), ("b", 9570.0)], "that of a later gap");
}

#[test]
fn energy_of_a_gap_that_is_not_known_is_absent() {
    let mut case = OneDeviceLedger::held(Some(100.0));
    assert_eq!(case.end_gap(45_000, 100.0)[0].counters.energy_joules, None);
}

#[test]
fn idle_power_is_not_learned_where_the_energy_counter_was_not_read() {
    let mut case = OneDeviceLedger::held(Some(0.0));
    let mut idle_watts = |second: u64, energy| {
        case.read(second * 1000, Some(0.0), Some(energy));
        case.ledger.devices[&GpuUuid::from(GPU)].idle_power.watts()
    };
    assert_eq!(idle_watts(2, 0.0), None, "without a new reading of the counter");
    assert_eq!(idle_watts(3, 210.0), None, "with the energy of three seconds");
    assert_eq!(idle_watts(5, 350.0), Some(70.0));
}

/// The pod holds the device for ten seconds of a gap. The reading after the gap comes when its series are due to be removed.
#[test]
fn energy_of_a_gap_that_comes_after_the_end_of_a_holding_is_read_by_two_scrapes() {
    let mut case = OneDeviceLedger::held(Some(0.0));
    case.relate(10_000, exclusive(&[]));
    case.tick(16_000);
    case.tick(200_000);
    case.retention.scrapes = 2;
    let accounts = case.end_gap(400_000, 40_000.0);
    assert_eq!(energies(&accounts), [("a", 1000.0)]);
    case.retention.scrapes = 3;
    assert_eq!(energies(&case.tick(401_000)), [("a", 1000.0)], "one scrape has read it");
    case.retention.scrapes = 4;
    assert_eq!(case.tick(402_000), []);
}

#[test]
fn energy_of_a_gap_of_a_holding_whose_series_are_removed_is_that_of_an_ended_one() {
    let mut case = OneDeviceLedger::held(Some(0.0));
    case.relate(10_000, exclusive(&[]));
    case.tick(16_000);
    case.retention.scrapes = 2;
    assert_eq!(case.tick(399_000), []);
    case.end_gap(400_000, 40_000.0);
    let unattributed = &case.unattributed[0].energy_joules;
    assert_eq!(unattributed[&UnattributedReason::Ended], 1000.0);
    assert_eq!(unattributed[&UnattributedReason::Unknown], 39_000.0, "held by no container");
}

#[test]
fn time_after_the_busy_seconds_have_ended_is_not_idle_time() {
    let mut case = OneDeviceLedger::held(Some(0.0));
    case.read(1000, Some(0.5), Some(100.0));
    let accounts = case.read(5000, None, Some(500.0));
    assert_eq!(rows(&accounts), [("a".into(), 5.0, Some(0.5), Some(0.5), Some(500.0))]);
    assert_eq!((accounts[0].counters.uncovered_seconds, accounts[0].last_active), (Some(4.0), None));
    assert_eq!(case.ledger.devices[&GpuUuid::from(GPU)].idle_power.watts(), None);
    let accounts = case.read(6000, Some(1.0), Some(600.0));
    assert_eq!(rows(&accounts), [("a".into(), 6.0, Some(1.0), Some(1.0), Some(600.0))]);
}

#[test]
fn a_driver_total_that_restarts_decreases_no_counter() {
    let mut case = OneDeviceLedger::new(5);
    case.read(0, Some(100.0), Some(1000.0));
    case.relate(0, exclusive(&["a"]));
    case.read(1000, Some(100.5), Some(1100.0));
    let accounts = case.read(2000, Some(0.0), Some(0.0));
    assert_eq!(rows(&accounts), [("a".into(), 2.0, Some(0.5), Some(1.5), Some(100.0))]);
}

#[test]
fn last_active_is_the_start_of_holding_until_something_runs() {
    let mut case = OneDeviceLedger::held(None);
    let idle = case.read(1000, Some(0.0), None);
    assert_eq!(idle[0].last_active, Some(moment(0).unix));
    let active = case.read(2000, Some(0.1), None);
    assert_eq!(active[0].last_active, Some(moment(2000).unix));
}

#[test]
fn ended_accounts_stay_for_the_retention_and_until_two_pages_had_them() {
    let mut case = OneDeviceLedger::held(None);
    case.relate(1000, exclusive(&[]));
    case.read(2000, Some(1.0), None);
    let after = |case: &mut OneDeviceLedger, seconds: u64| case.read(seconds * 1000, Some(1.0), None).len();
    assert_eq!(after(&mut case, 300), 1, "within the retention");
    assert_eq!(after(&mut case, 400), 1, "nobody has read it");
    case.retention.scrapes = 1;
    assert_eq!(after(&mut case, 401), 1, "one page had it");
    case.retention.scrapes = 2;
    assert_eq!(after(&mut case, 402), 0);
}

#[test]
fn a_pod_that_returns_under_its_name_continues_counting() {
    let mut case = OneDeviceLedger::held(None);
    case.relate(1000, exclusive(&[]));
    case.relate(2000, exclusive(&["a"]));
    let accounts = case.read(3000, Some(3.0), None);
    assert_eq!(rows(&accounts)[0].1, 2.0);
    assert_eq!(accounts[0].ended, None);
}

#[test]
fn an_unread_page_does_not_grow_without_limit() {
    let mut case = OneDeviceLedger::new(5);
    case.read(0, Some(0.0), None);
    for pod in 0..ENDED_LIMIT as u64 + 50 {
        case.relate(pod * 10, exclusive(&[&format!("pod-{pod}")]));
    }
    assert!(case.tick(60_000).len() <= ENDED_LIMIT + 1);
}

#[test]
fn a_pod_under_an_old_name_has_not_been_idle_since_before_it_was_there() {
    let mut case = OneDeviceLedger::held(None);
    case.read(1000, Some(0.5), None);
    case.relate(2000, exclusive(&[]));
    case.read(60_000, Some(0.5), None);
    case.relate(60_000, exclusive(&["a"]));
    let accounts = case.read(61_000, Some(0.5), None);
    assert_eq!(accounts[0].last_active, Some(moment(60_000).unix));
}

#[test]
fn slow_sampling_is_not_lateness() {
    let mut case = OneDeviceLedger::new(5);
    case.ledger = Ledger::new(Duration::from_secs(30));
    case.read(0, Some(0.0), None);
    case.relate(0, exclusive(&["a"]));
    for second in 1..10 {
        case.tick(second * 1000);
    }
    assert_eq!(rows(&case.read(10_000, Some(7.0), None)), [("a".into(), 10.0, Some(7.0), Some(3.0), None)]);
}

#[test]
fn time_of_an_unknown_fraction_is_held_and_busy_and_costs_nothing() {
    let mut case = OneDeviceLedger::new(5);
    case.read(0, Some(0.0), None);
    let of_a_quarter = holdings(&["a"], GPU, SharingForm::TimeSlicing, 0.25);
    let mut unknown = of_a_quarter.clone();
    unknown.by_key.values_mut().for_each(|holding| holding.fraction = None);
    case.relate(0, unknown);
    let counters = case.read(1000, Some(1.0), None)[0].counters;
    assert_eq!(
        (counters.held_seconds, counters.allocated_seconds, counters.busy_seconds),
        (Some(1.0), None, Some(1.0))
    );
    case.relate(1000, of_a_quarter);
    let counters = case.read(2000, Some(1.125), None)[0].counters;
    assert_eq!((counters.held_seconds, counters.busy_seconds), (Some(2.0), Some(1.125)));
    let half = Some(0.125);
    assert_eq!(
        counters.cost(3600.0),
        Cost { cost: Some(0.25), used_cost: half, idle_cost: half, uncovered_cost: Some(0.0) }
    );
}

#[test]
fn a_gpu_that_has_not_answered_yet_counts_as_not_read() {
    let mut case = OneDeviceLedger::new(5);
    let lost = DeviceReadings { lost: true, ..DeviceReadings::default() };
    case.readings.insert(GPU.into(), Arc::new(lost));
    let accounts = case.relate(0, exclusive(&["a"]));
    assert_eq!(accounts[0].holding.as_ref().unwrap().attribution, None);
    let accounts = case.tick(20_000);
    assert_eq!(rows(&accounts), [("a".into(), 20.0, None, None, None)]);
    assert_eq!((accounts[0].holding.as_ref().unwrap().attribution, case.unattributed.len()), (None, 0));
    let accounts = case.read(21_000, Some(3.0), Some(100.0));
    assert_eq!(rows(&accounts), [("a".into(), 21.0, None, None, None)]);
    let accounts = case.read(22_000, Some(3.5), Some(200.0));
    assert_eq!(rows(&accounts), [("a".into(), 22.0, Some(0.5), Some(0.5), Some(100.0))]);
}
