//! The thread of each GPU, and the driver thread for calls that concern the whole driver. Each of their calls may block
//! without limit.
//!
//! In: commands. Out: messages to the supervisor. They keep no deadlines and publish nothing.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use tracing::warn;

use super::messages::{DriverCommand, ListedGpus, PassReport, SupervisorMessage, SupervisorSender, WorkerCommand};
use super::pci::Bus;
use super::source::{Driver, DriverSession, Failure, FailureCause, GpuReader, Pass, PassStatus};
use super::tiers::Due;
use crate::clock::Clock;
use crate::domain::model::{GpuUuid, Moment, Monotonic};

/// The most commands that wait for a thread. For a GPU's: one to read, and one to drop the reader. For the driver's:
/// one at a time, and one at the end.
const COMMANDS: usize = 2;
const STACK_BYTES: usize = 512 * 1024;
/// The nice value of the GPUs' threads: a pass uses the processor for milliseconds, which must not delay the threads
/// that serve requests and register devices.
const NICENESS: i32 = 5;
/// How long loading the library may last; it takes milliseconds, on a slow disk seconds.
const LOADING_LIMIT: Duration = Duration::from_secs(300);

pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(body)
}

/// A thread and its commands. Dropping it lets the thread end once it is idle.
pub struct Thread<T> {
    commands: SyncSender<T>,
    handle: JoinHandle<()>,
}

impl<T: Send + 'static> Thread<T> {
    fn start(name: &str, body: impl FnOnce(Receiver<T>) + Send + 'static) -> io::Result<Self> {
        let (commands, received) = sync_channel(COMMANDS);
        Ok(Self { commands, handle: spawn(name, move || body(received))? })
    }

    /// Sends the command, or returns it when the thread has ended or its queue is full.
    pub fn send(&self, command: T) -> Result<(), T> {
        self.commands.try_send(command).map_err(|refused| match refused {
            TrySendError::Full(command) | TrySendError::Disconnected(command) => command,
        })
    }

    pub fn has_ended(&self) -> bool {
        self.handle.is_finished()
    }
}

/// Starts the thread that reads one GPU.
pub fn spawn_worker(gpu: GpuUuid, clock: Clock, to_supervisor: SupervisorSender) -> io::Result<Thread<WorkerCommand>> {
    // Linux shows fifteen bytes of a thread's name.
    let name = format!("gpu-{}", gpu.as_str().trim_start_matches("GPU-").get(..8).unwrap_or("reader"));
    Thread::start(&name, move |commands| {
        // This changes this thread alone. Where it is refused, the thread keeps the priority of the others.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        work(&gpu, clock, &commands, &to_supervisor);
    })
}

/// A GPU's reader, dropped before the session that it reads from.
struct CurrentReader {
    reader: Box<dyn GpuReader>,
    generation: u64,
    _session: Arc<dyn DriverSession>,
}

fn work(gpu: &GpuUuid, clock: Clock, commands: &Receiver<WorkerCommand>, to_supervisor: &SupervisorSender) {
    let mut current: Option<CurrentReader> = None;
    while let Ok(command) = commands.recv() {
        let message = match command {
            WorkerCommand::DropReader => {
                current = None;
                SupervisorMessage::ReaderDropped(gpu.clone())
            }
            WorkerCommand::Read { session, generation, due } => {
                let at = clock.now();
                current = current.filter(|current| current.generation == generation);
                let fresh = current.is_none();
                let pass = read(gpu, &mut current, session, generation, &due, at).unwrap_or_else(|failure| Pass {
                    status: status_of(&failure),
                    problems: vec![failure.problem],
                    ..Pass::default()
                });
                if pass.status != PassStatus::Answers {
                    current = None;
                }
                let duration = clock.now().monotonic.since(at.monotonic);
                let report = PassReport { gpu: gpu.clone(), generation, due, at, duration, fresh, pass };
                SupervisorMessage::Passed(Box::new(report))
            }
        };
        if to_supervisor.send(message).is_err() {
            return;
        }
    }
}

/// The status of a pass without a reader. A GPU at another index is not lost: all indices of the session are outdated.
fn status_of(failure: &Failure) -> PassStatus {
    match failure.cause {
        FailureCause::OtherGpuAtIndex => {
            warn!(problem = %failure, "the driver's order of GPUs has changed");
            PassStatus::SessionOver
        }
        FailureCause::UnlistedGpu => PassStatus::Unlisted,
        FailureCause::DriverNotLoaded | FailureCause::Other => PassStatus::Lost,
    }
}

fn read(
    gpu: &GpuUuid,
    current: &mut Option<CurrentReader>,
    session: Arc<dyn DriverSession>,
    generation: u64,
    due: &Due,
    at: Moment,
) -> Result<Pass, Failure> {
    let current = match current {
        Some(current) => current,
        None => current.insert(CurrentReader { reader: session.reader(gpu)?, generation, _session: session }),
    };
    Ok(current.reader.read(due, at))
}

/// Since when the driver's library is being loaded.
#[derive(Clone, Debug)]
pub struct Loading {
    since: Arc<Mutex<Option<Monotonic>>>,
    clock: Clock,
}

impl Loading {
    pub(super) fn new(clock: Clock) -> Self {
        Self { since: Arc::default(), clock }
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.since.lock().is_some()
    }

    /// Checks for the liveness probe whether the load takes too long.
    ///
    /// # Errors
    ///
    /// When it has lasted so long that only a new process can load it. The C library's loader is locked meanwhile, so
    /// that new threads of this process may hang.
    pub fn check(&self, now: Monotonic) -> Result<(), String> {
        let lasting = self.since.lock().map_or(Duration::ZERO, |since| now.since(since));
        if lasting < LOADING_LIMIT {
            return Ok(());
        }
        Err(format!("the driver library has not been loaded for {} s", lasting.as_secs()))
    }

    fn during<T>(&self, load: impl FnOnce() -> T) -> T {
        *self.since.lock() = Some(self.clock.now().monotonic);
        let loaded = load();
        *self.since.lock() = None;
        loaded
    }
}

/// Starts the thread that opens, inspects and closes the driver.
pub fn spawn_driver_thread(
    mut driver: Box<dyn Driver>,
    mut bus: Bus,
    loading: Loading,
    to_supervisor: SupervisorSender,
) -> io::Result<Thread<DriverCommand>> {
    Thread::start("driver", move |commands| {
        while let Ok(command) = commands.recv() {
            if to_supervisor.send(run_command(command, &mut *driver, &mut bus, &loading)).is_err() {
                return;
            }
        }
    })
}

fn run_command(command: DriverCommand, driver: &mut dyn Driver, bus: &mut Bus, loading: &Loading) -> SupervisorMessage {
    // The bus is scanned before the driver lists its GPUs, so that a GPU plugged in meanwhile is not missing.
    let on_bus = if matches!(command, DriverCommand::Close(_)) { None } else { bus.scan() };
    match command {
        DriverCommand::Open => {
            let loaded = loading.during(|| driver.load());
            let opened = loaded.and_then(|()| driver.open()).and_then(|session| {
                let session: Arc<dyn DriverSession> = session.into();
                let found = list_gpus(&*session, bus)?;
                Ok((session, found))
            });
            let node_devices = opened.as_ref().ok().and_then(|(session, _)| session.node_devices());
            let node_devices = node_devices.or_else(|| Some(bus.identify(on_bus?)));
            SupervisorMessage::Opened(Box::new(opened), node_devices)
        }
        DriverCommand::Inspect(session) => {
            let found = session.layout_changed().map(|changed| changed.then(|| Box::new(list_gpus(&*session, bus))));
            SupervisorMessage::Inspected(found, session.node_devices().or_else(|| Some(bus.identify(on_bus?))))
        }
        DriverCommand::Close(session) => {
            drop(session);
            SupervisorMessage::Closed
        }
    }
}

fn list_gpus(session: &dyn DriverSession, bus: &mut Bus) -> Result<ListedGpus, Failure> {
    let (mut inventory, problems) = session.inventory()?;
    // The kubelet places pods by the NUMA node of the PCI device. Where the GPU's memory is a node, NVML reports that
    // node, which has no CPUs.
    let is_simulated = session.node_devices().is_some();
    for gpu in inventory.gpus.values_mut().filter(|_| !is_simulated) {
        gpu.numa_node = gpu.pci_bus_id.as_ref().and_then(|bus_id| bus.numa_node(bus_id));
    }
    bus.set_listed(&inventory);
    Ok((inventory, problems))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;
    use crate::hardware::simulated::{SimulatedDriver, SimulatedProfile};

    #[test]
    fn an_excluded_gpu_is_known_while_the_driver_cannot_be_opened() {
        let (root, bus_id) = (tempfile::tempdir().unwrap(), "0000:17:00.0");
        let (device, information) = (format!("bus/pci/devices/{bus_id}"), format!("driver/nvidia/gpus/{bus_id}"));
        for (directory, file, text) in [
            (&device, "vendor", "0x10de"),
            (&device, "class", "0x030200"),
            (&information, "information", "GPU Excluded: Yes"),
        ] {
            fs::create_dir_all(root.path().join(directory)).unwrap();
            fs::write(root.path().join(directory).join(file), text).unwrap();
        }
        let driver = SimulatedDriver::new(SimulatedProfile::A100, 1);
        driver.set_driver_loaded(false);
        let bus = Bus::new(root.path().into(), root.path().into(), BTreeSet::new());
        let (to_supervisor, messages) = sync_channel(1);
        let thread = spawn_driver_thread(Box::new(driver), bus, Loading::new(Clock::start()), to_supervisor).unwrap();
        assert!(thread.send(DriverCommand::Open).is_ok());
        let Ok(SupervisorMessage::Opened(opened, Some(node_devices))) = messages.recv() else { panic!() };
        assert!(opened.is_err() && node_devices.on_bus[&bus_id.into()].excluded);
    }
}
