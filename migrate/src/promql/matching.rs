//! Operators between two vectors: on which labels they match, and which labels the result has.

use promql_parser::parser::token::*;

use super::binary::{left_level, right_level};
use super::labels::{Flow, Origin, rule};
use super::part::{Level, Part, Scale};
use super::tree::{Binary, Kind, Label, Node};
use super::walk::{Edit, Walk};

impl Walk<'_> {
    /// An operator between two vectors.
    pub fn vectors(&mut self, node: &Node, binary: &Binary, left: Part, right: Part) -> Part {
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
        let by_gpu = on.is_none() && self.is_native() && differ_in_joins(&left.flow, &right.flow);
        if by_gpu {
            edits.push(self.match_by_gpu(binary, &left.flow, &right.flow));
        } else if on.is_none() && !differing.is_empty() && left.flow.has_dcgm() && right.flow.has_dcgm() {
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
        let flow = if by_gpu && !is_filter(binary) && has_pods(&right.flow) && !has_pods(&left.flow) {
            right.flow
        } else {
            self.result(binary, &left.flow, &right.flow, &differing)
        };
        let is_of_range = left.is_of_range || right.is_of_range;
        Part { is_changed, is_of_range, scale, inside, ..Part::new(text, level, flow) }
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

    /// Both sides were series of the same GPU and pod; one has labels now that the other is not joined with.
    fn match_by_gpu(&mut self, binary: &Binary, left: &Flow, right: &Flow) -> Edit {
        let end = binary.operator.end;
        if let Some(list) = &binary.matching {
            self.leave(list.range.clone(), "ignoring", "one side is joined with labels that the other lacks");
            return (end..end, String::new());
        }
        let labels = if has_pods(left) && has_pods(right) { "gpu_uuid, namespace, pod, container" } else { "gpu_uuid" };
        let group = match (is_filter(binary), has_pods(right) && !has_pods(left)) {
            (true, _) => "",
            (false, false) => " group_left ()",
            (false, true) => " group_right ()",
        };
        let text = format!(" on ({labels}){group}");
        self.change(end..end, &text, "both sides have one series for each GPU, but not the same labels");
        (end..end, text)
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

/// Whether series of the same GPU have labels of a join on one side only.
fn differ_in_joins(left: &Flow, right: &Flow) -> bool {
    let joined = |flow: &Flow| {
        let labels = ["gpu", "model", "device", "pci_bus_id", "namespace", "pod", "container"];
        labels.map(|label| flow.supplied.contains(label))
    };
    left.rest.dcgm && right.rest.dcgm && joined(left) != joined(right)
}

fn has_pods(flow: &Flow) -> bool {
    flow.supplied.contains("pod")
}

/// Whether the result is made of the series of the sides as they are.
fn is_filter(binary: &Binary) -> bool {
    [T_LAND, T_LUNLESS, T_LOR].contains(&binary.operation)
}

/// A label on which both sides match.
fn both(left: &Flow, right: &Flow, label: &str) -> Origin {
    let (left, right) = (left.origin(label), right.origin(label));
    Origin { dcgm: left.dcgm || right.dcgm, foreign: left.foreign || right.foreign, made: left.made || right.made }
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
