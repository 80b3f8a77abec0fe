//! The web configuration: TLS, passwords, the rate limit, and headers for each response.
//!
//! Inputs: a file in the format of Prometheus' exporter-toolkit and the files that it names. Outputs: `WebConfig`,
//! validated as a whole, and `LiveConfig`, which reads it again when a file changes. Does not use: connections,
//! requests.

mod client_certificates;
mod file;
mod files;
mod live;
mod names;
pub(crate) mod san;
mod tls;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use rustls::ServerConfig;

use files::Files;
pub use live::LiveConfig;

#[derive(Debug, thiserror::Error)]
pub enum WebConfigError {
    #[error("{}: {error}; give --web-config a file that can be read", file.display())]
    Unreadable { file: PathBuf, error: io::Error },
    #[error("{}: {problem}", file.display())]
    Invalid { file: PathBuf, problem: String },
}

/// A web configuration with everything in it read and checked.
pub struct WebConfig {
    /// `None`: plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// For every response.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Name → bcrypt hash; no password is required where it is empty.
    pub users: BTreeMap<String, String>,
    pub rate_limit: Option<RateLimit>,
    /// Settings that are accepted and have no effect.
    pub warnings: Vec<String>,
    files: Files,
}

/// A token bucket for all requests together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Between two requests, once the burst is used. Not zero.
    pub interval: Duration,
    pub burst: u32,
}

impl WebConfig {
    /// Reads the file and all that it names. Paths in it are relative to its directory.
    pub fn load(path: &Path) -> Result<Self, WebConfigError> {
        let mut files = Files::default();
        let text = files.read(path).map_err(|error| WebConfigError::Unreadable { file: path.to_owned(), error })?;
        let invalid = |problem| WebConfigError::Invalid { file: path.to_owned(), problem };
        let directory = path.parent().unwrap_or(Path::new(""));
        Self::checked(file::parse(&text).map_err(invalid)?, directory, files).map_err(invalid)
    }

    /// As from a file with this text; the files that it names are ignored.
    #[doc(hidden)] // for the fuzz targets
    pub fn of_text(text: &[u8]) -> Result<Self, String> {
        let mut written = file::parse(text)?;
        if let Some(section) = &mut written.tls_server_config {
            (section.cert_file, section.key_file, section.client_ca_file) = (None, None, None);
        }
        Self::checked(written, Path::new(""), Files::default())
    }

    fn checked(written: file::File, directory: &Path, mut files: Files) -> Result<Self, String> {
        let mut warnings = vec![];
        let tls = match written.tls_server_config {
            Some(section) => tls::server_config(section, directory, &mut files, &mut warnings)?,
            None => None,
        };
        let users = file::users(written.basic_auth_users)?;
        if !users.is_empty() && tls.is_none() {
            warnings.push("basic_auth_users without tls_server_config: passwords are sent in plain text".to_owned());
        }
        Ok(Self {
            tls,
            headers: file::headers(written.http_server_config)?,
            users,
            rate_limit: file::rate_limit(written.rate_limit)?,
            warnings,
            files,
        })
    }

    /// Whether any of its files has changed.
    fn is_stale(&self) -> bool {
        self.files.changed()
    }
}
