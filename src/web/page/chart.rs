//! Charts of the last minutes, and bars of parts: small SVGs with a description. Sizes are attributes, as the page's
//! policy forbids styles in markup.

use std::fmt::Write as _;

use maud::{Markup, html};

use crate::history::{POINTS, Point, Points};

const HEIGHT: f64 = 36.0;

/// `top`: the value of the upper edge; `None`: the highest point.
pub(super) fn chart(
    what: &str,
    points: Option<&Points>,
    of: fn(Point) -> Option<f64>,
    top: Option<f64>,
    show: impl Fn(f64) -> String,
) -> Markup {
    let values: Vec<Option<f64>> = points.into_iter().flat_map(Points::iter).map(of).collect();
    let known = || values.iter().flatten().copied();
    let Some(last) = known().next_back() else { return html! {} };
    let (lowest, highest) = known().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    let words = format!(
        "{what} of the last {}: {} to {}, now {}",
        super::text::span(values.len() as u64),
        show(lowest),
        show(highest),
        show(last)
    );
    let top = top.unwrap_or(highest).max(f64::MIN_POSITIVE);
    html! {
        svg.chart viewBox=(format!("0 0 {POINTS} {HEIGHT}")) preserveAspectRatio="none" role="img" aria-label=(words) {
            path d=(path(&values, top)) {}
        }
    }
}

/// Steps, newest at the right edge; each run of known values is a closed area.
fn path(values: &[Option<f64>], top: f64) -> String {
    let mut path = String::new();
    let mut inside: Option<(f64, usize)> = None;
    let level = |value: f64| (HEIGHT - 1.0 - (value / top).clamp(0.0, 1.0) * (HEIGHT - 3.0)).round();
    for (x, value) in (POINTS.saturating_sub(values.len())..).zip(values) {
        inside = match (value.map(level), inside) {
            (Some(y), None) => {
                let _ = write!(path, "M{x} {HEIGHT}V{y}");
                Some((y, 1))
            }
            (Some(y), Some((before, run))) if y == before => Some((y, run + 1)),
            (Some(y), Some((_, run))) => {
                let _ = write!(path, "h{run}V{y}");
                Some((y, 1))
            }
            (None, Some((_, run))) => {
                let _ = write!(path, "h{run}V{HEIGHT}");
                None
            }
            (None, None) => None,
        };
    }
    if let Some((_, run)) = inside {
        let _ = write!(path, "h{run}V{HEIGHT}");
    }
    path
}

/// One segment of a bar: its colour class and its part of the whole, 0 to 1.
pub(super) struct Segment {
    pub class: String,
    pub ratio: f64,
}

/// Segments from the left; the rest is background.
pub(super) fn bar(words: &str, segments: &[Segment]) -> Markup {
    const WIDTH: f64 = 1000.0;
    let mut x = 0.0;
    let placed: Vec<(f64, f64, &str)> = segments
        .iter()
        .filter(|segment| segment.ratio > 0.0)
        .map(|segment| {
            let width = (segment.ratio * WIDTH).min(WIDTH - x).max(0.0);
            x += width;
            (x - width, width, segment.class.as_str())
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

    #[test]
    fn a_path_has_steps_and_gaps() {
        let values = [Some(0.0), Some(0.0), Some(1.0), None, None, Some(0.5)];
        assert_eq!(path(&values, 1.0), "M294 36V35h2V2h1V36M299 36V19h1V36");
        assert_eq!(path(&[None], 1.0), "");
    }

    #[test]
    fn bars_are_never_too_long() {
        let segment = |ratio| Segment { class: "part-0".to_owned(), ratio };
        let bar = bar("Busy", &[segment(0.7), segment(0.0), segment(0.6)]).into_string();
        assert_eq!(bar.matches("<rect").count(), 2);
        assert!(bar.contains("x=\"700\" width=\"300\""), "{bar}");
    }

    #[test]
    fn without_values_there_is_no_chart() {
        let chart = chart("Busy", None, |point| point.busy, None, |value| value.to_string()).into_string();
        assert_eq!(chart, "");
    }
}
