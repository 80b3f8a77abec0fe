use std::collections::BTreeMap;

use crate::domain::model::{DeviceTotals, Monotonic};

/// What the GPU instances of one device had reported when it was last accounted.
#[derive(Debug, Default)]
pub struct Activity {
    through: Monotonic,
    busy_seconds: BTreeMap<u32, f64>,
}

impl Activity {
    /// By GPU instance: the part of the time since the last call, or since the last gap, in which it was busy, 0 to 1.
    /// Instances that report nothing are absent.
    pub fn ratios(&mut self, totals: &DeviceTotals) -> BTreeMap<u32, f64> {
        let mut before = std::mem::replace(&mut self.busy_seconds, totals.instance_busy_seconds.clone());
        let mut from = std::mem::replace(&mut self.through, totals.through);
        if totals.gaps.until > from {
            // A new reader restarts the counts of the instances.
            before.clear();
            from = totals.gaps.until;
        }
        let length = totals.through.since(from).as_secs_f64();
        if length <= 0.0 {
            return BTreeMap::new();
        }
        let ratio = |(number, now): (&u32, &f64)| {
            let before = before.get(number).copied().unwrap_or(0.0);
            let gain = if *now < before { *now } else { now - before };
            (*number, (gain / length).clamp(0.0, 1.0))
        };
        totals.instance_busy_seconds.iter().map(ratio).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::Gaps;

    #[test]
    fn it_is_the_mean_since_the_last_call() {
        let mut activity = Activity::default();
        let totals = |second, instances: &[(u32, f64)]| DeviceTotals {
            through: Monotonic::from_secs(second),
            instance_busy_seconds: instances.iter().copied().collect(),
            ..DeviceTotals::default()
        };
        activity.ratios(&totals(10, &[(1, 4.0)]));
        assert_eq!(activity.ratios(&totals(14, &[(1, 6.0), (2, 1.0)])), [(1, 0.5), (2, 0.25)].into());
        assert_eq!(activity.ratios(&totals(15, &[(2, 1.0)])), [(2, 0.0)].into());
        assert_eq!(activity.ratios(&totals(16, &[(1, 0.5)])), [(1, 0.5)].into(), "it began anew");
        let after_gap = |second, until, instances: &[(u32, f64)]| DeviceTotals {
            gaps: Gaps { until: Monotonic::from_secs(until), ..Gaps::default() },
            ..totals(second, instances)
        };
        assert_eq!(activity.ratios(&after_gap(60, 60, &[])), [].into(), "the gap has no ratio");
        assert_eq!(activity.ratios(&after_gap(62, 60, &[(1, 1.0)])), [(1, 0.5)].into());
        assert_eq!(activity.ratios(&after_gap(94, 90, &[(1, 2.0)])), [(1, 0.5)].into(), "the gap is not its time");
    }
}
