use std::fmt::Write as _;

use serde::Serialize;

use crate::governance::Timestamp;
use crate::model::UnixSeconds;
use crate::terminal::harmless;

/// Worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Something does not work.
    Failed,
    /// It works, and less well than it could; or nobody can tell.
    Warning,
    Ok,
    /// Not applicable here; `found` says why.
    Skipped,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Does not change between versions.
    pub id: &'static str,
    pub title: &'static str,
    pub status: Status,
    pub found: String,
    /// Why it matters.
    pub why: &'static str,
    /// Where it is not well.
    pub to_do: Option<String>,
}

/// All checks, in the order of the catalogue.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub schema: &'static str,
    pub version: &'static str,
    pub at: Timestamp,
    pub failed: usize,
    pub warnings: usize,
    pub ok: usize,
    pub skipped: usize,
    pub checks: Vec<Check>,
}

impl Report {
    #[must_use]
    pub fn new(now: UnixSeconds, checks: Vec<Check>) -> Self {
        let count = |status| checks.iter().filter(|check| check.status == status).count();
        Self {
            schema: "podmeter.doctor/v1",
            version: env!("CARGO_PKG_VERSION"),
            at: now.into(),
            failed: count(Status::Failed),
            warnings: count(Status::Warning),
            ok: count(Status::Ok),
            skipped: count(Status::Skipped),
            checks,
        }
    }

    /// Nothing failed.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.failed == 0
    }

    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain values are JSON") + "\n"
    }

    /// Worst first; a line each, and what matters and what to do below those that are not well.
    #[must_use]
    pub fn text(&self, colour: bool) -> String {
        let mut checks: Vec<&Check> = self.checks.iter().collect();
        checks.sort_by_key(|check| check.status);
        let width = checks.iter().map(|check| check.title.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for check in checks {
            let (word, code) = match check.status {
                Status::Failed => ("failed ", "1;31"),
                Status::Warning => ("warning", "33"),
                Status::Ok => ("ok     ", "32"),
                Status::Skipped => ("skipped", "2"),
            };
            let word = if colour { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() };
            let _ = writeln!(text, "{word}  {:width$}  {}", check.title, harmless(&check.found));
            if let Some(to_do) = &check.to_do {
                let _ = writeln!(text, "{:9}{:width$}    why    {}", "", "", check.why);
                let _ = writeln!(text, "{:9}{:width$}    to do  {}", "", "", harmless(to_do));
            }
        }
        let Self { failed, warnings, ok, skipped, .. } = self;
        let _ = writeln!(
            text,
            "\n{} checks: {failed} failed, {warnings} warnings, {ok} ok, {skipped} skipped",
            self.checks.len()
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_comes_first_and_says_what_to_do() {
        let check = |title, status, to_do: Option<&str>| Check {
            id: "x",
            title,
            status,
            found: "found\x1b[31m\nthis".to_owned(),
            why: "it matters",
            to_do: to_do.map(str::to_owned),
        };
        let checks = vec![
            check("Fine", Status::Ok, None),
            check("Not well", Status::Failed, Some("mend it")),
            check("Off", Status::Skipped, None),
        ];
        let report = Report::new(UnixSeconds(1_700_000_000.0), checks);
        let wanted = "failed   Not well  found�[31m�this\n\
                      \u{20}                    why    it matters\n\
                      \u{20}                    to do  mend it\n\
                      ok       Fine      found�[31m�this\n\
                      skipped  Off       found�[31m�this\n\n\
                      3 checks: 1 failed, 0 warnings, 1 ok, 1 skipped\n";
        assert_eq!(report.text(false), wanted);
        assert!(report.text(true).contains("\x1b[1;31mfailed"));
        assert!(!report.is_well());
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["checks"][0]["status"], "ok", "in the order of the catalogue");
        assert_eq!((&json["failed"], &json["at"]), (&1.into(), &"2023-11-14T22:13:20Z".into()));
    }
}
