use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::Clock;
use crate::health::{Config, Evidence, Health, MarkError, Order};
use crate::model::{GpuUuid, HardwareState, HealthState, HealthTransition, MigUuid, Snapshot, XidEvent};

/// Batches of XIDs that wait while the judge is busy, which it never is for long; a full queue holds the sources back.
pub const BATCHES: usize = 64;
/// Orders that wait.
const ORDERS: usize = 16;

/// The one who judges: owns the verdicts and publishes them.
pub struct Judge {
    pub config: Config,
    pub clock: Clock,
    pub hardware: watch::Receiver<Arc<HardwareState>>,
    pub events: mpsc::Receiver<Vec<XidEvent>>,
    pub orders: Orders,
    /// Whether the GPUs are let go on request.
    pub released: watch::Receiver<bool>,
    /// To name the pods on a device that turns.
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    pub publish: watch::Sender<Arc<HealthState>>,
}

type Asked = (Order, oneshot::Sender<Result<(), MarkError>>);

/// What operators ask for, in the order in which they did.
pub struct Orders(mpsc::Receiver<Asked>);

/// An operator's way to the judge.
#[derive(Clone, Debug)]
pub struct Operator(mpsc::Sender<Asked>);

/// Why an order was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    #[error(transparent)]
    Refused(#[from] MarkError),
    #[error("podmeter is ending")]
    Ending,
}

#[must_use]
pub fn operator() -> (Operator, Orders) {
    let (ask, asked) = mpsc::channel(ORDERS);
    (Operator(ask), Orders(asked))
}

impl Operator {
    /// Returns once the verdict that follows is published.
    pub async fn order(&self, order: Order) -> Result<(), OrderError> {
        let (answer, answered) = oneshot::channel();
        self.0.send((order, answer)).await.map_err(|_| OrderError::Ending)?;
        Ok(answered.await.map_err(|_| OrderError::Ending)??)
    }
}

impl Judge {
    /// Judges for ever. A source that ends is not asked again.
    pub async fn run(mut self) {
        let mut health = Health::new(self.config.clone());
        let (mut hardware_lives, mut events_live, mut orders_live, mut release_lives) = (true, true, true, true);
        let (mut events, mut told) = (vec![], 0);
        loop {
            let now = self.clock.now();
            let hardware = Arc::clone(&self.hardware.borrow_and_update());
            let released = *self.released.borrow_and_update();
            let state = health.advance(now, &Evidence { hardware: &hardware, events: &events, released });
            events.clear();
            self.tell(&mut health, &state, &mut told);
            self.publish(state);
            let deadline = health.next_deadline().map(|deadline| deadline.since(self.clock.now().monotonic));
            tokio::select! {
                changed = self.hardware.changed(), if hardware_lives => hardware_lives = changed.is_ok(),
                batch = self.events.recv(), if events_live => match batch {
                    Some(batch) => events = batch,
                    None => events_live = false,
                },
                asked = self.orders.0.recv(), if orders_live => match asked {
                    Some(asked) => self.carry_out(&mut health, asked, &mut told),
                    None => orders_live = false,
                },
                changed = self.released.changed(), if release_lives => release_lives = changed.is_ok(),
                () = tokio::time::sleep(deadline.unwrap_or_default()), if deadline.is_some() => {}
                () = self.publish.closed() => return,
            }
        }
    }

    fn carry_out(&self, health: &mut Health, (order, answer): Asked, told: &mut u64) {
        let carried_out = health.order(self.clock.now(), &order);
        let reply = match carried_out {
            Ok(state) => {
                tracing::info!(?order, "an operator's order");
                self.tell(health, &state, told);
                self.publish(state);
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

    /// One line for each turn.
    fn tell(&self, health: &mut Health, state: &HealthState, told: &mut u64) {
        for note in health.take_notes() {
            tracing::warn!("{note}");
        }
        for turn in state.transitions.iter().filter(|turn| turn.number > *told) {
            let HealthTransition { gpu, mig, reason, detail, .. } = turn;
            let device = mig.as_ref().map_or(gpu.as_str(), MigUuid::as_str);
            let pods = self.pods(gpu, mig.as_ref());
            let reason = reason.as_str();
            if turn.to_healthy {
                tracing::info!(device, reason, was = %detail, pods, "healthy");
            } else {
                tracing::warn!(device, reason, %detail, pods, "unhealthy");
            }
        }
        *told = state.transitions.last().map_or(*told, |turn| turn.number);
    }

    /// Those that hold the device now: `ns/pod, ns/pod`.
    fn pods(&self, gpu: &GpuUuid, mig: Option<&MigUuid>) -> String {
        let snapshot = self.snapshots.borrow();
        let holders = snapshot.accounts.iter().filter(|account| {
            account.holding.is_some() && account.gpu == *gpu && (mig.is_none() || account.mig.as_ref() == mig)
        });
        let pods: BTreeSet<String> =
            holders.map(|account| format!("{}/{}", account.container.namespace, account.container.pod)).collect();
        if pods.is_empty() { "none".to_owned() } else { pods.into_iter().collect::<Vec<_>>().join(", ") }
    }
}
