//! TLS and the password of a URL.
//!
//! Inputs: the files that the command line names, read once. Outputs: an encrypted connection, an `Authorization` header.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Where distributions and images have the certificates of public authorities.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// What connections to a URL need besides it.
#[derive(Clone, Debug, Default)]
pub struct Access {
    tls: Option<Arc<ClientConfig>>,
    authorization: Option<HeaderValue>,
}

/// The files with certificates: of the authorities, and of this client with its key.
#[derive(Clone, Debug, Default)]
pub struct Certificates {
    /// `None`: those of the system.
    pub authorities: Option<PathBuf>,
    pub own: Option<(PathBuf, PathBuf)>,
}

impl Access {
    /// The error names the file and what to do.
    pub fn read(certificates: Option<&Certificates>, password: Option<(&str, &Path)>) -> Result<Self, InvalidAccess> {
        let tls = certificates.map(client_config).transpose()?.map(Arc::new);
        let authorization = password.map(|(user, file)| basic(user, file)).transpose()?;
        Ok(Self { tls, authorization })
    }

    pub(super) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    pub(super) async fn connect(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
        let config = match &self.tls {
            Some(config) => Arc::clone(config),
            None => Arc::new(client_config(&Certificates::default()).map_err(|error| error.to_string())?),
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|_| format!("{host} is not a host name"))?;
        let connected = TlsConnector::from(config).connect(name, stream).await;
        connected.map_err(|error| tls_error(&error).map_or_else(|| format!("no TLS: {error}"), explained))
    }
}

/// A file of the command line that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{option} {}: {problem}", file.display())]
pub struct InvalidAccess {
    option: &'static str,
    file: PathBuf,
    problem: String,
}

fn client_config(certificates: &Certificates) -> Result<ClientConfig, InvalidAccess> {
    let file = certificates.authorities.as_deref();
    let file = file.or_else(|| SYSTEM_AUTHORITIES.iter().map(Path::new).find(|file| file.exists()));
    let file = file.unwrap_or(Path::new(SYSTEM_AUTHORITIES[0]));
    let invalid = |option, file: &Path, problem: &dyn fmt::Display| InvalidAccess {
        option,
        file: file.to_owned(),
        problem: problem.to_string(),
    };
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(pem_certificates("--ca-file", file)?);
    if added == 0 {
        return Err(invalid("--ca-file", file, &"it has no certificate that can be used"));
    }
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let Some((certificate, key)) = &certificates.own else { return Ok(builder.with_no_client_auth()) };
    let key_problem = |problem: &dyn fmt::Display| invalid("--key-file", key, problem);
    let pem = std::fs::read(key).map_err(|error| key_problem(&error))?;
    let own_key = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|_| key_problem(&"it has no private key in PEM (PKCS #1, PKCS #8 or SEC1, not encrypted)"))?;
    builder
        .with_client_auth_cert(pem_certificates("--cert-file", certificate)?, own_key)
        .map_err(|error| key_problem(&format!("it does not match {}: {error}", certificate.display())))
}

fn pem_certificates(option: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, InvalidAccess> {
    let invalid = |problem| InvalidAccess { option, file: file.to_owned(), problem };
    let pem = std::fs::read(file).map_err(|error| invalid(error.to_string()))?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let read = read.map_err(|error| invalid(format!("it is not PEM: {error}")))?;
    if read.is_empty() { Err(invalid("it has no certificate in PEM".to_owned())) } else { Ok(read) }
}

/// Without the line feed at the end of the file.
fn basic(user: &str, file: &Path) -> Result<HeaderValue, InvalidAccess> {
    let invalid = |problem| InvalidAccess { option: "--password-file", file: file.to_owned(), problem };
    let text = std::fs::read_to_string(file).map_err(|error| invalid(error.to_string()))?;
    let password = text.strip_suffix('\n').map_or(&*text, |text| text.strip_suffix('\r').unwrap_or(text));
    let mut value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
        .map_err(|error| invalid(error.to_string()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The error of TLS in an error of a connection.
pub(super) fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        // The source of an `io::Error` is that of the error within it.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(found) = inner.and_then(|inner| inner.downcast_ref()) {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// What is wrong, and what to do.
pub(super) fn explained(error: &rustls::Error) -> String {
    use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
    let to_do = match error {
        InvalidCertificate(CertificateError::UnknownIssuer) => {
            "its certificate is not signed by an authority that is trusted here: give --ca-file with the certificate of \
             the authority that signed it"
        }
        InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }) => {
            return format!(
                "its certificate is for another name: use a name or address of the certificate in the URL ({error})"
            );
        }
        InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "its certificate has expired: renew it, or check this machine's clock"
        }
        InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            "its certificate is not valid yet: check the clocks of both machines"
        }
        InvalidCertificate(CertificateError::Other(_)) if error.to_string().contains("CaUsedAsEndEntity") => {
            "its certificate is that of an authority: issue a server certificate without CA:TRUE"
        }
        AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied,
        ) => "it requires a client certificate that it trusts: give --cert-file and --key-file",
        InvalidMessage(_) => "it does not serve TLS there: use http:// in the URL",
        other => return format!("TLS failed: {other}"),
    };
    to_do.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_that_of_the_file_without_its_line_feed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, value) in
            [("open sesame\n", "Basic YTpvcGVuIHNlc2FtZQ=="), ("x\r\n", "Basic YTp4"), ("x", "Basic YTp4")]
        {
            std::fs::write(file.path(), text).unwrap();
            let header = basic("a", file.path()).unwrap();
            assert_eq!(header.to_str().unwrap(), value, "{text:?}");
            assert!(!format!("{header:?}").contains("YTp"), "it is not in logs");
        }
        let error = basic("a", Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.starts_with("--password-file /nowhere: No such file"), "{error}");
    }

    #[test]
    fn errors_of_certificates_name_what_to_do() {
        use rustls::Error::InvalidCertificate;
        for (error, part) in [
            (InvalidCertificate(CertificateError::UnknownIssuer), "--ca-file"),
            (InvalidCertificate(CertificateError::Expired), "renew it"),
            (InvalidCertificate(CertificateError::NotValidYet), "clock"),
            (InvalidCertificate(CertificateError::NotValidForName), "in the URL"),
            (rustls::Error::AlertReceived(AlertDescription::CertificateRequired), "--cert-file"),
            (rustls::Error::NoApplicationProtocol, "TLS failed"),
        ] {
            assert!(explained(&error).contains(part), "{error}");
            let wrapped = io::Error::other(error);
            assert!(tls_error(&wrapped).is_some());
        }
        assert!(tls_error(&io::Error::other("x")).is_none());
    }
}
