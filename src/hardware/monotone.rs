//! Turns the driver's counters, which restart at a reload or a reset, into counters that never fall.
//!
//! In: readings with raw counters. Out: the same readings with monotonic ones. Does not use: drivers, time.

use std::collections::BTreeMap;

use crate::domain::model::{LinkCounters, Medium, NvLink, Slow};

/// One GPU's counters by (group, name, link), since the agent started. Counters that belong to no link have link 0.
#[derive(Debug, Default)]
pub struct Monotone {
    counters: BTreeMap<(&'static str, &'static str, u32), Counter>,
}

#[derive(Debug, Default)]
struct Counter {
    /// The sum before the counter's last restart.
    before: f64,
    last: f64,
    /// Whether it fell while it fitted into 32 bits: it has restarted, or it has wrapped any number of times.
    is_doubtful: bool,
}

/// The highest value of 32 bits.
const NARROW: f64 = 4_294_967_295.0;

const LINK: &str = "nvlink";
const TRANSMITTED: &str = "transmitted";
const RECEIVED: &str = "received";

impl Monotone {
    /// Adds a raw value and returns the monotonic one. A value below the last one means a restart from zero, and is
    /// added. This is correct for counters of 64 bits, and for those that do not reach 32 bits in years.
    pub fn raise(&mut self, group: &'static str, name: &'static str, value: f64) -> f64 {
        self.raise_of(group, name, 0, value)
    }

    fn raise_of(&mut self, group: &'static str, name: &'static str, link: u32, value: f64) -> f64 {
        let counter = self.counters.entry((group, name, link)).or_default();
        if value < counter.last {
            counter.before += counter.last;
            counter.is_doubtful = counter.last <= NARROW;
        }
        counter.is_doubtful &= value <= NARROW;
        counter.last = value;
        counter.total()
    }

    /// Raises a counter of PCIe bytes, which may wrap at 32 bits although the driver returns 64: at 60 GB/s many times
    /// between two readings. After a fall that may have been a wrap it is absent until a value proves that the counter
    /// is wider.
    fn raise_if_wide(&mut self, group: &'static str, name: &'static str, value: &mut Option<f64>) {
        self.raise_optional(group, name, value);
        if self.counters.get(&(group, name, 0)).is_some_and(|counter| counter.is_doubtful) {
            *value = None;
        }
    }

    fn raise_count<'a>(&mut self, group: &'static str, name: &'static str, count: impl Into<Option<&'a mut u64>>) {
        if let Some(count) = count.into() {
            *count = self.raise(group, name, *count as f64) as u64;
        }
    }

    fn raise_optional(&mut self, group: &'static str, name: &'static str, value: &mut Option<f64>) {
        if let Some(value) = value {
            *value = self.raise(group, name, *value);
        }
    }

    pub fn raise_medium(&mut self, medium: &mut Medium) {
        for (reason, seconds) in &mut medium.throttled_seconds {
            *seconds = self.raise("throttled", reason, *seconds);
        }
        for (policy, seconds) in &mut medium.policy_violation_seconds {
            *seconds = self.raise("policies", policy, *seconds);
        }
        self.raise_optional("cycles", "sm", &mut medium.sm_cycles);
        self.raise_optional("cycles", "sm_active", &mut medium.sm_active_cycles);
        for (pipe, cycles) in &mut medium.pipe_cycles {
            *cycles = self.raise("pipe_cycles", pipe, *cycles);
        }
    }

    pub fn raise_slow(&mut self, slow: &mut Slow) {
        for location in &mut slow.ecc {
            self.raise_count("ecc_corrected", location.location, location.corrected.as_mut());
            self.raise_count("ecc_uncorrected", location.location, location.uncorrected.as_mut());
        }
        self.raise_count("ecc_lifetime", "corrected", slow.ecc_lifetime_corrected.as_mut());
        self.raise_count("ecc_lifetime", "uncorrected", slow.ecc_lifetime_uncorrected.as_mut());
        if let Some(remap) = &mut slow.row_remap {
            self.raise_count("row_remap", "correctable", &mut remap.correctable);
            self.raise_count("row_remap", "uncorrectable", &mut remap.uncorrectable);
        }
        self.raise_count("pcie", "replays", slow.pcie.replays.as_mut());
        for (error, count) in &mut slow.pcie.errors {
            self.raise_count("pcie_errors", error, count);
        }
        self.raise_if_wide("pcie", TRANSMITTED, &mut slow.pcie.transmitted_bytes);
        self.raise_if_wide("pcie", RECEIVED, &mut slow.pcie.received_bytes);
        self.raise_nvlink(&mut slow.nvlink);
    }

    /// Raises each link's counters, so that an inactive link is not a restart of a sum, and sets the sums.
    fn raise_nvlink(&mut self, nvlink: &mut NvLink) {
        for (error, count) in &mut nvlink.error_sums {
            self.raise_count("nvlink_error_sums", error, count);
        }
        for (link, counters) in &mut nvlink.of_links {
            let (transmitted, received) = (&mut counters.transmitted_bytes, &mut counters.received_bytes);
            *transmitted = transmitted.map(|bytes| self.raise_of(LINK, TRANSMITTED, *link, bytes));
            *received = received.map(|bytes| self.raise_of(LINK, RECEIVED, *link, bytes));
            for (error, count) in &mut counters.errors {
                *count = self.raise_of(LINK, error, *link, *count as f64) as u64;
            }
        }
        if nvlink.active_links.is_none() {
            return;
        }
        let mut sums = self.link_sums(&nvlink.of_links);
        (nvlink.transmitted_bytes, nvlink.received_bytes) = (sums.remove(TRANSMITTED), sums.remove(RECEIVED));
        nvlink.errors = sums.into_iter().map(|(error, sum)| (error, sum as u64)).collect();
    }

    /// The sums of the last known values of all links, so that none falls where a link is down or was not read. A sum
    /// is absent where no active link was read, or one never was.
    fn link_sums(&self, links: &BTreeMap<u32, LinkCounters>) -> BTreeMap<&'static str, f64> {
        let mut sums: BTreeMap<&'static str, (f64, usize)> = BTreeMap::new();
        for ((_, name, link), counter) in
            self.counters.range((LINK, "", 0)..).take_while(|((group, ..), _)| *group == LINK)
        {
            let (sum, of_active) = sums.entry(*name).or_default();
            *sum += counter.total();
            *of_active += usize::from(links.contains_key(link));
        }
        let has = |link: &LinkCounters, name| match name {
            TRANSMITTED => link.transmitted_bytes.is_some(),
            RECEIVED => link.received_bytes.is_some(),
            error => link.errors.contains_key(error),
        };
        let is_read = |name| links.is_empty() || links.values().any(|link| has(link, name));
        sums.retain(|name, (_, of_active)| *of_active == links.len() && is_read(*name));
        sums.into_iter().map(|(name, (sum, _))| (name, sum)).collect()
    }
}

impl Counter {
    fn total(&self) -> f64 {
        self.before + self.last
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::model::EccLocation;

    #[test]
    fn a_restart_adds_to_the_sum() {
        let mut monotone = Monotone::default();
        let seen: Vec<_> = [5.0, 9.0, 2.0, 3.0, 0.0, 4.0].map(|value| monotone.raise("a", "b", value)).into();
        assert_eq!(seen, [5.0, 9.0, 11.0, 12.0, 12.0, 16.0]);
    }

    #[test]
    fn corrected_and_uncorrected_errors_are_separate() {
        let mut monotone = Monotone::default();
        let slow = |corrected, uncorrected| Slow {
            ecc: vec![EccLocation { location: "dram", corrected: Some(corrected), uncorrected: Some(uncorrected) }],
            ..Slow::default()
        };
        monotone.raise_slow(&mut slow(7, 1));
        let mut after = slow(2, 1);
        monotone.raise_slow(&mut after);
        assert_eq!(after.ecc[0], EccLocation { location: "dram", corrected: Some(9), uncorrected: Some(1) });
    }

    fn pcie(monotone: &mut Monotone, bytes: f64) -> Option<f64> {
        let mut slow = Slow::default();
        slow.pcie.transmitted_bytes = Some(bytes);
        monotone.raise_slow(&mut slow);
        slow.pcie.transmitted_bytes
    }

    #[test]
    fn a_wrap_of_32_bits_is_not_a_restart() {
        let mut monotone = Monotone::default();
        assert_eq!(pcie(&mut monotone, 4e9), Some(4e9));
        // At 60 GB/s it has wrapped eight hundred times since.
        assert_eq!(pcie(&mut monotone, 1e9), None);
        assert_eq!(pcie(&mut monotone, 3e9), None, "no fall, and still doubtful");
        assert_eq!(pcie(&mut monotone, 5e9), Some(9e9), "it has 64 bits: it was a restart");
        assert_eq!(pcie(&mut monotone, 1e9), Some(10e9), "from a value that proves its width a fall is a restart");
    }

    #[test]
    fn an_inactive_nvlink_is_no_restart() {
        let mut monotone = Monotone::default();
        let mut read = |links: &[(u32, f64, u64)]| {
            let counters = |&(link, bytes, crc): &(u32, f64, u64)| {
                let errors = [("crc", crc)].into();
                (link, LinkCounters { transmitted_bytes: Some(bytes), errors, ..LinkCounters::default() })
            };
            let of_links = links.iter().map(counters).collect();
            let active_links = u32::try_from(links.len()).ok();
            let mut slow = Slow { nvlink: NvLink { of_links, active_links, ..NvLink::default() }, ..Slow::default() };
            monotone.raise_slow(&mut slow);
            (slow.nvlink.transmitted_bytes, slow.nvlink.received_bytes, slow.nvlink.errors.get("crc").copied())
        };
        assert_eq!(read(&[(0, 100.0, 1), (1, 200.0, 2)]), (Some(300.0), None, Some(3)));
        assert_eq!(read(&[(1, 250.0, 2)]), (Some(350.0), None, Some(3)), "link 0 is down");
        assert_eq!(read(&[]), (Some(350.0), None, Some(3)), "both are");
        assert_eq!(read(&[(0, 10.0, 0), (1, 260.0, 3)]), (Some(370.0), None, Some(4)), "link 0 has restarted");
    }

    #[test]
    fn a_link_whose_errors_are_not_read_lowers_no_sum() {
        let mut monotone = Monotone::default();
        let mut read = |links: [Option<Option<u64>>; 3]| {
            let counters = |(link, crc): (u32, Option<Option<u64>>)| {
                let errors = crc?.map(|crc| ("crc", crc)).into_iter().collect();
                Some((link, LinkCounters { errors, ..LinkCounters::default() }))
            };
            let of_links: BTreeMap<_, _> = (0..).zip(links).filter_map(counters).collect();
            let active_links = u32::try_from(of_links.len()).ok();
            let mut slow = Slow { nvlink: NvLink { of_links, active_links, ..NvLink::default() }, ..Slow::default() };
            monotone.raise_slow(&mut slow);
            slow.nvlink.errors.get("crc").copied()
        };
        let (read_as, unread, down) = (|crc| Some(Some(crc)), Some(None), None);
        for (links, sum, what) in [
            ([read_as(5), unread, down], None, "one was never read"),
            ([read_as(5), read_as(5), read_as(5)], Some(15), "all"),
            ([unread, read_as(6), read_as(5)], Some(16), "one is not read"),
            ([unread, read_as(6), down], Some(16), "one is not read, and one is down"),
            ([unread, unread, down], None, "none is read"),
            ([read_as(7), read_as(6), read_as(5)], Some(18), "all again"),
        ] {
            assert_eq!(read(links), sum, "{what}");
        }
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
