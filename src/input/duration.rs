use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use crate::words;

/// A time span, written `30s`, `10m`, `1h30m` or `7d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(pub std::time::Duration);

impl FromStr for Duration {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        humantime::parse_duration(text).map(Self).map_err(|_| "must be a duration, such as 30s, 10m, 1h30m or 7d")
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = words::duration(self.0);
        // The short form is used where it is exact.
        match words.parse::<Self>() {
            Ok(same) if same == *self => formatter.write_str(&words),
            _ => humantime::format_duration(self.0).fmt(formatter),
        }
    }
}

impl Deref for Duration {
    type Target = std::time::Duration;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
