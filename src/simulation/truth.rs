use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::model::{ContainerRef, Monotonic};

/// The simulated use: the reference for other accounts.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    rows: BTreeMap<(ContainerRef, String), TruthEntry>,
}

/// One container and one device it held or holds.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct TrueHolding {
    pub namespace: String,
    pub pod: String,
    pub container: String,
    pub device: String,
    pub held_seconds: f64,
    /// The exact integral of its load curve.
    pub busy_seconds: f64,
}

#[derive(Clone, Debug)]
struct TruthEntry {
    held: TrueHolding,
    /// Since when it does what it does, and how much.
    doing: Option<(Monotonic, f64)>,
}

impl Truth {
    /// From `at` on the container holds the device and loads it this much.
    pub fn set(&mut self, at: Monotonic, container: &ContainerRef, device: &str, utilization: f64) {
        let row = self.rows.entry((container.clone(), device.to_owned())).or_insert_with(|| TruthEntry {
            held: TrueHolding {
                namespace: container.namespace.to_string(),
                pod: container.pod.to_string(),
                container: container.container.to_string(),
                device: device.to_owned(),
                held_seconds: 0.0,
                busy_seconds: 0.0,
            },
            doing: None,
        });
        row.advance(at);
        row.doing = Some((at, utilization));
    }

    /// From `at` on the container no longer holds the device.
    pub fn release(&mut self, at: Monotonic, container: &ContainerRef, device: &str) {
        if let Some(row) = self.rows.get_mut(&(container.clone(), device.to_owned())) {
            row.advance(at);
            row.doing = None;
        }
    }

    /// All rows at `now`.
    pub fn at(&self, now: Monotonic) -> Vec<TrueHolding> {
        let mut rows = self.rows.clone();
        rows.values_mut().for_each(|row| row.advance(now));
        rows.into_values().map(|row| row.held).collect()
    }
}

impl TruthEntry {
    fn advance(&mut self, now: Monotonic) {
        if let Some((since, utilization)) = &mut self.doing {
            let seconds = now.since(*since).as_secs_f64();
            self.held.held_seconds += seconds;
            self.held.busy_seconds += seconds * *utilization;
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
