//! The rows, one file for what breaks there.

pub mod claims;
pub mod clients;
pub mod clock;
pub mod condition;
pub mod configuration;
pub mod devices;
pub mod disk;
pub mod driver;
pub mod kubelet;
pub mod plugin;
pub mod signals;
