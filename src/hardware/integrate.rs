//! Integrates the driver's ring of samples to seconds or joules.
//!
//! In: samples and elapsed time. Out: integrals, the latest rate, and uncovered time. Does not use: clocks, drivers.

/// The driver's samples may be this late before the gap counts as uncovered.
const LAG_SECONDS: f64 = 2.0;
/// The longest time that one sample can cover; sample periods are 1/6 s to 1 s.
const STEP_SECONDS: f64 = 2.0;
/// After so many seconds, more than a ring has, without a new sample the whole ring is read again: its clock may have stepped back.
pub const SILENT_SECONDS: f64 = 25.0;

/// One entry of the ring. The timestamp is in microseconds since an unknown origin.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RingSample {
    pub timestamp: u64,
    /// A rate: 0 to 1 for utilization, watts for power.
    pub value: f64,
}

/// What one pass adds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IntegralStep {
    /// Rate times seconds; `None` without samples and without a fallback.
    pub integral: Option<f64>,
    /// The latest rate.
    pub latest: Option<f64>,
    pub uncovered_seconds: f64,
    /// The integral is a present rate times the time since the last call.
    pub is_of_present_rate: bool,
}

/// Integrates one ring. Each sample covers the time since the one before it, and no time counts twice: the integral
/// never covers more time than has passed.
#[derive(Clone, Debug, Default)]
pub struct RingIntegral {
    cursor: u64,
    /// Seconds that have passed and are not yet covered.
    pending: f64,
    /// Time without a new sample.
    silent_seconds: f64,
}

impl RingIntegral {
    /// The driver's argument "last seen"; zero requests the whole ring.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// `elapsed` seconds since the last call. `fallback` gives a rate where there is no new sample.
    pub fn advance(
        &mut self,
        elapsed: f64,
        samples: &mut [RingSample],
        fallback: impl FnOnce() -> Option<f64>,
    ) -> IntegralStep {
        self.pending += elapsed.max(0.0);
        samples.sort_unstable_by_key(|sample| sample.timestamp);
        let (covered, integral) = self.integrate(samples);
        let newest = samples.last().copied();
        if let Some(newest) = newest.filter(|newest| newest.timestamp > self.cursor) {
            let had_cursor = self.cursor != 0;
            self.cursor = newest.timestamp;
            self.silent_seconds = 0.0;
            // Without a cursor the samples cover nothing: the fallback does, where time is pending.
            if had_cursor || self.pending <= 0.0 {
                // More sample time than real time can only be a ring that overlaps what is covered already.
                let counted = covered.min(self.pending);
                let share = if covered > 0.0 { counted / covered } else { 0.0 };
                self.pending -= counted;
                return self.finish(Some(integral * share), Some(newest.value));
            }
        } else {
            self.silent_seconds += elapsed.max(0.0);
            if self.silent_seconds >= SILENT_SECONDS {
                (self.cursor, self.silent_seconds) = (0, 0.0);
            }
        }
        // Without a rate it is 0 where there are samples.
        let Some(rate) = fallback() else {
            return self.finish(newest.map(|_| 0.0), newest.map(|newest| newest.value));
        };
        let (integral, is_of_present_rate) = (rate * self.pending, self.pending > 0.0);
        self.pending = 0.0;
        IntegralStep { is_of_present_rate, ..self.finish(Some(integral), Some(rate)) }
    }

    /// Seconds and integral of the samples newer than the cursor.
    fn integrate(&self, samples: &[RingSample]) -> (f64, f64) {
        if self.cursor == 0 {
            return (0.0, 0.0);
        }
        let mut before = self.cursor;
        let (mut seconds, mut integral) = (0.0, 0.0);
        for sample in samples.iter().filter(|sample| sample.timestamp > self.cursor) {
            let step = ((sample.timestamp - before) as f64 / 1e6).min(STEP_SECONDS);
            before = sample.timestamp;
            seconds += step;
            integral += sample.value * step;
        }
        (seconds, integral)
    }

    fn finish(&mut self, integral: Option<f64>, latest: Option<f64>) -> IntegralStep {
        let uncovered_seconds = (self.pending - LAG_SECONDS).max(0.0);
        self.pending -= uncovered_seconds;
        IntegralStep { integral, latest, uncovered_seconds, is_of_present_rate: false }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ORIGIN: u64 = 77_000_000_000;

    fn sample(seconds: f64, value: f64) -> RingSample {
        RingSample { timestamp: ORIGIN + (seconds * 1e6) as u64, value }
    }

    fn near(actual: Option<f64>, expected: f64) -> bool {
        actual.is_some_and(|actual| (actual - expected).abs() < 1e-5)
    }

    #[test]
    fn the_first_ring_is_history_and_counts_nothing() {
        let mut ring = RingIntegral::default();
        let step = ring.advance(0.0, &mut [sample(1.0, 1.0), sample(2.0, 0.5)], || None);
        assert_eq!(step, IntegralStep { integral: Some(0.0), latest: Some(0.5), ..IntegralStep::default() });
        assert_eq!(ring.cursor(), sample(2.0, 0.0).timestamp);
    }

    #[test]
    fn each_sample_covers_the_time_since_the_one_before() {
        let mut ring = RingIntegral::default();
        ring.advance(0.0, &mut [sample(0.0, 0.0)], || None);
        let step = ring.advance(1.0, &mut [sample(0.25, 1.0), sample(1.0, 0.5)], || None);
        assert!(near(step.integral, 0.25 + 0.75 * 0.5), "{step:?}");
    }

    #[test]
    fn an_empty_ring_takes_the_fallback_for_all_that_is_pending() {
        let mut ring = RingIntegral::default();
        ring.advance(0.0, &mut [], || Some(0.5));
        assert!(near(ring.advance(3.0, &mut [], || Some(0.5)).integral, 1.5));
    }

    #[test]
    fn what_neither_covers_is_uncovered_after_the_lag() {
        let mut ring = RingIntegral::default();
        ring.advance(0.0, &mut [sample(0.0, 1.0)], || None);
        let step = ring.advance(10.0, &mut [], || None);
        assert_eq!((step.integral, step.uncovered_seconds), (None, 10.0 - LAG_SECONDS));
        // One sample after a long gap covers the cap, not the gap.
        let step = ring.advance(1.0, &mut [sample(11.0, 1.0)], || None);
        assert!(near(step.integral, STEP_SECONDS), "{step:?}");
    }

    #[test]
    fn a_ring_whose_clock_stepped_back_is_taken_up_again() {
        let mut ring = RingIntegral::default();
        ring.advance(0.0, &mut [sample(100.0, 1.0)], || None);
        for _ in 0..25 {
            ring.advance(1.0, &mut [sample(5.0, 1.0)], || Some(1.0));
        }
        assert_eq!(ring.cursor(), 0);
        ring.advance(1.0, &mut [sample(6.0, 1.0)], || Some(1.0));
        assert!(near(ring.advance(1.0, &mut [sample(7.0, 0.5)], || None).integral, 0.5));
    }

    proptest! {
        /// The oracle: a ring that is read in any portions, shuffled and with repeats, gives what a single walk gives.
        #[test]
        fn portions_order_and_repeats_do_not_matter(
            values in prop::collection::vec(0.0..=1.0_f64, 2..60),
            portions in prop::collection::vec(1_usize..8, 1..60),
            repeats in 0_usize..5,
        ) {
            let period = 0.2;
            let entry = |(at, value): (usize, &f64)| sample(at as f64 * period, *value);
            let ring: Vec<_> = values.iter().enumerate().map(entry).collect();
            let expected: f64 = values.iter().skip(1).map(|value| value * period).sum();
            let mut integral = RingIntegral::default();
            integral.advance(0.0, &mut [ring[0]], || None);
            let (mut total, mut from) = (0.0, 1);
            for portion in portions.into_iter().chain(std::iter::repeat(7)) {
                let to = (from + portion).min(ring.len());
                let mut part = ring[from.saturating_sub(repeats)..to].to_vec();
                part.reverse();
                total += integral.advance((to - from) as f64 * period, &mut part, || None).integral.unwrap_or(0.0);
                from = to;
                if from == ring.len() {
                    break;
                }
            }
            prop_assert!((total - expected).abs() < 1e-3, "{total} against {expected}");
        }

        #[test]
        fn busy_time_never_exceeds_elapsed_time(
            passes in prop::collection::vec(
                (
                    0.0..5.0_f64,
                    prop::collection::vec((any::<u32>(), 0.0..=1.0_f64), 0..20),
                    prop::option::of(0.0..=1.0_f64),
                ),
                1..40,
            ),
        ) {
            let mut ring = RingIntegral::default();
            let (mut busy, mut uncovered, mut elapsed_total) = (0.0, 0.0, 0.0);
            for (elapsed, samples, fallback) in passes {
                let mut samples: Vec<_> = samples.into_iter()
                    .map(|(timestamp, value)| RingSample { timestamp: u64::from(timestamp), value }).collect();
                let step = ring.advance(elapsed, &mut samples, || fallback);
                prop_assert!(step.integral.is_none_or(|integral| integral >= 0.0) && step.uncovered_seconds >= 0.0);
                busy += step.integral.unwrap_or(0.0);
                uncovered += step.uncovered_seconds;
                elapsed_total += elapsed;
                prop_assert!(busy + uncovered <= elapsed_total + 1e-6, "{busy} + {uncovered} > {elapsed_total}");
            }
        }
    }
}
