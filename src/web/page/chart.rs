//! Charts of a window and bars of parts: small SVGs with a description. Their background is hatched for unknown time;
//! known time covers it. Sizes are attributes, as the page's policy forbids styles in markup.

use std::fmt::Write as _;

use maud::{Markup, html};

use crate::history::{COLUMNS, Point};

const HEIGHT: f64 = 30.0;

pub(super) type Columns = [Point; COLUMNS];

/// The mean of the known columns.
pub(super) fn mean(columns: &Columns, of: fn(&Point) -> Option<f64>) -> Option<f64> {
    let known = || columns.iter().filter_map(of);
    let count = known().count();
    (count > 0).then(|| known().sum::<f64>() / count as f64)
}

/// `top`: the value of the upper edge; `None`: the highest column.
pub(super) fn chart(
    words: &str,
    columns: &Columns,
    of: fn(&Point) -> Option<f64>,
    top: Option<f64>,
    show: impl Fn(f64) -> String,
) -> Markup {
    let known = || columns.iter().filter_map(of);
    let (lowest, highest) = known().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    let count = known().count();
    let mut words = match count {
        0 => format!("{words}: unknown"),
        _ => format!("{words}: {} to {}", show(lowest), show(highest)),
    };
    if 0 < count && count < COLUMNS {
        let _ = write!(words, ", {} of the time unknown", super::text::percent(1.0 - count as f64 / COLUMNS as f64));
    }
    let (known, line) = paths(columns.map(|column| of(&column)), top.unwrap_or(highest).max(f64::MIN_POSITIVE));
    html! {
        svg.chart viewBox=(format!("0 0 {COLUMNS} {HEIGHT}")) preserveAspectRatio="none" role="img" aria-label=(words) {
            @if !known.is_empty() { path.known d=(known) {} path.line d=(line) {} }
        }
    }
}

/// The known time, and the values as steps: each run of known values is a closed area.
fn paths(values: [Option<f64>; COLUMNS], top: f64) -> (String, String) {
    let (mut known, mut line) = (String::new(), String::new());
    let level = |value: f64| (HEIGHT - 1.0 - (value / top).clamp(0.0, 1.0) * (HEIGHT - 3.0)).round();
    let mut x = 0;
    for run in values.chunk_by(|one, other| one.is_some() == other.is_some()) {
        let width = run.len();
        if run[0].is_some() {
            let _ = write!(known, "M{x} 0h{width}v{HEIGHT}h-{width}z");
            let _ = write!(line, "M{x} {HEIGHT}");
            for same in run.chunk_by(|one, other| one.map(level) == other.map(level)) {
                let _ = write!(line, "V{}h{}", same[0].map_or(HEIGHT, level), same.len());
            }
            let _ = write!(line, "V{HEIGHT}");
        }
        x += width;
    }
    (known, line)
}

/// One segment of a bar: its colour class and its part of the whole, 0 to 1.
pub(super) struct Segment {
    pub class: String,
    pub ratio: f64,
}

/// Segments from the left, then what is idle or free, then what is unknown.
pub(super) fn bar(words: &str, segments: Vec<Segment>, unknown: f64) -> Markup {
    const WIDTH: f64 = 1000.0;
    let known = (1.0 - unknown).clamp(0.0, 1.0) * WIDTH;
    let rest = Segment { class: "part-free".to_owned(), ratio: 1.0 };
    let mut x = 0.0;
    let placed: Vec<(f64, f64, String)> = segments
        .into_iter()
        .chain([rest])
        .filter_map(|segment| {
            let (from, width) = (x, (segment.ratio * WIDTH).min(known - x));
            x += width.max(0.0);
            (width >= 0.5).then_some((from, width, segment.class))
        })
        .collect();
    html! {
        svg.bar viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label=(words) {
            @for (x, width, class) in placed {
                rect class=(class) x=(format!("{x:.0}")) width=(format!("{width:.0}")) height="10" {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(values: &[Option<f64>]) -> Columns {
        std::array::from_fn(|place| Point { busy: values.get(place).copied().flatten(), ..Point::default() })
    }

    #[test]
    fn a_path_has_steps_and_unknown_time_is_not_covered() {
        let columns = columns(&[Some(0.0), Some(0.0), Some(1.0), None, None, Some(0.5)]);
        let (known, line) = paths(columns.map(|column| column.busy), 1.0);
        assert_eq!(known, "M0 0h3v30h-3zM5 0h1v30h-1z");
        assert_eq!(line, "M0 30V29h2V2h1V30M5 30V16h1V30");
        let chart = chart("busy", &columns, |point| point.busy, Some(1.0), super::super::text::percent).into_string();
        assert!(chart.contains("busy: 0 % to 100 %, 93 % of the time unknown"), "{chart}");
        assert_eq!(mean(&columns, |point| point.busy), Some(0.375));
    }

    #[test]
    fn a_chart_without_values_is_unknown() {
        let chart = chart("busy", &columns(&[]), |point| point.busy, None, |value| value.to_string()).into_string();
        assert!(chart.contains("busy: unknown") && !chart.contains("<path"), "{chart}");
    }

    #[test]
    fn bars_are_never_too_long_and_end_where_the_time_is_unknown() {
        let segment = |ratio| Segment { class: "part-0".to_owned(), ratio };
        let text = bar("Busy", vec![segment(0.7), segment(0.0), segment(0.6)], 0.0).into_string();
        assert_eq!(text.matches("<rect").count(), 2);
        assert!(text.contains("x=\"700\" width=\"300\""), "{text}");
        let text = bar("Busy", vec![segment(0.5)], 0.2).into_string();
        assert!(text.contains("class=\"part-free\" x=\"500\" width=\"300\""), "the last fifth is not covered: {text}");
        assert!(!bar("Busy", vec![], 1.0).into_string().contains("<rect"));
    }
}
