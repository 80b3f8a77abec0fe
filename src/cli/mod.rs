//! What was typed, made into validated settings before anything is opened or bound.
//!
//! In: arguments, environment, a configuration file. Out: a command to run and an exit code. Refuses to know: how any
//! of it is done.

mod arguments;
mod config_file;
mod settings;

pub use arguments::{AgentArguments, Arguments, Command, DemoArguments, MetricsFormat};
pub use settings::{AgentSettings, HardwareSource, InvalidSettings, LogFormat, Reloadable};
