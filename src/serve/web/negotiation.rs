//! Chooses the format and coding of a response by `Accept` and `Accept-Encoding`. Both headers are untrusted: invalid
//! parts are ignored.

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, ACCEPT_ENCODING, HeaderName};
use mime::Mime;
use prometheus_client::encoding::prometheus_text;

use super::body::Coding;
use crate::serve::metrics::Format;

/// The accepted format with the highest weight, of equals the first; text where none is accepted.
pub(super) fn format(headers: &HeaderMap) -> Format {
    let mut best = (Format::Text, 0.0);
    for range in elements(headers, &ACCEPT).filter_map(|element| element.parse::<Mime>().ok()) {
        let weight = weight(range.get_param("q").map(|weight| weight.as_str()));
        if let Some(format) = offered(&range).filter(|_| weight > best.1) {
            best = (format, weight);
        }
    }
    best.0
}

fn offered(range: &Mime) -> Option<Format> {
    let parameter = |name| range.get_param(name).map(|value| value.as_str());
    match (range.essence_str(), parameter("version")) {
        ("application/openmetrics-text", None | Some("1.0.0")) => Some(Format::OpenMetrics),
        ("application/vnd.google.protobuf", _) => {
            let is_delimited = matches!(parameter("encoding"), None | Some("delimited"));
            let is_family = parameter("proto") == Some("io.prometheus.client.MetricFamily");
            (is_delimited && is_family).then_some(Format::Protobuf)
        }
        ("text/plain", None | Some("0.0.4")) | ("text/*" | "*/*", None) => Some(Format::Text),
        _ => None,
    }
}

pub(super) const fn content_type(format: Format) -> &'static str {
    match format {
        Format::Text | Format::Dcgm(_) => prometheus_text::CONTENT_TYPE,
        Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        Format::Protobuf => {
            "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
        }
    }
}

/// The coding of the response: gzip where it is accepted.
pub(super) fn coding(headers: &HeaderMap) -> Coding {
    let accepts_gzip = |element: &str| {
        let (name, parameter) = element.split_once(';').unwrap_or((element, "q=1"));
        name.trim().eq_ignore_ascii_case("gzip") && weight(parameter.trim().strip_prefix("q=")) > 0.0
    };
    if elements(headers, &ACCEPT_ENCODING).any(accepts_gzip) { Coding::Gzip } else { Coding::Identity }
}

/// The value of `q`; 0 where it is not a number.
fn weight(text: Option<&str>) -> f64 {
    text.map_or(1.0, |text| text.parse().unwrap_or(0.0))
}

fn elements<'a>(headers: &'a HeaderMap, header: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(header).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn formats() {
        for (accept, expected) in [
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Format::Text),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("APPLICATION/OpenMetrics-Text; Version=\"1.0.0\"", Format::OpenMetrics),
            ("application/openmetrics-text;version=2.0.0", Format::Text),
            ("application/openmetrics-text;q=0.2,text/plain;q=0.3", Format::Text),
            ("application/openmetrics-text;q=0", Format::Text),
            ("text/plain;version=0.0.4;q=0.5,application/openmetrics-text;q=0.5", Format::Text),
            // What Prometheus 2.5 to 2.x sends.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Format::OpenMetrics,
            ),
            // What Prometheus 3 sends.
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                 application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
                 text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                Format::OpenMetrics,
            ),
            ("text/plain;version=1.0.0;escaping=allow-utf-8", Format::Text),
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7,\
                 text/plain;q=0.3",
                Format::Protobuf,
            ),
            ("application/vnd.google.protobuf;proto=other.Thing;encoding=delimited", Format::Text),
            ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text", Format::Text),
            (";;q=,,=;q=nine,text/plain;q=x", Format::Text),
        ] {
            assert_eq!(format(&headers(ACCEPT, accept)), expected, "{accept}");
        }
        assert_eq!(format(&HeaderMap::new()), Format::Text);
    }

    #[test]
    fn codings() {
        for (accept, expected) in [
            ("gzip", Coding::Gzip),
            ("gzip;q=0.5, zstd", Coding::Gzip),
            ("deflate, br", Coding::Identity),
            ("gzip;q=0", Coding::Identity),
            ("*;q=0.5, gzip;q=0", Coding::Identity),
            ("GZIP", Coding::Gzip),
            ("gzip;q=broken", Coding::Identity),
            ("", Coding::Identity),
        ] {
            assert_eq!(coding(&headers(ACCEPT_ENCODING, accept)), expected, "{accept}");
        }
        assert_eq!(coding(&HeaderMap::new()), Coding::Identity);
    }
}
