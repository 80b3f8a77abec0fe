use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};

use super::*;
use crate::domain::model::Snapshot;
use crate::serve::api::HistoryResponse;
use crate::serve::metrics::tests::fixture;

async fn node(target: &AgentTarget) -> Result<Snapshot, ClientError> {
    json(target, "/api/v1/node").await
}

#[test]
fn other_json_is_not_a_snapshot() {
    for text in ["{}", "[1]", r#"{"sequence":1,"at":{"monotonic":{"secs":1,"nanos":0},"unix":2.0}}"#] {
        assert!(serde_json::from_str::<Snapshot>(text).is_err(), "{text}");
    }
}

#[test]
fn the_json_that_is_written_is_read() {
    let written = serde_json::to_value(fixture::snapshot()).unwrap();
    let read = serde_json::to_value(serde_json::from_value::<Snapshot>(written.clone()).unwrap()).unwrap();
    for part in ["at", "health", "accounts", "unattributed", "unallocated_uses", "violations", "journal", "overview"] {
        assert_eq!(read[part], written[part], "{part}");
    }
    let mut history = crate::domain::history::NodeHistory::default();
    history.add(&fixture::snapshot());
    let history = serde_json::to_value(HistoryResponse::from(&history)).unwrap();
    assert_eq!(
        serde_json::to_value(serde_json::from_value::<HistoryResponse>(history.clone()).unwrap()).unwrap(),
        history
    );
}

/// A server that responds to any request with these bytes, and then closes the connection or sends nothing.
async fn responding(bytes: Vec<u8>, close: bool) -> AgentTarget {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(&bytes).await;
            if !close {
                let _ = stream.read(&mut request).await;
            }
        }
    });
    AgentTarget::Url(format!("http://{address}").parse().unwrap())
}

async fn refused(bytes: impl Into<Vec<u8>>) -> String {
    node(&responding(bytes.into(), true).await).await.unwrap_err().to_string()
}

#[tokio::test]
async fn a_response_is_read_over_tcp_and_over_a_socket() {
    let body = serde_json::to_string(&fixture::snapshot()).unwrap();
    let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    assert_eq!(node(&responding(response.clone().into(), false).await).await.unwrap().node_name, "node-a".into());
    let until_closed = format!("HTTP/1.1 200 OK\r\n\r\n{body}");
    assert_eq!(node(&responding(until_closed.into(), true).await).await.unwrap().node_name, "node-a".into());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admin.sock");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        let length = stream.read(&mut request).await.unwrap();
        assert!(request[..length].starts_with(b"GET /api/v1/node HTTP/1.1\r\n"));
        stream.write_all(response.as_bytes()).await.unwrap();
    });
    assert_eq!(node(&AgentTarget::Socket(path)).await.unwrap().node_name, "node-a".into());
}

#[tokio::test]
async fn errors_name_the_next_step() {
    let gone = AgentTarget::Socket("/nowhere/podmeter.sock".into());
    let error = node(&gone).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "unix:/nowhere/podmeter.sock cannot be reached: No such file or directory (os error 2); start `podmeter agent`, \
         run this as root, or give --url http://HOST:9410"
    );
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = node(&AgentTarget::Url(format!("http://{closed}").parse().unwrap())).await.unwrap_err().to_string();
    assert!(error.contains("cannot be reached") && error.contains("is the port right?"), "{error}");
    let missing = refused("HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\n\x1b[31mgone").await;
    assert!(missing.contains("responded 404 Not Found (�[31mgone); is that a podmeter agent"), "{missing}");
    let page = refused("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>").await;
    assert!(page.contains("other JSON than expected"), "{page}");
    let cut = refused("HTTP/1.1 200 OK\r\ncontent-length: 60\r\n\r\n{").await;
    assert!(cut.contains("ended the connection"), "{cut}");
    for garbage in ["\0\0\0\0", "SSH-2.0-OpenSSH_9.2\r\n", ""] {
        assert!(refused(garbage).await.contains("ended the connection"), "{garbage:?}");
    }
}

#[tokio::test]
async fn a_condition_of_another_time_is_none() {
    for (written, is_valid) in [(1000, true), (880, false), (1120, false)] {
        let until = written + 60;
        let body = format!(
            r#"{{"schema":"podmeter.condition/v1","status":"healthy","written":{written},"until":{until},
            "node":"a","message":"a","healthy_gpus":1,"devices":[]}}"#
        );
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let condition = condition(&responding(response.into(), true).await, 1000.0).await;
        assert_eq!(condition.is_ok(), is_valid, "{condition:?}");
    }
}

#[tokio::test]
async fn a_response_is_limited_in_size() {
    let mut response = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
    response.resize((33 << 20) + 100, b' ');
    let error = refused(response).await;
    assert!(error.contains("more than 32 MiB"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_times_out() {
    let silent = responding(vec![], false).await;
    let error = tokio::time::timeout(Duration::from_secs(60), node(&silent)).await.unwrap().unwrap_err().to_string();
    assert!(error.contains("did not respond within 5 s"), "{error}");
}
