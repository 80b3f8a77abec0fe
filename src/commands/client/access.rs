//! TLS and the password of a URL.
//!
//! Inputs: the files that the command line names, read once. Outputs: a TLS configuration, an `Authorization` header.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use hyper_rustls::ConfigBuilderExt as _;
use rustls::{AlertDescription as Alert, CertificateError, ClientConfig, RootCertStore};

use crate::files;
use crate::serve::web::PemFile;

/// TLS and the password that connections to a URL need.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The TLS configuration; `None`: plain HTTP.
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) authorization: Option<HeaderValue>,
}

/// The files with certificates: those of the authorities, and this client's with its key.
#[derive(Clone, Debug, Default)]
pub struct Certificates {
    /// The authorities' certificates; `None`: those of the system.
    pub authorities: Option<PathBuf>,
    pub own: Option<(PathBuf, PathBuf)>,
}

impl Access {
    /// Reads the files. The error names the file and what is wrong with it.
    pub fn read(certificates: Option<&Certificates>, password: Option<(&str, &Path)>) -> Result<Self, String> {
        let tls = certificates.map(client_config).transpose()?.map(Arc::new);
        let authorization = password.map(|(user, file)| basic(user, file)).transpose()?;
        Ok(Self { tls, authorization })
    }
}

fn client_config(certificates: &Certificates) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder();
    let builder = match &certificates.authorities {
        None => builder
            .with_native_roots()
            .map_err(|error| format!("{error}; give --ca-file with the certificate of the authority"))?,
        Some(file) => {
            let mut roots = RootCertStore::empty();
            let (added, _) = roots.add_parsable_certificates(PemFile::read("--ca-file", file)?.certificates()?);
            if added == 0 {
                return Err(format!("--ca-file {} has no certificate that can be used", file.display()));
            }
            builder.with_root_certificates(roots)
        }
    };
    let Some((certificate, key)) = &certificates.own else { return Ok(builder.with_no_client_auth()) };
    let (certificate, key) = (PemFile::read("--cert-file", certificate)?, PemFile::read("--key-file", key)?);
    builder
        .with_client_auth_cert(certificate.certificates()?, key.private_key()?)
        .map_err(|error| format!("{} and {} do not match: {error}", certificate.name, key.name))
}

/// The `Authorization` header with the password in the file, without a line feed at its end.
fn basic(user: &str, file: &Path) -> Result<HeaderValue, String> {
    let invalid = |problem: &dyn std::fmt::Display| format!("--password-file {}: {problem}", file.display());
    let text = files::read_given_text(file).map_err(|error| invalid(&error))?;
    let password = text.strip_suffix('\n').map_or(&*text, |text| text.strip_suffix('\r').unwrap_or(text));
    let mut value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
        .map_err(|error| invalid(&error))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The error in words, with a remedy.
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
            Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::UnknownCA
            | Alert::CertificateUnknown
            | Alert::AccessDenied,
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
            (rustls::Error::AlertReceived(Alert::CertificateRequired), "--cert-file"),
            (rustls::Error::NoApplicationProtocol, "TLS failed"),
        ] {
            assert!(explained(&error).contains(part), "{error}");
        }
    }
}
