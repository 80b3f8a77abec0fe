//! Charts of a window and bars of parts: small SVGs with a description. The hatched background shows where the time is
//! unknown. Sizes are attributes, as the page's policy forbids styles in markup.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::text::percent;
use super::view::window_words;
use crate::domain::history::{Point, Window};

const HEIGHT: f64 = 30.0;

/// What a chart shows, and the unit in which it is shown.
pub(super) struct ChartQuantity {
    name: &'static str,
    of: fn(&Point) -> Option<f64>,
    factor: f64,
    unit: &'static str,
}

pub(super) const BUSY: ChartQuantity = ChartQuantity { name: "busy", of: |point| point.busy, factor: 100.0, unit: "%" };
pub(super) const MEMORY: ChartQuantity =
    ChartQuantity { name: "memory", of: |point| point.memory, factor: 1.0 / (1_u64 << 30) as f64, unit: "GiB" };
pub(super) const POWER: ChartQuantity =
    ChartQuantity { name: "power", of: |point| point.power, factor: 1.0, unit: "W" };

/// The mean busy ratio of the known columns.
pub(super) fn mean_busy(columns: &[Point]) -> Option<f64> {
    let known = || columns.iter().filter_map(|column| column.busy);
    let count = known().count();
    (count > 0).then(|| known().sum::<f64>() / count as f64)
}

/// The chart of a quantity. `columns`: those of the window in which the agent ran. `top`: the value of the upper edge;
/// `None`: the highest column. The script shows the value under the pointer.
pub(super) fn chart(quantity: &ChartQuantity, window: Window, columns: &[Point], top: Option<f64>) -> Markup {
    let ChartQuantity { name, of, factor, unit } = *quantity;
    let known = || columns.iter().filter_map(of);
    let show = |value: f64| format!("{:.0} {unit}", value * factor);
    let (lowest, highest) = known().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    let (count, all) = (known().count(), columns.len());
    let range = if count == 0 { "unknown".to_owned() } else { format!("{} to {}", show(lowest), show(highest)) };
    let mut words = format!("{name}, {}: {range}", window_words(window));
    if 0 < count && count < all {
        let _ = write!(words, ", {} of the time unknown", percent(1.0 - count as f64 / all as f64));
    }
    let top = top.or((count > 0).then_some(highest));
    let values: Vec<Option<f64>> = columns.iter().map(of).collect();
    let (known, line) = paths(&values, top.unwrap_or_default().max(f64::MIN_POSITIVE));
    let shown = values.iter().map(|value| value.map_or_else(String::new, |value| format!("{:.0}", value * factor)));
    let seconds = all as u64 * window.step();
    html! {
        div.plot {
            svg.chart viewBox=(format!("0 0 {all} {HEIGHT}")) preserveAspectRatio="none" role="img" aria-label=(words)
                data-values=(shown.collect::<Vec<_>>().join(",")) data-unit=(unit) data-step=(window.step()) {
                @if !known.is_empty() { path.known d=(known) {} path.line d=(line) {} }
            }
            @if let Some(top) = top { span.scale aria-hidden="true" { (show(top)) } }
            div.axis aria-hidden="true" { span { "−" (length(seconds)) } span { "now" } }
        }
    }
}

/// The length of a window in short form: charts are narrow.
fn length(seconds: u64) -> String {
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, 0) => format!("{minutes} min"),
        (minutes, seconds) => format!("{minutes}:{seconds:02}"),
    }
}

/// The known time, and the values as steps: each run of known values is a closed area.
fn paths(values: &[Option<f64>], top: f64) -> (String, String) {
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

/// A bar: segments from the left, then what is idle or free, then what is unknown.
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

    fn columns(values: &[Option<f64>]) -> Vec<Point> {
        values.iter().map(|busy| Point { busy: *busy, ..Point::default() }).collect()
    }

    #[test]
    fn a_path_has_steps_and_unknown_time_is_not_covered() {
        let values = [Some(0.0), Some(0.0), Some(1.0), None, None, Some(0.5)];
        let (known, line) = paths(&values, 1.0);
        assert_eq!(known, "M0 0h3v30h-3zM5 0h1v30h-1z");
        assert_eq!(line, "M0 30V29h2V2h1V30M5 30V16h1V30");
        let columns = columns(&values);
        let chart = chart(&BUSY, Window::FiveMinutes, &columns, Some(1.0)).into_string();
        assert!(chart.contains("busy, last 5 min: 0 % to 100 %, 33\u{a0}% of the time unknown"), "{chart}");
        assert_eq!(mean_busy(&columns), Some(0.375));
    }

    #[test]
    fn a_chart_has_its_scale_its_bounds_and_the_value_of_each_column() {
        let columns = columns(&[Some(0.25), None, Some(0.5)]);
        let chart = chart(&BUSY, Window::FiveMinutes, &columns, Some(1.0)).into_string();
        assert!(chart.contains("viewBox=\"0 0 3 30\""), "as wide as the time that the agent ran: {chart}");
        assert!(chart.contains("data-values=\"25,,50\" data-unit=\"%\" data-step=\"5\""), "{chart}");
        assert!(chart.contains(">100 %</span>") && chart.contains("−15 s") && chart.contains(">now<"), "{chart}");
    }

    #[test]
    fn the_bound_of_a_window_is_short() {
        for (count, expected) in [(1, "−5 s"), (22, "−1:50"), (60, "−5 min")] {
            let columns = columns(&[Some(0.5); 60][..count]);
            let chart = chart(&BUSY, Window::FiveMinutes, &columns, Some(1.0)).into_string();
            assert!(chart.contains(&format!(">{expected}<")), "{chart}");
        }
    }

    #[test]
    fn a_chart_without_values_is_unknown() {
        let chart = chart(&BUSY, Window::Minute, &columns(&[None, None]), None).into_string();
        assert!(chart.contains("busy, last min: unknown") && !chart.contains("<path"), "{chart}");
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
