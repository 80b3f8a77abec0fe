//! The hermetic tests: they need nothing that cargo does not build.
#![allow(clippy::unwrap_used, reason = "in a test an unwrap is an assertion")]
#![allow(clippy::disallowed_methods, reason = "tests start processes, wait for them and read the clock")]

#[path = "../support/mod.rs"]
mod support;

mod accuracy;
mod admin_commands;
mod agent;
mod architecture;
mod captures;
mod condition;
mod container_xids;
mod costly_driver;
mod dashboards;
mod dcgm;
mod deploy;
mod doctor;
mod documentation;
mod fake_kubelet;
mod fake_kubelet_faults;
mod gap_accounting;
mod governance;
mod gpu_check;
mod hardware_events;
mod hardware_nvml;
mod hardware_release;
mod hardware_supervisor;
mod health;
mod hostile_clients;
mod journal;
mod kubelet;
mod kubelet_restart;
mod lost_before_start;
mod machines;
mod mig_boards;
mod nvml_calls;
mod nvml_readings;
mod plugin;
mod plugin_cdi;
mod plugin_conflict;
mod plugin_faults;
mod plugin_held;
mod plugin_layout;
mod plugin_properties;
mod plugin_upstream;
mod preference;
mod processes;
mod profiles;
mod rules;
mod same_values;
mod sample_flow;
mod short_pods;
mod time_slicing;
mod top;
mod unserved_gpu;
mod web_config;
