//! A metric as a row with its function, and the samples that the function makes.
//!
//! In: a snapshot. Out: families in the order of the page. Does not use: the formats in which they are written.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use prometheus_client::metrics::MetricType;

use super::labels::Labels;
use crate::domain::model::{DurationHistogram, Snapshot, UnixSeconds};

/// One file of metrics, in the order of the catalogue.
pub struct Group {
    /// The heading that the catalogue puts it under.
    pub section: &'static str,
    /// Labels and source of the metrics that name none themselves.
    pub labels: &'static str,
    pub source: &'static str,
    pub metrics: Vec<Metric>,
}

/// What a metric is, and the pure function that adds its samples.
pub struct Metric {
    pub descriptor: Descriptor,
    /// The labels that a sample may carry, in the order of the page, with spaces between; `None`: those of the group.
    pub labels: Option<&'static str>,
    /// The label after these, where a subject has several series.
    pub by: Option<&'static str>,
    /// Where the value comes from: an NVML call, a PodResources message, podmeter itself; `None`: that of the group.
    pub source: Option<&'static str>,
    samples: Box<Samples>,
}

/// Adds the samples of a metric.
type Samples = dyn Fn(&Snapshot, &mut Family) + Send + Sync;

/// Gives the subjects of series, such as the GPUs, with their labels.
type Subjects<S> = fn(&Snapshot) -> Vec<(Labels, &S)>;

/// The name, type and HELP of a metric, without its values.
#[derive(Debug)]
pub struct Descriptor {
    /// The name as in text 0.0.4: a counter's name ends in `_total`.
    pub name: &'static str,
    pub kind: MetricType,
    /// One line, no backslash: what it means.
    pub help: &'static str,
}

/// The base units; the name of a metric that has one ends in it.
const UNITS: [&str; 7] = ["bytes", "celsius", "hertz", "joules", "ratio", "seconds", "watts"];

impl Descriptor {
    /// The base unit, or empty for a plain number.
    pub fn unit(&self) -> &'static str {
        let base = self.name.trim_end_matches("_total").trim_end_matches("_max");
        UNITS.into_iter().find(|unit| base.ends_with(unit)).unwrap_or_default()
    }
}

pub(super) fn counter(name: &'static str) -> Metric {
    Metric::new(MetricType::Counter, name)
}

pub(super) fn gauge(name: &'static str) -> Metric {
    Metric::new(MetricType::Gauge, name)
}

pub(super) fn histogram(name: &'static str) -> Metric {
    Metric::new(MetricType::Histogram, name)
}

impl Metric {
    fn new(kind: MetricType, name: &'static str) -> Self {
        let descriptor = Descriptor { name, kind, help: "" };
        Self { descriptor, labels: None, by: None, source: None, samples: Box::new(|_, _| {}) }
    }

    pub(super) fn family(&'static self, snapshot: &Snapshot) -> Family {
        let mut family = Family::new(&self.descriptor);
        (self.samples)(snapshot, &mut family);
        family
    }

    pub(super) fn help(mut self, help: &'static str) -> Self {
        self.descriptor.help = help;
        self
    }

    pub(super) fn labels(self, labels: &'static str) -> Self {
        Self { labels: Some(labels), ..self }
    }

    pub(super) fn source(self, source: &'static str) -> Self {
        Self { source: Some(source), ..self }
    }

    /// The samples that the function adds.
    pub(super) fn samples(self, samples: impl Fn(&Snapshot, &mut Family) + Send + Sync + 'static) -> Self {
        Self { samples: Box::new(samples), ..self }
    }

    /// One series per subject that has the value.
    pub(super) fn each<S: 'static, V: Into<SampleValue> + 'static>(
        self,
        subjects: Subjects<S>,
        read: fn(&S) -> Option<V>,
    ) -> Self {
        self.samples(move |snapshot, family| {
            for (labels, subject) in subjects(snapshot) {
                family.push_known(labels, read(subject));
            }
        })
    }

    /// One series per subject and value of the label.
    pub(super) fn by<S: 'static, L: Display, V: Into<SampleValue>, I: IntoIterator<Item = (L, Option<V>)> + 'static>(
        self,
        label: &'static str,
        subjects: Subjects<S>,
        read: fn(&S) -> Option<I>,
    ) -> Self {
        let metric = self.samples(move |snapshot, family| {
            for (labels, subject) in subjects(snapshot) {
                for (name, value) in read(subject).into_iter().flatten() {
                    family.push_known(labels.clone().and(label, name), value);
                }
            }
        });
        Self { by: Some(label), ..metric }
    }

    /// One series per subject and key of the map.
    pub(super) fn by_key<S: 'static, N: Copy + Into<&'static str> + 'static, V: Copy + Into<SampleValue> + 'static>(
        self,
        label: &'static str,
        subjects: Subjects<S>,
        read: fn(&S) -> Option<&BTreeMap<N, V>>,
    ) -> Self {
        let metric = self.samples(move |snapshot, family| {
            for (labels, subject) in subjects(snapshot) {
                for (name, value) in read(subject).into_iter().flatten() {
                    family.push(labels.clone().and(label, (*name).into()), *value);
                }
            }
        });
        Self { by: Some(label), ..metric }
    }
}

impl Group {
    /// The families that have a sample, sorted by name, each made on demand.
    pub(super) fn each(&'static self, snapshot: &Snapshot) -> impl Iterator<Item = Family> {
        let mut metrics: Vec<_> = self.metrics.iter().collect();
        metrics.sort_by_key(|metric| metric.descriptor.name);
        metrics.into_iter().filter_map(|metric| metric.family(snapshot).ordered())
    }

    #[cfg(test)]
    pub(super) fn families(&'static self, snapshot: &Snapshot) -> Vec<Family> {
        self.each(snapshot).collect()
    }
}

/// A descriptor and its samples at one moment.
#[derive(Clone, Debug)]
pub struct Family {
    pub descriptor: &'static Descriptor,
    pub samples: Vec<MetricSample>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct MetricSample {
    /// Shared by the families that have the same device or holder.
    pub labels: Arc<Labels>,
    pub value: SampleValue,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SampleValue {
    Integer(u64),
    Float(f64),
    Histogram(Box<DurationHistogram>),
}

impl SampleValue {
    /// The number; `None` for a histogram.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Integer(number) => Some(*number as f64),
            Self::Float(number) => Some(*number),
            Self::Histogram(_) => None,
        }
    }
}

impl Family {
    pub fn new(descriptor: &'static Descriptor) -> Self {
        Self { descriptor, samples: Vec::new() }
    }

    pub fn push(&mut self, labels: impl Into<Arc<Labels>>, value: impl Into<SampleValue>) {
        let (labels, value) = (labels.into(), value.into());
        // NaN and infinity are absent.
        if !matches!(value, SampleValue::Float(number) if !number.is_finite()) {
            self.samples.push(MetricSample { labels, value });
        }
    }

    /// Adds a sample, or nothing: what is absent is not on the page.
    pub fn push_known(&mut self, labels: Labels, value: Option<impl Into<SampleValue>>) {
        if let Some(value) = value {
            self.push(labels, value);
        }
    }

    /// The family with its samples sorted by labels; `None` without any. Of samples with equal labels the first stays:
    /// Prometheus rejects a page with one duplicate series.
    pub(super) fn ordered(mut self) -> Option<Self> {
        // Most come from maps in the order of their labels, and each once.
        if !self.samples.is_sorted_by(|one, other| one.labels < other.labels) {
            self.samples.sort_by(|one, other| one.labels.cmp(&other.labels));
            self.samples.dedup_by(|later, earlier| later.labels == earlier.labels);
        }
        (!self.samples.is_empty()).then_some(self)
    }
}

impl From<f64> for SampleValue {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

macro_rules! integers {
    ($($kind:ty)*) => {
        $(impl From<$kind> for SampleValue {
            fn from(number: $kind) -> Self {
                Self::Integer(number as u64)
            }
        })*
    };
}

integers!(u64 u32 usize bool);

impl From<UnixSeconds> for SampleValue {
    fn from(time: UnixSeconds) -> Self {
        Self::Float(time.0)
    }
}

impl From<DurationHistogram> for SampleValue {
    fn from(histogram: DurationHistogram) -> Self {
        Self::Histogram(Box::new(histogram))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    static GROUP: LazyLock<Group> = LazyLock::new(|| {
        let thing = gauge("podmeter_thing").samples(|_, family| {
            for (name, value) in [("b", 1u64), ("a", 2), ("a", 3)] {
                family.push(Labels::new("name", name), value);
            }
        });
        let other = gauge("podmeter_other").samples(|_, family| family.push(Labels::default(), 1u64));
        Group { section: "", labels: "", source: "", metrics: vec![thing, other] }
    });

    #[test]
    fn absent_and_not_a_number_make_no_sample() {
        let mut family = Family::new(&GROUP.metrics[0].descriptor);
        family.push_known(Labels::default(), None::<f64>);
        family.push(Labels::default(), f64::NAN);
        family.push(Labels::default(), f64::INFINITY);
        assert!(family.samples.is_empty());
        family.push(Labels::default(), 0.0);
        assert_eq!(family.samples.len(), 1, "zero is a value");
    }

    #[test]
    fn order_is_by_name_and_labels_and_doubles_are_dropped() {
        let page = GROUP.families(&Snapshot::default());
        let names: Vec<_> = page.iter().map(|family| family.descriptor.name).collect();
        assert_eq!(names, ["podmeter_other", "podmeter_thing"]);
        let values: Vec<_> = page[1].samples.iter().map(|sample| sample.value.clone()).collect();
        assert_eq!(values, [SampleValue::Integer(2), SampleValue::Integer(1)]);
    }
}
