//! The result of each check, and the report of all as text and JSON.

use serde::Serialize;

use crate::domain::model::{Timestamp, UnixSeconds};
use crate::terminal::write_wrapped;
use crate::words::counted;

/// The status of a check, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// It does not work.
    Failed,
    /// It works less well than it could, or it cannot be determined.
    Warning,
    Ok,
    /// It does not apply here; `found` has the reason.
    Skipped,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub status: CheckStatus,
    pub found: String,
    pub to_do: Option<String>,
}

impl Finding {
    pub fn ok(found: impl Into<String>) -> Self {
        Self { status: CheckStatus::Ok, found: found.into(), to_do: None }
    }

    pub fn warning(found: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self { status: CheckStatus::Warning, found: found.into(), to_do: Some(to_do.into()) }
    }

    pub fn failed(found: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self { status: CheckStatus::Failed, found: found.into(), to_do: Some(to_do.into()) }
    }

    pub fn skipped(reason: impl Into<String>) -> Self {
        Self { status: CheckStatus::Skipped, found: reason.into(), to_do: None }
    }

    /// The finding with its subject before what was found.
    pub fn about(self, subject: String) -> Self {
        Self { found: format!("{subject}: {}", self.found), ..self }
    }
}

/// The result of a check function; an error is a finding too, for `?`.
pub type CheckOutcome = Result<Finding, Finding>;

/// A finding with the facts of its check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The ID, which does not change between versions.
    pub id: &'static str,
    pub title: &'static str,
    pub status: CheckStatus,
    pub found: String,
    /// Why it matters.
    pub why: &'static str,
    /// What to do, unless the status is ok or skipped.
    pub to_do: Option<String>,
}

impl Check {
    pub fn new(id: &'static str, title: &'static str, why: &'static str, outcome: CheckOutcome) -> Self {
        let Finding { status, found, to_do } = outcome.unwrap_or_else(|finding| finding);
        Self { id, title, status, found, why, to_do }
    }
}

/// All checks, in their order.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorReport {
    pub schema: &'static str,
    pub version: &'static str,
    pub at: Timestamp,
    pub failed: usize,
    pub warnings: usize,
    pub ok: usize,
    pub skipped: usize,
    /// The number of checks of this machine, where only an agent is checked.
    pub left_out: usize,
    pub checks: Vec<Check>,
}

impl DoctorReport {
    pub fn new(now: UnixSeconds, checks: Vec<Check>, left_out: usize) -> Self {
        let count = |status| checks.iter().filter(|check| check.status == status).count();
        Self {
            schema: "podmeter.doctor/v1",
            version: env!("CARGO_PKG_VERSION"),
            at: Timestamp(now),
            failed: count(CheckStatus::Failed),
            warnings: count(CheckStatus::Warning),
            ok: count(CheckStatus::Ok),
            skipped: count(CheckStatus::Skipped),
            left_out,
            checks,
        }
    }

    /// Whether no check failed.
    pub fn is_ok(&self) -> bool {
        self.failed == 0
    }

    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain values are JSON") + "\n"
    }

    /// The report, the worst first, in lines of at most this many columns. Those that failed or warn have why it
    /// matters and what to do below them.
    pub fn text(&self, colour: bool, columns: usize) -> String {
        let mut checks: Vec<&Check> = self.checks.iter().collect();
        checks.sort_by_key(|check| check.status);
        let width = checks.iter().map(|check| check.title.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for check in checks {
            let (word, code) = match check.status {
                CheckStatus::Failed => ("failed ", "1;31"),
                CheckStatus::Warning => ("warning", "33"),
                CheckStatus::Ok => ("ok     ", "32"),
                CheckStatus::Skipped => ("skipped", "2"),
            };
            let word = if colour { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() };
            // The status is padded to the width of "warning".
            let head = format!("{word}  {:width$}  ", check.title);
            write_wrapped(&mut text, &head, 7 + 2 + width + 2, &check.found, columns);
            if let Some(to_do) = &check.to_do {
                write_wrapped(&mut text, "         why    ", 16, check.why, columns);
                write_wrapped(&mut text, "         to do  ", 16, to_do, columns);
            }
        }
        let Self { failed, warnings, ok, skipped, left_out, .. } = self;
        let (checks, warnings) = (counted(self.checks.len(), "check"), counted(*warnings, "warning"));
        let sums = format!("{checks}: {failed} failed, {warnings}, {ok} ok, {skipped} skipped");
        text.push('\n');
        write_wrapped(&mut text, "", 0, &sums, columns);
        if *left_out > 0 {
            let hint = format!(
                "left out: {} of the machine; run `podmeter doctor` on the agent's node",
                counted(*left_out, "check")
            );
            write_wrapped(&mut text, "", 0, &hint, columns);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_comes_first_with_what_to_do() {
        let check = |title, status, to_do: Option<&str>| Check {
            id: "x",
            title,
            status,
            found: "found\x1b[31m\nthis".to_owned(),
            why: "it matters",
            to_do: to_do.map(str::to_owned),
        };
        let checks = vec![
            check("Fine", CheckStatus::Ok, None),
            check("Not well", CheckStatus::Failed, Some("mend it, and then run the doctor again to see")),
            check("Off", CheckStatus::Skipped, None),
        ];
        let report = DoctorReport::new(UnixSeconds(1_700_000_000.0), checks, 15);
        let wanted = "failed   Not well  found�[31m�this\n\
                      \u{20}        why    it matters\n\
                      \u{20}        to do  mend it, and then run\n\
                      \u{20}               the doctor again to see\n\
                      ok       Fine      found�[31m�this\n\
                      skipped  Off       found�[31m�this\n\n\
                      3 checks: 1 failed, 0 warnings, 1 ok, 1\n\
                      skipped\n\
                      left out: 15 checks of the machine; run\n\
                      `podmeter doctor` on the agent's node\n";
        assert_eq!(report.text(false, 40), wanted);
        assert!(report.text(true, 40).contains("\x1b[1;31mfailed"));
        assert!(!report.is_ok());
        let warned = check("Odd", CheckStatus::Warning, None);
        assert!(DoctorReport::new(UnixSeconds(0.0), vec![warned], 0).is_ok());
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["checks"][0]["status"], "ok", "in their order");
        assert_eq!((&json["failed"], &json["at"]), (&1.into(), &"2023-11-14T22:13:20Z".into()));
    }
}
