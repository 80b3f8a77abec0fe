//! Where an agent is: at a URL, at a socket, or on this machine. Connects to nothing.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use hyper::Uri;

use super::access::Access;

/// The default path of the agent's admin socket.
pub const DEFAULT_SOCKET: &str = "/run/podmeter/podmeter.sock";
/// The default URL of the agent and the demo on this machine.
pub const DEFAULT_URL: &str = "http://127.0.0.1:9410";

/// Where an agent is.
#[derive(Clone, Debug)]
pub enum AgentTarget {
    /// This machine's agent: its admin socket, or its usual port where that cannot be used.
    Local,
    /// An admin socket.
    Socket(PathBuf),
    Url(HttpUrl),
}

impl AgentTarget {
    /// The target for a listener in the form of `--listen`. One on every address is reached at the loopback.
    pub fn of_listener(address: &str) -> Option<Self> {
        if let Some(path) = address.strip_prefix("unix:") {
            return Some(Self::Socket(path.into()));
        }
        let mut address: SocketAddr = address.parse().ok()?;
        match address.ip() {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
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

/// A URL `http://HOST[:PORT][/PREFIX]`, or the same with `https`. The default port is 80 or 443.
#[derive(Clone, Debug)]
pub struct HttpUrl {
    pub uri: Uri,
    /// Authorities, client certificate and password; until set, plain HTTP without a password.
    pub access: Access,
    /// The one address of the host to connect to; `None`: the first that can be reached.
    pub address: Option<IpAddr>,
}

const NO_USER: &str = "a user or password in the URL is not supported: give --user and --password-file";
const FORM: &str = "not an http or https URL without a query; give one such as http://127.0.0.1:9410";

impl FromStr for HttpUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri: Uri = text.parse().map_err(|_| FORM)?;
        let is_http = matches!(uri.scheme_str(), Some("http" | "https")) && uri.query().is_none();
        let authority = uri.authority().filter(|_| is_http).ok_or(FORM)?;
        if authority.as_str().contains('@') {
            return Err(NO_USER);
        }
        // A port that `port_u16` cannot parse would otherwise become the default.
        let has_port = authority.as_str().rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        if matches!(authority.host(), "" | "[]") || has_port && authority.port_u16().is_none() {
            return Err(FORM);
        }
        Ok(Self { uri, access: Access::default(), address: None })
    }
}

impl HttpUrl {
    pub fn is_https(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.uri.to_string().trim_end_matches('/'))?;
        self.address.map_or(Ok(()), |address| write!(formatter, " at {address}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed() {
        for text in ["http://127.0.0.1:9410", "http://node-a", "https://node-a", "http://[::1]:9410/a/b"] {
            for written in [text.to_owned(), format!("{text}/")] {
                assert_eq!(written.parse::<HttpUrl>().unwrap().to_string(), text);
            }
        }
    }

    #[test]
    fn invalid_urls_are_refused_with_the_next_step() {
        let refused = |text: &str| text.parse::<HttpUrl>().unwrap_err();
        assert_eq!(refused("http://me:secret@node-a"), NO_USER);
        for text in [
            "",
            "node-a:9410",
            "node-a",
            "ftp://x",
            "http://",
            "http://x:99999",
            "http://x:/",
            "http://[]",
            "http://x?a=b",
        ] {
            assert_eq!(refused(text), FORM, "{text}");
        }
    }
}
