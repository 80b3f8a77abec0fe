use std::collections::BTreeSet;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use super::san;

/// What `client_auth_type` requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Without one the handshake fails.
    pub required: bool,
    /// It must come from `client_ca`.
    pub verified: bool,
}

/// By Go's names; `Ok(None)`: no certificate is requested.
pub fn policy(name: &str) -> Result<Option<Policy>, String> {
    Ok(Some(match name {
        "" | "NoClientCert" => return Ok(None),
        "RequestClientCert" => Policy { required: false, verified: false },
        // The second name is an old one that the toolkit still takes.
        "RequireAnyClientCert" | "RequireClientCert" => Policy { required: true, verified: false },
        "VerifyClientCertIfGiven" => Policy { required: false, verified: true },
        "RequireAndVerifyClientCert" => Policy { required: true, verified: true },
        _ => {
            return Err(format!(
                "{name:?} is not one of NoClientCert, RequestClientCert, RequireAnyClientCert, VerifyClientCertIfGiven, \
                 RequireAndVerifyClientCert"
            ));
        }
    }))
}

/// Verifies the certificates of clients.
#[derive(Debug)]
pub struct ClientCertificates {
    required: bool,
    /// `None`: any certificate is accepted, also a self-signed one.
    chain: Option<Arc<dyn ClientCertVerifier>>,
    allowed_names: Option<BTreeSet<String>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertificates {
    /// `authorities`: for a policy with `verified`.
    pub fn new(
        policy: Policy,
        authorities: Option<RootCertStore>,
        allowed_names: Option<Vec<String>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let chain = match authorities.filter(|_| policy.verified) {
            None => None,
            Some(roots) => {
                let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
                let built = builder.build();
                Some(built.map_err(|error| format!("the authorities of client_ca cannot be used: {error}"))?)
            }
        };
        Ok(Self {
            required: policy.required,
            chain,
            allowed_names: allowed_names.map(|names| names.into_iter().collect()),
            algorithms: provider.signature_verification_algorithms,
        })
    }
}

impl ClientCertVerifier for ClientCertificates {
    fn client_auth_mandatory(&self) -> bool {
        self.required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.as_ref().map_or(&[], |chain| chain.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(chain) = &self.chain {
            chain.verify_client_cert(certificate, intermediates, now)?;
        }
        if let Some(allowed) = &self.allowed_names {
            let names =
                san::alternative_names(certificate).ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
            if names.iter().all(|name| !allowed.contains(name)) {
                return Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure));
            }
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
