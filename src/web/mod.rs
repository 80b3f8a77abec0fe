//! HTTP: the metrics, the live page, the snapshot as JSON, health and readiness.
//!
//! In: listeners, the latest `Snapshot`, and two questions to the agent (healthy? ready?). Out: answers. Refuses to
//! know: the kubelet, drivers, and how anything is measured. No route changes anything, apart from an operator's orders on
//! the private socket; no request for a page waits for anything but its rendering.

mod html;
mod listener;
mod negotiation;
mod routes;
mod scrapes;
mod server;

pub use listener::{BindError, ListenAddress, Listener};
pub use routes::{Marker, Marking, Probe, WebState, admin_router, router};
pub use scrapes::ScrapeDurations;
pub use server::serve;

#[cfg(test)]
mod tests;
