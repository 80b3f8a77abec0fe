//! The rewriting of files: each query with its legends, templates, thresholds and units, and the list of what is left.
//!
//! Input: all files at once, because a recording rule of one is read in another. Output: the changed texts with the reason of
//! every change. Does not use: the file system.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::Serialize;
use similar::{Algorithm, DiffOp, capture_diff_slices};

use crate::files::tree::{Node, Value};
use crate::files::{Edits, Error, File, Place, replaced};
use crate::promql::{self, Context, Rewritten, Target, UtilizationRatio};
use crate::queries::labels::{OF_DCGM_SERIES, words};
use crate::queries::{self, Form, Found, Query, Unit, dashboards, mentions};
use crate::units::{self, Converted};

/// The names to which files are rewritten, and how.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub target: Target,
    /// Convert thresholds and units of panels instead of values, where that is exact.
    pub base_units: bool,
    pub utilization_ratio: Option<UtilizationRatio>,
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
        work.drafts = work.found.queries.iter().map(|query| work.draft(query, &read)).collect();
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

/// For each recorded series, the labels that its readers use, also through other recorded series.
fn recorded_labels_read(found: &[Found<'_>]) -> BTreeMap<String, BTreeSet<String>> {
    let queries = || found.iter().flat_map(|found| &found.queries);
    let mut read: BTreeMap<String, BTreeSet<String>> =
        queries().filter_map(|query| Some((query.records?.to_owned(), BTreeSet::new()))).collect();
    if read.is_empty() {
        return read;
    }
    let readers: Vec<(BTreeSet<&str>, &Query<'_>)> = queries()
        .map(|query| (words(query.text).filter(|word| read.contains_key(*word)).collect(), query))
        .filter(|(series, _): &(BTreeSet<&str>, _)| !series.is_empty())
        .collect();
    loop {
        let mut grown = false;
        for (series, query) in &readers {
            let through = query.records.and_then(|name| read.get(name)).cloned().unwrap_or_default();
            let labels: BTreeSet<String> = labels_used(query).into_iter().chain(through).collect();
            for name in series {
                if let Some(known) = read.get_mut(*name) {
                    let before = known.len();
                    known.extend(labels.iter().cloned());
                    grown |= known.len() > before;
                }
            }
        }
        if !grown {
            return read;
        }
    }
}

/// Labels that a query or what reads its result names.
fn labels_used(query: &Query<'_>) -> BTreeSet<String> {
    let own = words(query.text).filter(|word| OF_DCGM_SERIES.contains(word)).map(str::to_owned);
    own.chain(query.read()).collect()
}

/// A recorded series with renamed labels.
struct Chain {
    /// `file:line` of its rule.
    rule: String,
    labels: BTreeMap<String, String>,
}

fn renamed_recordings(work: &[Work<'_>]) -> BTreeMap<String, Chain> {
    let mut chains = BTreeMap::new();
    for work in work {
        for (query, draft) in work.found.queries.iter().zip(&work.drafts) {
            if let Some(name) = query.records
                && let Draft::Rewritten(parts) = draft
                && !parts.rewritten.labels.is_empty()
            {
                let rule = format!("{}:{}", work.file.name, work.file.line(query.place, 0));
                chains.insert(name.to_owned(), Chain { rule, labels: parts.rewritten.labels.clone() });
            }
        }
    }
    chains
}

/// What becomes of a query.
enum Draft {
    /// Names no metric that changes.
    Same,
    Rewritten(Box<Parts>),
    Left(Vec<Left>),
}

struct Parts {
    rewritten: Rewritten,
    /// The expression in the scalar.
    range: Range<usize>,
    /// Other changes of the scalar, such as the label of `label_values`.
    others: Vec<(Range<usize>, String)>,
    /// Changes of the query's thresholds.
    converted: Vec<Converted>,
}

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

impl Work<'_> {
    fn context(&self, labels_read: BTreeSet<String>, drop_factor: bool) -> Context {
        let mut context = Context::new(self.options.target);
        context.labels_read = labels_read;
        context.drop_factor = drop_factor;
        context.utilization_ratio = self.options.utilization_ratio;
        context
    }

    fn draft(&self, query: &Query<'_>, recorded: &BTreeMap<String, BTreeSet<String>>) -> Draft {
        match &query.form {
            Form::Expression => self.expression(query, 0..query.text.len(), recorded),
            Form::Inside(range) => self.expression(query, range.clone(), recorded),
            Form::LabelValues { selector, label } => self.label_values(query, selector, label),
            Form::LabelOnly(label) => self.label_only(query, label),
        }
    }

    fn expression(
        &self,
        query: &Query<'_>,
        range: Range<usize>,
        recorded: &BTreeMap<String, BTreeSet<String>>,
    ) -> Draft {
        let mut labels = query.read();
        labels.extend(query.records.and_then(|name| recorded.get(name)).into_iter().flatten().cloned());
        let may_drop = self.options.base_units && !matches!(query.unit, Unit::Kept);
        let rewrite = |drop| promql::rewrite(&query.text[range.clone()], &self.context(labels.clone(), drop));
        let rewritten = match rewrite(may_drop) {
            Ok(rewritten) => rewritten,
            Err(error) => return self.unparsed(query, range.start + error.offset, &error.message),
        };
        let mut converted = vec![];
        let rewritten = match &query.unit {
            Unit::Thresholds(numbers) if rewritten.factor != 1.0 => {
                let divided = numbers.iter().map(|(place, number)| {
                    Some((*place, (*number).to_owned(), units::divided(number, rewritten.factor)?))
                });
                match divided.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty()) {
                    Some(all) => {
                        converted = all;
                        Ok(rewritten)
                    }
                    None => rewrite(false),
                }
            }
            _ => Ok(rewritten),
        };
        match rewritten {
            Ok(rewritten) => self.drafted(query, Parts { rewritten, range, others: vec![], converted }),
            Err(error) => self.unparsed(query, range.start + error.offset, &error.message),
        }
    }

    fn drafted(&self, query: &Query<'_>, parts: Parts) -> Draft {
        let rewritten = &parts.rewritten;
        if !rewritten.left.is_empty() {
            let left = rewritten.left.iter().map(|left| Left {
                line: self.file.line(query.place, parts.range.start + left.range.start),
                name: left.name.clone(),
                reason: left.reason.clone(),
                suggestion: left.suggestion.clone(),
            });
            return Draft::Left(left.collect());
        }
        if rewritten.changes.is_empty() && parts.others.is_empty() {
            Draft::Same
        } else {
            Draft::Rewritten(Box::new(parts))
        }
    }

    fn unparsed(&self, query: &Query<'_>, offset: usize, message: &str) -> Draft {
        let offset = offset.min(query.text.len());
        self.left_whole(query, offset, format!("not PromQL: {message}"), None)
    }

    fn left_whole(&self, query: &Query<'_>, offset: usize, reason: String, suggestion: Option<String>) -> Draft {
        let line = self.file.line(query.place, offset);
        let name = words(query.text).find(|word| mentions(word)).unwrap_or(query.text);
        Draft::Left(vec![Left { line, name: name.to_owned(), reason, suggestion }])
    }

    /// `label_values(selector, label)`: the values do not matter, but the selector must stay one.
    fn label_values(&self, query: &Query<'_>, selector: &Range<usize>, label: &Range<usize>) -> Draft {
        let (text, name) = (&query.text[selector.clone()], &query.text[label.clone()]);
        let source = (self.options.target == Target::Podmeter).then(|| promql::label_source(name)).flatten();
        // With the label in the result it would be a join.
        let read = if source.is_some() { BTreeSet::new() } else { BTreeSet::from([name.to_owned()]) };
        let mut rewritten = match promql::rewrite(text, &self.context(read, true)) {
            Ok(rewritten) => rewritten,
            Err(error) => return self.unparsed(query, selector.start + error.offset, &error.message),
        };
        if rewritten.changes.is_empty() && rewritten.left.is_empty() {
            return Draft::Same;
        }
        if let Some((metric, after)) = source
            && let Some(moved) = self.moved(text, metric)
        {
            rewritten = moved;
            rewritten.labels.insert(name.to_owned(), after.to_owned());
        } else if rewritten.left.is_empty() && (source.is_some() || selector_matchers(&rewritten.text).is_none()) {
            let reason = "label_values takes a selector alone, and there is no equivalent one".to_owned();
            let suggestion = match source {
                Some((metric, label)) => format!("label_values({metric}, {label})"),
                None => format!("group by ({name}) ({})", rewritten.text),
            };
            return self.left_whole(query, selector.start, reason, Some(suggestion));
        }
        let renamed = rewritten.labels.get(name).filter(|after| *after != name).cloned();
        let others = renamed.into_iter().map(|after| (label.clone(), after)).collect();
        rewritten.factor = 1.0;
        self.drafted(query, Parts { rewritten, range: selector.clone(), others, converted: vec![] })
    }

    /// A selector of a DCGM metric, as one of podmeter's metric that has certain labels; `None` where a matcher's label is not
    /// one of these.
    fn moved(&self, selector: &str, metric: &str) -> Option<Rewritten> {
        let name = selector.trim().split('{').next()?.trim_end();
        let matchers = selector_matchers(selector)?;
        let start = selector.find('{').unwrap_or(selector.trim_end().len());
        let at = selector.find(name)?;
        let mut changes = vec![promql::Change {
            range: at..at + name.len(),
            before: name.to_owned(),
            after: metric.to_owned(),
            reason: "podmeter's metric that has the label".into(),
        }];
        for (range, label) in matcher_labels(matchers) {
            let after = match promql::label_source(label) {
                Some((source, after)) => (source == metric).then(|| after.to_owned())?,
                None => {
                    // As on any device metric, here one to which no matcher is added.
                    let selector = format!("DCGM_FI_DEV_POWER_USAGE{{{label}=\"\"}}");
                    let rewritten = promql::rewrite(&selector, &self.context(BTreeSet::new(), true)).ok()?;
                    let matchers = selector_matchers(&rewritten.text).filter(|_| rewritten.left.is_empty())?;
                    matcher_labels(matchers).first()?.1.to_owned()
                }
            };
            // Which container holds a device is known by the device's UUID alone.
            if after == "gpu" && promql::label_source("pod").is_some_and(|(source, _)| source == metric) {
                return None;
            }
            if after != label {
                changes.push(promql::Change {
                    range: start + range.start..start + range.end,
                    before: label.to_owned(),
                    reason: format!("the label {label} is {after}"),
                    after,
                });
            }
        }
        let edits: Vec<_> = changes.iter().map(|change| (change.range.clone(), change.after.clone())).collect();
        let text = replaced(selector, &edits);
        Some(Rewritten { text, changes, left: vec![], factor: 1.0, labels: BTreeMap::new(), difference: None })
    }

    /// `label_values(label)`: the label of all series, also of those that keep it.
    fn label_only(&self, query: &Query<'_>, label: &Range<usize>) -> Draft {
        let name = &query.text[label.clone()];
        if !OF_DCGM_SERIES.contains(&name) {
            return Draft::Same;
        }
        let source = (self.options.target == Target::Podmeter).then(|| promql::label_source(name)).flatten();
        let any = [GENERATIONS.0, GENERATIONS.1].into_iter().find_map(|metric| {
            let rewritten = promql::rewrite(metric, &self.context(BTreeSet::from([name.to_owned()]), true)).ok()?;
            rewritten.labels.get(name).cloned()
        });
        let Some(after) = source.map(|(_, label)| label.to_owned()).or(any) else { return Draft::Same };
        let reason = format!("it reads the label of all series; on the rewritten ones it is `{after}`");
        let left = self.left_whole(query, label.start, reason, Some(format!("label_values({after})")));
        match left {
            Draft::Left(mut left) => {
                left[0].name = name.to_owned();
                Draft::Left(left)
            }
            other => other,
        }
    }

    /// Panel → its queries, by number.
    fn queries_of_panels(&self) -> BTreeMap<usize, Vec<usize>> {
        let mut panels: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (number, query) in self.found.queries.iter().enumerate() {
            if let Unit::Panel(panel) = query.unit {
                panels.entry(panel).or_default().push(number);
            }
        }
        panels
    }

    /// The values of a panel's queries stay where not all of them and its units can be converted.
    fn keep_values_of_panels(&mut self) {
        // Panels whose results another panel shows, in its own units.
        let shown: BTreeSet<(usize, &str)> = self
            .found
            .panels
            .iter()
            .flat_map(|panel| panel.node.items_of("targets").iter().map(|target| (panel.document, target)))
            .filter_map(|(document, target)| Some((document, target.text_of("panelId")?)))
            .collect();
        for (panel, queries) in self.queries_of_panels() {
            let factor = |query: &usize| match &self.drafts[*query] {
                Draft::Rewritten(parts) => parts.rewritten.factor,
                Draft::Same | Draft::Left(_) => 1.0,
            };
            let factors: Vec<f64> = queries.iter().map(factor).collect();
            if factors.iter().all(|factor| *factor == 1.0) {
                continue;
            }
            let panel = &self.found.panels[panel];
            let shown = panel.node.text_of("id").is_some_and(|id| shown.contains(&(panel.document, id)));
            let same = !shown && factors.iter().all(|factor| *factor == factors[0]);
            let converted = same.then(|| units::of_panel(panel.document, panel.node, factors[0])).flatten();
            match converted {
                Some(converted) => {
                    if let Draft::Rewritten(parts) = &mut self.drafts[queries[0]] {
                        parts.converted = converted;
                    }
                }
                None => {
                    for query in queries {
                        let kept = Options { base_units: false, ..*self.options };
                        let work = Work { options: &kept, ..self.empty() };
                        self.drafts[query] = work.draft(&self.found.queries[query], &BTreeMap::new());
                    }
                }
            }
        }
    }

    fn empty(&self) -> Work<'_> {
        Work {
            file: self.file,
            found: self.found,
            options: self.options,
            drafts: vec![],
            edits: Edits::new(),
            changes: vec![],
            left: vec![],
        }
    }

    /// Lists the readers of recorded series whose labels are renamed, where they name one of these.
    fn check_recordings(&mut self, chains: &BTreeMap<String, Chain>) {
        if chains.is_empty() {
            return;
        }
        for query in &self.found.queries {
            let used = labels_used(query);
            for name in words(query.text).collect::<BTreeSet<_>>() {
                let Some(chain) = chains.get(name) else { continue };
                for (before, after) in chain.labels.iter().filter(|(before, _)| used.contains(*before)) {
                    let reason = format!(
                        "it reads a series recorded at {}, whose label `{before}` becomes `{after}`: rename it here too",
                        chain.rule
                    );
                    let line = self.file.line(query.place, query.text.find(name).unwrap_or(0));
                    self.left.push(Left { line, name: name.to_owned(), reason, suggestion: None });
                }
            }
        }
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

    /// Renames labels in transformations, overrides and sort orders of panels all of whose queries rename them.
    fn check_panels(&mut self) {
        for (panel, queries) in self.queries_of_panels() {
            let panel = &self.found.panels[panel];
            let mut renamed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            let mut kept = false;
            for query in queries {
                match &self.drafts[query] {
                    Draft::Rewritten(parts) => {
                        for (before, after) in &parts.rewritten.labels {
                            renamed.entry(before).or_default().insert(after);
                        }
                    }
                    Draft::Same | Draft::Left(_) => kept = true,
                }
            }
            if renamed.is_empty() {
                continue;
            }
            let (mut changes, mut left, mut edits) = (vec![], vec![], vec![]);
            for reader in dashboards::readers(panel.node) {
                let place = (panel.document, reader.node.span.start);
                let mut named = reader.labels();
                named.retain(|(_, label, _)| renamed.contains_key(label));
                let line = |offset| self.file.line(place, offset);
                let after = |label: &str| renamed[label].iter().copied().collect::<Vec<_>>();
                let unclear = named
                    .iter()
                    .find(|(_, label, exact)| kept || reader.node.shared || !exact || renamed[label].len() > 1);
                if let Some((range, label, _)) = unclear {
                    let after = after(label).join("` or `");
                    left.push(Left {
                        line: line(range.start),
                        name: (*label).to_owned(),
                        reason: format!("the panel names the label, which becomes `{after}` in rewritten queries"),
                        suggestion: None,
                    });
                } else if !named.is_empty() {
                    let each = named.iter().map(|(range, label, _)| (range.clone(), after(label).concat()));
                    let each: Vec<_> = each.collect();
                    changes.extend(each.iter().zip(&named).map(|((range, after), (_, label, _))| Change {
                        line: line(range.start),
                        before: (*label).to_owned(),
                        after: after.clone(),
                        reason: "the label of the rewritten queries".into(),
                    }));
                    edits.push((place, each));
                }
            }
            self.edits.extend(edits);
            self.changes.extend(changes);
            self.left.extend(left);
        }
    }

    /// Lists metrics in texts that are no queries: titles, annotations, transformations, other objects.
    fn list_others(&mut self) {
        let handled: BTreeSet<Place> =
            self.found.queries.iter().flat_map(|query| query.copies.iter().chain([&query.place])).copied().collect();
        let reasons: BTreeMap<Place, &str> = self.found.others.iter().copied().collect();
        let mut texts = vec![];
        for (number, document) in self.file.documents.iter().enumerate() {
            for root in &document.roots {
                collect(root, "", &mut |node, key| {
                    let place = (number, node.span.start);
                    if let Some(text) = node.text()
                        && mentions(text)
                        && !handled.contains(&place)
                        && !self.found.embedded.contains(&place)
                    {
                        texts.push((place, text, key.to_owned(), node.shared));
                    }
                });
            }
        }
        let mut known: BTreeMap<String, Option<Rewritten>> = BTreeMap::new();
        for (place, text, key, shared) in texts {
            let mut names: Vec<(&str, Rewritten)> = vec![];
            for word in words(text).filter(|word| mentions(word)) {
                let rewritten = known.entry(word.to_owned()).or_insert_with(|| {
                    let rewritten = promql::rewrite(word, &self.context(BTreeSet::new(), false)).ok()?;
                    (!rewritten.changes.is_empty() || !rewritten.left.is_empty()).then_some(rewritten)
                });
                if let Some(rewritten) = rewritten
                    && !names.iter().any(|(name, _)| *name == word)
                {
                    names.push((word, rewritten.clone()));
                }
            }
            let Some((first, rewritten)) = names.first() else { continue };
            let reason = match reasons.get(&place) {
                Some(reason) => (*reason).to_owned(),
                None if shared => "a value that aliases (*) of this file share".to_owned(),
                None if key.is_empty() => "not in a place for queries".to_owned(),
                None => format!("named in `{key}`, which is no query"),
            };
            let more = names.len() - 1;
            self.left.push(Left {
                line: self.file.line(place, text.find(first).unwrap_or(0)),
                name: if more == 0 { (*first).to_owned() } else { format!("{first} and {more} more") },
                reason,
                suggestion: (more == 0 && !rewritten.changes.is_empty()).then(|| rewritten.text.clone()),
            });
        }
        for (place, reason) in &self.found.listed {
            let line = self.file.line_at(place.0, place.1);
            self.left.push(Left { line, name: "panel".into(), reason: reason.clone(), suggestion: None });
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

/// A metric of either generation that every target has.
const GENERATIONS: (&str, &str) = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS");

/// The matchers of a text that is a selector and nothing else: `{…}`, or nothing.
fn selector_matchers(text: &str) -> Option<&str> {
    let text = text.trim();
    let name =
        text.find(|other: char| !other.is_ascii_alphanumeric() && !matches!(other, '_' | ':')).unwrap_or(text.len());
    let matchers = &text[name..];
    if matchers.is_empty() {
        return (name > 0).then_some(matchers);
    }
    let mut quote = None;
    let mut escaped = false;
    for (at, character) in matchers.char_indices() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(open) if character == '\\' && open != '`' => escaped = true,
            Some(open) if character == open => quote = None,
            Some(_) => {}
            None if matches!(character, '"' | '\'' | '`') => quote = Some(character),
            None if at == 0 && character != '{' => return None,
            None if character == '}' => return (at + 1 == matchers.len()).then_some(matchers),
            None => {}
        }
    }
    None
}

/// The labels of the matchers in `{…}`, with their bytes.
fn matcher_labels(matchers: &str) -> Vec<(Range<usize>, &str)> {
    let mut labels = vec![];
    let (mut quote, mut escaped, mut start) = (None, false, None);
    for (at, character) in matchers.char_indices() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(open) if character == '\\' && open != '`' => escaped = true,
            Some(open) if character == open => quote = None,
            Some(_) => {}
            None if matches!(character, '"' | '\'' | '`') => quote = Some(character),
            None if character.is_ascii_alphanumeric() || character == '_' => {
                start.get_or_insert(at);
            }
            None => {
                if let Some(start) = start.take() {
                    labels.push((start..at, &matchers[start..at]));
                }
            }
        }
    }
    labels
}

/// Calls `visit` with each scalar and the nearest key around it.
fn collect<'n>(node: &'n Node, key: &str, visit: &mut impl FnMut(&'n Node, &str)) {
    match &node.value {
        Value::Scalar(_) => visit(node, key),
        Value::Sequence(items) => items.iter().for_each(|item| collect(item, key, visit)),
        Value::Mapping(entries) => entries.iter().for_each(|(name, value)| {
            visit(name, key);
            collect(value, name.text().unwrap_or(key), visit);
        }),
        Value::Alias => {}
    }
}

/// The replacements that make one text of the other, word by word.
fn differences(before: &str, after: &str) -> Vec<(Range<usize>, String)> {
    let (old, new) = (tokens(before), tokens(after));
    if old.len() + new.len() > MOST_TOKENS {
        return vec![(0..before.len(), after.to_owned())];
    }
    let mut edits: Vec<(Range<usize>, String)> = vec![];
    let (mut old, mut new) = (old.into_iter(), new.into_iter());
    let length = |tokens: &mut dyn Iterator<Item = &str>, count| tokens.take(count).map(str::len).sum::<usize>();
    let (mut old_at, mut new_at) = (0, 0);
    for op in capture_diff_slices(Algorithm::Myers, &tokens(before), &tokens(after)) {
        let removed = length(&mut old, op.old_range().len());
        let added = length(&mut new, op.new_range().len());
        let (range, text) = (old_at..old_at + removed, &after[new_at..new_at + added]);
        (old_at, new_at) = (range.end, new_at + added);
        if let DiffOp::Equal { .. } = op {
            continue;
        }
        match edits.last_mut() {
            Some((last, replacement)) if last.end == range.start => {
                last.end = range.end;
                replacement.push_str(text);
            }
            _ => edits.push((range, text.to_owned())),
        }
    }
    edits
}

/// Of two expressions together: with more, a comparison takes long, and one replacement does.
const MOST_TOKENS: usize = 20_000;

/// Words and single other characters.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = vec![];
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = |character: char| character.is_alphanumeric() || matches!(character, '_' | ':' | '.');
        let length = if word(first) { rest.find(|other| !word(other)).unwrap_or(rest.len()) } else { first.len_utf8() };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn selectors() {
        for (text, matchers) in [
            ("X", Some("")),
            (" X{a=\"}\", b=~'$c'} ", Some("{a=\"}\", b=~'$c'}")),
            ("{__name__=\"X\"}", Some("{__name__=\"X\"}")),
            ("X * 100", None),
            ("sum(X)", None),
            ("X{a=\"1\"}[5m]", None),
            ("X{a=\"1\"", None),
            ("", None),
        ] {
            assert_eq!(selector_matchers(text), matchers, "{text}");
        }
    }

    #[test]
    fn labels_of_matchers() {
        let labels: Vec<_> =
            matcher_labels("{a=\"b=\\\"c\", d!~'$e',f =~`g\\`}").into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["a", "d", "f"]);
        assert!(matcher_labels("{}").is_empty() && matcher_labels("").is_empty());
    }

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
        fn a_damaged_file_is_an_error_or_rewritten(text in damaged(), base_units: bool) {
            let format = crate::files::format_of(&text);
            if let Ok(mut file) = File::parse("file", text, format)
                && queries::embed(&mut file).is_ok()
            {
                for target in [Target::Old, Target::New, Target::Podmeter] {
                    let options = Options { target, base_units, utilization_ratio: None };
                    let migrated = migrate(std::slice::from_ref(&file), &options);
                    prop_assert!(migrated.is_ok(), "{}", migrated.unwrap_err());
                }
            }
        }

        #[test]
        fn differences_make_the_other_text(before in "[ab (){}\n]{0,20}", after in "[ab (){}\n]{0,20}") {
            prop_assert_eq!(replaced(&before, &differences(&before, &after)), after);
        }
    }
}
