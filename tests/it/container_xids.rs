//! XIDs by container, end to end: the binary over the fake driver library, a kernel log that is a FIFO, and a made-up
//! `/proc`.

use crate::support::agent;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::Command;

use crate::support::fake_nvml::FakeNvml;
use crate::support::kubelet::{ContainerSpec, ListedDevice, Options, PodSpec, node};
use podmeter::simulation::proc_tree::{Inside, ProcTree};
use serde_json::json;

const COUNTS: &str = "podmeter_container_xid_errors_total";
const INSIDE: Inside<'_> =
    Inside { namespace: "team-a", pod: "two", uid: "8f5d2c1e-90ab-4cde-8123-456789abcdef", container: "main" };

fn uuid(index: usize) -> String {
    format!("GPU-00000000-0000-0000-0000-{index:012}")
}

fn pod(name: &str, device: &str) -> PodSpec {
    PodSpec::new("team-a", name).container(ContainerSpec::new("main").holds("nvidia.com/gpu", device, &[0]))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_xid_is_its_processs_or_the_one_holders_or_unattributed() {
    let node = node(Options::default()).await;
    // GPU 0 is one pod's; two share GPU 1.
    let [alone, one, two] = [format!("{}::0", uuid(0)), format!("{}::0", uuid(1)), format!("{}::1", uuid(1))];
    let offered = [&alone, &one, &two].map(|id| ListedDevice { id: id.clone(), healthy: true, numa_nodes: None });
    node.set_devices("nvidia.com/gpu", offered.into());
    node.set_pods(vec![pod("alone", &alone), pod("one", &one), pod("two", &two).uid(INSIDE.uid)]);
    let driver = FakeNvml::start(json!({ "gpus": [{}, {}] }));

    let directory = tempfile::tempdir().unwrap();
    let tree = ProcTree::create(directory.path()).unwrap();
    tree.add_container(INSIDE).unwrap();
    tree.start(4711, 1, INSIDE).unwrap();
    let fifo = directory.path().join("kmsg");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // Both ways, so that opening does not wait for the reader.
    let mut log = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    let config = directory.path().join("podmeter.yaml");
    std::fs::write(&config, "health:\n  kmsg: on\n").unwrap();

    let (proc_root, pod_logs) = (tree.proc_root(), tree.pod_logs_root());
    let mut flags = vec!["--config", config.to_str().unwrap(), "--dev-root", directory.path().to_str().unwrap()];
    flags.extend(["--proc-root", proc_root.to_str().unwrap(), "--pod-logs-root", pod_logs.to_str().unwrap()]);
    flags.extend(["--device-plugin", "off", "--sample-interval", "100ms", "--refresh-interval", "1s"]);
    let running = agent::agent(node.root.path(), &flags, &driver.env());
    running.until("holders, processes and events", |page| {
        page.count("podmeter_container_allocation_info", &[]) == 3
            && page.value("podmeter_process_attribution_enabled", &[]) == Some(1.0)
            && page.value("podmeter_collector_success", &["collector=\"events\""]) == Some(1.0)
    });

    // Both sources report one; only the log names its process.
    driver.update(|state| state["gpus"][1]["events"] = json!([{ "sequence": 1, "xid": 31 }]));
    log.write_all(b"3,1,1,-;NVRM: Xid (PCI:0000:11:00): 31, pid=4711, name=python3, Ch 00000008\n").unwrap();
    let of = |pod: &str, code: u32| [format!("pod=\"{pod}\""), format!("xid=\"{code}\"")];
    let [pod, xid] = of("two", 31);
    let two = [pod.as_str(), xid.as_str(), "namespace=\"team-a\"", "container=\"main\"", "class=\"application\""];
    running.until("the process's XID", |page| page.value(COUNTS, &two) == Some(1.0));

    // Now the driver alone: on the shared GPU first, so that its time is up first.
    driver.update(|state| {
        state["gpus"][1]["events"] = json!([{ "sequence": 1, "xid": 31 }, { "sequence": 2, "xid": 94 }]);
    });
    driver.update(|state| state["gpus"][0]["events"] = json!([{ "sequence": 1, "xid": 13, "count": 3 }]));
    let [pod, xid] = of("alone", 13);
    let page = running.until("the one holder's XIDs", |page| page.value(COUNTS, &[pod.as_str(), &xid]) == Some(3.0));
    assert_eq!(page.value(COUNTS, &two), Some(1.0), "reported twice, counted once");
    assert_eq!(page.count(COUNTS, &["xid=\"94\""]), 0, "two holders and no process");
    let shared = format!("gpu_uuid=\"{}\"", uuid(1));
    let device = |class: &str| page.value("podmeter_xid_errors_total", &[&shared, &format!("class=\"{class}\"")]);
    assert_eq!((device("application"), device("contained_memory")), (Some(1.0), Some(1.0)));

    let open_metrics = running.get_with("/metrics", "Accept: application/openmetrics-text; version=1.0.0\r\n").body;
    assert!(open_metrics.contains("podmeter_container_xid_errors_created{"), "it began some time");
    assert!(running.get("/metrics/dcgm").body.lines().any(|line| {
        line.starts_with("DCGM_FI_DEV_XID_ERRORS{") && line.contains(&uuid(1)) && line.ends_with("} 94")
    }));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_timed_where_enabled() {
    let node = node(Options::default()).await;
    let gpm = json!({ "supported": true, "metrics": { "20": 2, "21": 4, "60": 1000, "61": 24 } });
    let driver = FakeNvml::start(json!({ "gpus": [{ "gpm": gpm, "utilization": { "gpu": 50, "memory": 20 } }] }));
    let count = "podmeter_nvml_call_duration_seconds_count";
    let power = ["call=\"nvmlDeviceGetPowerUsage\""];
    let usual = ["--sample-interval", "100ms", "--device-plugin", "off"];
    let running = agent::agent(node.root.path(), &[&usual[..], &["--nvml-call-durations"]].concat(), &driver.env());
    let page = running.until("timed calls", |page| page.value(count, &power).is_some_and(|count| count > 5.0));
    let within = ["call=\"nvmlDeviceGetPowerUsage\"", "le=\"+Inf\""];
    assert_eq!(page.value("podmeter_nvml_call_duration_seconds_bucket", &within), page.value(count, &power));
    assert!(page.value("podmeter_nvml_call_duration_seconds_sum", &power).is_some_and(|sum| sum > 0.0));
    // Traffic from GPM is exported as by dcgm-exporter.
    let has_line = |line: &str| {
        running.get("/metrics/dcgm").body.lines().any(|one| {
            let (name, value) = line.split_once(' ').unwrap();
            one.starts_with(&format!("{name}{{")) && one.ends_with(&format!("}} {value}"))
        })
    };
    running.until("two medium passes", |_| has_line("DCGM_FI_PROF_PCIE_TX_BYTES 2097152"));
    assert!(has_line("DCGM_FI_PROF_PCIE_RX_BYTES 4194304"));
    assert!(has_line("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL 1048.576"), "1024 MiB a second, both ways");
    assert!(has_line("DCGM_FI_DEV_MEM_COPY_UTIL 20") && has_line("DCGM_FI_DEV_ENC_UTIL 0"));

    let running = agent::agent(node.root.path(), &usual, &driver.env());
    let page = running.until("a GPU", |page| page.count("podmeter_device_power_watts", &[]) == 1);
    assert_eq!(page.count(count, &[]), 0);
}
