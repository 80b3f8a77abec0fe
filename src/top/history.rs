//! The polled values of each device, one bar per poll.

use std::collections::{BTreeMap, VecDeque};

use super::rows::DeviceRow;

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
        let part = |used: Option<f64>, whole: Option<f64>| Some(used? / whole.filter(|whole| *whole > 0.0)?);
        match self {
            Self::Busy => row.busy,
            Self::Memory => part(row.memory_used.map(|bytes| bytes as f64), row.memory_total.map(|bytes| bytes as f64)),
            Self::Power => part(row.power, row.power_limit),
        }
    }
}

/// By device and measure, oldest first; `None` where a poll had no value.
#[derive(Clone, Debug, Default)]
pub struct History(BTreeMap<String, BTreeMap<Measure, VecDeque<Option<f64>>>>);

impl History {
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
