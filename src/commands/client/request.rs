//! One HTTP exchange with an agent, within a deadline.
//!
//! In: a target, a path, a body. Out: the body of the response, or why there is none and what to do.

use std::collections::BTreeSet;
use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HeaderValue, LOCATION};
use hyper::{Method, Request, StatusCode};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::TokioExecutor;
use hyperlocal::UnixConnector;
use rustls::pki_types::InvalidDnsNameError;
use tokio::net::lookup_host;
use tower::service_fn;

use super::access::{Access, explained};
use super::target::{AgentTarget, DEFAULT_SOCKET, DEFAULT_URL, HttpUrl};
use crate::domain::periods::COMMAND_DEADLINE;
use crate::terminal::harmless;

/// The limit of a whole exchange. An agent responds in milliseconds; on a loaded node in seconds.
const DEADLINE: Duration = Duration::from_secs(5);
/// The longest body: more than twice that for the longest device list that the kubelet accepts (40,000 IDs).
const BODY_BYTES: usize = 32 << 20;
/// The most characters of an error's text.
const DETAIL_CHARACTERS: usize = 200;
const SOCKET_ADVICE: &str = "start `podmeter agent`, run this as root, or give --url http://HOST:9410";

/// Why there is no response, and the next step.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "{target} cannot be reached: {error}; {}",
        if target.starts_with("unix:") { SOCKET_ADVICE } else { "is an agent running there, and is the port right?" }
    )]
    Unreachable { target: String, error: io::Error },
    #[error(
        "{host} has no address: {error}; no pod of podmeter has one (kubectl get daemonsets), or the DNS does not respond"
    )]
    NoAddress { host: String, error: io::Error },
    #[error(
        "no agent was found on this node, neither on {DEFAULT_SOCKET} (no listener) nor at {DEFAULT_URL} ({port}): start \
         `podmeter agent` or `podmeter demo`, or give --url http://HOST:9410"
    )]
    NoAgentFound { port: String },
    #[error("{target} did not respond within {} s; try again, or check the agent's log", limit.as_secs())]
    Late { target: String, limit: Duration },
    #[error(
        "{target} ended the connection: {error}; is that a podmeter agent, and does it serve {}?",
        if target.starts_with("https:") { "http" } else { "https" }
    )]
    Broken { target: String, error: String },
    #[error("{target}: {problem}")]
    Tls { target: String, problem: String },
    #[error("{target} {}", if *had_password { "refuses this user or password" } else { "requires a password: give --user and --password-file" })]
    Unauthorized { target: String, had_password: bool },
    #[error("{target} responded {status}{}; is that a podmeter agent, and of this version?", in_brackets(text))]
    Refused { target: String, status: StatusCode, text: String },
    #[error("{target} responded with {content}; is that a podmeter agent?")]
    NotOfAnAgent { target: String, content: String },
}

type Call = Request<Full<Bytes>>;

/// The body of a successful `GET` of `path` (`/api/v1/node`), of at most 32 MiB, within five seconds.
pub async fn get(target: &AgentTarget, path: &str) -> Result<Vec<u8>, ClientError> {
    within(DEADLINE, target, path, Call::default()).await
}

/// The body of the response to a command with this body, within 40 seconds.
pub async fn post(target: &AgentTarget, path: &str, body: String) -> Result<Vec<u8>, ClientError> {
    let mut call = Call::new(body.into());
    *call.method_mut() = Method::POST;
    within(COMMAND_DEADLINE, target, path, call).await
}

async fn within(limit: Duration, target: &AgentTarget, path: &str, call: Call) -> Result<Vec<u8>, ClientError> {
    let response = async {
        match target {
            AgentTarget::Local => find_local(DEFAULT_SOCKET, DEFAULT_URL, path, call).await,
            AgentTarget::Socket(socket) => over_socket(socket, path, call).await,
            AgentTarget::Url(url) => over_tcp(url, path, call).await,
        }
    };
    let late = |_| ClientError::Late { target: target.to_string(), limit };
    tokio::time::timeout(limit, response).await.map_err(late)?
}

/// Tries the admin socket first: it also exists where no port is open.
async fn find_local(socket: &str, url: &str, path: &str, call: Call) -> Result<Vec<u8>, ClientError> {
    let no_socket = match over_socket(Path::new(socket), path, call.clone()).await {
        Err(error @ ClientError::Unreachable { .. }) => error,
        outcome => return outcome,
    };
    match over_tcp(&url.parse().expect("a URL"), path, call).await {
        Err(ClientError::Unreachable { error, .. }) if no_socket.is_no_agent() => {
            Err(ClientError::NoAgentFound { port: error.to_string() })
        }
        // An agent may serve a socket that this user cannot open.
        Err(ClientError::Unreachable { .. }) => Err(no_socket),
        outcome => outcome,
    }
}

async fn over_socket(socket: &Path, path: &str, call: Call) -> Result<Vec<u8>, ClientError> {
    let target = AgentTarget::Socket(socket.to_owned()).to_string();
    // hyperlocal would make a path that is not UTF-8 another one.
    let Some(text) = socket.to_str().filter(|text| (1..108).contains(&text.len())) else {
        let error = io::Error::other("the path of a socket has 1 to 107 bytes of UTF-8");
        return Err(ClientError::Unreachable { target, error });
    };
    send(UnixConnector, hyperlocal::Uri::new(text, "/").into(), path, call, target).await
}

async fn over_tcp(url: &HttpUrl, path: &str, mut call: Call) -> Result<Vec<u8>, ClientError> {
    let Access { tls, authorization } = url.access.clone();
    call.headers_mut().extend(authorization.map(|password| (AUTHORIZATION, password)));
    let address = url.address;
    let resolver = service_fn(move |name: Name| async move {
        match address {
            Some(address) => Ok(vec![SocketAddr::new(address, 0)].into_iter()),
            None => lookup_host((name.as_str(), 0)).await.map(|addresses| addresses.collect::<Vec<_>>().into_iter()),
        }
    });
    let mut connector = HttpConnector::new_with_resolver(resolver);
    // An https URL without TLS is an error and not plain text.
    connector.enforce_http(tls.is_none());
    match tls {
        Some(tls) => send(HttpsConnector::from((connector, tls)), url.uri.clone(), path, call, url.to_string()).await,
        None => send(connector, url.uri.clone(), path, call, url.to_string()).await,
    }
}

/// The agent at each address of the URL's host, such as the pods behind a headless Service.
pub async fn at_each_address(url: &HttpUrl) -> Result<Vec<HttpUrl>, ClientError> {
    let host = url.uri.host().expect("checked when it was parsed").trim_matches(['[', ']']);
    let found = tokio::time::timeout(DEADLINE, lookup_host((host, 0))).await.unwrap_or_else(|late| Err(late.into()));
    let found = found.map_err(|error| ClientError::NoAddress { host: host.to_owned(), error })?;
    let addresses: BTreeSet<IpAddr> = found.map(|address| address.ip()).collect();
    Ok(addresses.into_iter().map(|address| HttpUrl { address: Some(address), ..url.clone() }).collect())
}

async fn send(
    connector: impl Connect + Clone + Send + Sync + 'static,
    base: hyper::Uri,
    path: &str,
    mut call: Call,
    target: String,
) -> Result<Vec<u8>, ClientError> {
    let broken = |error: &dyn Error| ClientError::Broken { target: target.clone(), error: error.to_string() };
    let uri = format!("{}{path}", base.to_string().trim_end_matches('/'));
    *call.uri_mut() = uri.parse().map_err(|error: hyper::http::uri::InvalidUri| broken(&error))?;
    let had_password = call.headers().contains_key(AUTHORIZATION);
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let response = client.request(call).await.map_err(|error| failed(&error, &target))?;
    let status = response.status();
    let location = response.headers().get(LOCATION).filter(|_| status.is_redirection()).cloned();
    let body = match Limited::new(response.into_body(), BODY_BYTES).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            let content = format!("more than {} MiB", BODY_BYTES >> 20);
            return Err(ClientError::NotOfAnAgent { target, content });
        }
        Err(error) => return Err(broken(&*error)),
    };
    match status {
        StatusCode::UNAUTHORIZED => Err(ClientError::Unauthorized { target, had_password }),
        status if status.is_success() => Ok(body.into()),
        status => {
            let text = first_line(location.as_ref().map_or(&body, HeaderValue::as_bytes));
            Err(ClientError::Refused { target, status, text })
        }
    }
}

fn failed(error: &legacy::Error, target: &str) -> ClientError {
    let target = target.to_owned();
    if let Some(error) = cause(error) {
        return ClientError::Tls { target, problem: explained(error) };
    }
    // This error comes before any connection.
    if cause::<InvalidDnsNameError>(error).is_some() {
        let problem = "the host in the URL is neither a host name nor an IP address".to_owned();
        return ClientError::Tls { target, problem };
    }
    match cause::<io::Error>(error).filter(|_| error.is_connect()) {
        // hyper-rustls returns this error after the connection was made.
        Some(error) if error.kind() == io::ErrorKind::Other => {
            ClientError::Tls { target, problem: format!("no TLS: {error}") }
        }
        Some(error) => ClientError::Unreachable { target, error: io::Error::new(error.kind(), error.to_string()) },
        // The client's text has only the kind of an error.
        None => {
            let text = error.source().unwrap_or(error).to_string();
            match error.is_connect() {
                true => ClientError::Tls { target, problem: text },
                false => ClientError::Broken { target, error: text },
            }
        }
    }
}

/// The first error of this type among an error and its causes.
fn cause<'e, T: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e T> {
    // The source of an `io::Error` is the source of its inner error.
    let inner = |error: &'e (dyn Error + 'static)| match error.downcast_ref().and_then(io::Error::get_ref) {
        Some(inner) => Some(inner as _),
        None => error.source(),
    };
    std::iter::successors(Some(error), |error| inner(*error)).find_map(|error| error.downcast_ref())
}

impl ClientError {
    /// Whether nothing listens there, so that no agent runs.
    pub fn is_no_agent(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotADirectory, NotFound};
        match self {
            Self::Unreachable { error, .. } => matches!(error.kind(), ConnectionRefused | NotADirectory | NotFound),
            error => matches!(error, Self::NoAgentFound { .. }),
        }
    }

    /// Whether this user may not open the admin socket.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Unreachable { error, .. } if error.kind() == io::ErrorKind::PermissionDenied)
    }
}

fn in_brackets(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

/// The first line of the body of an error response, harmless on a terminal.
fn first_line(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct ProblemDocument {
        detail: String,
    }
    let text = match serde_json::from_slice(body) {
        Ok(ProblemDocument { detail }) => detail,
        Err(_) => String::from_utf8_lossy(&body[..body.len().min(4 * DETAIL_CHARACTERS)]).into_owned(),
    };
    let first = text.lines().next().unwrap_or_default().trim();
    harmless(&first.chars().take(DETAIL_CHARACTERS).collect::<String>())
}

#[cfg(test)]
mod tests {
    use rustls::{ClientConfig, RootCertStore};

    use super::*;

    #[tokio::test]
    async fn an_agent_on_a_socket_that_cannot_be_opened_is_not_taken_for_none() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        for (socket, is_no_agent) in [("/nowhere/a.sock".to_owned(), true), (format!("/{:0200}", 0), false)] {
            let error = find_local(&socket, &closed, "/", Call::default()).await.unwrap_err();
            assert_eq!(error.is_no_agent(), is_no_agent, "{error}");
        }
    }

    #[tokio::test]
    async fn no_connection_is_made_without_tls_or_to_what_is_no_host_name() {
        let get = async |url: &str, tls| {
            let mut url: HttpUrl = url.parse().unwrap();
            url.access.tls = tls;
            over_tcp(&url, "/", Call::default()).await.unwrap_err().to_string()
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        assert_eq!(get(&url, None).await, format!("{url}: invalid URL, scheme is not http"));
        let tls = ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let error = get("https://node..a", Some(tls.into())).await;
        assert_eq!(error, "https://node..a: the host in the URL is neither a host name nor an IP address");
    }

    #[tokio::test]
    async fn an_agent_is_reached_at_the_address_that_the_url_has_beside_its_host() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut url: HttpUrl = format!("http://podmeter.invalid:{port}").parse().unwrap();
        url.address = Some([127, 0, 0, 1].into());
        let (accepted, response) =
            tokio::join!(async { drop(listener.accept().await.unwrap()) }, over_tcp(&url, "/", Call::default()));
        let () = accepted;
        let error = response.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("http://podmeter.invalid:{port} at 127.0.0.1 ended the connection")),
            "{error}"
        );
    }

    #[tokio::test]
    async fn each_address_of_a_host_is_an_agent() {
        for (host, address) in [("127.0.0.1", "127.0.0.1"), ("[::1]", "::1")] {
            let url: HttpUrl = format!("http://{host}:9410").parse().unwrap();
            let found = at_each_address(&url).await.unwrap();
            assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), [format!("{url} at {address}")]);
        }
        // Longer than a label of DNS may be, so that no server is needed.
        let host = "a".repeat(64);
        let error = at_each_address(&format!("http://{host}:9410").parse().unwrap()).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("{host} has no address: ")), "{error}");
        assert!(error.contains("no pod of podmeter has one (kubectl get daemonsets), or the DNS"), "{error}");
    }

    #[test]
    fn the_cause_of_an_error_is_found_in_errors_of_io() {
        let error = io::Error::other(io::Error::other(rustls::Error::DecryptError));
        assert_eq!(cause(&error), Some(&rustls::Error::DecryptError));
        assert_eq!(cause::<rustls::Error>(&io::Error::other("x")), None);
    }
}
