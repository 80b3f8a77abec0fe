//! What several tests and benchmarks need: the agent as a process, fakes, peers, data.
#![allow(dead_code, unused_imports, reason = "each test binary and benchmark uses a part")]
#![allow(clippy::unwrap_used, reason = "in a test an unwrap is an assertion")]
#![allow(clippy::disallowed_methods, reason = "tests start processes, wait for them and read the clock")]

pub mod accuracy;
pub mod agent;
pub mod captures;
pub mod certificates;
pub mod dashboards;
pub mod demo;
pub mod device_health;
pub mod fake_nvml;
pub mod full_node;
pub mod hardware;
pub mod kubelet;
pub mod lab;
pub mod links;
pub mod logfmt;
pub mod plugin_harness;
pub mod polling;
pub mod prometheus;
pub mod scripted_driver;
pub mod sick_node;
pub mod stand_in_plugin;
pub mod watched_kubelet;
pub mod watching;

#[path = "../../src/test_data.rs"]
pub mod test_data;

use podmeter::domain;
