use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tower::ServiceExt as _;
use tracing::{debug, warn};

use super::config::LiveConfig;
use super::gate::Gate;
use super::listener::Purpose;
use super::routes::probes;
use super::{Listener, WebState, admin, router};

/// Time for a request's head, and for the next one on a kept connection: over a minute, the usual scrape interval, so
/// that scrapers keep theirs.
const HEAD_TIMEOUT: Duration = Duration::from_secs(65);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// For a request's head; hyper's own 400 KiB times the connections would be more memory than the agent may have.
const BUFFER_BYTES: usize = 32 * 1024;
/// Of any connection: one whose client does not read its answer must not keep its place for ever.
const LIFETIME: Duration = Duration::from_secs(15 * 60);
/// Per listener. A node has a few scrapers and the kubelet's probes.
const CONNECTIONS: usize = 256;
/// Requests under way get this long at the end; the agent promises to be gone within five seconds.
const GRACE: Duration = Duration::from_secs(3);
/// After a failed accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How to serve.
#[derive(Clone, Default)]
pub struct ServerSettings {
    /// For the pages; the admin socket and the probes have no need of it.
    pub web_config: Option<LiveConfig>,
}

/// Serves every listener until `shutdown` is done, then lets requests under way finish. Ends early only with the error
/// of a task that broke.
pub async fn serve(
    listeners: Vec<Listener>,
    state: WebState,
    settings: ServerSettings,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let gate = settings.web_config.map(|config| Arc::new(Gate::new(config, state.clock)));
    let orders = admin::router(state.admin.clone());
    let (probes, router) = (probes(state.clone()), router(state));
    let (stop, stopped) = watch::channel(());
    let mut accepting = JoinSet::new();
    for listener in listeners {
        let door = match listener.purpose() {
            Purpose::Pages => Door { router: router.clone(), gate: gate.clone() },
            Purpose::Probes => Door { router: probes.clone(), gate: None },
            Purpose::Private => Door { router: router.clone().merge(orders.clone()), gate: None },
        };
        accepting.spawn(accept(listener, door, stopped.clone()));
    }
    drop(stopped);
    let broke = tokio::select! {
        () = shutdown => None,
        ended = accepting.join_next(), if !accepting.is_empty() => ended,
    };
    drop(stop);
    let mut outcome = broke.map_or(Ok(()), |ended| ended.map_err(io::Error::other));
    while let Some(ended) = accepting.join_next().await {
        outcome = outcome.and(ended.map_err(io::Error::other));
    }
    outcome
}

/// What a listener's clients come to.
#[derive(Clone)]
struct Door {
    router: Router,
    gate: Option<Arc<Gate>>,
}

async fn accept(listener: Listener, door: Door, mut stopped: watch::Receiver<()>) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = next(&listener, &places) => accepted,
            _ = stopped.changed() => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                log_end(ended);
                continue;
            }
        };
        match accepted {
            Ok((client, place)) => {
                let connection = serve_connection(client, door.clone(), graceful.watcher(), stopped.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            Err(error) if client_gave_up(&error) => {}
            Err(error) => {
                warn!(listener = %listener.address(), %error, "cannot accept a connection; trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(GRACE, graceful.shutdown()).await.is_err() {
        warn!("connections that did not end in time are cut");
    }
    connections.shutdown().await;
}

/// A connection that was accepted.
struct Client {
    stream: Box<dyn Stream>,
    /// `None` on a unix socket.
    peer: Option<IpAddr>,
}

async fn next(listener: &Listener, places: &Arc<Semaphore>) -> io::Result<(Client, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let client = match listener {
        Listener::Tcp { listener, .. } => {
            let (stream, peer) = listener.accept().await?;
            let _ = stream.set_nodelay(true); // fails only on a connection that is already gone
            Client { stream: Box::new(stream), peer: Some(peer.ip().to_canonical()) }
        }
        Listener::Unix { listener, .. } => Client { stream: Box::new(listener.accept().await?.0), peer: None },
    };
    Ok((client, place))
}

async fn serve_connection(client: Client, door: Door, watcher: Watcher, mut stopped: watch::Receiver<()>) {
    let Client { stream, peer } = client;
    let secured = match &door.gate {
        None => Ok(stream),
        Some(gate) => tokio::select! {
            secured = tokio::time::timeout(HANDSHAKE_TIMEOUT, gate.secure(stream)) => {
                secured.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            }
            _ = stopped.changed() => return,
        },
    };
    let stream = match secured {
        Ok(stream) => stream,
        Err(error) => return debug!(%error, peer = peer.map(tracing::field::display), "no TLS came about"),
    };
    let answering = service_fn(move |request: Request<Incoming>| {
        let Door { router, gate } = door.clone();
        let request = request.map(Body::new);
        async move {
            match gate {
                Some(gate) => Ok::<_, Infallible>(gate.answer(request, peer, router).await),
                None => router.oneshot(request).await,
            }
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), answering);
    match tokio::time::timeout(LIFETIME, watcher.watch(connection)).await {
        Ok(Ok(())) => {}
        // A client that goes away or speaks something else: its affair.
        Ok(Err(error)) => debug!(%error, "a connection ended badly"),
        Err(_) => debug!("a connection reached its age and was closed"),
    }
}

fn client_gave_up(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

fn log_end(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        warn!(%error, "a connection's task broke; please report this");
    }
}

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}
