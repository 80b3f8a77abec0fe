//! Where an agent is: at a URL, at a socket, or on this machine. Connects to nothing.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use hyper::Uri;

use super::access::Access;

/// Where the agent's admin socket is by default.
pub const DEFAULT_SOCKET: &str = "/run/podmeter/podmeter.sock";
/// Where agent and demo are reached on their own machine.
pub const DEFAULT_URL: &str = "http://127.0.0.1:9410";

/// Where an agent is.
#[derive(Clone, Debug)]
pub enum AgentTarget {
    /// This machine's agent: its admin socket, and where that cannot be had its usual port.
    Local,
    /// An admin socket.
    Socket(PathBuf),
    Url(HttpUrl),
}

impl AgentTarget {
    /// Of a listener as `--listen` writes it. One for every address is reached at the loopback.
    pub fn of_listener(address: &str) -> Option<Self> {
        if let Some(path) = address.strip_prefix("unix:") {
            return Some(Self::Socket(path.into()));
        }
        let mut address: SocketAddr = address.parse().ok()?;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
                SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            });
        }
        format!("http://{address}").parse().ok().map(Self::Url)
    }
}

impl fmt::Display for AgentTarget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => formatter.write_str("this node"),
            Self::Socket(path) => write!(formatter, "unix:{}", path.display()),
            Self::Url(url) => write!(formatter, "{url}"),
        }
    }
}

/// `http://HOST[:PORT][/PREFIX]`, or the same with `https`. The port is 80 or 443 where none is given, as in any URL.
#[derive(Clone, Debug)]
pub struct HttpUrl {
    pub is_https: bool,
    /// Without the brackets of an IPv6 address.
    pub host: String,
    pub port: u16,
    /// As written in the `Host` header.
    pub authority: String,
    /// Prefix of each path; empty, or with a leading and no trailing slash.
    pub prefix: String,
    /// Authorities, client certificate and password; until set, the authorities of the system and nothing else.
    pub access: Access,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUrl {
    #[error("a user or password in the URL is not supported: give --user and --password-file")]
    User,
    #[error("a query in the URL is not supported")]
    Query,
    #[error("not an http or https URL; give one such as {DEFAULT_URL}")]
    Form,
}

impl FromStr for HttpUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let uri: Uri = text.parse().map_err(|_| InvalidUrl::Form)?;
        let is_https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(InvalidUrl::Form),
        };
        let authority = uri.authority().ok_or(InvalidUrl::Form)?;
        if authority.as_str().contains('@') {
            return Err(InvalidUrl::User);
        }
        let host = authority.host().trim_matches(['[', ']']);
        // A port that `port_u16` cannot parse would otherwise become the default.
        let has_port = authority.as_str().rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        if host.is_empty() || has_port && authority.port_u16().is_none() {
            return Err(InvalidUrl::Form);
        }
        if uri.query().is_some() {
            return Err(InvalidUrl::Query);
        }
        Ok(Self {
            is_https,
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(if is_https { 443 } else { 80 }),
            authority: authority.as_str().to_owned(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            access: Access::default(),
        })
    }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "http{}://{}{}", if self.is_https { "s" } else { "" }, self.authority, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
        let parts = |text: &str| {
            let url: HttpUrl = text.parse().unwrap();
            (url.host, url.port, url.prefix)
        };
        assert_eq!(parts("http://127.0.0.1:9410"), ("127.0.0.1".into(), 9410, String::new()));
        assert_eq!(parts("http://node-a/"), ("node-a".into(), 80, String::new()));
        assert_eq!(parts("https://node-a"), ("node-a".into(), 443, String::new()));
        assert_eq!(parts("http://[::1]:9410/a/b/"), ("::1".into(), 9410, "/a/b".into()));
        assert_eq!("http://[::1]:9410/a/".parse::<HttpUrl>().unwrap().to_string(), "http://[::1]:9410/a");
    }

    #[test]
    fn invalid_urls_are_refused_with_the_next_step() {
        let refused = |text: &str| text.parse::<HttpUrl>().unwrap_err();
        assert_eq!(refused("http://me:secret@node-a"), InvalidUrl::User);
        for text in ["", "node-a:9410", "node-a", "ftp://x", "http://", "http://x:99999", "http://x:/?a"] {
            assert_eq!(refused(text), InvalidUrl::Form, "{text}");
        }
        assert_eq!(refused("http://x?a=b"), InvalidUrl::Query);
        assert!(InvalidUrl::Form.to_string().contains("http://127.0.0.1:9410"));
    }
}
