//! XIDs by container, end to end: the binary over the fake driver library.

use crate::support::agent;
use crate::support::fake_nvml::FakeNvml;
use crate::support::kubelet::{GPU, ListedDevice, Options, holding_pod, node};
use crate::support::test_data::uuid;
use serde_json::json;

const COUNTS: &str = "podmeter_container_xid_errors_total";

#[tokio::test(flavor = "multi_thread")]
async fn an_xid_is_the_one_holders_or_unattributed() {
    let node = node(Options::default()).await;
    // GPU 0 is one pod's; two share GPU 1.
    let [alone, one, two] = [format!("{}::0", uuid(0)), format!("{}::0", uuid(1)), format!("{}::1", uuid(1))];
    let offered = [&alone, &one, &two].map(|id| ListedDevice::new(id));
    node.set_devices("nvidia.com/gpu", offered.into());
    node.set_pods(vec![
        holding_pod("alone", GPU, &alone),
        holding_pod("one", GPU, &one),
        holding_pod("two", GPU, &two),
    ]);
    let driver = FakeNvml::start(json!({ "gpus": [{}, {}] }));
    let flags = ["--device-plugin", "off", "--sample-interval", "100ms", "--refresh-interval", "1s"];
    let running = agent::agent(node.root.path(), &flags, &driver.env());
    running.until("holders and events", |page| {
        page.count("podmeter_container_allocation_info", &[]) == 3
            && page.value("podmeter_collector_success", &["collector=\"events\""]) == Some(1.0)
    });

    // On the shared GPU first.
    driver.update(|state| state["gpus"][1]["events"] = json!([{ "sequence": 1, "xid": 94 }]));
    let shared = format!("gpu_uuid=\"{}\"", uuid(1));
    let of_class = [shared.as_str(), "class=\"contained_memory\""];
    running.until("the shared GPU's XID", |page| page.value("podmeter_xid_errors_total", &of_class) == Some(1.0));
    driver.update(|state| state["gpus"][0]["events"] = json!([{ "sequence": 1, "xid": 13, "count": 3 }]));
    let alone = ["pod=\"alone\"", "xid=\"13\"", "namespace=\"team\"", "container=\"main\"", "class=\"application\""];
    let page = running.until("the one holder's XIDs", |page| page.value(COUNTS, &alone) == Some(3.0));
    assert_eq!(page.count(COUNTS, &["xid=\"94\""]), 0, "two holders");

    assert!(running.get("/metrics/dcgm").body.lines().any(|line| {
        line.starts_with("DCGM_FI_DEV_XID_ERRORS{") && line.contains(&uuid(1)) && line.ends_with("} 94")
    }));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_timed_where_enabled() {
    let node = node(Options::default()).await;
    let driver = FakeNvml::start(json!({ "gpus": [{}] }));
    let count = "podmeter_nvml_call_duration_seconds_count";
    let power = ["call=\"nvmlDeviceGetPowerUsage\""];
    let usual = ["--sample-interval", "100ms", "--device-plugin", "off"];
    let running = agent::agent(node.root.path(), &[&usual[..], &["--nvml-call-durations"]].concat(), &driver.env());
    let page = running.until("timed calls", |page| page.value(count, &power).is_some_and(|count| count > 5.0));
    let within = ["call=\"nvmlDeviceGetPowerUsage\"", "le=\"+Inf\""];
    assert_eq!(page.value("podmeter_nvml_call_duration_seconds_bucket", &within), page.value(count, &power));
    assert!(page.value("podmeter_nvml_call_duration_seconds_sum", &power).is_some_and(|sum| sum > 0.0));
    let running = agent::agent(node.root.path(), &usual, &driver.env());
    let page = running.until("a GPU", |page| page.count("podmeter_device_power_watts", &[]) == 1);
    assert_eq!(page.count(count, &[]), 0);
}
