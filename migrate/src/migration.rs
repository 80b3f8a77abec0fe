//! The rewriting of files: each query with its legends, templates and panel, and the list of what is left.
//!
//! Input: all files at once, because a recording rule of one is read in another. Output: the changed texts with the reason of
//! every change. Does not use: the file system.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::Serialize;

use crate::files::{Edits, Error, File, Place};
use crate::names::{Naming, Plan, mentions};
use crate::promql::{self, Context, Origin, Rewritten, replaced};
use crate::queries::{self, Form, Found, Query, words_at};

/// A rewritten file. Its serialized form is the `-o json` document's `files[]`.
#[derive(Debug, Serialize)]
pub struct Migrated {
    pub file: String,
    /// Whether the text differs.
    pub changed: bool,
    /// The queries that name DCGM metrics, in the order of the file.
    pub expressions: Vec<Expression>,
    /// Changes beside the expressions: legends, templates.
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
    /// Of `label_values(selector, label)`, where the expression is the selector: the label after. Only its values matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_values: Option<String>,
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
    /// A query to compare with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
}

/// Rewrites parsed files, or none.
pub fn migrate(files: &[File], naming: Naming<'_>) -> Result<Vec<Migrated>, Error> {
    let found: Vec<Found<'_>> = files.iter().map(queries::find).collect();
    let mut recorded = BTreeMap::new();
    let drafts = loop {
        let drafts: Vec<Vec<Draft>> = found
            .iter()
            .map(|found| found.queries.iter().map(|query| draft(query, found, naming, &recorded)).collect())
            .collect();
        // Each round only adds names and turns mixed ones into dcgm-exporter's, so that there is a last one.
        let before = recorded.clone();
        for (name, origin) in origins(&found, &drafts) {
            recorded.entry(name).and_modify(|known| *known = origin.max(*known)).or_insert(origin);
        }
        if recorded == before {
            break drafts;
        }
    };
    let each = files.iter().zip(&found).zip(&drafts);
    each.map(|((file, found), drafts)| Work::new(file, found, naming, drafts).finish()).collect()
}

/// A query's rewriting, of the part of it that is an expression.
struct Draft {
    range: Range<usize>,
    rewritten: Rewritten,
    /// The label of `label_values`, and what becomes of it.
    label: Option<(Range<usize>, String)>,
}

fn draft(query: &Query<'_>, found: &Found<'_>, naming: Naming<'_>, recorded: &BTreeMap<String, Origin>) -> Draft {
    let templates = query.templates.iter().flat_map(|(_, text, template)| template.labels(text));
    let panel = query.panel.into_iter().flat_map(|number| &found.panels[number]);
    let mut labels: Vec<&str> = templates.map(|(_, label)| label).collect();
    labels.extend(panel.flat_map(|(_, text)| labels_of_reader(text, naming)).map(|(_, label, _)| label));
    let mut context =
        Context { naming, recorded, labels_read: labels.into_iter().map(str::to_owned).collect(), has_values: true };
    match &query.form {
        Form::Expression(range) => {
            let rewritten = promql::rewrite(&query.text[range.clone()], &context);
            Draft { range: range.clone(), rewritten, label: None }
        }
        Form::LabelValues { selector, label } => {
            let name = &query.text[label.clone()];
            context.labels_read.insert(name.to_owned());
            context.has_values = false;
            let rewritten = promql::rewrite(&query.text[selector.clone()], &context);
            let after = naming.label(name).filter(|_| rewritten.origin.is_some() && rewritten.left.is_empty());
            Draft { range: selector.clone(), rewritten, label: Some((label.clone(), after.unwrap_or(name).to_owned())) }
        }
        Form::LabelOnly(label) => {
            let name = &query.text[label.clone()];
            let left = naming.label(name).map(|after| promql::Left {
                offset: 0,
                name: name.to_owned(),
                reason: format!("it reads the label of all series; on dcgm-exporter's it becomes `{after}`"),
                suggestion: None,
            });
            let rewritten = Rewritten { left: left.into_iter().collect(), ..Rewritten::default() };
            Draft { range: label.clone(), rewritten, label: None }
        }
    }
}

/// Where the recorded series of rewritten rules come from. One that is left records what it did before.
fn origins(found: &[Found<'_>], drafts: &[Vec<Draft>]) -> BTreeMap<String, Origin> {
    let mut origins: BTreeMap<&str, Option<Origin>> = BTreeMap::new();
    for (query, draft) in found.iter().zip(drafts).flat_map(|(found, drafts)| found.queries.iter().zip(drafts)) {
        let Some((name, sets_labels)) = query.records else { continue };
        let origin = draft.rewritten.origin.filter(|_| draft.rewritten.left.is_empty());
        let origin = origin.map(|origin| if sets_labels { Origin::Mixed } else { origin });
        let other = origins.entry(name).or_insert(origin);
        if *other != origin {
            *other = Some(Origin::Mixed);
        }
    }
    origins.into_iter().filter_map(|(name, origin)| Some((name.to_owned(), origin?))).collect()
}

/// Renamed labels in a text of a panel, with their bytes; false where it is not clear that the word is a label.
fn labels_of_reader<'t>(text: &'t str, naming: Naming<'_>) -> Vec<(Range<usize>, &'t str, bool)> {
    let is_label = |word| naming.labels_renamed().any(|(before, after)| word == before || word == after);
    let named = words_at(text).into_iter().filter(|(_, word)| is_label(*word));
    named
        .filter_map(|(range, word)| {
            let before = &text[..range.start];
            let is_field = ["${__data.fields.", "${__field.labels."].iter().any(|prefix| before.ends_with(prefix));
            // A variable of the dashboard keeps its name.
            let is_variable = ["var-", "$", "${"].iter().any(|prefix| before.ends_with(prefix));
            let is_whole = range == (0..text.len());
            (!is_variable || is_field).then_some((range, word, is_field || is_whole))
        })
        .collect()
}

/// The work on one file.
struct Work<'f> {
    file: &'f File,
    found: &'f Found<'f>,
    naming: Naming<'f>,
    drafts: &'f [Draft],
    edits: Edits,
    changes: Vec<Change>,
    left: Vec<Left>,
}

impl<'f> Work<'f> {
    fn new(file: &'f File, found: &'f Found<'f>, naming: Naming<'f>, drafts: &'f [Draft]) -> Self {
        Self { file, found, naming, drafts, edits: Edits::new(), changes: vec![], left: vec![] }
    }

    fn finish(mut self) -> Result<Migrated, Error> {
        let mut expressions = vec![];
        for (query, draft) in self.found.queries.iter().zip(self.drafts) {
            self.query(query, draft);
            if mentions(query.text) || !draft.rewritten.edits.is_empty() || !draft.rewritten.left.is_empty() {
                expressions.push(self.expression(query, draft));
            }
        }
        (0..self.found.panels.len()).for_each(|number| self.panel(number));
        self.others();
        let after = self.file.splice(&self.edits)?;
        expressions.sort_by_key(|expression| expression.line);
        self.changes.sort_by_key(|change| change.line);
        self.left.sort_by_key(|left| left.line);
        self.left.dedup();
        Ok(Migrated {
            file: self.file.name.clone(),
            changed: after != self.file.text(),
            expressions,
            changes: self.changes,
            left: self.left,
            before: self.file.text().to_owned(),
            after,
        })
    }

    /// The changes of a query and of the texts beside it.
    fn query(&mut self, query: &Query<'f>, draft: &Draft) {
        let rewritten = &draft.rewritten;
        if rewritten.origin.is_none() || !rewritten.left.is_empty() {
            return;
        }
        let shifted = |range: &Range<usize>| draft.range.start + range.start..draft.range.start + range.end;
        let mut edits: Vec<_> = rewritten.edits.iter().map(|edit| (shifted(&edit.range), edit.after.clone())).collect();
        edits.extend(draft.label.clone().filter(|(range, after)| query.text[range.clone()] != **after));
        if !edits.is_empty() {
            for place in query.copies.iter().chain([&query.place]) {
                self.edits.insert(*place, edits.clone());
            }
        }
        for (place, text, template) in &query.templates {
            let labels = template.labels(text).into_iter().map(|(range, label)| (range, label, true)).collect();
            self.rename(*place, labels);
        }
    }

    fn expression(&self, query: &Query<'f>, draft: &Draft) -> Expression {
        let Draft { range, rewritten, label } = draft;
        let before = &query.text[range.clone()];
        let line = |offset: usize| self.file.line(query.place, range.start + offset);
        let changes = rewritten.edits.iter().map(|edit| Change {
            line: line(edit.range.start),
            before: before[edit.range.clone()].to_owned(),
            after: edit.after.clone(),
            reason: edit.reason.clone(),
        });
        let renamed = label.iter().filter(|(range, after)| query.text[range.clone()] != **after);
        let renamed = renamed.map(|(range, after)| Change {
            line: self.file.line(query.place, range.start),
            before: query.text[range.clone()].to_owned(),
            after: after.clone(),
            reason: "the label of the rewritten query".into(),
        });
        let left = rewritten.left.iter().map(|left| Left {
            line: line(left.offset),
            name: left.name.clone(),
            reason: left.reason.clone(),
            suggestion: left.suggestion.clone(),
        });
        Expression {
            line: line(0),
            before: before.to_owned(),
            after: replaced(before, rewritten.edits.iter().map(|edit| (&edit.range, edit.after.as_str()))),
            changes: changes.chain(renamed).collect(),
            left: left.collect(),
            label_values: label.clone().map(|(_, after)| after),
        }
    }

    /// Renames labels in a text beside a query, or lists them where they are not clear.
    fn rename(&mut self, place: Place, labels: Vec<(Range<usize>, &str, bool)>) {
        let naming = self.naming;
        let after = |label: &str| naming.label(label);
        let renamed: Vec<_> = labels
            .into_iter()
            .filter_map(|(range, label, is_clear)| Some((range, label, after(label)?, is_clear)))
            .collect();
        if renamed.is_empty() {
            return;
        }
        if let Some((range, label, after, _)) = renamed.iter().find(|(.., is_clear)| !is_clear) {
            let reason = format!("it names the label, which becomes `{after}` in rewritten queries");
            let line = self.file.line(place, range.start);
            self.left.push(Left { line, name: (*label).to_owned(), reason, suggestion: None });
            return;
        }
        self.changes.extend(renamed.iter().map(|(range, label, after, _)| Change {
            line: self.file.line(place, range.start),
            before: (*label).to_owned(),
            after: (*after).to_owned(),
            reason: "the label of the rewritten query".into(),
        }));
        self.edits.insert(place, renamed.into_iter().map(|(range, _, after, _)| (range, after.to_owned())).collect());
    }

    /// The texts of a panel that name labels.
    fn panel(&mut self, number: usize) {
        let queries = self.found.queries.iter().zip(self.drafts).filter(|(query, _)| query.panel == Some(number));
        let drafts: Vec<&Rewritten> = queries.map(|(_, draft)| &draft.rewritten).collect();
        if drafts.iter().all(|rewritten| rewritten.origin.is_none() || !rewritten.left.is_empty()) {
            return;
        }
        let is_clear = drafts.iter().all(|rewritten| rewritten.origin.is_some() && rewritten.left.is_empty());
        for (place, text) in &self.found.panels[number] {
            let labels = labels_of_reader(text, self.naming);
            self.rename(
                *place,
                labels.into_iter().map(|(range, label, exact)| (range, label, exact && is_clear)).collect(),
            );
        }
    }

    /// Lists metrics in texts that are no queries: titles, annotations, other objects.
    fn others(&mut self) {
        let handled: BTreeSet<Place> =
            self.found.queries.iter().flat_map(|query| query.copies.iter().chain([&query.place])).copied().collect();
        let embedded = self.file.embedded();
        let mut left = vec![];
        for (number, document) in self.file.documents.iter().enumerate() {
            for root in &document.roots {
                root.scalars("", &mut |node, key| {
                    let place = (number, node.span.start);
                    let text = node.text().unwrap_or_default();
                    if !mentions(text) || handled.contains(&place) || embedded.contains(&place) {
                        return;
                    }
                    let changes = |name: &str| mentions(name) && self.naming.plan(name) != Plan::Keep;
                    let mut names: Vec<_> = words_at(text).into_iter().filter(|(_, name)| changes(name)).collect();
                    let Some((range, first)) = names.first().cloned() else { return };
                    names.sort_by_key(|(_, name)| *name);
                    names.dedup_by_key(|(_, name)| *name);
                    let reason = if node.shared {
                        "a value that aliases (*) of this file share".to_owned()
                    } else if self.found.others.contains(&place) {
                        "a query of a data source that is not Prometheus".to_owned()
                    } else {
                        format!("named in `{key}`, which is no query")
                    };
                    let more = names.len() - 1;
                    let name = if more == 0 { first.to_owned() } else { format!("{first} and {more} more") };
                    left.push(Left { line: self.file.line(place, range.start), name, reason, suggestion: None });
                });
            }
        }
        let listed = self.found.listed.iter().map(|((document, offset), reason)| Left {
            line: self.file.line_at(*document, *offset),
            name: "panel".into(),
            reason: reason.clone(),
            suggestion: None,
        });
        self.left.extend(left.into_iter().chain(listed));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::names::Target;

    /// Files with everything that is read, to be damaged.
    const FILES: [&str; 3] = [
        include_str!("../corpus/dashboards/configmap.yaml"),
        include_str!("../corpus/dashboards/fleet.json"),
        include_str!("../corpus/rules/gpu-use.prometheusrule.yaml"),
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
        fn a_damaged_file_is_an_error_or_rewritten(text in damaged()) {
            if let Ok(mut file) = File::parse("file", text, false)
                && queries::embed(&mut file).is_ok()
            {
                for target in [Target::Old, Target::New] {
                    let naming = Naming { target, ratio: None, labels: &[] };
                    let migrated = migrate(std::slice::from_ref(&file), naming);
                    prop_assert!(migrated.is_ok(), "{}", migrated.unwrap_err());
                }
            }
        }
    }
}
