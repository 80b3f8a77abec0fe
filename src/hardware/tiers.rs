//! Which calls a pass makes, how often, and why.
//!
//! A call to the driver costs processor time: on an H100 the energy counter takes 3.6 ms, a ring 2.1 ms, a GPM sample
//! 3.7 ms, a list of fields 1.8 ms, use by process 1 ms, and any other call some 20 µs. What the driver counts or keeps
//! is read when its ring requires it, not each second.
//!
//! | tier | NVML calls | period | reason |
//! |---|---|---|---|
//! | slow | ECC, remapped rows, retired pages, PCIe, NVLink, fabric, recovery action | 60 s, at once after an event | health; rarely changes; first of all, as the plugin waits for it |
//! | fast | rings of utilization, use by process, energy, power; GPM of GPU instances | 10 s, 1 s while watched | rings keep 20 s, the others count; at once when its holders change or after an event, so that each has its own part |
//! | medium | memory, temperatures, clocks, GPM, rings of engines, processes | 15 s | present values, and rings of 20 s |
//! | processes | lists of running processes | 1 s while held, 5 s otherwise | cheap; the owner of a process can be found only while it runs, and a GPU that does not answer is found |
//!
//! A GPU without rings or counters, where totals are integrated from present values, is read as if it were watched.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use strum::{EnumIter, IntoEnumIterator, IntoStaticStr};

use super::settings::HardwareSettings;
use crate::domain::model::Monotonic;

/// A group of reads with one period, in the order in which a new reader reads them first, one tier in each pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Tier {
    Slow,
    Fast,
    Medium,
    Processes,
}

/// The tiers that a pass reads.
pub type Due = BTreeSet<Tier>;

/// Who uses the readings of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Whether a container holds it.
    pub held: bool,
    /// Whether a live page or `top` shows it.
    pub watched: bool,
}

/// When each tier of one GPU is due. All GPUs are due at the same times, so that one publication has their readings.
#[derive(Debug, Default)]
pub struct Schedule {
    /// When each tier is due; 0 for one that was never read.
    next: BTreeMap<Tier, Monotonic>,
    /// The tiers to read earlier.
    requested: Due,
    /// The earliest time for a requested tier.
    request_after: Monotonic,
}

impl Tier {
    fn period(self, settings: &HardwareSettings, demand: Demand) -> Duration {
        match self {
            Self::Slow => settings.slow_interval,
            Self::Fast if demand.watched => settings.shortest_interval(),
            Self::Fast => settings.sample_interval,
            Self::Medium => settings.medium_interval,
            Self::Processes if demand.held => settings.shortest_interval(),
            Self::Processes => settings.probe_interval,
        }
    }

    /// The first multiple of the tier's period after `now`; for medium and slow a third of medium's period later.
    fn next(self, now: Monotonic, settings: &HardwareSettings, demand: Demand) -> Monotonic {
        let period = self.period(settings, demand);
        let offset = match self {
            Self::Fast | Self::Processes => Duration::ZERO,
            Self::Slow | Self::Medium => (settings.medium_interval / 3).min(period / 2),
        };
        let since = now.as_duration().saturating_sub(offset).as_nanos();
        let periods = u32::try_from(since / period.as_nanos().max(1)).unwrap_or(u32::MAX);
        let passed = Monotonic::new(offset + period.saturating_mul(periods));
        if passed > now { passed } else { passed + period }
    }
}

impl Schedule {
    /// Makes each tier due, one in each pass, of a GPU whose readings begin anew.
    pub fn restart(&mut self) {
        self.next = [Tier::Slow, Tier::Fast, Tier::Medium].map(|tier| (tier, Monotonic::default())).into();
    }

    /// Reads these tiers as soon as possible; not again at once after an earlier request.
    pub fn request(&mut self, tiers: impl IntoIterator<Item = Tier>) {
        self.requested.extend(tiers);
    }

    /// Reads the tier again after the shortest interval.
    pub fn repeat(&mut self, tier: Tier, now: Monotonic, settings: &HardwareSettings) {
        self.requested.insert(tier);
        self.request_after = self.request_after.max(now + settings.shortest_interval());
    }

    /// Applies a new demand to tiers that are due later; those that are due now stay so.
    pub fn change_demand(&mut self, now: Monotonic, settings: &HardwareSettings, demand: Demand) {
        for tier in [Tier::Fast, Tier::Processes] {
            if self.next.get(&tier).is_none_or(|next| *next > now) {
                self.next.insert(tier, tier.next(now, settings, demand));
            }
        }
    }

    fn is_unread(&self, tier: Tier) -> bool {
        self.next.get(&tier) == Some(&Monotonic::default())
    }

    /// The tier to read next of those that were never read.
    pub fn first_unread(&self) -> Option<Tier> {
        Tier::iter().find(|tier| self.is_unread(*tier))
    }

    /// The tiers that are due.
    pub fn due(&self, now: Monotonic) -> Due {
        if let Some(tier) = self.first_unread() {
            return [tier].into();
        }
        let requested = self.requested.iter().filter(|_| now >= self.request_after);
        let due = self.next.iter().filter(|(_, next)| now >= **next).map(|(tier, _)| tier);
        requested.chain(due).copied().collect()
    }

    /// Records that a pass that reads these tiers begins.
    pub fn begin(&mut self, due: &Due, now: Monotonic, settings: &HardwareSettings, demand: Demand) {
        // Medium reads the processes, too.
        let processes = due.contains(&Tier::Medium).then_some(&Tier::Processes);
        for tier in due.iter().chain(processes) {
            // The first slow pass leaves out the links.
            let as_often_as = if *tier == Tier::Slow && self.is_unread(*tier) { Tier::Medium } else { *tier };
            // A tier is not due at once after a late pass, or one on request.
            self.next.insert(*tier, as_often_as.next(now + settings.shortest_interval() / 2, settings, demand));
        }
        let requested = self.requested.len();
        self.requested.retain(|tier| !due.contains(tier));
        if self.requested.len() < requested {
            self.request_after = now + settings.shortest_interval();
        }
    }

    /// When the next pass is due.
    pub fn earliest(&self) -> Option<Monotonic> {
        let requested = (!self.requested.is_empty()).then_some(self.request_after);
        self.next.values().copied().chain(requested).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Demand = Demand { held: false, watched: false };

    /// A schedule and its settings, to list the passes up to a time.
    struct Passes {
        schedule: Schedule,
        settings: HardwareSettings,
        demand: Demand,
        now: u64,
    }

    impl Passes {
        fn start() -> Self {
            let mut schedule = Schedule::default();
            schedule.restart();
            Self { schedule, settings: HardwareSettings::default(), demand: IDLE, now: 100 }
        }

        fn to(&mut self, to: u64) -> Vec<(u64, Vec<Tier>)> {
            let mut passes = vec![];
            for now in std::mem::replace(&mut self.now, to)..to {
                let at = Monotonic::from_millis(now);
                let due = self.schedule.due(at);
                assert_eq!(!due.is_empty(), self.schedule.earliest().is_some_and(|next| next <= at));
                if !due.is_empty() {
                    self.schedule.begin(&due, at, &self.settings, self.demand);
                    passes.push((now, due.into_iter().collect()));
                }
            }
            passes
        }

        fn demand(&mut self, demand: Demand) {
            self.demand = demand;
            self.schedule.change_demand(Monotonic::from_millis(self.now), &self.settings, demand);
        }
    }

    #[test]
    fn health_is_read_first_and_then_every_tier_at_its_period() {
        let mut passes = Passes::start();
        let first = [(100, vec![Tier::Slow]), (101, vec![Tier::Fast]), (102, vec![Tier::Medium])];
        assert_eq!(passes.to(5_000), first);
        let later = passes.to(66_000);
        let times = |tier: Tier| {
            later.iter().filter(|(_, due)| due.contains(&tier)).map(|(at, _)| *at / 1000).collect::<Vec<_>>()
        };
        assert_eq!(times(Tier::Fast), [10, 20, 30, 40, 50, 60]);
        assert_eq!((times(Tier::Medium), times(Tier::Slow)), (vec![5, 20, 35, 50, 65], vec![5, 65]));
        let probes: Vec<u64> = later.iter().map(|(at, _)| *at / 1000).collect();
        assert_eq!(probes, (5..=65).step_by(5).collect::<Vec<_>>(), "one that does not answer is found");
    }

    #[test]
    fn a_watched_gpu_is_read_each_second_and_the_processes_of_a_held_one_are_listed() {
        let mut passes = Passes::start();
        passes.to(11_500);
        passes.demand(Demand { watched: true, ..IDLE });
        assert_eq!(passes.to(14_500), [12_000, 13_000, 14_000].map(|at| (at, vec![Tier::Fast])));
        passes.demand(Demand { held: true, ..IDLE });
        assert_eq!(passes.to(16_500), [15_000, 16_000].map(|at| (at, vec![Tier::Processes])));
        passes.demand(IDLE);
        passes.to(20_000);
        passes.demand(IDLE);
        assert_eq!(passes.to(20_500), [(20_000, vec![Tier::Fast, Tier::Medium, Tier::Processes])]);
    }

    #[test]
    fn what_is_requested_is_read_at_once_and_again_after_a_second() {
        let mut passes = Passes::start();
        passes.to(12_000);
        passes.schedule.request([Tier::Slow, Tier::Fast]);
        assert_eq!(passes.to(12_300), [(12_000, vec![Tier::Slow, Tier::Fast])]);
        passes.schedule.request([Tier::Fast]);
        assert_eq!(passes.to(14_000), [(13_000, vec![Tier::Fast])]);
        passes.to(29_700);
        passes.schedule.request([Tier::Fast]);
        let later = vec![(29_700, vec![Tier::Fast]), (30_000, vec![Tier::Processes])];
        assert_eq!(passes.to(34_900), later, "not again at 30 s, a moment later");
        passes.schedule.repeat(Tier::Fast, Monotonic::from_millis(passes.now), &passes.settings);
        let later = vec![(35_000, vec![Tier::Medium, Tier::Processes]), (35_900, vec![Tier::Fast])];
        assert_eq!(passes.to(38_000), later);
    }
}
