//! HTTP: the metrics, the live page, the snapshot as JSON, the last minutes, health and readiness.
//!
//! Inputs: listeners, the latest `Snapshot`, two checks of the agent (healthy, ready) and its commands (release,
//! resume, mark, unmark). Outputs: responses and event streams. Does not use: the kubelet, drivers. No route changes
//! anything except the commands on the admin socket; no request for metrics or
//! the snapshot waits for anything but its own response; allocations wait for the journal, passwords for their check.

mod access;
mod admin;
mod body;
mod config;
mod connections;
mod listener;
mod live;
mod negotiation;
mod page;
mod routes;
mod scrapes;
mod server;

pub use admin::{Admin, AdminCommand, DriverCommands, Marking};
pub use body::CachedBodies;
pub use config::{LiveConfig, WebConfig, WebConfigError};
pub use connections::Limits;
pub use listener::{BindError, ListenAddress, Listener, Purpose};
pub use live::Live;
pub use routes::{AllocationSource, GovernanceRequest, GovernanceSource, Probe, WebState, router};
pub use scrapes::ScrapeDurations;
pub use server::{ServerSettings, Threads, start};

#[cfg(test)]
mod tests;
