//! HTTP: the metrics, the live page, the snapshot as JSON, the last minutes, health and readiness.
//!
//! In: listeners, the latest `Snapshot`, two questions to the agent (healthy? ready?) and its orders (release, resume, mark,
//! unmark). Out: answers, and streams of events. Refuses to know: the kubelet, drivers, and how anything is measured. No route changes anything,
//! except the orders on the admin socket; no other request waits for anything but the making of its answer.

mod admin;
mod answer;
mod auth;
mod config;
mod connections;
mod gate;
mod listener;
mod live;
mod negotiation;
mod page;
mod pieces;
mod prepare;
mod routes;
mod scrapes;
mod server;

pub use admin::{Admin, DriverOrders, Marking, Order};
pub(crate) use config::san::alternative_names;
pub use config::{LiveConfig, WebConfig, WebConfigError};
pub use connections::Limits;
pub use listener::{BindError, ListenAddress, Listener};
pub use live::Live;
pub use pieces::Pieces;
pub use prepare::prepare_thread;
pub use routes::{AllocationSource, Answers, Probe, RecordRequest, RecordSource, WebState, router};
pub use scrapes::ScrapeDurations;
pub use server::{ServerSettings, start};

#[cfg(test)]
mod tests;
