//! Snapshots as the publisher makes them, and the records that a tracker writes of them.

use std::sync::Arc;

use crate::domain::model::{
    ContainerXid, DeviceHealth, HealthState, HealthTransition, Holding, KubeletState, Pod, SharingForm, UnhealthyReason,
};
use crate::journal::allocation_tracker::*;
use crate::test_data;

pub const GPU: &str = "GPU-1";
/// The Unix time at the start of the first agent.
pub const BIRTH: f64 = 1_000_000.0;

/// Makes snapshots as the publisher does: one account per pod, all on one GPU, each second of a holding half busy.
#[derive(Clone, Default)]
pub struct TrackedNode {
    /// The seconds since the start of the agent; `born` is the Unix time of the start.
    pub second: u64,
    pub born: f64,
    pub accounts: BTreeMap<String, Account>,
    pub uids: BTreeMap<String, String>,
    pub health: HealthState,
    pub xids: Vec<ContainerXid>,
    pub settled: bool,
}

impl TrackedNode {
    pub fn new(born: f64) -> Self {
        Self { born, settled: true, ..Self::default() }
    }

    pub fn now(&self) -> Moment {
        Moment { monotonic: Monotonic::from_secs(self.second), unix: UnixSeconds(self.born + self.second as f64) }
    }

    pub fn hold(&mut self, pod: &str) {
        let now = self.now();
        let account = self.accounts.entry(pod.to_owned()).or_insert_with(|| account(pod, now.unix));
        (account.holding, account.ended) = (Some(holding()), None);
    }

    pub fn release(&mut self, pod: &str) {
        let now = self.now();
        let account = self.accounts.get_mut(pod).expect("held");
        (account.holding, account.ended) = (None, Some(now));
    }

    /// Advances the time, and the counters of the holdings.
    pub fn pass(&mut self, seconds: u64) {
        self.second += seconds;
        for account in self.accounts.values_mut().filter(|account| account.holding.is_some()) {
            gain(account, seconds as f64);
        }
    }

    /// Sets the device's health from now on. `known`: whether by a transition.
    pub fn turn(&mut self, reason: Option<UnhealthyReason>, known: bool) {
        let (healthy, since) = (reason.is_none(), self.now());
        let whole = test_data::device_health(since, reason.map(|reason| (reason, "because")));
        self.health.gpus.insert(GPU.into(), test_data::gpu_health(DeviceHealth { known, ..whole }));
        if known {
            let number = self.health.transitions.last().map_or(1, |last| last.number + 1);
            let reason = reason.unwrap_or(UnhealthyReason::Unknown);
            let (gpu, mig, holders) = (GPU.into(), None, vec![]);
            let detail = "because".into();
            let turn = HealthTransition { number, gpu, mig, to_healthy: healthy, reason, detail, at: since, holders };
            self.health.transitions.push(turn);
        }
    }

    pub fn forget(&mut self, pod: &str) {
        self.accounts.remove(pod);
    }

    pub fn snapshot(&self) -> Snapshot {
        let pod = |pod: &String| Pod {
            uid: self.uids.get(pod).map(|uid| uid.as_str().into()),
            ..test_data::holder(pod, &[("nvidia.com/gpu", GPU)])
        };
        let held = self.accounts.iter().filter(|(_, account)| account.holding.is_some());
        let kubelet = test_data::kubelet(held.map(|(name, _)| pod(name)));
        let kubelet = KubeletState { settled: self.settled, ..kubelet };
        Snapshot {
            at: self.now(),
            accounts: self.accounts.values().cloned().collect(),
            kubelet: Arc::new(kubelet),
            health: Arc::new(self.health.clone()),
            container_xids: self.xids.clone(),
            ..Snapshot::default()
        }
    }
}

pub fn holding() -> Holding {
    test_data::holding(GPU, SharingForm::Exclusive, 1.0)
}

pub fn account(pod: &str, created: UnixSeconds) -> Account {
    let account = Account::new(test_data::main_of(pod), GPU.into(), None, created);
    Account {
        counters: HoldingCounters {
            held_seconds: Some(0.0),
            allocated_seconds: Some(0.0),
            ..HoldingCounters::default()
        },
        ..account
    }
}

pub fn gain(account: &mut Account, seconds: f64) {
    let more = HoldingCounters {
        held_seconds: Some(seconds),
        allocated_seconds: Some(seconds),
        busy_seconds: Some(seconds / 2.0),
        idle_seconds: Some(seconds / 2.0),
        energy_joules: Some(seconds * 300.0),
        ..HoldingCounters::default()
    };
    account.counters = account.counters.plus(more);
}

/// A tracker without records of an earlier agent.
pub fn loaded() -> AllocationTracker {
    let mut tracker = AllocationTracker::default();
    tracker.load(vec![], 0, Moment::default());
    tracker
}

/// The records on disk, by id.
pub fn write(disk: &mut BTreeMap<u64, AllocationRecord>, tracker: &mut AllocationTracker) {
    let records = tracker.to_write();
    tracker.written(&records);
    disk.retain(|id, _| records.iter().all(|record| record.replaces != Some(*id)));
    disk.extend(records.into_iter().map(|record| (record.id, record)));
}

pub fn open(disk: &BTreeMap<u64, AllocationRecord>) -> Vec<AllocationRecord> {
    disk.values().filter(|record| record.is_open()).cloned().collect()
}
