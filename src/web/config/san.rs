//! The names that a certificate gives to its holder, cut out of its DER.

use std::net::{Ipv4Addr, Ipv6Addr};

const SEQUENCE: u8 = 0x30;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// `[3] EXPLICIT` in the certificate's body.
const EXTENSIONS: u8 = 0xa3;
/// 2.5.29.17
const SUBJECT_ALTERNATIVE_NAME: [u8; 3] = [0x55, 0x1d, 0x11];
const EMAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const URI: u8 = 0x86;
const IP: u8 = 0x87;

/// DNS names, e-mail addresses, IP addresses and URIs; `None` where the bytes are no certificate.
#[must_use]
pub fn alternative_names(certificate: &[u8]) -> Option<Vec<String>> {
    let body = inside(inside(certificate, SEQUENCE)?, SEQUENCE)?;
    let mut names = vec![];
    let Some(extensions) = elements(body)?.into_iter().find(|(tag, _)| *tag == EXTENSIONS) else {
        return Some(names);
    };
    for (_, extension) in elements(inside(extensions.1, SEQUENCE)?)? {
        let parts = elements(extension)?;
        let [(OBJECT_IDENTIFIER, kind), .., (OCTET_STRING, value)] = parts.as_slice() else { return None };
        if *kind == SUBJECT_ALTERNATIVE_NAME {
            names.extend(elements(inside(value, SEQUENCE)?)?.into_iter().filter_map(|(tag, value)| name(tag, value)));
        }
    }
    Some(names)
}

/// `None` for a kind of name that nobody can ask for.
fn name(tag: u8, value: &[u8]) -> Option<String> {
    match tag {
        EMAIL | DNS | URI => String::from_utf8(value.to_owned()).ok(),
        IP => match value.len() {
            4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).to_string()),
            16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).to_canonical().to_string()),
            _ => None,
        },
        _ => None,
    }
}

/// The contents of the one element that `input` begins with, if that has this tag.
fn inside(input: &[u8], wanted: u8) -> Option<&[u8]> {
    let (tag, content, _) = element(input)?;
    (tag == wanted).then_some(content)
}

/// All elements one after the other, as (tag, contents).
fn elements(mut input: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let mut found = vec![];
    while !input.is_empty() {
        let (tag, content, rest) = element(input)?;
        found.push((tag, content));
        input = rest;
    }
    Some(found)
}

fn element(input: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = input.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let count = usize::from(first & 0x7f);
        let (bytes, rest) = rest.split_at_checked(count)?;
        // A certificate is no longer than four such bytes say.
        let fits = (1..=4).contains(&count);
        (bytes.iter().take(4).fold(0, |length, byte| length << 8 | usize::from(*byte)), fits.then_some(rest)?)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
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
        // Cut anywhere, it is no certificate, and nothing breaks.
        for end in 0..certificate.der().len() {
            assert_eq!(alternative_names(&certificate.der()[..end]), None, "{end}");
        }
    }

    #[test]
    fn a_certificate_may_have_no_names() {
        let parameters = rcgen::CertificateParams::new(vec![]).unwrap();
        let certificate = parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        assert_eq!(alternative_names(certificate.der()), Some(vec![]));
    }
}
