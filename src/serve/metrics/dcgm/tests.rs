//! The table of names against dcgm-exporter's, and what each generation's page has.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::Value as Json;

use super::*;
use crate::domain::model::SharingForm;
use crate::serve::metrics::catalogue;
use crate::serve::metrics::family::SampleValue;
use crate::serve::metrics::tests::{fixture, value};

mod devices;

const KEYS: [&str; 10] =
    ["4.8", "4.9", "unit", "type", "help", "help_4.9", "source", "not_served", "podmeter", "difference"];

fn table() -> Json {
    serde_json::from_str(TABLE).unwrap()
}

#[test]
fn names_are_unique_and_complete() {
    for generation in [Generation::Old, Generation::New] {
        let of = |name: &DcgmName| if generation == Generation::Old { name.old_name() } else { name.new_name() };
        let all: Vec<_> = names().map(of).collect();
        assert_eq!(all.len(), all.iter().collect::<BTreeSet<_>>().len(), "{all:?}");
        assert!(all.iter().all(|name| name.starts_with("DCGM_")));
    }
    for name in names() {
        let row = &name.row;
        let written = row_of(name);
        assert!(row.source.is_some() == written["not_served"].is_null(), "{}: a source, or why not", name.old_name());
        let takes_query = matches!(row.source, Some(values::ValueSource::Podmeter));
        assert!(!takes_query || row.podmeter.as_ref().is_some_and(|query| !query.contains('(')), "{}", name.old_name());
        assert!(row.podmeter.is_some() || written["difference"].is_string(), "{} needs a reason", name.old_name());
        assert!(written.as_object().unwrap().keys().all(|key| KEYS.contains(&key.as_str())), "{written}");
        assert!(name.descriptors.iter().all(|one| one.help.ends_with('.')), "{}", name.old_name());
    }
}

/// Facts about dcgm-exporter, written down by hand.
const SHIPPED: &str = include_str!("../../../../tests/data/dcgm_exporter_rows.tsv");

#[test]
fn every_row_that_dcgm_exporter_ships_is_in_the_table() {
    let lines = SHIPPED.lines().filter(|line| !line.starts_with('#'));
    for line in lines {
        let [row, kind, _] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("three columns: {line}") };
        if kind == "label" {
            assert!(table()["labels"].as_array().unwrap().iter().any(|label| label["4.8"] == row), "{row}");
            continue;
        }
        assert!(names().any(|name| [name.old_name(), name.new_name()].contains(&row)), "{row} is not in the table");
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
        holding.sharing = SharingForm::TimeSlicing;
        holding.device_ids = slots.map(|slot| format!("{}::{slot}", fixture::WHOLE).as_str().into()).collect();
        account.gpu_utilization_ratio = Some(ratio);
        account.memory_used_bytes = Some(gibibytes << 30);
        snapshot.accounts.push(account);
    }
    snapshot
}

/// The pod, slot and value of each series of the shared GPU.
fn series(page: &[Family], name: &str) -> Vec<(Option<String>, Option<String>, SampleValue)> {
    let family = page.iter().find(|family| family.descriptor.name == name).unwrap();
    let its = family.samples.iter().filter(|sample| sample.labels.iter().any(|(_, value)| value == fixture::WHOLE));
    its.map(|sample| {
        let label = |name| sample.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| value.to_owned());
        (label("pod"), label("vgpu"), sample.value.clone())
    })
    .collect()
}

#[test]
fn a_value_of_a_shared_device_is_repeated_for_each_slot() {
    let page = old(&shared());
    let copy = |pod: &str, slot: &str| (Some(pod.to_owned()), Some(slot.to_owned()), SampleValue::Float(412.5));
    assert_eq!(series(&page, "DCGM_FI_DEV_POWER_USAGE"), [copy("one", "0"), copy("one", "1"), copy("two", "2")]);
}

#[test]
fn utilization_and_memory_of_a_shared_device_are_each_containers_own() {
    let page = old(&shared());
    let own = |pod: Option<&str>, slot: Option<&str>, value: SampleValue| {
        (pod.map(str::to_owned), slot.map(str::to_owned), value)
    };
    assert_eq!(
        series(&page, "DCGM_FI_DEV_GPU_UTIL"),
        [
            own(None, None, SampleValue::Integer(87)),
            own(Some("one"), None, SampleValue::Integer(50)),
            own(Some("two"), Some("2"), SampleValue::Integer(25)),
        ]
    );
    assert_eq!(
        series(&page, "DCGM_FI_DEV_FB_USED"),
        [
            own(None, None, SampleValue::Integer(40960)),
            own(Some("one"), None, SampleValue::Integer(16384)),
            own(Some("two"), Some("2"), SampleValue::Integer(8192)),
        ]
    );
}

#[test]
fn what_the_host_does_is_not_the_exclusive_pods() {
    let mut snapshot = fixture::snapshot();
    let of = |snapshot: &Snapshot, name: &str| {
        series(&old(snapshot), name).into_iter().map(|(pod, _, value)| (pod.is_some(), value)).collect::<Vec<_>>()
    };
    assert_eq!(of(&snapshot, "DCGM_FI_DEV_GPU_UTIL"), [(true, SampleValue::Integer(87))], "all is the pod's");
    let account = &mut snapshot.accounts[0];
    (account.utilization_ratio, account.gpu_utilization_ratio) = (Some(0.0), Some(0.0));
    account.memory_used_bytes = Some(0);
    let both = |device, pod| [(false, SampleValue::Integer(device)), (true, SampleValue::Integer(pod))];
    assert_eq!(of(&snapshot, "DCGM_FI_DEV_GPU_UTIL"), both(87, 0));
    assert_eq!(of(&snapshot, "DCGM_FI_DEV_FB_USED"), both(40960, 0));
    assert_eq!(of(&snapshot, "DCGM_FI_DEV_FB_TOTAL"), both(81920, 81920), "with the same labels");
    assert_eq!(of(&snapshot, "DCGM_FI_DEV_POWER_USAGE"), [(true, SampleValue::Float(412.5))]);
}

#[test]
fn a_pod_whose_part_is_unknown_does_not_have_the_devices() {
    for mut snapshot in [fixture::snapshot(), shared()] {
        for account in &mut snapshot.accounts {
            (account.utilization_ratio, account.gpu_utilization_ratio, account.memory_used_bytes) = (None, None, None);
        }
        let page = old(&snapshot);
        for (name, device) in [("DCGM_FI_DEV_GPU_UTIL", 87), ("DCGM_FI_DEV_FB_USED", 40960)] {
            assert_eq!(series(&page, name), [(None, None, SampleValue::Integer(device))]);
        }
    }
}

#[test]
fn without_memory_of_the_device_its_holders_have_their_own() {
    for (mut snapshot, expected) in
        [(shared(), vec![(None, 16384), (Some("2"), 8192)]), (fixture::snapshot(), vec![(None, 7)])]
    {
        let readings = Arc::make_mut(&mut snapshot.hardware).readings.get_mut(&fixture::WHOLE.into()).unwrap();
        Arc::make_mut(readings).medium.as_mut().unwrap().value.memory = None;
        if expected.len() == 1 {
            snapshot.accounts[0].memory_used_bytes = Some(7 << 20);
        }
        let found = series(&old(&snapshot), "DCGM_FI_DEV_FB_USED");
        assert!(found.iter().all(|(pod, _, _)| pod.is_some()), "{found:?}");
        let found: Vec<_> = found.into_iter().map(|(_, slot, value)| (slot, value)).collect();
        let expected = expected.into_iter().map(|(slot, value)| (slot.map(str::to_owned), SampleValue::Integer(value)));
        assert_eq!(found, expected.collect::<Vec<_>>());
    }
}

/// A GPU of 60 pods with a slot each; the first is the oldest.
fn crowded(limit: Option<usize>) -> Snapshot {
    let mut snapshot = shared();
    let last = snapshot.accounts.pop().unwrap();
    snapshot.accounts.clear();
    for number in 0..60u32 {
        let mut account = last.clone();
        account.container.pod = format!("pod-{number}").into();
        account.created = crate::domain::model::UnixSeconds(f64::from(number));
        account.holding.as_mut().unwrap().device_ids = vec![format!("{}::{number}", fixture::WHOLE).as_str().into()];
        snapshot.accounts.push(account);
    }
    Snapshot { series_limit: limit, ..snapshot }
}

#[test]
fn copies_for_slots_count_against_the_series_limit_and_the_page_shows_what_it_lacks() {
    for generation in [Generation::Old, Generation::Both] {
        let copies = |limit| {
            let page = families(&crowded(limit), generation);
            let is_copy = |family: &&Family| family.descriptor.name != DROPPED.name;
            let samples = page.iter().filter(is_copy).flat_map(|family| &family.samples);
            let pod = |labels: &Labels| labels.iter().find(|(name, _)| *name == "pod").map(|(_, pod)| pod.to_owned());
            let pods: Vec<_> = samples.filter_map(|sample| pod(&sample.labels)).collect();
            let of_pods: BTreeSet<_> = pods.iter().cloned().collect();
            (pods.len(), of_pods, value(&page, DROPPED.name, &[]))
        };
        let (all, pods, dropped) = copies(None);
        assert_eq!((pods.len(), dropped), (60, None), "nothing is left off without a limit");
        assert_eq!(copies(Some(all)).2, None, "nor within it");
        let (some, left, dropped) = copies(Some(all / 2));
        assert!(some <= all / 2 && some > all / 3, "{some} of {all}");
        assert_eq!(dropped, Some((60 - left.len()) as f64));
        assert!(left.contains("pod-0") && !left.contains("pod-59"), "the oldest stay: {left:?}");
        let (none, _, dropped) = copies(Some(0));
        assert_eq!((none, dropped), (0, Some(60.0)));
    }
}

#[test]
fn rows_with_many_values_of_a_device_count_against_the_series_limit() {
    let crowded = |limit| {
        let mut snapshot = crowded(limit);
        let health = std::sync::Arc::make_mut(&mut snapshot.health);
        let by_code = &mut health.gpus.get_mut(&fixture::WHOLE.into()).unwrap().xids.by_code;
        let xid = by_code[&31].clone();
        by_code.extend((1000..1200).map(|code| (code, xid.clone())));
        families(&snapshot, Generation::Old)
    };
    let is_copy = |sample: &&crate::serve::metrics::family::MetricSample| {
        sample.labels.iter().any(|(name, value)| name == "pod" && value.starts_with("pod-"))
    };
    let copies = crowded(None).iter().flat_map(|family| &family.samples).filter(is_copy).count();
    assert_eq!(value(&crowded(Some(copies)), DROPPED.name, &[]), None);
    assert_eq!(value(&crowded(Some(copies - 1)), DROPPED.name, &[]), Some(1.0));
}

#[test]
fn the_labels_of_a_slot_are_made_once() {
    let page = old(&crowded(None));
    let labels = |name: &str| {
        let family = page.iter().find(|family| family.descriptor.name == name).unwrap();
        let its = |sample: &&crate::serve::metrics::family::MetricSample| {
            sample.labels.iter().any(|(_, value)| value == "pod-7")
        };
        std::sync::Arc::as_ptr(&family.samples.iter().find(its).unwrap().labels)
    };
    assert_eq!(labels("DCGM_FI_DEV_POWER_USAGE"), labels("DCGM_FI_DEV_GPU_TEMP"));
}

#[test]
fn little_work_of_many_is_not_rounded_to_none() {
    let mut snapshot = shared();
    snapshot.accounts.iter_mut().for_each(|account| account.gpu_utilization_ratio = Some(0.004));
    let pods = value(&old(&snapshot), "DCGM_FI_DEV_GPU_UTIL", &[("UUID", fixture::WHOLE), ("pod", "two")]);
    assert_eq!(pods, Some(0.4));
}

#[test]
fn a_pod_label_is_no_second_label_of_the_pages_own() {
    let own: BTreeSet<_> = page::OWN_LABELS.split(' ').collect();
    let mut snapshot = shared();
    snapshot.accounts.extend(fixture::snapshot().accounts);
    let page = families(&snapshot, Generation::Both);
    let labels = page.iter().flat_map(|family| &family.samples).flat_map(|sample| sample.labels.iter());
    let of_pods = ["app_kubernetes_io_name", "team"];
    let missing: BTreeSet<_> = labels.map(|(name, _)| name).filter(|name| !own.contains(name)).collect();
    assert!(missing.iter().all(|name| of_pods.contains(name)), "{missing:?}");
}

fn families(snapshot: &Snapshot, generation: Generation) -> Vec<Family> {
    let mut found = vec![];
    let visit = &mut |family| {
        found.push(family);
        Ok(())
    };
    each_family(snapshot, generation, visit).unwrap();
    found
}

fn old(snapshot: &Snapshot) -> Vec<Family> {
    families(snapshot, Generation::Old)
}

fn row_of(name: &DcgmName) -> Json {
    let table = table();
    let mut rows = table["metrics"].as_array().unwrap().iter();
    rows.find(|row| row["4.8"] == name.old_name()).unwrap().clone()
}

/// The generated table of `docs/dcgm.md`.
pub(in crate::serve::metrics) fn markdown() -> String {
    let table = table();
    let mut text = String::from("up to 4.8|from 4.9 on|podmeter|difference\n---|---|---|---\n");
    for row in table["metrics"].as_array().unwrap() {
        let of = |key: &str| row[key].as_str();
        let unit = of("unit").unwrap_or_default();
        let column = |generation, unit: &str| {
            let name = of(generation).unwrap();
            if unit.is_empty() { format!("`{name}`") } else { format!("`{name}`<br>{}", unit.replace(' ', "\u{a0}")) }
        };
        let new_unit = table["units"][unit][0].as_str().unwrap_or(unit);
        let is_unchanged = of("4.8") == of("4.9");
        let notes = [of("not_served").map(|reason| format!("not served: {reason}")), of("difference").map(Into::into)];
        writeln!(
            text,
            "{}|{}|{}|{}",
            column("4.8", unit),
            if is_unchanged { "=".to_owned() } else { column("4.9", new_unit) },
            of("podmeter").map_or("–".to_owned(), |query| format!("`{query}`")),
            notes.into_iter().flatten().collect::<Vec<_>>().join("; "),
        )
        .unwrap();
    }
    for label in table["labels"].as_array().unwrap() {
        let [old, new] = ["4.8", "4.9"].map(|generation| label[generation].as_str().unwrap());
        let podmeter = label["podmeter"].as_array().map_or("–".to_owned(), |its| {
            format!("`{}` of `{}`", its[1].as_str().unwrap(), its[0].as_str().unwrap())
        });
        let new = if new == old { "=".to_owned() } else { format!("`{new}`") };
        let served = if label["served"] == true { "" } else { "not served" };
        writeln!(text, "`{old}` (label)|{new}|{podmeter}|{served}").unwrap();
    }
    text
}
