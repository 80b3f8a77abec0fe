//! The complete page, and the JSON of the node: byte for byte against the golden files, and checked by parsers that share nothing with its
//! writer. `UPDATE_GOLDEN=1 cargo test golden` accepts a change.

pub(crate) mod fixture;
mod strict;

use std::collections::BTreeMap;
use std::path::Path;

use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{MetricFamily, MetricType};
use prost::Message as _;

use self::strict::{Dialect, StrictPage};
use super::dcgm::{self, Generation};
use super::family::{Family, MetricSample, SampleValue};
use super::{Format, catalogue, families, write};
use crate::domain::model::Snapshot;

fn page(snapshot: &Snapshot, format: Format) -> Vec<u8> {
    let mut page = vec![];
    write(snapshot, format, &mut page).unwrap();
    page
}

fn rendered(format: Format) -> String {
    let page = String::from_utf8(page(&fixture::snapshot(), format)).unwrap();
    // These differ from build to build.
    page.replace(env!("PODMETER_BUILD_REVISION"), "REVISION").replace(env!("PODMETER_BUILD_RUSTC"), "RUSTC")
}

/// The value of the only sample of that name that carries these labels, if there is one.
pub(crate) fn value(families: &[Family], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let family = families.iter().find(|family| family.descriptor.name == name)?;
    let carries = |sample: &&MetricSample| {
        labels.iter().all(|(name, value)| sample.labels.iter().any(|label| label == (*name, *value)))
    };
    let mut found = family.samples.iter().filter(carries);
    let sample = found.next()?;
    assert!(found.next().is_none(), "{name}{labels:?} fits several samples");
    match &sample.value {
        SampleValue::Histogram(histogram) => Some(histogram.count() as f64),
        number => number.as_f64(),
    }
}

fn golden(path: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (actual, expected)) in actual.lines().zip(expected.lines()).enumerate() {
        assert_eq!(actual, expected, "{}:{}", path.display(), number + 1);
    }
    assert_eq!(actual.len(), expected.len(), "{}: one is longer", path.display());
}

#[test]
fn golden_text() {
    golden("tests/golden/page.txt", &rendered(Format::Text));
}

#[test]
fn golden_open_metrics() {
    golden("tests/golden/page.openmetrics.txt", &rendered(Format::OpenMetrics));
}

#[test]
fn golden_dcgm() {
    golden("tests/golden/dcgm.txt", &rendered(Format::Dcgm(Generation::Both)));
}

/// A field of a domain type becomes public only with a line of this file.
#[test]
fn golden_node_json() {
    let node = serde_json::to_string_pretty(&fixture::snapshot()).unwrap();
    golden("tests/golden/node.json", &(node + "\n"));
}

#[test]
fn golden_dcgm_table() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/dcgm.md")).unwrap();
    let (prose, _) = page.split_once("golden_dcgm_table`. -->\n\n").expect("the comment above the table");
    golden("docs/dcgm.md", &format!("{prose}golden_dcgm_table`. -->\n\n{}", dcgm::tests::markdown()));
}

#[test]
fn golden_catalogue() {
    golden("docs/metrics.md", &catalogue::markdown());
}

#[test]
fn a_strict_parser_reads_both_texts_alike() {
    let text = StrictPage::parse(&rendered(Format::Text), Dialect::Text).unwrap();
    let open = StrictPage::parse(&rendered(Format::OpenMetrics), Dialect::OpenMetrics).unwrap();
    assert_eq!(text.samples, open.samples);
    assert!(text.samples.len() > 150, "{}", text.samples.len());
    StrictPage::parse(&rendered(Format::Dcgm(Generation::Both)), Dialect::Text).unwrap();
}

#[test]
fn protobuf_and_text_are_equivalent() {
    let text = StrictPage::parse(&rendered(Format::Text), Dialect::Text).unwrap();
    let bytes = page(&fixture::snapshot(), Format::Protobuf);
    let mut rest = bytes.as_slice();
    let mut samples = BTreeMap::new();
    while !rest.is_empty() {
        let family = MetricFamily::decode_length_delimited(&mut rest).unwrap();
        for metric in &family.metric {
            let mut labels: Vec<(String, String)> = metric
                .label
                .iter()
                .map(|pair| {
                    let value = pair.value.replace(env!("PODMETER_BUILD_REVISION"), "REVISION");
                    (pair.name.clone(), value.replace(env!("PODMETER_BUILD_RUSTC"), "RUSTC"))
                })
                .collect();
            labels.sort();
            let mut add = |suffix: &str, labels: &Vec<(String, String)>, value: f64| {
                samples.insert((format!("{}{suffix}", family.name), labels.clone()), value);
            };
            match family.r#type() {
                MetricType::Counter => add("", &labels, metric.counter.as_ref().unwrap().value),
                MetricType::Gauge => add("", &labels, metric.gauge.as_ref().unwrap().value),
                MetricType::Histogram => {
                    let histogram = metric.histogram.as_ref().unwrap();
                    add("_sum", &labels, histogram.sample_sum);
                    add("_count", &labels, histogram.sample_count as f64);
                    for bucket in &histogram.bucket {
                        let bound = bucket.upper_bound;
                        let le = if bound.is_infinite() { "+Inf".to_owned() } else { format!("{bound:?}") };
                        let mut labels = labels.clone();
                        labels.push(("le".to_owned(), le));
                        labels.sort();
                        add("_bucket", &labels, bucket.cumulative_count as f64);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(samples, text.samples);
}

#[test]
fn samples_keep_to_their_descriptors() {
    let labels: BTreeMap<_, _> = catalogue::all().map(|row| (row.name, row.labels)).collect();
    for family in families(&fixture::snapshot()) {
        let allowed = &labels[family.descriptor.name];
        for sample in &family.samples {
            let positions: Vec<_> = sample
                .labels
                .iter()
                .map(|(name, _)| {
                    let chosen = name.starts_with("label_");
                    let fits = |label: &&str| *label == name || (chosen && *label == "label_*");
                    allowed.iter().position(fits).expect("a label of the catalogue")
                })
                .collect();
            assert!(positions.is_sorted(), "{}: {:?}", family.descriptor.name, sample.labels);
        }
    }
}

#[test]
fn the_fixture_shows_every_metric() {
    let shown: Vec<_> = families(&fixture::snapshot()).map(|family| family.descriptor.name).collect();
    for entry in catalogue::all() {
        assert!(shown.contains(&entry.name), "{} has no sample in the fixture", entry.name);
    }
}

#[test]
fn an_empty_snapshot_has_no_device_metrics() {
    let page = page(&Snapshot::default(), Format::Text);
    let page = StrictPage::parse(std::str::from_utf8(&page).unwrap(), Dialect::Text).unwrap();
    for (name, labels) in page.samples.keys() {
        assert!(!name.starts_with("podmeter_device") && !name.starts_with("podmeter_container"), "{name} {labels:?}");
        assert!(!name.starts_with("podmeter_node"), "{name} {labels:?}");
    }
}

/// The same holds for a partitioned GPU.
#[test]
fn metrics_and_page_have_the_same_utilization_of_each_gpu() {
    let snapshot = fixture::snapshot();
    let overview = crate::domain::model::Overview::summarize(&snapshot, &BTreeMap::new());
    let page = StrictPage::parse(&rendered(Format::Text), Dialect::Text).unwrap();
    let mut shown = 0;
    for device in overview.devices.iter().filter(|device| device.mig.is_none()) {
        let ratio = page.samples.iter().find_map(|((name, labels), value)| {
            let is_of = labels.iter().any(|(_, value)| value == device.gpu.as_str());
            (name == "podmeter_device_utilization_ratio" && is_of).then_some(*value)
        });
        assert_eq!(ratio, device.busy_ratio, "{}", device.gpu);
        shown += usize::from(ratio.is_some());
    }
    assert_eq!(shown, 2, "a whole one and a partitioned one");
}
