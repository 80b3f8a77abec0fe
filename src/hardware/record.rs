use std::time::Duration;

use super::monotone::Monotone;
use super::process_work;
use super::source::{Integrals, Pass, Verdict};
use crate::model::{DeviceReadings, Fast, Medium, Monotonic, Slow, Stamped, Totals, Traffic};

/// More than any GPU draws.
const CREDIBLE_MILLIWATTS: f64 = 10_000_000.0;

/// Everything known about one GPU over the agent's life: it outlives readers, sessions and losses.
#[derive(Debug, Default)]
pub struct Record {
    totals: Totals,
    monotone: Monotone,
    fast: Option<Stamped<Fast>>,
    medium: Option<Stamped<Medium>>,
    slow: Option<Stamped<Slow>>,
    /// Between the last two slow passes, for a GPU without GPM.
    traffic: Traffic,
    /// The driver's counter of energy when last believed, in millijoules.
    energy_counter: Option<(Monotonic, u64)>,
    resets: u64,
    pub stuck: bool,
    pub lost: bool,
    seen: bool,
}

/// How old a tier may grow before it counts as unknown.
#[derive(Clone, Copy, Debug)]
pub struct Staleness {
    pub fast: Duration,
    pub medium: Duration,
    pub slow: Duration,
}

impl Record {
    /// Takes in a pass that answered. `fresh`: the reader's first, which knows nothing of the time before it.
    pub fn take(&mut self, at: Monotonic, fresh: bool, pass: Pass) {
        debug_assert_eq!(pass.verdict, Verdict::Answers);
        if fresh && self.seen {
            self.totals.uncovered_seconds += at.since(self.totals.through).as_secs_f64();
        }
        self.seen = true;
        self.notice_reset(at, pass.energy_counter);
        self.totals.through = self.totals.through.max(at);
        self.add(at, pass.integrals);
        if let Some(value) = pass.fast {
            self.fast = Some(Stamped { at, value });
        }
        if let Some(mut value) = pass.medium {
            self.monotone.medium(&mut value);
            self.medium = Some(Stamped { at, value });
        }
        if let Some(mut value) = pass.slow {
            self.monotone.slow(&mut value);
            let slow = Stamped { at, value };
            self.traffic = self.slow.as_ref().map(|before| traffic(before, &slow)).unwrap_or_default();
            self.slow = Some(slow);
        }
    }

    /// A counter that falls has begun anew, and what it counts with it. One that leaps has gone astray.
    fn notice_reset(&mut self, at: Monotonic, counter: Option<u64>) {
        let Some(counter) = counter else { return };
        if let Some((then, before)) = self.energy_counter {
            let credible = CREDIBLE_MILLIWATTS * (at.since(then).as_secs_f64() + 1.0);
            if counter.saturating_sub(before) as f64 > credible {
                return;
            }
            self.resets += u64::from(counter < before);
        }
        self.energy_counter = Some((at, counter));
    }

    fn add(&mut self, at: Monotonic, integrals: Integrals) {
        if let Some(worked) = integrals.process_sm_seconds {
            process_work::add(self.totals.process_sm_seconds.get_or_insert_default(), at, worked);
        }
        raise(&mut self.totals.busy_seconds, integrals.busy_seconds);
        raise(&mut self.totals.memory_busy_seconds, integrals.memory_busy_seconds);
        raise(&mut self.totals.energy_joules, integrals.energy_joules);
        if let Some(instances) = integrals.instance_busy_seconds {
            let before = std::mem::take(&mut self.totals.instance_busy_seconds);
            let sum = |(number, seconds): (u32, f64)| {
                (number, before.get(&number).unwrap_or(&0.0) + if seconds.is_finite() { seconds.max(0.0) } else { 0.0 })
            };
            self.totals.instance_busy_seconds = instances.into_iter().map(sum).collect();
        }
        for (engine, seconds) in integrals.engine_busy_seconds {
            *self.totals.engine_busy_seconds.entry(engine).or_default() += seconds.max(0.0);
        }
        self.totals.uncovered_seconds += integrals.uncovered_seconds.max(0.0);
    }

    /// Drops the readings; the totals stay.
    pub fn withdraw(&mut self) {
        self.fast = None;
        self.medium = None;
        self.slow = None;
    }

    /// What is to be published, less what has grown stale.
    pub fn readings(&self, now: Monotonic, staleness: Staleness) -> DeviceReadings {
        let slow = current(self.slow.as_ref(), now, staleness.slow);
        let mut medium = current(self.medium.as_ref(), now, staleness.medium);
        if let (Some(medium), true) = (&mut medium, slow.is_some()) {
            medium.value.rates.traffic = medium.value.rates.traffic.or(self.traffic);
        }
        DeviceReadings {
            totals: self.totals.clone(),
            fast: current(self.fast.as_ref(), now, staleness.fast),
            medium,
            slow,
            stuck: self.stuck,
            lost: self.lost,
            resets: self.resets,
            ..DeviceReadings::default()
        }
    }
}

fn raise(total: &mut Option<f64>, addition: Option<f64>) {
    if let Some(addition) = addition.filter(|addition| addition.is_finite()) {
        *total.get_or_insert(0.0) += addition.max(0.0);
    }
}

/// Of counters that have been made monotonic.
fn traffic(before: &Stamped<Slow>, now: &Stamped<Slow>) -> Traffic {
    let seconds = now.at.since(before.at).as_secs_f64();
    let rate = |read: fn(&Slow) -> Option<f64>| {
        let bytes = read(&now.value)? - read(&before.value)?;
        (seconds > 0.0 && bytes >= 0.0).then(|| bytes / seconds)
    };
    Traffic {
        pcie_transmitted: rate(|slow| slow.pcie.transmitted_bytes),
        pcie_received: rate(|slow| slow.pcie.received_bytes),
        nvlink_transmitted: rate(|slow| slow.nvlink.transmitted_bytes),
        nvlink_received: rate(|slow| slow.nvlink.received_bytes),
    }
}

fn current<T: Clone>(stamped: Option<&Stamped<T>>, now: Monotonic, limit: Duration) -> Option<Stamped<T>> {
    stamped.filter(|stamped| now.since(stamped.at) <= limit).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALENESS: Staleness =
        Staleness { fast: Duration::from_secs(5), medium: Duration::from_secs(30), slow: Duration::from_secs(180) };

    fn pass(busy: f64) -> Pass {
        Pass {
            integrals: Integrals { busy_seconds: Some(busy), ..Integrals::default() },
            fast: Some(Fast { utilization_ratio: Some(0.5), power_watts: None }),
            ..Pass::default()
        }
    }

    #[test]
    fn the_time_without_a_reader_is_uncovered() {
        let mut record = Record::default();
        record.take(Monotonic::from_secs(3), true, pass(0.0));
        record.take(Monotonic::from_secs(4), false, pass(1.0));
        record.take(Monotonic::from_secs(10), true, pass(0.0));
        let readings = record.readings(Monotonic::from_secs(10), STALENESS);
        assert_eq!(readings.totals.busy_seconds, Some(1.0));
        assert_eq!(readings.totals.uncovered_seconds, 6.0);
        assert_eq!(readings.totals.energy_joules, None);
        assert_eq!(readings.totals.through, Monotonic::from_secs(10));
    }

    #[test]
    fn traffic_is_the_counters_where_gpm_does_not_say() {
        let mut record = Record::default();
        let pass = |bytes: f64| {
            let mut slow = Slow::default();
            slow.pcie.transmitted_bytes = Some(bytes);
            slow.nvlink.received_bytes = Some(bytes);
            let mut medium = Medium::default();
            medium.rates.traffic.nvlink_received = Some(7.0);
            Pass { slow: Some(slow), medium: Some(medium), ..Pass::default() }
        };
        let traffic = |record: &Record, at: u64| {
            record.readings(Monotonic::from_secs(at), STALENESS).medium.unwrap().value.rates.traffic
        };
        record.take(Monotonic::from_secs(1), true, pass(1000.0));
        assert_eq!(traffic(&record, 1).pcie_transmitted, None, "one reading is no rate");
        record.take(Monotonic::from_secs(61), false, pass(7000.0));
        let read = traffic(&record, 61);
        assert_eq!((read.pcie_transmitted, read.pcie_received), (Some(100.0), None));
        assert_eq!(read.nvlink_received, Some(7.0), "GPM goes first");
        // The driver's counter began anew.
        record.take(Monotonic::from_secs(121), false, pass(600.0));
        assert_eq!(traffic(&record, 121).pcie_transmitted, Some(10.0));
    }

    #[test]
    fn an_instance_that_tells_nothing_begins_anew() {
        let mut record = Record::default();
        let told = |instances: Option<Vec<(u32, f64)>>| Pass {
            integrals: Integrals { instance_busy_seconds: instances, ..Integrals::default() },
            ..Pass::default()
        };
        let mut take = |second, instances| {
            record.take(Monotonic::from_secs(second), false, told(instances));
            record.readings(Monotonic::from_secs(second), STALENESS).totals.instance_busy_seconds
        };
        take(1, Some(vec![(3, 0.5), (4, 0.25)]));
        assert_eq!(take(2, Some(vec![(3, 0.5)])), [(3, 1.0)].into());
        assert_eq!(take(3, None), [(3, 1.0)].into(), "nothing was asked");
        assert_eq!(take(4, Some(vec![(3, f64::NAN), (4, 0.25)])), [(3, 1.0), (4, 0.25)].into());
    }

    #[test]
    fn a_counter_of_energy_that_falls_is_a_reset_and_nothing_else_is() {
        let mut record = Record::default();
        for (second, counter, resets) in [
            (1, Some(5_000), 0),
            (2, Some(905_000), 0),
            (3, None, 0),
            (60, Some(905_000), 0),
            (61, Some(700), 1),
            (62, Some(u64::MAX), 1),
            (63, Some(1_400), 1),
            (4_000, Some(9_000_000), 1),
        ] {
            let at = Monotonic::from_secs(second);
            record.take(at, true, Pass { energy_counter: counter, ..Pass::default() });
            assert_eq!(record.readings(at, STALENESS).resets, resets, "at {second}");
        }
    }

    #[test]
    fn stale_readings_are_absent_and_totals_stay() {
        let mut record = Record::default();
        record.take(Monotonic::from_secs(1), true, pass(0.25));
        assert!(record.readings(Monotonic::from_secs(6), STALENESS).fast.is_some());
        let readings = record.readings(Monotonic::from_millis(6001), STALENESS);
        assert_eq!((readings.fast, readings.totals.busy_seconds), (None, Some(0.25)));
    }
}
