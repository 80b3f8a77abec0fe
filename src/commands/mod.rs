//! The commands of the binary.
//!
//! In: arguments, environment, a configuration file. Out: a running agent, or text about one, and an exit code.

pub mod cli;
pub mod client;
pub mod doctor;
pub mod top;
