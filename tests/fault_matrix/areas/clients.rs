use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::rig::Rig;
use crate::row::{ALL, Area, Is, Log, Metric, Row, Seen, Text};

const OPEN_FILES: Metric = Metric("process_open_fds", &[], Is::Rises);
const SERVED: Metric = Metric("podmeter_scrape_duration_seconds_count", &[], Is::Rises);

pub const AREA: Area = Area {
    name: "A network client",
    setup: |setup| setup.arguments.extend(["--web-read-timeout=2s".into(), "--web-write-timeout=2s".into()]),
    rows: &[
        Row {
            id: "client-idle-connections",
            happens: "A client opens 100 connections and sends nothing: podmeter accepts 64, and the others when those time out",
            how: |rig| {
                let connections: Vec<_> = (0..100).map(|_| connect(rig)).collect();
                rig.hold(connections);
            },
            seen: Seen {
                metrics: &[SERVED],
                log: Log::Line("the limit of connections is reached"),
                page: Some(Text("/-/healthy", "200 OK")),
            },
            goes_on: ALL,
            undone: "`--web-read-timeout` (2 s here) closes the connections",
            undo: None,
            within: 15,
        },
        Row {
            id: "client-slow-head",
            happens: "Fifty clients send an incomplete request head",
            how: |rig| {
                let begun = (0..50).map(|_| send(rig, b"GET /metrics HTTP/1.1\r\nHost: test\r\nX: "));
                let begun: Vec<_> = begun.collect();
                rig.hold(begun);
            },
            seen: Seen { metrics: &[OPEN_FILES], log: Log::Silent, page: Some(Text("/-/healthy", "200 OK")) },
            goes_on: ALL,
            undone: "`--web-read-timeout` (2 s here) closes the connections",
            undo: None,
            within: 10,
        },
        Row {
            id: "client-unread-answers",
            happens: "Twenty clients request pages and read no response",
            how: |rig| {
                let request = "GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n".repeat(100);
                let unread: Vec<_> = (0..20).map(|_| send(rig, request.as_bytes())).collect();
                rig.hold(unread);
            },
            seen: Seen { metrics: &[OPEN_FILES], log: Log::Silent, page: Some(Text("/-/healthy", "200 OK")) },
            goes_on: ALL,
            undone: "`--web-write-timeout` (2 s here) closes the connections",
            undo: None,
            within: 15,
        },
        Row {
            id: "client-unread-allocations",
            happens: "Sixty clients request 5,000 allocations each and read no response",
            how: |rig| {
                let request = "GET /api/v1/allocations?limit=5000 HTTP/1.1\r\nHost: test\r\n\r\n".repeat(20);
                let unread: Vec<_> = (0..60).map(|_| send(rig, request.as_bytes())).collect();
                rig.hold(unread);
            },
            seen: Seen { metrics: &[OPEN_FILES], log: Log::Silent, page: Some(Text("/-/healthy", "200 OK")) },
            goes_on: ALL,
            undone: "the clients disconnect",
            undo: Some(|_| {}),
            within: 15,
        },
        Row {
            id: "client-stalled-streams",
            happens: "Twenty clients open an event stream and do not read it",
            how: |rig| {
                let request = b"GET /api/v1/stream HTTP/1.1\r\nHost: test\r\n\r\n";
                let stalled: Vec<_> = (0..20).map(|_| send(rig, request)).collect();
                rig.hold(stalled);
            },
            seen: Seen { metrics: &[OPEN_FILES], log: Log::Silent, page: Some(Text("/-/healthy", "200 OK")) },
            goes_on: ALL,
            undone: "the clients disconnect",
            undo: Some(|_| {}),
            within: 10,
        },
        Row {
            id: "client-endless-head",
            happens: "A client sends a request head of 1 MiB and gets 431",
            how: |rig| {
                let head = format!("GET / HTTP/1.1\r\nHost: test\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
                let answer = answer(send(rig, head.as_bytes()));
                // podmeter closes the connection with bytes unread, which can discard the response.
                assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
            },
            seen: Seen { metrics: &[SERVED], log: Log::Silent, page: Some(Text("/-/healthy", "200 OK")) },
            goes_on: ALL,
            undone: "not needed: podmeter closes the connection",
            undo: None,
            within: 10,
        },
        Row {
            id: "client-nonsense",
            happens: "A client sends a TLS handshake, or random bytes, to the plain HTTP port",
            how: |rig| {
                for bytes in [&[0x16, 0x03, 0x01, 0x40, 0x00, 0x01, 0x00, 0x3f, 0xfc, 0x03, 0x03][..], &[0xff; 4096]] {
                    let answer = answer(send(rig, bytes));
                    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{answer}");
                }
            },
            seen: Seen { metrics: &[SERVED], log: Log::Silent, page: Some(Text("/-/healthy", "200 OK")) },
            goes_on: ALL,
            undone: "not needed: podmeter closes the connection",
            undo: None,
            within: 10,
        },
        Row {
            id: "client-admin-requests",
            happens: "A client sends admin requests to the public port and gets 404 or 405",
            how: |rig| {
                for (path, status) in [("/release", 404), ("/mark", 404), ("/metrics", 405)] {
                    let request =
                        format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                    let answer = answer(send(rig, request.as_bytes()));
                    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
                }
            },
            seen: Seen {
                metrics: &[Metric("podmeter_released", &[], Is::Value(0.0)), SERVED],
                log: Log::Silent,
                page: Some(Text("/release", "404 Not Found")),
            },
            goes_on: ALL,
            undone: "not needed: the public port has no admin routes",
            undo: None,
            within: 10,
        },
        Row {
            id: "client-pipelines",
            happens: "A client sends 1,000 requests at once on one connection and gets 1,000 responses",
            how: |rig| {
                let request = "GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n".repeat(999);
                let last = "GET /-/ready HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
                let mut stream = connect(rig);
                let mut writing = stream.try_clone().unwrap();
                let answers = std::thread::scope(|scope| {
                    scope.spawn(move || writing.write_all((request + last).as_bytes()).unwrap());
                    let mut answers = String::new();
                    stream.read_to_string(&mut answers).unwrap();
                    answers
                });
                assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 1000);
            },
            seen: Seen { metrics: &[SERVED], log: Log::Silent, page: Some(Text("/-/healthy", "200 OK")) },
            goes_on: ALL,
            undone: "not needed",
            undo: None,
            within: 10,
        },
    ],
};

fn connect(rig: &Rig) -> TcpStream {
    let stream = TcpStream::connect(rig.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}

fn send(rig: &Rig, bytes: &[u8]) -> TcpStream {
    let mut stream = connect(rig);
    // podmeter may close the connection before everything is sent.
    let _ = stream.write_all(bytes);
    stream
}

fn answer(mut stream: TcpStream) -> String {
    let mut bytes = vec![];
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}
