//! The web configuration: TLS, client certificates, passwords, and headers for each response.
//!
//! Inputs: a file with the common keys of Prometheus' exporter-toolkit and the files that it names. Outputs: `WebConfig`,
//! validated as a whole, and `WatchedConfig`, which reads it again when a file changes. Does not use: connections,
//! requests.

mod file;
mod tls;
mod watched;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue};
use rustls::ServerConfig;

use crate::domain::model::FileStamp;
use crate::files;
use crate::serve::governance::sha256;
pub use tls::PemFile;
pub use watched::WatchedConfig;

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
    /// Whether clients need a certificate.
    requires_certificates: bool,
    /// Added to every response of a `Public` listener that does not have them.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Name → bcrypt hash; no password is required where it is empty.
    pub users: BTreeMap<String, String>,
    files: Files,
}

impl WebConfig {
    /// Reads the file and all that it names. Paths in it are relative to its directory.
    pub fn load(path: &Path) -> Result<Self, WebConfigError> {
        let mut files = Files::default();
        let text = files.read(path).map_err(|error| WebConfigError::Unreadable { file: path.to_owned(), error })?;
        let directory = path.parent().unwrap_or(Path::new(""));
        let checked = file::parse(&text).and_then(|written| Self::checked(written, directory, files));
        checked.map_err(|problem| WebConfigError::Invalid { file: path.to_owned(), problem })
    }

    /// A warning about a valid configuration that is probably a mistake.
    pub fn warning(&self) -> Option<&'static str> {
        let in_plain_text = !self.users.is_empty() && self.tls.is_none();
        in_plain_text.then_some("basic_auth_users without tls_server_config: passwords are sent in plain text")
    }

    /// The configuration in this text, without TLS, whose files are not read.
    #[cfg(any(test, fuzzing))]
    pub fn of_text(text: &[u8]) -> Result<Self, String> {
        let written = file::WebConfigFile { tls_server_config: None, ..file::parse(text)? };
        Self::checked(written, Path::new(""), Files::default())
    }

    fn checked(written: file::WebConfigFile, directory: &Path, mut files: Files) -> Result<Self, String> {
        let client_auth = written.tls_server_config.as_ref().and_then(|section| section.client_auth_type);
        let requires_certificates = client_auth == Some(file::ClientAuth::RequireAndVerifyClientCert);
        let tls = match written.tls_server_config {
            Some(section) => tls::server_config(section, directory, &mut files)
                .map_err(|problem| format!("tls_server_config: {problem}"))?,
            None => None,
        };
        let (headers, users) = (file::headers(written.http_server_config)?, file::users(written.basic_auth_users)?);
        Ok(Self { tls, requires_certificates, headers, users, files })
    }
}

/// The files that were read, with their stamps and the hashes of their contents.
#[derive(Debug, Default)]
struct Files {
    stamped: Vec<(PathBuf, Option<FileStamp>)>,
    hashes: Vec<String>,
}

impl Files {
    /// Reads the whole file, after its stamp, so that a change in between is noticed later. Pipes are refused: read
    /// again, one would be empty, which is valid and has no passwords.
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        self.stamped.push((path.to_owned(), stamp(path)));
        let content = files::read_named(path)?;
        self.hashes.push(sha256(&content));
        Ok(content)
    }

    fn changed(&self) -> bool {
        self.stamped.iter().any(|(path, seen)| stamp(path) != *seen)
    }
}

fn stamp(path: &Path) -> Option<FileStamp> {
    std::fs::metadata(path).ok().map(|file| files::stamp(&file))
}
