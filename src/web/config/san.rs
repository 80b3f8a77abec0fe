//! The subject alternative names of a certificate.

use std::net::{Ipv4Addr, Ipv6Addr};

use x509_parser::extensions::GeneralName;

/// DNS names, e-mail addresses, IP addresses and URIs; `None` where the bytes are not one well-formed certificate.
#[must_use]
pub fn alternative_names(certificate: &[u8]) -> Option<Vec<String>> {
    let (rest, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let names = certificate.subject_alternative_name().ok().filter(|_| rest.is_empty())?;
    Some(names.iter().flat_map(|names| &names.value.general_names).filter_map(text).collect())
}

/// `None` for a kind of name that `client_allowed_sans` cannot contain.
fn text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::RFC822Name(name) | GeneralName::DNSName(name) | GeneralName::URI(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(*bytes).ok()?).to_string()),
            16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(*bytes).ok()?).to_canonical().to_string()),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_kind_are_read() {
        let names = ["node.example", "10.1.2.3", "fd00::1"].map(ToOwned::to_owned).to_vec();
        let mut parameters = rcgen::CertificateParams::new(names).unwrap();
        parameters.subject_alt_names.push(rcgen::SanType::Rfc822Name("a@b.example".try_into().unwrap()));
        parameters.subject_alt_names.push(rcgen::SanType::URI("spiffe://cluster/ns/x".try_into().unwrap()));
        let certificate = parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        let names = alternative_names(certificate.der()).unwrap();
        assert_eq!(names, ["node.example", "10.1.2.3", "fd00::1", "a@b.example", "spiffe://cluster/ns/x"]);
        // Cut anywhere, it is not a certificate.
        for end in 0..certificate.der().len() {
            assert_eq!(alternative_names(&certificate.der()[..end]), None, "{end}");
        }
        let longer = [certificate.der().as_ref(), &[0]].concat();
        assert_eq!(alternative_names(&longer), None, "bytes after it");
    }

    #[test]
    fn a_certificate_may_have_no_names() {
        let parameters = rcgen::CertificateParams::new(vec![]).unwrap();
        let certificate = parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        assert_eq!(alternative_names(certificate.der()), Some(vec![]));
    }
}
