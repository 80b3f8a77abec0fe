use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use super::devices::XidBatches;
use crate::clock::Clock;
use crate::domain::health::{Health, HealthConfig, HealthInputs, MarkError, NodeFaults, Order};
use crate::domain::model::{
    ContainerRef, GpuUuid, HardwareState, HealthState, HealthTransition, MigUuid, Monotonic, Snapshot, XidEvent,
};
use crate::serve::web::{AdminCommand, Marking};
use crate::tasks::Tasks;

/// Orders that wait.
const ORDERS: usize = 16;
/// Batches of XIDs that wait for their second reader. While it is late the source counts equal XIDs together.
const XID_BATCHES: usize = 16;

pub struct HealthTaskInputs {
    pub hardware: watch::Receiver<Arc<HardwareState>>,
    /// `None` without a driver.
    pub xids: Option<XidBatches>,
    /// To name the pods on a device whose health changes.
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    /// Those of an earlier agent.
    pub faults: NodeFaults,
}

/// The running health task.
pub struct HealthHandle {
    pub states: watch::Receiver<Arc<HealthState>>,
    /// Those to keep for the next agent.
    pub faults: watch::Receiver<NodeFaults>,
    pub operator: Operator,
}

/// Publishes the health of each device for as long as the task runs, and forwards every batch of XIDs, complete and in
/// order.
pub fn start(
    config: HealthConfig,
    inputs: HealthTaskInputs,
    clock: Clock,
    tasks: &mut Tasks,
) -> (HealthHandle, XidBatches) {
    let (publish, states) = watch::channel(Arc::default());
    let (order, orders) = mpsc::channel(ORDERS);
    let (forward_xids, forwarded_xids) = mpsc::channel(XID_BATCHES);
    let HealthTaskInputs { hardware, xids, snapshots, faults } = inputs;
    let (keep, kept) = watch::channel(faults);
    let task = HealthTask {
        config,
        clock,
        hardware,
        xids,
        forward_xids,
        unsent_xids: vec![],
        orders,
        snapshots,
        publish,
        keep,
    };
    tasks.spawn("health", task.run());
    (HealthHandle { states, faults: kept, operator: Operator(order) }, forwarded_xids)
}

struct HealthTask {
    config: HealthConfig,
    clock: Clock,
    hardware: watch::Receiver<Arc<HardwareState>>,
    xids: Option<XidBatches>,
    forward_xids: mpsc::Sender<Vec<XidEvent>>,
    /// Could not be forwarded yet; no further batch is received until it is.
    unsent_xids: Vec<XidEvent>,
    /// In the order in which the operators gave them.
    orders: mpsc::Receiver<OrderRequest>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    publish: watch::Sender<Arc<HealthState>>,
    /// At first the faults of an earlier agent.
    keep: watch::Sender<NodeFaults>,
}

type OrderRequest = (Order, oneshot::Sender<Result<String, MarkError>>);

/// Sends operators' orders to the health task.
#[derive(Clone, Debug)]
pub struct Operator(mpsc::Sender<OrderRequest>);

impl Operator {
    /// Returns the UUID of the device once the resulting state is published.
    async fn order(&self, order: Order) -> Result<String, String> {
        let ending = || "podmeter is ending".to_owned();
        let (answer, answered) = oneshot::channel();
        self.0.send((order, answer)).await.map_err(|_| ending())?;
        answered.await.map_err(|_| ending())?.map_err(|error| error.to_string())
    }

    /// In the form that `web` takes.
    pub fn marker(self, clock: Clock) -> AdminCommand<Marking, String> {
        Arc::new(move |Marking { device, mark }| {
            let order = match mark {
                Some((reason, lasts)) => {
                    let until = lasts.map(|lasts| clock.now().monotonic + lasts);
                    Order::Mark { device, reason, until }
                }
                None => Order::Unmark { device },
            };
            let operator = self.clone();
            Box::pin(async move { operator.order(order).await })
        })
    }
}

impl HealthTask {
    /// Runs until nothing reads the state any more. A source that ends is not polled again.
    async fn run(mut self) {
        let mut health = Health::new(self.config.clone());
        health.restore(self.clock.now(), &self.keep.borrow());
        let (mut hardware_lives, forward_xids) = (true, self.forward_xids.clone());
        let (mut events, mut logged) = (vec![], 0);
        loop {
            let hardware = Arc::clone(&self.hardware.borrow_and_update());
            // An XID comes before the reading that it caused, and must be named first.
            while self.unsent_xids.is_empty()
                && let Some(Ok(batch)) = self.xids.as_mut().map(mpsc::Receiver::try_recv)
            {
                self.forward(&batch);
                events.extend(batch);
            }
            let now = self.clock.now();
            health.advance(now, &HealthInputs { hardware: &hardware, events: &events });
            events.clear();
            self.log_transitions(&mut health, &mut logged);
            self.publish(&health);
            let deadline = health.next_deadline().map(|deadline| deadline.since(self.clock.now().monotonic));
            tokio::select! {
                changed = self.hardware.changed(), if hardware_lives => hardware_lives = changed.is_ok(),
                Some(batch) = receive(&mut self.xids), if self.unsent_xids.is_empty() => {
                    self.forward(&batch);
                    events = batch;
                }
                Ok(permit) = forward_xids.reserve(), if !self.unsent_xids.is_empty() => {
                    permit.send(std::mem::take(&mut self.unsent_xids));
                }
                Some(request) = self.orders.recv() => self.execute(&mut health, request, &mut logged),
                () = tokio::time::sleep(deadline.unwrap_or_default()), if deadline.is_some() => {}
                () = self.publish.closed() => return,
            }
        }
    }

    fn forward(&mut self, batch: &[XidEvent]) {
        // A reader that has ended ends the agent.
        if let Err(mpsc::error::TrySendError::Full(batch)) = self.forward_xids.try_send(batch.to_vec()) {
            self.unsent_xids = batch;
        }
    }

    fn execute(&self, health: &mut Health, (order, answer): OrderRequest, logged: &mut u64) {
        let executed = health.order(self.clock.now(), &order).inspect(|device| {
            log_order(&order, device, self.clock.now().monotonic);
            self.log_transitions(health, logged);
            self.publish(health);
        });
        // An error: the caller no longer waits; the order is executed all the same.
        let _ = answer.send(executed);
    }

    fn publish(&self, health: &Health) {
        replace(&self.keep, health.faults());
        replace(&self.publish, health.state());
    }

    /// One line for each transition, with the pods that hold the device; the state names them too.
    fn log_transitions(&self, health: &mut Health, logged: &mut u64) {
        for note in health.drain_notes() {
            tracing::warn!("{note}");
        }
        health.name_holders(*logged, |transition| self.holders(&transition.gpu, transition.mig.as_ref()));
        let allocations_known = self.snapshots.borrow().kubelet.allocations.is_some();
        let state = health.state();
        for transition in state.transitions.iter().filter(|transition| transition.number > *logged) {
            let HealthTransition { gpu, mig, reason, detail, holders, .. } = transition;
            let device = mig.as_ref().map_or(gpu.as_str(), MigUuid::as_str);
            let pods = pods(holders, allocations_known);
            let reason = reason.as_str();
            if transition.to_healthy {
                tracing::info!(device, reason, was = %detail, pods, "healthy");
            } else {
                tracing::warn!(device, reason, %detail, pods, "unhealthy");
            }
        }
        *logged = state.transitions.last().map_or(*logged, |transition| transition.number);
    }

    /// The containers that hold the device, or a part of it, now.
    fn holders(&self, gpu: &GpuUuid, mig: Option<&MigUuid>) -> Vec<ContainerRef> {
        let snapshot = self.snapshots.borrow();
        let holders: BTreeSet<&ContainerRef> = snapshot.holders(gpu, mig).collect();
        holders.into_iter().cloned().collect()
    }
}

/// Readers are notified of a change only.
fn replace<T: PartialEq>(published: &watch::Sender<T>, value: T) {
    published.send_if_modified(|current| {
        let is_changed = *current != value;
        *current = value;
        is_changed
    });
}

/// `ns/pod, ns/pod`
fn pods(holders: &[ContainerRef], is_known: bool) -> String {
    let pods: BTreeSet<String> = holders.iter().map(|holder| format!("{}/{}", holder.namespace, holder.pod)).collect();
    match pods.is_empty() {
        true if is_known => "none".to_owned(),
        true => "unknown".to_owned(),
        false => pods.into_iter().collect::<Vec<_>>().join(", "),
    }
}

fn log_order(order: &Order, device: &str, now: Monotonic) {
    match order {
        Order::Mark { reason, until, .. } => {
            let lasts = until.map(|until| humantime::format_duration(until.since(now)).to_string());
            tracing::info!(order = "mark", device, reason, lasts, "an operator's order");
        }
        Order::Unmark { .. } => tracing::info!(order = "unmark", device, "an operator's order"),
    }
}

/// The next batch; `None` once the source has ended, or without one.
async fn receive(xids: &mut Option<XidBatches>) -> Option<Vec<XidEvent>> {
    xids.as_mut()?.recv().await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::model::{
        Account, DeviceReadings, Gpu, HardwareSource, Holding, Inventory, Moment, SharingForm, Slow, Stamped,
        UnhealthyReason, UnixSeconds,
    };

    const GPU: &str = "GPU-1";

    struct Harness {
        clock: Clock,
        hardware: watch::Sender<Arc<HardwareState>>,
        events: mpsc::Sender<Vec<XidEvent>>,
        forwarded: XidBatches,
        operator: Operator,
        states: watch::Receiver<Arc<HealthState>>,
        _snapshot: watch::Sender<Arc<Snapshot>>,
        _tasks: Tasks,
    }

    impl Harness {
        fn start() -> Self {
            let clock = Clock::start();
            let (hardware, hardware_states) = watch::channel(Arc::new(HardwareState::default()));
            let (events, receiver) = mpsc::channel(64);
            let (snapshot, snapshots) = watch::channel(Arc::new(held()));
            let config = HealthConfig { hold_down: Duration::from_secs(60), ..HealthConfig::default() };
            let inputs = HealthTaskInputs {
                hardware: hardware_states,
                xids: Some(receiver),
                snapshots,
                faults: NodeFaults::default(),
            };
            let mut tasks = Tasks::default();
            let (HealthHandle { states, operator, .. }, forwarded) = start(config, inputs, clock, &mut tasks);
            Self { clock, hardware, events, forwarded, operator, states, _snapshot: snapshot, _tasks: tasks }
        }

        /// Publishes readings of the one GPU.
        fn read(&self, driver_loads: u64, recovery_action: u32) {
            let gpu = Gpu::listed(GPU.into(), 0);
            let value = Slow { recovery_action: Some(recovery_action), ..Slow::default() };
            let slow = Some(Stamped { at: self.clock.now().monotonic, value });
            let readings = DeviceReadings { slow, ..DeviceReadings::default() };
            self.hardware.send_replace(Arc::new(HardwareState {
                source: HardwareSource::Nvml,
                driver_loads,
                inventory: Arc::new(Inventory {
                    generation: 1,
                    gpus: [(GPU.into(), gpu)].into(),
                    ..Inventory::default()
                }),
                readings: [(GPU.into(), Arc::new(readings))].into(),
                ..HardwareState::default()
            }));
        }

        async fn until(&mut self, healthy: bool) -> Arc<HealthState> {
            let is =
                |state: &Arc<HealthState>| state.gpus.get(&GPU.into()).is_some_and(|gpu| gpu.is_healthy() == healthy);
            let becomes = self.states.wait_for(is);
            let state = tokio::time::timeout(Duration::from_secs(600), becomes).await.expect("in time").unwrap();
            Arc::clone(&state)
        }
    }

    /// A pod that holds the GPU.
    fn held() -> Snapshot {
        let holding = Holding {
            resource: None,
            device_ids: vec![],
            sharing: SharingForm::Exclusive,
            attribution: None,
            share: None,
            weight: 1.0,
        };
        let account = Account {
            holding: Some(holding),
            ..Account::new(ContainerRef::new("team", "train", "main"), GPU.into(), None, UnixSeconds(0.0))
        };
        Snapshot { accounts: vec![account], ..Snapshot::default() }
    }

    fn xid(code: u32, at: Moment) -> Vec<XidEvent> {
        vec![XidEvent { at, gpu: GPU.into(), instance: None, code, count: 1 }]
    }

    #[test]
    fn pods_are_none_only_after_the_kubelet_has_answered() {
        let holders = [ContainerRef::new("team", "train", "main"), ContainerRef::new("team", "train", "side")];
        assert_eq!(pods(&holders, true), "team/train");
        assert_eq!((pods(&[], true), pods(&[], false)), ("none".to_owned(), "unknown".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_xid_makes_a_device_unhealthy_until_the_hold_down_after_a_reload() {
        let mut harness = Harness::start();
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
        assert!(
            state
                .transitions
                .iter()
                .all(|transition| transition.holders == [ContainerRef::new("team", "train", "main")])
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_xid_precedes_the_reading_that_it_caused() {
        // Which of two that are ready is taken first is random.
        for _ in 0..32 {
            let mut harness = Harness::start();
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
        let mut harness = Harness::start();
        harness.read(1, 0);
        harness.until(true).await;
        let mark = harness.operator.clone().marker(harness.clock);
        let marking = |device: &str| Marking { device: device.to_owned(), mark: Some(("smells".to_owned(), None)) };
        mark(marking("0")).await.unwrap();
        assert!(!harness.states.borrow().gpus[&GPU.into()].is_healthy());
        assert!(mark(marking("GPU-9")).await.unwrap_err().contains("GPU-9"));
        mark(Marking { device: GPU.to_owned(), mark: None }).await.unwrap();
        harness.until(true).await;
    }

    #[tokio::test(start_paused = true)]
    async fn sources_that_end_do_not_end_the_task() {
        let mut harness = Harness::start();
        harness.read(1, 0);
        harness.until(true).await;
        let (events, _) = mpsc::channel(1);
        drop(std::mem::replace(&mut harness.events, events));
        harness.read(1, 1);
        harness.until(false).await;
    }

    #[tokio::test(start_paused = true)]
    async fn every_xid_is_forwarded_once_and_a_late_reader_delays_no_other_input() {
        let mut harness = Harness::start();
        harness.read(1, 0);
        harness.until(true).await;
        let batches = XID_BATCHES as u32 + 8;
        for code in 0..batches {
            harness.events.send(xid(1_000 + code, harness.clock.now())).await.unwrap();
        }
        harness.read(1, 1);
        harness.until(false).await;
        for code in 0..batches {
            assert_eq!(harness.forwarded.recv().await.unwrap()[0].code, 1_000 + code);
        }
        drop(harness.forwarded);
        harness.events.send(xid(48, harness.clock.now())).await.unwrap();
        let has_xid = |state: &Arc<HealthState>| {
            let mut causes = state.gpus.values().flat_map(|gpu| &gpu.whole.causes);
            causes.any(|cause| cause.reason == UnhealthyReason::Xid)
        };
        harness.states.wait_for(has_xid).await.expect("it works without the second reader");
    }
}
