//! The servers: one task for each listener, and one for each of its connections.
//!
//! In: listeners, the web's state, limits. Out: responses until a stop is requested. Does not use: what a response contains.

use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, Response};
use axum::{Extension, Router, middleware};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tower::ServiceExt as _;
use tracing::{debug, error, warn};

use super::access::AccessControl;
use super::config::WatchedConfig;
use super::connections::{ClientStream, Limits, TimedStream};
use super::listener::{ListenAddress, Purpose};
use super::routes::{probes, router};
use super::state::{ByAdminSocket, WebState};
use super::{Listener, admin, streams};
use crate::domain::periods::WEB_STOP;
use crate::tasks::{self, NoThread, Tasks};

/// The limit for the TLS handshake, and then for the first request: silent connections take the place of others.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// After this time a connection is closed, once the response in progress is sent.
const LIFETIME: Duration = Duration::from_secs(15 * 60);
/// The limit for that response.
const LAST_RESPONSE: Duration = Duration::from_secs(30);
/// The connections of the probe listener, whose only client is a kubelet.
const PROBE_CONNECTIONS: usize = 8;
/// Enough for any number of clients: two may wait for the journal's disk, one for the web configuration's, and one may
/// hash a password. Two are always left to render.
const BLOCKING_THREADS: usize = 6;
/// The pause after a failed accept; usually there is no free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How the servers run.
#[derive(Clone, Default)]
pub struct ServerSettings {
    /// The configuration of `Public` listeners; the admin socket and the probe listener do not use it.
    pub web_config: Option<WatchedConfig>,
    /// The limits of each listener.
    pub limits: Limits,
    /// An admin socket on which another process listens. It is served when that process has ended.
    pub awaited: Option<ListenAddress>,
}

/// The threads of the web server: no request delays the rest of the agent, such as an answer to the kubelet.
pub struct WebThreads {
    runtime: Handle,
    /// Ends the threads when it is dropped.
    _end: oneshot::Sender<()>,
}

impl WebThreads {
    /// Starts one thread for connections, and a few for what takes long or waits for a disk.
    pub fn start() -> Result<Self, NoThread> {
        let (send, started) = std::sync::mpsc::channel();
        let (end, ended) = oneshot::channel();
        std::thread::Builder::new().name("web".into()).spawn(move || {
            let runtime = match tasks::runtime("web", BLOCKING_THREADS) {
                Ok(runtime) => runtime,
                Err(error) => return drop(send.send(Err(error))),
            };
            let _ = send.send(Ok(runtime.handle().clone()));
            let _ = runtime.block_on(ended);
            // Does not wait for a page that is being rendered.
            runtime.shutdown_background();
        })?;
        let runtime = started.recv().expect("the thread sends one of both")?;
        Ok(Self { runtime, _end: end })
    }

    /// Makes what is spawned until the guard is dropped run on these threads.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
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
    servers.spawn("web server", serve(listeners, state, settings, servers.stopping()));
}

/// Ends on request, or when one of its tasks has panicked.
async fn serve(
    listeners: Vec<Listener>,
    state: WebState,
    settings: ServerSettings,
    mut stopping: watch::Receiver<bool>,
) {
    let access = settings.web_config.map(|config| Arc::new(AccessControl::new(config, state.clock)));
    let (commands, streams) = (admin::router(state.admin.clone()), state.streams.clone());
    let (probes, router) = (probes(state.clone()), router(state));
    let handler_for = |purpose: Purpose| {
        let (router, connections) = match purpose {
            Purpose::Public => (router.clone(), settings.limits.connections),
            Purpose::Probes => (probes.clone(), PROBE_CONNECTIONS),
            Purpose::Admin => {
                (router.clone().merge(commands.clone()).layer(Extension(ByAdminSocket)), settings.limits.connections)
            }
        };
        let access = access.clone().filter(|_| purpose == Purpose::Public);
        let router = match access.clone() {
            Some(access) => router.layer(middleware::from_fn_with_state(access, AccessControl::respond)),
            None => router,
        };
        ConnectionHandler { router, access, limits: Limits { connections, ..settings.limits } }
    };
    let mut accepting = JoinSet::new();
    for listener in listeners {
        let handler = handler_for(listener.purpose);
        accepting.spawn(accept(listener, handler, stopping.clone()));
    }
    if let Some(address) = settings.awaited {
        let (handler, mut stopping) = (handler_for(Purpose::Admin), stopping.clone());
        accepting.spawn(async move {
            tokio::select! {
                listener = Listener::bind_when_free(address) => accept(listener, handler, stopping).await,
                _ = stopping.changed() => {}
            }
        });
    }
    tokio::select! {
        // A task may have ended because of it.
        biased;
        _ = stopping.changed() => {}
        Some(ended) = accepting.join_next() => return log_end(ended),
    }
    // Open streams would delay the end.
    streams.close();
    while let Some(ended) = accepting.join_next().await {
        log_end(ended);
    }
}

/// How the connections of one listener are handled.
#[derive(Clone)]
struct ConnectionHandler {
    router: Router,
    access: Option<Arc<AccessControl>>,
    limits: Limits,
}

/// Accepts connections in place of `axum::serve`, which limits neither their number and age nor a head's size and time.
async fn accept(listener: Listener, handler: ConnectionHandler, mut stopping: watch::Receiver<bool>) {
    let (mut connections, limit) = (JoinSet::new(), handler.limits.connections);
    let (mut reached, mut failing) = (false, false);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept(), if connections.len() < limit => accepted,
            _ = stopping.changed() => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                log_end(ended);
                continue;
            }
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) if client_gave_up(&error) => continue,
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    warn!(listener = %listener.address, %error, "cannot accept a connection; trying again");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        failing = false;
        connections.spawn(serve_connection(stream, peer, handler.clone(), stopping.clone()));
        if connections.len() == limit && !std::mem::replace(&mut reached, true) {
            let listener = &listener.address;
            warn!(%listener, limit, "the limit of connections is reached; further clients wait until one is closed");
        }
    }
    drop(listener);
    let ending = async {
        while let Some(ended) = connections.join_next().await {
            log_end(ended);
        }
    };
    if tokio::time::timeout(WEB_STOP, ending).await.is_err() {
        warn!("connections that did not end in time are closed");
    }
    connections.shutdown().await;
}

async fn serve_connection(
    stream: Box<dyn ClientStream>,
    peer: Option<IpAddr>,
    handler: ConnectionHandler,
    mut stopping: watch::Receiver<bool>,
) {
    let mut config = handler.access.as_ref().map(|access| access.current());
    let secured = match &mut config {
        None => Ok(stream),
        Some(config) => {
            let tls = config.borrow_and_update().tls.clone();
            tokio::select! {
                secured = tokio::time::timeout(FIRST_REQUEST_TIMEOUT, AccessControl::secure(tls, stream)) => {
                    secured.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
                }
                _ = stopping.changed() => return,
            }
        }
    };
    let stream = match secured {
        Ok(stream) => TimedStream::new(stream, handler.limits.write_timeout),
        Err(error) => return debug!(%error, ?peer, "TLS handshake failed"),
    };
    let (noted, requested) = watch::channel(false);
    let (began, streams) = watch::channel(false);
    let service = handler.router.map_request(move |request: Request<Incoming>| {
        noted.send_replace(true);
        request.map(Body::new)
    });
    let service = service.map_response(move |response: Response<Body>| {
        began.send_replace(response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream"));
        response
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(handler.limits.read_timeout)
        .max_buf_size(handler.limits.header_bytes)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = pin!(connection);
    let must_end = async {
        match &mut config {
            None => drop(stopping.changed().await),
            Some(config) => tokio::select! {
                _ = stopping.changed() => {}
                () = tasks::changed(config) => until_set(requested.clone()).await,
            },
        }
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = no_request_in_time(requested.clone()) => return debug!(?peer, "connection closed without a request"),
        _ = tokio::time::timeout(LIFETIME, must_end) => {
            debug!(?peer, "connection closed after its last response: shutdown, maximum age or another web configuration");
            connection.as_mut().graceful_shutdown();
            let last_response = tokio::time::timeout(LAST_RESPONSE, connection);
            tokio::select! {
                ended = last_response => ended.unwrap_or(Ok(())),
                // A stream of events would not end. At shutdown `EventStreams::close` ends it.
                () = until_set(streams), if !*stopping.borrow() => Ok(()),
            }
        }
    };
    // The client disconnected, or does not use HTTP.
    if let Err(error) = ended {
        debug!(%error, ?peer, "connection failed");
    }
}

/// Completes when no request is received in time, and never once one was received.
async fn no_request_in_time(requested: watch::Receiver<bool>) {
    if tokio::time::timeout(FIRST_REQUEST_TIMEOUT, until_set(requested)).await.is_ok() {
        std::future::pending::<()>().await;
    }
}

/// Waits until the flag is set, or its sender is dropped.
async fn until_set(mut flag: watch::Receiver<bool>) {
    // An error is the end of the connection.
    let _ = flag.wait_for(|is_set| *is_set).await;
}

fn client_gave_up(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

fn log_end(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        error!(%error, "a task of the web server panicked; please report this");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// What a client receives whose response takes this long, and when the connection is closed.
    async fn received(takes: Duration) -> (String, Duration) {
        let respond = move || async move {
            tokio::time::sleep(takes).await;
            "the whole body"
        };
        received_of(Router::new().route("/", get(respond))).await
    }

    async fn received_of(router: Router) -> (String, Duration) {
        let handler = ConnectionHandler { router, access: None, limits: Limits::default() };
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let (_stop, stopped) = watch::channel(false);
        let began = tokio::time::Instant::now();
        let client = async {
            theirs.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
            let mut text = String::new();
            theirs.read_to_string(&mut text).await.unwrap();
            (text, began.elapsed())
        };
        tokio::join!(client, serve_connection(Box::new(ours), None, handler, stopped)).0
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
    async fn a_stream_of_events_ends_at_the_maximum_age() {
        let body = || Body::from_stream(tokio_stream::pending::<Result<String, io::Error>>());
        let respond = move || async move { ([(CONTENT_TYPE, "text/event-stream")], body()) };
        let (text, after) = received_of(Router::new().route("/", get(respond))).await;
        assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
        assert_eq!(after, LIFETIME);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_to_accept_are_tried_again_and_logged_once_with_the_listener() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let file = log.reopen().unwrap();
        let output = tracing_subscriber::fmt().with_writer(move || file.try_clone().unwrap()).finish();
        let _guard = tracing::subscriber::set_default(output);
        let handler = ConnectionHandler { router: Router::new(), access: None, limits: Limits::default() };
        let (_stop, stopping) = watch::channel(false);
        assert!(tokio::time::timeout(ACCEPT_PAUSE * 5, accept(Listener::failing(), handler, stopping)).await.is_err());
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert_eq!(text.matches("cannot accept a connection").count(), 1, "{text}");
        assert!(text.contains("WARN") && text.contains("listener=127.0.0.1:9410"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_is_closed() {
        let handler = ConnectionHandler { router: Router::new(), access: None, limits: Limits::default() };
        let (ours, _theirs) = tokio::io::duplex(1024);
        let (_stop, stopped) = watch::channel(false);
        let began = tokio::time::Instant::now();
        serve_connection(Box::new(ours), None, handler, stopped).await;
        assert_eq!(began.elapsed(), FIRST_REQUEST_TIMEOUT);
    }
}
