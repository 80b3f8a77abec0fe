//! Reads the devices, on separate threads.
//!
//! In: a driver (NVML, or simulated GPUs), the GPUs that are held or watched, and two requests: release and resume.
//! Out: `HardwareState` on a watch channel, and XIDs in batches for each subscriber. Does not use: pods, metrics, HTTP,
//! or what an XID means for health. NVML's types end here; a hung call costs only its thread and that GPU's data.
//!
//! | thread | started by | what it does | in driver calls | ends |
//! |---|---|---|---|---|
//! | `hardware` | `handle` | `supervisor`: sends commands, keeps deadlines, publishes | never | after the handle is dropped |
//! | `driver` | `handle` | `worker`: opens, lists and closes the driver | yes | with `hardware` |
//! | `gpu-…` | `enumerated_gpus`, one for each GPU | `worker`: reads the GPU | yes | with `hardware` |
//! | `events` | `supervisor`, one for each session | `event_thread`: waits for XIDs | yes | with its session |
//! | `query-…` | `nvml::per_gpu_query`, one for each GPU | queries the GPU for a list, or for events | yes | with its answer |
//!
//! A thread that is stuck in a call continues when the call returns, or ends then if the last column applies. After a panic,
//! the thread of a GPU and that of events are started again; that of the driver, or the supervisor, ends the agent.
//!
//! - What is shared: `source` (the traits of a driver), `messages` (between threads), `settings`, `plausible` (ranges).
//! - Control: `handle`, `supervisor`, `enumerated_gpus`, `tiers` (what is read when, and why), `rounds` (one publication
//!   for each), `release`.
//! - Totals over all sessions, without threads and clocks: `gpu_state` on `monotone`, `energy_counter`, `clock_events`,
//!   `recent_use`, `pcie_bytes`; `module_energy`. Of one reader: `integrate`.
//! - Sources: `nvml`, `simulated`, and the PCI bus in `pci`.

mod clock_events;
mod demand;
mod energy_counter;
mod enumerated_gpus;
mod event_thread;
mod gpu_state;
mod handle;
mod integrate;
mod messages;
mod module_energy;
mod monotone;
pub mod nvml;
mod pci;
mod pcie_bytes;
mod plausible;
mod recent_use;
mod release;
mod rounds;
mod settings;
pub mod simulated;
mod source;
mod supervisor;
mod tiers;
mod worker;

pub use demand::DemandSender;
pub use event_thread::{XidBatches, XidSender};
pub use gpu_state::{GpuState, Staleness};
pub use handle::{HardwareHandle, start};
pub use messages::ReleaseError;
pub use pci::scan as scan_pci_bus;
pub use release::DriverLease;
pub use settings::HardwareSettings;
pub use source::{
    CallDurations, CallProblem, Driver, DriverEventKind, DriverSession, EventFailure, EventSource, Failure,
    FailureCause, GpuReader, Integrals, Pass, PassStatus, RawEvent,
};
pub use tiers::{Demand, Due, Schedule, Tier};
pub use worker::Loading;

/// NVML's names of the clock event reasons, in the order of their bits.
pub const CLOCK_EVENTS: [&str; 9] = [
    "idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
];
