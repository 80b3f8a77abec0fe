//! The client of the PodResources API.
//!
//! In: the kubelet's socket. Out: model types, or an error with a remedy. It keeps no answers and does not retry.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use strum::{EnumIter, IntoStaticStr};
use tokio::net::UnixStream;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use super::convert;
use crate::domain::model::{Allocatable, Allocations, Pod, PodRef};
use crate::tasks::within;
use crate::wire::v1::pod_resources_lister_client::PodResourcesListerClient;
use crate::wire::{channel_over, v1};
use crate::words;

/// Answers of 4.8 MB have been seen on large nodes. A larger answer is refused, not cut.
const MESSAGE_LIMIT: usize = 16 << 20;

/// Characters of a foreign error message.
const LONGEST_REASON: usize = 500;

/// Talks to the kubelet's PodResources socket. Connects on first use and again after every failure.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    deadline: Duration,
    connection: Option<PodResourcesListerClient<Channel>>,
}

/// Why a call failed. The message has the remedy.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("there is no socket {0}: is the kubelet running, and is its directory mounted here (see --kubelet-root)?")]
    SocketMissing(PathBuf),
    #[error("{0} is not a socket: point --pod-resources-socket at the kubelet's")]
    NotASocket(PathBuf),
    #[error("no permission to connect to {0}: its directory belongs to root (0750), so run as uid 0")]
    PermissionDenied(PathBuf),
    #[error("no process listens on {0}: the kubelet is down or restarting; retrying")]
    Refused(PathBuf),
    #[error("the connection to {socket} broke ({reason}); retrying")]
    Unavailable { socket: PathBuf, reason: String },
    #[error("{socket} did not answer {method} within {}: the kubelet hangs; retrying", words::duration(*deadline))]
    DeadlineExceeded { socket: PathBuf, method: &'static str, deadline: Duration },
    #[error("the kubelet's rate limit refused {0}: another client of the socket asks too often; retrying later")]
    RateLimited(&'static str),
    #[error("this kubelet does not implement {0}: upgrade it")]
    Unimplemented(&'static str),
    #[error(
        "the answer of {socket} to {method} is over {} MiB, so the last allocations stay in use: delete the pod whose DRA \
         claim is listed many times over",
        MESSAGE_LIMIT >> 20
    )]
    TooLarge { socket: PathBuf, method: &'static str },
    #[error("{socket} does not serve PodResources ({reason}): is it the kubelet's socket?")]
    Malformed { socket: PathBuf, reason: String },
    #[error("{method} failed: {code:?}, {message}")]
    Other { method: &'static str, code: Code, message: String },
}

/// The `code` label of failed calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum CallErrorCode {
    Unavailable,
    NotASocket,
    PermissionDenied,
    DeadlineExceeded,
    RateLimited,
    Unimplemented,
    TooLarge,
    Malformed,
    Other,
}

impl CallError {
    /// The value of the `code` label.
    pub fn code(&self) -> CallErrorCode {
        match self {
            Self::SocketMissing(_) | Self::Refused(_) | Self::Unavailable { .. } => CallErrorCode::Unavailable,
            Self::NotASocket(_) => CallErrorCode::NotASocket,
            Self::PermissionDenied(_) => CallErrorCode::PermissionDenied,
            Self::DeadlineExceeded { .. } => CallErrorCode::DeadlineExceeded,
            Self::RateLimited(_) => CallErrorCode::RateLimited,
            Self::Unimplemented(_) => CallErrorCode::Unimplemented,
            Self::TooLarge { .. } => CallErrorCode::TooLarge,
            Self::Malformed { .. } => CallErrorCode::Malformed,
            Self::Other { .. } => CallErrorCode::Other,
        }
    }

    /// Whether what answers next may be another kubelet than the one before.
    #[must_use]
    pub fn lost_connection(&self) -> bool {
        !matches!(self, Self::TooLarge { .. } | Self::RateLimited(_) | Self::Unimplemented(_) | Self::Other { .. })
    }
}

impl Client {
    pub fn new(socket: &Path, deadline: Duration) -> Self {
        Self { socket: socket.to_owned(), deadline, connection: None }
    }

    /// Drops the connection: the socket belongs to a new kubelet.
    pub fn disconnect(&mut self) {
        self.connection = None;
    }

    /// Who holds what.
    pub async fn list(&mut self) -> Result<Allocations, CallError> {
        let mut client = self.connect().await?;
        let answer = self.finish("List", client.list(v1::ListPodResourcesRequest {})).await?;
        Ok(convert::allocations(answer))
    }

    /// What could be given: healthy devices whether held or not.
    pub async fn allocatable(&mut self) -> Result<Allocatable, CallError> {
        let mut client = self.connect().await?;
        let call = client.get_allocatable_resources(v1::AllocatableResourcesRequest {});
        let answer = self.finish("GetAllocatableResources", call).await?;
        Ok(convert::allocatable(answer))
    }

    /// One pod; `None` when the kubelet has no active pod of that name. Not to be called in a loop over pods: the rate
    /// limit is shared by all clients of the node.
    pub async fn get(&mut self, pod: &PodRef) -> Result<Option<Pod>, CallError> {
        const METHOD: &str = "Get";
        let mut client = self.connect().await?;
        let request =
            v1::GetPodResourcesRequest { pod_name: pod.pod.to_string(), pod_namespace: pod.namespace.to_string() };
        let answer = match self.finish(METHOD, client.get(request)).await {
            // A plain Go error: the code is Unknown, and only the text identifies it.
            Err(CallError::Other { code: Code::Unknown, message, .. })
                if message == format!("pod {} in namespace {} not found", pod.pod, pod.namespace) =>
            {
                return Ok(None);
            }
            Err(CallError::Other { code: Code::Unknown, message, .. }) if message.ends_with("disabled") => {
                return Err(CallError::Unimplemented(METHOD));
            }
            answer => answer?,
        };
        let missing = || CallError::Malformed { socket: self.socket.clone(), reason: "an answer without a pod".into() };
        answer.pod_resources.map(convert::convert_pod).map(Some).ok_or_else(missing)
    }

    async fn connect(&mut self) -> Result<PodResourcesListerClient<Channel>, CallError> {
        if let Some(connection) = &self.connection {
            return Ok(connection.clone());
        }
        let deadline = self.deadline;
        let late = || CallError::DeadlineExceeded { socket: self.socket.clone(), method: "connect", deadline };
        let stream = dial(&self.socket, deadline).await?;
        let handshake = channel_over(stream);
        let channel = within(deadline, handshake).await.ok_or_else(late)?;
        let channel =
            channel.map_err(|error| CallError::Malformed { socket: self.socket.clone(), reason: chain(&error) })?;
        let connection = PodResourcesListerClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
        self.connection = Some(connection.clone());
        Ok(connection)
    }

    async fn finish<M>(
        &mut self,
        method: &'static str,
        call: impl Future<Output = Result<Response<M>, Status>>,
    ) -> Result<M, CallError> {
        let deadline = self.deadline;
        let outcome = match within(deadline, call).await {
            Some(Ok(answer)) => return Ok(answer.into_inner()),
            Some(Err(status)) => self.call_error(method, &status),
            None => CallError::DeadlineExceeded { socket: self.socket.clone(), method, deadline },
        };
        if outcome.lost_connection() {
            self.disconnect();
        }
        Err(outcome)
    }

    fn call_error(&self, method: &'static str, status: &Status) -> CallError {
        let socket = self.socket.clone();
        let reason = || explain(status);
        match status.code() {
            Code::OutOfRange => CallError::TooLarge { socket, method },
            Code::ResourceExhausted => CallError::RateLimited(method),
            Code::Unimplemented => CallError::Unimplemented(method),
            Code::Unavailable | Code::Cancelled => CallError::Unavailable { socket, reason: reason() },
            Code::Internal => CallError::Malformed { socket, reason: reason() },
            // The kubelet's own errors come as Unknown with a text; a broken transport does too, but with a cause.
            Code::Unknown if std::error::Error::source(status).is_some() => {
                if reason().contains("protocol") || reason().contains("frame") {
                    CallError::Malformed { socket, reason: reason() }
                } else {
                    CallError::Unavailable { socket, reason: reason() }
                }
            }
            code => CallError::Other { method, code, message: explain(status) },
        }
    }
}

/// Connects to a socket of the kubelet.
pub async fn dial(path: &Path, deadline: Duration) -> Result<UnixStream, CallError> {
    let socket = path.to_owned();
    let Some(connected) = within(deadline, UnixStream::connect(path)).await else {
        return Err(CallError::DeadlineExceeded { socket, method: "connect", deadline });
    };
    connected.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => CallError::SocketMissing(socket),
        io::ErrorKind::PermissionDenied => CallError::PermissionDenied(socket),
        // A plain file refuses connections as a dead socket does.
        io::ErrorKind::ConnectionRefused if !is_socket(path) => CallError::NotASocket(socket),
        io::ErrorKind::ConnectionRefused => CallError::Refused(socket),
        _ => CallError::Unavailable { socket, reason: error.to_string() },
    })
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// A failure's message and its causes in one line, without the dump of the causes that `Status` displays.
pub(super) fn explain(status: &Status) -> String {
    shortened(with_causes(status.message().to_owned(), std::error::Error::source(status)))
}

/// An error and its causes in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    shortened(with_causes(error.to_string(), error.source()))
}

fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(LONGEST_REASON) {
        text.truncate(end);
        text.push('…');
    }
    text
}

fn with_causes(mut text: String, mut cause: Option<&dyn std::error::Error>) -> String {
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.contains(&part) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&part);
        }
        cause = error.source();
    }
    text
}
