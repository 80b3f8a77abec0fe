//! TLS of the web server.
//!
//! In: a section of the web configuration and the PEM files that it names. Out: a `ServerConfig`, or which file is wrong.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};

use super::Files;
use super::file::{ClientAuth, TlsSection, TlsVersion};
use crate::files;

/// The server's TLS configuration; `None` for an empty section.
pub fn server_config(
    section: TlsSection,
    directory: &Path,
    files: &mut Files,
) -> Result<Option<Arc<ServerConfig>>, String> {
    if section == TlsSection::default() {
        return Ok(None);
    }
    // An empty path counts as absent.
    let mut read = |key, file: Option<PathBuf>| match file.filter(|file| !file.as_os_str().is_empty()) {
        None => Ok(None),
        Some(file) => {
            let path = directory.join(file);
            PemFile::new(key, &path, files.read(&path)).map(Some)
        }
    };
    let cert = read("cert_file", section.cert_file)?.ok_or("cert_file is missing")?;
    let key = read("key_file", section.key_file)?.ok_or("key_file is missing")?;
    let client_ca = read("client_ca_file", section.client_ca_file)?;

    let versions = match section.min_version.unwrap_or_default() {
        TlsVersion::Tls12 => &[&TLS13, &TLS12][..],
        TlsVersion::Tls13 => &[&TLS13],
    };
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .map_err(|error| error.to_string())?;
    let builder = match client_verifier(section.client_auth_type.unwrap_or_default(), client_ca)? {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(cert.certificates()?, key.private_key()?)
        .map_err(|error| format!("{} and {} do not match: {error}", cert.name, key.name))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A resumed session would outlive the certificates with which it was verified; scrapers keep their connections.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Some(Arc::new(config)))
}

/// The text of a file in PEM.
pub struct PemFile {
    /// The option and the path of the file.
    pub name: String,
    pem: Vec<u8>,
}

impl PemFile {
    /// The file that `option` names.
    pub fn read(option: &str, file: &Path) -> Result<Self, String> {
        Self::new(option, file, files::read_named(file))
    }

    fn new(option: &str, file: &Path, read: io::Result<Vec<u8>>) -> Result<Self, String> {
        let name = format!("{option} {}", file.display());
        match read {
            Ok(pem) => Ok(Self { name, pem }),
            Err(error) => Err(format!("{name}: {error}")),
        }
    }

    /// The certificates, at least one.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let name = &self.name;
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.pem).collect();
        match read {
            Ok(read) if read.is_empty() => Err(format!("{name} has no certificate in PEM")),
            Ok(read) => Ok(read),
            Err(error) => Err(format!("{name} is not PEM: {error}")),
        }
    }

    pub fn private_key(&self) -> Result<PrivateKeyDer<'static>, String> {
        PrivateKeyDer::from_pem_slice(&self.pem)
            .map_err(|_| format!("{} has no private key in PEM (PKCS #1, PKCS #8 or SEC1, not encrypted)", self.name))
    }
}

fn client_verifier(
    kind: ClientAuth,
    client_ca: Option<PemFile>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
    let source = match (kind, client_ca) {
        (ClientAuth::NoClientCert, None) => return Ok(None),
        (ClientAuth::NoClientCert, Some(_)) => {
            return Err("client_ca_file without a client_auth_type that requests certificates".to_owned());
        }
        (_, None) => return Err("this client_auth_type needs client_ca_file".to_owned()),
        (_, Some(source)) => source,
    };
    let mut roots = RootCertStore::empty();
    for certificate in source.certificates()? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", source.name))?;
    }
    let provider = Arc::new(ring::default_provider());
    let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    if kind == ClientAuth::VerifyClientCertIfGiven {
        verifier = verifier.allow_unauthenticated();
    }
    verifier.build().map(Some).map_err(|error| format!("{}: {error}", source.name))
}
