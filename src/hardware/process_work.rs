//! SM-seconds by process on one GPU, kept for a minute after the last activity.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::{Monotonic, ProcessSmSeconds};

/// Long enough for consumers, which take differences, to read the last value.
const KEPT_IDLE: Duration = Duration::from_secs(60);

type Work = BTreeMap<u32, ProcessSmSeconds>;

/// Adds the values of one pass, and drops processes that have been idle for long.
pub fn add(work: &mut Work, at: Monotonic, worked: Vec<(u32, f64)>) {
    work.retain(|_, process| at.since(process.last_active) <= KEPT_IDLE);
    for (pid, seconds) in worked {
        if !(seconds.is_finite() && seconds > 0.0) {
            continue;
        }
        let process = work.entry(pid).or_insert(ProcessSmSeconds { began: at, sm_seconds: 0.0, last_active: at });
        process.sm_seconds += seconds;
        process.last_active = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Monotonic {
        Monotonic::from_secs(second)
    }

    #[test]
    fn a_process_is_kept_for_a_minute_and_then_restarts_at_zero() {
        let mut work = Work::new();
        add(&mut work, at(1), vec![(7, 0.5), (8, 0.25), (9, f64::NAN), (10, 0.0)]);
        add(&mut work, at(2), vec![(7, 0.5)]);
        assert_eq!(work[&7], ProcessSmSeconds { began: at(1), sm_seconds: 1.0, last_active: at(2) });
        add(&mut work, at(61), vec![]);
        assert_eq!(work.keys().collect::<Vec<_>>(), [&7, &8]);
        add(&mut work, at(62), vec![]);
        assert_eq!(work.keys().collect::<Vec<_>>(), [&7]);
        add(&mut work, at(70), vec![(7, 0.125)]);
        assert_eq!(work[&7], ProcessSmSeconds { began: at(70), sm_seconds: 0.125, last_active: at(70) });
    }
}
