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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tower::ServiceExt as _;
use tracing::{debug, error, warn};

use super::config::LiveConfig;
use super::connections::{Connections, Limits, Seat, Watched};
use super::gate::Gate;
use super::listener::Purpose;
use super::routes::{Private, probes};
use super::{Listener, WebState, admin, live, router};
use crate::tasks::Tasks;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// After which a connection is closed with the answer that is under way.
const LIFETIME: Duration = Duration::from_secs(15 * 60);
/// Of that answer: a stream would go on for ever.
const LAST_ANSWER: Duration = Duration::from_secs(30);
/// Requests under way get this long at the end; the agent promises to be gone within five seconds.
const GRACE: Duration = Duration::from_secs(3);
/// File descriptors that clients leave free: for the kubelet's connections and ours to it, the plugin's sockets, the
/// journal, the driver, `/proc`, and one client of each listener, such as a probe.
const RESERVED_DESCRIPTORS: u64 = 24;
/// After a failed accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How to serve.
#[derive(Clone, Default)]
pub struct ServerSettings {
    /// For the pages; the admin socket and the probes have no need of it.
    pub web_config: Option<LiveConfig>,
    /// For each listener.
    pub limits: Limits,
    /// File descriptors that the process may open; `None`: as many as it likes.
    pub descriptor_limit: Option<u64>,
    /// An admin socket that another process listens on. It is served when that process has ended.
    pub awaited: Option<PathBuf>,
}

/// Serves every listener until `servers` are stopped, and then lets requests under way finish. The history and the streams
/// follow the snapshots in one of `tasks`.
pub fn start(
    listeners: Vec<Listener>,
    state: WebState,
    settings: ServerSettings,
    tasks: &mut Tasks,
    servers: &mut Tasks,
) {
    tasks.spawn("live page", live::follow(state.clone()));
    let mut stopping = servers.stopping();
    let stopped = async move { drop(stopping.wait_for(|stop| *stop).await) };
    servers.spawn("web server", async move {
        if let Err(problem) = serve(listeners, state, settings, stopped).await {
            error!(%problem, "the web server failed");
        }
    });
}

/// Until `shutdown` is done. Ends early only with the error of a task that broke.
async fn serve(
    listeners: Vec<Listener>,
    state: WebState,
    settings: ServerSettings,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let (clock, limits) = (state.clock, settings.limits);
    let descriptors = settings.descriptor_limit.map(|limit| limit.saturating_sub(RESERVED_DESCRIPTORS));
    let gate = settings.web_config.map(|config| Arc::new(Gate::new(config, clock)));
    let orders = admin::router(state.admin.clone());
    let live = state.live.clone();
    let (probes, router) = (probes(state.clone()), router(state));
    let (stop, stopped) = watch::channel(());
    let mut accepting = JoinSet::new();
    let doors = |listener: &Listener| {
        let (router, gate) = match listener.purpose() {
            Purpose::Pages => (router.clone(), gate.clone()),
            Purpose::Probes => (probes.clone(), None),
            Purpose::Private => (router.clone().merge(orders.clone()).layer(Extension(Private)), None),
        };
        let connections = Arc::new(Connections::new(clock));
        Door { router, gate, limits, descriptors, connections }
    };
    for listener in listeners {
        let door = doors(&listener);
        accepting.spawn(accept(listener, door, stopped.clone()));
    }
    let mut awaited = pin!(awaited(settings.awaited));
    let mut shutdown = pin!(shutdown);
    let broke = loop {
        tokio::select! {
            () = &mut shutdown => break None,
            ended = accepting.join_next(), if !accepting.is_empty() => break ended,
            listener = &mut awaited => {
                let door = doors(&listener);
                accepting.spawn(accept(listener, door, stopped.clone()));
                awaited.set(self::awaited(None));
            }
        }
    };
    drop(stopped);
    drop(stop);
    // They would hold up the end.
    live.close();
    let mut outcome = broke.map_or(Ok(()), |ended| ended.map_err(io::Error::other));
    while let Some(ended) = accepting.join_next().await {
        outcome = outcome.and(ended.map_err(io::Error::other));
    }
    outcome
}

/// For ever where none is waited for.
async fn awaited(path: Option<PathBuf>) -> Listener {
    match path {
        Some(path) => Listener::bind_private_when_free(&path).await,
        None => std::future::pending().await,
    }
}

/// What a listener's clients come to.
#[derive(Clone)]
struct Door {
    router: Router,
    gate: Option<Arc<Gate>>,
    limits: Limits,
    /// That may be open while a client comes; `None`: no limit.
    descriptors: Option<u64>,
    connections: Arc<Connections>,
}

async fn accept(listener: Listener, door: Door, mut stopped: watch::Receiver<()>) {
    let places = Arc::new(Semaphore::new(door.limits.connections));
    let mut connections = JoinSet::new();
    let mut shortage = Shortage::default();
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
                let is_short = door.descriptors.is_some_and(|limit| client.descriptor >= limit);
                if shortage.has_no_room(is_short, connections.len()) && !connections.is_empty() {
                    shortage.log_limited(&listener, connections.len());
                    door.connections.make_room();
                    tokio::select! {
                        Some(ended) = connections.join_next() => log_end(ended),
                        _ = stopped.changed() => break,
                    }
                }
                shortage.accepts_again();
                let Some(place) = place(&places, &door.connections, &mut stopped).await else { break };
                let sitting =
                    Sitting { connections: Arc::clone(&door.connections), seat: door.connections.sit(client.peer) };
                let (door, stopped) = (door.clone(), stopped.clone());
                connections.spawn(async move {
                    let seat = &sitting.seat;
                    tokio::select! {
                        () = serve_connection(client.stream, seat, &door, stopped) => {}
                        () = seat.must_leave() => debug!(peer = peer(seat), "a connection made room for another"),
                    }
                    drop(sitting);
                    drop(place);
                });
            }
            Err(error) if client_gave_up(&error) => {}
            Err(error) => {
                shortage.log_refused(&listener, &error);
                door.connections.make_room();
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
        warn!("connections that did not end in time are cut");
    }
    connections.shutdown().await;
}

/// What has been logged of a listener that lacks file descriptors: each once, however many clients come.
#[derive(Default)]
struct Shortage {
    /// Connections that there was room for.
    room: Option<usize>,
    is_limited: bool,
    refuses: bool,
}

impl Shortage {
    /// `is_short`: the new connection's number, the lowest free one, is over the limit, so that so many are open. A lower
    /// number may be that of a connection that has just made room, and then the count tells.
    fn has_no_room(&mut self, is_short: bool, connections: usize) -> bool {
        if is_short {
            self.room = Some(self.room.map_or(connections, |room| room.min(connections)));
        }
        self.room.take_if(|room| connections < *room / 2);
        is_short || self.room.is_some_and(|room| connections >= room)
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

/// A connection that was accepted.
struct Client {
    stream: Box<dyn Stream>,
    descriptor: u64,
    /// `None` on a unix socket.
    peer: Option<IpAddr>,
}

/// A seat that is left however the connection ends.
struct Sitting {
    connections: Arc<Connections>,
    seat: Arc<Seat>,
}

impl Drop for Sitting {
    fn drop(&mut self) {
        self.connections.stand_up(&self.seat);
    }
}

async fn next(listener: &Listener) -> io::Result<Client> {
    Ok(match listener {
        Listener::Tcp { listener, .. } => {
            let (stream, peer) = listener.accept().await?;
            let _ = stream.set_nodelay(true); // fails only on a connection that is already gone
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

/// One of the places, once somebody has left where all are taken; `None` at the end.
async fn place(
    places: &Arc<Semaphore>,
    connections: &Connections,
    stopped: &mut watch::Receiver<()>,
) -> Option<OwnedSemaphorePermit> {
    if let Ok(place) = Arc::clone(places).try_acquire_owned() {
        return Some(place);
    }
    connections.make_room();
    tokio::select! {
        place = Arc::clone(places).acquire_owned() => place.ok(),
        _ = stopped.changed() => None,
    }
}

async fn serve_connection(stream: Box<dyn Stream>, seat: &Arc<Seat>, door: &Door, mut stopped: watch::Receiver<()>) {
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
        Ok(stream) => Watched::new(stream, Arc::clone(seat), door.limits.write_timeout),
        Err(error) => return debug!(%error, peer = peer(seat), "no TLS came about"),
    };
    let answering = service_fn(|request: Request<Incoming>| {
        let (router, gate, seat) = (door.router.clone(), door.gate.clone(), Arc::clone(seat));
        let request = request.map(Body::new);
        async move {
            let response = match gate {
                Some(gate) => gate.answer(request, seat.peer, router).await,
                None => router.oneshot(request).await?,
            };
            if response.status().is_success() {
                seat.was_answered();
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(door.limits.read_timeout)
        .max_buf_size(door.limits.header_bytes)
        .serve_connection(TokioIo::new(stream), answering);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Ok(ended),
        _ = stopped.changed() => Err("the agent ends"),
        () = tokio::time::sleep(LIFETIME) => Err("it reached its age"),
    };
    let ended = match ended {
        Ok(ended) => ended,
        Err(reason) => {
            debug!(reason, peer = peer(seat), "a connection is closed after its answer");
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(LAST_ANSWER, connection).await.unwrap_or(Ok(()))
        }
    };
    // A client that goes away or speaks something else: its affair.
    if let Err(error) = ended {
        debug!(%error, peer = peer(seat), "a connection ended badly");
    }
}

fn peer(seat: &Seat) -> Option<tracing::field::DisplayValue<IpAddr>> {
    seat.peer.map(tracing::field::display)
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

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::clock::Clock;

    /// What a client hears that asks for something which takes so long, and after what time the connection is closed.
    async fn heard(takes: Duration) -> (String, Duration) {
        let answer = move || async move {
            tokio::time::sleep(takes).await;
            "all of it"
        };
        let connections = Arc::new(Connections::new(Clock::start()));
        let seat = connections.sit(None);
        let router = Router::new().route("/", get(answer));
        let door = Door { router, gate: None, limits: Limits::default(), descriptors: None, connections };
        let (ours, mut theirs) = tokio::io::duplex(1024);
        let (_stop, stopped) = watch::channel(());
        let began = tokio::time::Instant::now();
        let client = async {
            theirs.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n").await.unwrap();
            let mut text = String::new();
            theirs.read_to_string(&mut text).await.unwrap();
            (text, began.elapsed())
        };
        tokio::join!(client, serve_connection(Box::new(ours), &seat, &door, stopped)).0
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_at_its_age_but_not_in_the_middle_of_an_answer() {
        let (text, after) = heard(LIFETIME + Duration::from_secs(5)).await;
        assert!(text.ends_with("all of it") && text.contains("connection: close"), "{text}");
        assert_eq!(after.as_secs(), LIFETIME.as_secs() + 5);
        let (text, after) = heard(LIFETIME * 2).await;
        assert_eq!((text.as_str(), after.as_secs()), ("", (LIFETIME + LAST_ANSWER).as_secs()));
    }
}
