//! One HTTP exchange with an agent, within a deadline.
//!
//! In: a target, a path, a body. Out: the body of the response, or why there is none and what to do. Does not use: what it means.

use std::io;
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST, LOCATION};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::access::{explained, tls_error};
use super::target::{AgentTarget, DEFAULT_SOCKET, DEFAULT_URL, HttpUrl};
use crate::terminal::harmless;

/// For the whole exchange. An agent responds in milliseconds; on a loaded node in seconds.
const DEADLINE: Duration = Duration::from_secs(5);
/// For a command: the driver takes up to 30 s to close.
const COMMAND_DEADLINE: Duration = Duration::from_secs(40);
/// A device list as long as the kubelet takes (40,000 ids) makes less than half of it.
const BODY_BYTES: usize = 32 << 20;
/// Characters of an error's text.
const DETAIL_CHARACTERS: usize = 200;

/// Why there is no response, and the next step.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no agent listens on {socket}: start `podmeter agent`, or give --url http://HOST:9410")]
    NoAgentOnSocket { socket: String },
    #[error("{socket} can be opened by its owner only: run this as root, or give --url http://HOST:9410")]
    Forbidden { socket: String },
    #[error(
        "no agent was found on this node, neither on {DEFAULT_SOCKET} (no listener) nor at {DEFAULT_URL} ({port}): start \
         `podmeter agent` or `podmeter demo`, or give --url http://HOST:9410"
    )]
    NoAgentFound { port: String },
    #[error("{target} cannot be reached: {error}; is an agent running there, and is the port right?")]
    Unreachable { target: String, error: io::Error },
    #[error("{target} did not respond within {} s; try again, or check the agent's log", limit.as_secs())]
    Late { target: String, limit: Duration },
    #[error(
        "{target} ended the connection: {error}; is that a podmeter agent, and does it serve {}?",
        other_scheme(target)
    )]
    Broken { target: String, error: String },
    #[error("{target}: {problem}")]
    Tls { target: String, problem: String },
    #[error("{target} {}", if *had_password { "refuses this user or password" } else { "requires a password: give --user and --password-file" })]
    Unauthorized { target: String, had_password: bool },
    #[error("{target} responded {status}{}; is that a podmeter agent, and of this version?", in_brackets(text))]
    Refused { target: String, status: String, text: String },
    #[error("{target} responded with more than {} MiB, which no agent does; is that a podmeter agent?", BODY_BYTES >> 20)]
    TooLarge { target: String },
    #[error("{target} responded with something other than a snapshot ({error}); is that a podmeter agent?")]
    NotASnapshot { target: String, error: String },
}

/// The body of a successful `GET` of `path` (`/api/v1/node`), of at most 32 MiB, within five seconds.
pub async fn get(target: &AgentTarget, path: &str) -> Result<Vec<u8>, ClientError> {
    let call = Call { method: Method::GET, path, body: Bytes::new(), limit: DEADLINE };
    self::call(target, &call).await
}

/// The body of the response to a command with this body, within 40 seconds.
pub async fn post(target: &AgentTarget, path: &str, body: String) -> Result<Vec<u8>, ClientError> {
    let call = Call { method: Method::POST, path, body: body.into(), limit: COMMAND_DEADLINE };
    self::call(target, &call).await
}

struct Call<'a> {
    method: Method,
    path: &'a str,
    body: Bytes,
    limit: Duration,
}

async fn call(target: &AgentTarget, call: &Call<'_>) -> Result<Vec<u8>, ClientError> {
    let late = || ClientError::Late { target: target.to_string(), limit: call.limit };
    let request = async {
        match target {
            AgentTarget::Socket(socket) => exchange(connect_socket(socket).await?, call, target).await,
            AgentTarget::Url(url) => exchange_at(url, connect(url).await?, call, target).await,
            AgentTarget::Local => {
                find_local(Path::new(DEFAULT_SOCKET), DEFAULT_URL.parse().expect("a URL"), call).await
            }
        }
    };
    tokio::time::timeout(call.limit, request).await.map_err(|_| late())?
}

async fn exchange_at(
    url: &HttpUrl,
    stream: TcpStream,
    call: &Call<'_>,
    target: &AgentTarget,
) -> Result<Vec<u8>, ClientError> {
    if !url.is_https {
        return exchange(stream, call, target).await;
    }
    let problem = |problem| ClientError::Tls { target: target.to_string(), problem };
    let connected = url.access.connect(&url.host, stream).await.map_err(problem)?;
    exchange(connected, call, target).await
}

/// The admin socket first: it also exists where no port is open.
async fn find_local(socket: &Path, url: HttpUrl, call: &Call<'_>) -> Result<Vec<u8>, ClientError> {
    let socket_error = match connect_socket(socket).await {
        Ok(stream) => return exchange(stream, call, &AgentTarget::Socket(socket.into())).await,
        Err(error) => error,
    };
    match connect(&url).await {
        Ok(stream) => exchange(stream, call, &AgentTarget::Url(url)).await,
        Err(ClientError::Unreachable { error, .. }) if socket_error.is_no_agent() => {
            Err(ClientError::NoAgentFound { port: error.to_string() })
        }
        // An agent may serve a socket that cannot be opened here.
        Err(_) => Err(socket_error),
    }
}

async fn connect_socket(socket: &Path) -> Result<UnixStream, ClientError> {
    UnixStream::connect(socket).await.map_err(|error| {
        let name = socket.display().to_string();
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::ConnectionRefused => {
                ClientError::NoAgentOnSocket { socket: name }
            }
            io::ErrorKind::PermissionDenied => ClientError::Forbidden { socket: name },
            _ => ClientError::Unreachable { target: format!("unix:{name}"), error },
        }
    })
}

async fn connect(url: &HttpUrl) -> Result<TcpStream, ClientError> {
    TcpStream::connect((url.host.as_str(), url.port))
        .await
        .map_err(|error| ClientError::Unreachable { target: url.to_string(), error })
}

async fn exchange<S>(stream: S, call: &Call<'_>, target: &AgentTarget) -> Result<Vec<u8>, ClientError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let broken = |error: hyper::Error| match tls_error(&error) {
        Some(error) => ClientError::Tls { target: target.to_string(), problem: explained(error) },
        None => ClientError::Broken { target: target.to_string(), error: error.to_string() },
    };
    let request = Request::builder().method(&call.method);
    let request = match target {
        AgentTarget::Url(url) => {
            let request = request.uri(format!("{}{}", url.prefix, call.path)).header(HOST, &url.authority);
            match url.access.authorization() {
                Some(password) => request.header(AUTHORIZATION, password),
                None => request,
            }
        }
        AgentTarget::Socket(_) | AgentTarget::Local => request.uri(call.path).header(HOST, "localhost"),
    };
    let request = request
        .body(Full::new(call.body.clone()))
        .map_err(|error| ClientError::Broken { target: target.to_string(), error: error.to_string() })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let exchange = async { answer(sender.send_request(request).await.map_err(broken)?, target).await };
    tokio::pin!(exchange, connection);
    tokio::select! {
        biased;
        response = &mut exchange => response,
        // The response may be complete by then.
        _ = &mut connection => exchange.await,
    }
}

async fn answer(response: Response<Incoming>, target: &AgentTarget) -> Result<Vec<u8>, ClientError> {
    let had_password = matches!(target, AgentTarget::Url(url) if url.access.authorization().is_some());
    let target = target.to_string();
    let status = response.status();
    let location = response.headers().get(LOCATION).filter(|_| status.is_redirection());
    let location = location.map(|location| String::from_utf8_lossy(location.as_bytes()).into_owned());
    let bytes = match Limited::new(response.into_body(), BODY_BYTES).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return Err(ClientError::TooLarge { target }),
        Err(error) => return Err(ClientError::Broken { target, error: error.to_string() }),
    };
    if status == StatusCode::UNAUTHORIZED {
        return Err(ClientError::Unauthorized { target, had_password });
    }
    if !status.is_success() {
        let text = location.map_or_else(|| first_line(&bytes), |location| first_line(location.as_bytes()));
        return Err(ClientError::Refused { target, status: status.to_string(), text });
    }
    Ok(bytes.into())
}

impl ClientError {
    /// Nothing listens there: no agent runs.
    pub fn is_no_agent(&self) -> bool {
        match self {
            Self::NoAgentOnSocket { .. } | Self::NoAgentFound { .. } => true,
            Self::Unreachable { error, .. } => error.kind() == io::ErrorKind::ConnectionRefused,
            _ => false,
        }
    }
}

fn other_scheme(target: &str) -> &'static str {
    if target.starts_with("https:") { "http" } else { "https" }
}

fn in_brackets(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

/// The first line of what came with an error, harmless on a terminal.
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
    use super::*;

    #[tokio::test]
    async fn an_agent_on_a_socket_that_cannot_be_opened_is_not_taken_for_none() {
        let call = Call { method: Method::GET, path: "/", body: Bytes::new(), limit: DEADLINE };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        for (socket, is_no_agent) in [("/nowhere/a.sock".to_owned(), true), (format!("/{:0200}", 0), false)] {
            let error = find_local(Path::new(&socket), closed.parse().unwrap(), &call).await.unwrap_err();
            assert_eq!(error.is_no_agent(), is_no_agent, "{error}");
        }
    }
}
