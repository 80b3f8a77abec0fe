//! The TLS of the web server.
//!
//! In: a section of the web configuration and the PEM files that it names. Out: a `ServerConfig`, or which file is wrong.

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

/// `None`: an empty section.
pub fn server_config(
    section: TlsSection,
    directory: &Path,
    files: &mut Files,
) -> Result<Option<Arc<ServerConfig>>, String> {
    if section == TlsSection::default() {
        return Ok(None);
    }
    let mut read = |key, file| source(key, file, directory, files);
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
        .with_single_cert(certificates(&cert)?, private_key(&key)?)
        .map_err(|error| format!("{} and {} do not match: {error}", cert.name, key.name))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A resumed session would outlive the certificates with which it was verified; scrapers keep their connections.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Some(Arc::new(config)))
}

/// PEM, and its name in errors.
struct PemFile {
    name: String,
    pem: Vec<u8>,
}

/// The file that `key` names. An empty path counts as absent.
fn source(key: &str, file: Option<PathBuf>, directory: &Path, files: &mut Files) -> Result<Option<PemFile>, String> {
    let Some(file) = file.filter(|file| !file.as_os_str().is_empty()) else { return Ok(None) };
    let path = directory.join(file);
    let name = format!("{key} {}", path.display());
    match files.read(&path) {
        Ok(pem) => Ok(Some(PemFile { name, pem })),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

fn certificates(source: &PemFile) -> Result<Vec<CertificateDer<'static>>, String> {
    let name = &source.name;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&source.pem).collect();
    let read = read.map_err(|error| format!("{name} is not PEM: {error}"))?;
    if read.is_empty() {
        return Err(format!("{name} has no certificate in PEM"));
    }
    Ok(read)
}

fn private_key(source: &PemFile) -> Result<PrivateKeyDer<'static>, String> {
    let name = &source.name;
    PrivateKeyDer::from_pem_slice(&source.pem)
        .map_err(|_| format!("{name} has no private key in PEM (PKCS #1, PKCS #8 or SEC1, not encrypted)"))
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
    for certificate in certificates(&source)? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", source.name))?;
    }
    let provider = Arc::new(ring::default_provider());
    let mut verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    if kind == ClientAuth::VerifyClientCertIfGiven {
        verifier = verifier.allow_unauthenticated();
    }
    verifier.build().map(Some).map_err(|error| format!("{}: {error}", source.name))
}
