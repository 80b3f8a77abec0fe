//! The routes over real sockets, with a client that shares only hyper with the server.

mod journal_reads;
mod streams;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::TokioExecutor;
use hyperlocal::UnixConnector;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::{
    Admin, AdminCommand, CachedBodies, DriverCommands, EventStreams, ListenAddress, Listener, Purpose, Scrapes,
    ServerSettings, WebState, start,
};
use crate::clock::Clock;
use crate::domain::health::{OperatorOrder, OrderAction, OrderOutcome};
use crate::domain::model::{GpuUuid, Moment, Released, Snapshot, UnixSeconds};
use crate::serve::metrics::dcgm::Generation;
use crate::serve::metrics::tests::fixture;
use crate::tasks::{TaskError, Tasks};

struct Server {
    tcp: std::net::SocketAddr,
    snapshots: watch::Sender<Arc<Snapshot>>,
    scrapes: Scrapes,
    watched: watch::Receiver<BTreeSet<GpuUuid>>,
    ready: Arc<AtomicBool>,
    tasks: Tasks,
    servers: Tasks,
}

impl Server {
    async fn start(unix: Option<&Path>) -> Self {
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

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response<Bytes> {
        self.send(Method::GET, path, headers).await
    }

    async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> Response<Bytes> {
        let uri = format!("http://{}{path}", self.tcp).parse().unwrap();
        send(HttpConnector::new(), uri, method, headers, "").await
    }

    async fn stop(self) {
        let Self { snapshots, mut tasks, mut servers, .. } = self;
        servers.stop();
        let ended = tokio::time::timeout(Duration::from_secs(10), servers.ended()).await.unwrap();
        assert!(matches!(ended, TaskError::Ended("web server")), "{ended}");
        drop(snapshots);
        let ended = tokio::time::timeout(Duration::from_secs(10), tasks.ended()).await.unwrap();
        assert!(matches!(ended, TaskError::Ended("history and streams")), "{ended}");
    }
}

pub(super) fn state(snapshots: watch::Receiver<Arc<Snapshot>>) -> WebState {
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
fn admin() -> Admin {
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

async fn send(
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

fn header<'response>(response: &'response Response<Bytes>, name: &str) -> &'response str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

fn body(response: &Response<Bytes>) -> &str {
    std::str::from_utf8(response.body()).unwrap()
}

#[tokio::test]
async fn an_invalid_query_is_a_client_error_and_a_panic_a_server_error() {
    let server = Server::start(None).await;
    let status = async |query: &str| server.get(&format!("/api/v1/allocations{query}"), &[]).await.status().as_u16();
    assert_eq!([status("").await, status("?nonsense").await, status("?panics").await], [200, 400, 500]);
    server.stop().await;
}

#[tokio::test]
async fn every_route_responds() {
    let server = Server::start(None).await;
    for (path, content_type, part) in [
        ("/", "text/html; charset=utf-8", "<h1>node-a</h1>"),
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8", "# TYPE podmeter_device_busy_seconds_total counter"),
        ("/metrics/dcgm", "text/plain; version=0.0.4; charset=utf-8", "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\""),
        ("/api/v1/node", "application/json", "\"node_name\":\"node-a\""),
        ("/api/v1/history", "application/json", "\"interval_seconds\":1"),
        ("/-/healthy", "text/plain; charset=utf-8", "healthy\n"),
        ("/-/ready", "text/plain; charset=utf-8", "ready\n"),
        ("/metrics?x=1", "text/plain; version=0.0.4; charset=utf-8", "podmeter_build_info"),
    ] {
        let response = server.get(path, &[]).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        assert_eq!(header(&response, "content-type"), content_type, "{path}");
        assert!(body(&response).contains(part), "{path}: {}", body(&response));
        assert!(!body(&response).contains("1320000000001"), "{path}: a serial number");

        let head = server.send(Method::HEAD, path, &[]).await;
        assert_eq!(head.status(), StatusCode::OK, "HEAD {path}");
        assert!(head.body().is_empty(), "HEAD {path}");
        assert_eq!(header(&head, "content-type"), content_type, "HEAD {path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn the_page_forbids_other_servers() {
    let server = Server::start(None).await;
    let page = server.get("/", &[]).await;
    let policy = header(&page, "content-security-policy");
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
    server.stop().await;
}

#[tokio::test]
async fn refusals_name_the_alternatives() {
    let server = Server::start(None).await;
    let missing = server.get("/metricz", &[]).await;
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    assert!(body(&missing).contains("/metrics "), "{}", body(&missing));

    let missing = server.get("/api/v2/node", &[]).await;
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    assert_eq!(header(&missing, "content-type"), "application/problem+json");
    let problem: serde_json::Value = serde_json::from_slice(missing.body()).unwrap();
    assert_eq!((&problem["status"], &problem["title"]), (&404.into(), &"Not Found".into()));

    for path in ["/", "/metrics", "/api/v1/node", "/-/ready"] {
        let refused = server.send(Method::POST, path, &[]).await;
        assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED, "{path}");
        assert_eq!(header(&refused, "allow"), "GET,HEAD", "{path}");
    }
    let refused = server.send(Method::DELETE, "/api/v1/node", &[]).await;
    assert_eq!(header(&refused, "content-type"), "application/problem+json");
    server.stop().await;
}

#[tokio::test]
async fn not_ready_has_a_reason() {
    let server = Server::start(None).await;
    server.ready.store(false, Ordering::Relaxed);
    let response = server.get("/-/ready", &[]).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(body(&response), "waiting for the kubelet\n");
    assert_eq!(server.get("/-/healthy", &[]).await.status(), StatusCode::OK);
    assert!(body(&server.get("/", &[]).await).contains("waiting for the kubelet"));
    server.stop().await;
}

#[tokio::test]
async fn formats_and_codings_are_negotiated() {
    let server = Server::start(None).await;
    let plain = server.get("/metrics", &[("accept", "application/openmetrics-text")]).await;
    assert_eq!(header(&plain, "content-type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert_eq!(header(&plain, "vary"), "Accept, Accept-Encoding");
    assert!(body(&plain).ends_with("# EOF\n"));

    let open = ("accept", "application/openmetrics-text");
    let gzip = server.get("/metrics", &[open, ("accept-encoding", "gzip")]).await;
    assert_eq!(header(&gzip, "content-encoding"), "gzip");
    let mut unpacked = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(gzip.body().as_ref()), &mut unpacked).unwrap();
    assert_eq!(unpacked, *plain.body());

    let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
    let protobuf = server.get("/metrics", &[("accept", protobuf)]).await;
    assert!(header(&protobuf, "content-type").starts_with("application/vnd.google.protobuf; proto="));
    assert!(String::from_utf8_lossy(protobuf.body()).contains("podmeter_build_info"));

    assert!(server.scrapes.durations().count() >= 3, "scrapes are timed");
    server.stop().await;
}

#[tokio::test]
async fn an_idle_connection_does_not_delay_the_shutdown() {
    let server = Server::start(None).await;
    let mut idle = TcpStream::connect(server.tcp).await.unwrap();
    assert_eq!(server.get("/-/healthy", &[]).await.status(), StatusCode::OK);
    server.stop().await;
    assert_eq!(idle.read(&mut [0; 16]).await.unwrap_or(0), 0, "it is closed");
}

#[tokio::test]
async fn commands_are_accepted_on_the_admin_socket_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admin.sock");
    let server = Server::start(Some(&path)).await;
    let command = async |method: Method, route: &str, body: &str| {
        send(UnixConnector, hyperlocal::Uri::new(&path, route).into(), method, &[], body).await
    };
    let done = command(Method::POST, "/release", r#"{"for": "1m"}"#).await;
    assert_eq!((done.status(), header(&done, "content-type")), (StatusCode::OK, "application/json"));
    let response: serde_json::Value = serde_json::from_slice(done.body()).unwrap();
    assert_eq!(response, serde_json::json!({"released": true, "since": 1_000.0, "until": 1_060.0}));
    let done = command(Method::POST, "/resume", "").await;
    assert_eq!((done.status(), body(&done)), (StatusCode::OK, r#"{"released":false}"#));

    for (method, route, sent, status) in [
        (Method::POST, "/release", r#"{"for": "13s"}"#, StatusCode::SERVICE_UNAVAILABLE),
        (Method::POST, "/release", r#"{"for": "ever"}"#, StatusCode::BAD_REQUEST),
        (Method::GET, "/release", "", StatusCode::METHOD_NOT_ALLOWED),
    ] {
        let refused = command(method, route, sent).await;
        assert_eq!((refused.status(), header(&refused, "content-type")), (status, "application/problem+json"));
    }
    assert_eq!(command(Method::POST, "/release", &" ".repeat(5_000)).await.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let mark = r#"{"device": "GPU-1", "reason": "noisy", "expiry": "1h 30m"}"#;
    let unmark = r#"{"device": "GPU-1"}"#;
    let done = command(Method::POST, "/mark", mark).await;
    assert_eq!(
        (done.status(), body(&done)),
        (StatusCode::OK, r#"{"device":"GPU-1","marked":true,"removed":[],"remaining":[]}"#)
    );
    let done = command(Method::POST, "/unmark", unmark).await;
    assert_eq!(
        (done.status(), body(&done)),
        (StatusCode::OK, r#"{"device":"GPU-1","marked":false,"removed":[],"remaining":[]}"#)
    );
    for (route, sent, text) in [
        ("/mark", unmark, "reason"),
        ("/unmark", mark, "unknown field `reason`"),
        ("/mark", r#"{"device": "GPU-1", "reason": "noisy", "expiry": "soon"}"#, "soon"),
        ("/mark", r#"{"device": "GPU-1", "why": "noisy"}"#, "why"),
        ("/mark", "mark it", "JSON"),
        ("/unmark", r#"{"device": "GPU-9"}"#, "GPU-9"),
        ("/clear-faults", r#"{"device": "GPU-9"}"#, "GPU-9"),
    ] {
        let refused = command(Method::POST, route, sent).await;
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{sent}");
        assert!(body(&refused).contains(text), "{text:?} in {}", body(&refused));
    }
    // Other routes are the same as on other listeners.
    assert_eq!(command(Method::GET, "/-/healthy", "").await.status(), StatusCode::OK);
    assert_eq!(command(Method::GET, "/nowhere", "").await.status(), StatusCode::NOT_FOUND);
    for route in ["/release", "/resume", "/mark", "/unmark", "/clear-faults"] {
        assert_eq!(server.send(Method::POST, route, &[]).await.status(), StatusCode::NOT_FOUND);
    }
    server.stop().await;
}
