//! The readings and totals of one GPU, across readers, sessions and losses.
//!
//! In: passes with their time. Out: `DeviceReadings`, with totals as `DeviceTotals` describes them. Does not use: drivers, threads, clocks.

use std::collections::BTreeMap;
use std::time::Duration;

use super::clock_events::ClockEvents;
use super::energy_counter::EnergyCounter;
use super::monotone::Monotone;
use super::pcie_bytes::PcieBytes;
use super::recent_use::RecentUse;
use super::source::{Integrals, Pass, PassStatus};
use crate::domain::model::{
    DeviceReadings, DeviceTotals, Fast, LinkCounters, Medium, Monotonic, Slow, Stamped, Traffic,
};

/// How long a process is kept after it was last listed or active: longer than the time between two readings of its use, and than a
/// list of processes is published. The ledger, which takes differences of its total, forgets it with the total.
const PROCESS_RETENTION: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub struct GpuState {
    totals: DeviceTotals,
    monotone: Monotone,
    clock_events: ClockEvents,
    fast: Option<Stamped<Fast>>,
    medium: Option<Stamped<Medium>>,
    slow: Option<Stamped<Slow>>,
    /// The bytes a second between the last two slow passes, where GPM has none.
    byte_rates: TrafficValues,
    /// The byte counters of the last slow pass, as the driver gave them.
    byte_counters: Option<(Monotonic, TrafficValues)>,
    energy_counter: EnergyCounter,
    recent_use: RecentUse,
    pcie_bytes: PcieBytes,
    /// The busy seconds that were read beyond the elapsed time: they belong to the next pass.
    busy_carry: f64,
    /// The last known value, of any session.
    counter_is_of_gpu: Option<bool>,
    /// Whether the readings were withdrawn, so that the next pass ends a gap.
    interrupted: bool,
    lacks_utilization: bool,
    /// The processes of the last minute, and when each was last listed or active.
    recent_pids: BTreeMap<u32, Monotonic>,
    pub stuck: bool,
    pub lost: bool,
}

/// Bytes, or bytes a second: PCIe transmitted and received, NVLink transmitted and received, NVLink 0 both.
type TrafficValues = [Option<f64>; 5];

/// The age at which the readings of a tier become unknown.
#[derive(Clone, Copy, Debug)]
pub struct Staleness {
    pub fast: Duration,
    pub medium: Duration,
    pub slow: Duration,
}

impl GpuState {
    /// Adds a pass that answered. `fresh`: whether it is the reader's first, which has no data of the time before it.
    pub fn add_pass(&mut self, at: Monotonic, fresh: bool, mut pass: Pass) {
        debug_assert_eq!(pass.status, PassStatus::Answers);
        if fresh {
            self.interrupt();
        }
        let engines = std::mem::take(&mut pass.integrals.engine_busy_seconds);
        self.recent_use.add_engines(at, &engines);
        for (engine, seconds) in engines {
            *self.totals.engine_busy_seconds.entry(engine).or_default() += seconds.max(0.0);
        }
        if pass.fast.is_some() {
            self.add_totals(at, &mut pass);
        }
        self.set(at, pass);
    }

    /// Adds what the fast tier read.
    fn add_totals(&mut self, at: Monotonic, pass: &mut Pass) {
        self.counter_is_of_gpu = pass.counter_is_of_gpu.or(self.counter_is_of_gpu);
        let is_counted = pass.energy_counter.is_some() && self.counter_is_of_gpu == Some(true);
        let counted = pass.energy_counter.and_then(|counter| self.energy_counter.add_reading(at, counter));
        let mut integrals = std::mem::take(&mut pass.integrals);
        if is_counted {
            // The counter's gain is added below, also in a pass that ends a gap.
            integrals.energy_joules = Some(0.0);
        }
        self.lacks_utilization = integrals.lacks_utilization;
        let ends_gap = std::mem::take(&mut self.interrupted) && self.totals.last_pass().is_some();
        if !ends_gap {
            self.limit_busy_time(at, &mut integrals);
        }
        self.recent_use.add_fast(at, &integrals);
        if ends_gap {
            self.end_gap(at, &integrals);
        } else {
            self.add(at, integrals);
        }
        if let Some((since, joules)) = counted.filter(|_| is_counted) {
            raise(&mut self.totals.energy_joules, Some(joules));
            if since < self.totals.gaps.until {
                self.totals.gaps.energy_joules += joules;
            }
        }
        self.totals.complete_until = self.totals.complete_until.max(at);
    }

    /// Begins a gap, which the next pass of the fast tier ends.
    fn interrupt(&mut self) {
        self.interrupted = true;
        self.clock_events.interrupt();
        self.pcie_bytes.interrupt();
        self.recent_use = RecentUse::default();
    }

    /// Adds the values of a pass whose call hung. The time that they cover is unknown, so the totals do not include
    /// them, the next pass ends a gap, and no byte rate begins with them.
    pub fn add_late_pass(&mut self, at: Monotonic, pass: Pass) {
        self.interrupt();
        self.set(at, pass);
        self.byte_counters = None;
        self.pcie_bytes.interrupt();
    }

    /// Moves busy time beyond the elapsed time to the next pass: samples come in steps of a sixth of a second or more,
    /// and up to two seconds late, so that after a pass with too much the next one has too little.
    fn limit_busy_time(&mut self, at: Monotonic, integrals: &mut Integrals) {
        if self.totals.busy_seconds.is_none() || integrals.lacks_utilization {
            return;
        }
        let known = integrals.busy_seconds.filter(|seconds| seconds.is_finite()).unwrap_or(0.0).max(0.0);
        let seconds = at.since(self.totals.complete_until).as_secs_f64() - integrals.uncovered_seconds;
        let counted = (known + self.busy_carry).min(seconds.max(0.0));
        self.busy_carry += known - counted;
        integrals.busy_seconds = Some(counted);
    }

    /// Ends the gap since the last pass before it. Only the energy counter covers it; a reader's integrals
    /// do not.
    fn end_gap(&mut self, at: Monotonic, known: &Integrals) {
        let seconds = at.since(self.totals.complete_until).as_secs_f64();
        self.totals.uncovered_seconds += seconds;
        self.totals.gaps.seconds += seconds;
        self.totals.gaps.until = at;
        let zero = |integral: Option<f64>| integral.map(|_| 0.0);
        let carry = std::mem::take(&mut self.busy_carry);
        self.add(
            at,
            Integrals {
                busy_seconds: Some(carry).filter(|carry| known.busy_seconds.is_some() || *carry > 0.0),
                memory_busy_seconds: zero(known.memory_busy_seconds),
                energy_joules: zero(known.energy_joules),
                module_energy_joules: zero(known.module_energy_joules),
                // Instances restart at 0 after a gap.
                instance_busy_seconds: Some(vec![]),
                process_sm_seconds: known.process_sm_seconds.as_ref().map(|_| vec![]),
                ..Integrals::default()
            },
        );
    }

    fn set(&mut self, at: Monotonic, Pass { fast, medium, slow, pids, .. }: Pass) {
        self.recent_pids.extend(pids.into_iter().flatten().map(|pid| (pid, at)));
        self.recent_pids.retain(|_, seen| at.since(*seen) <= PROCESS_RETENTION);
        // After the additions, so that a process is absent from at least one pass before it restarts at zero.
        if let Some(totals) = &mut self.totals.process_sm_seconds {
            totals.retain(|pid, _| self.recent_pids.contains_key(pid));
        }
        if let Some(mut value) = fast {
            self.recent_use.set_fast(&mut value);
            self.fast = Some(Stamped { at, value });
        }
        if let Some(mut value) = medium {
            self.monotone.raise_medium(&mut value);
            self.clock_events.count(at, &mut value);
            self.recent_use.set_medium(&mut value);
            self.pcie_bytes.add_medium(at, &value);
            self.medium = Some(Stamped { at, value });
        }
        if let Some(mut value) = slow {
            self.pcie_bytes.add_slow(&value);
            let counters = byte_counters(&value);
            let before = self.byte_counters.replace((at, counters));
            self.byte_rates = before.map(|before| rates(before, (at, counters))).unwrap_or_default();
            self.monotone.raise_slow(&mut value);
            self.slow = Some(Stamped { at, value });
        }
    }

    fn add(&mut self, at: Monotonic, integrals: Integrals) {
        if integrals.lists_no_processes {
            self.totals.process_sm_seconds = None;
        }
        if let Some(worked) = integrals.process_sm_seconds {
            let totals = self.totals.process_sm_seconds.get_or_insert_default();
            for (pid, seconds) in worked.into_iter().filter(|(_, seconds)| seconds.is_finite() && *seconds > 0.0) {
                *totals.entry(pid).or_default() += seconds;
                self.recent_pids.insert(pid, at);
            }
        }
        raise(&mut self.totals.busy_seconds, integrals.busy_seconds);
        raise(&mut self.totals.memory_busy_seconds, integrals.memory_busy_seconds);
        raise(&mut self.totals.energy_joules, integrals.energy_joules);
        raise(&mut self.totals.module_energy_joules, integrals.module_energy_joules);
        if let Some(instances) = integrals.instance_busy_seconds {
            let before = std::mem::take(&mut self.totals.instance_busy_seconds);
            let sum = |(number, seconds): (u32, f64)| {
                (number, before.get(&number).unwrap_or(&0.0) + if seconds.is_finite() { seconds.max(0.0) } else { 0.0 })
            };
            self.totals.instance_busy_seconds = instances.into_iter().map(sum).collect();
        }
        self.totals.uncovered_seconds += integrals.uncovered_seconds.max(0.0);
    }

    /// Drops the readings and keeps the totals. The time until the next pass is a gap.
    pub fn withdraw(&mut self) {
        self.interrupt();
        self.byte_counters = None;
        self.fast = None;
        self.medium = None;
        self.slow = None;
    }

    /// Whether the energy counter may have restarted, so that a second reading has to show it.
    pub fn needs_second_reading(&self) -> bool {
        self.energy_counter.is_unconfirmed()
    }

    pub fn has_process(&self, pid: u32) -> bool {
        self.recent_pids.contains_key(&pid)
    }

    pub fn totals(&self) -> &DeviceTotals {
        &self.totals
    }

    /// The readings to publish, without stale ones.
    pub fn readings(&self, now: Monotonic, staleness: Staleness) -> DeviceReadings {
        let mut slow = current(self.slow.as_ref(), now, staleness.slow);
        if let Some(slow) = &mut slow {
            self.pcie_bytes.set(&mut slow.value);
        }
        let mut medium = current(self.medium.as_ref(), now, staleness.medium);
        if let (Some(medium), true) = (&mut medium, slow.is_some()) {
            let [pcie_transmitted, pcie_received, nvlink_transmitted, nvlink_received, link0] = self.byte_rates;
            let traffic =
                Traffic { pcie_transmitted, pcie_received, nvlink_transmitted, nvlink_received, ..Traffic::default() };
            medium.value.rates.traffic = medium.value.rates.traffic.or(traffic);
            medium.value.rates.link0_bytes_per_second = link0;
        }
        let busy_seconds = self.totals.busy_seconds.filter(|_| !self.lacks_utilization);
        DeviceReadings {
            totals: DeviceTotals { busy_seconds, ..self.totals.clone() },
            fast: current(self.fast.as_ref(), now, staleness.fast),
            medium,
            slow,
            recent_pids: self.recent_pids.keys().copied().collect(),
            stuck: self.stuck,
            lost: self.lost,
            energy_counter: self.energy_counter.value(),
            ..DeviceReadings::default()
        }
    }
}

fn raise(total: &mut Option<f64>, addition: Option<f64>) {
    if let Some(addition) = addition.filter(|addition| addition.is_finite()) {
        *total.get_or_insert(0.0) += addition.max(0.0);
    }
}

/// The byte counters as the reader gave them. A sum of links is absent where one has no value.
fn byte_counters(slow: &Slow) -> TrafficValues {
    let (pcie, links) = (&slow.pcie, &slow.nvlink.of_links);
    let sum = |bytes: fn(&LinkCounters) -> Option<f64>| {
        links.values().map(bytes).sum::<Option<f64>>().filter(|_| !links.is_empty())
    };
    let (transmitted, received) = (sum(|link| link.transmitted_bytes), sum(|link| link.received_bytes));
    let link0 = links.get(&0).and_then(|link| Some(link.transmitted_bytes? + link.received_bytes?));
    [pcie.transmitted_bytes, pcie.received_bytes, transmitted, received, link0]
}

/// The bytes a second between two readings. A counter that fell has no rate: it restarted, and its last value before
/// that is unknown.
fn rates(before: (Monotonic, TrafficValues), now: (Monotonic, TrafficValues)) -> TrafficValues {
    let seconds = now.0.since(before.0).as_secs_f64();
    std::array::from_fn(|counter| {
        let bytes = now.1[counter]? - before.1[counter]?;
        (seconds > 0.0 && bytes >= 0.0).then(|| bytes / seconds)
    })
}

fn current<T: Clone>(stamped: Option<&Stamped<T>>, now: Monotonic, limit: Duration) -> Option<Stamped<T>> {
    stamped.filter(|stamped| now.since(stamped.at) <= limit).cloned()
}

#[cfg(test)]
mod tests;
