use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};

use super::*;
use crate::metrics::tests::fixture;
use crate::model::{ContainerRef, HealthTransition, Snapshot, UnhealthyReason};

/// With all that clients read.
fn snapshot() -> Snapshot {
    let mut snapshot = fixture::snapshot();
    let mut health = (*snapshot.health).clone();
    health.transitions.push(HealthTransition {
        number: 1,
        gpu: fixture::PARTITIONED.into(),
        mig: Some(fixture::OTHER_SLICE.into()),
        to_healthy: false,
        reason: UnhealthyReason::Xid,
        detail: "XID 95".into(),
        at: snapshot.at,
        holders: vec![ContainerRef::new("research", "training-0", "main")],
    });
    snapshot.health = Arc::new(health);
    snapshot
}

/// Values in `part` that `whole` lacks or that differ.
fn differences(part: &Value, whole: &Value, place: &str, found: &mut Vec<String>) {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            for (key, value) in part {
                let place = format!("{place}/{key}");
                match whole.get(key) {
                    Some(other) => differences(value, other, &place, found),
                    None => found.push(format!("{place} is not in the response")),
                }
            }
        }
        (Value::Array(part), Value::Array(whole)) if part.len() == whole.len() => {
            for (number, (one, other)) in part.iter().zip(whole).enumerate() {
                differences(one, other, &format!("{place}/{number}"), found);
            }
        }
        _ if part == whole => {}
        _ => found.push(format!("{place}: {part} instead of {whole}")),
    }
}

#[test]
fn every_field_is_one_that_the_agent_writes() {
    let response = serde_json::to_value(crate::api::Node::from(&snapshot())).unwrap();
    let node: Node = serde_json::from_value(response.clone()).unwrap();
    let mut found = vec![];
    differences(&serde_json::to_value(&node).unwrap(), &response, "", &mut found);
    assert!(found.is_empty(), "{found:#?}");
    assert!(node.accounts.iter().any(|account| account.holding.is_some()), "the fixture has holdings");
    assert!(!node.health.transitions.is_empty() && !node.hardware.readings.is_empty());
}

#[test]
fn every_field_of_the_history_is_one_that_the_agent_writes() {
    let mut history = crate::history::History::default();
    history.note(&snapshot());
    let response = serde_json::to_value(crate::api::History::from(&history)).unwrap();
    let client: History = serde_json::from_value(response.clone()).unwrap();
    let mut written = serde_json::to_value(&client).unwrap();
    // Written as a whole number.
    written["interval_seconds"] = response["interval_seconds"].clone();
    for device in written["devices"].as_array_mut().unwrap() {
        device["seconds_ago"] = Value::from(device["seconds_ago"].as_f64().unwrap() as u64);
    }
    let mut found = vec![];
    differences(&written, &response, "", &mut found);
    assert!(found.is_empty(), "{found:#?}");
    assert!(client.devices.iter().any(|past| past.busy_ratio[0].is_some()), "the fixture has readings");
}

#[test]
fn the_test_above_fails_for_a_missing_field() {
    let mut response = serde_json::to_value(crate::api::Node::from(&snapshot())).unwrap();
    let node: Node = serde_json::from_value(response.clone()).unwrap();
    response["accounts"][0].as_object_mut().unwrap().remove("idle_seconds");
    let mut found = vec![];
    differences(&serde_json::to_value(&node).unwrap(), &response, "", &mut found);
    assert_eq!(found, ["/accounts/0/idle_seconds is not in the response"]);
}

#[test]
fn other_json_is_not_a_snapshot_and_that_of_an_older_agent_is() {
    assert!(serde_json::from_str::<Node>("{}").is_err());
    assert!(serde_json::from_str::<Node>("[1]").is_err());
    let old = r#"{"sequence":1,"at":{"monotonic":{"secs":1,"nanos":0},"unix":2.0},"accounts":[{"gpu":"G"}],"new":{}}"#;
    let node: Node = serde_json::from_str(old).unwrap();
    assert_eq!((node.accounts[0].gpu.as_str(), node.accounts[0].figures.idle_seconds), ("G", None));
}

/// A server that responds to any request with these bytes, and then closes the connection or sends nothing.
async fn responding(bytes: Vec<u8>, close: bool) -> Target {
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
    Target::Url(format!("http://{address}").parse().unwrap())
}

async fn refused(bytes: impl Into<Vec<u8>>) -> String {
    node(&responding(bytes.into(), true).await).await.unwrap_err().to_string()
}

#[tokio::test]
async fn a_response_is_read_over_tcp_and_over_a_socket() {
    let body = serde_json::to_string(&crate::api::Node::from(&fixture::snapshot())).unwrap();
    let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    assert_eq!(node(&responding(response.clone().into(), false).await).await.unwrap().node_name, "node-a");
    let until_closed = format!("HTTP/1.1 200 OK\r\n\r\n{body}");
    assert_eq!(node(&responding(until_closed.into(), true).await).await.unwrap().node_name, "node-a");
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
    assert_eq!(node(&Target::Socket(path)).await.unwrap().node_name, "node-a");
}

#[tokio::test]
async fn errors_name_the_next_step() {
    let gone = Target::Socket("/nowhere/podmeter.sock".into());
    let error = node(&gone).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "no agent listens on /nowhere/podmeter.sock: start `podmeter agent`, or give --url http://HOST:9410"
    );
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = node(&Target::Url(format!("http://{closed}").parse().unwrap())).await.unwrap_err().to_string();
    assert!(error.contains("cannot be reached") && error.contains("is the port right?"), "{error}");
    let missing = refused("HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\n\x1b[31mgone").await;
    assert!(missing.contains("responded 404 Not Found (�[31mgone); is that a podmeter agent"), "{missing}");
    let page = refused("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>").await;
    assert!(page.contains("something other than a snapshot"), "{page}");
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
