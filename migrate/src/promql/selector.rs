//! The rewriting of one selector: its metric name and its matchers.

use std::ops::Range;

use promql_parser::label::MatchOp;

use super::labels::{ALLOCATION_INFO, Flow, Rule, rule};
use super::names::{Plan, Replacement, is_dcgm, known, plan};
use super::part::{Level, Part, Scale};
use super::tree::{LocatedMatcher, Node, Selector};
use super::walk::{Edit, Need, Walk, label_reason};

/// Labels that Prometheus gives to a target: they name dcgm-exporter's pods where the selector is of dcgm-exporter.
const TARGET_LABELS: [&str; 5] = ["job", "service", "endpoint", "app", "instance"];

impl Walk<'_> {
    pub fn selector(&mut self, node: &Node, selector: &Selector, need: Need) -> Part {
        let source = self.text[node.range.clone()].to_owned();
        let others = Part::new(source.clone(), Level::Atom, Flow::of_others());
        let Some((name_range, name)) = self.name(selector) else {
            self.leave_pattern(selector);
            return others;
        };
        if self.filled.is_variable(&name_range) {
            self.leave(name_range.clone(), &self.text[name_range.clone()], "the metric name contains a variable");
            return others;
        }
        if !is_dcgm(&name) {
            return others;
        }
        let mut part = Part::new(source, Level::Atom, Flow::of_dcgm());
        if self.is_native() {
            part.flow.supplied.insert("gpu".to_owned());
        }
        if selector.has_or {
            self.leave(node.range.clone(), &name, "matchers with or are not known to Prometheus");
            return part;
        }
        match plan(&name, self.context, need.mean) {
            Plan::Left { reason, suggestion } => {
                self.leave(name_range, &name, reason);
                if let Some(left) = self.left.last_mut() {
                    left.suggestion = suggestion;
                }
                part
            }
            Plan::Keep => {
                let edits = self.matchers(selector, &part.flow.clone(), &mut part);
                part.text = self.splice(&node.range, edits);
                part.is_changed = part.text != self.text[node.range.clone()];
                part
            }
            Plan::Replace(replacement) => self.replace(node, selector, &name_range, &replacement, need),
        }
    }

    /// The range and text of the metric name, where one is given.
    fn name(&self, selector: &Selector) -> Option<(Range<usize>, String)> {
        if let Some(name) = &selector.name {
            return Some((name.range.clone(), name.name.clone()));
        }
        let is_name = |matcher: &&LocatedMatcher| {
            matcher.matcher.name == "__name__" && matches!(matcher.matcher.op, MatchOp::Equal)
        };
        let matcher = selector.matchers.iter().find(is_name)?;
        let inside = matcher.value.start + 1..matcher.value.end - 1;
        Some((inside.clone(), self.text[inside].to_owned()))
    }

    /// Lists a pattern of names that covers names of the table, unless it covers others as well.
    fn leave_pattern(&mut self, selector: &Selector) {
        let names: Vec<&LocatedMatcher> =
            selector.matchers.iter().filter(|matcher| matcher.matcher.name == "__name__").collect();
        let Some(first) = names.first() else { return };
        let value = &first.matcher.value;
        if is_variable_text(value) && value.contains("DCGM_") {
            self.leave(first.range.clone(), &value.clone(), "the metric name contains a variable");
            return;
        }
        let covers = |name: &str| names.iter().all(|matcher| matcher.matcher.is_match(name));
        let covered: Vec<&str> = known().filter(|name| covers(name)).collect();
        if covered.is_empty() || covers("up") {
            return;
        }
        let more = covered.len().saturating_sub(5);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let reason = format!("the pattern covers {}{more}", covered[..covered.len().min(5)].join(", "));
        self.leave(first.range.clone(), &value.clone(), reason);
    }

    fn replace(
        &mut self,
        node: &Node,
        selector: &Selector,
        name_range: &Range<usize>,
        replacement: &Replacement,
        need: Need,
    ) -> Part {
        let reads_pods = need.pods || selector.matchers.iter().any(|matcher| self.is_pods(&matcher.matcher.name));
        let container = replacement.container.filter(|_| reads_pods && need.alone);
        let mut flow = Flow::of_dcgm();
        let (metric, labels) = match container {
            Some((metric, difference)) => {
                self.differences.insert(difference.to_owned());
                flow.supplied.extend(["namespace", "pod", "container"].map(str::to_owned));
                flow.extras.insert("mig_uuid".to_owned(), Some(ALLOCATION_INFO.to_owned()));
                (metric, &[][..])
            }
            None => {
                if self.is_native() {
                    flow.supplied.insert("gpu".to_owned());
                }
                (replacement.metric, replacement.labels)
            }
        };
        self.differences.extend(replacement.difference.map(str::to_owned));
        flow.extras.extend(labels.iter().map(|(label, value)| ((*label).to_owned(), Some((*value).to_owned()))));
        let mut part = Part::new(String::new(), Level::Atom, flow);
        part.scale = Scale::Times(replacement.factor);
        part.is_counter = replacement.is_counter;
        if container.is_none() {
            part.sum_over = replacement.sum_over.to_vec();
        }
        let mut edits = self.matchers(selector, &part.flow.clone(), &mut part);
        let mut after = metric.to_owned();
        let added: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        let removed = edits.iter().filter(|(_, text)| text.is_empty()).count();
        match &selector.braces {
            None if !added.is_empty() => after = format!("{metric}{{{}}}", added.join(", ")),
            None => {}
            Some(braces) if removed == selector.matchers.len() && selector.name.is_some() => {
                // No matcher of the source is left.
                edits = vec![];
                if added.is_empty() {
                    edits.push((braces.clone(), String::new()));
                } else {
                    edits.push((braces.clone(), format!("{{{}}}", added.join(", "))));
                }
            }
            Some(braces) => {
                self.remove_commas(selector, &mut edits);
                if !added.is_empty() {
                    let separator = if selector.matchers.is_empty() { "" } else { ", " };
                    edits.push((braces.start + 1..braces.start + 1, format!("{}{separator}", added.join(", "))));
                }
            }
        }
        let mut reason = replacement.reason.clone();
        if let Some(difference) = replacement.difference {
            reason = format!("{reason}; {difference}");
        }
        self.change(name_range.clone(), &after, reason);
        edits.push((name_range.clone(), after));
        part.text = self.splice(&node.range, edits);
        part.is_changed = true;
        if selector.is_range && !part.filters.pods.is_empty() {
            self.differences.insert("a range counts for the pods that hold the GPU at its end".to_owned());
        }
        if selector.is_range { part } else { self.filtered(part) }
    }

    /// The edits of the matchers: an empty replacement removes one.
    fn matchers(&mut self, selector: &Selector, flow: &Flow, part: &mut Part) -> Vec<Edit> {
        let mut edits = vec![];
        for matcher in &selector.matchers {
            let label = matcher.matcher.name.as_str();
            if label == "__name__" {
                continue;
            }
            if self.is_native() && self.names_the_exporter(matcher) {
                let reason = format!("{label} is that of dcgm-exporter");
                self.change(matcher.range.clone(), "", reason);
                edits.push((matcher.range.clone(), String::new()));
                continue;
            }
            let rule = rule(self.context.target, label);
            let after = rule.name(label);
            self.labels.entry(after.clone()).or_default().insert(label.to_owned());
            let value = self.text[matcher.label.end..matcher.range.end].to_owned();
            let value = if label == "pci_bus_id" { self.bus_id(matcher, value) } else { value };
            let text =
                if label == "device" && self.is_native() { self.minor(matcher) } else { format!("{after}{value}") };
            let is_there = flow.supplied.contains(&after);
            match rule {
                Rule::Keep => {}
                Rule::Instance if !is_variable_text(&value) && matcher.matcher.is_match("") => {
                    self.change(matcher.range.clone(), "", "podmeter's device metrics are of whole GPUs");
                    edits.push((matcher.range.clone(), String::new()));
                }
                Rule::Missing(_) | Rule::Instance | Rule::Elsewhere(_) => {
                    self.leave_missing(rule, matcher.range.clone(), label);
                }
                Rule::Info(_) if !is_there => {
                    self.change(matcher.range.clone(), "", "the label is in podmeter_device_info");
                    edits.push((matcher.range.clone(), String::new()));
                    part.filters.info.push(text);
                }
                Rule::Pods(_) if !is_there => {
                    self.change(matcher.range.clone(), "", "the label is in podmeter_container_allocation_info");
                    edits.push((matcher.range.clone(), String::new()));
                    let is_variable = is_variable_text(&value);
                    if is_variable {
                        self.differences.insert(
                            "GPUs without a pod are absent, also where the variable matches the empty string"
                                .to_owned(),
                        );
                    }
                    let matches_empty = !is_variable && matcher.matcher.is_match("");
                    part.filters.pods_match_empty =
                        matches_empty && (part.filters.pods.is_empty() || part.filters.pods_match_empty);
                    part.filters.pods.push(text);
                }
                Rule::Rename(_) | Rule::Info(_) | Rule::Pods(_) => {
                    if after != label {
                        self.change(matcher.label.clone(), &after, label_reason(label, &after));
                        edits.push((matcher.label.clone(), after));
                    }
                }
            }
        }
        edits
    }

    /// podmeter writes the PCI domain with four digits, NVML with eight.
    fn bus_id(&mut self, matcher: &LocatedMatcher, value: String) -> String {
        if is_variable_text(&value) || !self.is_native() {
            return value;
        }
        match (&matcher.matcher.op, matcher.matcher.value.strip_prefix("0000")) {
            (MatchOp::Equal | MatchOp::NotEqual, Some(short)) if short.starts_with("0000:") => {
                value.replacen("00000000:", "0000:", 1)
            }
            _ => {
                self.leave(
                    matcher.range.clone(),
                    "pci_bus_id",
                    "podmeter writes the PCI domain with four digits instead of eight",
                );
                value
            }
        }
    }

    /// podmeter has the number of `nvidia0` as the label minor.
    fn minor(&mut self, matcher: &LocatedMatcher) -> String {
        let operator = match matcher.matcher.op {
            MatchOp::Equal => "=",
            MatchOp::NotEqual => "!=",
            MatchOp::Re(_) | MatchOp::NotRe(_) => "",
        };
        let number = matcher.matcher.value.strip_prefix("nvidia").filter(|number| number.parse::<u32>().is_ok());
        match number {
            Some(number) if !operator.is_empty() => format!("minor{operator}\"{number}\""),
            _ => {
                self.leave(
                    matcher.range.clone(),
                    "device",
                    "podmeter_device_info has the number alone, as the label minor",
                );
                String::new()
            }
        }
    }

    /// Whether the matcher selects dcgm-exporter's own pods; another target cannot be told from podmeter's.
    fn names_the_exporter(&mut self, matcher: &LocatedMatcher) -> bool {
        let label = matcher.matcher.name.as_str();
        let is_target = TARGET_LABELS.contains(&label);
        if !is_target && !["namespace", "pod", "container"].contains(&label) {
            return false;
        }
        let value = &matcher.matcher.value;
        if is_variable_text(value) {
            return false;
        }
        let is_positive = matches!(matcher.matcher.op, MatchOp::Equal | MatchOp::Re(_));
        let names = ["dcgm", "gpu-operator"].iter().any(|part| value.contains(part)) && is_positive;
        if is_target && !names && !matcher.matcher.is_match("") {
            let reason = format!("podmeter's {label} is another than dcgm-exporter's");
            self.leave(matcher.range.clone(), label, reason);
        }
        names
    }

    /// Takes a comma along with each removed matcher.
    fn remove_commas(&self, selector: &Selector, edits: &mut [Edit]) {
        let is_removed = |edits: &[Edit], range: &Range<usize>| {
            edits.iter().any(|(edit, text)| text.is_empty() && edit.start <= range.start && range.end <= edit.end)
        };
        let ranges: Vec<Range<usize>> = selector.matchers.iter().map(|matcher| matcher.range.clone()).collect();
        let last_kept = ranges.iter().rposition(|range| !is_removed(edits, range));
        for (index, range) in ranges.iter().enumerate() {
            let Some((edit, _)) = edits.iter_mut().find(|(edit, text)| text.is_empty() && *edit == *range) else {
                continue;
            };
            if last_kept.is_some_and(|last| index > last) {
                edit.start = ranges[index - 1].end;
            } else if let Some(next) = ranges.get(index + 1) {
                edit.end = next.start;
            }
        }
    }
}

/// Whether Grafana would put something into the text; a `$` at the end of a pattern is no variable.
pub fn is_variable_text(text: &str) -> bool {
    let starts = |rest: &str| rest.starts_with(|next: char| next.is_ascii_alphabetic() || next == '_' || next == '{');
    text.split('$').skip(1).any(starts)
        || text.split("[[").skip(1).any(|rest| rest.starts_with(|next: char| next.is_ascii_alphabetic()))
}
