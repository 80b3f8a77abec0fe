use std::sync::Arc;

use crate::model::{DurationHistogram, UnixSeconds};

/// What a metric is, apart from its values. The catalogue and the page both read it.
#[derive(Debug)]
pub struct Descriptor {
    /// As it stands in text 0.0.4: a counter's name ends in `_total`.
    pub name: &'static str,
    pub kind: Kind,
    /// Every label that a sample may carry, in the order of the page.
    pub labels: &'static [&'static str],
    /// Base unit, or empty for a plain number.
    pub unit: &'static str,
    /// Where the value comes from: an NVML call, a PodResources message, podmeter itself.
    pub source: &'static str,
    /// One line, no backslash: what it means.
    pub help: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

impl Descriptor {
    pub const fn counter(
        name: &'static str,
        labels: &'static [&'static str],
        unit: &'static str,
        source: &'static str,
        help: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Counter, labels, unit, source, help }
    }

    pub const fn gauge(
        name: &'static str,
        labels: &'static [&'static str],
        unit: &'static str,
        source: &'static str,
        help: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Gauge, labels, unit, source, help }
    }

    pub const fn histogram(
        name: &'static str,
        labels: &'static [&'static str],
        unit: &'static str,
        source: &'static str,
        help: &'static str,
    ) -> Self {
        Self { name, kind: Kind::Histogram, labels, unit, source, help }
    }
}

/// A descriptor and its samples at one moment.
#[derive(Clone, Debug)]
pub struct Family {
    pub descriptor: &'static Descriptor,
    pub samples: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub labels: Vec<(&'static str, Label)>,
    pub value: Value,
    /// When a counter began to count from zero; `None` where that is not known.
    pub created: Option<UnixSeconds>,
}

/// A label's value. Cheap to make: shared or static text, never a copy of it unless it had to be composed.
#[derive(Clone, Debug)]
pub enum Label {
    Static(&'static str),
    Shared(Arc<str>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Integer(u64),
    Float(f64),
    Histogram(Box<DurationHistogram>),
}

impl Family {
    #[must_use]
    pub fn new(descriptor: &'static Descriptor) -> Self {
        Self { descriptor, samples: Vec::new() }
    }

    pub fn push(&mut self, labels: Vec<(&'static str, Label)>, value: impl Into<Value>) {
        self.push_created(labels, Some(value), None);
    }

    /// Adds a sample, or nothing: what is absent is not on the page.
    pub fn push_known(&mut self, labels: Vec<(&'static str, Label)>, value: Option<impl Into<Value>>) {
        self.push_created(labels, value, None);
    }

    /// As `push_known`, for a counter that began at zero at a known time. What is not a number is left out too.
    pub fn push_created(
        &mut self,
        labels: Vec<(&'static str, Label)>,
        value: Option<impl Into<Value>>,
        created: impl Into<Option<UnixSeconds>>,
    ) {
        let Some(value) = value.map(Into::into) else { return };
        if matches!(value, Value::Float(number) if !number.is_finite()) {
            return;
        }
        self.samples.push(Sample { labels, value, created: created.into() });
    }
}

/// By name, each family's samples by their labels, families without samples left out. Of samples with equal labels the
/// first stays: a page with a doubled series would be refused as a whole.
pub(super) fn ordered(mut families: Vec<Family>) -> Vec<Family> {
    families.retain(|family| !family.samples.is_empty());
    families.sort_by_key(|family| family.descriptor.name);
    for family in &mut families {
        // Most come from maps in the order of their labels, and each once.
        if !family.samples.is_sorted_by(|one, other| one.labels < other.labels) {
            family.samples.sort_by(|one, other| one.labels.cmp(&other.labels));
            family.samples.dedup_by(|later, earlier| later.labels == earlier.labels);
        }
    }
    families
}

impl Label {
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Static(text) => text,
            Self::Shared(text) => text,
        }
    }
}

impl PartialEq for Label {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Label {}

impl PartialOrd for Label {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Label {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl From<&'static str> for Label {
    fn from(text: &'static str) -> Self {
        Self::Static(text)
    }
}

impl From<Arc<str>> for Label {
    fn from(text: Arc<str>) -> Self {
        Self::Shared(text)
    }
}

impl From<&Arc<str>> for Label {
    fn from(text: &Arc<str>) -> Self {
        Self::Shared(Arc::clone(text))
    }
}

impl From<String> for Label {
    fn from(text: String) -> Self {
        Self::Shared(text.into())
    }
}

impl From<u32> for Label {
    fn from(number: u32) -> Self {
        // Nearly every sample has the index of a GPU.
        const SMALL: [&str; 16] =
            ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"];
        match SMALL.get(number as usize) {
            Some(text) => Self::Static(text),
            None => Self::Shared(number.to_string().into()),
        }
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Integer(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Integer(number as u64)
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Self::Integer(truth.into())
    }
}

impl From<UnixSeconds> for Value {
    fn from(time: UnixSeconds) -> Self {
        Self::Float(time.0)
    }
}

impl From<&DurationHistogram> for Value {
    fn from(histogram: &DurationHistogram) -> Self {
        Self::Histogram(Box::new(histogram.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static THING: Descriptor = Descriptor::gauge("podmeter_thing", &["name"], "", "", "A thing.");
    static OTHER: Descriptor = Descriptor::gauge("podmeter_other", &[], "", "", "Another.");

    #[test]
    fn absent_and_not_a_number_make_no_sample() {
        let mut family = Family::new(&THING);
        family.push_known(vec![], None::<f64>);
        family.push(vec![], f64::NAN);
        family.push(vec![], f64::INFINITY);
        assert!(family.samples.is_empty());
        family.push(vec![], 0.0);
        assert_eq!(family.samples.len(), 1, "zero is a value");
    }

    #[test]
    fn order_is_by_name_and_labels_and_doubles_are_dropped() {
        let mut things = Family::new(&THING);
        things.push(vec![("name", "b".into())], 1u64);
        things.push(vec![("name", Arc::<str>::from("a").into())], 2u64);
        things.push(vec![("name", "a".into())], 3u64);
        let mut others = Family::new(&OTHER);
        others.push(vec![], 1u64);
        let page = ordered(vec![things, Family::new(&THING), others]);
        let names: Vec<_> = page.iter().map(|family| family.descriptor.name).collect();
        assert_eq!(names, ["podmeter_other", "podmeter_thing"]);
        let values: Vec<_> = page[1].samples.iter().map(|sample| sample.value.clone()).collect();
        assert_eq!(values, [Value::Integer(2), Value::Integer(1)]);
    }
}
