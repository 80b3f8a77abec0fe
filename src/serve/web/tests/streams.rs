//! Event streams over connections.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::Server;
use crate::domain::model::GpuUuid;
use crate::serve::metrics::tests::fixture;

/// A connection with a stream, and the head of the response.
async fn subscribe(server: &Server, path: &str) -> (tokio::io::BufReader<TcpStream>, String) {
    let mut stream = TcpStream::connect(server.tcp).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: node\r\n\r\n").as_bytes()).await.unwrap();
    let mut stream = tokio::io::BufReader::new(stream);
    let head = until(&mut stream, "\r\n\r\n").await;
    (stream, head)
}

/// The text up to and including `end`.
async fn until(stream: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        let byte = tokio::time::timeout(Duration::from_secs(10), stream.read_u8()).await;
        text.push(byte.unwrap_or_else(|_| panic!("no {end:?} after {}", String::from_utf8_lossy(&text))).unwrap());
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn streams_have_an_event_per_snapshot_and_end_with_the_server() {
    let server = Server::start(None).await;
    for (path, event, part, sequence) in
        [("/live", "page", "<h2 id=\"devices\"", 42), ("/api/v1/stream", "node", "{\"sequence\":43,", 43)]
    {
        let (mut stream, head) = subscribe(&server, path).await;
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("content-type: text/event-stream\r\n"), "{head}");
        until(&mut stream, "retry: 1000\n\n").await;
        let first = until(&mut stream, &format!("event: {event}\nid: {sequence}\n")).await;
        assert!(!first.contains("data:"), "the first event comes at once: {first}");
        assert!(until(&mut stream, "data: ").await.ends_with("data: "));
        until(&mut stream, part).await;
        let mut next = fixture::snapshot();
        next.sequence = sequence + 1;
        next.at.monotonic = next.at.monotonic + Duration::from_secs(next.sequence);
        server.snapshots.send_replace(Arc::new(next));
        until(&mut stream, &format!("id: {}\n", sequence + 1)).await;
    }
    let (mut stream, _) = subscribe(&server, "/live").await;
    server.stop().await;
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert!(rest.ends_with(b"0\r\n\r\n"), "ended regularly");
}

#[tokio::test]
async fn the_gpus_of_an_open_page_or_of_a_reader_are_watched_until_it_leaves() {
    let server = Server::start(None).await;
    let mut watched = server.watched.clone();
    let mut becomes = async |gpus: &[&str]| {
        let expected = gpus.iter().map(|gpu| GpuUuid::from(*gpu)).collect();
        let is_watched = watched.wait_for(|watched| *watched == expected);
        tokio::time::timeout(Duration::from_secs(10), is_watched).await.unwrap().unwrap();
    };
    let all: Vec<GpuUuid> = fixture::snapshot().hardware.inventory.gpus.keys().cloned().collect();
    let all: Vec<&str> = all.iter().map(GpuUuid::as_str).collect();
    let (page, _) = subscribe(&server, &format!("/live?filter={}", fixture::WHOLE)).await;
    becomes(&[fixture::WHOLE]).await;
    let (reader, _) = subscribe(&server, "/api/v1/stream").await;
    becomes(&all).await;
    drop((page, reader));
    let leave = async || {
        // The connections end when the next event cannot be written.
        for sequence in 43.. {
            let mut next = fixture::snapshot();
            (next.sequence, next.at.monotonic) = (sequence, next.at.monotonic + Duration::from_secs(sequence));
            server.snapshots.send_replace(Arc::new(next));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = leave() => {}
        () = becomes(&[]) => {}
    }
    server.stop().await;
}

/// With gzip, as browsers request it: the whole page, then what has changed since, then the end.
#[tokio::test]
async fn a_stream_sends_only_what_has_changed_and_is_valid_gzip() {
    let server = Server::start(None).await;
    let mut stream = TcpStream::connect(server.tcp).await.unwrap();
    stream.write_all(b"GET /live HTTP/1.0\r\naccept-encoding: gzip\r\n\r\n").await.unwrap();
    let mut stream = tokio::io::BufReader::new(stream);
    let head = until(&mut stream, "\r\n\r\n").await;
    assert!(head.contains("content-encoding: gzip\r\n") && head.contains("vary: Accept-Encoding\r\n"), "{head}");
    let mut unpacker = flate2::write::GzDecoder::new(Vec::new());
    let mut read_until = async |part: &str| loop {
        let bytes = tokio::time::timeout(Duration::from_secs(10), stream.fill_buf()).await.unwrap().unwrap();
        if bytes.is_empty() {
            return unpacker.get_ref().clone();
        }
        let count = bytes.len();
        Write::write_all(&mut unpacker, bytes).unwrap();
        stream.consume(count);
        Write::flush(&mut unpacker).unwrap();
        if String::from_utf8_lossy(unpacker.get_ref()).ends_with(part) {
            return std::mem::take(unpacker.get_mut());
        }
    };
    let whole = String::from_utf8(read_until("\n\n").await).unwrap();
    let whole =
        if whole.contains("event: page") { whole } else { String::from_utf8(read_until("\n\n").await).unwrap() };
    assert!(whole.contains("id: 42\n") && !whole.contains("data-same"), "{whole}");
    let mut next = fixture::snapshot();
    (next.sequence, next.at.monotonic) = (43, next.at.monotonic + Duration::from_secs(1));
    server.snapshots.send_replace(Arc::new(next));
    let change = String::from_utf8(read_until("\n\n").await).unwrap();
    assert!(change.contains("id: 43\n"), "{change}");
    let card = format!("<li data-key=\"{}\" data-same></li>", fixture::LOST);
    assert!(change.contains(&card), "{change}");
    server.stop().await;
    assert_eq!(read_until("\n\n").await, b"");
    unpacker.finish().expect("the end of the stream is that of the gzip");
}
