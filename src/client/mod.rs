//! Questions to a running agent.
//!
//! In: where it listens and a path. Out: the body of its answer, or why there is none. Refuses to know: what the answer
//! means. It only asks (GET); every question has a deadline and every answer a limit.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// From the connection to the last byte. A page takes milliseconds, on a loaded node seconds.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// Many times the largest page or snapshot of a node.
const BODY_BYTES: usize = 256 << 20;
/// Of an error's text.
const SHOWN: usize = 300;

/// Where an agent listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Its admin socket, or a `unix:` listener.
    Socket(PathBuf),
    /// `http://HOST[:PORT]`
    Url(String),
}

impl Target {
    /// Of a listener as `--listen` writes it. One that means every address is asked at the loopback.
    #[must_use]
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
        Some(Self::Url(format!("http://{address}")))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(formatter, "{}", path.display()),
            Self::Url(url) => formatter.write_str(url),
        }
    }
}

/// Why there is no answer. The message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{url:?} cannot be asked: {problem}; write it as http://HOST:PORT")]
    Url { url: String, problem: String },
    #[error("no agent listens on {target}: {error}; start one, or name the right place with --admin-socket or --url")]
    Connect { target: Target, error: io::Error },
    #[error("no permission to open {target}: it is for its owner alone; run as the same user, which is root on a node")]
    Denied { target: Target },
    #[error("{target} did not answer {path} within {} s", DEADLINE.as_secs())]
    Late { target: Target, path: String },
    #[error("{target} answered {path} with {status}: {text}")]
    Status { target: Target, path: String, status: u16, text: String },
    #[error("{target} answers {path} with more than {BODY_BYTES} bytes")]
    TooLarge { target: Target, path: String },
    #[error("{target} does not speak HTTP as an agent does: {problem}")]
    Broken { target: Target, problem: String },
}

/// GETs `path`, which begins with `/`; only the body of a success is an `Ok`.
pub async fn get(target: &Target, path: &str) -> Result<Vec<u8>, ClientError> {
    let late = |_| ClientError::Late { target: target.clone(), path: path.to_owned() };
    tokio::time::timeout(DEADLINE, ask(target, path)).await.map_err(late)?
}

async fn ask(target: &Target, path: &str) -> Result<Vec<u8>, ClientError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => ClientError::Denied { target: target.clone() },
        _ => ClientError::Connect { target: target.clone(), error },
    };
    match target {
        Target::Socket(socket) => {
            let stream = UnixStream::connect(socket).await.map_err(failed)?;
            over(stream, "podmeter", target, path).await
        }
        Target::Url(url) => {
            let authority = authority(url)?;
            let address = if has_port(&authority) { authority.clone() } else { format!("{authority}:80") };
            let stream = TcpStream::connect(address).await.map_err(failed)?;
            over(stream, &authority, target, path).await
        }
    }
}

/// `HOST[:PORT]` of a URL without TLS.
fn authority(url: &str) -> Result<String, ClientError> {
    let refuse = |problem: String| ClientError::Url { url: url.to_owned(), problem };
    let uri: Uri = url.parse().map_err(|error| refuse(format!("{error}")))?;
    match (uri.scheme_str(), uri.authority()) {
        (Some("http"), Some(authority)) => Ok(authority.to_string()),
        (Some("https"), _) => Err(refuse("TLS is not spoken here; use the admin socket".to_owned())),
        _ => Err(refuse("it names no host".to_owned())),
    }
}

fn has_port(authority: &str) -> bool {
    authority.rsplit(']').next().is_some_and(|end| end.contains(':'))
}

async fn over<S>(stream: S, host: &str, target: &Target, path: &str) -> Result<Vec<u8>, ClientError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let broken = |problem: String| ClientError::Broken { target: target.clone(), problem };
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(error.to_string()))?;
    let request = Request::get(path).header("Host", host).header("Connection", "close").body(Empty::<Bytes>::new());
    let request = request.map_err(|error| broken(error.to_string()))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|error| broken(error.to_string()))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BODY_BYTES).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                ClientError::TooLarge { target: target.clone(), path: path.to_owned() }
            } else {
                broken(error.to_string())
            }
        })?;
        Ok((status, body.to_bytes()))
    };
    tokio::pin!(exchange, connection);
    let (status, body) = tokio::select! {
        answer = &mut exchange => answer?,
        // The last bytes may still be on their way to us when the connection is over.
        _ = &mut connection => exchange.await?,
    };
    if status.is_success() { Ok(body.into()) } else { Err(refusal(target, path, status, &body)) }
}

fn refusal(target: &Target, path: &str, status: StatusCode, body: &[u8]) -> ClientError {
    let text: String = String::from_utf8_lossy(body).trim().chars().take(SHOWN).collect();
    ClientError::Status { target: target.clone(), path: path.to_owned(), status: status.as_u16(), text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_every_address_is_asked_at_the_loopback() {
        for (address, url) in [
            ("0.0.0.0:9410", "http://127.0.0.1:9410"),
            ("[::]:9410", "http://[::1]:9410"),
            ("10.0.0.1:80", "http://10.0.0.1:80"),
        ] {
            assert_eq!(Target::of_listener(address), Some(Target::Url(url.to_owned())));
        }
        assert_eq!(Target::of_listener("unix:/x"), Some(Target::Socket("/x".into())));
        assert_eq!(Target::of_listener("nowhere"), None);
    }

    #[test]
    fn only_plain_http_is_asked() {
        for (url, parts) in [
            ("http://127.0.0.1:9410", Ok("127.0.0.1:9410")),
            ("http://[::1]:9410/metrics", Ok("[::1]:9410")),
            ("http://node", Ok("node")),
            ("https://node:9410", Err("admin socket")),
            ("node", Err("no host")),
            ("http://", Err("http://HOST:PORT")),
        ] {
            match (authority(url), parts) {
                (Ok(authority), Ok(wanted)) => assert_eq!(authority, wanted),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (outcome, _) => panic!("{url}: {outcome:?}"),
            }
        }
        assert!(has_port("[::1]:80") && !has_port("[::1]") && !has_port("node"));
    }
}
