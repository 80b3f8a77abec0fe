//! The same snapshot under dcgm-exporter's names, labels and units, in both of its generations.
//!
//! Each row of `names.json` has both names, the unit, podmeter's query, and the source of its values. The page
//! `/metrics/dcgm`, the documentation, `podmeter metrics -o json` and podmeter-migrate read the same rows. A value that the
//! snapshot lacks is absent. Rates are gauges here; dcgm-exporter called some of them counters up to 4.8.2.

mod mapping;
mod names;
mod page;
mod values;

pub use mapping::{EquivalentRow, MappingRow, markdown};
pub use names::{LabelName, Name, Shipped, labels, names};

use std::fmt;
use std::str::FromStr;

use super::family::{Family, ordered};
use crate::model::Snapshot;
use page::{Page, Series};

/// Which names and labels a page has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Generation {
    /// dcgm-exporter up to 4.8.
    #[default]
    Old,
    /// dcgm-exporter from 4.9 on.
    New,
    /// A name that both have is one series, with the labels of both.
    Both,
}

/// The families of `/metrics/dcgm`, for text 0.0.4 alone: their counters do not end in `_total`.
pub(super) fn families(snapshot: &Snapshot, generation: Generation) -> Vec<Family> {
    let own = super::families(snapshot);
    let families_of = |generation, is_wanted: fn(&Name) -> bool| {
        let page = Page::of(snapshot, &own, generation);
        names().filter(|name| is_wanted(name)).filter_map(|name| name.family(&page, generation)).collect::<Vec<_>>()
    };
    ordered(match generation {
        Generation::Both => [
            families_of(Generation::Both, Name::is_unchanged),
            families_of(Generation::Old, |name| !name.is_unchanged()),
            families_of(Generation::New, |name| !name.is_unchanged()),
        ]
        .concat(),
        one => families_of(one, |_| true),
    })
}

impl Name {
    /// `None` where podmeter does not serve it.
    fn family(&'static self, page: &Page<'_>, generation: Generation) -> Option<Family> {
        let source = self.row.source.as_ref()?;
        let (descriptor, per_base) = match generation {
            Generation::New => (&self.descriptors[1], 1.0),
            Generation::Old | Generation::Both => (&self.descriptors[0], self.per_base()),
        };
        let mut series = Series { family: Family::new(descriptor), per_base };
        source.fill(page, &mut series, self.row.podmeter.as_deref());
        Some(series.family)
    }
}

impl FromStr for Generation {
    type Err = UnknownGeneration;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "4.8" => Ok(Self::Old),
            "4.9" => Ok(Self::New),
            "both" => Ok(Self::Both),
            _ => Err(UnknownGeneration),
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Old => "4.8",
            Self::New => "4.9",
            Self::Both => "both",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be 4.8, 4.9 or both: the names of dcgm-exporter up to 4.8, from 4.9 on, or all")]
pub struct UnknownGeneration;

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::metrics::catalogue;
    use crate::metrics::family::Value;
    use crate::metrics::tests::{fixture, value};
    use crate::model::Sharing;

    fn old(snapshot: &Snapshot) -> Vec<Family> {
        families(snapshot, Generation::Old)
    }

    #[test]
    fn names_are_unique_and_complete() {
        for generation in [Generation::Old, Generation::New] {
            let of = |name: &Name| if generation == Generation::Old { name.old_name() } else { name.new_name() };
            let all: Vec<_> = names().map(of).collect();
            assert_eq!(all.len(), all.iter().collect::<BTreeSet<_>>().len(), "{all:?}");
            assert!(all.iter().all(|name| name.starts_with("DCGM_")));
        }
        for name in names() {
            let row = &name.row;
            assert!(row.source.is_some() != row.not_served.is_some(), "{}: a source, or why not", name.old_name());
            let takes_query = matches!(row.source, Some(values::Source::Podmeter));
            assert!(
                !takes_query || row.podmeter.as_ref().is_some_and(|query| !query.contains('(')),
                "{}",
                name.old_name()
            );
            assert!(row.podmeter.is_some() || row.difference.is_some(), "{} needs a reason", name.old_name());
            assert!(name.descriptors.iter().all(|one| one.help.ends_with('.')), "{}", name.old_name());
        }
    }

    /// Facts about dcgm-exporter, written down by hand.
    const SHIPPED: &str = include_str!("../../../tests/data/dcgm_exporter_rows.tsv");

    #[test]
    fn every_row_that_dcgm_exporter_ships_is_in_the_table() {
        let lines = SHIPPED.lines().filter(|line| !line.starts_with('#'));
        for line in lines {
            let [row, kind, state] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("three columns: {line}") };
            if kind == "label" {
                assert!(labels().iter().any(|label| label.old == row), "{row}");
                continue;
            }
            let name = names().find(|name| [name.old_name(), name.new_name()].contains(&row));
            let name = name.unwrap_or_else(|| panic!("{row} is not in the table"));
            let shipped = name.row.shipped;
            let is_active = matches!(shipped, Shipped::Active | Shipped::New);
            assert_eq!(is_active, state == "active", "{row}");
            assert_ne!(shipped, Shipped::Custom, "{row}");
        }
    }

    #[test]
    fn equivalents_are_metrics_of_the_catalogue() {
        let all: BTreeMap<_, _> = catalogue::all().map(|row| (row.name, row.labels)).collect();
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        for name in names() {
            let Some(query) = &name.row.podmeter else { continue };
            let metric = query.split(|letter| !is_part(letter)).find(|word| word.starts_with("podmeter_")).unwrap();
            let known = all.get(metric).unwrap_or_else(|| panic!("{} has no metric {metric}", name.old_name()));
            let matched = query.split(['{', ',']).filter_map(|part| Some(part.split_once("=\"")?.0));
            let summed = query.split("without (").skip(1).filter_map(|rest| rest.split(')').next());
            assert!(matched.chain(summed).all(|label| known.contains(&label)), "{query}: {known:?}");
            assert!(name.row.container.is_none_or(|metric| all.contains_key(metric)), "{}", name.old_name());
        }
    }

    #[test]
    fn values_of_both_generations_differ_by_the_scale() {
        let snapshot = fixture::snapshot();
        let (old, new) = (families(&snapshot, Generation::Old), families(&snapshot, Generation::New));
        let both = families(&snapshot, Generation::Both);
        let mut compared = 0;
        // Those of dcgm-exporter itself have several series of a GPU.
        for name in names().filter(|name| !name.old_name().starts_with("DCGM_EXP_")) {
            let of = |page: &[Family], metric| value(page, metric, &[("UUID", fixture::WHOLE)]);
            let (Some(before), Some(after)) = (of(&old, name.old_name()), of(&new, name.new_name())) else { continue };
            let tolerance = 0.001 / name.per_base().min(1.0);
            assert!((before / name.per_base() - after).abs() <= tolerance, "{}", name.old_name());
            assert_eq!(of(&both, name.old_name()), Some(before));
            assert_eq!(of(&both, name.new_name()), Some(after));
            compared += 1;
        }
        assert!(compared > 40, "{compared}");
    }

    #[test]
    fn each_generation_has_its_own_labels() {
        let snapshot = fixture::snapshot();
        let labels = |generation| {
            let page = families(&snapshot, generation);
            let samples = page.iter().flat_map(|family| &family.samples);
            samples.flat_map(|sample| sample.labels.iter().map(|(name, _)| name)).collect::<BTreeSet<_>>()
        };
        let differing = ["Hostname", "hostname", "DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION"];
        let of = |generation| differing.map(|label| labels(generation).contains(label));
        assert_eq!(of(Generation::Old), [true, false, true, false]);
        assert_eq!(of(Generation::New), [false, true, false, true]);
        assert_eq!(of(Generation::Both), [true; 4]);
    }

    /// A time-sliced GPU of two pods; the first has two slots.
    fn shared() -> Snapshot {
        let mut snapshot = fixture::snapshot();
        let whole = snapshot.accounts.remove(0);
        for (pod, ratio, gibibytes, slots) in [("one", 0.5, 16, 0..2), ("two", 0.25, 8, 2..3)] {
            let mut account = whole.clone();
            account.container.pod = pod.into();
            let holding = account.holding.as_mut().unwrap();
            holding.sharing = Sharing::TimeSlicing;
            holding.device_ids = slots.map(|slot| format!("{}::{slot}", fixture::WHOLE).as_str().into()).collect();
            account.device_utilization_ratio = Some(ratio);
            account.memory_used_bytes = Some(gibibytes << 30);
            snapshot.accounts.push(account);
        }
        snapshot
    }

    /// Pod, slot and value of each series of the shared GPU.
    fn series(page: &[Family], name: &str) -> Vec<(Option<String>, Option<String>, Value)> {
        let family = page.iter().find(|family| family.descriptor.name == name).unwrap();
        let its = family.samples.iter().filter(|sample| sample.labels.iter().any(|(_, value)| value == fixture::WHOLE));
        its.map(|sample| {
            let label =
                |name| sample.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| value.to_owned());
            (label("pod"), label("vgpu"), sample.value.clone())
        })
        .collect()
    }

    #[test]
    fn a_value_of_a_shared_device_is_repeated_for_each_slot() {
        let page = old(&shared());
        let copy = |pod: &str, slot: &str| (Some(pod.to_owned()), Some(slot.to_owned()), Value::Float(412.5));
        assert_eq!(series(&page, "DCGM_FI_DEV_POWER_USAGE"), [copy("one", "0"), copy("one", "1"), copy("two", "2")]);
    }

    #[test]
    fn utilization_and_memory_of_a_shared_device_are_each_containers_own() {
        let page = old(&shared());
        let own = |pod: Option<&str>, slot: Option<&str>, value: Value| {
            (pod.map(str::to_owned), slot.map(str::to_owned), value)
        };
        assert_eq!(
            series(&page, "DCGM_FI_DEV_GPU_UTIL"),
            [
                own(None, None, Value::Integer(87)),
                own(Some("one"), None, Value::Integer(50)),
                own(Some("two"), Some("2"), Value::Integer(25)),
            ]
        );
        assert_eq!(
            series(&page, "DCGM_FI_DEV_FB_USED"),
            [
                own(None, None, Value::Integer(40960)),
                own(Some("one"), None, Value::Integer(16384)),
                own(Some("two"), Some("2"), Value::Integer(8192)),
            ]
        );
    }

    #[test]
    fn little_work_of_many_is_not_rounded_to_none() {
        let mut snapshot = shared();
        snapshot.accounts.iter_mut().for_each(|account| account.device_utilization_ratio = Some(0.004));
        let pods = value(&old(&snapshot), "DCGM_FI_DEV_GPU_UTIL", &[("UUID", fixture::WHOLE), ("pod", "two")]);
        assert_eq!(pods, Some(0.4));
    }

    #[test]
    fn the_last_xid_of_any_code_is_shown_and_0_without_one() {
        let mut snapshot = fixture::snapshot();
        let last = |snapshot: &Snapshot, uuid| value(&old(snapshot), "DCGM_FI_DEV_XID_ERRORS", &[("UUID", uuid)]);
        assert_eq!([fixture::WHOLE, fixture::LOST].map(|uuid| last(&snapshot, uuid)), [Some(31.0), Some(0.0)]);
        let health = std::sync::Arc::make_mut(&mut snapshot.health);
        let xids = &mut health.gpus.get_mut(&fixture::WHOLE.into()).unwrap().xids;
        let mut earlier = xids.last[&31].clone();
        earlier.at.monotonic = crate::model::Monotonic::from_secs(399);
        xids.last.insert(94, earlier.clone());
        assert_eq!(last(&snapshot, fixture::WHOLE), Some(31.0));
        earlier.at.monotonic = crate::model::Monotonic::from_secs(401);
        let health = std::sync::Arc::make_mut(&mut snapshot.health);
        health.gpus.get_mut(&fixture::WHOLE.into()).unwrap().xids.last.insert(94, earlier);
        assert_eq!(last(&snapshot, fixture::WHOLE), Some(94.0));
    }

    #[test]
    fn a_partitioned_gpu_as_a_whole_has_no_pod() {
        let mut snapshot = fixture::snapshot();
        snapshot.accounts.retain(|account| &*account.container.pod == "claiming");
        let labels = [("UUID", fixture::PARTITIONED), ("pod", "claiming")];
        assert_eq!(value(&old(&snapshot), "DCGM_FI_DEV_POWER_USAGE", &labels), None);
    }
}
