//! Who holds which hardware: joins the kubelet's answers with the driver's devices, once for each change.
//!
//! In: the states of the hardware, of the kubelet and of the bundled plugin. Out: one `HoldersState`, with the GPUs that the
//! driver does not enumerate; the GPUs that are held, which the driver reads more often. It waits for no call to the kubelet:
//! readings are published while one hangs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Clock;
use crate::domain::holders::{HoldersState, Holdings, MissingGpus, Slots, join};
use crate::domain::model::{GpuUuid, HardwareState, KubeletState, Monotonic, PciBusId, PluginState, ResourceName};
use crate::tasks::{Tasks, changed};

/// After this long the held GPUs are sent again to hardware threads that were busy.
const DEMAND_RETRY: Duration = Duration::from_secs(1);

/// Sends the GPUs that are held, and those whose holders have changed. False while the hardware threads are busy.
pub type HeldDemand = Box<dyn Fn(BTreeSet<GpuUuid>, BTreeSet<GpuUuid>) -> bool + Send + Sync>;

pub struct HoldersInputs {
    pub hardware: watch::Receiver<Arc<HardwareState>>,
    pub kubelet: watch::Receiver<Arc<KubeletState>>,
    /// Names the resources that are shared through MPS: device IDs do not show it.
    pub plugin: watch::Receiver<Arc<PluginState>>,
    /// Whether the bundled plugin may offer GPUs as this resource.
    pub may_be_offered: Box<dyn Fn(&ResourceName) -> bool + Send + Sync>,
    /// Where an earlier agent had GPUs that the driver served.
    pub served: BTreeSet<PciBusId>,
    /// `None` without a driver.
    pub demand: Option<HeldDemand>,
}

/// Publishes who holds the hardware for as long as the task runs.
pub fn start(inputs: HoldersInputs, clock: Clock, tasks: &mut Tasks) -> watch::Receiver<Arc<HoldersState>> {
    let hardware = Arc::clone(&inputs.hardware.borrow());
    let (publish, states) = watch::channel(Arc::new(HoldersState { hardware, ..HoldersState::default() }));
    tasks.spawn("holders", run(inputs, clock, publish));
    states
}

/// The end of the hardware threads is logged here, as the agent continues without them; with another task the agent ends.
async fn run(inputs: HoldersInputs, clock: Clock, publish: watch::Sender<Arc<HoldersState>>) {
    let HoldersInputs { mut hardware, mut kubelet, mut plugin, may_be_offered, served, demand } = inputs;
    let mut holders = HoldersJoin::new(served);
    let mut logged = LoggedGpus::default();
    let mut hardware_runs = hardware.has_changed().is_ok();
    loop {
        let states = (Arc::clone(&hardware.borrow_and_update()), Arc::clone(&kubelet.borrow_and_update()));
        let by_mps = shared_by_mps(&plugin.borrow_and_update());
        let state = holders.advance(states, by_mps, &*may_be_offered, clock.now().monotonic);
        log(&state, &mut logged);
        publish.send_replace(state);
        holders.send_demand(demand.as_ref().filter(|_| hardware_runs));
        tokio::select! {
            changed = hardware.changed(), if hardware_runs => if changed.is_err() {
                tracing::error!("the hardware threads have ended; the device readings are no longer updated");
                hardware_runs = false;
            },
            () = changed(&mut kubelet) => {}
            () = mps_changed(&mut plugin, holders.slots.by_mps()) => {}
            () = tokio::time::sleep(DEMAND_RETRY), if !holders.changed.is_empty() => {}
        }
    }
}

/// The resources whose slots are shared through MPS.
fn shared_by_mps(plugin: &PluginState) -> BTreeSet<ResourceName> {
    let resources = plugin.resources.iter();
    let shared = resources.filter(|(_, served)| served.mps && (served.registered || served.conflict.is_none()));
    shared.map(|(resource, _)| resource.clone()).collect()
}

async fn mps_changed(plugin: &mut watch::Receiver<Arc<PluginState>>, known: &BTreeSet<ResourceName>) {
    while shared_by_mps(&plugin.borrow_and_update()) == *known {
        changed(plugin).await;
    }
}

/// The last state, and what the next one is made from besides its inputs. Pure.
#[derive(Default)]
struct HoldersJoin {
    missing: MissingGpus,
    slots: Slots,
    state: Arc<HoldersState>,
    /// GPUs whose holdings have changed since that was last sent.
    changed: BTreeSet<GpuUuid>,
}

impl HoldersJoin {
    fn new(served: BTreeSet<PciBusId>) -> Self {
        Self { missing: MissingGpus::new(served), ..Self::default() }
    }

    fn advance(
        &mut self,
        (hardware, kubelet): (Arc<HardwareState>, Arc<KubeletState>),
        by_mps: BTreeSet<ResourceName>,
        may_be_offered: &dyn Fn(&ResourceName) -> bool,
        now: Monotonic,
    ) -> Arc<HoldersState> {
        let hardware = self.missing.add_to(&hardware, &kubelet, may_be_offered, now);
        let mps_changed = self.slots.set_mps(by_mps);
        let holdings = if mps_changed || !self.has_equal_inputs(&hardware, &kubelet) {
            self.joined(&hardware, &kubelet)
        } else {
            Arc::clone(&self.state.holdings)
        };
        self.state = Arc::new(HoldersState { hardware, kubelet, holdings });
        Arc::clone(&self.state)
    }

    /// Whether the last holdings were joined from these.
    fn has_equal_inputs(&self, hardware: &HardwareState, kubelet: &KubeletState) -> bool {
        let before = &self.state.kubelet;
        Arc::ptr_eq(&self.state.hardware.inventory, &hardware.inventory)
            && before.allocations == kubelet.allocations
            && before.allocatable == kubelet.allocatable
            && (before.settled, &before.unconfirmed) == (kubelet.settled, &kubelet.unconfirmed)
    }

    fn joined(&mut self, hardware: &HardwareState, kubelet: &KubeletState) -> Arc<Holdings> {
        let allocations = kubelet.allocations.clone().unwrap_or_default();
        let allocatable = kubelet.allocatable.clone().unwrap_or_default();
        let inventory = &hardware.inventory;
        self.slots.update_counts(&allocations, &allocatable, inventory, kubelet.settled);
        let mut holdings = join(&allocations, &allocatable, inventory, &self.slots);
        holdings.held.add(kubelet.unconfirmed.iter().flat_map(|pod| &pod.containers), inventory);
        let before = &self.state.holdings;
        self.changed.extend(holdings.differing_gpus(before).chain(before.differing_gpus(&holdings)).cloned());
        Arc::new(holdings)
    }

    fn send_demand(&mut self, demand: Option<&HeldDemand>) {
        let held = || self.state.holdings.by_key.keys().map(|key| key.gpu.clone()).collect();
        if demand.is_none_or(|demand| self.changed.is_empty() || demand(held(), self.changed.clone())) {
            self.changed.clear();
        }
    }
}

#[derive(Default)]
struct LoggedGpus {
    missing: BTreeSet<GpuUuid>,
    unserved: BTreeSet<GpuUuid>,
}

fn log(state: &HoldersState, logged: &mut LoggedGpus) {
    let inventory = &state.hardware.inventory;
    log_changes(&inventory.missing, &mut logged.missing, "the GPU is no longer missing", |gpu, missing| {
        let held = state.holdings.held.contains(gpu);
        tracing::warn!(%gpu, held, "a GPU is missing: {}; see nvidia-smi and the Xid lines of the kernel log", missing.detail);
    });
    let ended = "the GPU was removed, or the NVIDIA driver is now expected to serve it";
    log_changes(&inventory.unserved, &mut logged.unserved, ended, |gpu, of_kernel| {
        let address = inventory.gpus.get(gpu).and_then(|gpu| gpu.pci_bus_id.as_ref()).map_or("", PciBusId::as_str);
        tracing::warn!(
            %gpu,
            "the NVIDIA driver does not serve this GPU ({of_kernel}), so it is not offered and has no health; to use it, \
             install a driver that supports it or bind it to nvidia; to hide it, set ignoreGpus: [\"{address}\"]"
        );
    });
}

/// One line for each GPU that is listed, and one when it no longer is.
fn log_changes<T>(
    listed: &BTreeMap<GpuUuid, T>,
    logged: &mut BTreeSet<GpuUuid>,
    ended: &str,
    began: impl Fn(&GpuUuid, &T),
) {
    for gpu in logged.iter().filter(|gpu| !listed.contains_key(gpu)) {
        tracing::info!(%gpu, "{ended}");
    }
    for (gpu, found) in listed.iter().filter(|(gpu, _)| !logged.contains(gpu)) {
        began(gpu, found);
    }
    *logged = listed.keys().cloned().collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::Gpu;
    use crate::test_data;

    fn hardware() -> Arc<HardwareState> {
        let gpus = [0, 1].map(|number| Gpu::listed(test_data::uuid(number).as_str().into(), 0));
        let inventory = Arc::new(test_data::inventory(gpus));
        Arc::new(HardwareState { inventory, ..HardwareState::default() })
    }

    /// Pod a holds GPU 0; the kubelet may still reject pod b, which has GPU 1.
    fn kubelet() -> Arc<KubeletState> {
        let pod = |name, gpu| test_data::holder(name, &[("nvidia.com/gpu", &test_data::uuid(gpu))]);
        Arc::new(KubeletState { unconfirmed: vec![pod("b", 1)], ..test_data::kubelet([pod("a", 0)]) })
    }

    #[test]
    fn holdings_are_joined_again_only_for_other_inputs() {
        let mut holders = HoldersJoin::new(BTreeSet::new());
        let mut advance =
            |states| holders.advance(states, BTreeSet::new(), &|_| false, Monotonic::default()).holdings.clone();
        let first = advance((hardware(), kubelet()));
        let gpus: Vec<GpuUuid> = [0, 1].map(|number| test_data::uuid(number).as_str().into()).into();
        assert_eq!(first.by_key.keys().map(|key| &key.gpu).collect::<Vec<_>>(), [&gpus[0]]);
        assert!(gpus.iter().all(|gpu| first.held.contains(gpu)), "nothing of an unconfirmed pod is given to others");
        let (same_hardware, same_kubelet) = (hardware(), kubelet());
        let same = advance((Arc::clone(&same_hardware), Arc::clone(&same_kubelet)));
        let readings = HardwareState { sessions: 2, ..(*same_hardware).clone() };
        assert!(Arc::ptr_eq(&same, &advance((Arc::new(readings), Arc::clone(&same_kubelet)))), "other readings");
        let confirmed = KubeletState { unconfirmed: vec![], ..(*same_kubelet).clone() };
        assert!(!advance((same_hardware, Arc::new(confirmed))).held.contains(&gpus[1]));
    }

    #[test]
    fn held_gpus_are_sent_until_the_hardware_threads_take_them() {
        let mut holders = HoldersJoin::new(BTreeSet::new());
        holders.advance((hardware(), kubelet()), BTreeSet::new(), &|_| false, Monotonic::default());
        let gpu: BTreeSet<GpuUuid> = [test_data::uuid(0).as_str().into()].into();
        for (is_taken, left) in [(false, gpu.clone()), (true, BTreeSet::new())] {
            let sent = gpu.clone();
            let demand: HeldDemand = Box::new(move |held, changed| {
                assert_eq!((held, changed), (sent.clone(), sent.clone()));
                is_taken
            });
            holders.send_demand(Some(&demand));
            assert_eq!(holders.changed, left);
        }
        let unchanged: HeldDemand = Box::new(|_, changed| unreachable!("{changed:?}"));
        holders.send_demand(Some(&unchanged));
    }
}
