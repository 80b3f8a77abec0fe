use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

use super::client_certificates::{self, ClientCertificates, Policy};
use super::file::TlsSection;
use super::files::Files;
use super::names::{self, Version};

/// `None`: an empty section, as in the toolkit.
pub fn server_config(
    section: TlsSection,
    directory: &Path,
    files: &mut Files,
    warnings: &mut Vec<String>,
) -> Result<Option<Arc<ServerConfig>>, String> {
    let TlsSection { cert, key, client_ca, cert_file, key_file, client_ca_file, .. } = section;
    let mut read = |key, inline, file| source(key, inline, file, directory, files);
    let (cert, key, client_ca) =
        (read("cert", cert, cert_file)?, read("key", key, key_file)?, read("client_ca", client_ca, client_ca_file)?);
    let wanted = section.client_auth_type.is_some()
        || section.client_allowed_sans.is_some()
        || section.min_version.is_some()
        || section.max_version.is_some()
        || section.cipher_suites.is_some()
        || section.prefer_server_cipher_suites.is_some()
        || section.curve_preferences.is_some();
    let (cert, key) = match (cert, key) {
        (Some(cert), Some(key)) => (cert, key),
        (None, None) if client_ca.is_none() && !wanted => return Ok(None),
        (None, _) => return Err("tls_server_config: one of cert and cert_file is missing".to_owned()),
        (_, None) => return Err("tls_server_config: one of key and key_file is missing".to_owned()),
    };

    let versions = versions(section.min_version.as_deref(), section.max_version.as_deref(), warnings)?;
    let provider = Arc::new(provider(section.cipher_suites, section.curve_preferences, &versions, warnings)?);
    let policy = client_certificates::policy(section.client_auth_type.as_deref().unwrap_or_default())
        .map_err(|problem| format!("tls_server_config.client_auth_type: {problem}"))?;
    let clients = clients(policy, client_ca, section.client_allowed_sans, &provider)?;

    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .map_err(|error| format!("tls_server_config: {error}"))?;
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(Arc::new(clients)),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(certificates(&cert)?, private_key(&key)?)
        .map_err(|error| format!("tls_server_config: {} and {} do not match: {error}", cert.name, key.name))?;
    config.ignore_client_order = section.prefer_server_cipher_suites.unwrap_or(true);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A resumed session would outlive the certificates with which it was verified; scrapers keep their connections.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Some(Arc::new(config)))
}

/// PEM, and its name in errors.
struct Source {
    name: String,
    pem: Vec<u8>,
}

/// The text under `key`, or the file under `key_file`. An empty value counts as absent.
fn source(
    key: &str,
    inline: Option<String>,
    file: Option<PathBuf>,
    directory: &Path,
    files: &mut Files,
) -> Result<Option<Source>, String> {
    let inline = inline.filter(|text| !text.is_empty());
    match (inline, file.filter(|file| !file.as_os_str().is_empty())) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(format!("tls_server_config: {key} and {key}_file are both set; keep one")),
        (Some(text), None) => Ok(Some(Source { name: key.to_owned(), pem: text.into_bytes() })),
        (None, Some(file)) => {
            let path = directory.join(file);
            let name = format!("{key}_file {}", path.display());
            let pem = files.read(&path).map_err(|error| format!("tls_server_config: {name}: {error}"))?;
            Ok(Some(Source { name, pem }))
        }
    }
}

fn certificates(source: &Source) -> Result<Vec<CertificateDer<'static>>, String> {
    let name = &source.name;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&source.pem).collect();
    let read = read.map_err(|error| format!("tls_server_config: {name} is not PEM: {error}"))?;
    if read.is_empty() {
        return Err(format!("tls_server_config: {name} has no certificate in PEM"));
    }
    Ok(read)
}

fn private_key(source: &Source) -> Result<PrivateKeyDer<'static>, String> {
    let name = &source.name;
    PrivateKeyDer::from_pem_slice(&source.pem).map_err(|_| {
        format!("tls_server_config: {name} has no private key in PEM (PKCS #1, PKCS #8 or SEC1, not encrypted)")
    })
}

fn clients(
    policy: Option<Policy>,
    client_ca: Option<Source>,
    allowed_names: Option<Vec<String>>,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<ClientCertificates>, String> {
    let at = "tls_server_config";
    let Some(policy) = policy else {
        let idle = if client_ca.is_some() { Some("client_ca") } else { allowed_names.map(|_| "client_allowed_sans") };
        return match idle {
            Some(key) => Err(format!("{at}: {key} without a client_auth_type that requests certificates")),
            None => Ok(None),
        };
    };
    let authorities = match client_ca {
        None if policy.verified => {
            return Err(format!("{at}: this client_auth_type needs client_ca or client_ca_file"));
        }
        None => None,
        Some(source) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(&source)? {
                roots.add(certificate).map_err(|error| format!("{at}: {}: {error}", source.name))?;
            }
            Some(roots)
        }
    };
    ClientCertificates::new(policy, authorities, allowed_names, provider)
        .map(Some)
        .map_err(|problem| format!("{at}: {problem}"))
}

fn versions(
    min: Option<&str>,
    max: Option<&str>,
    warnings: &mut Vec<String>,
) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let read = |key: &str, name: Option<&str>, usual| match name {
        None => Ok(usual),
        Some(name) => names::version(name)
            .ok_or_else(|| format!("tls_server_config.{key}: {name:?} is not one of TLS12, TLS13 (TLS10, TLS11)")),
    };
    let (min, max) = (read("min_version", min, Version::Tls12)?, read("max_version", max, Version::Tls13)?);
    if max < Version::Tls12 {
        return Err("tls_server_config.max_version: TLS 1.2 is the oldest supported version".to_owned());
    }
    if min > max {
        return Err("tls_server_config: min_version is above max_version".to_owned());
    }
    if min < Version::Tls12 {
        warnings.push(
            "tls_server_config.min_version: TLS 1.2 is the oldest supported version, and is used as the minimum"
                .to_owned(),
        );
    }
    let spoken = [(Version::Tls13, &TLS13), (Version::Tls12, &TLS12)];
    Ok(spoken.into_iter().filter(|(version, _)| (min..=max).contains(version)).map(|(_, spoken)| spoken).collect())
}

/// ring, with the suites and curves in the order of the file.
fn provider(
    suites: Option<Vec<String>>,
    curves: Option<Vec<String>>,
    versions: &[&'static SupportedProtocolVersion],
    warnings: &mut Vec<String>,
) -> Result<CryptoProvider, String> {
    let mut provider = ring::default_provider();
    if let Some(wanted) = suites.filter(|suites| !suites.is_empty()) {
        let at = "tls_server_config.cipher_suites";
        let mut chosen = vec![];
        for name in &wanted {
            if let Some((_, suite)) = names::SUITES.iter().find(|(known, _)| known == name) {
                chosen.push(*suite);
            } else if let Some((_, reason)) = names::OTHER_SUITES.iter().find(|(known, _)| known == name) {
                warnings.extend(reason.map(|reason| format!("{at}: {name} is ignored: {reason}")));
            } else {
                let known = names::SUITES.map(|(name, _)| name).join(", ");
                return Err(format!("{at}: {name:?} is not known; there are {known}"));
            }
        }
        if chosen.is_empty() && !versions.contains(&&TLS13) {
            return Err(format!("{at}: no supported one is left"));
        }
        provider.cipher_suites = names::SUITES_OF_13.into_iter().chain(chosen).collect();
    }
    if let Some(wanted) = curves.filter(|curves| !curves.is_empty()) {
        let at = "tls_server_config.curve_preferences";
        provider.kx_groups.clear();
        for name in &wanted {
            match names::CURVES.iter().find(|(known, _)| known == name) {
                Some((_, Some(group))) => provider.kx_groups.push(*group),
                Some((_, None)) => warnings.push(format!("{at}: {name} is ignored: it is not supported")),
                None => {
                    let known = names::CURVES.map(|(name, _)| name).join(", ");
                    return Err(format!("{at}: {name:?} is not known; there are {known}"));
                }
            }
        }
        if provider.kx_groups.is_empty() {
            return Err(format!("{at}: no supported one is left"));
        }
    }
    Ok(provider)
}
