//! An expression as a tree with byte ranges.

use std::ops::Range;

use promql_parser::label::Matcher;
use promql_parser::parser::token::TokenId;

/// A part of an expression.
#[derive(Clone, Debug)]
pub struct Node {
    pub range: Range<usize>,
    pub kind: Kind,
}

#[derive(Clone, Debug)]
pub enum Kind {
    Selector(Selector),
    Number(f64),
    Text(String),
    Paren(Box<Node>),
    /// With a minus; a plus leaves no trace.
    Unary(Box<Node>),
    Call {
        name: String,
        arguments: Vec<Node>,
    },
    Aggregate {
        operation: TokenId,
        grouping: Option<LabelList>,
        parameter: Option<Box<Node>>,
        operand: Box<Node>,
    },
    Binary(Box<Binary>),
    Subquery(Box<Node>),
}

#[derive(Clone, Debug)]
pub struct Binary {
    pub operation: TokenId,
    /// The operator and `bool`; matching modifiers follow.
    pub operator: Range<usize>,
    pub returns_bool: bool,
    /// `on` keeps, `ignoring` does not.
    pub matching: Option<LabelList>,
    pub group: Option<Group>,
    pub left: Node,
    pub right: Node,
}

#[derive(Clone, Debug)]
pub struct Group {
    /// `group_left`: many series on the left side match one on the right.
    pub left: bool,
    pub labels: Option<LabelList>,
}

/// `by (a, b)`, `without`, `on`, `ignoring`, `group_left`, `group_right`.
#[derive(Clone, Debug)]
pub struct LabelList {
    /// `by` and `on`.
    pub keeps: bool,
    /// From the keyword to the closing parenthesis.
    pub range: Range<usize>,
    pub labels: Vec<Label>,
}

#[derive(Clone, Debug)]
pub struct Label {
    pub range: Range<usize>,
    pub name: String,
}

#[derive(Clone, Debug)]
pub struct Selector {
    /// The name before the braces.
    pub name: Option<Label>,
    pub braces: Option<Range<usize>>,
    pub matchers: Vec<LocatedMatcher>,
    /// Matchers joined by `or`, which Prometheus does not have.
    pub has_or: bool,
    /// `[5m]` follows.
    pub is_range: bool,
}

#[derive(Clone, Debug)]
pub struct LocatedMatcher {
    pub range: Range<usize>,
    /// The label; of `{"name"}` the string itself.
    pub label: Range<usize>,
    /// The string with its quotes.
    pub value: Range<usize>,
    pub matcher: Matcher,
}
