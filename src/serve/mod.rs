//! What answers clients: Prometheus, browsers, the admin socket, other commands of podmeter.
//!
//! In: snapshots and requests. Out: pages, JSON and metrics. Does not use: the kubelet, the driver, processes.

pub mod api;
pub mod governance;
pub mod metrics;
pub mod web;
