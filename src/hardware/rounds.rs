//! Collects the passes of one round into one publication, and the success of each tier.
//!
//! In: the GPUs queried, and their passes. Out: when to publish, and a `Collector` for each tier. Does not use:
//! drivers, clocks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::source::{Due, PassStatus};
use super::worker::Report;
use crate::model::{Collector, GpuUuid, Monotonic};

/// The current round, and the collectors over all rounds.
#[derive(Debug, Default)]
pub struct Rounds {
    open: Option<Round>,
    begun: bool,
    /// Tiers that have answered since the round began.
    answered: BTreeSet<&'static str>,
    collectors: BTreeMap<&'static str, Collector>,
}

#[derive(Debug)]
struct Round {
    waiting: BTreeSet<GpuUuid>,
    until: Monotonic,
    /// The time that the others have once one GPU has answered.
    grace: Option<Duration>,
}

impl Rounds {
    /// Waits for these GPUs up to `until`; in the first round of a session only for `grace` after the first answer.
    pub fn begin(&mut self, waiting: BTreeSet<GpuUuid>, until: Monotonic, grace: Duration) {
        let grace = (!self.begun).then_some(grace);
        self.begun = true;
        self.answered.clear();
        self.open = Some(Round { waiting, until, grace });
    }

    /// Adds a GPU that was queried between rounds: to the open round, or to one of its own.
    pub fn add(&mut self, gpu: GpuUuid, until: Monotonic) {
        let round = self.open.get_or_insert_with(|| Round { waiting: BTreeSet::new(), until, grace: None });
        round.waiting.insert(gpu);
    }

    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Every GPU has answered, or the time limit has passed.
    pub fn is_ready(&self, now: Monotonic) -> bool {
        self.open.as_ref().is_some_and(|round| round.waiting.is_empty() || now >= round.until)
    }

    pub fn deadline(&self) -> Option<Monotonic> {
        self.open.as_ref().map(|round| round.until)
    }

    pub fn give_up(&mut self, gpu: &GpuUuid) {
        if let Some(round) = &mut self.open {
            round.waiting.remove(gpu);
        }
    }

    /// The next round is the first of a session.
    pub fn restart(&mut self) {
        self.open = None;
        self.begun = false;
    }

    pub fn clear(&mut self) {
        self.open = None;
    }

    /// Counts a pass of the current session for the collectors of its tiers.
    pub fn take(&mut self, report: &Report, is_current: bool) {
        self.give_up(&report.gpu);
        if !is_current || report.pass.status == PassStatus::Lost {
            return;
        }
        if let Some(round) = &mut self.open
            && let Some(grace) = round.grace.take()
        {
            round.until = round.until.min(report.at.monotonic + report.duration + grace);
        }
        for tier in tiers(report.due) {
            let answered = match tier {
                "fast" => report.pass.fast.is_some(),
                "medium" => report.pass.medium.is_some(),
                _ => report.pass.slow.is_some(),
            };
            let collector = self.collectors.entry(tier).or_default();
            // A tier succeeds when every GPU answered; its duration is that of the slowest GPU.
            let first = self.answered.insert(tier);
            collector.success = answered && (first || collector.success);
            if answered {
                collector.last_success = Some(report.at);
                let before = collector.duration.filter(|_| !first).unwrap_or_default();
                collector.duration = Some(report.duration.max(before));
            }
        }
    }

    /// Closes the round. Without a session no tier is a success.
    pub fn publish(&mut self, is_open: bool, stuck: BTreeSet<&'static str>) -> BTreeMap<&'static str, Collector> {
        self.open = None;
        for tier in ["fast", "medium", "slow"] {
            let collector = self.collectors.entry(tier).or_default();
            collector.success &= is_open;
            collector.stuck = stuck.contains(tier);
        }
        self.collectors.clone()
    }
}

/// The tiers of a pass; fast is always read.
pub fn tiers(due: Due) -> impl Iterator<Item = &'static str> {
    [("fast", true), ("medium", due.medium), ("slow", due.slow)]
        .into_iter()
        .filter_map(|(tier, due)| due.then_some(tier))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::source::Pass;
    use crate::model::{Fast, Moment};

    fn report(gpu: &str, fast: Option<Fast>, status: PassStatus) -> Report {
        Report {
            gpu: gpu.into(),
            generation: 1,
            due: Due::default(),
            at: Moment { monotonic: Monotonic::from_secs(1), ..Moment::default() },
            duration: Duration::from_millis(gpu.len() as u64),
            fresh: false,
            pass: Pass { status, fast, ..Pass::default() },
        }
    }

    fn round(reports: &[Report]) -> (bool, Collector) {
        let mut rounds = Rounds::default();
        let asked = ["a", "bbb"].map(GpuUuid::from).into();
        rounds.begin(asked, Monotonic::from_secs(2), Duration::from_millis(40));
        for report in reports {
            rounds.take(report, true);
        }
        let ready = rounds.is_ready(Monotonic::from_secs(1));
        (ready, rounds.publish(true, BTreeSet::new()).remove("fast").unwrap())
    }

    #[test]
    fn a_tier_succeeds_when_every_gpu_gave_it() {
        let some = Some(Fast::default());
        let (ready, both) =
            round(&[report("bbb", some.clone(), PassStatus::Answers), report("a", some.clone(), PassStatus::Answers)]);
        assert_eq!((ready, both.success, both.duration), (true, true, Some(Duration::from_millis(3))));
        let (ready, half) =
            round(&[report("a", None, PassStatus::Answers), report("bbb", some.clone(), PassStatus::Answers)]);
        assert_eq!((ready, half.success), (true, false));
        let (_, lost) = round(&[report("a", None, PassStatus::Lost), report("bbb", some.clone(), PassStatus::Answers)]);
        assert!(lost.success, "a lost GPU is its own trouble");
        assert!(!round(&[report("a", some, PassStatus::Answers)]).0, "the other is waited for");
    }

    #[test]
    fn the_first_round_waits_less_once_one_has_answered() {
        let mut rounds = Rounds::default();
        let asked: BTreeSet<_> = ["a", "bbb"].map(GpuUuid::from).into();
        rounds.begin(asked.clone(), Monotonic::from_secs(9), Duration::from_millis(40));
        rounds.take(&report("a", None, PassStatus::Answers), true);
        assert_eq!(rounds.deadline(), Some(Monotonic::from_millis(1_041)));
        rounds.begin(asked, Monotonic::from_secs(9), Duration::from_millis(40));
        rounds.take(&report("a", None, PassStatus::Answers), true);
        assert_eq!(rounds.deadline(), Some(Monotonic::from_secs(9)));
    }
}
