//! Operators: factors that cancel, thresholds, and which labels the two sides match on.

use std::ops::Range;

use promql_parser::parser::token::*;

use super::factor::Factor;
use super::labels::{Flow, Origin, rule};
use super::locate::{Binary, Kind, Label, LabelList, Node};
use super::part::{Level, Part, Scale};
use super::walk::{Edit, Need, Walk};

/// A literal that multiplies or divides.
struct Literal {
    /// What to remove, so that the rest is an expression.
    removed: Range<usize>,
    /// The operator and the literal, in the order of the text.
    operation: Range<usize>,
    factor: Factor,
}

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
            self.walk(&binary.left, Need { pods: left_pods, alone, mean: false }),
            self.walk(&binary.right, Need { pods: right_pods, alone, mean: false }),
        )
    }

    /// The literals that multiply or divide `node`, and what they do it to.
    fn literals<'n>(&self, node: &'n Node, found: &mut Vec<Literal>) -> &'n Node {
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
    fn constant(&self, node: &Node) -> Option<Factor> {
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
    fn product(&mut self, node: &Node, base: &Node, literals: &[Literal], need: Need) -> Part {
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

    /// An operator between two vectors.
    fn vectors(&mut self, node: &Node, binary: &Binary, left: Part, right: Part) -> Part {
        let level = Level::of(binary.operation);
        let (mut left, mut right) = (left.summed(), right.summed());
        let scale = match binary.operation {
            T_MUL => left.scale.factor().times(right.scale.factor()).map(Scale::Times),
            T_DIV => left.scale.factor().divided_by(right.scale.factor()).map(Scale::Times),
            T_LAND | T_LUNLESS => Some(left.scale),
            T_POW => None,
            T_ATAN2 => left.scale.common(right.scale).map(|_| Scale::ONE),
            _ => left.scale.common(right.scale),
        };
        let scale = scale.unwrap_or_else(|| {
            left = left.clone().settled();
            right = right.clone().settled();
            Scale::ONE
        });
        let scale = if binary.returns_bool { Scale::ONE } else { scale };
        let on = binary.matching.as_ref().filter(|list| list.keeps);
        let included = binary.group.as_ref().and_then(|group| group.labels.as_ref());
        if let Some(list) = on {
            // Where every partner is a pod, a GPU without one has no partner.
            let is_inner = ![T_LUNLESS, T_LOR].contains(&binary.operation);
            let (left_idle, right_idle) =
                (!is_inner || !is_of_pods(self.text, &binary.right), !is_inner || !is_of_pods(self.text, &binary.left));
            left = self.supply_for(left, &list.labels, left_idle);
            right = self.supply_for(right, &list.labels, right_idle);
        }
        if let (Some(list), Some(group)) = (included, &binary.group) {
            let one = if group.left { &mut right } else { &mut left };
            *one = self.supply(one.clone(), &list.labels);
        }
        let mut edits = vec![];
        let is_mixed =
            left.flow.has_dcgm() != right.flow.has_dcgm() || left.flow.has_others() != right.flow.has_others();
        if let Some(list) = &binary.matching {
            let (from_left, from_right) = (left.flow.clone(), right.flow.clone());
            edits.extend(self.list(list, |label| both(&from_left, &from_right, label)));
        }
        if on.is_none() && is_mixed {
            self.leave_unless_explicit(binary, &left.flow, &right.flow);
        }
        let differing = left.flow.differing_extras(&right.flow);
        if on.is_none() && !differing.is_empty() && left.flow.has_dcgm() && right.flow.has_dcgm() {
            edits.push(self.ignore(binary, &differing));
        }
        if let (Some(list), Some(group)) = (included, &binary.group) {
            let one = if group.left { right.flow.clone() } else { left.flow.clone() };
            edits.extend(self.list(list, |label| one.origin(label)));
        }
        let sides = |left: &Part, right: &Part| {
            let left = (binary.left.range.clone(), left.at_least(left_level(level)));
            let right = (binary.right.range.clone(), right.at_least(right_level(level)));
            edits.iter().cloned().chain([left, right]).collect::<Vec<_>>()
        };
        let inside = match binary.operation {
            T_LAND | T_LUNLESS => Some(self.splice(&node.range, sides(&left.clone().settled(), &right))),
            T_LOR if [left.scale, right.scale].contains(&Scale::Any) => {
                Some(self.splice(&node.range, sides(&left.clone().settled(), &right.clone().settled())))
            }
            _ => None,
        };
        let text = self.splice(&node.range, sides(&left, &right));
        let is_changed = text != self.text[node.range.clone()];
        let flow = self.result(binary, &left.flow, &right.flow, &differing);
        Part { is_changed, scale, inside, ..Part::new(text, level, flow) }
    }

    /// Matching on all labels fits only where both sides have labels that stay as they are.
    fn leave_unless_explicit(&mut self, binary: &Binary, left: &Flow, right: &Flow) {
        let ignored: Vec<&str> =
            binary.matching.iter().flat_map(|list| &list.labels).map(|label| label.name.as_str()).collect();
        let stays = |flow: &Flow| {
            let is_fixed = |(label, origin): (&String, &Origin)| {
                !origin.dcgm
                    || ignored.contains(&label.as_str())
                    || rule(self.context.target, label).name(label) == *label
            };
            !flow.rest.dcgm && flow.named.iter().all(is_fixed)
        };
        let has_labels = |flow: &Flow| flow.rest != Origin::default() || !flow.named.is_empty();
        if has_labels(left) && has_labels(right) && !(stays(left) && stays(right)) {
            self.leave(
                binary.operator.clone(),
                &self.text[binary.operator.clone()],
                "the series of dcgm-exporter match those of another metric on all labels, and these change; name the labels with on",
            );
        }
    }

    /// Adds labels to `ignoring`.
    fn ignore(&mut self, binary: &Binary, labels: &[String]) -> Edit {
        let labels = labels.join(", ");
        let reason = "podmeter has the two quantities in one metric, told apart by this label";
        match &binary.matching {
            Some(list) => {
                let end = list.labels.last().map_or(list.range.end - 1, |label| label.range.end);
                let text = if list.labels.is_empty() { labels } else { format!(", {labels}") };
                self.change(end..end, &text, reason);
                (end..end, text)
            }
            None => {
                let end = binary.operator.end;
                let text = format!(" ignoring ({labels})");
                self.change(end..end, &text, reason);
                (end..end, text)
            }
        }
    }

    /// The labels of the result.
    fn result(&self, binary: &Binary, left: &Flow, right: &Flow, differing: &[String]) -> Flow {
        let labels: Vec<&str> =
            binary.matching.iter().flat_map(|list| &list.labels).map(|label| label.name.as_str()).collect();
        if binary.operation == T_LOR {
            return left.or(right);
        }
        if [T_LAND, T_LUNLESS].contains(&binary.operation) {
            return left.clone();
        }
        if let Some(group) = &binary.group {
            let (many, one) = if group.left { (left, right) } else { (right, left) };
            let mut flow = many.clone();
            for Label { name, .. } in group.labels.iter().flat_map(|list| &list.labels) {
                let origin = one.origin(name);
                let after = if origin.dcgm { rule(self.context.target, name).name(name) } else { name.clone() };
                flow.set(name, origin, &after);
            }
            return flow;
        }
        match &binary.matching {
            Some(list) if list.keeps => {
                let mut flow = left.or(right);
                flow.supplied = left.supplied.union(&right.supplied).cloned().collect();
                flow.keep(&labels, self.context.target);
                flow
            }
            _ => {
                let mut flow = if left.has_dcgm() || left.has_others() { left.clone() } else { right.clone() };
                flow.drop(&labels);
                flow.extras.retain(|label, _| !differing.contains(label));
                flow
            }
        }
    }
}

/// A label on which both sides match.
fn both(left: &Flow, right: &Flow, label: &str) -> Origin {
    let (left, right) = (left.origin(label), right.origin(label));
    Origin { dcgm: left.dcgm || right.dcgm, foreign: left.foreign || right.foreign, made: left.made || right.made }
}

/// The literals, as bits, whose product with `factor` is 1; none where no set of them does it.
fn cancelling(literals: &[Literal], factor: Factor) -> Option<u32> {
    let product = |bits: u32| {
        let chosen = literals.iter().enumerate().filter(|(index, _)| bits & (1 << index) != 0);
        chosen.map(|(_, literal)| literal.factor).try_fold(factor, Factor::times)
    };
    (1..1u32 << literals.len().min(8)).find(|bits| product(*bits).is_some_and(Factor::is_one))
}

/// Whether names of dcgm-exporter are in the source of the node.
fn names_dcgm(text: &str, node: &Node) -> bool {
    let source = &text[node.range.clone()];
    source.contains("DCGM_") || source.contains("dcgm_")
}

/// Whether all series of a part are of pods: it selects metrics of pods alone, which have no series without one.
fn is_of_pods(text: &str, node: &Node) -> bool {
    match &node.kind {
        Kind::Selector(selector) => {
            let name = selector.name.as_ref().map_or("", |name| &text[name.range.clone()]);
            ["kube_pod_", "container_"].iter().any(|prefix| name.starts_with(prefix))
        }
        Kind::Paren(inner) | Kind::Unary(inner) => is_of_pods(text, inner),
        Kind::Aggregate { operand, .. } => is_of_pods(text, operand),
        Kind::Call { arguments, .. } => arguments.iter().any(|argument| is_of_pods(text, argument)),
        Kind::Binary(binary) if binary.operation != T_LOR => {
            is_of_pods(text, &binary.left) || is_of_pods(text, &binary.right)
        }
        _ => false,
    }
}

fn left_level(level: Level) -> Level {
    if level == Level::Power { Level::Atom } else { level }
}

fn right_level(level: Level) -> Level {
    if level == Level::Power { level } else { level.tighter() }
}
