//! One node with a little of everything: two whole GPUs of which one is lost, a partitioned one, one that is passed
//! through, three containers of which one has hostile names, a DRA claim, pinned CPUs, reserved memory, a stale tier.

mod hardware;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use strum::IntoEnumIterator;

use crate::domain::model::*;
use crate::test_data;
use hardware::hardware;

pub(crate) const WHOLE: &str = "GPU-11111111-aaaa-4bbb-8ccc-000000000001";
pub(crate) const LOST: &str = "GPU-22222222-aaaa-4bbb-8ccc-000000000002";
pub(crate) const PARTITIONED: &str = "GPU-33333333-aaaa-4bbb-8ccc-000000000003";
pub(crate) const UNSERVED: &str = "PCI-0000:ca:00.0";
pub(crate) const SLICE: &str = "MIG-44444444-aaaa-4bbb-8ccc-000000000004";
pub(crate) const OTHER_SLICE: &str = "MIG-55555555-aaaa-4bbb-8ccc-000000000005";
pub(crate) const POD_UID: &str = "8f5d2c1e-90ab-4cde-8123-456789abcdef";
/// Quotes, a backslash, a newline, an end of labels, markup, and letters beyond ASCII.
pub(crate) const HOSTILE: &str = "ev\"il\\pod\n} 1 <b>&amp;β€";

const STARTED: UnixSeconds = UnixSeconds(1_760_000_000.0);
const GIB: u64 = 1 << 30;

pub(crate) fn snapshot() -> Snapshot {
    let scrape_durations = durations(&[200, 3000]);
    let container_xid = |pod: &str, gpu: &str, code, class, count| ContainerXid {
        container: ContainerRef::new(if pod == HOSTILE { "default" } else { "research" }, pod, "main"),
        gpu: gpu.into(),
        mig: (gpu == PARTITIONED).then(|| SLICE.into()),
        code,
        class,
        count,
        created: STARTED,
    };
    let snapshot = Snapshot {
        sequence: 42,
        at: moment(600),
        started: STARTED,
        node_name: "node-a".into(),
        hardware: Arc::new(hardware()),
        kubelet: Arc::new(kubelet()),
        health: Arc::new(health()),
        plugin: Some(Arc::new(plugin())),
        processes: Some(Arc::new(processes())),
        accounts: accounts(),
        unattributed: unattributed(),
        unallocated_uses: vec![UnallocatedUse {
            pod: PodRef::new("research", "claiming"),
            container: Some("main".into()),
            gpu: WHOLE.into(),
        }],
        container_xids: vec![
            container_xid("training-0", WHOLE, 31, XidClass::Application, 3),
            container_xid(HOSTILE, PARTITIONED, 94, XidClass::ContainedMemory, 1),
        ],
        violations: DividedQuantity::iter().map(|quantity| (quantity, 0)).collect(),
        series_limit: None,
        series_dropped: [("ended", 0), ("held", 0)].into(),
        unresolved: vec![UnresolvedDevices { resource: "example.com/nic".into(), form: "unknown", devices: 1 }],
        claim_gpus: vec![ClaimGpu {
            claim: claim(),
            gpu: PARTITIONED.into(),
            mig: Some(OTHER_SLICE.into()),
            source: ClaimSource::DeviceName,
        }],
        unavailable: BTreeMap::new(),
        drift: vec![InventoryDrift {
            resource: "nvidia.com/gpu".into(),
            advertised_not_allocatable: 1,
            allocatable_not_advertised: 0,
        }],
        nvml_call_durations: [("nvmlDeviceGetPowerUsage", scrape_durations.clone())].into(),
        scrape_durations,
        process: SelfUse {
            cpu_seconds: Some(1.25),
            resident_bytes: Some(14 << 20),
            virtual_bytes: Some(90 << 20),
            open_files: Some(23),
            max_files: Some(1_048_576),
            start: Some(STARTED),
        },
        log_lines_dropped: 3,
        journal: Some(JournalState { written: 12, errors: 1, dropped: 0, size_bytes: Some(65_536), problem: None }),
        config_reload: Some(ConfigReload { successful: true, last_success: STARTED }),
        overview: Overview::default(),
    };
    Snapshot { overview: Overview::summarize(&snapshot, &SlotCounts::new()), ..snapshot }
}

fn durations(microseconds: &[u64]) -> DurationHistogram {
    let mut durations = DurationHistogram::default();
    microseconds.iter().for_each(|one| durations.observe(Duration::from_micros(*one)));
    durations
}

/// One of the kubelet's pods has a UID and a label, another a UID alone.
fn processes() -> ProcessState {
    let identity = |namespace: &str, pod: &str, uid: &str, labels: BTreeMap<Arc<str>, Arc<str>>| {
        let pod = PodRef::new(namespace, pod);
        (pod.clone(), Arc::new(PodIdentity { pod, labels, ..test_data::identity("", uid) }))
    };
    let labels = BTreeMap::from([("app.kubernetes.io/name".into(), "trainer".into())]);
    let keys = ["app.kubernetes.io/name".to_owned(), "team".to_owned()];
    ProcessState {
        enabled: true,
        pods: Arc::new(BTreeMap::from([
            identity("research", "training-0", POD_UID, labels),
            identity("default", HOSTILE, "229836ee3ad078911e99a2b8134d6713", BTreeMap::new()),
            identity("default", "not-listed", "00000000-0000-4000-8000-000000000000", BTreeMap::new()),
        ])),
        pod_labels: PodLabel::all(&keys).unwrap().into(),
        ..ProcessState::default()
    }
}

/// One resource served, with a device of each health; another that another plugin serves.
fn plugin() -> PluginState {
    let results = |ok| BTreeMap::from([("ok", ok), ("unknown_device", 0), ("unhealthy", 1), ("not_allowed", 0)]);
    let served = PluginResource {
        created: STARTED,
        registered: true,
        registrations: 2,
        unregistered: Duration::from_millis(1500),
        devices: Arc::new([(WHOLE.into(), None), (LOST.into(), Some("the driver says that it is lost".into()))].into()),
        gpus: Arc::new([(WHOLE.into(), WHOLE.into()), (LOST.into(), LOST.into())].into()),
        allocations: results(1),
        allocate_durations: durations(&[100]),
        prefers: true,
        preferred_durations: durations(&[100]),
        preferred_fallbacks: BTreeMap::from([("links_unknown", 1)]),
        health_transitions: [("unhealthy", [(PluginUnhealthyReason::Device(UnhealthyReason::Lost), 1)].into())].into(),
        pre_starts: BTreeMap::from([("ok", 1), ("unhealthy", 0)]),
        ..PluginResource::default()
    };
    let in_conflict = PluginResource {
        created: STARTED,
        conflict: Some("another device plugin serves it".into()),
        unregistered_since: Some(Monotonic::from_secs(590)),
        devices: Arc::new([(SLICE.into(), None)].into()),
        gpus: Arc::new([(SLICE.into(), PARTITIONED.into())].into()),
        ..PluginResource::default()
    };
    PluginState {
        mps_daemons: BTreeMap::new(),
        avoided: BTreeMap::new(),
        resources_complete: true,
        kubelet_restarts: 1,
        problems: vec!["MIG-9 <b>is not offered</b>".into()],
        unused_cdi_files: [(("/etc/cdi/nvidia.yaml".into(), "device_nodes"), 2)].into(),
        profile: Some(AppliedProfile { decision: "profile", name: Some("h100-mig".into()) }),
        resources: [("nvidia.com/gpu".into(), served), ("nvidia.com/mig-1g.10gb".into(), in_conflict)].into(),
    }
}

/// A healthy GPU, a lost one, and one with an unhealthy MIG device.
fn health() -> HealthState {
    let well = || test_data::device_health(moment(1), None);
    let sick = |reason, detail: &str| test_data::device_health(moment(300), Some((reason, detail)));
    let mut xids = XidCounts {
        created: STARTED,
        by_class: XidClass::iter().map(|class| (class, 0)).collect(),
        ..XidCounts::default()
    };
    let of = |whole, xids: &XidCounts| GpuHealth { xids: xids.clone(), ..test_data::gpu_health(whole) };
    let lost = of(sick(UnhealthyReason::Lost, "the driver no longer lists it"), &xids);
    let partitioned = GpuHealth {
        mig_devices: [(SLICE.into(), well()), (OTHER_SLICE.into(), sick(UnhealthyReason::Xid, "XID 95"))].into(),
        ..of(well(), &xids)
    };
    xids.by_class.insert(XidClass::Application, 3);
    let mut recent = RecentCount::default();
    recent.add(Monotonic::from_secs(400), 2);
    let last_of = [(None, Monotonic::from_secs(400))].into();
    xids.by_code.insert(31, XidCount { class: XidClass::Application, at: moment(400), count: 3, recent, last_of });
    let gpus = [(WHOLE.into(), of(well(), &xids)), (LOST.into(), lost), (PARTITIONED.into(), partitioned)].into();
    HealthState { gpus, ..HealthState::default() }
}

fn moment(seconds: u64) -> Moment {
    Moment { monotonic: Monotonic::from_secs(seconds), unix: UnixSeconds(STARTED.0 + seconds as f64) }
}

fn stamped<T>(value: T) -> Stamped<T> {
    Stamped { at: Monotonic::from_secs(599), value }
}

fn unattributed() -> Vec<Unattributed> {
    let unattributed = |gpu: &str, busy_seconds, energy_joules| Unattributed {
        gpu: gpu.into(),
        created: UnixSeconds(STARTED.0 + 0.5),
        busy_seconds: BTreeMap::new(),
        energy_joules: BTreeMap::new(),
        memory_bytes: BTreeMap::new(),
        processes: BTreeMap::new(),
        divided: Divided { busy_seconds, energy_joules },
    };
    vec![
        Unattributed {
            busy_seconds: [(UnattributedReason::Host, 0.0), (UnattributedReason::Unknown, 0.0)].into(),
            energy_joules: [
                (UnattributedReason::Host, 1_000.0),
                (UnattributedReason::Idle, 9_000.0),
                (UnattributedReason::Unknown, 0.125),
            ]
            .into(),
            memory_bytes: [(UnattributedReason::Driver, 300 << 20), (UnattributedReason::Host, 100 << 20)].into(),
            processes: [(UnattributedReason::Host, 1), (UnattributedReason::NotAllocated, 1)].into(),
            ..unattributed(WHOLE, Some(300.5), Some(210_000.125))
        },
        unattributed(LOST, Some(12.0), None),
        unattributed(PARTITIONED, Some(45.25), Some(90_000.0)),
    ]
}

fn kubelet() -> KubeletState {
    KubeletState {
        allocations: Some(Arc::new(allocations())),
        allocations_at: Some(moment(597)),
        settled: true,
        allocatable: Some(Arc::new(allocatable())),
        allocatable_at: Some(moment(590)),
        collector: SourceStatus {
            success: true,
            last_success: Some(moment(597)),
            duration: Some(Duration::from_millis(2)),
            ..SourceStatus::default()
        },
        counters: KubeletCounters {
            durations: [("List", durations(&[2000]))].into(),
            errors: BTreeMap::from([("List", BTreeMap::from([("unavailable", 1)]))]),
            triggers: BTreeMap::from([("timer", 120), ("allocate", 3)]),
        },
        unreadable_claim_files: Some(Arc::new(BTreeMap::from([("checkpoint", 0), ("metadata", 1)]))),
        ..KubeletState::default()
    }
}

fn held(resource: &str, id: &str, numa_nodes: &[i64]) -> HeldDevice {
    HeldDevice { numa_nodes: numa_nodes.iter().copied().collect(), ..test_data::held(resource, id) }
}

fn block(memory_type: &str, numa_nodes: &[i64], bytes: u64) -> MemoryBlock {
    MemoryBlock { memory_type: memory_type.into(), numa_nodes: numa_nodes.iter().copied().collect(), bytes }
}

fn uid_of(container: &ContainerRef) -> Option<crate::domain::model::PodUid> {
    Some(processes().pods.get(&container.pod_ref())?.uid.clone())
}

fn allocations() -> Allocations {
    let pod = |namespace: &str, pod: &str| {
        let reference = ContainerRef::new(namespace, pod, "main");
        Pod { uid: uid_of(&reference), ..test_data::pod(test_data::container(reference, &[])) }
    };
    let mut training = pod("research", "training-0");
    training.containers[0].devices =
        vec![held("nvidia.com/gpu", WHOLE, &[0]), held("example.com/nic", "nic-7", &[0, 1])];
    training.containers[0].exclusive_cpus = [0, 1, 2, 3, 8].into_iter().collect();
    training.containers[0].memory = vec![block("memory", &[0], 4 * GIB), block("hugepages-2Mi", &[0, 1], GIB)];
    let mut hostile = pod("default", HOSTILE);
    hostile.containers[0].devices = vec![held("nvidia.com/mig-1g.10gb", SLICE, &[])];
    let mut claiming = pod("research", "claiming");
    claiming.containers[0].claims = vec![claim()];
    let mut sharing = pod("web", "pod-level");
    sharing.exclusive_cpus = [10, 11].into_iter().collect();
    sharing.memory = vec![block("memory", &[1], GIB)];
    Allocations { pods: vec![hostile, claiming, training, sharing] }
}

fn claim() -> ClaimDevice {
    ClaimDevice {
        claim_namespace: "research".into(),
        claim: "one-slice".into(),
        pool: "node-a".into(),
        ..test_data::claim("gpu.nvidia.com", "gpu-2-mig-1g.10gb-19-1")
    }
}

fn allocatable() -> Allocatable {
    let ids = |ids: &[&str]| ids.iter().map(|id| DeviceId::new(*id)).collect();
    Allocatable {
        devices: BTreeMap::from([
            ("nvidia.com/gpu".into(), ids(&[WHOLE])),
            ("nvidia.com/mig-1g.10gb".into(), ids(&[SLICE, OTHER_SLICE])),
            ("example.com/nic".into(), ids(&["nic-1", "nic-2"])),
        ]),
        cpus: (0..16).collect(),
        memory: vec![block("memory", &[0], 64 * GIB), block("memory", &[1], 64 * GIB)],
    }
}

/// The counters of a holder without any reading.
fn unread(held: f64, allocated: f64) -> HoldingCounters {
    HoldingCounters {
        held_seconds: Some(held),
        allocated_seconds: Some(allocated),
        uncovered_seconds: Some(allocated),
        ..HoldingCounters::default()
    }
}

fn accounts() -> Vec<Account> {
    let account = |namespace: &str, pod: &str, gpu: &str| {
        let container = ContainerRef::new(namespace, pod, "main");
        Account::new(container, gpu.into(), None, UnixSeconds(STARTED.0 + 100.5))
    };
    let holding = |resource: Option<&str>, id: &str, sharing, attribution, fraction| {
        let resource = resource.map(Into::into);
        Some(Holding { resource, attribution: Some(attribution), ..test_data::holding(id, sharing, fraction) })
    };
    let slice = |resource, id| holding(resource, id, SharingForm::Mig, Attribution::Estimated, 1.0 / 7.0);
    let counters = |allocated, busy, idle, energy_joules| HoldingCounters {
        held_seconds: Some(allocated),
        allocated_seconds: Some(allocated),
        busy_seconds: Some(busy),
        borrowed_seconds: Some(0.0),
        idle_seconds: Some(idle),
        uncovered_seconds: Some(0.0),
        energy_joules,
    };
    let exclusive = Account {
        holding: holding(Some("nvidia.com/gpu"), WHOLE, SharingForm::Exclusive, Attribution::Exclusive, 1.0),
        counters: counters(499.5, 300.5, 199.0, Some(200_000.0)),
        last_active: Some(UnixSeconds(STARTED.0 + 599.0)),
        utilization_ratio: Some(0.87),
        gpu_utilization_ratio: Some(0.87),
        processes: Some(2),
        sm_active_ratio: Some(0.25),
        dram_active_ratio: Some(0.0625),
        memory_used_bytes: Some(40 * GIB),
        memory_limit_bytes: Some(80 * GIB),
        ..account("research", "training-0", WHOLE)
    };
    let hostile = Account {
        mig: Some(SLICE.into()),
        holding: slice(Some("nvidia.com/mig-1g.10gb"), SLICE),
        counters: unread(500.5, 71.5),
        last_active: Some(UnixSeconds(STARTED.0 + 100.5)),
        utilization_ratio: Some(0.75),
        gpu_utilization_ratio: Some(0.75 / 7.0),
        memory_used_bytes: Some(2 * GIB),
        memory_limit_bytes: Some(10 * GIB),
        ..account("default", HOSTILE, PARTITIONED)
    };
    let claiming = Account {
        mig: Some(OTHER_SLICE.into()),
        holding: slice(None, "gpu-2-mig-1g.10gb-19-1"),
        counters: unread(70.0, 10.0),
        utilization_ratio: Some(0.0),
        gpu_utilization_ratio: Some(0.0),
        memory_used_bytes: Some(2 * GIB),
        ..account("research", "claiming", PARTITIONED)
    };
    let ended = Account {
        counters: counters(12.0, 12.0, 0.0, None),
        // A stale value, which must not be shown.
        utilization_ratio: Some(0.5),
        ended: Some(moment(500)),
        ..account("research", "finished", LOST)
    };
    vec![exclusive, hostile, claiming, ended]
}
