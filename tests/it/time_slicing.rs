//! Two containers on a time-sliced GPU, whose driver attributes each of its samples to one process: driver library, totals and
//! ledger together, and the binary.

use std::sync::Arc;
use std::time::Duration;

use podmeter::domain::attribution::{DeviceProcesses, LedgerOutput};
use podmeter::domain::model::{DeviceReadings, Owner, SharingForm};
use podmeter::hardware::{GpuReader, GpuState, Staleness};
use podmeter::simulation::proc_tree::{ContainerIdentity, ProcTree};
use serde_json::json;

use crate::support::agent;
use crate::support::fake_nvml::{FakeNvml, h100};
use crate::support::hardware::{ALL, at, gpu, open};
use crate::support::kubelet::{GPU, ListedDevice, Options, holding_pod, node};
use crate::support::test_data::{LedgerNode, holdings, main_of, process, processes, uuid};

const PODS: [&str; 2] = ["a", "b"];
const PIDS: [u32; 2] = [1001, 1002];
const STALENESS: Staleness =
    Staleness { fast: Duration::from_secs(30), medium: Duration::from_secs(30), slow: Duration::from_secs(180) };

/// The driver of a GPU that is busy for `percent` of the time, half of it for each of two processes.
fn driver(percent: u32) -> FakeNvml {
    let fake = FakeNvml::start(h100(vec![json!({
        "utilization": {"gpu": percent},
        "processes": PIDS.map(|pid| json!({"pid": pid, "sm": percent / 2}))
    })]));
    fake.update(|state| state["cost"] = json!({}));
    fake
}

#[test]
fn a_container_with_half_of_a_time_sliced_gpu_shows_half_in_every_reading() {
    for period in [1, 10] {
        let mut node = TimeSlicedNode::start();
        let mut counted = vec![];
        for second in (0..=60).step_by(period) {
            let (readings, output) = node.read(second);
            let now: Vec<_> = output.accounts.iter().map(|account| account.gpu_utilization_ratio).collect();
            if second >= 10 {
                let is_half = |now: &Option<f64>| now.is_some_and(|now| (0.45..=0.55).contains(&now));
                assert!(now.iter().all(is_half), "second {second}, read every {period} s: {now:?}");
                let device = readings.fast.unwrap().value.utilization_ratio.unwrap();
                let sum: f64 = now.iter().flatten().sum();
                assert!((device - 1.0).abs() < 1e-6 && (sum - device).abs() < 1e-6, "{device}, of which {now:?}");
            }
            counted = output.accounts.iter().filter_map(|account| account.counters.busy_seconds).collect();
        }
        // To one sample.
        assert!(counted.iter().all(|busy| (busy - 30.0).abs() <= 0.2), "{counted:?}, read every {period} s");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_shows_the_same_use_of_a_time_sliced_gpu() {
    let (node, files) = (node(Options::default()).await, tempfile::tempdir().unwrap());
    let slots = [0, 1].map(|slot| format!("{}::{slot}", uuid(0)));
    node.set_devices("nvidia.com/gpu", slots.iter().map(|slot| ListedDevice::new(slot)).collect());
    let uids = ["8f5d2c1e-90ab-4cde-8123-00000000000a", "8f5d2c1e-90ab-4cde-8123-00000000000b"];
    let pods = (0..2).map(|number| holding_pod(PODS[number], GPU, &slots[number]).uid(uids[number]));
    node.set_pods(pods.collect());
    let tree = ProcTree::create(files.path()).unwrap();
    for (number, pid) in PIDS.into_iter().enumerate() {
        let container =
            ContainerIdentity { namespace: "team", pod: PODS[number], uid: uids[number], container: "main" };
        tree.add_container(container).unwrap();
        tree.start(pid, 5, container).unwrap();
    }
    let (proc, logs) = (tree.proc_root(), tree.pod_logs_root());
    let roots = ["--proc-root", proc.to_str().unwrap(), "--pod-logs-root", logs.to_str().unwrap()];
    let flags = [&roots[..], &["--device-plugin", "off", "--sample-interval", "500ms"]].concat();
    let fake = driver(50);
    let running = agent::agent(node.root.path(), &flags, &fake.env());
    let busy = "podmeter_container_busy_seconds_total";
    let page = running.until("two seconds of each", |page| {
        page.count(busy, &[]) == 2 && page.samples(busy, &[]).all(|(_, seconds)| seconds > 2.0)
    });
    // Of half of the GPU each, and of the whole; at the edges of the time that was read some samples are missing.
    let near = |ratio: f64, expected: f64| (ratio - expected).abs() < expected * 0.2;
    let slots: Vec<f64> = page.samples("podmeter_container_utilization_ratio", &[]).map(|(_, ratio)| ratio).collect();
    let device = page.value("podmeter_device_utilization_ratio", &[]).unwrap();
    assert!(
        slots.len() == 2 && slots.iter().all(|ratio| near(*ratio, 0.5)) && near(device, 0.5),
        "{slots:?}, {device}"
    );
    assert_eq!(page.count("podmeter_container_allocation_info", &["attribution=\"process\""]), 2);
    let shown = running.node();
    let accounts = shown["accounts"].as_array().unwrap().iter();
    let of_gpu: Vec<f64> = accounts.map(|account| account["device_utilization_ratio"].as_f64().unwrap()).collect();
    assert!(of_gpu.len() == 2 && of_gpu.iter().all(|ratio| near(*ratio, 0.25)), "{of_gpu:?}");
    let dcgm = running.get("/metrics/dcgm").body;
    let dcgm = dcgm.lines().filter(|line| line.starts_with("DCGM_FI_DEV_GPU_UTIL{"));
    let mut percent: Vec<f64> = dcgm.map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect();
    percent.sort_by(f64::total_cmp);
    assert!(
        matches!(&percent[..], [one, two, all] if near(*one, 25.0) && near(*two, 25.0) && near(*all, 50.0)),
        "{percent:?}"
    );
}

struct TimeSlicedNode {
    fake: FakeNvml,
    reader: Box<dyn GpuReader>,
    totals: GpuState,
    node: LedgerNode,
}

impl TimeSlicedNode {
    fn start() -> Self {
        let fake = driver(100);
        fake.update(|state| state["clock_microseconds"] = json!(100_000_000));
        let session = open(&fake);
        let mut node = LedgerNode::new(session.inventory().unwrap().0, Duration::from_secs(30));
        node.holdings = holdings(&PODS, gpu(0).as_str(), SharingForm::TimeSlicing, 0.5);
        Self { reader: session.reader(&gpu(0)).unwrap(), totals: GpuState::default(), node, fake }
    }

    fn read(&mut self, second: u64) -> (DeviceReadings, LedgerOutput) {
        self.fake.update(|state| state["clock_microseconds"] = json!((100 + second) * 1_000_000));
        let now = at(second + 1);
        let pass = self.reader.read(&ALL, now);
        self.totals.add_pass(now.monotonic, second == 0, pass);
        let readings = Arc::new(self.totals.readings(now.monotonic, STALENESS));
        let used = readings.totals.process_sm_seconds.iter().flatten();
        let owned =
            |(pid, used): (&u32, &f64)| process(*pid, Owner::Container(main_of(PODS[(pid - PIDS[0]) as usize])), *used);
        let has_sm_seconds = readings.totals.process_sm_seconds.is_some();
        let processes = DeviceProcesses { has_sm_seconds, ..processes(used.map(owned)) };
        self.node.processes = [(gpu(0), processes)].into();
        self.node.readings = [(gpu(0), Arc::clone(&readings))].into();
        let output = self.node.advance(now);
        (Arc::unwrap_or_clone(readings), output)
    }
}
