//! Three encodings of the same families. prometheus-client writes the lines and messages; what it has no words for
//! (counters of text 0.0.4, created times) is added here.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_protobuf};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use prost::Message as _;

use super::{Family, Kind, Sample, Value};
use crate::model::UnixSeconds;

/// About what a sample, and what HELP and TYPE of a family take on a page: room made once is not made again.
const SAMPLE_BYTES: usize = 128;
const FAMILY_BYTES: usize = 256;

/// Text 0.0.4: a counter's metadata carries the name with `_total`, and there is no end mark.
pub fn text(families: Vec<Family>) -> Result<String, fmt::Error> {
    library_text(Arc::new(families), Dialect::Text)
}

/// OpenMetrics 1.0, with `_created` after each counter whose beginning is known.
pub fn open_metrics(families: Vec<Family>) -> Result<String, fmt::Error> {
    let families = Arc::new(families);
    let written = library_text(Arc::clone(&families), Dialect::OpenMetrics)?;
    let mut page = String::with_capacity(written.len() + written.len() / 4);
    let mut lines = written.split_inclusive('\n');
    for family in families.iter() {
        // The library writes HELP before TYPE; the format wants them the other way round.
        let help = lines.next().ok_or(fmt::Error)?;
        page.push_str(lines.next().ok_or(fmt::Error)?);
        page.push_str(help);
        for sample in &family.samples {
            for _ in 0..lines_of(sample) {
                let line = lines.next().ok_or(fmt::Error)?;
                page.push_str(line);
                if let (Kind::Counter, Some(created)) = (family.descriptor.kind, sample.created) {
                    push_created(&mut page, family, line, created)?;
                }
            }
        }
    }
    page.push_str("# EOF\n");
    Ok(page)
}

/// Length-delimited `io.prometheus.client.MetricFamily` messages, counters with their created time.
pub fn protobuf(families: Vec<Family>) -> Result<Vec<u8>, fmt::Error> {
    let families = Arc::new(families);
    let mut messages = prometheus_protobuf::encode(&registry(Arc::clone(&families), Dialect::Protobuf))?;
    for (message, family) in messages.iter_mut().zip(families.iter()) {
        for (metric, sample) in message.metric.iter_mut().zip(&family.samples) {
            let created = sample.created.and_then(|created| Duration::try_from_secs_f64(created.0).ok());
            if let (Some(counter), Some(since)) = (&mut metric.counter, created) {
                counter.start_timestamp = Some((UNIX_EPOCH + since).into());
            }
        }
    }
    let mut page = Vec::with_capacity(messages.iter().map(prost::Message::encoded_len).sum::<usize>() + 1024);
    for message in &messages {
        message.encode_length_delimited(&mut page).map_err(|_| fmt::Error)?;
    }
    Ok(page)
}

fn library_text(families: Arc<Vec<Family>>, dialect: Dialect) -> Result<String, fmt::Error> {
    let room = families.iter().map(|family| FAMILY_BYTES + family.samples.len() * SAMPLE_BYTES).sum();
    let mut page = String::with_capacity(room);
    prometheus_client::encoding::text::encode_registry(&mut page, &registry(families, dialect))?;
    Ok(page)
}

fn registry(families: Arc<Vec<Family>>, dialect: Dialect) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page { families, dialect }));
    registry
}

fn lines_of(sample: &Sample) -> usize {
    match &sample.value {
        Value::Integer(_) | Value::Float(_) => 1,
        Value::Histogram(histogram) => histogram.buckets().count() + 2,
    }
}

fn push_created(page: &mut String, family: &Family, line: &str, created: UnixSeconds) -> fmt::Result {
    use fmt::Write as _;
    // A value has no space in it, so the last one ends the labels.
    let (series, _) = line.rsplit_once(' ').ok_or(fmt::Error)?;
    let labels = series.get(family.descriptor.name.len()..).ok_or(fmt::Error)?;
    writeln!(page, "{}_created{labels} {:.3}", base_name(family.descriptor.name), created.0)
}

fn base_name(name: &str) -> &str {
    name.strip_suffix("_total").unwrap_or(name)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Text,
    OpenMetrics,
    Protobuf,
}

#[derive(Debug)]
struct Page {
    families: Arc<Vec<Family>>,
    dialect: Dialect,
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut labels = Vec::new();
        for family in self.families.iter() {
            self.encode_family(family, &mut labels, &mut encoder)?;
        }
        Ok(())
    }
}

impl Page {
    /// `labels` has room that is used again for each sample.
    fn encode_family<'page>(
        &self,
        family: &'page Family,
        labels: &mut Vec<(&'page str, &'page str)>,
        encoder: &mut DescriptorEncoder,
    ) -> fmt::Result {
        let descriptor = family.descriptor;
        let as_counter = descriptor.kind == Kind::Counter && self.dialect != Dialect::Text;
        // The library appends `_total` to what it is told is a counter. Text 0.0.4 wants the name as it is, with or
        // without it, so there the type line says counter and the samples are written as gauges are.
        let name = if as_counter { base_name(descriptor.name) } else { descriptor.name };
        let kind = match descriptor.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        };
        let help = self.escaped_help(descriptor.help);
        let mut metric = encoder.encode_descriptor(name, &help, None, kind)?;
        for sample in &family.samples {
            labels.clear();
            labels.extend(sample.labels.iter().map(|(name, label)| (*name, label.as_str())));
            if labels.is_empty() {
                encode_value(&mut metric, &sample.value, as_counter)?;
            } else {
                encode_value(&mut metric.encode_family(&labels.as_slice())?, &sample.value, as_counter)?;
            }
        }
        Ok(())
    }

    /// The library escapes label values but writes help as it is.
    fn escaped_help<'help>(&self, help: &'help str) -> Cow<'help, str> {
        let plain = match self.dialect {
            Dialect::Protobuf => true,
            Dialect::Text => !help.contains(['\\', '\n']),
            Dialect::OpenMetrics => !help.contains(['\\', '\n', '"']),
        };
        if plain {
            return Cow::Borrowed(help);
        }
        let escaped = help.replace('\\', "\\\\").replace('\n', "\\n");
        Cow::Owned(if self.dialect == Dialect::OpenMetrics { escaped.replace('"', "\\\"") } else { escaped })
    }
}

fn encode_value(series: &mut MetricEncoder, value: &Value, as_counter: bool) -> fmt::Result {
    match value {
        Value::Integer(number) if as_counter => series.encode_counter::<NoLabelSet, _, f64>(number, None),
        Value::Float(number) if as_counter => series.encode_counter::<NoLabelSet, _, f64>(number, None),
        Value::Integer(number) => series.encode_gauge(number),
        Value::Float(number) => series.encode_gauge(number),
        Value::Histogram(histogram) => {
            let buckets: Vec<_> = histogram.buckets().collect();
            series.encode_histogram::<NoLabelSet>(histogram.sum_seconds(), histogram.count(), &buckets, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Descriptor;
    use crate::model::DurationHistogram;

    static SECONDS: Descriptor =
        Descriptor::counter("x_seconds_total", &["who"], "seconds", "", "Says \"hi\" \\ and\nmore.");
    static INFO: Descriptor = Descriptor::gauge("x_info", &[], "", "", "One.");
    static LATENCY: Descriptor = Descriptor::histogram("x_duration_seconds", &[], "seconds", "", "Time.");

    fn page() -> Vec<Family> {
        let mut seconds = Family::new(&SECONDS);
        seconds.push_created(vec![("who", "a \"b\"} 1\\\nc".into())], Some(1.5), UnixSeconds(1_700_000_000.25));
        seconds.push(vec![("who", "z".into())], 2.0);
        let mut info = Family::new(&INFO);
        info.push(vec![], 1u64);
        let mut latency = Family::new(&LATENCY);
        let mut histogram = DurationHistogram::default();
        histogram.observe(Duration::from_millis(2));
        latency.push(vec![], &histogram);
        vec![seconds, info, latency]
    }

    #[test]
    fn text_names_counters_in_full() {
        let page = text(page()).unwrap();
        assert!(
            page.starts_with(
                "# HELP x_seconds_total Says \"hi\" \\\\ and\\nmore.\n\
             # TYPE x_seconds_total counter\n\
             x_seconds_total{who=\"a \\\"b\\\"} 1\\\\\\nc\"} 1.5\n\
             x_seconds_total{who=\"z\"} 2.0\n\
             # HELP x_info One.\n# TYPE x_info gauge\nx_info 1\n"
            ),
            "{page}"
        );
        assert!(page.contains("x_duration_seconds_bucket{le=\"0.0025\"} 1\n"), "{page}");
        assert!(!page.contains("_created") && !page.contains("# EOF"));
    }

    #[test]
    fn open_metrics_has_created_times_and_an_end() {
        let page = open_metrics(page()).unwrap();
        assert!(
            page.starts_with(
                "# TYPE x_seconds counter\n\
             # HELP x_seconds Says \\\"hi\\\" \\\\ and\\nmore.\n\
             x_seconds_total{who=\"a \\\"b\\\"} 1\\\\\\nc\"} 1.5\n\
             x_seconds_created{who=\"a \\\"b\\\"} 1\\\\\\nc\"} 1700000000.250\n\
             x_seconds_total{who=\"z\"} 2.0\n# TYPE x_info gauge\n"
            ),
            "{page}"
        );
        assert!(page.ends_with("# EOF\n"));
    }

    #[test]
    fn protobuf_carries_created_times_and_plain_help() {
        let bytes = protobuf(page()).unwrap();
        let mut rest = bytes.as_slice();
        let family =
            prometheus_protobuf::prometheus_data_model::MetricFamily::decode_length_delimited(&mut rest).unwrap();
        assert_eq!(family.name, "x_seconds_total");
        assert_eq!(family.help, SECONDS.help);
        let created = family.metric[0].counter.as_ref().unwrap().start_timestamp.as_ref().unwrap();
        assert_eq!((created.seconds, created.nanos), (1_700_000_000, 250_000_000));
        assert!(family.metric[1].counter.as_ref().unwrap().start_timestamp.is_none());
    }
}
