use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt as _;
use tracing::{debug, error, warn};

use super::access::AccessControl;
use super::config::LiveConfig;
use super::connections::{ConnectionSlot, Connections, Limits, MonitoredStream};
use super::listener::Purpose;
use super::routes::{Private, probes};
use super::{Listener, WebState, admin, live, router};
use crate::tasks::Tasks;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// After this time a connection is closed, once the response in progress is sent.
const LIFETIME: Duration = Duration::from_secs(15 * 60);
/// For that response: a stream would never end.
const LAST_RESPONSE: Duration = Duration::from_secs(30);
/// For requests in progress at shutdown; the agent ends within five seconds.
const GRACE: Duration = Duration::from_secs(3);
/// File descriptors that clients cannot use: for connections from and to the kubelet, the plugin's sockets, the
/// journal, the driver, `/proc`, and one client of each listener, such as a probe.
const RESERVED_DESCRIPTORS: u64 = 24;
/// After a failed accept; usually file descriptors are missing.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How the servers run.
#[derive(Clone, Default)]
pub struct ServerSettings {
    /// For the pages; the admin socket and the probe listener do not use it.
    pub web_config: Option<LiveConfig>,
    /// For each listener.
    pub limits: Limits,
    /// File descriptors that the process may open; `None`: no limit.
    pub descriptor_limit: Option<u64>,
    /// An admin socket on which another process listens. It is served when that process has ended.
    pub awaited: Option<PathBuf>,
}

/// Serves every listener until `servers` are stopped, then finishes the requests in progress. `tasks` update the
/// history and the event streams, and read a changed web configuration.
pub fn start(
    listeners: Vec<Listener>,
    state: WebState,
    settings: ServerSettings,
    tasks: &mut Tasks,
    servers: &mut Tasks,
) {
    tasks.spawn("live page", live::follow(state.clone()));
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
    let (clock, limits) = (state.clock, settings.limits);
    let descriptors = settings.descriptor_limit.map(|limit| limit.saturating_sub(RESERVED_DESCRIPTORS));
    let access = settings.web_config.map(|config| Arc::new(AccessControl::new(config, clock)));
    let commands = admin::router(state.admin.clone());
    let live = state.live.clone();
    let (probes, router) = (probes(state.clone()), router(state));
    let (stop, stopped) = watch::channel(());
    let mut accepting = JoinSet::new();
    let handler_for = |listener: &Listener| {
        let (router, access) = match listener.purpose() {
            Purpose::Pages => (router.clone(), access.clone()),
            Purpose::Probes => (probes.clone(), None),
            Purpose::Private => (router.clone().merge(commands.clone()).layer(Extension(Private)), None),
        };
        let connections = Connections::new(clock, limits.connections);
        ConnectionHandler { router, access, limits, descriptors, connections }
    };
    for listener in listeners {
        let handler = handler_for(&listener);
        accepting.spawn(accept(listener, handler, stopped.clone()));
    }
    let mut awaited = pin!(awaited(settings.awaited));
    let mut shutdown = pin!(shutdown);
    let failed = loop {
        tokio::select! {
            () = &mut shutdown => break None,
            ended = accepting.join_next(), if !accepting.is_empty() => break ended,
            listener = &mut awaited => {
                let handler = handler_for(&listener);
                accepting.spawn(accept(listener, handler, stopped.clone()));
                awaited.set(self::awaited(None));
            }
        }
    };
    drop(stopped);
    drop(stop);
    // Open streams would delay the end.
    live.close();
    let mut outcome = failed.map_or(Ok(()), |ended| ended.map_err(io::Error::other));
    while let Some(ended) = accepting.join_next().await {
        outcome = outcome.and(ended.map_err(io::Error::other));
    }
    outcome
}

/// Pending where there is no such socket.
async fn awaited(path: Option<PathBuf>) -> Listener {
    match path {
        Some(path) => Listener::bind_private_when_free(&path).await,
        None => std::future::pending().await,
    }
}

/// How the connections of one listener are handled.
#[derive(Clone)]
struct ConnectionHandler {
    router: Router,
    access: Option<Arc<AccessControl>>,
    limits: Limits,
    /// A connection with this descriptor number or a higher one is over the limit; `None`: no limit.
    descriptors: Option<u64>,
    connections: Arc<Connections>,
}

async fn accept(listener: Listener, handler: ConnectionHandler, mut stopped: watch::Receiver<()>) {
    let mut connections = JoinSet::new();
    let mut shortage = DescriptorShortage::default();
    loop {
        let accepted = tokio::select! {
            accepted = next(&listener) => accepted,
            _ = stopped.changed() => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                log_end(ended);
                continue;
            }
        };
        match accepted {
            Ok(client) => {
                let is_short = handler.descriptors.is_some_and(|limit| client.descriptor >= limit);
                if shortage.is_full(is_short, connections.len()) && !connections.is_empty() {
                    shortage.log_limited(&listener, connections.len());
                    handler.connections.evict_one();
                    tokio::select! {
                        Some(ended) = connections.join_next() => log_end(ended),
                        _ = stopped.changed() => break,
                    }
                }
                shortage.accepts_again();
                let slot = tokio::select! {
                    slot = handler.connections.slot(client.peer) => slot,
                    _ = stopped.changed() => break,
                };
                let (handler, stopped) = (handler.clone(), stopped.clone());
                connections.spawn(async move {
                    tokio::select! {
                        () = serve_connection(client.stream, &slot, &handler, stopped) => {}
                        () = slot.evicted() => debug!(peer = peer(&slot), "connection closed for another one"),
                    }
                });
            }
            Err(error) if client_gave_up(&error) => {}
            Err(error) => {
                shortage.log_refused(&listener, &error);
                handler.connections.evict_one();
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

/// A listener without file descriptors for its clients: how many it can have, and what of it is logged already.
#[derive(Default)]
struct DescriptorShortage {
    /// Connections for which there were descriptors.
    capacity: Option<usize>,
    is_limited: bool,
    refuses: bool,
}

impl DescriptorShortage {
    /// `is_short`: the descriptor of the new connection, which is the lowest free one, is over the limit. A lower one
    /// may be that of a connection that was just closed; then the count of connections decides.
    fn is_full(&mut self, is_short: bool, connections: usize) -> bool {
        if is_short {
            self.capacity = Some(self.capacity.map_or(connections, |capacity| capacity.min(connections)));
        }
        self.capacity.take_if(|capacity| connections < *capacity / 2);
        is_short || self.capacity.is_some_and(|capacity| connections >= capacity)
    }

    fn log_limited(&mut self, listener: &Listener, connections: usize) {
        if !std::mem::replace(&mut self.is_limited, true) {
            let (listener, reserved) = (listener.address(), RESERVED_DESCRIPTORS);
            warn!(
                %listener,
                connections,
                reserved,
                "the limit of open file descriptors limits the connections: each new one closes another; raise it (ulimit -n)"
            );
        }
    }

    fn log_refused(&mut self, listener: &Listener, error: &io::Error) {
        if !std::mem::replace(&mut self.refuses, true) {
            warn!(listener = %listener.address(), %error, "cannot accept a connection; trying again");
        }
    }

    fn accepts_again(&mut self) {
        self.refuses = false;
    }
}

/// An accepted connection.
struct Client {
    stream: Box<dyn Stream>,
    descriptor: u64,
    /// `None` on a unix socket.
    peer: Option<IpAddr>,
}

async fn next(listener: &Listener) -> io::Result<Client> {
    Ok(match listener {
        Listener::Tcp { listener, .. } => {
            let (stream, peer) = listener.accept().await?;
            let _ = stream.set_nodelay(true); // fails only on a closed connection
            let descriptor = number(&stream);
            Client { stream: Box::new(stream), descriptor, peer: Some(peer.ip().to_canonical()) }
        }
        Listener::Unix { listener, .. } => {
            let (stream, _) = listener.accept().await?;
            let descriptor = number(&stream);
            Client { stream: Box::new(stream), descriptor, peer: None }
        }
    })
}

fn number(stream: &impl AsRawFd) -> u64 {
    u64::try_from(stream.as_raw_fd()).unwrap_or_default()
}

async fn serve_connection(
    stream: Box<dyn Stream>,
    slot: &Arc<ConnectionSlot>,
    handler: &ConnectionHandler,
    mut stopped: watch::Receiver<()>,
) {
    let secured = match &handler.access {
        None => Ok(stream),
        Some(access) => tokio::select! {
            secured = tokio::time::timeout(HANDSHAKE_TIMEOUT, access.secure(stream)) => {
                secured.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            }
            _ = stopped.changed() => return,
        },
    };
    let stream = match secured {
        Ok(stream) => MonitoredStream::new(stream, Arc::clone(slot), handler.limits.write_timeout),
        Err(error) => return debug!(%error, peer = peer(slot), "TLS handshake failed"),
    };
    let service = service_fn(|request: Request<Incoming>| {
        let (router, access, slot) = (handler.router.clone(), handler.access.clone(), Arc::clone(slot));
        let request = request.map(Body::new);
        async move {
            let response = match access {
                Some(access) => access.respond(request, slot.peer, router).await,
                None => router.oneshot(request).await?,
            };
            if response.status().is_success() {
                slot.record_success();
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(handler.limits.read_timeout)
        .max_buf_size(handler.limits.header_bytes)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Ok(ended),
        _ = stopped.changed() => Err("shutdown"),
        () = tokio::time::sleep(LIFETIME) => Err("maximum age reached"),
    };
    let ended = match ended {
        Ok(ended) => ended,
        Err(reason) => {
            debug!(reason, peer = peer(slot), "connection closed after its last response");
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(LAST_RESPONSE, connection).await.unwrap_or(Ok(()))
        }
    };
    // The client disconnected, or does not use HTTP.
    if let Err(error) = ended {
        debug!(%error, peer = peer(slot), "connection failed");
    }
}

fn peer(slot: &ConnectionSlot) -> Option<tracing::field::DisplayValue<IpAddr>> {
    slot.peer.map(tracing::field::display)
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

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::clock::Clock;

    /// The bytes that a client receives whose response takes so long, and when the connection is closed.
    async fn received(takes: Duration) -> (String, Duration) {
        let respond = move || async move {
            tokio::time::sleep(takes).await;
            "the whole body"
        };
        let connections = Connections::new(Clock::start(), 1);
        let slot = connections.slot(None).await;
        let router = Router::new().route("/", get(respond));
        let handler =
            ConnectionHandler { router, access: None, limits: Limits::default(), descriptors: None, connections };
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let (_stop, stopped) = watch::channel(());
        let began = tokio::time::Instant::now();
        let client = async {
            theirs.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
            let mut text = String::new();
            theirs.read_to_string(&mut text).await.unwrap();
            (text, began.elapsed())
        };
        tokio::join!(client, serve_connection(Box::new(ours), &slot, &handler, stopped)).0
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_of_maximum_age_ends_after_its_response() {
        let (text, after) = received(LIFETIME + Duration::from_secs(5)).await;
        assert!(text.ends_with("the whole body") && text.contains("connection: close"), "{text}");
        assert_eq!(after.as_secs(), LIFETIME.as_secs() + 5);
        let (text, after) = received(LIFETIME * 2).await;
        assert_eq!((text.as_str(), after.as_secs()), ("", (LIFETIME + LAST_RESPONSE).as_secs()));
    }
}
