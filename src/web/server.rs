use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::stall::Impatient;
use super::{Listener, WebState, admin, router};

/// Time for a request's head, and for the next one on a kept connection: over a minute, the usual scrape interval, so
/// that scrapers keep theirs.
const HEAD_TIMEOUT: Duration = Duration::from_secs(65);
/// For a request's head; hyper's own 400 KiB times the connections would be more memory than the agent may have.
const BUFFER_BYTES: usize = 32 * 1024;
/// Of any connection: one whose client does not read its answer must not keep its place for ever.
const LIFETIME: Duration = Duration::from_secs(15 * 60);
/// A client that takes none of its answer for so long is let go: it may hold a stream, and those are counted.
const STALL: Duration = Duration::from_secs(30);
/// Per listener. A node has a few scrapers and the kubelet's probes.
const CONNECTIONS: usize = 256;
/// Requests under way get this long at the end; the agent promises to be gone within five seconds.
const GRACE: Duration = Duration::from_secs(3);
/// After a failed accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Serves every listener until `shutdown` is done, then lets requests under way finish. Ends early only with the error
/// of a task that broke.
pub async fn serve(
    listeners: Vec<Listener>,
    state: WebState,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let orders = admin::router(state.admin.clone());
    let live = state.live.clone();
    let router = router(state);
    let (stop, stopped) = watch::channel(());
    let mut accepting = JoinSet::new();
    for listener in listeners {
        let router = if listener.is_private() { router.clone().merge(orders.clone()) } else { router.clone() };
        accepting.spawn(accept(listener, router, stopped.clone()));
    }
    drop(stopped);
    let broke = tokio::select! {
        () = shutdown => None,
        ended = accepting.join_next(), if !accepting.is_empty() => ended,
    };
    drop(stop);
    // They would hold up the end.
    live.close();
    let mut outcome = broke.map_or(Ok(()), |ended| ended.map_err(io::Error::other));
    while let Some(ended) = accepting.join_next().await {
        outcome = outcome.and(ended.map_err(io::Error::other));
    }
    outcome
}

async fn accept(listener: Listener, router: Router, mut stopped: watch::Receiver<()>) {
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
            Ok((stream, place)) => {
                let connection = serve_connection(stream, router.clone(), graceful.watcher());
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

async fn next(
    listener: &Listener,
    places: &Arc<Semaphore>,
) -> io::Result<(Box<dyn Stream>, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let stream: Box<dyn Stream> = match listener {
        Listener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            let _ = stream.set_nodelay(true); // fails only on a connection that is already gone
            Box::new(stream)
        }
        Listener::Unix { listener, .. } => Box::new(listener.accept().await?.0),
    };
    Ok((stream, place))
}

async fn serve_connection(stream: Box<dyn Stream>, router: Router, watcher: Watcher) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(Impatient::new(stream, STALL)), TowerToHyperService::new(router));
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

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}
