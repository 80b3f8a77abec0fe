use super::*;
use crate::domain::model::{
    DeviceHealth, DeviceReadings, Gpu, HardwareSource, HardwareState, Moment, SharingForm, Slow, Stamped,
    UnhealthyReason, XidEvent,
};
use crate::test_data;

const GPU: &str = "GPU-1";

#[test]
fn pods_are_none_only_after_the_kubelet_has_answered() {
    let holders = [test_data::main_of("train"), ContainerRef::new("team", "train", "side")];
    let mut now = HoldersState::default();
    assert_eq!((pods(&holders, &now), pods(&[], &now)), ("team/train".to_owned(), "unknown".to_owned()));
    Arc::make_mut(&mut now.kubelet).allocations = Some(Arc::default());
    assert_eq!(pods(&[], &now), "none");
}

#[tokio::test(start_paused = true)]
async fn an_xid_makes_a_device_unhealthy_until_the_hold_down_after_a_reload() {
    let mut harness = ObservedHealthTask::start();
    harness.read(1, 0);
    harness.until(true).await;
    tokio::time::advance(Duration::from_secs(1)).await;
    harness.events.send(xid(48, harness.clock.now())).await.unwrap();
    harness.until(false).await;
    tokio::time::advance(Duration::from_secs(1)).await;
    harness.read(2, 0);
    tokio::time::advance(Duration::from_secs(1)).await;
    // The readings of the new session, and none after them.
    tokio::task::yield_now().await;
    harness.read(2, 0);
    let before = harness.clock.now().monotonic;
    let state = harness.until(true).await;
    assert!(harness.clock.now().monotonic.since(before) >= Duration::from_secs(59), "held down");
    assert_eq!(state.transitions.len(), 2);
    assert!(state.transitions.iter().all(|transition| transition.holders == [test_data::main_of("train")]));
}

#[tokio::test(start_paused = true)]
async fn an_xid_precedes_the_reading_that_it_caused() {
    // Which of two that are ready is taken first is random.
    for _ in 0..32 {
        let mut harness = ObservedHealthTask::start();
        harness.read(1, 0);
        harness.until(true).await;
        harness.events.send(xid(48, harness.clock.now())).await.unwrap();
        harness.read(1, 1);
        let state = harness.until(false).await;
        assert_eq!(state.transitions.last().map(|transition| transition.reason), Some(UnhealthyReason::Xid));
    }
}

#[tokio::test(start_paused = true)]
async fn an_operator_gets_an_answer_when_the_state_is_published() {
    let mut harness = ObservedHealthTask::start();
    harness.read(1, 0);
    harness.until(true).await;
    let order = |device: &str, action| (harness.order)(OperatorOrder { device: device.to_owned(), action });
    let mark = || OrderAction::Mark { reason: "smells".to_owned(), lasts: None };
    order("0", mark()).await.unwrap();
    assert!(!harness.states.borrow().gpus[&GPU.into()].is_healthy());
    assert!(order("GPU-9", mark()).await.unwrap_err().contains("GPU-9"));
    assert_eq!(order("0", OrderAction::Unmark).await.unwrap().removed.len(), 1);
    harness.until(true).await;
}

#[tokio::test(start_paused = true)]
async fn sources_that_end_do_not_end_the_task() {
    let mut harness = ObservedHealthTask::start();
    harness.read(1, 0);
    harness.until(true).await;
    let (events, _) = mpsc::channel(1);
    drop(std::mem::replace(&mut harness.events, events));
    harness.read(1, 1);
    harness.until(false).await;
}

/// GPU 3 was refused for this process: no line named GPU 2, and no line had a number.
#[tokio::test(start_paused = true)]
async fn a_gpu_whose_health_stays_unknown_keeps_no_other_out_of_the_log() {
    let mut task = HealthTask {
        health: Health::new(HealthConfig::default()),
        last_logged: 0,
        known: BTreeMap::new(),
        unlogged_since: None,
        clock: Clock::start(),
        holders: watch::channel(Arc::default()).1,
        xids: mpsc::channel(1).1,
        orders: mpsc::channel(1).1,
        states: watch::channel(Arc::default()).0,
        faults: watch::channel(NodeFaults::default()).0,
    };
    let mut state = HealthState::default();
    let mut logged = |changes: &[(&str, Option<UnhealthyReason>)]| {
        let since = task.clock.now();
        for (uuid, reason) in changes {
            let known = *reason != Some(UnhealthyReason::Unknown);
            let whole = test_data::device_health(since, reason.map(|reason| (reason, "bad")));
            state.gpus.insert((*uuid).into(), test_data::gpu_health(DeviceHealth { known, ..whole }));
        }
        let (found, is_due) = task.first_checks(&state);
        (found.into_iter().map(|uuid| uuid.as_str().to_owned()).collect::<Vec<_>>(), is_due)
    };
    let (unknown, none) = (Some(UnhealthyReason::Unknown), vec![]);
    assert_eq!(logged(&[(GPU, unknown), ("GPU-2", unknown), ("GPU-3", unknown)]), (none.clone(), false));
    assert_eq!(logged(&[(GPU, Some(UnhealthyReason::Xid)), ("GPU-2", None)]), (vec![GPU.to_owned()], false));
    assert_eq!(logged(&[]), (none.clone(), false));
    tokio::time::advance(FIRST_CHECKS).await;
    assert_eq!(logged(&[]), (none.clone(), true), "two are known");
    tokio::time::advance(FIRST_CHECKS).await;
    assert_eq!(logged(&[(GPU, None)]), (none.clone(), false), "a transition");
    assert_eq!(logged(&[("GPU-3", None)]), (none, true), "all are known");
}

struct ObservedHealthTask {
    clock: Clock,
    holders: watch::Sender<Arc<HoldersState>>,
    events: mpsc::Sender<Vec<XidEvent>>,
    order: AdminCommand<OperatorOrder, OrderOutcome>,
    states: watch::Receiver<Arc<HealthState>>,
    _tasks: Tasks,
}

impl ObservedHealthTask {
    fn start() -> Self {
        let clock = Clock::start();
        let (holders, states_of_holders) = watch::channel(Arc::new(held(HardwareState::default())));
        let (events, receiver) = mpsc::channel(64);
        let config = HealthConfig { hold_down: Duration::from_secs(60), ..HealthConfig::default() };
        let inputs = HealthTaskInputs { holders: states_of_holders, xids: receiver, faults: NodeFaults::default() };
        let mut tasks = Tasks::default();
        let HealthHandle { states, order, .. } = start(config, inputs, clock, &mut tasks);
        Self { clock, holders, events, order, states, _tasks: tasks }
    }

    /// Publishes readings of the one GPU.
    fn read(&self, driver_loads: u64, recovery_action: u32) {
        let value = Slow { recovery_action: Some(recovery_action), ..Slow::default() };
        let slow = Some(Stamped { at: self.clock.now().monotonic, value });
        let readings = DeviceReadings { slow, ..DeviceReadings::default() };
        self.holders.send_replace(Arc::new(held(HardwareState {
            source: HardwareSource::Nvml,
            driver_loads,
            inventory: Arc::new(test_data::inventory([Gpu::listed(GPU.into(), 0)])),
            readings: [(GPU.into(), Arc::new(readings))].into(),
            ..HardwareState::default()
        })));
    }

    async fn until(&mut self, healthy: bool) -> Arc<HealthState> {
        let is = |state: &Arc<HealthState>| state.gpus.get(&GPU.into()).is_some_and(|gpu| gpu.is_healthy() == healthy);
        let becomes = self.states.wait_for(is);
        let state = tokio::time::timeout(Duration::from_secs(600), becomes).await.expect("in time").unwrap();
        Arc::clone(&state)
    }
}

/// A pod holds the GPU.
fn held(hardware: HardwareState) -> HoldersState {
    let holdings = Arc::new(test_data::holdings(&["train"], GPU, SharingForm::Exclusive, 1.0));
    HoldersState { hardware: Arc::new(hardware), holdings, ..HoldersState::default() }
}

fn xid(code: u32, at: Moment) -> Vec<XidEvent> {
    vec![test_data::xid(at, GPU, code)]
}
