//! podmeter: a Kubernetes device plugin and GPU exporter that reports which container uses which device.
//! `ARCHITECTURE.md` describes the modules and the dependencies permitted between them.

pub mod agent;
pub mod backoff;
pub mod clock;
pub mod commands;
pub mod domain;
pub mod files;
#[cfg(any(test, fuzzing))]
#[path = "../fuzz/src/mod.rs"]
pub mod fuzzing;
pub mod hardware;
pub mod input;
pub mod journal;
pub mod kubelet;
pub mod plugin;
pub mod processes;
pub mod serve;
pub mod simulation;
pub mod tasks;
pub mod terminal;
#[cfg(test)]
mod test_data;
pub mod wire;
pub mod words;
