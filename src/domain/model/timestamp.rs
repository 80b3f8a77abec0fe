//! Times in text.

use std::time::{Duration, UNIX_EPOCH};

use serde::{Serialize, Serializer};

use super::UnixSeconds;

/// A time as `2026-11-21T10:41:07Z`; `{:.6}` adds microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timestamp(pub UnixSeconds);

impl std::fmt::Display for Timestamp {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let since = Duration::try_from_secs_f64(self.0.0).ok().filter(|since| *since < END_OF_9999);
        let time = UNIX_EPOCH + since.unwrap_or_default();
        match formatter.precision() {
            None => humantime::format_rfc3339_seconds(time).fmt(formatter),
            Some(_) => humantime::format_rfc3339_micros(time).fmt(formatter),
        }
    }
}

/// The end of the times that RFC 3339 can write.
const END_OF_9999: Duration = Duration::from_secs(253_402_300_800);

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_clock_can_be_written() {
        let text = |seconds: f64| Timestamp(UnixSeconds(seconds)).to_string();
        assert_eq!(text(1_700_000_000.9), "2023-11-14T22:13:20Z");
        assert_eq!(format!("{:.6}", Timestamp(UnixSeconds(1_700_000_000.5))), "2023-11-14T22:13:20.500000Z");
        for seconds in [-1.0, f64::NAN, f64::INFINITY, 1e300, 253_402_300_800.0] {
            assert_eq!(text(seconds), "1970-01-01T00:00:00Z", "{seconds}");
        }
    }
}
