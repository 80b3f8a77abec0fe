//! Rewrites dcgm-exporter's metric names from one generation to the other in Prometheus rules, Grafana dashboards and queries.
//!
//! What is not proven equal stays unchanged and is listed.

pub mod cli;
pub mod files;
pub mod migration;
pub mod names;
pub mod promql;
pub mod queries;
pub mod report;
pub mod variables;
