//! A certificate authority, the certificates that it signs as PEM files, and a TLS client with them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::agent::connect;

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

/// The line of a request's head.
pub fn basic(user: &str, password: &str) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    format!("Authorization: Basic {text}\r\n")
}

/// A certificate and its key.
#[derive(Clone)]
pub struct SignedIdentity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let mut parameters = CertificateParams::new(vec![]).unwrap();
        parameters.distinguished_name.push(DnType::CommonName, "authority");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(parameters, key), pem }
    }

    pub fn server(&self) -> SignedIdentity {
        self.sign(&["localhost", "127.0.0.1"], ExtendedKeyUsagePurpose::ServerAuth)
    }

    pub fn client(&self, name: &str) -> SignedIdentity {
        self.sign(&[name], ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, names: &[&str], purpose: ExtendedKeyUsagePurpose) -> SignedIdentity {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters = CertificateParams::new(names).unwrap();
        // Different from the authority's, or OpenSSL treats it as self-signed.
        parameters.distinguished_name.push(DnType::CommonName, "node or client");
        parameters.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        SignedIdentity { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

impl SignedIdentity {
    /// `NAME.crt` and `NAME.key`.
    pub fn write(&self, directory: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) = (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")));
        std::fs::write(&certificate, &self.certificate).unwrap();
        std::fs::write(&key, &self.key).unwrap();
        (certificate, key)
    }
}

/// A client, with its trusted authority.
pub struct TlsClient {
    config: Arc<ClientConfig>,
}

impl TlsClient {
    pub fn new(authority: &Authority, identity: Option<&SignedIdentity>) -> Self {
        Self::with_versions(authority, identity, rustls::ALL_VERSIONS)
    }

    pub fn with_versions(
        authority: &Authority,
        identity: Option<&SignedIdentity>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        Self { config: Arc::new(config) }
    }

    pub fn connect(&self, address: &str) -> StreamOwned<ClientConnection, TcpStream> {
        let stream = connect(address);
        let name = ServerName::try_from("localhost").unwrap();
        StreamOwned::new(ClientConnection::new(Arc::clone(&self.config), name).unwrap(), stream)
    }

    /// The response as text, and the server's certificate. `headers`: whole lines, each ending in CRLF.
    pub fn get(&self, address: &str, path: &str, headers: &str) -> std::io::Result<(String, Vec<u8>)> {
        let mut stream = self.connect(address);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\n{headers}Connection: close\r\n\r\n")?;
        let mut answer = vec![];
        stream.read_to_end(&mut answer)?;
        let shown = stream.conn.peer_certificates().map(|chain| chain[0].to_vec()).unwrap_or_default();
        Ok((String::from_utf8(answer).unwrap(), shown))
    }

    pub fn status(&self, address: &str, path: &str, headers: &str) -> std::io::Result<u16> {
        let (answer, _) = self.get(address, path, headers)?;
        Ok(answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"))
    }
}
