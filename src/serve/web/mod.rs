//! HTTP: the metrics, the live page, the snapshot as JSON, the last minutes, health and readiness.
//!
//! Inputs: listeners, the latest `Snapshot`, the governance record and the journal's allocations, two checks of the agent
//! (healthy, ready) and its commands (release, resume, mark, unmark, clear-faults). Outputs: responses and event
//! streams. Does not use: the kubelet, drivers. No route changes anything except the count of scrapes, and the commands
//! on the admin socket. A request for metrics or the snapshot waits for no disk; allocations wait for the journal,
//! passwords for their check.

mod access;
mod admin;
mod body;
mod config;
mod connections;
mod event_body;
mod listener;
mod negotiation;
mod page;
mod responses;
mod routes;
mod scrapes;
mod server;
mod state;
mod streams;

pub use admin::{Admin, AdminCommand, DriverCommands};
pub use body::CachedBodies;
pub use config::{PemFile, WatchedConfig, WebConfig, WebConfigError};
pub use connections::Limits;
pub use listener::{BindError, ListenAddress, Listener, Purpose};
pub use page::GrafanaUrl;
pub use routes::router;
pub use scrapes::Scrapes;
pub use server::{ServerSettings, WebThreads, start};
pub use state::{AllocationSource, GovernanceRequest, GovernanceSource, Probe, WatchGpus, WebState};
pub use streams::EventStreams;

#[cfg(test)]
mod tests;
