//! A metric as a row with its function, and the samples that the function makes.
//!
//! In: a snapshot. Out: families in the order of the page. Does not use: the formats in which they are written.

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
    pub metrics: &'static [Metric],
}

/// What a metric is, and the pure function that adds its samples.
pub struct Metric {
    pub descriptor: Descriptor,
    pub(super) samples: fn(&Snapshot, &mut Family),
}

/// The description of a metric, without its values. The catalogue and the page both read it.
#[derive(Debug)]
pub struct Descriptor {
    /// The name as in text 0.0.4: a counter's name ends in `_total`.
    pub name: &'static str,
    pub kind: MetricType,
    /// Every label that a sample may carry, in the order of the page, with spaces between; `None`: those of the group.
    pub labels: Option<&'static str>,
    /// Where the value comes from: an NVML call, a PodResources message, podmeter itself; `None`: that of the group.
    pub source: Option<&'static str>,
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

type Text = &'static str;
type Samples = fn(&Snapshot, &mut Family);

pub(super) const fn counter(name: Text, help: Text, samples: Samples) -> Metric {
    Metric::new(MetricType::Counter, name, help, samples)
}

pub(super) const fn gauge(name: Text, help: Text, samples: Samples) -> Metric {
    Metric::new(MetricType::Gauge, name, help, samples)
}

pub(super) const fn histogram(name: Text, help: Text, samples: Samples) -> Metric {
    Metric::new(MetricType::Histogram, name, help, samples)
}

impl Metric {
    const fn new(kind: MetricType, name: Text, help: Text, samples: Samples) -> Self {
        Self { descriptor: Descriptor { name, kind, labels: None, source: None, help }, samples }
    }

    pub(super) fn family(&'static self, snapshot: &Snapshot) -> Family {
        let mut family = Family::new(&self.descriptor);
        (self.samples)(snapshot, &mut family);
        family
    }

    pub(super) const fn labels(mut self, labels: Text) -> Self {
        self.descriptor.labels = Some(labels);
        self
    }

    pub(super) const fn source(mut self, source: Text) -> Self {
        self.descriptor.source = Some(source);
        self
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
    pub(super) fn as_f64(&self) -> Option<f64> {
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

    /// The last label of the descriptor, where each value of it has a series.
    pub(super) fn last_label(&self) -> &'static str {
        let labels = self.descriptor.labels.expect("the row has labels of its own");
        labels.rsplit(' ').next().unwrap_or_default()
    }

    /// Adds one series per subject that has the value.
    pub(super) fn each<S, V: Into<SampleValue>>(
        &mut self,
        subjects: impl IntoIterator<Item = (Labels, S)>,
        read: impl Fn(S) -> Option<V>,
    ) {
        subjects.into_iter().for_each(|(labels, subject)| self.push_known(labels, read(subject)));
    }

    /// Adds one series per subject and value of the last label.
    pub(super) fn by_name<S, L: Display, V: Into<SampleValue>, I: IntoIterator<Item = (L, Option<V>)>>(
        &mut self,
        subjects: impl IntoIterator<Item = (Labels, S)>,
        read: impl Fn(S) -> Option<I>,
    ) {
        let label = self.last_label();
        for (labels, subject) in subjects {
            for (name, value) in read(subject).into_iter().flatten() {
                self.push_known(labels.clone().and(label, name), value);
            }
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

impl From<&DurationHistogram> for SampleValue {
    fn from(histogram: &DurationHistogram) -> Self {
        Self::Histogram(Box::new(histogram.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static METRICS: [Metric; 2] = [
        gauge("podmeter_thing", "A thing.", |_, family| {
            for (name, value) in [("b", 1u64), ("a", 2), ("a", 3)] {
                family.push(Labels::new("name", name), value);
            }
        }),
        gauge("podmeter_other", "Another.", |_, family| family.push(Labels::default(), 1u64)),
    ];

    #[test]
    fn absent_and_not_a_number_make_no_sample() {
        let mut family = Family::new(&METRICS[0].descriptor);
        family.push_known(Labels::default(), None::<f64>);
        family.push(Labels::default(), f64::NAN);
        family.push(Labels::default(), f64::INFINITY);
        assert!(family.samples.is_empty());
        family.push(Labels::default(), 0.0);
        assert_eq!(family.samples.len(), 1, "zero is a value");
    }

    #[test]
    fn order_is_by_name_and_labels_and_doubles_are_dropped() {
        static GROUP: Group = Group { section: "", labels: "", source: "", metrics: &METRICS };
        let page = GROUP.families(&Snapshot::default());
        let names: Vec<_> = page.iter().map(|family| family.descriptor.name).collect();
        assert_eq!(names, ["podmeter_other", "podmeter_thing"]);
        let values: Vec<_> = page[1].samples.iter().map(|sample| sample.value.clone()).collect();
        assert_eq!(values, [SampleValue::Integer(2), SampleValue::Integer(1)]);
    }
}
