//! The walk over an expression: each part is rewritten after its arguments, and has what is still to be done to it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::labels::{Flow, Origin, Rule, rule};
use super::part::{Level, Part, Scale};
use super::template::Filled;
use super::tree::{Kind, Label, LabelList, Node};
use super::{Change, Context, Left, Target};

/// What the surroundings take from a part.
#[derive(Clone, Copy, Debug, Default)]
pub struct Need {
    /// Labels of pods.
    pub pods: bool,
    /// The part is not matched with another series of dcgm-exporter.
    pub alone: bool,
    /// A series that is there several times counts once.
    pub once: bool,
    /// The mean over the range is taken.
    pub mean: bool,
}

/// The state of one rewriting.
pub struct Walk<'a> {
    /// With variables.
    pub text: &'a str,
    pub filled: &'a Filled,
    pub context: &'a Context,
    pub changes: Vec<Change>,
    pub left: Vec<Left>,
    pub differences: BTreeSet<String>,
    /// Labels of dcgm-exporter that lists, matchers and readers name: after → before.
    pub labels: BTreeMap<String, BTreeSet<String>>,
    /// Whether a label that podmeter lacks is used, so that no query can be suggested.
    pub lacks_label: bool,
}

pub type Edit = (Range<usize>, String);

impl Walk<'_> {
    /// The source of `range` with `edits`, which lie in it and do not overlap.
    pub fn splice(&self, range: &Range<usize>, mut edits: Vec<Edit>) -> String {
        edits.sort_by_key(|(range, _)| (range.start, range.end));
        let mut text = String::new();
        let mut at = range.start;
        for (edit, replacement) in edits {
            text.push_str(&self.text[at..edit.start]);
            text.push_str(&replacement);
            at = edit.end;
        }
        text.push_str(&self.text[at..range.end]);
        text
    }

    pub fn change(&mut self, range: Range<usize>, after: &str, reason: impl Into<String>) {
        let before = self.text[range.clone()].to_owned();
        if before != after {
            self.changes.push(Change { range, before, after: after.to_owned(), reason: reason.into() });
        }
    }

    pub fn leave(&mut self, range: Range<usize>, name: &str, reason: impl Into<String>) {
        self.left.push(Left { range, name: name.to_owned(), reason: reason.into(), suggestion: None });
    }

    pub fn is_native(&self) -> bool {
        self.context.target == Target::Podmeter
    }

    /// The name of a label after the rewriting, in a place that takes it from `origin`.
    pub fn label(&mut self, label: &Label, origin: Origin) -> String {
        if !origin.dcgm || self.filled.is_variable(&label.range) {
            return self.text[label.range.clone()].trim_matches('"').to_owned();
        }
        let rule = rule(self.context.target, &label.name);
        if rule == Rule::Instance {
            self.differences.insert(OF_INSTANCES.to_owned());
            return label.name.clone();
        }
        if rule != Rule::Unknown || !origin.made {
            self.leave_missing(rule, label.range.clone(), &label.name);
        }
        let after = rule.name(&label.name);
        // What label_replace reads may be what it writes.
        if !origin.made || after != label.name {
            self.labels.entry(after.clone()).or_default().insert(label.name.clone());
        }
        if origin.foreign && after != label.name {
            self.leave(
                label.range.clone(),
                &label.name,
                format!("dcgm-exporter's label becomes {after}, but series of other metrics have it too"),
            );
        }
        after
    }

    /// Leaves a label that podmeter lacks.
    pub fn leave_missing(&mut self, rule: Rule, range: Range<usize>, label: &str) {
        match rule {
            Rule::Missing(reason) => self.leave(range, label, reason),
            Rule::Instance => self.leave(range, label, OF_INSTANCES),
            Rule::Elsewhere(metric) => self.leave(range, label, format!("podmeter has it in {metric}")),
            Rule::Unknown => {
                self.leave(range, label, "a label of pods is not on podmeter's metrics; one of the target stays");
                return;
            }
            _ => return,
        }
        self.lacks_label = true;
    }

    /// The names of a list of labels taken from `flow`, as edits.
    pub fn list(&mut self, list: &LabelList, origin: impl Fn(&str) -> Origin) -> Vec<Edit> {
        let mut edits = vec![];
        let is_dropped =
            |label: &Label| origin(&label.name).dcgm && rule(self.context.target, &label.name) == Rule::Instance;
        let mut dropped: Vec<bool> = list.labels.iter().map(is_dropped).collect();
        if list.keeps && dropped.iter().all(|dropped| *dropped) {
            for label in &list.labels {
                self.leave_missing(Rule::Instance, label.range.clone(), &label.name);
            }
            dropped.fill(false);
        }
        for (index, label) in list.labels.iter().enumerate() {
            let origin_of = origin(&label.name);
            if self.filled.is_variable(&label.range) {
                if origin_of.dcgm {
                    let name = self.text[label.range.clone()].to_owned();
                    self.leave(label.range.clone(), &name, "the variable may stand for a label that is renamed");
                }
                continue;
            }
            if dropped[index] {
                self.label(label, origin_of);
                self.change(label.range.clone(), "", OF_INSTANCES);
                // With the comma before it where none stays after it.
                let is_last = dropped[index..].iter().all(|dropped| *dropped);
                let range = match (is_last, index.checked_sub(1), list.labels.get(index + 1)) {
                    (true, Some(previous), _) => list.labels[previous].range.end..label.range.end,
                    (false, _, Some(next)) => label.range.start..next.range.start,
                    _ => label.range.clone(),
                };
                edits.push((range, String::new()));
                continue;
            }
            let after = self.label(label, origin_of);
            let quoted = self.text[label.range.clone()].starts_with(['"', '\'']);
            if after != label.name && !quoted {
                self.change(label.range.clone(), &after, label_reason(&label.name, &after));
                edits.push((label.range.clone(), after));
            }
        }
        edits
    }

    pub fn walk(&mut self, node: &Node, need: Need) -> Part {
        let mut part = self.walk_kind(node, need);
        if !matches!(node.kind, Kind::Binary(_) | Kind::Paren(_)) {
            part.inside = None;
        }
        part
    }

    fn walk_kind(&mut self, node: &Node, need: Need) -> Part {
        match &node.kind {
            Kind::Selector(selector) => self.selector(node, selector, need),
            Kind::Number(value) => {
                let mut part = self.unchanged(node, Level::Atom);
                part.is_scalar = true;
                if *value == 0.0 && !self.filled.is_variable(&node.range) {
                    part.scale = Scale::Any;
                }
                part
            }
            Kind::Text(_) => self.unchanged(node, Level::Atom),
            Kind::Paren(inner) => {
                let part = self.walk(inner, need);
                let text = self.splice(&node.range, vec![(inner.range.clone(), part.text.clone())]);
                let inside =
                    part.inside.clone().map(|inside| self.splice(&node.range, vec![(inner.range.clone(), inside)]));
                Part { text, inside, level: Level::Atom, ..part }
            }
            Kind::Unary(inner) => {
                let part = self.walk(inner, need);
                let text = self.splice(&node.range, vec![(inner.range.clone(), part.at_least(Level::Power))]);
                Part { text, level: Level::Multiply, ..part }
            }
            Kind::Call { name, arguments } => self.call(node, name, arguments, need),
            Kind::Aggregate { operation, grouping, parameter, operand } => {
                self.aggregate(node, *operation, grouping.as_ref(), parameter.as_deref(), operand, need)
            }
            Kind::Binary(binary) => self.binary(node, binary, need),
            Kind::Subquery(inner) => {
                let part = self.walk(inner, Need { mean: false, ..need });
                let text = self.splice(&node.range, vec![(inner.range.clone(), part.at_least(Level::Atom))]);
                Part { text, level: Level::Atom, ..part }
            }
        }
    }

    fn unchanged(&self, node: &Node, level: Level) -> Part {
        Part::new(self.text[node.range.clone()].to_owned(), level, Flow::default())
    }

    pub fn is_pods(&self, label: &str) -> bool {
        matches!(rule(self.context.target, label), Rule::Pods(_))
    }
}

const OF_INSTANCES: &str = "it is of whole GPUs; GPU instances of MIG have their own series in podmeter_mig_*";

pub fn label_reason(before: &str, after: &str) -> String {
    format!("the label {before} is {after}")
}
