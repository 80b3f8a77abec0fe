//! The counters of a holding: defined once for page, `top`, `usage` and metrics.

use serde::{Deserialize, Serialize};

/// The counters of one holding, or their increases in a time. Unknown ones are absent.
///
/// GPU time is time held times the fraction held. Where that is known, allocated + borrowed = busy + idle + uncovered. Of other time
/// only held, busy and energy are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HoldingCounters {
    /// The time held by the clock, whatever the fraction. All other seconds are GPU time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_seconds: Option<f64>,
    /// The GPU time held; `None` while the fraction held is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_seconds: Option<f64>,
    /// The busy time; `None` where it is unknown or not attributable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_seconds: Option<f64>,
    /// The part of `busy_seconds` beyond the fraction held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrowed_seconds: Option<f64>,
    /// The GPU time held and not busy, where busy seconds are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<f64>,
    /// The GPU time held for which it is unknown whether it was busy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncovered_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_joules: Option<f64>,
}

/// What GPU time costs: cost = used + idle + uncovered. Borrowed time costs nothing more: it is idle cost of the other holders
/// or of nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_cost: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_cost: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncovered_cost: Option<f64>,
}

impl HoldingCounters {
    /// The cost at a price per hour of a whole GPU.
    #[must_use]
    pub fn cost(&self, per_hour: f64) -> Cost {
        let seconds = [self.allocated_seconds, self.used_seconds(), self.idle_seconds, self.uncovered_seconds];
        let [cost, used_cost, idle_cost, uncovered_cost] = seconds.map(|seconds| Some(seconds? / 3600.0 * per_hour));
        Cost { cost, used_cost, idle_cost, uncovered_cost }
    }

    /// The part of the GPU that is held, 0 to 1.
    #[must_use]
    pub fn held_ratio(&self) -> Option<f64> {
        let (held, allocated) = self.held_seconds.zip(self.allocated_seconds)?;
        (held > 0.0).then(|| (allocated / held).min(1.0))
    }

    /// Busy time as a part of the whole GPU while it is held, whatever part of it is held, 0 to 1: a part of the known
    /// time, which by the clock is `known_seconds / held_ratio`.
    #[must_use]
    pub fn busy_ratio(&self) -> Option<f64> {
        Some((self.busy_seconds? / self.known_seconds()? * self.held_ratio()?).min(1.0))
    }

    /// Idle time as a part of the known GPU time, 0 to 1.
    #[must_use]
    pub fn idle_ratio(&self) -> Option<f64> {
        Some(self.idle_seconds? / self.known_seconds()?)
    }

    /// The GPU time held for which it is known whether it was busy; `None` without such time.
    #[must_use]
    pub fn known_seconds(&self) -> Option<f64> {
        // Without idle time nothing is known, and less than a microsecond is a remainder of rounding.
        self.idle_seconds?;
        Some(self.allocated_seconds? - self.uncovered_seconds?).filter(|known| *known > 1e-6)
    }

    /// The busy time within the fraction held. It is not busy less borrowed: busy may have time of an unknown fraction.
    fn used_seconds(&self) -> Option<f64> {
        Some((self.allocated_seconds? - self.idle_seconds? - self.uncovered_seconds?).max(0.0))
    }

    /// Adds each counter; one that is absent on one side has the value of the other.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.zip(other, |one, two| match (one, two) {
            (Some(one), Some(two)) => Some(one + two),
            (one, two) => one.or(two),
        })
    }

    /// The difference to `earlier`, at least zero.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        self.zip(earlier, |now, then| Some((now? - then.unwrap_or(0.0)).max(0.0)))
    }

    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        self.zip(Self::default(), |counter, _| Some(counter? * factor))
    }

    /// Whether any counter is smaller than in `earlier`, so that they started again.
    #[must_use]
    pub fn fell_since(self, earlier: Self) -> bool {
        let mut fell = false;
        self.zip(earlier, |now, then| {
            fell |= then.is_some_and(|then| now.is_none_or(|now| now < then));
            None
        });
        fell
    }

    fn zip(self, other: Self, mut with: impl FnMut(Option<f64>, Option<f64>) -> Option<f64>) -> Self {
        Self {
            held_seconds: with(self.held_seconds, other.held_seconds),
            allocated_seconds: with(self.allocated_seconds, other.allocated_seconds),
            busy_seconds: with(self.busy_seconds, other.busy_seconds),
            borrowed_seconds: with(self.borrowed_seconds, other.borrowed_seconds),
            idle_seconds: with(self.idle_seconds, other.idle_seconds),
            uncovered_seconds: with(self.uncovered_seconds, other.uncovered_seconds),
            energy_joules: with(self.energy_joules, other.energy_joules),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_counter_takes_the_value_of_the_other_side() {
        let known = HoldingCounters { busy_seconds: Some(2.0), ..HoldingCounters::default() };
        let more = HoldingCounters { busy_seconds: Some(5.0), energy_joules: Some(7.0), ..HoldingCounters::default() };
        assert_eq!(more.since(known).busy_seconds, Some(3.0));
        assert_eq!(more.since(known).energy_joules, Some(7.0));
        assert_eq!(known.plus(more).busy_seconds, Some(7.0));
        assert_eq!(known.since(more).energy_joules, None);
        assert!(known.fell_since(more) && !more.fell_since(known));
    }

    #[test]
    fn busy_is_a_part_of_the_gpu_and_idle_of_what_is_held() {
        let of = |busy, idle, uncovered| {
            let counters = HoldingCounters {
                held_seconds: Some(400.0),
                allocated_seconds: Some(100.0),
                busy_seconds: busy,
                idle_seconds: idle,
                uncovered_seconds: uncovered,
                ..HoldingCounters::default()
            };
            (counters.busy_ratio(), counters.idle_ratio())
        };
        let half = Some(50.0);
        assert_eq!(of(Some(100.0), Some(10.0), half), (Some(0.5), Some(0.2)), "60 s borrowed: more than the 25 % held");
        assert_eq!(of(Some(40.0), Some(10.0), half), (Some(0.2), Some(0.2)), "uncovered time is neither");
        assert_eq!(of(Some(0.0), Some(0.0), Some(100.0)), (None, None));
        assert_eq!(of(None, None, Some(100.0)), (None, None));
    }
}
