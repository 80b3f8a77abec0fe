//! The fields of a row of the table: both generations' names of a metric, its unit, and podmeter's equivalent.

use serde::Serialize;

use super::page::{Page, Series};
use crate::metrics::family::Descriptor;
pub use crate::metrics::family::Kind;

/// One metric of dcgm-exporter in both generations.
pub struct Name {
    /// Up to 4.8; `None` where 4.9 has it first.
    pub old: Option<&'static str>,
    /// From 4.9 on; equal to `old` where it is unchanged.
    pub new: Option<&'static str>,
    pub kind: Kind,
    /// Of the old name. The new name has the base unit, where it is another name.
    pub unit: Unit,
    /// The unit of the new name, where it differs.
    pub scaled: bool,
    pub shipped: Shipped,
    pub native: Native,
    pub(super) values: Values,
    pub(super) descriptors: [Descriptor; 2],
}

/// Where a row comes from.
pub enum Values {
    /// Adds the samples of `/metrics/dcgm`, in base units.
    Served(fn(&Page<'_>, &mut Series)),
    /// Why podmeter does not serve it.
    NotServed(&'static str),
}

/// Where dcgm-exporter has the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shipped {
    /// Active in its counter file.
    Active,
    /// In its counter file, as a comment.
    Commented,
    /// Active from 4.9 on, not in the file before.
    New,
    /// In no counter file; people add it to theirs.
    Custom,
}

/// The unit of an old name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A count, a code or a state.
    Number,
    Percent,
    Ratio,
    Mebibytes,
    Bytes,
    BytesPerSecond,
    /// Thousands of KiB a second, which DCGM calls MB/s.
    ThousandKibibytesPerSecond,
    Megahertz,
    Millijoules,
    Nanoseconds,
    Celsius,
    Watts,
    Cycles,
}

/// A field that dcgm-exporter writes as a label on every series.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LabelName {
    #[serde(rename = "4.8")]
    pub old: &'static str,
    #[serde(rename = "4.9")]
    pub new: &'static str,
    pub shipped: Shipped,
    /// On the series of `/metrics/dcgm`. The others change the identity of every series for what hardly ever changes.
    pub served: bool,
    /// podmeter's metric with it, and its label there.
    pub podmeter: Option<(&'static str, &'static str)>,
}

/// podmeter's metrics for a name.
pub enum Native {
    Query(Equivalent),
    /// Why there is none.
    None(&'static str),
}

/// A metric of `/metrics` with the same quantity.
pub struct Equivalent {
    pub metric: &'static str,
    /// Label values that select it.
    pub labels: &'static [(&'static str, &'static str)],
    /// Labels to sum over.
    pub sum_over: &'static [&'static str],
    /// The old name's value is podmeter's times this.
    pub scale: f64,
    /// The old name is a rate: podmeter's is a counter of the same unit without its time.
    pub is_counter_of_rate: bool,
    /// podmeter's metric of the quantity by container, and how it differs from the device's value under each pod.
    pub container: Option<(&'static str, &'static str)>,
    pub agreement: Agreement,
}

/// Whether a query gives the same with podmeter's metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    Same,
    /// The same but for this difference.
    Named(&'static str),
    /// Not the same, for this reason.
    Unproven(&'static str),
}

impl Unit {
    /// The base unit's value times this is the old name's value.
    #[must_use]
    pub const fn per_base(self) -> f64 {
        match self {
            Self::Percent => 100.0,
            Self::Mebibytes => 1.0 / 1_048_576.0,
            Self::ThousandKibibytesPerSecond => 1.0 / 1_024_000.0,
            Self::Megahertz => 1e-6,
            Self::Millijoules => 1e3,
            Self::Nanoseconds => 1e9,
            Self::Number
            | Self::Ratio
            | Self::Bytes
            | Self::BytesPerSecond
            | Self::Celsius
            | Self::Watts
            | Self::Cycles => 1.0,
        }
    }

    /// As in tables; empty for a plain number.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Number => "",
            Self::Percent => "%",
            Self::Ratio => "ratio",
            Self::Mebibytes => "MiB",
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "bytes/s",
            Self::ThousandKibibytesPerSecond => "1000 KiB/s",
            Self::Megahertz => "MHz",
            Self::Millijoules => "mJ",
            Self::Nanoseconds => "ns",
            Self::Celsius => "°C",
            Self::Watts => "W",
            Self::Cycles => "cycles",
        }
    }

    /// As in tables.
    #[must_use]
    pub const fn base(self) -> &'static str {
        match self {
            Self::Percent | Self::Ratio => "ratio",
            Self::Mebibytes | Self::Bytes => "bytes",
            Self::BytesPerSecond | Self::ThousandKibibytesPerSecond => "bytes/s",
            Self::Megahertz => "Hz",
            Self::Millijoules => "J",
            Self::Nanoseconds => "s",
            other => other.as_str(),
        }
    }
}

impl Name {
    /// The value under the new name is that under the old name times this.
    #[must_use]
    pub const fn scale(&self) -> f64 {
        if self.scaled { 1.0 / self.unit.per_base() } else { 1.0 }
    }

    /// Why `/metrics/dcgm` does not have it; `None` where it does.
    #[must_use]
    pub const fn not_served(&self) -> Option<&'static str> {
        match self.values {
            Values::Served(_) => None,
            Values::NotServed(reason) => Some(reason),
        }
    }

    pub(super) const fn served(&self) -> Option<fn(&Page<'_>, &mut Series)> {
        match self.values {
            Values::Served(samples) => Some(samples),
            Values::NotServed(_) => None,
        }
    }

    pub(super) fn descriptor(&'static self, old: bool) -> Option<&'static Descriptor> {
        Some(&self.descriptors[usize::from(!old)]).filter(|descriptor| !descriptor.name.is_empty())
    }

    #[must_use]
    pub const fn help(&self) -> &'static str {
        self.descriptors[0].help
    }

    /// The old name where there is one.
    #[must_use]
    pub fn any(&self) -> &'static str {
        self.old.or(self.new).unwrap_or_default()
    }

    /// Both names have the same series.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.old == self.new
    }

    /// A row without an equivalent and without values. An empty name: the generation does not have it.
    const fn row([old, new]: [&'static str; 2], unit: Unit, help: [&'static str; 2]) -> Self {
        Self {
            old: if old.is_empty() { None } else { Some(old) },
            new: if new.is_empty() { None } else { Some(new) },
            kind: Kind::Gauge,
            unit,
            scaled: false,
            shipped: Shipped::Active,
            native: Native::None(""),
            values: Values::NotServed(""),
            descriptors: [descriptor(old, help[0]), descriptor(new, help[1])],
        }
    }

    pub(super) const fn counter(mut self) -> Self {
        self.kind = Kind::Counter;
        self.descriptors[0].kind = Kind::Counter;
        self.descriptors[1].kind = Kind::Counter;
        self
    }

    pub(super) const fn shipped(mut self, shipped: Shipped) -> Self {
        self.shipped = shipped;
        self
    }

    pub(super) const fn native(mut self, mut native: Equivalent) -> Self {
        native.scale = self.unit.per_base();
        self.native = Native::Query(native);
        self
    }

    pub(super) const fn no_native(mut self, reason: &'static str) -> Self {
        self.native = Native::None(reason);
        self
    }

    pub(super) const fn not_served_because(mut self, reason: &'static str) -> Self {
        self.values = Values::NotServed(reason);
        self
    }

    pub(super) const fn values(mut self, values: fn(&Page<'_>, &mut Series)) -> Self {
        self.values = Values::Served(values);
        self
    }
}

const fn descriptor(name: &'static str, help: &'static str) -> Descriptor {
    Descriptor { name, kind: Kind::Gauge, labels: &[], source: "NVML", help }
}

/// The same name in both generations.
pub(super) const fn unchanged(name: &'static str, unit: Unit, help: &'static str) -> Name {
    Name::row([name, name], unit, [help, help])
}

/// Another name of the same value.
pub(super) const fn renamed(old: &'static str, new: &'static str, unit: Unit, help: &'static str) -> Name {
    Name::row([old, new], unit, [help, help])
}

/// Another name, in the base unit.
pub(super) const fn scaled(old: &'static str, new: &'static str, unit: Unit, help: [&'static str; 2]) -> Name {
    let mut name = Name::row([old, new], unit, help);
    name.scaled = true;
    name
}

/// A metric of `/metrics` with the same value in base units.
pub(super) const fn same(metric: &'static str, labels: &'static [(&'static str, &'static str)]) -> Equivalent {
    Equivalent {
        metric,
        labels,
        sum_over: &[],
        scale: 1.0,
        is_counter_of_rate: false,
        container: None,
        agreement: Agreement::Same,
    }
}

impl Equivalent {
    pub(super) const fn by_container(mut self, metric: &'static str, difference: &'static str) -> Self {
        self.container = Some((metric, difference));
        self
    }

    pub(super) const fn sum_over(mut self, labels: &'static [&'static str]) -> Self {
        self.sum_over = labels;
        self
    }

    pub(super) const fn but(mut self, difference: &'static str) -> Self {
        self.agreement = Agreement::Named(difference);
        self
    }

    pub(super) const fn unproven(mut self, reason: &'static str) -> Self {
        self.agreement = Agreement::Unproven(reason);
        self
    }

    /// The old name is the rate of this counter at the last reading.
    pub(super) const fn counter_of_rate(mut self) -> Self {
        self.is_counter_of_rate = true;
        self.unproven("the mean over a range, not the last reading")
    }
}
