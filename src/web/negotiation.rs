//! Which format and coding a response has, by `Accept` and `Accept-Encoding`. Both headers are untrusted: invalid parts
//! are ignored.

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, ACCEPT_ENCODING, HeaderName};

use crate::metrics::{Coding, Format};

/// A format and its content type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub format: Format,
    pub content_type: String,
}

pub(super) const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const PROTOBUF: &str = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

/// The accepted format with the highest weight, of equals the first; text where none is accepted.
pub(super) fn format(headers: &HeaderMap) -> Choice {
    let mut best = Choice { format: Format::Text, content_type: TEXT.to_owned() };
    let mut best_weight = 0;
    for range in ranges(headers, &ACCEPT) {
        if range.weight > best_weight
            && let Some(choice) = offer(&range)
        {
            best = choice;
            best_weight = range.weight;
        }
    }
    best
}

/// The accepted coding with the highest weight; of equals the one that costs less.
pub(super) fn coding(headers: &HeaderMap) -> Coding {
    let mut weights = [(Coding::Zstd, None), (Coding::Gzip, None), (Coding::Identity, None)];
    let mut others = None;
    for range in ranges(headers, &ACCEPT_ENCODING) {
        let named = match range.name.as_str() {
            "zstd" => 0,
            "gzip" | "x-gzip" => 1,
            "identity" => 2,
            "*" => {
                others = Some(range.weight);
                continue;
            }
            _ => continue,
        };
        weights[named].1 = Some(range.weight);
    }
    let mut best = (Coding::Identity, 0);
    for (coding, weight) in weights {
        // By default identity is accepted and no other coding is.
        let by_default = others.unwrap_or(u16::from(coding == Coding::Identity));
        let weight = weight.unwrap_or(by_default);
        if weight > best.1 {
            best = (coding, weight);
        }
    }
    best.0
}

fn offer(range: &Range) -> Option<Choice> {
    let (format, content_type) = match (range.name.as_str(), range.parameter("version")) {
        ("application/openmetrics-text", None | Some("1.0.0")) => {
            (Format::OpenMetrics, range.with_escaping("application/openmetrics-text; version=1.0.0; charset=utf-8"))
        }
        ("application/openmetrics-text", Some("0.0.1")) => {
            (Format::OpenMetrics, "application/openmetrics-text; version=0.0.1; charset=utf-8".to_owned())
        }
        // Text 1.0.0 adds quoted names to 0.0.4. No name of ours needs quotes, so the bytes are the same.
        ("text/plain", Some("1.0.0")) => {
            (Format::Text, range.with_escaping("text/plain; version=1.0.0; charset=utf-8"))
        }
        ("text/plain", None | Some("0.0.4")) | ("text/*" | "*/*", None) => (Format::Text, TEXT.to_owned()),
        ("application/vnd.google.protobuf", _)
            if range.parameter("proto") == Some("io.prometheus.client.MetricFamily")
                && matches!(range.parameter("encoding"), None | Some("delimited")) =>
        {
            (Format::Protobuf, range.with_escaping(PROTOBUF))
        }
        _ => return None,
    };
    Some(Choice { format, content_type })
}

/// One element of such a header, in lower case, with its weight in thousandths.
struct Range {
    name: String,
    parameters: Vec<(String, String)>,
    weight: u16,
}

impl Range {
    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(parameter, _)| parameter == name).map(|(_, value)| value.as_str())
    }

    /// Returns the escaping scheme that the client names; no name of ours needs escaping.
    fn with_escaping(&self, content_type: &str) -> String {
        match self.parameter("escaping") {
            Some(scheme @ ("allow-utf-8" | "underscores" | "dots" | "values")) => {
                format!("{content_type}; escaping={scheme}")
            }
            _ => content_type.to_owned(),
        }
    }
}

fn ranges(headers: &HeaderMap, header: &HeaderName) -> Vec<Range> {
    let values = headers.get_all(header).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).filter_map(range).collect()
}

fn range(text: &str) -> Option<Range> {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next().filter(|name| !name.is_empty())?.to_ascii_lowercase();
    let mut weight = 1000;
    let mut parameters = Vec::new();
    for part in parts {
        let Some((key, value)) = part.split_once('=') else { continue };
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
        if key == "q" {
            let quality: f64 = value.parse().ok()?;
            weight = (quality.clamp(0.0, 1.0) * 1000.0).round() as u16;
        } else {
            parameters.push((key, value.to_owned()));
        }
    }
    Some(Range { name, parameters, weight })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn formats() {
        for (accept, format, content_type) in [
            ("", Format::Text, TEXT),
            ("*/*", Format::Text, TEXT),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Format::Text, TEXT),
            ("application/openmetrics-text", Format::OpenMetrics, OPEN),
            ("APPLICATION/OpenMetrics-Text; Version=\"1.0.0\"", Format::OpenMetrics, OPEN),
            (
                "application/openmetrics-text;version=0.0.1",
                Format::OpenMetrics,
                "application/openmetrics-text; version=0.0.1; charset=utf-8",
            ),
            ("application/openmetrics-text;version=2.0.0", Format::Text, TEXT),
            ("application/openmetrics-text;q=0.2,text/plain;q=0.3", Format::Text, TEXT),
            ("application/openmetrics-text;q=0", Format::Text, TEXT),
            ("text/plain;version=0.0.4;q=0.5,application/openmetrics-text;q=0.5", Format::Text, TEXT),
            // What Prometheus 2.5 to 2.x sends.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Format::OpenMetrics,
                OPEN,
            ),
            // What Prometheus 3 sends.
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                 application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
                 text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                Format::OpenMetrics,
                "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=allow-utf-8",
            ),
            (
                "text/plain;version=1.0.0;escaping=underscores",
                Format::Text,
                "text/plain; version=1.0.0; charset=utf-8; escaping=underscores",
            ),
            ("text/plain;version=1.0.0;escaping=evil", Format::Text, "text/plain; version=1.0.0; charset=utf-8"),
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7,\
                 text/plain;q=0.3",
                Format::Protobuf,
                PROTOBUF,
            ),
            ("application/vnd.google.protobuf;proto=other.Thing;encoding=delimited", Format::Text, TEXT),
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text",
                Format::Text,
                TEXT,
            ),
            (";;q=,,=;q=nine,text/plain;q=x", Format::Text, TEXT),
        ] {
            let expected = Choice { format, content_type: content_type.to_owned() };
            assert_eq!(super::format(&headers(ACCEPT, accept)), expected, "{accept}");
        }
        assert_eq!(super::format(&HeaderMap::new()).format, Format::Text);
    }

    proptest::proptest! {
        #[test]
        fn any_header_gives_a_valid_content_type(value in ".{0,200}") {
            if let Ok(value) = axum::http::HeaderValue::from_bytes(value.as_bytes()) {
                let mut headers = HeaderMap::new();
                headers.insert(ACCEPT, value.clone());
                headers.insert(ACCEPT_ENCODING, value);
                coding(&headers);
                let content_type = super::format(&headers).content_type;
                proptest::prop_assert!(axum::http::HeaderValue::from_str(&content_type).is_ok());
            }
        }
    }

    #[test]
    fn codings() {
        for (accept, expected) in [
            ("gzip", Coding::Gzip),
            ("zstd", Coding::Zstd),
            ("gzip, zstd", Coding::Zstd),
            ("gzip;q=1.0, zstd;q=0.5", Coding::Gzip),
            ("deflate, br", Coding::Identity),
            ("gzip;q=0", Coding::Identity),
            ("identity;q=0.9, gzip;q=0.5", Coding::Identity),
            ("*", Coding::Zstd),
            ("*;q=0.5, zstd;q=0", Coding::Gzip),
            ("GZIP", Coding::Gzip),
            ("gzip;q=broken", Coding::Identity),
            ("", Coding::Identity),
        ] {
            assert_eq!(coding(&headers(ACCEPT_ENCODING, accept)), expected, "{accept}");
        }
        assert_eq!(coding(&HeaderMap::new()), Coding::Identity);
    }
}
