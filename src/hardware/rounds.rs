//! Collects the passes of one round into one publication, and the success of each tier.
//!
//! In: the GPUs queried, and their passes. Out: when to publish, and a `SourceStatus` for each tier. Does not use:
//! drivers, clocks.

use std::collections::{BTreeMap, BTreeSet};

use super::messages::PassReport;
use super::source::PassStatus;
use super::tiers::{Due, Tier};
use crate::domain::model::{GpuUuid, Monotonic, SourceStatus};

/// The current round, and the collectors over all rounds.
#[derive(Debug, Default)]
pub struct Rounds {
    current: Option<Round>,
    /// The tiers read of any GPU since the round began, with or without values.
    reported: BTreeSet<Tier>,
    collectors: BTreeMap<Tier, SourceStatus>,
}

#[derive(Debug)]
struct Round {
    waiting: BTreeSet<GpuUuid>,
    until: Monotonic,
    /// Whether one of its passes has values that the last publication lacks.
    has_news: bool,
}

impl Rounds {
    /// Makes the current round, or a new one up to `until`, wait for these GPUs.
    pub fn add(&mut self, mut gpus: BTreeSet<GpuUuid>, until: Monotonic) {
        if gpus.is_empty() {
            return;
        }
        if self.current.is_none() {
            self.reported.clear();
        }
        let round = self.current.get_or_insert_with(|| Round { waiting: BTreeSet::new(), until, has_news: false });
        round.waiting.append(&mut gpus);
    }

    /// Ends a round in which every GPU has answered, or whose time limit has passed. Returns whether to publish it.
    pub fn end_if_complete(&mut self, now: Monotonic) -> bool {
        let ended = self.current.take_if(|round| round.waiting.is_empty() || now >= round.until);
        ended.is_some_and(|round| round.has_news || !round.waiting.is_empty())
    }

    pub fn deadline(&self) -> Option<Monotonic> {
        self.current.as_ref().map(|round| round.until)
    }

    pub fn stop_waiting_for(&mut self, gpu: &GpuUuid) {
        if let Some(round) = &mut self.current {
            round.waiting.remove(gpu);
        }
    }

    pub fn clear(&mut self) {
        self.current = None;
    }

    /// Ends the wait for the GPU of a pass. A pass of the current session counts for its tiers, unless the GPU is lost.
    /// Returns true for news that no round publishes.
    pub fn count_pass(&mut self, report: &PassReport, is_current: bool, is_news: bool) -> bool {
        self.stop_waiting_for(&report.gpu);
        self.count_tiers(report, is_current);
        match &mut self.current {
            Some(round) => round.has_news |= is_news,
            None => return is_news,
        }
        false
    }

    fn count_tiers(&mut self, report: &PassReport, is_current: bool) {
        if !is_current || matches!(report.pass.status, PassStatus::Lost | PassStatus::Unlisted) {
            return;
        }
        for tier in report.due.iter().copied() {
            let answered = match tier {
                Tier::Fast => report.pass.fast.is_some(),
                Tier::Medium => report.pass.medium.is_some(),
                Tier::Slow => report.pass.slow.is_some(),
                // Medium shows whether they can be read.
                Tier::Processes => continue,
            };
            let collector = self.collectors.entry(tier).or_default();
            // A tier succeeds when every GPU answered. Its duration is the slowest pass's, which may read other tiers.
            let first = self.reported.insert(tier);
            collector.success = answered && (first || collector.success);
            let before = collector.duration.filter(|_| !first).unwrap_or_default();
            collector.duration = Some(report.duration.max(before));
            if answered {
                collector.last_success = Some(report.at);
            }
        }
    }

    /// The status of each tier; without a session none is a success.
    pub fn collectors(&mut self, is_open: bool, stuck: &Due) -> BTreeMap<&'static str, SourceStatus> {
        for tier in [Tier::Fast, Tier::Medium, Tier::Slow] {
            let collector = self.collectors.entry(tier).or_default();
            collector.success &= is_open;
            collector.stuck = stuck.contains(&tier);
        }
        self.collectors.iter().map(|(tier, collector)| (tier.into(), collector.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::model::Fast;
    use crate::hardware::source::Pass;

    fn report(gpu: &str, fast: Option<Fast>, status: PassStatus) -> PassReport {
        PassReport {
            gpu: gpu.into(),
            generation: 1,
            due: [Tier::Fast].into(),
            at: crate::test_data::at_second(1),
            duration: Duration::from_millis(gpu.len() as u64),
            fresh: false,
            pass: Pass { status, fast, ..Pass::default() },
        }
    }

    fn round(reports: &[PassReport]) -> (bool, SourceStatus) {
        let mut rounds = Rounds::default();
        let queried = ["a", "bbb"].map(GpuUuid::from).into();
        rounds.add(queried, Monotonic::from_secs(2));
        for report in reports {
            rounds.count_pass(report, true, true);
        }
        let ready = rounds.end_if_complete(Monotonic::from_secs(1));
        (ready, rounds.collectors(true, &Due::new()).remove("fast").unwrap())
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
    fn a_tier_that_has_only_failed_has_been_read() {
        let (_, failed) = round(&[report("a", None, PassStatus::SessionOver)]);
        let expected = SourceStatus { duration: Some(Duration::from_millis(1)), ..SourceStatus::default() };
        assert_eq!(failed, expected);
    }
}
