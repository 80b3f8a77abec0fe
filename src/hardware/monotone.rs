//! Counters that never fall, whatever the driver's do at a reload or a reset.

use std::collections::BTreeMap;

use crate::model::{Medium, Slow};

/// One GPU's driver counters by (group, name), for as long as the agent runs.
#[derive(Debug, Default)]
pub struct Monotone {
    counters: BTreeMap<(&'static str, &'static str), Counter>,
}

#[derive(Debug, Default)]
struct Counter {
    /// What was counted before the driver's last restart.
    before: f64,
    last: f64,
}

impl Monotone {
    /// A value below the last one means a restart from zero: the new value comes on top.
    pub fn raise(&mut self, group: &'static str, name: &'static str, value: f64) -> f64 {
        let counter = self.counters.entry((group, name)).or_default();
        if value < counter.last {
            counter.before += counter.last;
        }
        counter.last = value;
        counter.before + value
    }

    fn raise_count(&mut self, group: &'static str, name: &'static str, value: &mut u64) {
        *value = self.raise(group, name, *value as f64) as u64;
    }

    fn raise_optional(&mut self, group: &'static str, name: &'static str, value: &mut Option<f64>) {
        if let Some(value) = value {
            *value = self.raise(group, name, *value);
        }
    }

    pub fn medium(&mut self, medium: &mut Medium) {
        for (reason, seconds) in &mut medium.throttled_seconds {
            *seconds = self.raise("throttled", reason, *seconds);
        }
        self.raise_optional("cycles", "sm", &mut medium.sm_cycles);
        self.raise_optional("cycles", "sm_active", &mut medium.sm_active_cycles);
    }

    pub fn slow(&mut self, slow: &mut Slow) {
        for location in &mut slow.ecc {
            if let Some(corrected) = &mut location.corrected {
                self.raise_count("ecc_corrected", location.location, corrected);
            }
            if let Some(uncorrected) = &mut location.uncorrected {
                self.raise_count("ecc_uncorrected", location.location, uncorrected);
            }
        }
        if let Some(corrected) = &mut slow.ecc_lifetime_corrected {
            self.raise_count("ecc_lifetime", "corrected", corrected);
        }
        if let Some(uncorrected) = &mut slow.ecc_lifetime_uncorrected {
            self.raise_count("ecc_lifetime", "uncorrected", uncorrected);
        }
        if let Some(remap) = &mut slow.row_remap {
            self.raise_count("row_remap", "correctable", &mut remap.correctable);
            self.raise_count("row_remap", "uncorrectable", &mut remap.uncorrectable);
        }
        if let Some(replays) = &mut slow.pcie.replays {
            self.raise_count("pcie", "replays", replays);
        }
        for (error, count) in &mut slow.pcie.errors {
            self.raise_count("pcie_errors", error, count);
        }
        self.raise_optional("pcie", "transmitted", &mut slow.pcie.transmitted_bytes);
        self.raise_optional("pcie", "received", &mut slow.pcie.received_bytes);
        for (error, count) in &mut slow.nvlink.errors {
            self.raise_count("nvlink_errors", error, count);
        }
        self.raise_optional("nvlink", "transmitted", &mut slow.nvlink.transmitted_bytes);
        self.raise_optional("nvlink", "received", &mut slow.nvlink.received_bytes);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::EccLocation;

    #[test]
    fn a_restart_comes_on_top() {
        let mut monotone = Monotone::default();
        let seen: Vec<_> = [5.0, 9.0, 2.0, 3.0, 0.0, 4.0].map(|value| monotone.raise("a", "b", value)).into();
        assert_eq!(seen, [5.0, 9.0, 11.0, 12.0, 12.0, 16.0]);
    }

    #[test]
    fn corrected_and_uncorrected_errors_are_kept_apart() {
        let mut monotone = Monotone::default();
        let slow = |corrected, uncorrected| Slow {
            ecc: vec![EccLocation { location: "dram", corrected: Some(corrected), uncorrected: Some(uncorrected) }],
            ..Slow::default()
        };
        monotone.slow(&mut slow(7, 1));
        let mut after = slow(2, 1);
        monotone.slow(&mut after);
        assert_eq!(after.ecc[0], EccLocation { location: "dram", corrected: Some(9), uncorrected: Some(1) });
    }

    proptest! {
        #[test]
        fn never_falls(values in prop::collection::vec(0_u32.., 1..50)) {
            let mut monotone = Monotone::default();
            let mut last = 0.0;
            for value in values {
                let raised = monotone.raise("a", "b", f64::from(value));
                prop_assert!(raised >= last && raised >= f64::from(value));
                last = raised;
            }
        }
    }
}
