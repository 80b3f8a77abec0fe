//! Counts and durations as text. Pure.

use std::fmt::Display;
use std::time::Duration;

/// A count with its noun: `1 GPU`, `2 GPUs`, `0 processes`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let ending = match noun.ends_with('s') {
        _ if count == N::from(1) => "",
        true => "es",
        false => "s",
    };
    format!("{count} {noun}{ending}")
}

/// A duration such as `150ms`, `1.5s`, `2h`, `1h30m` or `100d`, rounded to tenths of a second, or to two units.
pub fn duration(duration: Duration) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    let seconds = duration.as_secs_f64();
    let (milliseconds, tenths) = ((seconds * 1e3).round(), (seconds * 10.0).round());
    match milliseconds {
        0.0 => return "0s".to_owned(),
        ..1e3 => return format!("{milliseconds}ms"),
        _ if tenths < 600.0 => return format!("{}s", tenths / 10.0),
        _ => {}
    }
    let rounded = |unit: u64| ((seconds / unit as f64).round() as u64).saturating_mul(unit);
    let (total, (large, name), (small, rest)) = match (rounded(1), rounded(MINUTE)) {
        (seconds @ ..HOUR, _) => (seconds, (MINUTE, "m"), (1, "s")),
        (_, seconds @ ..DAY) => (seconds, (HOUR, "h"), (MINUTE, "m")),
        _ => (rounded(HOUR), (DAY, "d"), (HOUR, "h")),
    };
    match (total / large, total % large / small) {
        (whole, 0) => format!("{whole}{name}"),
        (whole, part) => format!("{whole}{name}{part}{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_counted_as_many() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "GPU")), ["0 GPUs", "1 GPU", "2 GPUs"]);
        assert_eq!([1, 2].map(|count| counted(count, "process")), ["1 process", "2 processes"]);
    }

    #[test]
    fn a_duration_has_no_nanoseconds_and_no_months() {
        for (seconds, words) in [
            (0.0, "0s"),
            (0.15, "150ms"),
            (0.9996, "1s"),
            (1.5, "1.5s"),
            (59.96, "1m"),
            (90.0, "1m30s"),
            (3_599.6, "1h"),
            (5_400.0, "1h30m"),
            (7_199.999_889_546, "2h"),
            (86_399.0, "1d"),
            (100.0 * 86_400.0, "100d"),
            (90_000.0, "1d1h"),
        ] {
            assert_eq!(duration(Duration::from_secs_f64(seconds)), words, "{seconds}");
        }
        assert!(duration(Duration::MAX).ends_with('h'));
    }
}
