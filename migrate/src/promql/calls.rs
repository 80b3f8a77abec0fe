//! Functions and aggregations.

use promql_parser::label::{MatchOp, Matcher};
use promql_parser::parser::Expr;
use promql_parser::parser::token::{T_GROUP, T_MAX, T_MIN, TokenId};

use super::functions::{Scaling, aggregation, argument, function, keeps_labels};
use super::labels::{Flow, Origin, rule};
use super::parsing::{MAX_OPERATORS_OF_RESULT, parsed};
use super::part::{Filters, Level, Part, Scale};
use super::template::fill;
use super::tree::{Kind, Label, LabelList, Node};
use super::walk::{Edit, Need, Walk, label_reason};

impl Walk<'_> {
    pub fn call(&mut self, node: &Node, name: &str, arguments: &[Node], need: Need) -> Part {
        if ["label_replace", "label_join"].contains(&name) {
            return self.relabel(node, name, arguments, need);
        }
        let behaviour = function(name);
        let main = argument(name);
        let need = Need { mean: name == "avg_over_time", ..need };
        let mut edits = vec![];
        let mut result: Option<Part> = None;
        for (index, argument) in arguments.iter().enumerate() {
            let mut part = self.walk(argument, need);
            let is_range = is_range(argument);
            if part.flow.has_dcgm() && name.starts_with("sort_by_label") && index == main {
                let labels = arguments[1..].iter().filter_map(text_label);
                part = self.supply(part, &labels.collect::<Vec<_>>());
            }
            if index != main {
                part = part.settled();
            } else if is_range {
                self.settle_range(&mut part, name, argument);
                part.is_of_range = part.flow.has_dcgm();
            } else {
                part = self.settle_instant(part, name, argument);
            }
            edits.push((argument.range.clone(), part.text.clone()));
            if std::mem::take(&mut part.is_counter) {
                let function = node.range.start..node.range.start + name.len();
                self.change(function.clone(), "rate", "the mean of a rate is the rate of the counter");
                edits.push((function, "rate".to_owned()));
            }
            if index == main || result.is_none() && part.flow.has_dcgm() {
                result = Some(part);
            }
        }
        for argument in arguments.iter().skip(1).filter(|_| name.starts_with("sort_by_label")) {
            let flow = result.as_ref().map(|part| part.flow.clone()).unwrap_or_default();
            edits.extend(self.quoted_label(argument, |label| flow.origin(label)));
        }
        let is_changed = result.as_ref().is_some_and(|part| part.is_changed);
        let inside = result.as_ref().map(|part| part.text.clone()).unwrap_or_default();
        let text = self.splice(&node.range, edits);
        let mut part = result.unwrap_or_else(|| Part::new(String::new(), Level::Atom, Flow::default()));
        part.is_changed = is_changed || text != self.text[node.range.clone()];
        part.text = text;
        part.level = Level::Atom;
        if behaviour.scaling == Scaling::None {
            part.scale = Scale::ONE;
        }
        if matches!(name, "vector" | "absent" | "absent_over_time" | "scalar" | "time") {
            if name == "absent_over_time" && !part.filters.is_empty() {
                self.leave(
                    node.range.clone(),
                    name,
                    "its range cannot be joined with the labels that it is selected by",
                );
            }
            part.flow = match arguments.first() {
                Some(argument) if name.starts_with("absent") && part.flow.has_dcgm() => {
                    self.of_absent(argument, &inside)
                }
                _ => Flow::default(),
            };
            part.filters = Filters::default();
        }
        part.is_scalar = matches!(name, "scalar" | "time" | "pi");
        self.filtered(part)
    }

    /// The labels of `absent`: those that its argument, a selector, requires to be equal.
    fn of_absent(&mut self, argument: &Node, after: &str) -> Flow {
        let mut flow = Flow::default();
        let Kind::Selector(selector) = &argument.kind else { return flow };
        let is_equal = |matcher: &&Matcher| matcher.op == MatchOp::Equal && matcher.name != "__name__";
        let after = match parsed(&fill(after), MAX_OPERATORS_OF_RESULT) {
            Ok((Expr::VectorSelector(selector), _)) => selector.matchers.matchers,
            Ok((Expr::MatrixSelector(range), _)) => range.vs.matchers.matchers,
            _ => vec![],
        };
        let mut lost = vec![];
        for located in selector.matchers.iter().filter(|located| is_equal(&&located.matcher)) {
            let name = located.matcher.name.as_str();
            let renamed = rule(self.context.target, name).name(name);
            if after.iter().any(|matcher| is_equal(&matcher) && matcher.name == renamed) {
                flow.set(name, Origin { dcgm: true, ..Origin::default() }, &renamed);
            } else if self.context.labels_read.contains(name) {
                self.leave(located.range.clone(), name, "the result of absent would not have the label any more");
            } else {
                lost.push(name);
            }
        }
        if !lost.is_empty() {
            self.differences.insert(format!("the result of absent lacks {}", lost.join(", ")));
        }
        flow
    }

    /// Decides what passes a function of a range; the rest cannot be written inside.
    fn settle_range(&mut self, part: &mut Part, name: &str, argument: &Node) {
        let behaviour = function(name);
        let factor = part.scale.factor();
        match behaviour.scaling {
            Scaling::Same | Scaling::None => {}
            Scaling::Square => match factor.power(2) {
                Some(square) => part.scale = Scale::Times(square),
                None => self.leave_function(argument, name, "the square of the factor is too large"),
            },
            Scaling::Other if factor.is_one() => {}
            Scaling::Other if matches!(argument.kind, Kind::Subquery(_)) => {
                self.leave_function(argument, name, "the factor cannot be moved out of a subquery in it");
            }
            Scaling::Other => self.leave_function(argument, name, "its result is not proportional to its argument"),
        }
        if !behaviour.is_linear && !part.sum_over.is_empty() {
            self.leave_function(
                argument,
                name,
                "podmeter has the quantity in several series, and it is not that of a sum",
            );
        }
    }

    fn leave_function(&mut self, argument: &Node, name: &str, reason: &str) {
        self.leave(argument.range.clone(), name, reason);
    }

    /// Decides what passes a function of an instant vector; the rest is written inside.
    fn settle_instant(&mut self, part: Part, name: &str, argument: &Node) -> Part {
        if name == "timestamp" {
            if !part.sum_over.is_empty() || part.flow.has_dcgm() && part.text.contains('(') {
                self.leave_function(argument, name, "it is of the samples, and the new expression is computed");
            }
            return part;
        }
        match function(name).scaling {
            Scaling::Same | Scaling::None => part.summed(),
            Scaling::Square | Scaling::Other => part.settled(),
        }
    }

    /// `label_replace` and `label_join`.
    fn relabel(&mut self, node: &Node, name: &str, arguments: &[Node], need: Need) -> Part {
        let is_replace = name == "label_replace";
        let sources = if is_replace { 3..4.min(arguments.len()) } else { 3..arguments.len() };
        let sources = arguments.get(sources).unwrap_or_default();
        let labels: Vec<Label> = sources.iter().filter_map(text_label).collect();
        let reads_pods = labels.iter().any(|label| self.is_pods(&label.name));
        let operand = &arguments[0];
        let part = self.walk(operand, Need { pods: need.pods || reads_pods, ..need });
        let mut part = self.supply(part, &labels);
        let mut edits = vec![(operand.range.clone(), part.text.clone())];
        for source in sources {
            let flow = part.flow.clone();
            let named = self.labels.clone();
            edits.extend(self.quoted_label(source, |label| flow.origin(label)));
            self.labels = named;
        }
        if let Some(destination) = arguments.get(1).and_then(text_label) {
            let made = Origin { dcgm: true, foreign: false, made: true };
            let after = rule(self.context.target, &destination.name).name(&destination.name);
            if after != destination.name {
                edits.extend(self.quoted_label(&arguments[1], |_| made));
            }
            part.flow.set(&destination.name, made, &after);
        }
        let text = self.splice(&node.range, edits);
        let is_changed = text != self.text[node.range.clone()];
        Part { text, level: Level::Atom, is_changed, ..part }
    }

    /// The edit of a label that a string argument names.
    fn quoted_label(&mut self, argument: &Node, origin: impl Fn(&str) -> Origin) -> Option<Edit> {
        let label = text_label(argument)?;
        let after = self.label(&label, origin(&label.name));
        let quote = &self.text[label.range.start..label.range.start + 1];
        let text = format!("{quote}{after}{quote}");
        if after == label.name || !origin(&label.name).dcgm {
            return None;
        }
        self.change(label.range.clone(), &text, label_reason(&label.name, &after));
        Some((label.range, text))
    }

    pub fn aggregate(
        &mut self,
        node: &Node,
        operation: TokenId,
        grouping: Option<&LabelList>,
        parameter: Option<&Node>,
        operand: &Node,
        need: Need,
    ) -> Part {
        let by = grouping.filter(|list| list.keeps);
        let keeps_labels = keeps_labels(operation);
        let reads_pods = by.is_some_and(|list| list.labels.iter().any(|label| self.is_pods(&label.name)));
        let pods = reads_pods || keeps_labels && need.pods;
        let mut part = self
            .walk(operand, Need { pods, alone: true, once: [T_MAX, T_MIN, T_GROUP].contains(&operation), mean: false });
        if let Some(list) = by {
            part = self.supply(part, &list.labels);
        }
        let mut edits = vec![];
        if let Some(parameter) = parameter {
            let parameter_part = self.walk(parameter, Need::default()).settled();
            edits.push((parameter.range.clone(), parameter_part.text));
        }
        if let Some(list) = grouping {
            if !list.keeps && self.is_native() && part.flow.rest.dcgm {
                self.leave(
                    list.range.clone(),
                    "without",
                    "dcgm-exporter's series have other labels than podmeter's, so the groups would differ; name the labels to keep with by",
                );
            }
            let flow = part.flow.clone();
            edits.extend(self.list(list, |label| flow.origin(label)));
            let names: Vec<&str> = list.labels.iter().map(|label| label.name.as_str()).collect();
            match (list.keeps, keeps_labels) {
                (_, true) => {}
                (true, false) => part.flow.keep(&names, self.context.target),
                (false, false) => part.flow.drop(&names),
            }
        } else if !keeps_labels {
            part.flow = Flow::default();
        }
        let behaviour = aggregation(operation);
        if !(behaviour.is_linear && grouping.is_none_or(|list| list.keeps)) {
            part = part.summed();
        }
        part.sum_over.clear();
        match behaviour.scaling {
            Scaling::Same => {}
            Scaling::None => part.scale = Scale::ONE,
            Scaling::Square => match part.scale.factor().power(2) {
                Some(square) => part.scale = Scale::Times(square),
                None => part = part.settled(),
            },
            Scaling::Other => {
                if !part.scale.factor().is_one() {
                    self.leave(
                        operand.range.clone(),
                        "count_values",
                        "it makes labels of the values, which have another unit",
                    );
                }
            }
        }
        edits.push((operand.range.clone(), part.text.clone()));
        let text = self.splice(&node.range, edits);
        let is_changed = text != self.text[node.range.clone()];
        Part { text, level: Level::Atom, is_changed, ..part }
    }
}

/// Whether the node is a range vector.
fn is_range(node: &Node) -> bool {
    match &node.kind {
        Kind::Selector(selector) => selector.is_range,
        Kind::Subquery(_) => true,
        Kind::Paren(inner) => is_range(inner),
        _ => false,
    }
}

/// A string argument as the label that it names.
fn text_label(argument: &Node) -> Option<Label> {
    match &argument.kind {
        Kind::Text(name) => Some(Label { range: argument.range.clone(), name: name.clone() }),
        _ => None,
    }
}
