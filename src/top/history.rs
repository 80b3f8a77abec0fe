//! The values of each device, one bar per poll; before the first poll those of the agent's history.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::rows::DeviceRow;
use crate::client;

/// Ten minutes of one poll a second.
const KEPT: usize = 600;

/// Which value the bars show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Measure {
    Busy,
    Memory,
    Power,
}

impl Measure {
    pub const ALL: [Self; 3] = [Self::Busy, Self::Memory, Self::Power];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Memory => "memory",
            Self::Power => "power",
        }
    }

    pub const fn next(self) -> Self {
        match self {
            Self::Busy => Self::Memory,
            Self::Memory => Self::Power,
            Self::Power => Self::Busy,
        }
    }

    /// 0 to 1: of the time, of the memory, of the power limit.
    pub fn of(self, row: &DeviceRow) -> Option<f64> {
        let used = match self {
            Self::Busy => row.busy,
            Self::Memory => row.memory_used.map(|bytes| bytes as f64),
            Self::Power => row.power,
        };
        Some(used? / self.whole(row)?)
    }

    /// What the measure's values are a part of.
    fn whole(self, row: &DeviceRow) -> Option<f64> {
        let whole = match self {
            Self::Busy => Some(1.0),
            Self::Memory => row.memory_total.map(|bytes| bytes as f64),
            Self::Power => row.power_limit,
        };
        whole.filter(|whole| *whole > 0.0)
    }

    fn column(self, past: &client::Past) -> &[Option<f64>] {
        match self {
            Self::Busy => &past.busy_ratio,
            Self::Memory => &past.memory_used_bytes,
            Self::Power => &past.power_watts,
        }
    }
}

/// By device and measure, oldest first; `None` where a poll had no value.
#[derive(Clone, Debug, Default)]
pub struct History(BTreeMap<String, BTreeMap<Measure, VecDeque<Option<f64>>>>);

impl History {
    /// Starts with what the agent has of these devices, as if it had been polled at this interval. To be called once, before the
    /// first poll is added.
    pub fn begin(&mut self, rows: &[DeviceRow], history: &client::History, interval: Duration) {
        for past in &history.devices {
            let Some(row) = rows.iter().find(|row| row.key == *past.mig.as_ref().unwrap_or(&past.gpu)) else {
                continue;
            };
            for measure in Measure::ALL {
                let Some(whole) = measure.whole(row) else { continue };
                let polls = polls(measure.column(past), history.interval_seconds, past.seconds_ago, interval);
                let values = polls.into_iter().map(|value| value.map(|value| value / whole)).collect();
                self.0.entry(row.key.clone()).or_default().insert(measure, values);
            }
        }
    }

    /// Adds a poll. A device without a row is dropped.
    pub fn add(&mut self, rows: &[DeviceRow]) {
        self.0.retain(|key, _| rows.iter().any(|row| row.key == *key));
        for row in rows {
            let kept = self.0.entry(row.key.clone()).or_default();
            for measure in Measure::ALL {
                push(kept.entry(measure).or_default(), measure.of(row));
            }
        }
    }

    /// Adds a failed poll.
    pub fn failed(&mut self) {
        for values in self.0.values_mut().flat_map(BTreeMap::values_mut) {
            push(values, None);
        }
    }

    /// The last `count`, the latest last; fewer where there have been fewer polls.
    pub fn last(&self, key: &str, measure: Measure, count: usize) -> Vec<Option<f64>> {
        let Some(values) = self.0.get(key).and_then(|kept| kept.get(&measure)) else { return vec![] };
        values.iter().skip(values.len().saturating_sub(count)).copied().collect()
    }
}

/// One value for each poll that would have been since the first point: the mean of the points after the poll before. `age` is that
/// of the last point. Oldest first.
fn polls(points: &[Option<f64>], point_seconds: f64, age: f64, interval: Duration) -> Vec<Option<f64>> {
    let interval = interval.as_secs_f64();
    if point_seconds <= 0.0 || interval <= 0.0 {
        return vec![];
    }
    // Of the first point; the last poll of the past is one interval ago.
    let oldest = age.max(0.0) + points.len() as f64 * point_seconds;
    let count = ((oldest / interval) as usize).min(KEPT);
    let mean = |poll: usize| {
        let first = ((poll as f64 * interval - age) / point_seconds).floor();
        let last = (((poll + 1) as f64 * interval - age) / point_seconds).ceil().max(first + 1.0);
        let of_poll = points.iter().rev().enumerate().filter(|(back, _)| (first..last).contains(&(*back as f64)));
        let known: Vec<f64> = of_poll.filter_map(|(_, point)| *point).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    (0..count).rev().map(mean).collect()
}

fn push(values: &mut VecDeque<Option<f64>>, value: Option<f64>) {
    if values.len() == KEPT {
        values.pop_front();
    }
    values.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_of_the_agent_becomes_polls() {
        let points = [Some(0.0), Some(1.0), None, Some(0.5), Some(1.0), None];
        let polls = |age, interval| super::polls(&points, 1.0, age, Duration::from_millis(interval));
        assert_eq!(polls(0.0, 1000), points);
        assert_eq!(polls(2.0, 1000)[6..], [None, None], "the last point is two seconds old");
        assert_eq!(polls(0.0, 2000), [Some(0.5), Some(0.5), Some(1.0)]);
        assert_eq!(polls(0.0, 500)[..4], [Some(0.0), Some(0.0), Some(1.0), Some(1.0)]);
        assert_eq!(polls(0.0, 60_000), []);
        assert_eq!(super::polls(&vec![None; 9_999], 1.0, 0.0, Duration::from_secs(1)).len(), KEPT);
    }

    #[test]
    fn bars_begin_with_the_parts_of_the_whole() {
        let row = DeviceRow { key: "G".into(), memory_total: Some(200), busy: Some(0.75), ..DeviceRow::default() };
        let past = client::Past {
            gpu: "G".into(),
            busy_ratio: vec![Some(0.5)],
            memory_used_bytes: vec![Some(50.0)],
            power_watts: vec![Some(300.0)],
            ..client::Past::default()
        };
        let others = client::Past { gpu: "gone".into(), ..past.clone() };
        let agent =
            client::History { interval_seconds: 1.0, devices: vec![past, others], ..client::History::default() };
        let mut history = History::default();
        history.begin(std::slice::from_ref(&row), &agent, Duration::from_secs(1));
        history.add(&[row]);
        assert_eq!(history.last("G", Measure::Busy, 9), [Some(0.5), Some(0.75)]);
        assert_eq!(history.last("G", Measure::Memory, 9), [Some(0.25), None]);
        assert_eq!(history.last("G", Measure::Power, 9), [None], "the power limit is not known");
        assert!(history.last("gone", Measure::Busy, 9).is_empty());
    }

    #[test]
    fn a_gap_stays_a_gap_and_a_missing_device_is_dropped() {
        let row = |busy| DeviceRow { key: "G".into(), busy, ..DeviceRow::default() };
        let mut history = History::default();
        history.add(&[row(Some(0.5))]);
        history.failed();
        history.add(&[row(Some(0.0))]);
        assert_eq!(history.last("G", Measure::Busy, 9), [Some(0.5), None, Some(0.0)]);
        assert_eq!(history.last("G", Measure::Busy, 2), [None, Some(0.0)]);
        assert_eq!(history.last("G", Measure::Power, 1), [None]);
        for _ in 0..2 * KEPT {
            history.failed();
        }
        assert_eq!(history.last("G", Measure::Busy, usize::MAX).len(), KEPT);
        history.add(&[]);
        assert!(history.last("G", Measure::Busy, 9).is_empty());
    }
}
