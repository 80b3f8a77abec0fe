//! A rewritten part of an expression, with what is still to be done to it: the factor and the sum that move outwards until they
//! cancel or must be written.

use promql_parser::parser::token::*;

use super::factor::Factor;
use super::labels::Flow;

/// How tightly the outermost operator of a text binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Or,
    And,
    Compare,
    Add,
    Multiply,
    Power,
    Atom,
}

impl Level {
    pub fn of(operation: TokenId) -> Self {
        match operation {
            T_LOR => Self::Or,
            T_LAND | T_LUNLESS => Self::And,
            T_ADD | T_SUB => Self::Add,
            T_MUL | T_DIV | T_MOD | T_ATAN2 => Self::Multiply,
            T_POW => Self::Power,
            _ => Self::Compare,
        }
    }

    /// The level above.
    pub fn tighter(self) -> Self {
        match self {
            Self::Or => Self::And,
            Self::And => Self::Compare,
            Self::Compare => Self::Add,
            Self::Add => Self::Multiply,
            Self::Multiply => Self::Power,
            Self::Power | Self::Atom => Self::Atom,
        }
    }
}

/// What the value before is, as a multiple of the value after.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    Times(Factor),
    /// Zero, which is any multiple of itself.
    Any,
}

impl Scale {
    pub const ONE: Self = Self::Times(Factor::ONE);

    pub fn factor(self) -> Factor {
        match self {
            Self::Times(factor) => factor,
            Self::Any => Factor::ONE,
        }
    }

    /// The scale that both have.
    pub fn common(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Any, scale) | (scale, Self::Any) => Some(scale),
            (left, right) => (left == right).then_some(left),
        }
    }
}

/// Matchers on labels that the selector's new metric lacks, and that a join must apply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// On `podmeter_device_info`.
    pub info: Vec<String>,
    /// On `podmeter_container_allocation_info`.
    pub pods: Vec<String>,
    /// Whether a series without pod passes all of `pods`.
    pub pods_match_empty: bool,
}

impl Filters {
    pub fn is_empty(&self) -> bool {
        self.info.is_empty() && self.pods.is_empty()
    }
}

#[derive(Clone, Debug)]
pub struct Part {
    pub text: String,
    pub level: Level,
    pub scale: Scale,
    /// Labels to sum over.
    pub sum_over: Vec<&'static str>,
    pub filters: Filters,
    pub flow: Flow,
    pub is_scalar: bool,
    /// A range of a counter, whose rate is the mean that is asked for.
    pub is_counter: bool,
    /// The result of a function of a range.
    pub is_of_range: bool,
    /// The text with the factor written inside, where that reads better than outside: `X * 100 or vector(0)`.
    pub inside: Option<String>,
    /// Whether the text differs from the source.
    pub is_changed: bool,
}

impl Part {
    pub fn new(text: String, level: Level, flow: Flow) -> Self {
        Self {
            text,
            level,
            scale: Scale::ONE,
            sum_over: vec![],
            filters: Filters::default(),
            flow,
            is_scalar: false,
            is_counter: false,
            is_of_range: false,
            inside: None,
            is_changed: false,
        }
    }

    /// With another text of the same value and pending work.
    pub fn with_text(self, text: String, level: Level) -> Self {
        Self { is_changed: true, inside: None, text, level, ..self }
    }

    /// The text, in parentheses where it binds less tightly than `level`. What did not change was right before.
    pub fn at_least(&self, level: Level) -> String {
        if self.level >= level || !self.is_changed { self.text.clone() } else { format!("({})", self.text) }
    }

    /// Writes the pending sum.
    pub fn summed(self) -> Self {
        if self.sum_over.is_empty() {
            return self;
        }
        let text = format!("sum without ({}) ({})", self.sum_over.join(", "), self.text);
        Self { sum_over: vec![], ..self.with_text(text, Level::Atom) }
    }

    /// Writes the pending sum and factor: the value is that of before.
    pub fn settled(self) -> Self {
        let part = self.summed();
        let factor = part.scale.factor();
        if factor.is_one() {
            return part;
        }
        if let Some(text) = part.inside.clone() {
            let level = part.level;
            return Self { scale: Scale::ONE, ..part.with_text(text, level) };
        }
        let text = format!("{} {factor}", part.at_least_when_changed(Level::Multiply));
        Self { scale: Scale::ONE, ..part.with_text(text, Level::Multiply) }
    }

    /// As [`Self::at_least`], for a text that goes into a new place.
    pub fn at_least_when_changed(&self, level: Level) -> String {
        if self.level >= level { self.text.clone() } else { format!("({})", self.text) }
    }
}
