use std::collections::VecDeque;

/// Of one ring: five minutes.
pub const POINTS: usize = 300;
pub const INTERVAL_SECONDS: u64 = 1;
/// A late snapshot leaves no gap of up to this length: the last one was current until then.
const BRIDGED: u64 = 3;

/// One device in one second. `None`: no reading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// 0 to 1. Of a MIG device: how active its SMs were.
    pub busy: Option<f64>,
    /// Bytes in use.
    pub memory: Option<f64>,
    /// Watts.
    pub power: Option<f64>,
}

/// The last points of one device, one per second.
#[derive(Debug, Default)]
pub struct Points {
    latest: u64,
    /// Oldest first; the last is of `latest`.
    ring: VecDeque<Packed>,
}

/// Busy, memory and power in twelve bytes; NaN is absent. 24 bits are enough for a chart: 8 KiB of 141 GiB.
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
    /// A later point of the same second replaces the earlier one.
    pub(super) fn note(&mut self, second: u64, point: Point) {
        let packed = Packed::new(point);
        let Some(&last) = self.ring.back() else {
            (self.latest, self.ring) = (second, VecDeque::from([packed]));
            return;
        };
        let Some(ahead) = second.checked_sub(self.latest) else { return };
        if ahead == 0 {
            self.ring.pop_back();
        }
        let missed = ahead.saturating_sub(1);
        let between = if missed < BRIDGED { last } else { Packed::ABSENT };
        for _ in 0..missed.min(POINTS as u64) {
            self.push(between);
        }
        self.push(packed);
        self.latest = second;
    }

    /// The second, since the agent's start, of the last point.
    #[must_use]
    pub fn latest(&self) -> u64 {
        self.latest
    }

    /// Oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Point> + '_ {
        self.ring.iter().map(|packed| packed.unpacked())
    }

    fn push(&mut self, packed: Packed) {
        if self.ring.len() == POINTS {
            self.ring.pop_front();
        }
        self.ring.push_back(packed);
    }
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
        points.note(10, point(0.25));
        points.note(10, point(0.5));
        points.note(11, Point::default());
        points.note(13, point(1.0));
        points.note(18, point(0.75));
        points.note(17, point(0.0));
        let late = [None, None, None, None];
        assert_eq!(busy(&points)[..4], [Some(0.5), None, None, Some(1.0)]);
        assert_eq!(busy(&points)[4..8], late);
        assert_eq!(busy(&points)[8..], [Some(0.75)]);
    }

    #[test]
    fn a_late_snapshot_leaves_no_gap() {
        let mut points = Points::default();
        points.note(1, point(0.5));
        points.note(3, point(1.0));
        assert_eq!(busy(&points), [Some(0.5), Some(0.5), Some(1.0)]);
    }

    #[test]
    fn a_ring_is_bounded_and_small() {
        let mut points = Points::default();
        for second in 0..1_000 {
            points.note(second, point(second as f64));
        }
        points.note(u64::MAX, point(7.0));
        assert_eq!(points.iter().len(), POINTS);
        assert_eq!(points.iter().last(), Some(point(7.0)));
        assert!(8 * POINTS * size_of::<Packed>() < 100 << 10, "eight GPUs");
    }
}
