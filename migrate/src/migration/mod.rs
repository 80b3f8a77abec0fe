//! The rewriting of files: each query with its legends, templates, thresholds and units, and the list of what is left.
//!
//! Input: all files at once, because a recording rule of one is read in another. Output: the changed texts with the reason of
//! every change. Does not use: the file system.

mod draft;
mod others;
mod panels;
mod recordings;
mod text;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::files::{Edits, Error, File};
use crate::promql::{Target, UtilizationRatio};
use crate::queries::{self, Form, Found, Unit, mentions};
use draft::{Draft, Drafting};
use recordings::{recorded_labels_read, renamed_recordings};
use text::differences;

/// The names to which files are rewritten, and how.
#[derive(Clone, Debug)]
pub struct Options {
    pub target: Target,
    /// Convert thresholds and units of panels instead of values, where that is exact.
    pub base_units: bool,
    pub utilization_ratio: Option<UtilizationRatio>,
    /// The range of `rate()` for names that are the last reading of a rate, where podmeter has a counter.
    pub rate_interval: Option<String>,
}

/// A rewritten file. Its serialized form is the `-o json` document's `files[]`.
#[derive(Debug, Serialize)]
pub struct Migrated {
    pub file: String,
    /// Whether the text differs.
    pub changed: bool,
    /// The queries that name DCGM metrics, in the order of the file.
    pub expressions: Vec<Expression>,
    /// Changes beside the expressions: legends, templates, thresholds, units.
    pub changes: Vec<Change>,
    /// What is left beside the expressions.
    pub left: Vec<Left>,
    #[serde(skip)]
    pub before: String,
    #[serde(skip)]
    pub after: String,
}

/// A query that names DCGM metrics: rewritten, left (`left` is not empty), or already in the names asked for (neither).
#[derive(Debug, Serialize)]
pub struct Expression {
    /// The line of the file where it begins.
    pub line: usize,
    pub before: String,
    /// Equals `before` where nothing changed.
    pub after: String,
    pub changes: Vec<Change>,
    pub left: Vec<Left>,
    /// By what the result may differ, where the rewriting is not exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<String>,
    /// For `label_values(selector, label)`, where the expressions are the selectors: the label before. Only its values matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_values: Option<String>,
    /// The result before is the result after times this; what depends on it has been converted.
    pub factor: f64,
    /// Renamed labels of the result, as far as something reads them.
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Change {
    pub line: usize,
    pub before: String,
    pub after: String,
    pub reason: String,
}

/// Something that was not changed and may need to be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Left {
    pub line: usize,
    pub name: String,
    pub reason: String,
    /// A query to compare with, or to put in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
}

/// Rewrites parsed files, or none.
pub fn migrate(files: &[File], options: &Options) -> Result<Vec<Migrated>, Error> {
    let found: Vec<Found<'_>> = files.iter().map(queries::find).collect();
    let read = recorded_labels_read(&found);
    let mut work: Vec<Work<'_>> = files
        .iter()
        .zip(&found)
        .map(|(file, found)| Work {
            file,
            found,
            options,
            drafts: vec![],
            edits: Edits::new(),
            changes: vec![],
            left: vec![],
        })
        .collect();
    for work in &mut work {
        work.drafts = work.found.queries.iter().map(|query| work.drafting().draft(query, &read)).collect();
        work.keep_values_of_panels();
    }
    let chains = renamed_recordings(&work);
    for work in &mut work {
        work.check_recordings(&chains);
        work.write_queries();
        work.check_panels();
        work.list_others();
    }
    work.into_iter().map(Work::finish).collect()
}

/// The work on one file.
struct Work<'f> {
    file: &'f File,
    found: &'f Found<'f>,
    options: &'f Options,
    /// One for each query.
    drafts: Vec<Draft>,
    edits: Edits,
    changes: Vec<Change>,
    left: Vec<Left>,
}

impl<'f> Work<'f> {
    fn drafting(&self) -> Drafting<'f> {
        Drafting { file: self.file, options: self.options, base_units: self.options.base_units }
    }

    /// The changes of the queries and of what depends on each.
    fn write_queries(&mut self) {
        for (query, draft) in self.found.queries.iter().zip(&self.drafts) {
            let Draft::Rewritten(parts) = draft else { continue };
            let before = &query.text[parts.range.clone()];
            let mut edits: Vec<_> = differences(before, &parts.rewritten.text)
                .into_iter()
                .map(|(range, after)| (parts.range.start + range.start..parts.range.start + range.end, after))
                .collect();
            edits.extend(parts.others.iter().cloned());
            for copy in &query.copies {
                self.edits.insert(*copy, edits.clone());
            }
            self.edits.insert(query.place, edits);
            for (place, text, template) in &query.templates {
                let renamed: Vec<_> = template
                    .labels(text)
                    .into_iter()
                    .filter_map(|(range, label)| Some((range, parts.rewritten.labels.get(label)?.clone())))
                    .collect();
                for (range, after) in &renamed {
                    self.changes.push(Change {
                        line: self.file.line(*place, range.start),
                        before: text[range.clone()].to_owned(),
                        after: after.clone(),
                        reason: "the label of the rewritten query".into(),
                    });
                }
                if !renamed.is_empty() {
                    self.edits.insert(*place, renamed);
                }
            }
            for (place, before, after) in &parts.converted {
                self.edits.insert(*place, vec![(0..before.len(), after.clone())]);
                self.changes.push(Change {
                    line: self.file.line(*place, 0),
                    before: before.clone(),
                    after: after.clone(),
                    reason: "the unit of the rewritten query".into(),
                });
            }
            if !matches!(query.unit, Unit::Panel(_)) {
                for (before, after) in
                    parts.rewritten.labels.iter().filter(|(label, _)| query.labels_read.contains(*label))
                {
                    self.left.push(Left {
                        line: self.file.line(query.place, 0),
                        name: before.clone(),
                        reason: format!(
                            "`regex` or `tagKeys` beside the query names the label, which becomes `{after}`"
                        ),
                        suggestion: None,
                    });
                }
            }
        }
    }

    fn finish(self) -> Result<Migrated, Error> {
        let after = self.file.splice(&self.edits)?;
        let mut expressions = vec![];
        for (query, draft) in self.found.queries.iter().zip(&self.drafts) {
            let range = match &query.form {
                Form::Expression => 0..query.text.len(),
                Form::Inside(range) => range.clone(),
                Form::LabelValues { selector, .. } => selector.clone(),
                Form::LabelOnly(label) => label.clone(),
            };
            let before = query.text[range].to_owned();
            let line = self.file.line(query.place, 0);
            let mut expression = Expression {
                line,
                after: before.clone(),
                before,
                changes: vec![],
                left: vec![],
                difference: None,
                label_values: match &query.form {
                    Form::LabelValues { label, .. } | Form::LabelOnly(label) => {
                        Some(query.text[label.clone()].to_owned())
                    }
                    Form::Expression | Form::Inside(_) => None,
                },
                factor: 1.0,
                labels: BTreeMap::new(),
            };
            match draft {
                Draft::Same if !mentions(query.text) => continue,
                Draft::Same => {}
                Draft::Left(left) => expression.left.clone_from(left),
                Draft::Rewritten(parts) => {
                    let changes = parts.rewritten.changes.iter().map(|change| Change {
                        line: self.file.line(query.place, parts.range.start + change.range.start),
                        before: change.before.clone(),
                        after: change.after.clone(),
                        reason: change.reason.clone(),
                    });
                    expression.changes = changes.collect();
                    expression.changes.extend(parts.others.iter().map(|(range, after)| Change {
                        line: self.file.line(query.place, range.start),
                        before: query.text[range.clone()].to_owned(),
                        after: after.clone(),
                        reason: "the label of the rewritten metric".into(),
                    }));
                    expression.after.clone_from(&parts.rewritten.text);
                    expression.difference.clone_from(&parts.rewritten.difference);
                    expression.factor = parts.rewritten.factor;
                    expression.labels.clone_from(&parts.rewritten.labels);
                }
            }
            expressions.push(expression);
        }
        expressions.sort_by_key(|expression| expression.line);
        let (mut changes, mut left) = (self.changes, self.left);
        changes.sort_by_key(|change| change.line);
        left.sort_by_key(|left| left.line);
        left.dedup();
        Ok(Migrated {
            file: self.file.name.clone(),
            changed: after != self.file.text(),
            expressions,
            changes,
            left,
            before: self.file.text().to_owned(),
            after,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Files with everything that is read, to be damaged.
    const FILES: [&str; 3] = [
        include_str!("../../corpus/dashboards/configmap.yaml"),
        include_str!("../../corpus/dashboards/fleet.json"),
        include_str!("../../corpus/rules/gpu-use.prometheusrule.yaml"),
    ];

    fn damaged() -> impl Strategy<Value = String> {
        let part = (any::<prop::sample::Index>(), 0..200_usize);
        (0..FILES.len(), prop::collection::vec((part.clone(), part, any::<bool>()), 1..4)).prop_map(
            |(file, damages)| {
                let mut characters: Vec<char> = FILES[file].chars().collect();
                for ((from, length), (to, _), removed) in damages {
                    let start = from.index(characters.len());
                    let end = (start + length).min(characters.len());
                    let part: Vec<char> = characters[start..end].to_vec();
                    if removed {
                        characters.drain(start..end);
                    }
                    let to = to.index(characters.len().max(1)).min(characters.len());
                    characters.splice(to..to, part);
                }
                characters.into_iter().collect()
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Panics are failures here, and so is a text that reads otherwise than intended.
        #[test]
        fn a_damaged_file_is_an_error_or_rewritten(text in damaged(), base_units: bool) {
            let format = crate::files::format_of(&text);
            if let Ok(mut file) = File::parse("file", text, format)
                && queries::embed(&mut file).is_ok()
            {
                for target in [Target::Old, Target::New, Target::Podmeter] {
                    let rate_interval = base_units.then(|| "5m".to_owned());
                    let options = Options { target, base_units, utilization_ratio: None, rate_interval };
                    let migrated = migrate(std::slice::from_ref(&file), &options);
                    prop_assert!(migrated.is_ok(), "{}", migrated.unwrap_err());
                }
            }
        }

    }
}
