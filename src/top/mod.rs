//! `podmeter top`: devices and the containers on them, live in a terminal or once as plain text.
//!
//! In: the agent's answers, keys, the terminal's size. Out: a screen, or text. Refuses to know: how an agent is reached,
//! and what nobody told: absent is a dash.
//!
//! `rows` makes an answer into rows, `state` decides which are shown and in what order, `view` draws them, `plain` prints
//! them, and `run` alone touches the terminal.

mod detail;
mod format;
mod history;
pub(crate) mod plain;
mod rows;
mod run;
mod state;
mod style;
mod view;

pub use run::{TopError, TopSettings, run};

#[cfg(test)]
mod tests;
