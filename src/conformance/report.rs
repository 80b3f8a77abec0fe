use std::fmt::Write as _;

use serde::Serialize;

use crate::terminal::write_wrapped;

/// Columns before wrapped text.
const INDENT: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Met,
    NotMet,
    NotApplicable,
    /// A page of metrics cannot prove it.
    CannotBeChecked,
    /// No requirement.
    Observed,
}

impl Status {
    fn word(self) -> (&'static str, &'static str) {
        match self {
            Self::Met => ("met", "32"),
            Self::NotMet => ("not met", "1;31"),
            Self::NotApplicable => ("not applicable", "2"),
            Self::CannotBeChecked => ("cannot be checked", "33"),
            Self::Observed => ("observed", "2"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    Must,
    Should,
    /// No requirement.
    None,
}

/// One requirement and what the page shows of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Does not change between versions.
    pub id: &'static str,
    /// In `AIConformance-*.yaml`.
    pub checklist: Option<&'static str>,
    pub level: Level,
    pub status: Status,
    /// In our words.
    pub demand: &'static str,
    pub evidence: String,
    /// The metrics that are the evidence.
    pub metrics: Vec<String>,
    /// How it is checked otherwise.
    pub to_do: Option<&'static str>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub schema: &'static str,
    pub version: &'static str,
    pub url: String,
    pub accelerators: usize,
    pub samples: usize,
    pub met: usize,
    pub not_met: usize,
    pub cannot_be_checked: usize,
    pub lines: Vec<Line>,
}

impl Report {
    pub(super) fn new(url: String, accelerators: usize, samples: usize, lines: Vec<Line>) -> Self {
        let count = |status| lines.iter().filter(|line| line.status == status).count();
        Self {
            schema: "podmeter.conformance/v1",
            version: env!("CARGO_PKG_VERSION"),
            url,
            accelerators,
            samples,
            met: count(Status::Met),
            not_met: count(Status::NotMet),
            cannot_be_checked: count(Status::CannotBeChecked),
            lines,
        }
    }

    /// No requirement of level MUST is known not to be met.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        !self.lines.iter().any(|line| line.level == Level::Must && line.status == Status::NotMet)
    }

    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain values are JSON") + "\n"
    }

    /// In lines of at most this many columns.
    #[must_use]
    pub fn text(&self, colour: bool, columns: usize) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let (word, code) = line.status.word();
            let word = if colour { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() };
            let level = match line.level {
                Level::Must => " (MUST)",
                Level::Should => " (SHOULD)",
                Level::None => " (no requirement)",
            };
            let _ = writeln!(text, "{}{level}: {word}", line.id);
            write_wrapped(&mut text, "  demand  ", INDENT, line.demand, columns);
            write_wrapped(&mut text, "  found   ", INDENT, &line.evidence, columns);
            if let Some(to_do) = line.to_do {
                write_wrapped(&mut text, "  to do   ", INDENT, to_do, columns);
            }
        }
        let Self { met, not_met, cannot_be_checked, .. } = self;
        let _ = writeln!(text, "\n{}: {} samples, {} accelerators", self.url, self.samples, self.accelerators);
        let _ = writeln!(text, "{met} met, {not_met} not met, {cannot_be_checked} cannot be checked from a page");
        text
    }
}
