//! Go's names for versions, cipher suites and curves, as the file uses them.

use rustls::SupportedCipherSuite;
use rustls::crypto::SupportedKxGroup;
use rustls::crypto::ring::{cipher_suite, kx_group};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    Tls10,
    Tls11,
    Tls12,
    Tls13,
}

pub fn version(name: &str) -> Option<Version> {
    Some(match name {
        "TLS10" => Version::Tls10,
        "TLS11" => Version::Tls11,
        "TLS12" => Version::Tls12,
        "TLS13" => Version::Tls13,
        _ => return None,
    })
}

/// Of TLS 1.2. Those of 1.3 are always offered, in Go as here.
pub const SUITES: [(&str, SupportedCipherSuite); 6] = [
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

pub const SUITES_OF_13: [SupportedCipherSuite; 3] = [
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];

/// Names that Go accepts, which have no effect here, with the reason where the suite is not supported.
pub const OTHER_SUITES: [(&str, Option<&str>); 11] = [
    ("TLS_AES_128_GCM_SHA256", None),
    ("TLS_AES_256_GCM_SHA384", None),
    ("TLS_CHACHA20_POLY1305_SHA256", None),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", Some(CBC)),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", Some(CBC)),
    ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", Some(CBC)),
    ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", Some(CBC)),
    ("TLS_RSA_WITH_AES_128_GCM_SHA256", Some(STATIC)),
    ("TLS_RSA_WITH_AES_256_GCM_SHA384", Some(STATIC)),
    ("TLS_RSA_WITH_AES_128_CBC_SHA", Some(STATIC)),
    ("TLS_RSA_WITH_AES_256_CBC_SHA", Some(STATIC)),
];

const CBC: &str = "CBC suites are not supported";
const STATIC: &str = "suites without forward secrecy are not supported";

/// `None`: valid in Go, not supported here.
pub const CURVES: [(&str, Option<&dyn SupportedKxGroup>); 4] = [
    ("X25519", Some(kx_group::X25519)),
    ("CurveP256", Some(kx_group::SECP256R1)),
    ("CurveP384", Some(kx_group::SECP384R1)),
    ("CurveP521", None),
];
