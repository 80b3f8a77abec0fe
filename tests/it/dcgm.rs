//! For readers of dcgm-exporter's names: what the documentation promises them, and that they find their data.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::support::agent::Running;
use crate::support::polling::until_true;
use crate::support::test_data::{self, LedgerNode};
use podmeter::domain::attribution::{DeviceProcesses, OwnedProcess};
use podmeter::domain::holders::HoldingKey;
use podmeter::domain::model::{
    ContainerRef, DeviceReadings, GpmRatios, Gpu, HardwareSource, HardwareState, Medium, MemoryUse, Moment, Monotonic,
    Owner, SharingForm, Snapshot, UnixSeconds,
};
use podmeter::serve::metrics::dcgm::{self, Generation};
use podmeter::serve::metrics::{self, Format, catalogue};

const GUIDE: &str = include_str!("../../docs/dcgm.md");
const GPU: &str = "GPU-00000000-0000-0000-0000-000000000000";
const SECONDS: f64 = 10.0;
const MEBIBYTE: u64 = 1 << 20;

/// Pod, namespace, SM-seconds of its process, MiB.
const PODS: [(&str, &str, f64, u64); 3] =
    [("train-0", "team-a", 6.0, 40_960), ("serve-0", "team-b", 2.0, 20_480), ("notebook-0", "team-a", 0.0, 2048)];

fn board() -> Gpu {
    Gpu { memory_bytes: Some(81_920 * MEBIBYTE), mig_enabled: Some(false), ..Gpu::listed(GPU.into(), 0) }
}

#[test]
fn the_guide_shows_what_podmeter_prints() {
    let page = page();
    let shorter = |line: &str| {
        let (name, rest) = line.split_once('{').unwrap();
        let (labels, value) = rest.rsplit_once("} ").unwrap();
        let left_off = ["UUID=", "pci_bus_id=", "device=", "modelName=", "Hostname="];
        let labels: Vec<_> =
            labels.split(',').filter(|label| !left_off.iter().any(|name| label.starts_with(name))).collect();
        format!("{name}{{{}}} {value}", labels.join(","))
    };
    let printed: Vec<String> = page.lines().filter(|line| !line.starts_with('#')).map(shorter).collect();
    let shown = block(" podmeter");
    assert!(shown.len() > 8, "the block has every kind of series");
    let names: BTreeSet<_> = shown.iter().map(|line| line.split('{').next().unwrap()).collect();
    let of_shown: BTreeSet<_> =
        printed.iter().map(String::as_str).filter(|line| names.contains(line.split('{').next().unwrap())).collect();
    assert_eq!(shown.iter().copied().collect::<BTreeSet<_>>(), of_shown, "{printed:#?}");
}

/// Words in backticks that begin so, without what follows the name.
fn named(prefix: &str) -> BTreeSet<&'static str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let quoted = GUIDE.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted
        .filter(|word| word.starts_with(prefix))
        .map(|word| word.split(|letter| !is_part(letter)).next().unwrap())
        .collect()
}

#[test]
fn the_guide_names_what_there_is() {
    let known: BTreeSet<&str> = catalogue::all().map(|entry| entry.name).collect();
    let unknown: Vec<_> = named("podmeter_").into_iter().filter(|name| !known.contains(name)).collect();
    assert!(unknown.is_empty(), "no such metrics: {unknown:?}");
    let table: serde_json::Value = serde_json::from_str(dcgm::TABLE).unwrap();
    let metrics = dcgm::names().flat_map(|name| [name.old_name(), name.new_name()]);
    let labels = table["labels"].as_array().unwrap().iter().flat_map(|label| [&label["4.8"], &label["4.9"]]);
    let known: BTreeSet<&str> = metrics.chain(labels.filter_map(|label| label.as_str())).collect();
    let unknown: Vec<_> = named("DCGM_").into_iter().filter(|name| !known.contains(name)).collect();
    assert!(unknown.is_empty(), "no such names: {unknown:?}");
}

/// Series that a reader selects: the name, and labels that may not be empty.
type DcgmSelector = (&'static str, &'static [&'static str]);

const OF_DEVICES: &[&str] = &["gpu", "UUID", "Hostname", "device", "modelName", "pci_bus_id"];
const OF_PODS: &[&str] = &["gpu", "UUID", "Hostname", "namespace", "pod", "container"];

/// Grafana's dashboard 12239, and what OpenCost, gpu-pruner and the rules of ceems read.
const READERS: &[DcgmSelector] = &[
    ("DCGM_FI_DEV_GPU_TEMP", OF_DEVICES),
    ("DCGM_FI_DEV_POWER_USAGE", OF_DEVICES),
    ("DCGM_FI_DEV_SM_CLOCK", OF_DEVICES),
    ("DCGM_FI_DEV_MEM_CLOCK", OF_DEVICES),
    ("DCGM_FI_DEV_MEMORY_TEMP", OF_DEVICES),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", OF_DEVICES),
    ("DCGM_FI_DEV_ENC_UTIL", OF_DEVICES),
    ("DCGM_FI_DEV_DEC_UTIL", OF_DEVICES),
    ("DCGM_FI_DEV_FB_USED", OF_DEVICES),
    ("DCGM_FI_DEV_FB_FREE", OF_DEVICES),
    ("DCGM_FI_DEV_FB_RESERVED", OF_DEVICES),
    ("DCGM_FI_DEV_XID_ERRORS", OF_DEVICES),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", OF_DEVICES),
    ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", OF_DEVICES),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", OF_DEVICES),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", OF_DEVICES),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", OF_DEVICES),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", OF_DEVICES),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", OF_DEVICES),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", OF_DEVICES),
    ("DCGM_FI_PROF_SM_ACTIVE", OF_DEVICES),
    ("DCGM_FI_PROF_DRAM_ACTIVE", OF_DEVICES),
    ("DCGM_FI_PROF_PCIE_TX_BYTES", OF_DEVICES),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", OF_DEVICES),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", OF_PODS),
    ("DCGM_FI_DEV_GPU_UTIL", OF_PODS),
    ("DCGM_FI_DEV_FB_USED", OF_PODS),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", OF_PODS),
];

/// The further metrics of a whole GPU of one pod.
const READERS_OF_WHOLE_GPUS: &[DcgmSelector] = &[
    ("DCGM_FI_DEV_POWER_USAGE", OF_PODS),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", OF_PODS),
    ("DCGM_FI_PROF_SM_ACTIVE", OF_PODS),
    ("DCGM_FI_PROF_DRAM_ACTIVE", OF_PODS),
];

fn selects(page: &str, name: &str, labels: &[&str]) -> bool {
    let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'));
    let has = |line: &str, label: &str| {
        let marks = [format!("{{{label}=\""), format!(",{label}=\"")];
        marks.iter().any(|mark| line.split_once(mark.as_str()).is_some_and(|(_, rest)| !rest.starts_with('"')))
    };
    page.lines().filter(of_name).any(|line| labels.iter().all(|label| has(line, label)))
}

fn readers_find_their_data(profile: &str, readers: &[&[DcgmSelector]]) {
    let running = Running::start(&["demo", "--listen", "127.0.0.1:0", "--profile", profile], &[], None);
    for (name, labels) in readers.iter().copied().flatten() {
        until_true(&format!("{name} {labels:?}"), || selects(&running.get("/metrics/dcgm").body, name, labels));
    }
}

/// `docs/cost.md` has a row for the names that OpenCost and Kubecost read, with the labels by which they group pods.
#[test]
fn what_cost_tools_read_is_on_the_page_as_the_table_says() {
    let page = include_str!("../golden/dcgm.txt");
    let quoted = |cell: &'static str| cell.split('`').skip(1).step_by(2);
    let rows = include_str!("../../docs/cost.md").lines().filter(|line| line.starts_with("`DCGM_"));
    let (mut labels, mut served, mut missing) = (vec![], 0, 0);
    for row in rows {
        let [names, more, answer] = row.split('|').collect::<Vec<_>>()[..] else { panic!("three cells: {row}") };
        labels.extend(quoted(more));
        for name in quoted(names) {
            let found = selects(page, name, &labels);
            assert_eq!(found, answer.trim().starts_with("yes"), "{name} with {labels:?}");
            *(if found { &mut served } else { &mut missing }) += 1;
        }
    }
    assert_eq!((served, missing), (15, 2));
}

#[test]
fn readers_of_whole_gpus_find_their_data() {
    readers_find_their_data("8xh100", &[READERS, READERS_OF_WHOLE_GPUS]);
}

#[test]
fn readers_of_shared_gpus_find_their_data() {
    readers_find_their_data("8xh100-timesliced", &[READERS]);
}

/// The load begins a second after the agent.
fn at(seconds: f64) -> Monotonic {
    Monotonic::from_millis(1000 + (seconds * 1000.0) as u64)
}

/// After `seconds` of the guide's load.
fn readings(seconds: f64) -> DeviceReadings {
    let used = 64_512 * MEBIBYTE;
    let memory = MemoryUse { used, free: 17_408 * MEBIBYTE, reserved: None, total: 81_920 * MEBIBYTE };
    let gpm = GpmRatios { graphics_engine_active: Some(0.9), ..GpmRatios::default() };
    let medium = Medium { memory: Some(memory), gpm, ..Medium::default() };
    test_data::busy_readings(at(seconds), seconds, 0.9, 520.0, medium)
}

fn processes(seconds: f64) -> DeviceProcesses {
    let process = |(pid, owner, sm_seconds, memory): (u32, Owner, f64, u64)| OwnedProcess {
        memory_bytes: Some(memory * MEBIBYTE),
        ..test_data::process(pid, owner, sm_seconds * seconds / SECONDS)
    };
    let of_pods = (1..).zip(PODS).map(|(pid, (pod, namespace, sm_seconds, memory))| {
        (pid, Owner::Container(ContainerRef::new(namespace, pod, "main")), sm_seconds, memory)
    });
    let host = (9, Owner::Host, 1.0, 512);
    test_data::processes(of_pods.chain([host]).map(process))
}

/// The guide's scenario, through the ledger, on the page.
fn page() -> String {
    let mut node = LedgerNode::new(test_data::inventory([board()]), Duration::from_secs(60));
    for (slot, (pod, namespace, ..)) in PODS.iter().enumerate() {
        let container = ContainerRef::new(namespace, pod, "main");
        let holding = test_data::holding(&format!("{GPU}::{slot}"), SharingForm::TimeSlicing, 0.25);
        node.holdings.by_key.insert(HoldingKey { container, gpu: GPU.into(), mig: None }, holding);
    }
    let mut snapshot = Snapshot::default();
    for seconds in [0.0, SECONDS] {
        node.readings = [(GPU.into(), Arc::new(readings(seconds)))].into();
        node.processes = [(GPU.into(), processes(seconds))].into();
        let now = Moment { monotonic: at(seconds), unix: UnixSeconds(1e9 + seconds) };
        let output = node.advance(now);
        snapshot = Snapshot {
            at: now,
            hardware: Arc::new(HardwareState {
                source: HardwareSource::Nvml,
                inventory: Arc::new(node.inventory.clone()),
                readings: node.readings.clone(),
                ..HardwareState::default()
            }),
            accounts: output.accounts,
            unattributed: output.unattributed,
            ..Snapshot::default()
        };
    }
    let mut page = vec![];
    metrics::write(&snapshot, Format::Dcgm(Generation::Old), &mut page).unwrap();
    String::from_utf8(page).unwrap()
}

/// The block of the guide whose fence is `text` and this.
fn block(kind: &str) -> Vec<&'static str> {
    let mut lines = GUIDE.lines().skip_while(|line| line.trim_end() != format!("```text{kind}"));
    lines.next().unwrap_or_else(|| panic!("a block of {kind:?}"));
    lines.take_while(|line| *line != "```").collect()
}
