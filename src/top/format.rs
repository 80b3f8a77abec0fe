//! Values as short words without spaces, and foreign text made harmless.

use std::time::Duration;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Not known.
pub const DASH: &str = "-";
/// In place of a character that would not be shown as itself.
const SUBSTITUTE: char = '\u{FFFD}';
/// Of any foreign text. A container's full name has at most 380.
const LONGEST: usize = 400;

/// Foreign text as a terminal may have it: what would move the cursor, turn the writing direction or be invisible is
/// replaced.
pub fn clean(text: &str) -> String {
    let visible = |letter: char| if letter.width().is_some_and(|width| width > 0) { letter } else { SUBSTITUTE };
    text.chars().take(LONGEST).map(visible).collect()
}

/// `text` in exactly so many columns: padded, or cut with an ellipsis.
pub fn fit(text: &str, columns: usize, right: bool) -> String {
    let width = text.width();
    if width <= columns {
        let padding = " ".repeat(columns - width);
        return if right { padding + text } else { text.to_owned() + &padding };
    }
    let mut kept = String::new();
    for letter in text.chars() {
        kept.push(letter);
        if kept.width() + 1 > columns {
            kept.pop();
            break;
        }
    }
    if columns > 0 {
        kept.push('…');
    }
    let padding = columns.saturating_sub(kept.width());
    kept + &" ".repeat(padding)
}

pub fn known(text: Option<String>) -> String {
    text.unwrap_or_else(|| DASH.to_owned())
}

/// `94%`
pub fn percent(ratio: Option<f64>) -> String {
    known(ratio.map(|ratio| format!("{:.0}%", (ratio * 100.0).clamp(0.0, 9999.0))))
}

/// `633W`, `62C`
pub fn unit(value: Option<f64>, unit: &str) -> String {
    known(value.map(|value| format!("{:.0}{unit}", value.clamp(-9999.0, 999_999.0))))
}

/// `65.3/79.6G`, in GiB.
pub fn memory(used: Option<u64>, total: Option<u64>) -> String {
    let gibibytes = |bytes: Option<u64>| known(bytes.map(|bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 30))));
    match (used, total) {
        (None, None) => DASH.to_owned(),
        (used, None) => format!("{}G", gibibytes(used)),
        (used, total) => format!("{}/{}G", gibibytes(used), gibibytes(total)),
    }
}

/// `0.011kWh`
pub fn energy(joules: Option<f64>) -> String {
    known(joules.map(|joules| format!("{:.3}kWh", (joules / 3.6e6).clamp(0.0, 1e9))))
}

/// `59s`, `1m01s`, `1h01m`, `1d01h`
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

pub fn age(now: Duration, then: Duration) -> f64 {
    now.saturating_sub(then).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_command_the_terminal() {
        assert_eq!(clean("a\x1b[2Jb\nc\u{202e}d\u{200b}e\u{9b}"), "a�[2Jb�c�d�e�");
        assert_eq!(clean("日本 ok"), "日本 ok");
        assert_eq!(clean(&"x".repeat(9999)).len(), LONGEST);
    }

    #[test]
    fn text_takes_the_columns_it_is_given() {
        for text in ["", "a", "abcdef", "日本語日本語", "a日b本c", "e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}"] {
            for columns in 0..9 {
                assert_eq!(fit(text, columns, false).width(), columns, "{text:?} in {columns}");
                assert_eq!(fit(text, columns, true).width(), columns, "{text:?} in {columns}");
            }
        }
        assert_eq!(fit("abcdef", 4, false), "abc…");
        assert_eq!(fit("日本語", 4, false), "日… ");
        assert_eq!(fit("7", 3, true), "  7");
    }

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
