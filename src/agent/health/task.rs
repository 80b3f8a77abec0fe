//! The task of device health.
//!
//! In: states of the hardware and its holders, XIDs, operators' orders, faults of an earlier agent. Out: `HealthState`,
//! the faults to keep, and a line of the log for each transition. What makes a device unhealthy is decided in
//! `domain::health`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::Clock;
use crate::domain::health::{Health, HealthConfig, MarkError, NodeFaults, OperatorOrder, OrderAction, OrderOutcome};
use crate::domain::holders::HoldersState;
use crate::domain::model::{
    ContainerRef, DeviceHealth, GpuHealth, GpuUuid, HealthState, HealthTransition, MigUuid, Monotonic,
};
use crate::hardware::XidBatches;
use crate::input;
use crate::serve::web::AdminCommand;
use crate::tasks::{self, Tasks};
use crate::words;

/// Orders in the queue; the next one waits until one is executed.
const MAX_ORDERS: usize = 16;
/// First checks take seconds. After this time those that lack one are logged with the others.
const FIRST_CHECKS: Duration = Duration::from_secs(30);

pub struct HealthTaskInputs {
    /// The hardware, and the pods on a device whose health changes.
    pub holders: watch::Receiver<Arc<HoldersState>>,
    /// Closed without a driver.
    pub xids: XidBatches,
    /// Those of an earlier agent.
    pub faults: NodeFaults,
}

/// The running health task.
pub struct HealthHandle {
    pub states: watch::Receiver<Arc<HealthState>>,
    /// Those to keep for the next agent; at first those of the earlier one.
    pub faults: watch::Receiver<NodeFaults>,
    pub order: AdminCommand<OperatorOrder, OrderOutcome>,
}

/// Publishes the health of each device for as long as the task runs.
pub fn start(config: HealthConfig, inputs: HealthTaskInputs, clock: Clock, tasks: &mut Tasks) -> HealthHandle {
    let HealthTaskInputs { holders, xids, faults } = inputs;
    let mut health = Health::new(config);
    health.restore(clock.now(), &faults);
    let (states, states_receiver) = watch::channel(Arc::default());
    let (faults, faults_receiver) = watch::channel(faults);
    let (order_sender, orders) = mpsc::channel(MAX_ORDERS);
    let task = HealthTask {
        health,
        last_logged: 0,
        known: BTreeMap::new(),
        unlogged_since: None,
        clock,
        holders,
        xids,
        orders,
        states,
        faults,
    };
    tasks.spawn("health", task.run());
    HealthHandle { states: states_receiver, faults: faults_receiver, order: executor(order_sender) }
}

struct HealthTask {
    health: Health,
    /// The number of the last transition that was logged.
    last_logged: u64,
    /// Each GPU, and whether its health was known when changes were last logged.
    known: BTreeMap<GpuUuid, bool>,
    /// Since when `known` differs from the last line about all GPUs.
    unlogged_since: Option<Monotonic>,
    clock: Clock,
    holders: watch::Receiver<Arc<HoldersState>>,
    xids: XidBatches,
    orders: mpsc::Receiver<OrderRequest>,
    states: watch::Sender<Arc<HealthState>>,
    faults: watch::Sender<NodeFaults>,
}

type OrderRequest = (OperatorOrder, oneshot::Sender<Result<OrderOutcome, MarkError>>);

/// The handler of the admin socket's orders. Completes once the resulting state is published.
fn executor(orders: mpsc::Sender<OrderRequest>) -> AdminCommand<OperatorOrder, OrderOutcome> {
    Arc::new(move |order| {
        let orders = orders.clone();
        Box::pin(async move {
            let ending = || "podmeter is ending".to_owned();
            let (answer, answered) = oneshot::channel();
            orders.send((order, answer)).await.map_err(|_| ending())?;
            answered.await.map_err(|_| ending())?.map_err(|error| error.to_string())
        })
    })
}

impl HealthTask {
    /// Runs until nothing reads the state any more, whichever inputs end.
    async fn run(mut self) {
        let mut events = vec![];
        loop {
            let hardware = Arc::clone(&self.holders.borrow_and_update().hardware);
            // After the readings: an XID that is sent before them is applied with them, and names the transition.
            while let Ok(batch) = self.xids.try_recv() {
                events.extend(batch);
            }
            self.health.advance(self.clock.now(), &hardware, &events);
            events.clear();
            self.log_changes();
            self.publish();
            let first_checks = self.unlogged_since.map(|since| since + FIRST_CHECKS);
            let deadline = self.health.next_deadline().into_iter().chain(first_checks).min();
            let deadline = deadline.map(|deadline| deadline.since(self.clock.now().monotonic));
            tokio::select! {
                () = tasks::changed(&mut self.holders) => {}
                Some(batch) = self.xids.recv() => events = batch,
                Some(request) = self.orders.recv() => self.execute(request),
                () = tokio::time::sleep(deadline.unwrap_or_default()), if deadline.is_some() => {}
                () = self.states.closed() => return,
            }
        }
    }

    fn execute(&mut self, (order, answer): OrderRequest) {
        let executed = self.health.execute(self.clock.now(), &order);
        if let Ok(outcome) = &executed {
            log_order(&order.action, outcome);
            self.log_changes();
            self.publish();
        }
        // An error: the caller no longer waits; the order is executed all the same.
        let _ = answer.send(executed);
    }

    fn publish(&self) {
        send_if_changed(&self.faults, self.health.faults());
        send_if_changed(&self.states, self.health.state());
    }

    /// Logs the notes, and each new transition with the pods that hold the device, which it adds to the state.
    fn log_changes(&mut self) {
        for note in self.health.drain_notes() {
            tracing::warn!("{note}");
        }
        let now = Arc::clone(&self.holders.borrow());
        let holders = |transition: &HealthTransition| holders(&now, &transition.gpu, transition.mig.as_ref());
        self.health.name_holders(self.last_logged, holders);
        let state = self.health.state();
        for transition in state.transitions.iter().filter(|transition| transition.number > self.last_logged) {
            let HealthTransition { gpu, mig, reason, detail, holders, .. } = transition;
            let device = mig.as_ref().map_or(gpu.as_str(), MigUuid::as_str);
            let pods = pods(holders, &now);
            let reason = reason.into_str();
            if transition.to_healthy {
                tracing::info!(device, reason, was = %detail, pods, "healthy");
            } else {
                tracing::warn!(device, reason, %detail, pods, "unhealthy");
            }
        }
        self.last_logged = state.transitions.last().map_or(self.last_logged, |transition| transition.number);
        self.log_first_checks(&state, &now);
    }

    fn log_first_checks(&mut self, state: &HealthState, now: &HoldersState) {
        let (found, is_due) = self.first_checks(state);
        for uuid in found {
            let device = state.gpus[uuid].devices().find(|device| !device.healthy);
            let reason = device.and_then(DeviceHealth::reason).map(<&str>::from);
            let detail = device.and_then(|device| device.ensure_healthy().err());
            let pods = pods(&holders(now, uuid, None), now);
            tracing::warn!(device = %uuid, reason, detail, pods, "unhealthy at its first check");
        }
        if !is_due {
            return;
        }
        let problem = |(uuid, gpu): (&GpuUuid, &GpuHealth)| {
            let problem = gpu.devices().find_map(|device| device.ensure_healthy().err())?;
            Some(format!("{uuid}: {problem}"))
        };
        let (gpus, unhealthy) = (state.gpus.len(), state.gpus.iter().filter_map(problem).collect::<Vec<_>>());
        match unhealthy.len() {
            0 => tracing::info!("{} healthy", words::counted(gpus, "GPU")),
            number => {
                let (healthy, gpus) = (gpus - number, words::counted(gpus, "GPU"));
                tracing::warn!(unhealthy = unhealthy.join(", "), "{healthy} of {gpus} healthy");
            }
        }
    }

    /// The GPUs whose first check found them unhealthy, and whether the line about all is due: each has been checked, or has had
    /// its time.
    fn first_checks<'a>(&mut self, state: &'a HealthState) -> (Vec<&'a GpuUuid>, bool) {
        let now = self.clock.now().monotonic;
        self.known.retain(|uuid, _| state.gpus.contains_key(uuid));
        let mut found = vec![];
        for (uuid, gpu) in &state.gpus {
            let known = gpu.devices().all(|device| device.known);
            if self.known.get(uuid) == Some(&known) {
                continue;
            }
            self.known.insert(uuid.clone(), known);
            self.unlogged_since.get_or_insert(now);
            found.extend((known && !gpu.is_healthy()).then_some(uuid));
        }
        let all_known = self.known.values().all(|known| *known);
        let due = self.unlogged_since.take_if(|since| all_known || now.since(*since) >= FIRST_CHECKS);
        (found, due.is_some())
    }
}

/// The containers that hold the device, or a part of it, now.
fn holders(now: &HoldersState, gpu: &GpuUuid, mig: Option<&MigUuid>) -> Vec<ContainerRef> {
    now.holdings.holders(gpu, mig).into_iter().cloned().collect()
}

/// Readers are notified of a change only.
fn send_if_changed<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|current| {
        let is_changed = *current != value;
        *current = value;
        is_changed
    });
}

/// `ns/pod, ns/pod`
fn pods(holders: &[ContainerRef], now: &HoldersState) -> String {
    let pods: BTreeSet<String> = holders.iter().map(|holder| format!("{}/{}", holder.namespace, holder.pod)).collect();
    match pods.is_empty() {
        true if now.kubelet.allocations.is_some() => "none".to_owned(),
        true => "unknown".to_owned(),
        false => pods.into_iter().collect::<Vec<_>>().join(", "),
    }
}

fn log_order(action: &OrderAction, OrderOutcome { device, removed, .. }: &OrderOutcome) {
    let removed: Vec<_> =
        removed.iter().map(|removed| format!("{}: {}", removed.device, removed.cause.detail)).collect();
    let removed = (!removed.is_empty()).then(|| removed.join(", "));
    match action {
        OrderAction::Mark { reason, lasts } => {
            let lasts = lasts.map(|lasts| input::Duration(lasts).to_string());
            tracing::info!(command = "mark", device, reason, lasts, "operator command");
        }
        OrderAction::Unmark => tracing::info!(command = "unmark", device, removed, "operator command"),
        OrderAction::ClearFaults => tracing::info!(command = "clear-faults", device, removed, "operator command"),
    }
}

#[cfg(test)]
mod tests;
