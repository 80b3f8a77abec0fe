//! The server over a snapshot, and a client that shares only hyper with it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::domain::health::{OperatorOrder, OrderAction, OrderOutcome};
use crate::domain::model::{GpuUuid, Moment, Released, Snapshot, UnixSeconds};
use crate::serve::metrics::dcgm::Generation;
use crate::serve::metrics::tests::fixture;
use crate::serve::web::{
    Admin, AdminCommand, CachedBodies, DriverCommands, EventStreams, ListenAddress, Listener, Purpose, Scrapes,
    ServerSettings, WebState, start,
};
use crate::tasks::{TaskError, Tasks};

pub struct Server {
    pub tcp: std::net::SocketAddr,
    pub snapshots: watch::Sender<Arc<Snapshot>>,
    pub scrapes: Scrapes,
    pub watched: watch::Receiver<BTreeSet<GpuUuid>>,
    pub ready: Arc<AtomicBool>,
    pub tasks: Tasks,
    pub servers: Tasks,
}

impl Server {
    pub async fn start(unix: Option<&Path>) -> Self {
        let mut listeners = vec![Listener::bind(&"127.0.0.1:0".parse().unwrap(), Purpose::Public).await.unwrap()];
        let ListenAddress::Tcp(tcp) = listeners[0].address else { panic!("tcp") };
        if let Some(path) = unix {
            listeners.push(Listener::bind(&ListenAddress::Unix(path.to_owned()), Purpose::Admin).await.unwrap());
        }
        let (snapshots, latest) = watch::channel(Arc::new(fixture::snapshot()));
        let ready = Arc::new(AtomicBool::new(true));
        let flag = Arc::clone(&ready);
        let ready_probe = move || match flag.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err("waiting for the kubelet".to_owned()),
        };
        let (watch, watched) = watch::channel(BTreeSet::new());
        let watch = Arc::new(move |gpus| {
            watch.send_replace(gpus);
            true
        });
        let state = WebState { ready: Arc::new(ready_probe), watch, ..state(latest) };
        let scrapes = state.scrapes.clone();
        let (mut tasks, mut servers) = (Tasks::default(), Tasks::default());
        start(listeners, state, ServerSettings::default(), &mut tasks, &mut servers);
        Self { tcp, snapshots, scrapes, watched, ready, tasks, servers }
    }

    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response<Bytes> {
        self.send(Method::GET, path, headers).await
    }

    pub async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> Response<Bytes> {
        let uri = format!("http://{}{path}", self.tcp).parse().unwrap();
        send(HttpConnector::new(), uri, method, headers, "").await
    }

    pub async fn stop(self) {
        let Self { snapshots, mut tasks, mut servers, .. } = self;
        servers.stop();
        let ended = tokio::time::timeout(Duration::from_secs(10), servers.ended()).await.unwrap();
        assert!(matches!(ended, TaskError::Ended("web server")), "{ended}");
        drop(snapshots);
        let ended = tokio::time::timeout(Duration::from_secs(10), tasks.ended()).await.unwrap();
        assert!(matches!(ended, TaskError::Ended("history and streams")), "{ended}");
    }
}

pub(in crate::serve::web) fn state(snapshots: watch::Receiver<Arc<Snapshot>>) -> WebState {
    WebState {
        watch: Arc::new(|_| true),
        snapshots,
        dcgm_generation: Generation::default(),
        grafana_url: None,
        scrapes: Scrapes::default(),
        clock: Clock::start(),
        healthy: Arc::new(|| Ok(())),
        ready: Arc::new(|| Ok(())),
        governance: Arc::new(|_, request| Ok(format!("{request:?}"))),
        allocations: Arc::new(|query| match query {
            "" => Ok(b"{}".to_vec()),
            "panics" => panic!("for a test"),
            query => Err(query.to_owned()),
        }),
        admin: admin(),
        streams: EventStreams::default(),
        cached_bodies: CachedBodies::default(),
    }
}

/// Fake commands: the driver is released for any time except 13 s; marks are accepted for GPU-1 only.
pub fn admin() -> Admin {
    let driver = DriverCommands {
        release: Arc::new(|duration| {
            let at = |seconds| Moment { unix: UnixSeconds(seconds), ..Moment::default() };
            let released = Released { since: at(1_000.0), until: at(1_000.0 + duration.as_secs_f64()) };
            let held = || Err("held by a call on GPU-1".to_owned());
            Box::pin(async move { if duration.as_secs() == 13 { held() } else { Ok(released) } })
        }),
        resume: Arc::new(|()| Box::pin(async { Ok(()) })),
    };
    let order: AdminCommand<OperatorOrder, OrderOutcome> = Arc::new(|order| {
        Box::pin(async move {
            let marked = match (order.device.as_str(), order.action) {
                ("GPU-1", OrderAction::Mark { reason, lasts }) => {
                    assert_eq!((&*reason, lasts), ("noisy", Some(Duration::from_secs(5400))));
                    true
                }
                ("GPU-1", OrderAction::Unmark) => false,
                (device, _) => return Err(format!("no device {device} has been seen")),
            };
            Ok(OrderOutcome { device: order.device, marked, ..OrderOutcome::default() })
        })
    });
    Admin { driver: Some(driver), order }
}

pub async fn send(
    connector: impl Connect + Clone + Send + Sync + 'static,
    uri: Uri,
    method: Method,
    headers: &[(&str, &str)],
    body: &str,
) -> Response<Bytes> {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let response = client.request(request.body(Full::<Bytes>::from(body.to_owned())).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    Response::from_parts(parts, body.collect().await.unwrap().to_bytes())
}

pub fn header<'response>(response: &'response Response<Bytes>, name: &str) -> &'response str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

pub fn body(response: &Response<Bytes>) -> &str {
    std::str::from_utf8(response.body()).unwrap()
}
