//! The page of metrics in each format. prometheus-client writes it; the samples and their order come from `family`.

use std::fmt;
use std::io::{self, Write};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::encoding::{prometheus_protobuf, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::dcgm::{self, Generation};
use super::families;
use super::family::{Family, SampleValue};
use crate::domain::model::Snapshot;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Text,
    OpenMetrics,
    /// Delimited `io.prometheus.client.MetricFamily`.
    Protobuf,
    /// dcgm-exporter's names, as text 0.0.4.
    Dcgm(Generation),
}

/// Writes the page of a snapshot, one family after the other: no page is in memory as a whole. Returns how many
/// accounts `Format::Dcgm` leaves off; 0 for the others, whose accounts `SeriesBudget` has marked. An error is one of `to`.
pub fn write(snapshot: &Snapshot, format: Format, to: &mut impl Write) -> io::Result<usize> {
    let mut one = |family: Family| to.write_all(&encoded(family, format).map_err(io::Error::other)?);
    if let Format::Dcgm(generation) = format {
        return dcgm::each_family(snapshot, generation, &mut one);
    }
    families(snapshot).try_for_each(one)?;
    if format == Format::OpenMetrics {
        let mut end = String::new();
        text::encode_eof(&mut end).map_err(io::Error::other)?;
        to.write_all(end.as_bytes())?;
    }
    Ok(0)
}

/// The bytes of one family. Each gets a registry, as the library keeps all messages of a registry in memory.
fn encoded(family: Family, format: Format) -> Result<Vec<u8>, prometheus_protobuf::EncodeError> {
    let is_counter = family.descriptor.kind == MetricType::Counter;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(family));
    let mut page = String::new();
    match format {
        Format::Protobuf => return prometheus_protobuf::encode_to_vec(&registry),
        Format::OpenMetrics => text::encode_registry(&mut page, &registry)?,
        Format::Text => prometheus_text::encode(&mut page, &registry)?,
        Format::Dcgm(_) => {
            prometheus_text::encode(&mut page, &registry)?;
            if is_counter {
                page = page.replacen(" gauge\n", " counter\n", 1);
            }
        }
    }
    Ok(page.into_bytes())
}

/// The library would also write a descriptor without samples: only families with samples get here.
impl Collector for Family {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (name, kind) = match (self.descriptor.kind, self.descriptor.name.strip_suffix("_total")) {
            (MetricType::Counter, Some(base)) => (base, MetricType::Counter),
            // dcgm-exporter's name, to which the library would add `_total`: `encoded` corrects the type.
            (MetricType::Counter, None) => (self.descriptor.name, MetricType::Gauge),
            (kind, _) => (self.descriptor.name, kind),
        };
        let mut family = encoder.encode_descriptor(name, self.descriptor.help, None, kind)?;
        for sample in &self.samples {
            let mut metric = family.encode_family(&sample.labels.0)?;
            match (&sample.value, kind) {
                (SampleValue::Integer(number), MetricType::Counter) => ConstCounter::new(*number).encode(metric)?,
                (SampleValue::Float(number), MetricType::Counter) => ConstCounter::new(*number).encode(metric)?,
                (SampleValue::Integer(number), _) => ConstGauge::new(*number).encode(metric)?,
                (SampleValue::Float(number), _) => ConstGauge::new(*number).encode(metric)?,
                (SampleValue::Histogram(histogram), _) => {
                    let buckets: Vec<_> = histogram.buckets().collect();
                    let (sum, count) = (histogram.sum_seconds(), histogram.count());
                    metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                }
            }
        }
        Ok(())
    }
}
