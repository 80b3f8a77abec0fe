//! What is printed of a migration: as text, a diff with the reason of each change and the list of what is left; or as JSON.
//!
//! The lines beside the diff begin with `#`, so that `patch` and `git apply` read the text too.

use std::fmt::Write as _;
use std::time::Duration;

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
    /// Queries that name DCGM metrics: the sum of the next three.
    pub expressions: usize,
    pub rewritten: usize,
    pub left: usize,
    /// In the names asked for before.
    pub unchanged: usize,
    /// Other places that are left: titles, panels.
    pub places_left: usize,
}

impl Summary {
    pub fn of(files: &[Migrated]) -> Self {
        let mut summary = Self { files: files.len(), ..Self::default() };
        for file in files {
            for expression in &file.expressions {
                summary.expressions += 1;
                *match (expression.left.is_empty(), expression.changes.is_empty()) {
                    (false, _) => &mut summary.left,
                    (true, false) => &mut summary.rewritten,
                    (true, true) => &mut summary.unchanged,
                } += 1;
            }
            summary.places_left += file.left.len();
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
        let mut changes: Vec<&Change> =
            file.expressions.iter().flat_map(|expression| &expression.changes).chain(&file.changes).collect();
        changes.sort_by_key(|change| change.line);
        for Change { line, before, after, reason } in changes {
            let what = match (before.trim(), after.trim()) {
                ("", after) => format!("{after} is added"),
                (before, "") => format!("{before} is removed"),
                (before, after) => format!("{before} → {after}"),
            };
            let _ = writeln!(text, "# {}", one_line(&format!("{}:{line}: {what}: {reason}", file.file)));
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
    let Summary { files, expressions, rewritten, left, unchanged, places_left } = Summary::of(files);
    let plural = |number: usize, word: &str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
    let (files, expressions) = (plural(files, "file"), plural(expressions, "expression"));
    let _ = write!(text, "# {files}, {expressions}: {rewritten} rewritten, {left} left, {unchanged} unchanged");
    let places = if places_left > 0 { format!("; {} left", plural(places_left, "other place")) } else { String::new() };
    let _ = writeln!(text, "{places}");
    text
}

fn left(file: &Migrated) -> Vec<&Left> {
    let mut all: Vec<_> = file.expressions.iter().flat_map(|expression| &expression.left).chain(&file.left).collect();
    all.sort_by_key(|left| left.line);
    all
}

/// Text of a file in a line of ours, without characters that move the cursor or change the writing direction.
fn one_line(text: &str) -> String {
    let is_hidden = |letter: char| {
        letter.is_control()
            || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace(is_hidden, "\u{fffd}")
}
