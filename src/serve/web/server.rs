//! The servers: one task for each listener, and one for each of its connections.
//!
//! In: listeners, the web's state, limits. Out: responses until a stop is requested. Does not use: what a response contains.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use axum::{Extension, Router};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::runtime::{EnterGuard, Runtime};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tower::ServiceExt as _;
use tracing::{debug, error, warn};

use super::access::AccessControl;
use super::config::WatchedConfig;
use super::connections::{ClientStream, Limits, TimedStream};
use super::listener::Purpose;
use super::routes::{probes, router};
use super::state::{Private, WebState};
use super::{Listener, admin, streams};
use crate::tasks::Tasks;

/// For the TLS handshake, and then for the first request: silent connections keep out others.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// After this time a connection is closed, once the response in progress is sent.
const LIFETIME: Duration = Duration::from_secs(15 * 60);
/// For that response: a stream would never end.
const LAST_RESPONSE: Duration = Duration::from_secs(30);
/// For requests in progress at shutdown; the agent ends within five seconds.
const GRACE: Duration = Duration::from_secs(3);
/// The probe listener has a kubelet as its only client.
const PROBE_CONNECTIONS: usize = 8;
/// Whatever the number of clients: two may wait for the journal's disk, one for the web configuration's, and one may hash
/// a password. Two always render.
const BLOCKING_THREADS: usize = 6;
/// After this time an idle blocking thread ends, with its memory.
const IDLE_THREAD: Duration = Duration::from_millis(100);
/// After a failed accept; usually file descriptors are missing.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How the servers run.
#[derive(Clone, Default)]
pub struct ServerSettings {
    /// For `Public` listeners; the admin socket and the probe listener do not use it.
    pub web_config: Option<WatchedConfig>,
    /// For each listener.
    pub limits: Limits,
    /// An admin socket on which another process listens. It is served when that process has ended.
    pub awaited: Option<PathBuf>,
}

/// The threads of the web server: no request delays the rest of the agent, such as an answer to the kubelet.
pub struct WebThreads(Option<Runtime>);

impl WebThreads {
    /// One thread for connections, and a few for what takes long or waits for a disk.
    pub fn start() -> io::Result<Self> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).max_blocking_threads(BLOCKING_THREADS).thread_keep_alive(IDLE_THREAD);
        let runtime = runtime.thread_name("web").enable_all();
        runtime.build().map(|runtime| Self(Some(runtime)))
    }

    /// What is spawned until the guard is dropped runs on these threads.
    pub fn enter(&self) -> Option<EnterGuard<'_>> {
        self.0.as_ref().map(Runtime::enter)
    }
}

impl Drop for WebThreads {
    fn drop(&mut self) {
        // Does not wait for a page that is being rendered.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Serves every listener until `servers` are stopped, then finishes the requests in progress. `tasks`, which are aborted
/// at the end, update the history and the event streams, and read a changed web configuration. Both run on the threads of
/// the runtime that is entered: those of `WebThreads`.
pub fn start(
    listeners: Vec<Listener>,
    state: WebState,
    settings: ServerSettings,
    tasks: &mut Tasks,
    servers: &mut Tasks,
) {
    tasks.spawn("history and streams", streams::follow(state.clone()));
    if let Some(config) = settings.web_config.clone() {
        tasks.spawn("web configuration", config.follow());
    }
    let mut stopping = servers.stopping();
    let stopped = async move { drop(stopping.wait_for(|stop| *stop).await) };
    servers.spawn("web server", async move {
        if let Err(problem) = serve(listeners, state, settings, stopped).await {
            error!(%problem, "the web server failed");
        }
    });
}

/// Ends when `shutdown` completes, or with the error of a task that panicked.
async fn serve(
    listeners: Vec<Listener>,
    state: WebState,
    settings: ServerSettings,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let access = settings.web_config.map(|config| Arc::new(AccessControl::new(config, state.clock)));
    let commands = admin::router(state.admin.clone());
    let streams = state.streams.clone();
    let (probes, router) = (probes(state.clone()), router(state));
    let (stop, stopped) = watch::channel(());
    let mut accepting = JoinSet::new();
    let handler_for = |purpose: Purpose| {
        let limits = settings.limits;
        match purpose {
            Purpose::Public => ConnectionHandler { router: router.clone(), access: access.clone(), limits },
            Purpose::Probes => {
                let limits = Limits { connections: PROBE_CONNECTIONS, ..limits };
                ConnectionHandler { router: probes.clone(), access: None, limits }
            }
            Purpose::Private => {
                let router = router.clone().merge(commands.clone()).layer(Extension(Private));
                ConnectionHandler { router, access: None, limits }
            }
        }
    };
    for listener in listeners {
        let handler = handler_for(listener.purpose());
        accepting.spawn(accept(listener, handler, stopped.clone()));
    }
    if let Some(path) = settings.awaited {
        let (handler, mut stopped) = (handler_for(Purpose::Private), stopped.clone());
        accepting.spawn(async move {
            tokio::select! {
                listener = Listener::bind_private_when_free(&path) => accept(listener, handler, stopped).await,
                _ = stopped.changed() => {}
            }
        });
    }
    let failed = tokio::select! {
        () = shutdown => None,
        ended = accepting.join_next(), if !accepting.is_empty() => ended,
    };
    // Without the sender `changed` returns an error: the signal to stop.
    drop(stop);
    // Open streams would delay the end.
    streams.close();
    let mut outcome = failed.map_or(Ok(()), |ended| ended.map_err(io::Error::other));
    while let Some(ended) = accepting.join_next().await {
        outcome = outcome.and(ended.map_err(io::Error::other));
    }
    outcome
}

/// How the connections of one listener are handled.
#[derive(Clone)]
struct ConnectionHandler {
    router: Router,
    access: Option<Arc<AccessControl>>,
    limits: Limits,
}

async fn accept(listener: Listener, handler: ConnectionHandler, mut stopped: watch::Receiver<()>) {
    let mut connections = JoinSet::new();
    let (mut reached, mut failing) = (false, false);
    loop {
        let accepted = tokio::select! {
            accepted = accept_one(&listener), if connections.len() < handler.limits.connections => accepted,
            _ = stopped.changed() => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                log_end(ended);
                continue;
            }
        };
        match accepted {
            Ok((stream, peer)) => {
                failing = false;
                let (handler, stopped) = (handler.clone(), stopped.clone());
                let limit = handler.limits.connections;
                connections.spawn(async move { serve_connection(stream, peer, &handler, stopped).await });
                if connections.len() == limit && !std::mem::replace(&mut reached, true) {
                    let listener = listener.address();
                    warn!(%listener, limit, "the limit of connections is reached; further clients wait until one is closed");
                }
            }
            Err(error) if client_gave_up(&error) => {}
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    warn!(listener = %listener.address(), %error, "cannot accept a connection; trying again");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let ending = async {
        while let Some(ended) = connections.join_next().await {
            log_end(ended);
        }
    };
    if tokio::time::timeout(GRACE, ending).await.is_err() {
        warn!("connections that did not end in time are closed");
    }
    connections.shutdown().await;
}

/// A client's stream, and its address; `None` on a unix socket.
async fn accept_one(listener: &Listener) -> io::Result<(Box<dyn ClientStream>, Option<IpAddr>)> {
    Ok(match listener {
        Listener::Tcp { listener, .. } => {
            let (stream, peer) = listener.accept().await?;
            let _ = stream.set_nodelay(true); // fails only on a closed connection
            (Box::new(stream), Some(peer.ip().to_canonical()))
        }
        Listener::Unix { listener, .. } => (Box::new(listener.accept().await?.0), None),
    })
}

async fn serve_connection(
    stream: Box<dyn ClientStream>,
    peer: Option<IpAddr>,
    handler: &ConnectionHandler,
    mut stopped: watch::Receiver<()>,
) {
    let secured = match &handler.access {
        None => Ok(stream),
        Some(access) => tokio::select! {
            secured = tokio::time::timeout(FIRST_REQUEST_TIMEOUT, access.secure(stream)) => {
                secured.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            }
            _ = stopped.changed() => return,
        },
    };
    let stream = match secured {
        Ok(stream) => TimedStream::new(stream, handler.limits.write_timeout),
        Err(error) => return debug!(%error, ?peer, "TLS handshake failed"),
    };
    let requested = Arc::new(Notify::new());
    let service = service_fn(|request: Request<Incoming>| {
        requested.notify_one();
        let (router, access) = (handler.router.clone(), handler.access.clone());
        let request = request.map(Body::new);
        async move {
            match access {
                Some(access) => Ok(access.respond(request, router).await),
                None => router.oneshot(request).await,
            }
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(handler.limits.read_timeout)
        .max_buf_size(handler.limits.header_bytes)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = no_request_in_time(&requested) => return debug!(?peer, "connection closed without a request"),
        reason = end_of_service(&mut stopped) => {
            debug!(reason, ?peer, "connection closed after its last response");
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(LAST_RESPONSE, connection).await.unwrap_or(Ok(()))
        }
    };
    // The client disconnected, or does not use HTTP.
    if let Err(error) = ended {
        debug!(%error, ?peer, "connection failed");
    }
}

/// Never returns once a request was received.
async fn no_request_in_time(requested: &Notify) {
    if tokio::time::timeout(FIRST_REQUEST_TIMEOUT, requested.notified()).await.is_ok() {
        std::future::pending::<()>().await;
    }
}

/// Returns why a connection gets no further requests.
async fn end_of_service(stopped: &mut watch::Receiver<()>) -> &'static str {
    tokio::select! {
        _ = stopped.changed() => "shutdown",
        () = tokio::time::sleep(LIFETIME) => "maximum age reached",
    }
}

fn client_gave_up(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

fn log_end(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        warn!(%error, "the task of a connection panicked; please report this");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// The bytes that a client receives whose response takes so long, and when the connection is closed.
    async fn received(takes: Duration) -> (String, Duration) {
        let respond = move || async move {
            tokio::time::sleep(takes).await;
            "the whole body"
        };
        let router = Router::new().route("/", get(respond));
        let handler = ConnectionHandler { router, access: None, limits: Limits::default() };
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let (_stop, stopped) = watch::channel(());
        let began = tokio::time::Instant::now();
        let client = async {
            theirs.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
            let mut text = String::new();
            theirs.read_to_string(&mut text).await.unwrap();
            (text, began.elapsed())
        };
        tokio::join!(client, serve_connection(Box::new(ours), None, &handler, stopped)).0
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_of_maximum_age_ends_after_its_response() {
        let (text, after) = received(LIFETIME + Duration::from_secs(5)).await;
        assert!(text.ends_with("the whole body") && text.contains("connection: close"), "{text}");
        assert_eq!(after.as_secs(), LIFETIME.as_secs() + 5);
        let (text, after) = received(LIFETIME * 2).await;
        assert_eq!((text.as_str(), after.as_secs()), ("", (LIFETIME + LAST_RESPONSE).as_secs()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_closed() {
        let handler = ConnectionHandler { router: Router::new(), access: None, limits: Limits::default() };
        let (ours, _theirs) = tokio::io::duplex(1024);
        let (_stop, stopped) = watch::channel(());
        let began = tokio::time::Instant::now();
        serve_connection(Box::new(ours), None, &handler, stopped).await;
        assert_eq!(began.elapsed(), FIRST_REQUEST_TIMEOUT);
    }
}
