//! The true use of the simulation's holders: the reference for podmeter's accounts.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::domain::model::{ContainerRef, Monotonic};

/// The simulated use: the reference for other accounts.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    rows: BTreeMap<(ContainerRef, String), TrueHolding>,
}

/// One container and one device it held or holds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TrueHolding {
    #[serde(flatten)]
    pub container: ContainerRef,
    pub device: String,
    pub held_seconds: f64,
    /// The exact integral of its load curve.
    pub busy_seconds: f64,
    /// The time of the last change and the utilization since; `None` when it no longer holds the device.
    #[serde(skip)]
    current: Option<(Monotonic, f64)>,
}

impl Truth {
    /// Sets that the container holds the device from `at` on, with this utilization.
    pub fn set(&mut self, at: Monotonic, container: &ContainerRef, device: &str, utilization: f64) {
        let key = (container.clone(), device.to_owned());
        let new = || TrueHolding { container: key.0.clone(), device: key.1.clone(), ..TrueHolding::default() };
        let row = self.rows.entry(key.clone()).or_insert_with(new);
        row.advance(at);
        row.current = Some((at, utilization));
    }

    /// Sets that the container no longer holds the device from `at` on.
    pub fn release(&mut self, at: Monotonic, container: &ContainerRef, device: &str) {
        if let Some(row) = self.rows.get_mut(&(container.clone(), device.to_owned())) {
            row.advance(at);
            row.current = None;
        }
    }

    /// All rows at `now`.
    pub fn at(&self, now: Monotonic) -> Vec<TrueHolding> {
        let mut rows = self.rows.clone();
        rows.values_mut().for_each(|row| row.advance(now));
        rows.into_values().collect()
    }
}

impl TrueHolding {
    fn advance(&mut self, now: Monotonic) {
        if let Some((since, utilization)) = &mut self.current {
            let seconds = now.since(*since).as_secs_f64();
            self.held_seconds += seconds;
            self.busy_seconds += seconds * *utilization;
            *since = (*since).max(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_integrates_what_was_set() {
        let container = ContainerRef::new("n", "p", "c");
        let mut truth = Truth::default();
        truth.set(Monotonic::from_secs(1), &container, "GPU-0", 0.5);
        truth.set(Monotonic::from_secs(3), &container, "GPU-0", 1.0);
        truth.release(Monotonic::from_secs(4), &container, "GPU-0");
        let held = truth.at(Monotonic::from_secs(100));
        assert_eq!((held[0].held_seconds, held[0].busy_seconds), (3.0, 2.0));
    }
}
