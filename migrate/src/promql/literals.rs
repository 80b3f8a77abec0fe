//! Literal factors beside a quantity: those that the factor between the units cancels disappear.

use std::ops::Range;

use promql_parser::parser::token::*;

use super::factor::Factor;
use super::part::{Level, Part, Scale};
use super::tree::{Kind, Node};
use super::walk::{Edit, Need, Walk};

/// A literal that multiplies or divides.
pub struct Literal {
    /// What to remove, so that the rest is an expression.
    removed: Range<usize>,
    /// The operator and the literal, in the order of the text.
    operation: Range<usize>,
    factor: Factor,
}

impl Walk<'_> {
    /// The literals that multiply or divide `node`, and what they do it to.
    pub fn literals<'n>(&self, node: &'n Node, found: &mut Vec<Literal>) -> &'n Node {
        let Kind::Binary(binary) = &node.kind else { return node };
        if ![T_MUL, T_DIV].contains(&binary.operation) || binary.matching.is_some() {
            return node;
        }
        let (left, right) = (&binary.left, &binary.right);
        match (self.constant(left), self.constant(right)) {
            (None, Some(factor)) => {
                let base = self.literals(left, found);
                let factor = if binary.operation == T_DIV { factor.inverse() } else { factor };
                let start =
                    self.without_comment(left.range.end..binary.operator.start).unwrap_or(binary.operator.start);
                found.push(Literal {
                    removed: start..right.range.end,
                    operation: binary.operator.start..right.range.end,
                    factor,
                });
                base
            }
            (Some(factor), None) if binary.operation == T_MUL => {
                let gap = binary.operator.end..right.range.start;
                let end = if self.text[gap.clone()].contains('#') { gap.start } else { gap.end };
                found.push(Literal { removed: left.range.start..end, operation: left.range.start..end, factor });
                right
            }
            _ => node,
        }
    }

    /// The start of a gap in which no comment is.
    fn without_comment(&self, gap: Range<usize>) -> Option<usize> {
        (!self.text[gap.clone()].contains('#')).then_some(gap.start)
    }

    /// The value of a positive literal expression.
    pub fn constant(&self, node: &Node) -> Option<Factor> {
        if self.filled.is_variable(&node.range) {
            return None;
        }
        match &node.kind {
            Kind::Number(value) if *value > 0.0 => {
                Factor::from_text(&self.text[node.range.clone()]).or_else(|| Factor::from_number(*value))
            }
            Kind::Paren(inner) => self.constant(inner),
            Kind::Binary(binary) => {
                let left = self.constant(&binary.left)?;
                let right = self.constant(&binary.right)?;
                match binary.operation {
                    T_MUL => left.times(right),
                    T_DIV => left.divided_by(right),
                    T_POW if right.value().fract() == 0.0 && right.value() <= 16.0 => left.power(right.value() as u32),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Literal factors around `base`: those that the unit's factor cancels disappear.
    pub fn product(&mut self, node: &Node, base: &Node, literals: &[Literal], need: Need) -> Part {
        let part = self.walk(base, need);
        let factor = part.scale.factor();
        let mut edits: Vec<Edit> = vec![];
        let mut scale = part.scale;
        let mut removed = 0;
        if !factor.is_one() {
            if let Some(cancelling) = cancelling(literals, factor) {
                for (_, literal) in literals.iter().enumerate().filter(|(index, _)| cancelling & (1 << index) != 0) {
                    self.change(literal.operation.clone(), "", "the unit's factor cancels it");
                    edits.push((literal.removed.clone(), String::new()));
                    removed += 1;
                }
                scale = Scale::ONE;
            } else if let Some(total) = self.combined(literals, factor) {
                // One literal takes the whole; it stands after what it multiplies.
                let slot = literals.iter().position(|literal| literal.removed.start >= base.range.end);
                for (index, literal) in literals.iter().enumerate() {
                    if Some(index) == slot {
                        let after = total.to_string();
                        self.change(literal.operation.clone(), &after, "together with the unit's factor");
                        edits.push((literal.operation.clone(), after));
                    } else {
                        self.change(literal.operation.clone(), "", "together with the unit's factor");
                        edits.push((literal.removed.clone(), String::new()));
                        removed += 1;
                    }
                }
                scale = match slot {
                    Some(_) => Scale::ONE,
                    None => Scale::Times(total),
                };
            }
        }
        let is_alone = removed == literals.len();
        let level = if is_alone { part.level } else { Level::Multiply };
        let inner = if is_alone { part.text.clone() } else { part.at_least(Level::Multiply) };
        edits.push((base.range.clone(), inner));
        let text = self.splice(&node.range, edits);
        let is_changed = text != self.text[node.range.clone()];
        Part { text, level, scale, is_changed, inside: None, is_scalar: part.is_scalar, ..part }
    }

    /// The product of all, where it is one number, and reads no worse than what it replaces.
    fn combined(&self, literals: &[Literal], factor: Factor) -> Option<Factor> {
        let total = literals.iter().try_fold(factor, |total, literal| total.times(literal.factor))?;
        let length: usize = literals.iter().map(|literal| self.text[literal.operation.clone()].trim().len()).sum();
        let is_of_units = literals.iter().all(|literal| literal.factor.is_power_of_unit());
        (total.is_one_number() && (is_of_units || total.to_string().len() <= length)).then_some(total)
    }
}

/// The literals, as bits, whose product with `factor` is 1; none where no set of them does it.
fn cancelling(literals: &[Literal], factor: Factor) -> Option<u32> {
    let product = |bits: u32| {
        let chosen = literals.iter().enumerate().filter(|(index, _)| bits & (1 << index) != 0);
        chosen.map(|(_, literal)| literal.factor).try_fold(factor, Factor::times)
    };
    (1..1u32 << literals.len().min(8)).find(|bits| product(*bits).is_some_and(Factor::is_one))
}
