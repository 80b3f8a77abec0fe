//! podmeter: a Kubernetes device plugin and GPU exporter that reports which container uses which device.
//! `ARCHITECTURE.md` describes the modules and the dependencies permitted between them.

pub mod agent;
pub mod backoff;
pub mod clock;
pub mod commands;
pub mod domain;
pub mod files;
pub mod input;
pub mod node;
pub mod serve;
pub mod simulation;
pub mod tasks;
pub mod terminal;
#[cfg(test)]
mod test_data;
pub mod words;
