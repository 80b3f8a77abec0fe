//! The rewriting of one PromQL expression. Input: an expression, possibly with Grafana variables, and a [`Context`]. Output: the
//! text with its changes, or what is left to a person and why. Files, rules and dashboards are not known here.

mod binary;
mod calls;
mod factor;
mod functions;
mod join;
mod labels;
mod literals;
mod locate;
mod matching;
mod names;
mod parsing;
mod part;
mod selector;
mod template;
mod tree;
mod walk;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub use labels::label_source;
use labels::{Flow, NOT_ON_DEVICES};
use locate::locate;
use parsing::{MAX_OPERATORS, MAX_OPERATORS_OF_RESULT, parsed};
use part::Part;
use template::fill;
use tree::{Kind, Label, Node};
use walk::{Need, Walk};

/// The names to which an expression is rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// dcgm-exporter up to 4.8.
    Old,
    /// dcgm-exporter 4.9.
    New,
    /// podmeter's own metrics.
    Podmeter,
}

/// What `DCGM_FI_DEV_GPU_UTIL_RATIO` holds where the expression is evaluated: DCGM 4.6 and DCGM 4.7 differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UtilizationRatio {
    /// 0 to 100: DCGM 4.6.
    Percent,
    /// 0 to 1: DCGM 4.7.
    Ratio,
}

/// What the rewriting of an expression depends on besides the expression.
#[derive(Clone, Debug)]
pub struct Context {
    /// The names to which it is rewritten.
    pub target: Target,
    /// Labels that legends, annotations and other readers take from the result, by their names before the rewriting.
    pub labels_read: BTreeSet<String>,
    /// Whether all labels of the result matter, as those of alerts do.
    pub labels_kept: bool,
    /// Whether a factor of the whole result may become [`Rewritten::factor`] instead of being multiplied in the expression.
    pub drop_factor: bool,
    /// What `DCGM_FI_DEV_GPU_UTIL_RATIO` holds; without it, an expression with that name is left.
    pub utilization_ratio: Option<UtilizationRatio>,
    /// The range over which podmeter's counters stand for a name that is a rate; without it, an expression with such a name is left.
    pub rate_interval: Option<String>,
}

impl Context {
    /// Rewrites to `target`; no label is read from the result, and every factor stays in the expression.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            labels_read: BTreeSet::new(),
            labels_kept: false,
            drop_factor: false,
            utilization_ratio: None,
            rate_interval: None,
        }
    }
}

/// The expression is no PromQL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ParseError {
    /// Byte offset into the expression, as near to the error as is known.
    pub offset: usize,
    pub message: String,
}

/// The result of [`rewrite`].
#[derive(Clone, Debug, PartialEq)]
pub struct Rewritten {
    /// Equals the input where nothing changes.
    pub text: String,
    /// One for each metric and each label changed, in the order of the input; empty where something is left.
    pub changes: Vec<Change>,
    /// What keeps the expression from being rewritten.
    pub left: Vec<Left>,
    /// The result before equals the result after times this; 1.0 unless [`Context::drop_factor`].
    pub factor: f64,
    /// Label names of the result, before → after, where they differ: for legends and annotations.
    pub labels: BTreeMap<String, String>,
    /// How the result can differ, where that is known.
    pub difference: Option<String>,
}

/// One change, shown with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Bytes of the input.
    pub range: Range<usize>,
    /// The text at `range`.
    pub before: String,
    /// What stands there after; empty where it is removed.
    pub after: String,
    pub reason: String,
}

/// A name that keeps the expression unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Bytes of the input.
    pub range: Range<usize>,
    /// A metric, a label, a function or a keyword.
    pub name: String,
    pub reason: String,
    /// A query to compare with the expression, where there is one.
    pub suggestion: Option<String>,
}

/// Rewrites `expression` to the names of the target, or leaves it whole.
pub fn rewrite(expression: &str, context: &Context) -> Result<Rewritten, ParseError> {
    let unchanged = Rewritten {
        text: expression.to_owned(),
        changes: vec![],
        left: vec![],
        factor: 1.0,
        labels: BTreeMap::new(),
        difference: None,
    };
    let names_dcgm = expression.to_ascii_lowercase().contains("dcgm");
    if !names_dcgm && !expression.contains("__name__") {
        return Ok(unchanged);
    }
    let filled = fill(expression);
    let (tree, tokens) = match parsed(&filled, MAX_OPERATORS) {
        Ok(parsed) => parsed,
        Err(_) if !names_dcgm => return Ok(unchanged),
        Err(error) => return Err(error),
    };
    let left = |left: Vec<Left>| Rewritten { left, ..unchanged.clone() };
    let Some(node) = locate(&filled.text, &tokens, &tree) else {
        let reason = "its parts could not be located in the text".to_owned();
        let name = "expression".to_owned();
        return Ok(left(vec![Left { range: 0..expression.len(), name, reason, suggestion: None }]));
    };
    let mut walk = Walk {
        text: expression,
        filled: &filled,
        context,
        changes: vec![],
        left: vec![],
        differences: BTreeSet::new(),
        labels: BTreeMap::new(),
        lacks_label: false,
    };
    let part = walk.root(&node);
    let result = part.flow.clone();
    let factor = if context.drop_factor { part.scale.factor() } else { factor::Factor::ONE };
    let part = if context.drop_factor { part.summed() } else { part.settled() };
    let text = walk.splice(&(0..expression.len()), vec![(node.range.clone(), part.text)]);
    walk.check_result(&text);
    if !walk.left.is_empty() {
        walk.suggest(&text);
        walk.left.sort_by_key(|left| (left.range.start, left.range.end));
        walk.left.dedup();
        return Ok(left(walk.left));
    }
    if text == expression {
        return Ok(unchanged);
    }
    walk.lacking(&result);
    walk.changes.sort_by_key(|change| (change.range.start, change.range.end));
    let differences: Vec<String> = walk.differences.into_iter().collect();
    let renamed = |(after, before): (String, BTreeSet<String>)| {
        let pairs = before.into_iter().map(move |before| (before, after.clone()));
        pairs.filter(|(before, after)| before != after && result.origin(before).dcgm).collect::<Vec<_>>()
    };
    Ok(Rewritten {
        text,
        changes: walk.changes,
        left: vec![],
        factor: factor.value(),
        labels: walk.labels.into_iter().flat_map(renamed).collect(),
        difference: (!differences.is_empty()).then(|| differences.join("; ")),
    })
}

impl Walk<'_> {
    /// The whole expression, with the labels that are read from its result.
    fn root(&mut self, node: &Node) -> Part {
        let start = node.range.start;
        let read = self.context.labels_read.iter();
        let read: Vec<Label> = read.map(|name| Label { range: start..start, name: name.clone() }).collect();
        let reads_pods = read.iter().any(|label| self.is_pods(&label.name));
        let part = self.walk(node, Need { pods: reads_pods, alone: true, ..Need::default() });
        let mut part = self.supply(part, &read);
        for label in read {
            let origin = part.flow.origin(&label.name);
            if origin.dcgm {
                self.label(&label, origin);
            }
        }
        if !part.filters.is_empty() {
            self.leave(node.range.clone(), "range", "a range cannot be joined with the labels that it is selected by");
        }
        if matches!(&node.kind, Kind::Selector(selector) if selector.is_range)
            && !part.scale.factor().is_one()
            && !self.context.drop_factor
        {
            self.leave(node.range.clone(), "range", "a range cannot be multiplied");
            part.scale = part::Scale::ONE;
        }
        part
    }

    /// Names what is with the labels of the result.
    fn lacking(&mut self, result: &Flow) {
        let lacks = |(before, after): &&(&str, &str)| result.origin(before).dcgm && !result.supplied.contains(*after);
        let labels: Vec<&str> = NOT_ON_DEVICES.iter().filter(lacks).map(|(before, _)| *before).collect();
        if self.context.labels_kept && self.is_native() && !labels.is_empty() {
            self.differences.insert(format!("the result lacks {}", labels.join(", ")));
        }
        if self.labels.get("Hostname").is_some_and(|before| before.contains("hostname")) {
            self.differences.insert("from 4.8.3 on, dcgm-exporter writes hostname here too".to_owned());
        }
    }

    /// Suggests the rewriting that is not proven, where all names have one.
    fn suggest(&mut self, text: &str) {
        let is_whole = !self.lacks_label && self.left.iter().all(|left| left.suggestion.is_none());
        if !is_whole || text == self.text || self.left.iter().any(|left| names::is_dcgm(&left.name)) {
            return;
        }
        if parsed(&fill(text), MAX_OPERATORS_OF_RESULT).is_ok() {
            self.left.iter_mut().for_each(|left| left.suggestion = Some(text.to_owned()));
        }
    }

    /// Refuses a result that does not parse, that has names of another generation, or two labels of one name.
    fn check_result(&mut self, text: &str) {
        let whole = 0..self.text.len();
        let two = self.labels.iter().find(|(_, before)| before.len() > 1);
        if let Some((after, before)) = two {
            let before: Vec<&str> = before.iter().map(String::as_str).collect();
            let reason = format!("{} would all become {after}", before.join(", "));
            self.leave(whole.clone(), after.clone().as_str(), reason);
        }
        if !self.left.is_empty() {
            return;
        }
        let filled = fill(text);
        let stable = parsed(&filled, MAX_OPERATORS_OF_RESULT)
            .ok()
            .and_then(|(tree, tokens)| locate(&filled.text, &tokens, &tree))
            .is_some_and(|node| {
                let context = Context { labels_read: BTreeSet::new(), utilization_ratio: None, ..self.context.clone() };
                let mut again = Walk {
                    text,
                    filled: &filled,
                    context: &context,
                    changes: vec![],
                    left: vec![],
                    differences: BTreeSet::new(),
                    labels: BTreeMap::new(),
                    lacks_label: false,
                };
                let part = again.root(&node);
                again.left.is_empty() && part.text == text[node.range.clone()] && part.scale.factor().is_one()
            });
        if !stable {
            self.leave(whole, "expression", "the rewritten expression could not be verified");
        }
    }
}

#[cfg(test)]
mod tests;
