use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use bcrypt::HashParts;
use serde::Deserialize;

use super::RateLimit;
use crate::input;

/// A hash of cost 18 takes seconds; each step doubles that.
const COSTS: std::ops::RangeInclusive<u32> = 4..=18;

/// The keys as written. Unknown keys are errors, as in the toolkit. Has secrets: never shown.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    pub tls_server_config: Option<TlsSection>,
    pub http_server_config: Option<HttpSection>,
    pub basic_auth_users: Option<BTreeMap<String, String>>,
    pub rate_limit: Option<RateLimitSection>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsSection {
    pub cert: Option<String>,
    pub key: Option<String>,
    pub client_ca: Option<String>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub client_ca_file: Option<PathBuf>,
    pub client_auth_type: Option<String>,
    pub client_allowed_sans: Option<Vec<String>>,
    pub min_version: Option<String>,
    pub max_version: Option<String>,
    pub cipher_suites: Option<Vec<String>>,
    pub prefer_server_cipher_suites: Option<bool>,
    pub curve_preferences: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpSection {
    /// Accepted and ignored: HTTP/1.1 is always used.
    #[serde(rename = "http2")]
    _http2: Option<bool>,
    headers: Option<BTreeMap<String, Option<String>>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RateLimitSection {
    interval: Option<Interval>,
    burst: Option<i64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Interval {
    Nanoseconds(u64),
    Text(String),
}

pub fn parse(bytes: &[u8]) -> Result<File, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("not UTF-8: {error}"))?;
    // An empty file is valid, as in the toolkit.
    input::secret_yaml(text).map(Option::unwrap_or_default)
}

/// The permitted headers, as in the toolkit, and the permitted values where they are limited.
const HEADERS: [(&str, &[&str]); 5] = [
    ("Content-Security-Policy", &[]),
    ("Strict-Transport-Security", &[]),
    ("X-Content-Type-Options", &["nosniff"]),
    ("X-Frame-Options", &["deny", "sameorigin"]),
    ("X-XSS-Protection", &[]),
];

pub fn headers(section: Option<HttpSection>) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let written = section.and_then(|section| section.headers).unwrap_or_default();
    let mut headers = vec![];
    for (name, value) in written {
        let at = format!("http_server_config.headers.{name}");
        let Some((_, values)) = HEADERS.iter().find(|(known, _)| *known == name) else {
            let known = HEADERS.map(|(name, _)| name).join(", ");
            return Err(format!("{at}: this header is not permitted; permitted are {known}"));
        };
        let Some(value) = value.filter(|value| !value.is_empty()) else { continue };
        if !values.is_empty() && !values.contains(&value.as_str()) {
            return Err(format!("{at}: {value:?} is not one of {}", values.join(", ")));
        }
        let value = HeaderValue::from_str(&value).map_err(|_| format!("{at}: {value:?} is not valid in a header"))?;
        headers.push((HeaderName::from_str(&name).expect("the known ones are header names"), value));
    }
    Ok(headers)
}

/// A name and a hash each.
pub fn users(written: Option<BTreeMap<String, String>>) -> Result<BTreeMap<String, String>, String> {
    let users = written.unwrap_or_default();
    for (name, hash) in &users {
        let at = format!("basic_auth_users.{name}");
        if name.contains(':') {
            return Err(format!("{at}: a name cannot have a colon"));
        }
        let parts = HashParts::from_str(hash)
            .map_err(|error| format!("{at}: not a bcrypt hash ({error}); make one with htpasswd -nBC 10 \"\""))?;
        if !COSTS.contains(&parts.get_cost()) {
            let (low, high) = (COSTS.start(), COSTS.end());
            return Err(format!("{at}: the cost is {}; it must be {low} to {high}", parts.get_cost()));
        }
    }
    Ok(users)
}

/// `None` where the interval is zero or absent, as in the toolkit.
pub fn rate_limit(section: Option<RateLimitSection>) -> Result<Option<RateLimit>, String> {
    let Some(RateLimitSection { interval, burst }) = section else { return Ok(None) };
    let interval = match interval {
        None => Duration::ZERO,
        Some(Interval::Nanoseconds(nanoseconds)) => Duration::from_nanos(nanoseconds),
        Some(Interval::Text(text)) if text == "0" => Duration::ZERO,
        Some(Interval::Text(text)) => humantime::parse_duration(&text)
            .map_err(|error| format!("rate_limit.interval: {text:?}: {error}; write it as 1s or 500ms"))?,
    };
    if interval.is_zero() {
        return Ok(None);
    }
    match burst.and_then(|burst| u32::try_from(burst).ok()).filter(|burst| *burst > 0) {
        Some(burst) => Ok(Some(RateLimit { interval, burst })),
        None => Err("rate_limit.burst: must be 1 or more, or every request is refused".to_owned()),
    }
}
