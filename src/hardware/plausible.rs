//! The range of each quantity. Drivers and firmware report sentinels (4294967295 °C, all ones) without an error.
//!
//! In: readings. Out: those inside their range, and how many of each quantity were outside. Does not use: where a
//! reading comes from.

use std::collections::BTreeMap;

use super::source::Pass;
use crate::model::{Clocks, GpmRatios, Medium, MemoryUse, NvLink, Pcie, RowRemap, Slow, Traffic};

/// A quantity with its range, both ends included: values that a device of today or of the next years can have.
#[derive(Debug)]
pub struct Quantity {
    pub name: &'static str,
    least: f64,
    most: f64,
}

/// How many readings were outside their range, by quantity.
pub type Implausible = BTreeMap<&'static str, u64>;

macro_rules! quantities {
    ($($(#[$meta:meta])* $constant:ident = $name:literal, $least:literal ..= $most:literal;)*) => {
        $($(#[$meta])* pub static $constant: Quantity = Quantity { name: $name, least: $least, most: $most };)*
        pub static ALL: &[&Quantity] = &[$(&$constant),*];
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

impl Quantity {
    /// False for NaN, too.
    pub fn holds(&self, value: f64) -> bool {
        (self.least..=self.most).contains(&value)
    }

    pub fn most(&self) -> f64 {
        self.most
    }

    /// The value if it is in range; otherwise counts it.
    pub fn check(&self, value: f64, implausible: &mut Implausible) -> Option<f64> {
        if self.holds(value) {
            return Some(value);
        }
        self.count(implausible);
        None
    }

    fn count(&self, implausible: &mut Implausible) {
        *implausible.entry(self.name).or_default() += 1;
    }
}

/// Every quantity with 0: `increase()` does not see the first event of a counter that appears with it.
pub fn none() -> Implausible {
    ALL.iter().map(|quantity| (quantity.name, 0)).collect()
}

/// Removes readings outside their range from a pass, and counts them in it.
pub fn screen(pass: &mut Pass) {
    let mut found = std::mem::take(&mut pass.implausible);
    let screen = &mut Screen(&mut found);
    if let Some(fast) = &mut pass.fast {
        screen.optional(&UTILIZATION, &mut fast.utilization_ratio);
        screen.optional(&POWER, &mut fast.power_watts);
        screen.optional(&POWER, &mut fast.module_power_watts);
    }
    if let Some(medium) = &mut pass.medium {
        screen.medium(medium);
    }
    if let Some(slow) = &mut pass.slow {
        screen.slow(slow);
    }
    pass.implausible = found;
}

struct Screen<'a>(&'a mut Implausible);

impl Screen<'_> {
    fn holds(&mut self, quantity: &Quantity, value: f64) -> bool {
        quantity.check(value, self.0).is_some()
    }

    fn optional<T: Number>(&mut self, quantity: &Quantity, value: &mut Option<T>) {
        *value = value.filter(|value| self.holds(quantity, value.approximate()));
    }

    fn named<T: Number>(&mut self, quantity: &Quantity, values: &mut BTreeMap<&'static str, T>) {
        values.retain(|_, value| self.holds(quantity, value.approximate()));
    }

    fn medium(&mut self, medium: &mut Medium) {
        self.memory(&mut medium.memory, None);
        self.optional(&TEMPERATURE, &mut medium.gpu_temperature_celsius);
        self.optional(&TEMPERATURE, &mut medium.memory_temperature_celsius);
        self.optional(&TEMPERATURE_MARGIN, &mut medium.temperature_margin_celsius);
        self.optional(&POWER_LIMIT, &mut medium.power_limit_watts);
        self.optional(&POWER_LIMIT, &mut medium.power_limit_requested_watts);
        let Clocks { sm_hertz, memory_hertz, graphics_hertz, video_hertz } = &mut medium.clocks;
        for clock in [sm_hertz, memory_hertz, graphics_hertz, video_hertz] {
            self.optional(&CLOCK, clock);
        }
        self.named(&THROTTLED, &mut medium.throttled_seconds);
        self.named(&THROTTLED, &mut medium.policy_violation_seconds);
        self.optional(&PERFORMANCE_STATE, &mut medium.performance_state);
        // Fans are numbered by their position: the list ends before one that is removed.
        let fans = medium.fan_speed_ratios.iter().take_while(|ratio| self.holds(&FAN_SPEED, **ratio)).count();
        medium.fan_speed_ratios.truncate(fans);
        self.gpm(&mut medium.gpm);
        self.optional(&UTILIZATION, &mut medium.rates.memory_utilization_ratio);
        self.named(&UTILIZATION, &mut medium.rates.engine_utilization_ratios);
        let traffic = &mut medium.rates.traffic;
        let Traffic {
            pcie_transmitted,
            pcie_received,
            nvlink_transmitted,
            nvlink_received,
            c2c_transmitted,
            c2c_received,
        } = traffic;
        let pcie_and_nvlink = [pcie_transmitted, pcie_received, nvlink_transmitted, nvlink_received];
        for rate in pcie_and_nvlink.into_iter().chain([c2c_transmitted, c2c_received]) {
            self.optional(&TRAFFIC, rate);
        }
        self.optional(&CYCLES, &mut medium.sm_cycles);
        self.optional(&CYCLES, &mut medium.sm_active_cycles);
        self.named(&CYCLES, &mut medium.pipe_cycles);
        let total = medium.memory.map(|memory| memory.total);
        for instance in &mut medium.instances {
            self.memory(&mut instance.memory, total);
            self.gpm(&mut instance.gpm);
        }
        for process in medium.processes.iter_mut().flatten() {
            let fits = |bytes: &u64| PROCESS_MEMORY.holds(*bytes as f64) && total.is_none_or(|total| *bytes <= total);
            if process.memory_bytes.is_some_and(|bytes| !fits(&bytes)) {
                PROCESS_MEMORY.count(self.0);
                process.memory_bytes = None;
            }
        }
    }

    /// Removes all values if one is wrong.
    fn memory(&mut self, memory: &mut Option<MemoryUse>, of: Option<u64>) {
        let fits = |memory: &MemoryUse| {
            let parts = [memory.used, memory.free, memory.reserved.unwrap_or(0)];
            MEMORY.holds(memory.total as f64)
                && of.is_none_or(|of| memory.total <= of)
                && parts.iter().all(|part| *part <= memory.total)
        };
        if memory.is_some_and(|memory| !fits(&memory)) {
            MEMORY.count(self.0);
            *memory = None;
        }
    }

    fn gpm(&mut self, gpm: &mut GpmRatios) {
        let GpmRatios { graphics_engine_active, sm_active, sm_occupancy, dram_active, pipes } = gpm;
        for ratio in [graphics_engine_active, sm_active, sm_occupancy, dram_active] {
            self.optional(&GPM, ratio);
            *ratio = ratio.map(|ratio| ratio.min(1.0));
        }
        self.named(&GPM, pipes);
        pipes.values_mut().for_each(|ratio| *ratio = ratio.min(1.0));
    }

    fn slow(&mut self, slow: &mut Slow) {
        for location in &mut slow.ecc {
            self.optional(&ERRORS, &mut location.corrected);
            self.optional(&ERRORS, &mut location.uncorrected);
        }
        self.optional(&ERRORS, &mut slow.ecc_lifetime_corrected);
        self.optional(&ERRORS, &mut slow.ecc_lifetime_uncorrected);
        slow.row_remap = slow.row_remap.filter(|RowRemap { correctable, uncorrectable, .. }| {
            [correctable, uncorrectable].iter().all(|rows| self.holds(&ROWS, **rows as f64))
        });
        self.named(&ROWS, &mut slow.row_remap_banks);
        self.named(&ROWS, &mut slow.retired_pages);
        let Pcie { replays, errors, transmitted_bytes, received_bytes, .. } = &mut slow.pcie;
        self.optional(&ERRORS, replays);
        self.named(&ERRORS, errors);
        for bytes in [transmitted_bytes, received_bytes] {
            self.optional(&TRANSFERRED, bytes);
        }
        let Pcie { link_generation, link_generation_max, link_width_lanes, link_width_lanes_max, .. } = &mut slow.pcie;
        for generation in [link_generation, link_generation_max] {
            self.optional(&PCIE_GENERATION, generation);
        }
        for width in [link_width_lanes, link_width_lanes_max] {
            self.optional(&PCIE_WIDTH, width);
        }
        let NvLink { transmitted_bytes, received_bytes, errors, error_sums, of_links, .. } = &mut slow.nvlink;
        for bytes in [transmitted_bytes, received_bytes] {
            self.optional(&TRANSFERRED, bytes);
        }
        self.named(&ERRORS, errors);
        self.named(&ERRORS, error_sums);
        for counters in of_links.values_mut() {
            for bytes in [&mut counters.transmitted_bytes, &mut counters.received_bytes] {
                self.optional(&TRANSFERRED, bytes);
            }
            self.named(&ERRORS, &mut counters.errors);
            self.named(&BIT_ERRORS, &mut counters.bit_error_ratios);
        }
        self.optional(&TRAFFIC, &mut slow.c2c.bytes_per_second_max);
    }
}

trait Number: Copy {
    /// Exact enough for the comparison with a range.
    fn approximate(self) -> f64;
}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(impl Number for $number {
            fn approximate(self) -> f64 {
                self as f64
            }
        })*
    };
}

numbers!(f64 u32 u64);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::{DeviceProcess, Fast, InstanceReading};

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

    #[test]
    fn readings_outside_their_range_are_absent_and_counted() {
        let memory = |used, total| Some(MemoryUse { used, free: 0, reserved: Some(1), total });
        let process = |bytes| DeviceProcess { pid: 1, gpu_instance: None, compute_instance: None, memory_bytes: bytes };
        let mut medium = Medium {
            memory: memory(70, 100),
            gpu_temperature_celsius: Some(4_294_967_295.0),
            memory_temperature_celsius: Some(80.0),
            performance_state: Some(77),
            fan_speed_ratios: vec![0.5, 1.3, 42_949_672.95, 0.5],
            processes: Some(vec![process(Some(101)), process(Some(100)), process(None)]),
            ..Medium::default()
        };
        medium.gpm.sm_active = Some(1.02);
        medium.gpm.pipes = [("tensor", 1.4), ("fp64", 0.25)].into();
        medium.pipe_cycles = [("tensor", 2e19), ("fp64", 1e12)].into();
        let instance = |memory| InstanceReading { gpu_instance: 1, members: vec![], memory, gpm: GpmRatios::default() };
        medium.instances = vec![instance(memory(10, 50)), instance(memory(51, 50)), instance(memory(10, 101))];
        let mut pass = Pass {
            fast: Some(Fast { utilization_ratio: Some(1.01), power_watts: Some(300.0), ..Fast::default() }),
            medium: Some(medium),
            ..Pass::default()
        };
        screen(&mut pass);
        assert_eq!(pass.fast, Some(Fast { utilization_ratio: None, power_watts: Some(300.0), ..Fast::default() }));
        let medium = pass.medium.unwrap();
        assert_eq!((medium.gpu_temperature_celsius, medium.memory_temperature_celsius), (None, Some(80.0)));
        assert_eq!((medium.memory, medium.performance_state), (memory(70, 100), None));
        assert_eq!(medium.fan_speed_ratios, [0.5, 1.3]);
        assert_eq!((medium.gpm.sm_active, medium.gpm.pipes), (Some(1.0), [("fp64", 0.25)].into()));
        assert_eq!(medium.pipe_cycles, [("fp64", 1e12)].into());
        let instances: Vec<_> = medium.instances.iter().map(|instance| instance.memory).collect();
        assert_eq!(instances, [memory(10, 50), None, None]);
        assert_eq!(medium.processes, Some(vec![process(None), process(Some(100)), process(None)]));
        let expected = [
            ("utilization_ratio", 1),
            ("temperature_celsius", 1),
            ("performance_state", 1),
            ("fan_speed_ratio", 1),
            ("gpm_ratio", 1),
            ("sm_cycles", 1),
            ("memory_bytes", 2),
            ("process_memory_bytes", 1),
        ];
        assert_eq!(pass.implausible, expected.into());
    }
}
