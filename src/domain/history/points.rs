//! The points of one device. In: one of each snapshot. Out: those of the last five minutes, and columns of a chart for
//! up to half an hour.

use std::collections::VecDeque;

use strum::{EnumString, IntoStaticStr, VariantNames};

/// The points in a ring: five minutes.
pub const POINTS: usize = 300;
pub const INTERVAL_SECONDS: u64 = 1;
/// The columns of a chart, for any window.
pub const COLUMNS: usize = 60;
/// A gap of up to this many seconds, more than between two snapshots, gets the last point, which was current so long.
const BRIDGED: u64 = 10;

/// A length of time up to now. Its text is that of the page's query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr, VariantNames)]
pub enum Window {
    #[strum(serialize = "1m")]
    Minute,
    #[default]
    #[strum(serialize = "5m")]
    FiveMinutes,
    #[strum(serialize = "30m")]
    HalfHour,
}

impl Window {
    pub const ALL: [Self; 3] = [Self::Minute, Self::FiveMinutes, Self::HalfHour];

    #[must_use]
    pub const fn seconds(self) -> u64 {
        match self {
            Self::Minute => 60,
            Self::FiveMinutes => 300,
            Self::HalfHour => 1800,
        }
    }

    /// The seconds of one column.
    #[must_use]
    pub const fn step(self) -> u64 {
        self.seconds() / COLUMNS as u64
    }
}

/// One device in one second. `None`: no reading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// The busy ratio: `model::busy_ratio`.
    pub busy: Option<f64>,
    /// The memory in use, in bytes.
    pub memory: Option<f64>,
    /// The power in watts.
    pub power: Option<f64>,
}

/// The last points of one device, one per second.
#[derive(Clone, Debug, Default)]
pub struct Points {
    latest: u64,
    /// The points, oldest first; the last is of the second `latest`.
    ring: VecDeque<Packed>,
    /// The complete columns of half an hour, oldest first.
    columns: VecDeque<Packed>,
}

/// A point in twelve bytes; NaN is absent. 24 bits are enough for a chart: 8 KiB of 141 GiB.
#[derive(Clone, Copy, Debug)]
struct Packed([f32; 3]);

impl Packed {
    const ABSENT: Self = Self([f32::NAN; 3]);

    fn new(point: Point) -> Self {
        Self([point.busy, point.memory, point.power].map(|value| value.map_or(f32::NAN, |value| value as f32)))
    }

    fn unpacked(self) -> Point {
        let [busy, memory, power] = self.0.map(|value| (!value.is_nan()).then(|| f64::from(value)));
        Point { busy, memory, power }
    }
}

impl Points {
    /// Adds a point, which replaces an earlier one of the same second.
    pub(super) fn add(&mut self, second: u64, point: Point) {
        let packed = Packed::new(point);
        let Some(&last) = self.ring.back() else {
            (self.latest, self.ring) = (second, VecDeque::from([packed]));
            return;
        };
        let Some(ahead) = second.checked_sub(self.latest) else { return };
        self.complete_columns(second);
        if ahead == 0 {
            self.ring.pop_back();
        }
        let missed = ahead.saturating_sub(1);
        let between = if missed < BRIDGED { last } else { Packed::ABSENT };
        for _ in 0..missed.min(POINTS as u64) {
            push(&mut self.ring, POINTS, between);
        }
        push(&mut self.ring, POINTS, packed);
        self.latest = second;
    }

    /// Adds the columns that end before `second`; called before the points from `latest` to `second` are added.
    fn complete_columns(&mut self, second: u64) {
        let step = Window::HalfHour.step();
        let (current, next) = (self.latest / step, second / step);
        if next > current {
            let complete = self.column(step, current);
            push(&mut self.columns, COLUMNS, complete);
            for _ in 0..(next - current - 1).min(COLUMNS as u64) {
                push(&mut self.columns, COLUMNS, Packed::ABSENT);
            }
        }
    }

    /// The means of the window in columns up to `now`, oldest first. A column of which half or more is unknown is
    /// unknown.
    #[must_use]
    pub fn columns(&self, window: Window, now: u64) -> [Point; COLUMNS] {
        let step = window.step();
        let (kept, current) = (self.columns.len() as u64, self.latest / step);
        std::array::from_fn(|column| {
            let Some(number) = (now / step + 1 + column as u64).checked_sub(COLUMNS as u64) else {
                return Point::default();
            };
            let is_kept = window == Window::HalfHour && number < current;
            let packed = match (is_kept, (number + kept).checked_sub(current)) {
                (false, _) => self.column(step, number),
                (true, Some(at)) => self.columns[at as usize],
                (true, None) => Packed::ABSENT,
            };
            packed.unpacked()
        })
    }

    /// The mean of the seconds of this column that are in the ring.
    fn column(&self, step: u64, number: u64) -> Packed {
        let first = self.latest + 1 - self.ring.len() as u64;
        let from = (number * step).max(first);
        let to = ((number + 1) * step).min(self.latest + 1);
        if from >= to {
            return Packed::ABSENT;
        }
        let points = || self.ring.range((from - first) as usize..(to - first) as usize);
        let mean = |quantity: usize| {
            let known = || points().map(|point| point.0[quantity]).filter(|value| !value.is_nan());
            let count = known().count();
            if 2 * count > points().len() { known().sum::<f32>() / count as f32 } else { f32::NAN }
        };
        Packed([mean(0), mean(1), mean(2)])
    }

    /// The second, since the agent's start, of the last point.
    pub fn latest(&self) -> u64 {
        self.latest
    }

    /// The points, oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Point> + '_ {
        self.ring.iter().map(|packed| packed.unpacked())
    }
}

/// Adds a point, and drops the oldest beyond this length.
fn push(ring: &mut VecDeque<Packed>, length: usize, packed: Packed) {
    if ring.len() == length {
        ring.pop_front();
    }
    ring.push_back(packed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(points: &Points) -> Vec<Option<f64>> {
        points.iter().map(|point| point.busy).collect()
    }

    fn point(busy: f64) -> Point {
        Point { busy: Some(busy), ..Point::default() }
    }

    #[test]
    fn one_point_a_second_and_a_gap_without_readings() {
        let mut points = Points::default();
        points.add(10, point(0.25));
        points.add(10, point(0.5));
        points.add(11, Point::default());
        points.add(13, point(1.0));
        points.add(24, point(0.75));
        points.add(23, point(0.0));
        assert_eq!(busy(&points)[..4], [Some(0.5), None, None, Some(1.0)]);
        assert_eq!(busy(&points)[4..14], [None; 10]);
        assert_eq!(busy(&points)[14..], [Some(0.75)]);
    }

    #[test]
    fn a_late_snapshot_leaves_no_gap() {
        let mut points = Points::default();
        points.add(1, point(0.5));
        points.add(11, point(1.0));
        assert_eq!(busy(&points)[..10], [Some(0.5); 10]);
        assert_eq!(busy(&points)[10..], [Some(1.0)]);
    }

    #[test]
    fn columns_are_means_and_half_an_hour_is_kept() {
        let mut points = Points::default();
        for second in 0..4_000 {
            let value = if second < 3_000 { 0.25 } else { 0.75 };
            // The value is unknown for two minutes.
            let known = !(3_300..3_420).contains(&second);
            points.add(second, if known { point(value) } else { Point::default() });
        }
        let busy = |window, now| points.columns(window, now).map(|point| point.busy);
        assert_eq!(busy(Window::Minute, 3_999), [Some(0.75); COLUMNS]);
        let half_hour = busy(Window::HalfHour, 3_999);
        let of = |value: Option<f64>| half_hour.iter().filter(|column| **column == value).count();
        assert_eq!((of(Some(0.25)), of(None), of(Some(0.75))), (26, 4, 30));
        assert_eq!(half_hour[..26], [Some(0.25); 26]);
        // The device has had no point for a minute: its last columns are unknown.
        assert_eq!(busy(Window::FiveMinutes, 4_059)[48..], [None; 12]);
        assert_eq!(busy(Window::HalfHour, 4_059)[58..], [None; 2]);
        // The time before the first point is unknown.
        let mut young = Points::default();
        young.add(7, point(1.0));
        let columns = young.columns(Window::FiveMinutes, 7).map(|point| point.busy);
        assert_eq!((columns[COLUMNS - 1], columns[COLUMNS - 2]), (Some(1.0), None));
        // A gap that is longer than the ring.
        points.add(6_000, point(1.0));
        let half_hour = points.columns(Window::HalfHour, 6_000).map(|point| point.busy);
        assert_eq!(half_hour[..COLUMNS - 1], [None; COLUMNS - 1]);
        assert_eq!(half_hour[COLUMNS - 1], Some(1.0));
    }

    #[test]
    fn a_ring_is_bounded_and_small() {
        let mut points = Points::default();
        for second in 0..1_000 {
            points.add(second, point(second as f64));
        }
        points.add(u64::MAX, point(7.0));
        assert_eq!(points.iter().len(), POINTS);
        assert_eq!(points.iter().last(), Some(point(7.0)));
        assert_eq!(points.columns.len(), COLUMNS);
        assert!(8 * (POINTS + COLUMNS) * size_of::<Packed>() < 100 << 10, "eight GPUs");
    }
}
