//! `podmeter top`: devices and the containers on them, live in a terminal or once as plain text.
//!
//! Inputs: the agent's responses, keys, the terminal's size. Outputs: a screen, or text. Unknown values are shown as a
//! dash.
//!
//! `table` and `detail` make lines of a response, `screen` selects among them, and only `run` uses the terminal and the
//! client.

mod detail;
mod format;
mod run;
mod screen;
mod table;

pub use run::{TopError, TopSettings, run};
pub(crate) use table::text;

/// One line without control characters.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    text: String,
    style: Style,
}

/// The style of a line; each also has a word or sign, for terminals without colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Plain,
    Heading,
    Quiet,
    Alarm,
    Selected,
}

impl Line {
    fn new(text: impl Into<String>, style: Style) -> Self {
        Self { text: text.into(), style }
    }
}

#[cfg(test)]
mod tests;
