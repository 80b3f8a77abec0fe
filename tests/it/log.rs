//! The log of the real binary: a pipe that is not read delays nothing, and untrusted text cannot start a line.

use crate::support::polling::until;
use crate::support::sick_node::{SickNode, on_gpu, uuid};
use serde_json::json;

const GPU: &str = "nvidia.com/gpu";

#[tokio::test(flavor = "multi_thread")]
async fn a_full_log_pipe_delays_neither_health_nor_shutdown() {
    let mut node = SickNode::healthy("").await;
    node.running.block_log();
    node.inject(3, json!([{"sequence": 1, "xid": 79}]));
    node.until_unhealthy(GPU, &[uuid(3)]).await;
    let page = node.running.metrics();
    assert_eq!(page.value("podmeter_device_healthy", &[&on_gpu(3)]), Some(0.0));
    assert_ne!(node.runs("trainer", GPU).await, uuid(3));
    // The driver hangs too: the messages of both at the shutdown cannot be written.
    node.driver.update(|state| state["hang"] = json!(["*"]));
    node.until_page("withdrawn readings", |page| page.count("podmeter_device_power_watts", &[]) == 0);
    node.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_log_lines_are_counted_and_reported_when_the_pipe_drains() {
    let node = SickNode::healthy("").await;
    assert_eq!(node.running.metrics().value("podmeter_log_lines_dropped_total", &[]), Some(0.0));
    node.running.block_log();
    let dropped = |node: &SickNode| node.running.metrics().value("podmeter_log_lines_dropped_total", &[]).unwrap();
    let count = until("a dropped line", || {
        for _ in 0..50 {
            assert_eq!(node.post("/mark", r#"{"device": "5", "reason": "a test"}"#).status, 200);
            assert_eq!(node.post("/unmark", r#"{"device": "5"}"#).status, 200);
        }
        Some(dropped(&node)).filter(|count| *count > 0.0)
    });
    node.running.unblock_log();
    let log = node.running.until_logged(" log lines dropped\n");
    let line = log.lines().find(|line| line.ends_with(" log lines dropped")).unwrap();
    let (reported, _) = line.rsplit_once(" log lines").unwrap();
    let reported: f64 = reported.rsplit_once(' ').unwrap().1.parse().unwrap();
    // With reports that were dropped themselves.
    assert!(reported >= count, "{line}, {count} dropped");
    assert_eq!(log.matches(" log lines dropped\n").count(), 1);
}
