//! Values as short words without spaces.

/// The text of an unknown value.
pub const DASH: &str = "-";

pub fn known(text: Option<String>) -> String {
    text.unwrap_or_else(|| DASH.to_owned())
}

/// A percentage such as `94%`.
pub fn percent(ratio: Option<f64>) -> String {
    known(ratio.map(|ratio| format!("{:.0}%", (ratio * 100.0).clamp(0.0, 9999.0))))
}

/// A value with its unit, such as `633W` or `62C`.
pub fn unit(value: Option<f64>, unit: &str) -> String {
    known(value.map(|value| format!("{:.0}{unit}", value.clamp(-9999.0, 999_999.0))))
}

/// Used and total memory in GiB, such as `65.3/79.6G`.
pub fn memory(used: Option<u64>, total: Option<u64>) -> String {
    let gibibytes = |bytes: Option<u64>| known(bytes.map(|bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 30))));
    match (used, total) {
        (None, None) => DASH.to_owned(),
        (used, None) => format!("{}G", gibibytes(used)),
        (used, total) => format!("{}/{}G", gibibytes(used), gibibytes(total)),
    }
}

/// An energy such as `0.011kWh`.
pub fn energy(joules: Option<f64>) -> String {
    known(joules.map(|joules| format!("{:.3}kWh", (joules / 3.6e6).clamp(0.0, 1e9))))
}

/// A duration such as `59s`, `1m01s`, `1h01m` or `1d01h`.
pub fn span(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

pub fn spanned(seconds: Option<f64>) -> String {
    known(seconds.map(span))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_short_and_absent_is_a_dash() {
        assert_eq!([percent(Some(0.944)), percent(None), percent(Some(1e300))], ["94%", "-", "9999%"]);
        assert_eq!([unit(Some(632.6), "W"), unit(None, "W")], ["633W", "-"]);
        assert_eq!(memory(Some(3 << 29), Some(80 << 30)), "1.5/80.0G");
        assert_eq!([memory(None, Some(80 << 30)), memory(None, None)], ["-/80.0G", "-"]);
        assert_eq!(
            [59.9, 61.0, 3_660.0, 90_000.0, -1.0, f64::MAX].map(|seconds| span(seconds).len()),
            [3, 5, 5, 5, 2, 19]
        );
        assert_eq!([59.9, 61.0, 3_660.0, 90_000.0].map(span), ["59s", "1m01s", "1h01m", "1d01h"]);
    }
}
