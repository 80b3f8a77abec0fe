//! Tests with real peers of podmeter: Prometheus, VictoriaMetrics and a terminal under tmux. `scripts/check` installs them.
#![allow(clippy::unwrap_used, reason = "in a test an unwrap is an assertion")]
#![allow(clippy::disallowed_methods, reason = "tests start processes, wait for them and read the clock")]

#[path = "../support/mod.rs"]
mod support;

mod dashboards;
mod prometheus;
mod top;
mod victoria;
mod web_config;
