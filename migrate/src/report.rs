//! What is printed of a migration: as text, a diff with the reason of each change and the list of what is left; or as JSON.
//!
//! The lines beside the diff begin with `#`, so that `patch` and `git apply` read the text too.

use std::fmt::Write as _;
use std::time::Duration;

use podmeter::terminal::harmless;
use serde::Serialize;
use similar::TextDiff;

use crate::migration::{Change, Left, Migrated};

/// For the shortest diff of a file; after it, a longer one is good enough.
const DIFF_TIME: Duration = Duration::from_secs(2);

/// The document of `-o json`.
#[derive(Serialize)]
struct Document<'r> {
    files: &'r [Migrated],
    summary: Summary,
}

/// Figures over all files.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    pub files: usize,
    /// Queries that name DCGM metrics.
    pub expressions: usize,
    pub rewritten: usize,
    /// Entries of the list of what is left, which may be others than expressions.
    pub left: usize,
}

impl Summary {
    pub fn of(files: &[Migrated]) -> Self {
        let mut summary = Self { files: files.len(), ..Self::default() };
        for file in files {
            summary.expressions += file.expressions.len();
            summary.rewritten += file.expressions.iter().filter(|expression| !expression.changes.is_empty()).count();
            summary.left += left(file).len();
        }
        summary
    }
}

pub fn json(files: &[Migrated]) -> String {
    let document = Document { files, summary: Summary::of(files) };
    let mut text = serde_json::to_string_pretty(&document).expect("strings and numbers");
    text.push('\n');
    text
}

pub fn text(files: &[Migrated]) -> String {
    let mut text = String::new();
    for file in files {
        for (change, difference) in changes(file) {
            let Change { line, before, after, reason } = change;
            let what = match (before.trim(), after.trim()) {
                ("", after) => format!("{after} is added"),
                (before, "") => format!("{before} is removed"),
                (before, after) => format!("{before} → {after}"),
            };
            let _ = writeln!(text, "# {}", one_line(&format!("{}:{line}: {what}: {reason}", file.file)));
            if let Some(difference) = difference {
                let _ = writeln!(text, "#     {}", one_line(difference));
            }
        }
        if file.changed {
            let diff = TextDiff::configure().timeout(DIFF_TIME).diff_lines(&file.before, &file.after);
            let _ = write!(text, "{}", diff.unified_diff().header(&file.file, &file.file));
        }
    }
    for file in files {
        for Left { line, name, reason, suggestion } in left(file) {
            let _ = writeln!(text, "# {}", one_line(&format!("{}:{line}: left: {name}: {reason}", file.file)));
            if let Some(suggestion) = suggestion {
                let _ = writeln!(text, "#     check: {}", one_line(suggestion));
            }
        }
    }
    let Summary { files, expressions, rewritten, left } = Summary::of(files);
    let plural = |number: usize, word: &str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
    let (files, expressions) = (plural(files, "file"), plural(expressions, "expression"));
    let _ = writeln!(text, "# {files}, {expressions}, {rewritten} rewritten, {left} left");
    text
}

/// Changes in the order of the file; the last of an expression has by what its result may differ.
fn changes(file: &Migrated) -> Vec<(&Change, Option<&str>)> {
    let mut all = vec![];
    for expression in &file.expressions {
        let last = expression.changes.len().saturating_sub(1);
        let difference = |number| expression.difference.as_deref().filter(|_| number == last);
        all.extend(expression.changes.iter().enumerate().map(|(number, change)| (change, difference(number))));
    }
    all.extend(file.changes.iter().map(|change| (change, None)));
    all.sort_by_key(|(change, _)| change.line);
    all
}

fn left(file: &Migrated) -> Vec<&Left> {
    let mut all: Vec<_> = file.expressions.iter().flat_map(|expression| &expression.left).chain(&file.left).collect();
    all.sort_by_key(|left| left.line);
    all
}

/// Text of a file in a line of ours.
fn one_line(text: &str) -> String {
    harmless(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}
