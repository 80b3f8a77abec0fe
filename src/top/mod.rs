//! `podmeter top`: devices and the containers on them, live in a terminal or once as plain text.
//!
//! Inputs: the agent's responses, keys, the terminal's size. Outputs: a screen, or text. Does not use: connections to
//! the agent. Unknown values are shown as a dash.
//!
//! `rows` converts a response into rows, `state` selects and sorts them, `view` draws them, `plain` prints them, and
//! only `run` uses the terminal.

mod detail;
mod format;
mod history;
#[doc(hidden)] // for the fuzz targets
pub mod plain;
mod rows;
mod run;
mod state;
mod style;
mod totals;
mod view;

pub use run::{TopError, TopSettings, run};

#[cfg(test)]
mod tests;
