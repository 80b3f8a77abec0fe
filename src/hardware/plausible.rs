//! The range of each quantity. Drivers and firmware report sentinels (4294967295 °C, all ones) without an error; and GPM
//! may report only zeroes of a busy GPU.
//!
//! Does not use: where a reading comes from.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::domain::model::Monotonic;

/// A quantity with its range, both ends included: values that a device of today or of the next years can have.
#[derive(Debug)]
pub struct QuantityRange {
    pub name: &'static str,
    least: f64,
    most: f64,
}

/// How many readings were outside their range, or contradicted by another, by quantity.
pub type Implausible = BTreeMap<&'static str, u64>;

macro_rules! quantities {
    ($($(#[$meta:meta])* $constant:ident = $name:literal, $least:literal ..= $most:literal;)*) => {
        $($(#[$meta])* pub static $constant: QuantityRange = QuantityRange { name: $name, least: $least, most: $most };)*
        pub static ALL: &[&QuantityRange] = &[$(&$constant),*];
    };
}

quantities! {
    UTILIZATION = "utilization_ratio", 0.0..=1.0;
    PROCESS_UTILIZATION = "process_utilization_ratio", 0.0..=1.0;
    /// A mean of hardware counters may exceed 1 by the inaccuracy of the window's two ends.
    GPM = "gpm_ratio", 0.0..=1.1;
    POWER = "power_watts", 0.0..=20e3;
    POWER_LIMIT = "power_limit_watts", 0.0..=20e3;
    /// The energy of five years at the highest power.
    ENERGY = "energy_joules", 0.0..=3.2e12;
    TEMPERATURE = "temperature_celsius", -40.0..=150.0;
    TEMPERATURE_MARGIN = "temperature_margin_celsius", -150.0..=190.0;
    CLOCK = "clock_hertz", 0.0..=20e9;
    PERFORMANCE_STATE = "performance_state", 0.0..=15.0;
    /// May exceed 100 % in certain cases, by NVML's header.
    FAN_SPEED = "fan_speed_ratio", 0.0..=2.0;
    /// 16 TiB.
    MEMORY = "memory_bytes", 0.0..=17592186044416.0;
    PROCESS_MEMORY = "process_memory_bytes", 0.0..=17592186044416.0;
    /// Thirty years.
    THROTTLED = "throttled_seconds", 0.0..=1e9;
    /// Below 2^64.
    CYCLES = "sm_cycles", 0.0..=1.8e19;
    TRAFFIC = "traffic_bytes_per_second", 0.0..=1e14;
    /// Below 2^64.
    TRANSFERRED = "transferred_bytes", 0.0..=1.8e19;
    /// Below 2^32.
    ERRORS = "error_count", 0.0..=4.2e9;
    ROWS = "row_or_page_count", 0.0..=1e6;
    PCIE_GENERATION = "pcie_link_generation", 0.0..=15.0;
    PCIE_WIDTH = "pcie_link_width_lanes", 0.0..=64.0;
}

impl QuantityRange {
    /// Whether the value is in the range; false for NaN.
    pub fn contains(&self, value: f64) -> bool {
        (self.least..=self.most).contains(&value)
    }

    pub fn most(&self) -> f64 {
        self.most
    }
}

/// How long GPM may be zero before the power, which is a mean over a second, contradicts it.
const SETTLING: Duration = Duration::from_secs(3);
/// The power above that of an idle board with GPM, also with processes on it.
const IDLE_WATTS: f64 = 200.0;

/// Decides by utilization and power whether a GPU works, so that GPM with zeroes only is a fault of GPM.
#[derive(Debug, Default)]
pub struct Work {
    busy_seconds: f64,
    seconds: f64,
    last_active: Option<Monotonic>,
}

impl Work {
    /// Adds the busy seconds of the last `seconds`.
    pub fn add(&mut self, busy_seconds: Option<f64>, seconds: f64) {
        self.busy_seconds += busy_seconds.unwrap_or(0.0);
        self.seconds += seconds;
    }

    /// Whether a kernel ran for half of the time since the last call, on a GPU with utilization.
    pub fn is_busy(&mut self) -> bool {
        let (busy_seconds, seconds) = (std::mem::take(&mut self.busy_seconds), std::mem::take(&mut self.seconds));
        seconds > 0.0 && busy_seconds >= 0.5 * seconds
    }

    /// Whether a partitioned GPU's `ratios` from GPM are zero though the board draws far more power than an idle one.
    pub fn contradicts(
        &mut self,
        ratios: impl IntoIterator<Item = f64>,
        power_watts: Option<f64>,
        power_limit_watts: Option<f64>,
        now: Monotonic,
    ) -> bool {
        if ratios.into_iter().any(|ratio| ratio > 0.0) {
            self.last_active = Some(now);
        }
        let is_settled = self.last_active.is_none_or(|at| now.since(at) > SETTLING);
        let draws = |(watts, limit): (f64, f64)| watts > (limit / 3.0).max(IDLE_WATTS);
        is_settled && power_watts.zip(power_limit_watts).is_some_and(draws)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn gpm_of_zeroes_is_contradicted_by_a_high_power_after_a_while() {
        let mut work = Work::default();
        let mut contradicts =
            |second, ratio, watts| work.contradicts([0.0, ratio], watts, Some(700.0), Monotonic::from_secs(second));
        let high = Some(500.0);
        assert!(contradicts(1, 0.0, high), "since the start");
        assert!(!contradicts(2, 0.1, high));
        assert!(!contradicts(4, 0.0, high), "the power still falls");
        assert!(contradicts(6, 0.0, high));
        assert!(!contradicts(7, 0.0, Some(120.0)) && !contradicts(8, 0.0, None));
        let lowered = Work::default().contradicts([0.0], Some(130.0), Some(200.0), Monotonic::from_secs(1));
        assert!(!lowered, "an idle board with a low limit");
    }

    #[test]
    fn every_quantity_has_one_row_and_refuses_the_sentinels() {
        let names: BTreeSet<_> = ALL.iter().map(|quantity| quantity.name).collect();
        assert_eq!(names.len(), ALL.len());
        for quantity in ALL {
            assert!(quantity.contains(0.0), "{quantity:?}");
            for sentinel in [u64::MAX as f64, f64::NAN, f64::INFINITY, -1e9] {
                assert!(!quantity.contains(sentinel), "{quantity:?} {sentinel}");
            }
        }
        for (quantity, sentinel) in [(&TEMPERATURE, 4_294_967_295.0), (&POWER, 4_294_967.295), (&CLOCK, 4.294e15)] {
            assert!(!quantity.contains(sentinel));
        }
        for quantity in [&ERRORS, &ROWS, &PCIE_WIDTH, &PCIE_GENERATION, &PERFORMANCE_STATE] {
            assert!(!quantity.contains(f64::from(u32::MAX)), "{quantity:?}");
        }
    }
}
