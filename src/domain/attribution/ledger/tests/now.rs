//! The present utilization of holders.

use super::super::*;
use super::{GPU, OneDeviceLedger, monotonic};
use crate::domain::model::{Fast, Owner, SharingForm, Stamped};
use crate::test_data;

impl OneDeviceLedger {
    fn shared_by(pods: &[&str]) -> Self {
        let mut case = Self::enumerated(3600);
        case.holdings = test_data::holdings(pods, GPU, SharingForm::TimeSlicing, 1.0 / pods.len() as f64);
        case.observe(0);
        case
    }

    /// The utilization of each holder, after a reading with `busy` seconds since the start.
    fn now(&mut self, milliseconds: u64, busy: f64) -> Vec<Option<f64>> {
        self.set_reading(milliseconds, Some(busy), None, None);
        let value = Fast { utilization_ratio: Some(0.5), ..Fast::default() };
        let readings = Arc::make_mut(self.readings.get_mut(&GPU.into()).unwrap());
        readings.fast = Some(Stamped { at: monotonic(milliseconds), value });
        let accounts = self.observe(milliseconds).accounts;
        accounts.iter().map(|account| account.gpu_utilization_ratio.map(|now| (now * 1e6).round() / 1e6)).collect()
    }
}

/// The driver attributes each of its samples of 0.2 s to one process.
#[test]
fn containers_that_take_turns_are_each_half_busy_in_every_reading() {
    for seconds in [1, 10] {
        let mut case = OneDeviceLedger::shared_by(&["a", "b"]);
        case.now(0, 0.0);
        for end in (seconds..=60_u64).step_by(seconds as usize) {
            // The first of two takes the odd one.
            let samples = end * 5;
            let worked = [samples.div_ceil(2), samples / 2].map(|samples| samples as f64 * 0.2);
            let process =
                |(pid, pod)| test_data::process(pid, Owner::Container(test_data::main_of(pod)), worked[pid as usize]);
            case.processes.insert(GPU.into(), test_data::processes([(0, "a"), (1, "b")].map(process)));
            let now = case.now(end * 1000, end as f64);
            let is_half = |now: &Option<f64>| now.is_some_and(|now| (0.45..=0.55).contains(&now));
            assert!(end < 10 || now.iter().all(is_half), "second {end}, read every {seconds} s: {now:?}");
        }
        for account in case.observe(60_000).accounts {
            let busy = account.counters.busy_seconds.unwrap();
            assert!((busy - 30.0).abs() < 0.2, "{busy} of 30 s, read every {seconds} s");
        }
    }
}

#[test]
fn the_slots_of_a_gpu_are_as_busy_now_as_their_counters_have_become() {
    let mut case = OneDeviceLedger::shared_by(&["a", "b", "c"]);
    assert_eq!(case.now(0, 0.0), [None; 3], "nothing is read yet");
    for (second, busy, each) in [(1, 0.9, 0.3), (2, 0.9, 0.15), (3, 1.8, 0.2), (11, 9.6, 0.29), (31, 9.6, 0.0)] {
        assert_eq!(case.now(second * 1000, busy), [Some(each); 3], "second {second}");
    }
}

#[test]
fn a_holding_shows_what_it_does_since_it_began_and_nothing_before() {
    let mut case = OneDeviceLedger::shared_by(&["a"]);
    case.now(0, 0.0);
    assert_eq!(case.now(8000, 8.0), [Some(1.0)]);
    case.holdings.by_key.insert(test_data::key("b", GPU), test_data::holding(GPU, SharingForm::TimeSlicing, 0.5));
    let accounts = case.observe(9000).accounts;
    assert_eq!(accounts[1].gpu_utilization_ratio, None);
    // The GPU is busy all the time: the holder had it alone for one of two seconds.
    assert_eq!(case.now(10_000, 10.0), [Some(0.95), Some(0.5)]);
}
