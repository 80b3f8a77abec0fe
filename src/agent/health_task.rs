//! The task of device health.
//!
//! In: hardware states, XIDs, operators' orders, faults of an earlier agent. Out: `HealthState`, the faults to keep, and a
//! line of the log for each transition. What makes a device unhealthy is decided in `domain::health`.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::Clock;
use crate::domain::health::{Health, HealthConfig, HealthInputs, MarkError, NodeFaults, OperatorOrder};
use crate::domain::model::{
    ContainerRef, GpuUuid, HardwareState, HealthState, HealthTransition, MigUuid, Monotonic, Snapshot,
};
use crate::node::hardware::XidBatches;
use crate::serve::web::{AdminCommand, Marking};
use crate::tasks::Tasks;

/// Orders that wait.
const ORDERS: usize = 16;

pub struct HealthTaskInputs {
    pub hardware: watch::Receiver<Arc<HardwareState>>,
    /// Closed without a driver.
    pub xids: XidBatches,
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

/// Publishes the health of each device for as long as the task runs.
pub fn start(config: HealthConfig, inputs: HealthTaskInputs, clock: Clock, tasks: &mut Tasks) -> HealthHandle {
    let (publish, states) = watch::channel(Arc::default());
    let (order, orders) = mpsc::channel(ORDERS);
    let HealthTaskInputs { hardware, xids, snapshots, faults } = inputs;
    let (keep, kept) = watch::channel(faults);
    let task = HealthTask { config, clock, hardware, xids, orders, snapshots, publish, keep };
    tasks.spawn("health", task.run());
    HealthHandle { states, faults: kept, operator: Operator(order) }
}

struct HealthTask {
    config: HealthConfig,
    clock: Clock,
    hardware: watch::Receiver<Arc<HardwareState>>,
    xids: XidBatches,
    /// In the order in which the operators gave them.
    orders: mpsc::Receiver<OrderRequest>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    publish: watch::Sender<Arc<HealthState>>,
    /// At first the faults of an earlier agent.
    keep: watch::Sender<NodeFaults>,
}

type OrderRequest = (OperatorOrder, oneshot::Sender<Result<String, MarkError>>);

/// Sends operators' orders to the health task.
#[derive(Clone, Debug)]
pub struct Operator(mpsc::Sender<OrderRequest>);

impl Operator {
    /// Returns the UUID of the device once the resulting state is published.
    async fn order(&self, order: OperatorOrder) -> Result<String, String> {
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
                    OperatorOrder::Mark { device, reason, until }
                }
                None => OperatorOrder::Unmark { device },
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
        let (mut hardware_lives, mut events, mut logged) = (true, vec![], 0);
        loop {
            let hardware = Arc::clone(&self.hardware.borrow_and_update());
            // An XID comes before the reading that it caused, and must be named first.
            while let Ok(batch) = self.xids.try_recv() {
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
                Some(batch) = self.xids.recv() => events = batch,
                Some(request) = self.orders.recv() => self.execute(&mut health, request, &mut logged),
                () = tokio::time::sleep(deadline.unwrap_or_default()), if deadline.is_some() => {}
                () = self.publish.closed() => return,
            }
        }
    }

    fn execute(&self, health: &mut Health, (order, answer): OrderRequest, logged: &mut u64) {
        let executed = health.execute(self.clock.now(), &order).inspect(|device| {
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

fn log_order(order: &OperatorOrder, device: &str, now: Monotonic) {
    match order {
        OperatorOrder::Mark { reason, until, .. } => {
            let lasts = until.map(|until| humantime::format_duration(until.since(now)).to_string());
            tracing::info!(order = "mark", device, reason, lasts, "an operator's order");
        }
        OperatorOrder::Unmark { .. } => tracing::info!(order = "unmark", device, "an operator's order"),
    }
}

#[cfg(test)]
mod tests;
