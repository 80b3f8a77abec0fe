//! Operators: what each side must supply, and operators with a scalar.

use promql_parser::parser::token::*;

use super::factor::Factor;
use super::part::{Level, Part, Scale};
use super::tree::{Binary, Kind, LabelList, Node};
use super::walk::{Edit, Need, Walk};

impl Walk<'_> {
    pub fn binary(&mut self, node: &Node, binary: &Binary, need: Need) -> Part {
        let mut literals = vec![];
        let base = self.literals(node, &mut literals);
        if !literals.is_empty() {
            return self.product(node, base, &literals, need);
        }
        let (left, right) = self.sides(binary, need);
        if left.is_scalar || right.is_scalar || self.constant(&binary.left).is_some() {
            return self.with_scalar(node, binary, left, right);
        }
        self.vectors(node, binary, left, right)
    }

    /// Walks both sides, with what each must supply.
    fn sides(&mut self, binary: &Binary, need: Need) -> (Part, Part) {
        let is_vector = |node: &Node| self.constant(node).is_none() && !matches!(node.kind, Kind::Number(_));
        if !is_vector(&binary.left) || !is_vector(&binary.right) {
            return (self.walk(&binary.left, need), self.walk(&binary.right, need));
        }
        let on = binary.matching.as_ref().filter(|list| list.keeps);
        let group = binary.group.as_ref();
        let is_set = [T_LAND, T_LUNLESS, T_LOR].contains(&binary.operation);
        let is_filter = [T_LAND, T_LUNLESS].contains(&binary.operation);
        let reads_pods = |list: Option<&LabelList>| {
            list.is_some_and(|list| list.labels.iter().any(|label| self.is_pods(&label.name)))
        };
        let included = group.and_then(|group| group.labels.as_ref());
        let by_matching = reads_pods(on);
        let by_inclusion = reads_pods(included);
        // Whose labels the result has.
        let (left_result, right_result) = match group {
            Some(group) => (group.left, !group.left),
            None => (is_set || on.is_none(), false),
        };
        let both = names_dcgm(self.text, &binary.left) && names_dcgm(self.text, &binary.right);
        let alone = need.alone && !both;
        let pods = |is_result: bool| {
            by_matching || if is_result { need.pods && alone } else { by_inclusion && group.is_some() }
        };
        let (left_pods, right_pods) = (pods(left_result), pods(right_result));
        (
            self.walk(&binary.left, Need { pods: left_pods, alone, once: need.once, mean: false }),
            self.walk(&binary.right, Need { pods: right_pods, alone, once: need.once || is_filter, mean: false }),
        )
    }

    /// An operator with a scalar on at least one side.
    fn with_scalar(&mut self, node: &Node, binary: &Binary, left: Part, right: Part) -> Part {
        let level = Level::of(binary.operation);
        let (mut left, mut right) = (left, right);
        let mut edits = vec![];
        let scale = match binary.operation {
            T_MUL => left.scale.factor().times(right.scale.factor()).map(Scale::Times),
            T_DIV => left.scale.factor().divided_by(right.scale.factor()).map(Scale::Times),
            T_ADD | T_SUB | T_MOD => left.scale.common(right.scale),
            T_POW | T_ATAN2 => None,
            _ => self.threshold(binary, &left, &right, &mut edits),
        };
        let passes_sum = [T_MUL, T_DIV].contains(&binary.operation) && right.is_scalar;
        let scale = match scale {
            Some(scale) => scale,
            None => {
                left = left.settled();
                right = right.settled();
                Scale::ONE
            }
        };
        if !passes_sum {
            left = left.summed();
            right = right.summed();
        }
        let is_scalar = left.is_scalar && right.is_scalar;
        let is_compared_with_zero = level == Level::Compare && [left.scale, right.scale].contains(&Scale::Any);
        let inside = is_compared_with_zero.then(|| {
            let sides = [
                (binary.left.range.clone(), left.clone().settled().at_least(left_level(level))),
                (binary.right.range.clone(), right.clone().settled().at_least(right_level(level))),
            ];
            self.splice(&node.range, sides.to_vec())
        });
        let threshold = edits.iter().map(|(range, _): &Edit| range.clone()).next();
        for (side, part, level) in
            [(&binary.left, &left, left_level(level)), (&binary.right, &right, right_level(level))]
        {
            if threshold.as_ref() != Some(&side.range) {
                edits.push((side.range.clone(), part.at_least(level)));
            }
        }
        let text = self.splice(&node.range, edits);
        let vector = if left.is_scalar { right } else { left };
        let scale = if binary.returns_bool { Scale::ONE } else { scale };
        let is_changed = text != self.text[node.range.clone()];
        Part { text, level, scale, is_scalar, inside, is_changed, ..vector }
    }

    /// The number that a comparison is with takes the new unit, where the context allows it.
    fn threshold(&mut self, binary: &Binary, left: &Part, right: &Part, edits: &mut Vec<Edit>) -> Option<Scale> {
        if let Some(common) = left.scale.common(right.scale) {
            return Some(common);
        }
        let (vector, literal) = if right.is_scalar { (left, &binary.right) } else { (right, &binary.left) };
        if !self.context.drop_factor || !vector.sum_over.is_empty() {
            return None;
        }
        let (negative, inner) = match &literal.kind {
            Kind::Number(value) if *value < 0.0 => (true, Factor::from_number(-value)),
            _ => (false, self.constant(literal)),
        };
        let number = inner?.divided_by(vector.scale.factor())?.number()?;
        let number = if negative { format!("-{number}") } else { number };
        self.change(literal.range.clone(), &number, "the threshold in the new unit");
        edits.push((literal.range.clone(), number));
        Some(vector.scale)
    }
}

/// Whether names of dcgm-exporter are in the source of the node.
fn names_dcgm(text: &str, node: &Node) -> bool {
    let source = &text[node.range.clone()];
    source.contains("DCGM_") || source.contains("dcgm_")
}

pub fn left_level(level: Level) -> Level {
    if level == Level::Power { Level::Atom } else { level }
}

pub fn right_level(level: Level) -> Level {
    if level == Level::Power { level } else { level.tighter() }
}
