//! Rewrites dcgm-exporter's metric names in Prometheus rules and Grafana dashboards: from one generation to the other, or to
//! podmeter's own metrics.
//!
//! What is not proven equivalent stays unchanged and is listed.

pub mod cli;
pub mod files;
pub mod migration;
pub mod promql;
pub mod queries;
pub mod report;
pub mod store;
pub mod units;
