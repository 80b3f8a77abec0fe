use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::rig::Rig;
use crate::row::{Area, FaultRow, HEALTHY, Is, Logged, ROW, Reply, Sample};
use crate::support::agent::connect;

const OPEN_FILES: Sample = Sample("process_open_fds", &[], Is::Rises);
const SERVED: Sample = Sample("podmeter_scrape_duration_seconds_count", &[], Is::Rises);

pub const AREA: Area = Area {
    name: "A network client",
    setup: |setup| setup.arguments.extend(["--web-read-timeout=2s".into(), "--web-write-timeout=2s".into()]),
    rows: &[
        FaultRow {
            id: "client-idle-connections",
            happens: "A client opens 100 connections and sends nothing: podmeter accepts 64, and the others when those time out",
            how: |rig| {
                let connections: Vec<_> = (0..100).map(|_| connect(&rig.address())).collect();
                rig.hold(connections);
            },
            metrics: &[SERVED],
            log: Logged::Line("the limit of connections is reached"),
            page: HEALTHY,
            undone: "`--web-read-timeout` (2 s here) closes the connections",
            within: 15,
            ..ROW
        },
        FaultRow {
            id: "client-unread-answers",
            happens: "Twenty clients request pages and read no response",
            how: |rig| {
                let request = "GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n".repeat(100);
                let unread: Vec<_> = (0..20).map(|_| send(rig, request.as_bytes())).collect();
                rig.hold(unread);
            },
            metrics: &[OPEN_FILES],
            page: HEALTHY,
            undone: "`--web-write-timeout` (2 s here) closes the connections",
            within: 15,
            ..ROW
        },
        FaultRow {
            id: "client-stalled-streams",
            happens: "Twenty clients open an event stream and do not read it",
            how: |rig| {
                let request = b"GET /api/v1/stream HTTP/1.1\r\nHost: test\r\n\r\n";
                let stalled: Vec<_> = (0..20).map(|_| send(rig, request)).collect();
                rig.hold(stalled);
            },
            metrics: &[OPEN_FILES],
            page: HEALTHY,
            undone: "the clients disconnect",
            undo: Some(|_| {}),
            ..ROW
        },
        FaultRow {
            id: "client-nonsense",
            happens: "A client sends a TLS handshake, or random bytes, to the plain HTTP port",
            how: |rig| {
                for bytes in [&[0x16, 0x03, 0x01, 0x40, 0x00, 0x01, 0x00, 0x3f, 0xfc, 0x03, 0x03][..], &[0xff; 4096]] {
                    let answer = answer(send(rig, bytes));
                    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{answer}");
                }
            },
            metrics: &[SERVED],
            page: HEALTHY,
            undone: "not needed: podmeter closes the connection",
            ..ROW
        },
        FaultRow {
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
            metrics: &[Sample("podmeter_released", &[], Is::Value(0.0)), SERVED],
            page: Some(Reply("/release", "404 Not Found")),
            undone: "not needed: the public port has no admin routes",
            ..ROW
        },
    ],
};

fn send(rig: &Rig, bytes: &[u8]) -> TcpStream {
    let mut stream = connect(&rig.address());
    // podmeter may close the connection before everything is sent.
    let _ = stream.write_all(bytes);
    stream
}

fn answer(mut stream: TcpStream) -> String {
    let mut bytes = vec![];
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}
