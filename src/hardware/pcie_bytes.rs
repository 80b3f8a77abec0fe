//! Bytes over PCIe where the driver has no counters of them: GPM's mean rates times the time between its samples.
//!
//! In: readings with their time. Out: counters that never fall, across readers and sessions. Does not use: clocks.

use crate::domain::model::{Medium, Monotonic, Slow};

/// The counters of one GPU, transmitted and received.
#[derive(Debug, Default)]
pub struct PcieBytes {
    /// The counted bytes; `None` before the first. A counter of the driver that appears after that has no effect.
    counted: [Option<f64>; 2],
    /// Whether the driver has had a counter; `None` before the first slow pass.
    driver_has: Option<[bool; 2]>,
    /// The time of the last medium pass, unless a gap began after it.
    sampled: Option<Monotonic>,
}

impl PcieBytes {
    /// Begins a gap: the rates of the next pass are also of time that was not read.
    pub fn interrupt(&mut self) {
        self.sampled = None;
    }

    /// Records which counters the driver has; `slow` is as the driver gave it.
    pub fn add_slow(&mut self, slow: &Slow) {
        let has = [slow.pcie.transmitted_bytes, slow.pcie.received_bytes].map(|bytes| bytes.is_some());
        let had = self.driver_has.get_or_insert_default();
        *had = [had[0] || has[0], had[1] || has[1]];
    }

    pub fn add_medium(&mut self, at: Monotonic, medium: &Medium) {
        let (Some(before), Some(driver_has)) = (self.sampled.replace(at), self.driver_has) else { return };
        let seconds = at.since(before).as_secs_f64();
        let traffic = &medium.rates.traffic;
        for (direction, rate) in [traffic.pcie_transmitted, traffic.pcie_received].into_iter().enumerate() {
            // Once this has begun, the driver's counter is not used.
            if let Some(rate) = rate.filter(|_| self.counted[direction].is_some() || !driver_has[direction]) {
                *self.counted[direction].get_or_insert(0.0) += rate * seconds;
            }
        }
    }

    pub fn set(&self, slow: &mut Slow) {
        let [transmitted, received] = self.counted;
        slow.pcie.transmitted_bytes = transmitted.or(slow.pcie.transmitted_bytes);
        slow.pcie.received_bytes = received.or(slow.pcie.received_bytes);
    }
}
