//! A small HTTP client of a running agent, for this binary's own commands.
//!
//! In: where the agent listens, a path. Out: the body of its answer, or why there is none. Refuses to know: what is in it.
//! Every question has a deadline, and every answer a largest size.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// From the first byte asked to the last byte answered.
const DEADLINE: Duration = Duration::from_secs(30);
/// Many times the largest page of an agent.
const LARGEST: usize = 64 * 1024 * 1024;

/// Where an agent listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Socket(PathBuf),
    /// `http://HOST:PORT`
    Url(String),
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("{0} is no URL of an agent; write http://HOST:PORT")]
    Url(String),
    #[error("no agent answers at {place}: {error}")]
    Unreachable { place: String, error: io::Error },
    /// It went away, or does not speak HTTP.
    #[error("{place}: {problem}")]
    Broken { place: String, problem: String },
    #[error("{place} did not answer within {} s", DEADLINE.as_secs())]
    Late { place: String },
    /// It answered that it will not, with its reason.
    #[error("{place} answered {status}: {reason}")]
    Refused { place: String, status: u16, reason: String },
}

/// The body of the answer to `GET path`.
pub async fn get(target: &Target, path: &str) -> Result<Vec<u8>, ClientError> {
    let asking = async {
        match target {
            Target::Socket(socket) => {
                let place = || socket.display().to_string();
                let stream = UnixStream::connect(socket).await;
                ask(
                    stream.map_err(|error| ClientError::Unreachable { place: place(), error })?,
                    "localhost",
                    path,
                    place(),
                )
                .await
            }
            Target::Url(url) => {
                let host = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
                let host = host.filter(|host| !host.is_empty() && !host.contains('/'));
                let host = host.ok_or_else(|| ClientError::Url(url.clone()))?;
                let address = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
                let stream = TcpStream::connect(address).await;
                let place = || url.clone();
                ask(stream.map_err(|error| ClientError::Unreachable { place: place(), error })?, host, path, place())
                    .await
            }
        }
    };
    tokio::time::timeout(DEADLINE, asking)
        .await
        .unwrap_or_else(|_| Err(ClientError::Late { place: target.to_string() }))
}

async fn ask(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    host: &str,
    path: &str,
    place: String,
) -> Result<Vec<u8>, ClientError> {
    let broken = |problem: String| ClientError::Broken { place: place.clone(), problem };
    let shaken = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|error| broken(error.to_string()))?;
    let request = Request::get(path).header("host", host).header("connection", "close").body(Empty::<Bytes>::new());
    let request = request.map_err(|error| broken(error.to_string()))?;
    let answering = async {
        let answer = sender.send_request(request).await.map_err(|error| broken(error.to_string()))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LARGEST).collect().await;
        let body = body.map_err(|error| broken(error.to_string()))?.to_bytes().to_vec();
        if status.is_success() {
            return Ok(body);
        }
        // RFC 9457 where it is one.
        let problem = serde_json::from_slice::<serde_json::Value>(&body).ok();
        let detail = problem.as_ref().and_then(|problem| problem["detail"].as_str());
        let text = detail.map_or_else(|| String::from_utf8_lossy(&body), std::borrow::Cow::Borrowed);
        let text = text.trim().chars().take(400).collect();
        Err(ClientError::Refused { place: place.clone(), status: status.as_u16(), reason: text })
    };
    tokio::pin!(answering);
    tokio::select! {
        answered = &mut answering => answered,
        // The connection ends when all is read; what it brought is there then.
        _ = connection => answering.await,
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(socket) => write!(formatter, "{}", socket.display()),
            Self::Url(url) => formatter.write_str(url),
        }
    }
}
