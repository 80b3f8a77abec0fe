//! The rewriting of one PromQL expression. Input: an expression, possibly with Grafana variables, and a [`Context`]. Output: the
//! text with its changes, or what is left to a person and why. Files, rules and dashboards are not known here.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

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
    pub target: Target,
    /// Labels that legends, annotations and other readers take from the result, by their names before the rewriting.
    pub labels_read: BTreeSet<String>,
    /// Whether a factor of the whole result may become [`Rewritten::factor`] instead of being multiplied in the expression.
    pub drop_factor: bool,
    /// What `DCGM_FI_DEV_GPU_UTIL_RATIO` holds; without it, an expression with that name is left.
    pub utilization_ratio: Option<UtilizationRatio>,
}

impl Context {
    /// Rewrites to `target`; no label is read from the result, and every factor stays in the expression.
    pub fn new(target: Target) -> Self {
        Self { target, labels_read: BTreeSet::new(), drop_factor: false, utilization_ratio: None }
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
}

/// One change, shown with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Bytes of the input.
    pub range: Range<usize>,
    pub before: String,
    pub after: String,
    pub reason: String,
}

/// A name that keeps the expression unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Bytes of the input.
    pub range: Range<usize>,
    pub name: String,
    pub reason: String,
    /// A query to compare with the expression, where there is one.
    pub suggestion: Option<String>,
}

/// Rewrites `expression` to the names of the target, or leaves it whole.
pub fn rewrite(expression: &str, _context: &Context) -> Result<Rewritten, ParseError> {
    promql_parser::parser::parse(expression).map_err(|message| ParseError { offset: 0, message })?;
    Ok(Rewritten { text: expression.to_owned(), changes: vec![], left: vec![], factor: 1.0, labels: BTreeMap::new() })
}
