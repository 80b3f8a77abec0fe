//! Prices of GPU time.
//!
//! In: the values of `--price` and `--currency`. Out: the price of a device, the cost of a holding. Pure.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;

use itertools::Itertools as _;
use serde::Serialize;

use super::allocation_record::{AllocationRecord, JournalDevice};
use crate::domain::model::Cost;
use crate::input::Pattern;

/// The price of devices whose MIG profile or model matches: per hour of a whole GPU, also for a part of one.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    devices: Pattern,
    per_hour: f64,
}

impl FromStr for Price {
    type Err = String;

    /// Parses `2.80`, the price of every device, or `NVIDIA H100*=2.80`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (devices, price) = text.rsplit_once('=').unwrap_or(("*", text));
        let per_hour = price.trim().parse().ok().filter(|price: &f64| price.is_finite() && *price >= 0.0);
        let wrong = || {
            format!(
                "{price:?} is no price: write a number of at least 0, such as 2.80; \
                 it is per GPU-hour, and --currency has its unit"
            )
        };
        Ok(Self { devices: Pattern::new(devices.trim())?, per_hour: per_hour.ok_or_else(wrong)? })
    }
}

/// The prices of a command line. A device has the first that matches.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Prices {
    #[serde(skip)]
    prices: Vec<Price>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub currency: Option<String>,
}

/// A holding with its cost and the currency.
#[derive(Serialize)]
pub struct PricedHolding<'a> {
    #[serde(flatten)]
    record: &'a AllocationRecord,
    #[serde(flatten)]
    pub cost: Cost,
    #[serde(flatten)]
    prices: &'a Prices,
}

impl Prices {
    pub fn new(prices: Vec<Price>, currency: Option<String>) -> Result<Self, String> {
        match prices.iter().tuple_combinations().find(|(one, other)| one.devices == other.devices) {
            Some((twice, _)) => Err(format!("two prices for {}", twice.devices)),
            None => Ok(Self { prices, currency }),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.prices.is_empty()
    }

    /// The price of a whole GPU's hour. Only `*` matches a device of unknown model.
    pub fn of(&self, device: &JournalDevice) -> Option<f64> {
        let names = || [&device.mig_profile, &device.model].into_iter().flatten().map(|name| &**name).chain([""]);
        let matches = |price: &&Price| names().any(|name| price.devices.matches(name));
        self.prices.iter().find(matches).map(|price| price.per_hour)
    }

    pub fn priced<'a>(&'a self, record: &'a AllocationRecord) -> PricedHolding<'a> {
        let cost = self.of(&record.device).map_or_else(Cost::default, |price| record.counters.cost(price));
        PricedHolding { record, cost, prices: self }
    }

    /// The models without a price.
    pub fn unpriced<'a>(&self, records: impl IntoIterator<Item = &'a AllocationRecord>) -> BTreeSet<Arc<str>> {
        let devices = records.into_iter().map(|record| &record.device);
        let unpriced = devices.filter(|device| !self.is_empty() && self.of(device).is_none());
        unpriced.map(|device| device.model.clone().unwrap_or_else(|| "unknown model".into())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices(texts: &[&str]) -> Result<Prices, String> {
        Prices::new(texts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?, None)
    }

    #[test]
    fn a_device_has_the_first_price_that_matches() {
        let prices = prices(&["1g.*=3", "NVIDIA H100*=2.80", "*=1"]).unwrap();
        for (profile, model, price) in [
            (Some("1g.10gb"), Some("NVIDIA H100 80GB HBM3"), 3.0),
            (Some("3g.40gb"), Some("NVIDIA H100 80GB HBM3"), 2.8),
            (None, Some("NVIDIA A100-SXM4-80GB"), 1.0),
            (None, None, 1.0),
        ] {
            let device = JournalDevice {
                mig_profile: profile.map(Into::into),
                model: model.map(Into::into),
                ..JournalDevice::default()
            };
            assert_eq!(prices.of(&device), Some(price), "{device:?}");
        }
    }

    #[test]
    fn a_device_without_a_price_is_named() {
        let record = |model: Option<&str>| {
            let device = JournalDevice { model: model.map(Into::into), ..JournalDevice::default() };
            AllocationRecord { device, ..AllocationRecord::default() }
        };
        let records = [record(Some("NVIDIA L4")), record(Some("NVIDIA H100")), record(None)];
        let h100 = prices(&["*H100*=2"]).unwrap();
        assert_eq!(
            h100.unpriced(&records).iter().map(|name| &**name).collect::<Vec<_>>(),
            ["NVIDIA L4", "unknown model"]
        );
        assert_eq!(h100.priced(&records[0]).cost, Cost::default());
        assert!(prices(&["2"]).unwrap().unpriced(&records).is_empty());
        assert!(Prices::default().unpriced(&records).is_empty());
    }

    #[test]
    fn a_bad_price_is_refused_with_the_reason() {
        for (texts, reason) in [
            (&["2.80EUR"][..], "\"2.80EUR\" is no price: write a number of at least 0"),
            (&["NVIDIA L4=-1"], "\"-1\" is no price"),
            (&["NaN"], "is no price"),
            (&["*=inf"], "is no price"),
            (&["2,80"], "such as 2.80"),
            (&["NVIDIA L4="], "\"\" is no price"),
            (&["=2"], "an empty pattern"),
            (&["gpu-[0=2"], "gpu-[0"),
            (&["NVIDIA L4=1", "*=2", "NVIDIA L4=3"], "two prices for NVIDIA L4"),
            (&["1", "*=2"], "two prices for *"),
        ] {
            let error = prices(texts).unwrap_err();
            assert!(error.contains(reason), "{texts:?}: {error}");
        }
    }
}
