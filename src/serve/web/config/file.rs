//! The file of the web configuration, and the checks of its headers and users.
//!
//! In: the text of the file. Out: its sections, or what is wrong and at which key. Reads no other file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr as _;

use axum::http::{HeaderName, HeaderValue};
use bcrypt::HashParts;
use serde::Deserialize;

use crate::input;

/// The permitted bcrypt costs: a hash of cost 18 takes seconds, and each step doubles that.
const COSTS: std::ops::RangeInclusive<u32> = 4..=18;

/// The keys of the file; any other is an error. It contains secrets and is never shown.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WebConfigFile {
    pub tls_server_config: Option<TlsSection>,
    pub http_server_config: Option<HttpSection>,
    pub basic_auth_users: Option<BTreeMap<String, String>>,
}

#[derive(Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsSection {
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub client_ca_file: Option<PathBuf>,
    pub client_auth_type: Option<ClientAuth>,
    pub min_version: Option<TlsVersion>,
}

/// Go's names of the client authentication modes. Those that accept a certificate of any authority are errors.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum ClientAuth {
    #[default]
    NoClientCert,
    VerifyClientCertIfGiven,
    RequireAndVerifyClientCert,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum TlsVersion {
    #[default]
    #[serde(rename = "TLS12")]
    Tls12,
    #[serde(rename = "TLS13")]
    Tls13,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpSection {
    headers: Option<BTreeMap<String, Option<String>>>,
}

pub fn parse(bytes: &[u8]) -> Result<WebConfigFile, String> {
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

/// The users, name → bcrypt hash, after checking both.
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
