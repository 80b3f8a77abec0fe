use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use super::xids::next;
use crate::clock::Clock;
use crate::health::{Config, Evidence, Health, MarkError, Order};
use crate::model::{
    ContainerRef, GpuUuid, HardwareState, HealthState, HealthTransition, MigUuid, Monotonic, Snapshot, XidEvent,
};
use crate::tasks::Tasks;
use crate::web::{Command as WebCommand, Marking};

/// Orders that wait.
const ORDERS: usize = 16;

pub struct Inputs {
    pub hardware: watch::Receiver<Arc<HardwareState>>,
    /// `None` without a driver.
    pub xids: Option<mpsc::Receiver<Vec<XidEvent>>>,
    /// To name the pods on a device whose health changes.
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
}

/// The running health task.
pub struct Handle {
    states: watch::Receiver<Arc<HealthState>>,
    operator: Operator,
}

impl Handle {
    pub fn states(&self) -> watch::Receiver<Arc<HealthState>> {
        self.states.clone()
    }

    pub fn operator(&self) -> Operator {
        self.operator.clone()
    }
}

/// Publishes the health of each device for as long as the task runs.
pub fn start(config: Config, inputs: Inputs, clock: Clock, tasks: &mut Tasks) -> Handle {
    let (publish, states) = watch::channel(Arc::default());
    let (order, orders) = mpsc::channel(ORDERS);
    let Inputs { hardware, xids, snapshots } = inputs;
    tasks.spawn("health", Judge { config, clock, hardware, xids, orders, snapshots, publish }.run());
    Handle { states, operator: Operator(order) }
}

struct Judge {
    config: Config,
    clock: Clock,
    hardware: watch::Receiver<Arc<HardwareState>>,
    xids: Option<mpsc::Receiver<Vec<XidEvent>>>,
    /// In the order in which the operators gave them.
    orders: mpsc::Receiver<Request>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    publish: watch::Sender<Arc<HealthState>>,
}

type Request = (Order, oneshot::Sender<Result<(), MarkError>>);

/// Sends operators' orders to the health task.
#[derive(Clone, Debug)]
pub struct Operator(mpsc::Sender<Request>);

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    #[error(transparent)]
    Refused(#[from] MarkError),
    #[error("podmeter is ending")]
    Ending,
}

impl Operator {
    /// Returns once the verdict that follows is published.
    pub async fn order(&self, order: Order) -> Result<(), OrderError> {
        let (answer, answered) = oneshot::channel();
        self.0.send((order, answer)).await.map_err(|_| OrderError::Ending)?;
        Ok(answered.await.map_err(|_| OrderError::Ending)??)
    }
}

/// The operator as the web room asks for one.
pub fn marker(operator: Operator, clock: Clock) -> WebCommand<Marking, ()> {
    Arc::new(move |Marking { device, mark }| {
        let order = match mark {
            Some((reason, lasts)) => {
                let until = lasts.map(|lasts| clock.now().monotonic + lasts);
                Order::Mark { device, reason, until }
            }
            None => Order::Unmark { device },
        };
        let operator = operator.clone();
        Box::pin(async move { operator.order(order).await.map_err(|error| error.to_string()) })
    })
}

impl Judge {
    /// Judges for ever. A source that ends is not asked again.
    async fn run(mut self) {
        let mut health = Health::new(self.config.clone());
        let (mut hardware_lives, mut orders_live) = (true, true);
        let (mut events, mut told) = (vec![], 0);
        loop {
            let hardware = Arc::clone(&self.hardware.borrow_and_update());
            // What the driver told of came before what was read because of it, and is to be named first.
            while let Some(Ok(batch)) = self.xids.as_mut().map(mpsc::Receiver::try_recv) {
                events.extend(batch);
            }
            let now = self.clock.now();
            health.advance(now, &Evidence { hardware: &hardware, events: &events });
            events.clear();
            self.tell(&mut health, &mut told);
            self.publish(health.state());
            let deadline = health.next_deadline().map(|deadline| deadline.since(self.clock.now().monotonic));
            tokio::select! {
                changed = self.hardware.changed(), if hardware_lives => hardware_lives = changed.is_ok(),
                batch = next(&mut self.xids) => match batch {
                    Some(batch) => events = batch,
                    None => self.xids = None,
                },
                request = self.orders.recv(), if orders_live => match request {
                    Some(request) => self.carry_out(&mut health, request, &mut told),
                    None => orders_live = false,
                },
                () = tokio::time::sleep(deadline.unwrap_or_default()), if deadline.is_some() => {}
                () = self.publish.closed() => return,
            }
        }
    }

    fn carry_out(&self, health: &mut Health, (order, answer): Request, told: &mut u64) {
        let carried_out = health.order(self.clock.now(), &order);
        let reply = match carried_out {
            Ok(_) => {
                log_order(&order, self.clock.now().monotonic);
                self.tell(health, told);
                self.publish(health.state());
                Ok(())
            }
            Err(error) => Err(error),
        };
        // Nobody waits for it any more: it is carried out all the same.
        let _ = answer.send(reply);
    }

    fn publish(&self, state: Arc<HealthState>) {
        self.publish.send_if_modified(|published| {
            let changed = !Arc::ptr_eq(published, &state);
            if changed {
                *published = state;
            }
            changed
        });
    }

    /// One line for each turn, with who held the device; the state names them, too.
    fn tell(&self, health: &mut Health, told: &mut u64) {
        for note in health.take_notes() {
            tracing::warn!("{note}");
        }
        health.name_holders(*told, |turn| self.holders(&turn.gpu, turn.mig.as_ref()));
        let state = health.state();
        for turn in state.transitions.iter().filter(|turn| turn.number > *told) {
            let HealthTransition { gpu, mig, reason, detail, holders, .. } = turn;
            let device = mig.as_ref().map_or(gpu.as_str(), MigUuid::as_str);
            let pods = pods(holders);
            let reason = reason.as_str();
            if turn.to_healthy {
                tracing::info!(device, reason, was = %detail, pods, "healthy");
            } else {
                tracing::warn!(device, reason, %detail, pods, "unhealthy");
            }
        }
        *told = state.transitions.last().map_or(*told, |turn| turn.number);
    }

    /// Those that hold the device, or a part of it, now.
    fn holders(&self, gpu: &GpuUuid, mig: Option<&MigUuid>) -> Vec<ContainerRef> {
        let snapshot = self.snapshots.borrow();
        let holders = snapshot.accounts.iter().filter(|account| {
            account.holding.is_some() && account.gpu == *gpu && (mig.is_none() || account.mig.as_ref() == mig)
        });
        let holders: BTreeSet<&ContainerRef> = holders.map(|account| &account.container).collect();
        holders.into_iter().cloned().collect()
    }
}

/// `ns/pod, ns/pod`
fn pods(holders: &[ContainerRef]) -> String {
    let pods: BTreeSet<String> = holders.iter().map(|holder| format!("{}/{}", holder.namespace, holder.pod)).collect();
    if pods.is_empty() { "none".to_owned() } else { pods.into_iter().collect::<Vec<_>>().join(", ") }
}

fn log_order(order: &Order, now: Monotonic) {
    match order {
        Order::Mark { device, reason, until } => {
            let lasts = until.map(|until| humantime::format_duration(until.since(now)).to_string());
            tracing::info!(order = "mark", device, reason, lasts, "an operator's order");
        }
        Order::Unmark { device } => tracing::info!(order = "unmark", device, "an operator's order"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::{
        Account, DeviceReadings, Gpu, Holding, Inventory, Moment, Sharing, Slow, Stamped, UnhealthyReason, UnixSeconds,
        XidSource,
    };

    const GPU: &str = "GPU-1";

    struct Court {
        clock: Clock,
        hardware: watch::Sender<Arc<HardwareState>>,
        events: mpsc::Sender<Vec<XidEvent>>,
        operator: Operator,
        states: watch::Receiver<Arc<HealthState>>,
        _snapshot: watch::Sender<Arc<Snapshot>>,
        _tasks: Tasks,
    }

    impl Court {
        fn start() -> Self {
            let clock = Clock::start();
            let (hardware, hardware_states) = watch::channel(Arc::new(HardwareState::default()));
            let (events, receiver) = mpsc::channel(64);
            let (snapshot, snapshots) = watch::channel(Arc::new(held()));
            let config = Config { hold_down: Duration::from_secs(60), ..Config::default() };
            let inputs = Inputs { hardware: hardware_states, xids: Some(receiver), snapshots };
            let mut tasks = Tasks::default();
            let Handle { states, operator } = start(config, inputs, clock, &mut tasks);
            Self { clock, hardware, events, operator, states, _snapshot: snapshot, _tasks: tasks }
        }

        /// One GPU, which has just said this.
        fn say(&self, driver_loads: u64, recovery_action: u32) {
            let gpu = Gpu::listed(GPU.into(), 0);
            let value = Slow { recovery_action: Some(recovery_action), ..Slow::default() };
            let slow = Some(Stamped { at: self.clock.now().monotonic, value });
            let readings = DeviceReadings { slow, ..DeviceReadings::default() };
            self.hardware.send_replace(Arc::new(HardwareState {
                source: "nvml",
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
            sharing: Sharing::Exclusive,
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
        vec![XidEvent { at, gpu: GPU.into(), instance: None, code, source: XidSource::Nvml, process: None, count: 1 }]
    }

    #[tokio::test(start_paused = true)]
    async fn an_xid_takes_a_device_down_and_a_reload_brings_it_back_at_the_deadline() {
        let mut court = Court::start();
        court.say(1, 0);
        court.until(true).await;
        tokio::time::advance(Duration::from_secs(1)).await;
        court.events.send(xid(48, court.clock.now())).await.unwrap();
        court.until(false).await;
        tokio::time::advance(Duration::from_secs(1)).await;
        court.say(2, 0);
        tokio::time::advance(Duration::from_secs(1)).await;
        // The readings of the new session; after them nothing more is heard.
        tokio::task::yield_now().await;
        court.say(2, 0);
        let before = court.clock.now().monotonic;
        let state = court.until(true).await;
        assert!(court.clock.now().monotonic.since(before) >= Duration::from_secs(59), "held down");
        assert_eq!(state.transitions.len(), 2);
        assert!(state.transitions.iter().all(|turn| turn.holders == [ContainerRef::new("team", "train", "main")]));
    }

    #[tokio::test(start_paused = true)]
    async fn an_xid_goes_before_the_reading_that_it_caused() {
        // Which of two that are ready is taken first is random.
        for _ in 0..32 {
            let mut court = Court::start();
            court.say(1, 0);
            court.until(true).await;
            court.events.send(xid(48, court.clock.now())).await.unwrap();
            court.say(1, 1);
            let state = court.until(false).await;
            assert_eq!(state.transitions.last().map(|turn| turn.reason), Some(UnhealthyReason::Xid));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_operator_gets_an_answer_when_the_verdict_is_published() {
        let mut court = Court::start();
        court.say(1, 0);
        court.until(true).await;
        let mark = marker(court.operator.clone(), court.clock);
        let marking = |device: &str| Marking { device: device.to_owned(), mark: Some(("smells".to_owned(), None)) };
        mark(marking("0")).await.unwrap();
        assert!(!court.states.borrow().gpus[&GPU.into()].is_healthy());
        assert!(mark(marking("GPU-9")).await.unwrap_err().contains("GPU-9"));
        mark(Marking { device: GPU.to_owned(), mark: None }).await.unwrap();
        court.until(true).await;
    }

    #[tokio::test(start_paused = true)]
    async fn sources_that_end_do_not_end_the_judge() {
        let mut court = Court::start();
        court.say(1, 0);
        court.until(true).await;
        let (events, _) = mpsc::channel(1);
        drop(std::mem::replace(&mut court.events, events));
        court.say(1, 1);
        court.until(false).await;
    }
}
