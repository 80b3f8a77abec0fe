//! Three encodings of the same families.
//!
//! prometheus-client's encoder is not used: it has neither text 0.0.4 (where a counter's metadata names `_total`) nor
//! created times, writes HELP before TYPE, which OpenMetrics forbids, and takes most of a scrape's time.

use std::fmt::{Debug, Write as _};
use std::time::Duration;

use super::protobuf::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType, Timestamp};
use prost::Message as _;

use super::family::{Family, MetricKind, MetricSample, SampleValue};
use super::labels::Labels;
use crate::domain::model::DurationHistogram;

/// The end mark of OpenMetrics.
pub(super) const END: &str = "# EOF\n";

/// OpenMetrics 1.0, with `_created` after each counter whose start is known; or text 0.0.4, where a counter's metadata
/// carries the name with `_total` and there is no end mark.
pub(super) fn push_family(page: &mut String, family: &Family, open_metrics: bool) {
    let descriptor = family.descriptor;
    let (name, base) = (descriptor.name, base_name(descriptor.name));
    // OpenMetrics requires TYPE first; Prometheus' own format has HELP first.
    if open_metrics {
        push_all(page, &["# TYPE ", base, " ", descriptor.kind.as_str(), "\n# HELP ", base, " "]);
        push_escaped(page, descriptor.help, true);
        page.push('\n');
    } else {
        push_all(page, &["# HELP ", name, " "]);
        push_escaped(page, descriptor.help, false);
        push_all(page, &["\n# TYPE ", name, " ", descriptor.kind.as_str(), "\n"]);
    }
    for sample in &family.samples {
        push_sample(page, name, sample);
        if let (true, Some(created)) = (open_metrics, sample.created) {
            push_all(page, &[base, "_created"]);
            push_labels(page, None, &sample.labels);
            let _ = writeln!(page, " {:.3}", created.0);
        }
    }
}

fn push_sample(page: &mut String, name: &str, sample: &MetricSample) {
    let mut line = |suffix, bound, value: &dyn Debug| {
        push_all(page, &[name, suffix]);
        push_labels(page, bound, &sample.labels);
        let _ = writeln!(page, " {value:?}");
    };
    match &sample.value {
        SampleValue::Integer(number) => line("", None, number),
        SampleValue::Float(number) => line("", None, number),
        SampleValue::Histogram(histogram) => {
            // In the order of the formats' own encoders: a parser may drop what it does not expect.
            for (bound, count) in cumulative(histogram) {
                line("_bucket", Some(bound), &count);
            }
            line("_sum", None, &histogram.sum_seconds());
            line("_count", None, &histogram.count());
        }
    }
}

fn push_labels(page: &mut String, bound: Option<f64>, labels: &Labels) {
    let mut before = "{";
    if let Some(bound) = bound {
        let _ = match bound {
            f64::INFINITY => write!(page, "{{le=\"+Inf\""),
            bound => write!(page, "{{le=\"{bound:?}\""),
        };
        before = ",";
    }
    for (name, value) in labels.iter() {
        push_all(page, &[before, name, "=\""]);
        push_escaped(page, value, true);
        page.push('"');
        before = ",";
    }
    if before == "," {
        page.push('}');
    }
}

fn push_all(page: &mut String, parts: &[&str]) {
    for part in parts {
        page.push_str(part);
    }
}

fn push_escaped(page: &mut String, text: &str, quoted: bool) {
    let is_special = |byte: u8| byte == b'\\' || byte == b'\n' || (quoted && byte == b'"');
    if !text.bytes().any(is_special) {
        return page.push_str(text);
    }
    for letter in text.chars() {
        match letter {
            '\\' => page.push_str("\\\\"),
            '\n' => page.push_str("\\n"),
            '"' if quoted => page.push_str("\\\""),
            letter => page.push(letter),
        }
    }
}

/// Upper bounds, and how many observations are at or below them.
fn cumulative(histogram: &DurationHistogram) -> impl Iterator<Item = (f64, u64)> {
    histogram.buckets().scan(0, |sum, (bound, count)| {
        *sum += count;
        Some((bound, *sum))
    })
}

fn base_name(name: &str) -> &str {
    name.strip_suffix("_total").unwrap_or(name)
}

/// A length-delimited `io.prometheus.client.MetricFamily`, counters with their created time.
pub(super) fn protobuf(family: &Family) -> Vec<u8> {
    message(family).encode_length_delimited_to_vec()
}

fn message(family: &Family) -> MetricFamily {
    let kind = match family.descriptor.kind {
        MetricKind::Counter => MetricType::Counter,
        MetricKind::Gauge => MetricType::Gauge,
        MetricKind::Histogram => MetricType::Histogram,
    };
    MetricFamily {
        name: family.descriptor.name.to_owned(),
        help: family.descriptor.help.to_owned(),
        r#type: kind.into(),
        metric: family.samples.iter().map(|sample| metric(sample, kind)).collect(),
    }
}

fn metric(sample: &MetricSample, kind: MetricType) -> Metric {
    let label = sample.labels.iter().map(|(name, value)| LabelPair { name: name.to_owned(), value: value.to_owned() });
    let mut metric = Metric { label: label.collect(), ..Metric::default() };
    if let SampleValue::Histogram(histogram) = &sample.value {
        let bucket = |(upper_bound, cumulative_count)| Bucket { cumulative_count, upper_bound };
        metric.histogram = Some(Histogram {
            sample_count: histogram.count(),
            sample_sum: histogram.sum_seconds(),
            bucket: cumulative(histogram).map(bucket).collect(),
        });
    }
    let Some(value) = sample.value.as_f64() else { return metric };
    if kind == MetricType::Counter {
        let created = sample.created.and_then(|created| Duration::try_from_secs_f64(created.0).ok());
        let start_timestamp = created
            .map(|created| Timestamp { seconds: created.as_secs() as i64, nanos: created.subsec_nanos() as i32 });
        metric.counter = Some(Counter { value, start_timestamp });
    } else {
        metric.gauge = Some(Gauge { value });
    }
    metric
}

#[cfg(test)]
mod tests {
    use crate::serve::metrics::protobuf::MetricFamily;

    use super::*;
    use crate::domain::model::{Snapshot, UnixSeconds};
    use crate::serve::metrics::family::{self, Group};

    const HELP: &str = "Says \"hi\" \\ and\nmore.";

    static GROUP: Group = Group {
        section: "",
        labels: "",
        source: "",
        metrics: &[
            family::histogram("x_duration_seconds", "Time.", |_, family| {
                let mut histogram = DurationHistogram::default();
                histogram.observe(Duration::from_millis(2));
                family.push(Labels::default(), &histogram);
            }),
            family::gauge("x_info", "One.", |_, family| family.push(Labels::default(), 1u64)),
            family::counter("x_seconds_total", HELP, |_, family| {
                family.push(Labels::new("who", "z"), 2.0);
                family.since(UnixSeconds(1_700_000_000.25)).push(Labels::new("who", "a \"b\"{} 1\\\nc"), 1.5);
            }),
        ],
    };

    fn page(open_metrics: bool) -> String {
        let mut page = String::new();
        GROUP.families(&Snapshot::default()).iter().for_each(|family| push_family(&mut page, family, open_metrics));
        page
    }

    #[test]
    fn text_names_counters_in_full() {
        let page = page(false);
        assert!(
            page.ends_with(
                "# HELP x_info One.\n# TYPE x_info gauge\nx_info 1\n\
                 # HELP x_seconds_total Says \"hi\" \\\\ and\\nmore.\n\
                 # TYPE x_seconds_total counter\n\
                 x_seconds_total{who=\"a \\\"b\\\"{} 1\\\\\\nc\"} 1.5\n\
                 x_seconds_total{who=\"z\"} 2.0\n"
            ),
            "{page}"
        );
        assert!(page.contains("x_duration_seconds_bucket{le=\"0.0025\"} 1\n"), "{page}");
        let end = "_bucket{le=\"+Inf\"} 1\nx_duration_seconds_sum 0.002\nx_duration_seconds_count 1\n# HELP x_info";
        assert!(page.contains(end), "{page}");
        assert!(!page.contains("_created") && !page.contains("# EOF"));
    }

    #[test]
    fn open_metrics_has_created_times_and_an_end() {
        let page = page(true) + END;
        assert!(
            page.ends_with(
                "# TYPE x_info gauge\n# HELP x_info One.\nx_info 1\n\
                 # TYPE x_seconds counter\n\
                 # HELP x_seconds Says \\\"hi\\\" \\\\ and\\nmore.\n\
                 x_seconds_total{who=\"a \\\"b\\\"{} 1\\\\\\nc\"} 1.5\n\
                 x_seconds_created{who=\"a \\\"b\\\"{} 1\\\\\\nc\"} 1700000000.250\n\
                 x_seconds_total{who=\"z\"} 2.0\n# EOF\n"
            ),
            "{page}"
        );
    }

    #[test]
    fn protobuf_carries_created_times_and_plain_help() {
        let bytes = protobuf(&GROUP.families(&Snapshot::default())[2]);
        let family = MetricFamily::decode_length_delimited(bytes.as_slice()).unwrap();
        assert_eq!((family.name.as_str(), family.help.as_str()), ("x_seconds_total", HELP));
        let created = family.metric[0].counter.as_ref().unwrap().start_timestamp.as_ref().unwrap();
        assert_eq!((created.seconds, created.nanos), (1_700_000_000, 250_000_000));
        assert!(family.metric[1].counter.as_ref().unwrap().start_timestamp.is_none());
    }
}
