//! The range of each quantity. Drivers and firmware report sentinels (4294967295 °C, all ones) without an error.
//!
//! Does not use: where a reading comes from.

use std::collections::BTreeMap;

/// A quantity with its range, both ends included: values that a device of today or of the next years can have.
#[derive(Debug)]
pub struct QuantityRange {
    pub name: &'static str,
    least: f64,
    most: f64,
}

/// How many readings were outside their range, by quantity.
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
    /// Means of hardware counters, which exceed the whole by what the two ends of a window differ.
    GPM = "gpm_ratio", 0.0..=1.1;
    POWER = "power_watts", 0.0..=20e3;
    POWER_LIMIT = "power_limit_watts", 0.0..=20e3;
    /// Five years at the highest power.
    ENERGY = "energy_joules", 0.0..=3.2e12;
    TEMPERATURE = "temperature_celsius", -40.0..=150.0;
    TEMPERATURE_MARGIN = "temperature_margin_celsius", -150.0..=190.0;
    CLOCK = "clock_hertz", 0.0..=20e9;
    PERFORMANCE_STATE = "performance_state", 0.0..=15.0;
    /// The header: it may exceed 100 % in certain cases.
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
    BIT_ERRORS = "bit_error_ratio", 0.0..=1.0;
    ROWS = "row_or_page_count", 0.0..=1e6;
    PCIE_GENERATION = "pcie_link_generation", 0.0..=15.0;
    PCIE_WIDTH = "pcie_link_width_lanes", 0.0..=64.0;
}

impl QuantityRange {
    /// False for NaN, too.
    pub fn holds(&self, value: f64) -> bool {
        (self.least..=self.most).contains(&value)
    }

    pub fn most(&self) -> f64 {
        self.most
    }
}

/// Every quantity with 0: `increase()` does not see the first event of a counter that appears with it.
pub fn all_zero() -> Implausible {
    ALL.iter().map(|quantity| (quantity.name, 0)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_quantity_has_one_row_and_refuses_the_sentinels() {
        let names: BTreeSet<_> = ALL.iter().map(|quantity| quantity.name).collect();
        assert_eq!(names.len(), ALL.len());
        for quantity in ALL {
            assert!(quantity.holds(0.0), "{quantity:?}");
            for sentinel in [u64::MAX as f64, f64::NAN, f64::INFINITY, -1e9] {
                assert!(!quantity.holds(sentinel), "{quantity:?} {sentinel}");
            }
        }
        for (quantity, sentinel) in [(&TEMPERATURE, 4_294_967_295.0), (&POWER, 4_294_967.295), (&CLOCK, 4.294e15)] {
            assert!(!quantity.holds(sentinel));
        }
        for quantity in [&ERRORS, &ROWS, &PCIE_WIDTH, &PCIE_GENERATION, &PERFORMANCE_STATE] {
            assert!(!quantity.holds(f64::from(u32::MAX)), "{quantity:?}");
        }
    }
}
