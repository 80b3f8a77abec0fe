//! The rewriting of one query, by what stands around its expression.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::text::{matcher_labels, selector_matchers};
use super::{Left, Options};
use crate::files::{File, Replacements, replaced};
use crate::promql::{self, Context, Rewritten, Target};
use crate::queries::labels::{OF_DCGM_SERIES, words};
use crate::queries::{Form, Query, Unit, mentions};
use crate::units::{self, Converted};

/// What becomes of a query.
pub enum Draft {
    /// Names no metric that changes.
    Same,
    Rewritten(Box<Parts>),
    Left(Vec<Left>),
}

pub struct Parts {
    pub rewritten: Rewritten,
    /// The expression in the scalar.
    pub range: Range<usize>,
    /// Other changes of the scalar, such as the label of `label_values`.
    pub others: Replacements,
    /// Changes of the query's thresholds.
    pub converted: Vec<Converted>,
}

/// Rewrites the queries of a file.
pub struct Drafting<'f> {
    pub file: &'f File,
    pub options: &'f Options,
    pub base_units: bool,
}

impl Drafting<'_> {
    pub fn context(&self, labels_read: BTreeSet<String>, drop_factor: bool) -> Context {
        let mut context = Context::new(self.options.target);
        context.labels_read = labels_read;
        context.drop_factor = drop_factor;
        context.utilization_ratio = self.options.utilization_ratio;
        context
    }

    pub fn draft(&self, query: &Query<'_>, recorded: &BTreeMap<String, BTreeSet<String>>) -> Draft {
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
        let may_drop = self.base_units && !matches!(query.unit, Unit::Kept);
        // A variable of Grafana is one in dashboards only.
        let interval =
            self.options.rate_interval.as_ref().filter(|interval| query.dashboard || !interval.starts_with('$'));
        let rewrite = |drop| {
            let mut context = self.context(labels.clone(), drop);
            context.labels_kept = query.labels_kept;
            context.rate_interval = interval.cloned();
            promql::rewrite(&query.text[range.clone()], &context)
        };
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
            let mut left: Vec<Left> = left.collect();
            left.dedup();
            return Draft::Left(left);
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
            // The allocations have the device's UUID, not its index.
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

    /// `label_values(label)` or a filter: the label of all series, also of those that keep it.
    fn label_only(&self, query: &Query<'_>, label: &Range<usize>) -> Draft {
        let name = &query.text[label.clone()];
        if !OF_DCGM_SERIES.contains(&name) {
            return Draft::Same;
        }
        let source = (self.options.target == Target::Podmeter).then(|| promql::label_source(name)).flatten();
        let any = GENERATIONS.into_iter().find_map(|metric| {
            let rewritten = promql::rewrite(metric, &self.context(BTreeSet::from([name.to_owned()]), true)).ok()?;
            rewritten.labels.get(name).cloned()
        });
        let Some(after) = source.map(|(_, label)| label.to_owned()).or(any) else { return Draft::Same };
        let reason = format!("it reads the label of all series; on the rewritten ones it is `{after}`");
        let suggestion = replaced(query.text, &[(label.clone(), after)]);
        let left = self.left_whole(query, label.start, reason, Some(suggestion));
        match left {
            Draft::Left(mut left) => {
                left[0].name = name.to_owned();
                Draft::Left(left)
            }
            other => other,
        }
    }
}

/// A metric of either generation that every target has.
const GENERATIONS: [&str; 2] = ["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"];
