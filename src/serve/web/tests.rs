//! The routes over real sockets, with a client that shares only hyper with the server.

mod journal_reads;
mod served;
mod streams;

use std::sync::atomic::Ordering;

use hyper::{Method, StatusCode};
use hyperlocal::UnixConnector;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

pub(super) use self::served::state;
use self::served::*;

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
