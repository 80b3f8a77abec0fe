//! Device health, end to end: from a driver library loaded like the real one to the kubelet, the page and the log of
//! the started binary, and back.

use crate::support::{agent, logfmt};
use std::collections::BTreeMap;

use crate::support::sick_node::{GPU, MIXED, QUICK, SickNode, eight_gpus, mig, on_gpu, partitioned, slot, uuid};
use serde_json::{Value, json};

const SLICE: &str = "nvidia.com/mig-1g.10gb";
const FOUR_SLOTS: &str = "devicePlugin: {resources: [{kind: nvidia, sharing: {timeSlicing: {replicas: 4}}}]}\n";

#[tokio::test(flavor = "multi_thread")]
async fn an_xid_79_takes_every_slot_of_its_gpu_and_a_reload_brings_them_back() {
    let node = SickNode::healthy(&format!("{FOUR_SLOTS}{QUICK}")).await;
    let holder = node.runs("trainer", GPU).await;
    let sick = (0..8).find(|gpu| holder.starts_with(&uuid(*gpu))).unwrap();
    node.until_page("the holder", |page| page.count("podmeter_container_allocation_info", &["pod=\"trainer\""]) == 1);
    node.inject(sick, json!([{"sequence": 1, "xid": 79}]));
    node.until_unhealthy(GPU, &(0..4).map(|number| slot(sick, number)).collect::<Vec<_>>()).await;

    let page = node.until_page("an unhealthy GPU", |page| {
        page.value("podmeter_device_unhealthy_reason", &[&on_gpu(sick), "reason=\"xid\""]) == Some(1.0)
            && page.value("podmeter_node_devices", &["state=\"schedulable\""]) == Some(7.0)
    });
    let counted =
        |class: &str| page.value("podmeter_xid_errors_total", &[&on_gpu(sick), &format!("class=\"{class}\"")]);
    assert_eq!((counted("node_reboot"), counted("application")), (Some(1.0), Some(0.0)));
    assert_eq!(page.value("podmeter_device_healthy", &[&on_gpu(sick)]), Some(0.0));
    assert_eq!(page.value("podmeter_node_devices", &["state=\"healthy\""]), Some(7.0));
    let transition = &node.transitions()[0];
    assert_eq!((transition["gpu"].as_str(), transition["reason"].as_str()), (Some(uuid(sick).as_str()), Some("xid")));
    assert_eq!(transition["holders"], json!([{"namespace": "team", "pod": "trainer", "container": "main"}]));
    let logged = |line: &str| {
        ["msg=unhealthy ", uuid(sick).as_str(), "team/trainer", "XID 79"].iter().all(|word| line.contains(word))
    };
    node.until_page("the line in the log", |_| node.running.log().lines().any(logged));

    node.reload();
    node.until_unhealthy(GPU, &[]).await;
    node.until_page("readings", |page| page.count("podmeter_device_power_watts", &[]) == 8);
    node.assert_others_stay_healthy(&[sick]);
    assert_eq!(node.kubelet.dropped_devices(), []);
}

/// Each GPU was "healthy again; it was: it has not been checked yet", in the log, the events and the counter.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_check_is_no_recovery() {
    let mut machine = eight_gpus();
    machine["gpus"][5]["delay"] = json!({"nvmlDeviceGetFieldValues": 200});
    let node = SickNode::start(machine, QUICK).await;
    node.until_unhealthy(GPU, &[]).await;
    let log = node.running.until_logged("GPUs healthy");
    assert_eq!((log.matches("\"8 GPUs healthy\"").count(), log.matches("msg=healthy").count()), (1, 0), "{log}");
    assert_eq!(node.transitions(), Vec::<Value>::new());
    let page = node.running.metrics();
    assert!(page.samples("podmeter_plugin_health_transitions_total", &[]).all(|(_, count)| count == 0.0));
    node.inject(1, json!([{"sequence": 1, "xid": 79}]));
    node.until_page("one that became unhealthy", |page| {
        page.value("podmeter_plugin_health_transitions_total", &["to=\"unhealthy\"", "reason=\"xid\""]) == Some(1.0)
    });
}

/// `mark` and `unmark` made it schedulable again, and no answer named the XID.
#[tokio::test(flavor = "multi_thread")]
async fn after_an_xid_79_an_unmark_leaves_the_gpu_unhealthy_and_clear_faults_does_not() {
    let node = SickNode::healthy(QUICK).await;
    node.inject(1, json!([{"sequence": 1, "xid": 79}]));
    node.until_unhealthy(GPU, &[uuid(1)]).await;
    let socket = node.kubelet.root.path().join("admin.sock");
    let command = |arguments: &[&str]| {
        let (code, text) = agent::ended(&[arguments, &["1", "--admin-socket", socket.to_str().unwrap()]].concat());
        assert_eq!(code, 0, "{text}");
        text
    };
    command(&["mark", "--reason", "in repair"]);
    let text = command(&["unmark"]);
    let removed = format!("Removed from {}: marked by an operator: in repair.\n", uuid(1));
    let remains = format!("{} is still unhealthy: XID 79 (the GPU has fallen off the bus); ", uuid(1));
    assert!(text.contains(&removed) && text.contains(&remains) && text.contains("podmeter clear-faults"), "{text}");
    let text = command(&["unmark"]);
    assert!(text.contains("has no mark: nothing changes.\n") && text.contains(&remains), "{text}");
    node.until_unhealthy(GPU, &[uuid(1)]).await;
    let text = command(&["clear-faults"]);
    assert!(text.contains(&format!("Removed from {}: XID 79", uuid(1))) && text.contains("No cause is left"), "{text}");
    node.until_unhealthy(GPU, &[]).await;
    assert!(command(&["clear-faults"]).contains("nothing changes"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_xid_of_an_instance_takes_that_mig_device_and_one_of_the_gpu_takes_all() {
    let node = SickNode::start(partitioned(), &format!("{MIXED}{QUICK}")).await;
    node.until_unhealthy(SLICE, &[]).await;
    node.inject(1, json!([{"sequence": 1, "xid": 48, "gpu_instance": 2, "compute_instance": 0}]));
    let uuids = [0, 1, 2].map(|position| mig(1, position));
    node.until_unhealthy(SLICE, &uuids[1..2]).await;
    node.inject(1, json!([{"sequence": 2, "xid": 119}]));
    node.until_unhealthy(SLICE, &uuids).await;
    let changed: Vec<Value> = node.transitions().iter().map(|transition| transition["mig"].clone()).collect();
    assert_eq!(changed.iter().filter(|mig| mig.as_str() == Some(uuids[1].as_str())).count(), 1, "{changed:?}");
    // The driver requires a reset, gets it, and reports that.
    node.recovery_action(1, 1, 3);
    node.until_page("the action", |page| {
        page.value("podmeter_device_recovery_action", &[&on_gpu(1), "action=\"gpu_reset\""]) == Some(1.0)
    });
    node.recovery_action(1, 0, 4);
    node.until_unhealthy(SLICE, &[]).await;
    node.assert_others_stay_healthy(&[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_a_hundred_thousand_events_is_counted_to_the_last_and_leaves_no_busy_loop() {
    let node = SickNode::healthy(QUICK).await;
    let lists = node.kubelet.received(GPU).len();
    node.inject(1, json!([{"sequence": 1, "xid": 45, "count": 100_000}]));
    let counted =
        |page: &agent::Page| page.value("podmeter_xid_errors_total", &[&on_gpu(1), "class=\"corroborating\""]);
    node.until_page("the storm", |page| counted(page) >= Some(100_000.0));
    node.inject(2, json!([{"sequence": 1, "xid": 13}]));
    let page = node.until_page("an event after it", |page| {
        page.value("podmeter_xid_errors_total", &[&on_gpu(2), "class=\"application\""]) == Some(1.0)
    });
    assert_eq!(counted(&page), Some(100_000.0));
    assert_eq!(node.transitions(), Vec::<Value>::new());
    assert_eq!(node.kubelet.received(GPU).len(), lists);
    // The library's own count comes 100 ms late.
    node.until_page("every wait is counted", |_| node.calls("nvmlEventSetWait_v2") > 100_001);
    // A busy loop takes all of a core; a wait lasts for a second.
    let (waits, before) = (node.calls("nvmlEventSetWait_v2"), node.processor_seconds());
    node.until_read_for(3.0);
    let (waits, spent) = (node.calls("nvmlEventSetWait_v2") - waits, node.processor_seconds() - before);
    assert!(waits < 60 && spent < 2.0, "{waits} waits and {spent} s of processor time in three seconds");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_all_gpus_are_lost_one_line_is_logged() {
    let node = SickNode::healthy(QUICK).await;
    let lose = |lost: bool| {
        node.driver.update(|state| {
            for gpu in state["gpus"].as_array_mut().unwrap() {
                gpu["lost"] = json!(lost);
            }
        });
    };
    lose(true);
    node.until_unhealthy(GPU, &(0..8).map(uuid).collect::<Vec<_>>()).await;
    let sessions = |hardware: &Value| hardware["sessions"].as_u64().unwrap();
    let before = sessions(&node.hardware());
    node.until_page("three more openings", |_| {
        let hardware = node.hardware();
        assert!(hardware["problem"].as_str().is_some_and(|problem| problem.contains("lost")), "{hardware}");
        sessions(&hardware) >= before + 3
    });
    let log = node.running.until_logged("no device readings");
    let times_logged = |text: &str| log.matches(text).count();
    assert_eq!(times_logged("no device readings"), 1, "{log}");
    assert!(times_logged("the driver is open source") <= 2 && times_logged("no longer lists") == 0, "{log}");
    let row = node.cause(0)["detail"].to_string();
    assert!(row.contains("lost") && !row.contains("lists"), "{row}");
    lose(false);
    node.until_unhealthy(GPU, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_unhealthy_at_the_start_is_not_offered_for_a_moment() {
    let mut machine = eight_gpus();
    machine["gpus"][5]["recovery_action"] = json!(1);
    // It is reported after the others have been offered.
    machine["gpus"][5]["delay"] = json!({"nvmlDeviceGetFieldValues": 200});
    let mut node = SickNode::start(machine, QUICK).await;
    for start in 1..=3 {
        node.until_unhealthy(GPU, &[uuid(5)]).await;
        node.until_page("the reason", |page| {
            page.value("podmeter_device_unhealthy_reason", &[&on_gpu(5), "reason=\"recovery_action\""]) == Some(1.0)
        });
        let lists = node.kubelet.received(GPU);
        assert!(lists.len() >= start);
        assert!(lists.iter().any(|list| list.values().filter(|healthy| **healthy).count() == 7), "{lists:?}");
        assert!(lists.iter().all(|list| !list[&uuid(5)]), "offered: {lists:?}");
        if start < 3 {
            node.restart().await;
        }
    }
}

/// After a reset a driver counts from zero. Unlike a driver's, the fake's counters restart with podmeter.
fn count_energy_from(machine: &mut Value, millijoules: u32) {
    for gpu in machine["gpus"].as_array_mut().unwrap() {
        gpu["energy_millijoules"] = json!(millijoules);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_xid_and_a_mark_outlive_the_agent_until_a_reset() {
    let mut machine = eight_gpus();
    count_energy_from(&mut machine, 40_000_000);
    let mut node = SickNode::start(machine, QUICK).await;
    node.until_unhealthy(GPU, &[]).await;
    node.inject(1, json!([{"sequence": 1, "xid": 48}]));
    assert_eq!(node.post("/mark", r#"{"device": "3", "reason": "smells"}"#).status, 200);
    node.driver.update(|state| count_energy_from(state, 50_000_000));
    let socket = node.kubelet.root.path().join("admin.sock");
    for killed in [false, true] {
        node.until_unhealthy(GPU, &[uuid(1), uuid(3)]).await;
        if !killed {
            node.end();
        }
        node.restart().await;
        node.until_unhealthy(GPU, &[uuid(1), uuid(3)]).await;
        // Several times the hold-down.
        node.until_read_for(1.0);
        node.until_page("both reasons and no other", |page| {
            let reasons = |labels: &[&str]| page.count("podmeter_device_unhealthy_reason", labels);
            reasons(&[&on_gpu(1), "reason=\"xid\""]) == 1
                && reasons(&[&on_gpu(3), "reason=\"admin\""]) == 1
                && reasons(&[]) == 2
                && page.count("podmeter_device_power_watts", &[]) == 8
        });
        let (code, text) = agent::ended(&["health", "--admin-socket", socket.to_str().unwrap()]);
        assert!(code == 1 && text.contains("XID 48") && text.contains("smells"), "{text}");
    }
    node.end();
    node.driver.update(|state| count_energy_from(state, 0));
    node.restart().await;
    node.until_unhealthy(GPU, &[uuid(3)]).await;
    let text = std::fs::read_to_string(socket.with_extension("faults.json")).unwrap();
    assert!(text.contains("smells") && !text.contains("\"48\""), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_day_of_the_demo_ends_as_it_began() {
    let arguments = ["demo", "--faults", "--fault-speed", "10", "--listen", "127.0.0.1:0"];
    let running = agent::Running::start(&arguments, &[], None);
    // The day repeats: a busy machine may see it whole for the first time on a later day.
    let page = running.until("the end of a day, and all well", |page| {
        let days = running.log().matches("the day is over").count() as f64;
        let healthy = page.samples("podmeter_device_healthy", &[]).filter(|(_, healthy)| *healthy == 1.0);
        let xids = |labels| page.value("podmeter_xid_errors_total", labels);
        let total: f64 = page.samples("podmeter_xid_errors_total", &[]).map(|(_, count)| count).sum();
        days >= 1.0
            && healthy.count() == 8
            && xids(&["gpu=\"1\"", "class=\"corroborating\""]) == Some(12.0 * days)
            && xids(&["gpu=\"2\"", "class=\"node_reboot\""]) == Some(days)
            && total == 14.0 * days
            && page.value("podmeter_plugin_registered", &["resource=\"nvidia.com/gpu\""]) == Some(1.0)
    });

    let node = running.node();
    let index = |transition: &Value| {
        node["hardware"]["inventory"]["gpus"][transition["gpu"].as_str().unwrap()]["index"].as_u64()
    };
    // Which GPU recovers first depends on the machine.
    let mut by_gpu = BTreeMap::<_, Vec<_>>::new();
    for transition in node["health"]["transitions"].as_array().unwrap() {
        by_gpu.entry(index(transition).unwrap()).or_default().push(transition["to_healthy"].as_bool().unwrap());
    }
    assert_eq!(by_gpu.keys().collect::<Vec<_>>(), [&2, &5, &6], "{}", running.log());
    for (gpu, transitions) in by_gpu {
        assert_eq!(transitions[..2], [false, true], "{gpu}: {}", running.log());
        assert!(transitions.windows(2).all(|two| two[0] != two[1]), "{gpu}: {transitions:?}");
    }
    assert!(page.value("podmeter_plugin_kubelet_restarts_total", &[]) >= Some(1.0));
    assert_eq!(page.count("podmeter_device_power_watts", &[]), 8);
    for line in running.log().lines() {
        let fields = logfmt::fields(line).unwrap_or_else(|problem| panic!("{problem}\n{line}"));
        assert!(fields.iter().zip(["time", "level", "msg"]).all(|((name, _), expected)| name == expected), "{line}");
    }
}

#[test]
fn a_demo_that_is_terminated_leaves_no_directory_behind() {
    let mut running = agent::Running::start(&["demo", "--listen", "127.0.0.1:0"], &[], None);
    running.signal("TERM");
    assert_eq!(running.wait().code(), Some(0), "{}", running.log());
    let log = running.log();
    let socket = log.split("address=unix:").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
    assert!(!std::path::Path::new(socket).parent().unwrap().exists(), "{socket}: left behind");
}
