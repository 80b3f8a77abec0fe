use std::collections::BTreeMap;

use crate::domain::model::DividedQuantity;

/// Floating point alone: what is summed is of like size.
const TOLERANCE: f64 = 1e-9;

/// Counts where shares do not add up to their device, or are no amounts at all. That is always a defect: of podmeter,
/// or of a reading that is no number.
#[derive(Debug)]
pub struct Audit {
    violations: BTreeMap<DividedQuantity, u64>,
}

impl Default for Audit {
    fn default() -> Self {
        Self { violations: DividedQuantity::ALL.map(|quantity| (quantity, 0)).into() }
    }
}

impl Audit {
    pub fn violations(&self) -> &BTreeMap<DividedQuantity, u64> {
        &self.violations
    }

    /// `total`, unless it is no amount.
    pub fn amount(&mut self, quantity: DividedQuantity, total: Option<f64>) -> Option<f64> {
        let total = total?;
        if total.is_finite() && total >= 0.0 {
            return Some(total);
        }
        self.count(quantity);
        None
    }

    /// Holds the shares against what was to be divided.
    pub fn check(&mut self, quantity: DividedQuantity, whole: f64, parts: impl Iterator<Item = f64>) {
        let (mut sum, mut sound) = (0.0, true);
        for part in parts {
            sum += part;
            sound &= part.is_finite() && part >= 0.0;
        }
        if !sound || (sum - whole).abs() > TOLERANCE * whole.abs() {
            self.count(quantity);
        }
    }

    fn count(&mut self, quantity: DividedQuantity) {
        *self.violations.entry(quantity).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_add_up_is_counted_by_quantity() {
        let mut audit = Audit::default();
        audit.check(DividedQuantity::Busy, 1.0, [0.25, 0.75].into_iter());
        audit.check(DividedQuantity::Energy, 0.3, [0.1, 0.2].into_iter());
        assert!(audit.violations().values().all(|count| *count == 0), "rounding is none");
        audit.check(DividedQuantity::Busy, 1.0, [0.25, 0.5].into_iter());
        audit.check(DividedQuantity::Energy, 1.0, [2.0, -1.0].into_iter());
        audit.check(DividedQuantity::Memory, 1.0, [f64::NAN].into_iter());
        assert_eq!(audit.amount(DividedQuantity::Memory, Some(f64::INFINITY)), None);
        assert_eq!(audit.violations().values().copied().collect::<Vec<_>>(), [1, 1, 2]);
    }
}
