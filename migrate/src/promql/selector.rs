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
            self.leave(node.range.clone(), &name, "Prometheus has no or between matchers");
            return part;
        }
        match plan(&name, self.context) {
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
        let pods: Vec<&LocatedMatcher> = selector
            .matchers
            .iter()
            .filter(|matcher| self.is_pods(&matcher.matcher.name) && !selects_exporter(matcher))
            .collect();
        let excludes_idle =
            pods.iter().any(|matcher| is_variable_text(&matcher.matcher.value) || !matcher.matcher.is_match(""));
        let reads_pods = need.pods || !pods.is_empty();
        // GPUs that nothing holds are added to an instant, and cannot be added to a range.
        let adds_idle = pods.is_empty() && !selector.is_range;
        let by_container = replacement.container.filter(|_| reads_pods);
        let container = by_container.filter(|_| need.alone && (excludes_idle || adds_idle || selector.is_range));
        let is_native = self.is_native();
        if by_container.is_some() && selector.is_range && !(need.alone && excludes_idle) {
            let reason =
                "the pods of a GPU change in a range, and podmeter's metric by container lacks the time without a pod";
            self.leave(node.range.clone(), "range", reason);
        } else if by_container.is_some() && container.is_none() {
            let difference =
                "a shared GPU has the device's value for each pod, not each container's own beside the device's";
            self.differences.insert(difference.to_owned());
        }
        // A pod's own value can exceed the device's.
        let is_repeated = !need.once || replacement.container.is_some();
        if is_native && container.is_none() && !reads_pods && is_repeated {
            self.differences.insert("a shared GPU has one series, not one for each slot".to_owned());
        }
        self.differences.extend(replacement.difference.map(str::to_owned));
        let mut flow = Flow::of_dcgm();
        let labels = replacement.labels.iter();
        let fixed = labels.map(|(label, value)| ((*label).to_owned(), Some((*value).to_owned())));
        if container.is_some() {
            flow.supplied.extend(["namespace", "pod", "container"].map(str::to_owned));
            flow.extras.insert("mig_uuid".to_owned(), Some(ALLOCATION_INFO.to_owned()));
        } else {
            flow.extras.extend(fixed);
            if is_native {
                flow.supplied.insert("gpu".to_owned());
            }
        }
        let mut part = Part::new(String::new(), Level::Atom, flow);
        part.scale = Scale::Times(replacement.factor);
        let mut edits = self.matchers(selector, &part.flow.clone(), &mut part);
        if replacement.is_counter && selector.is_range && !need.mean {
            let reason = "podmeter counts what it has as a rate: only the mean over a range is that of the counter";
            self.leave(name_range.clone(), &self.text[name_range.clone()], reason);
        }
        part.is_counter = replacement.is_counter && selector.is_range;
        let interval = self.context.rate_interval.as_deref().filter(|_| replacement.is_counter && !selector.is_range);
        if let Some(interval) = interval {
            let end = selector.braces.as_ref().map_or(name_range.end, |braces| braces.end);
            edits.push((end..end, format!("[{interval}]")));
        }
        let mut reason = replacement.reason.clone();
        if let Some(difference) = replacement.difference {
            reason = format!("{reason}; {difference}");
        }
        let (device, mut text) =
            self.written(node, selector, name_range, replacement.metric, replacement.labels, &edits);
        if interval.is_some() {
            text = format!("rate({text})");
        }
        match container {
            None => {
                part.sum_over = replacement.sum_over.to_vec();
                self.change(name_range.clone(), &device, reason);
                part = part.with_text(text, Level::Atom);
            }
            Some((metric, difference)) => {
                self.differences.insert(difference.to_owned());
                self.change(name_range.clone(), metric, format!("{reason}, by container; {difference}"));
                let (_, own) = self.written(node, selector, name_range, metric, &[], &edits);
                part = if adds_idle {
                    part.with_text(format!("{own} or on (gpu_uuid) {text}"), Level::Or)
                } else {
                    part.with_text(own, Level::Atom)
                };
            }
        }
        if selector.is_range { part } else { self.filtered(part) }
    }

    /// The name as it is changed, and the selector with it, `labels` and `edits`.
    fn written(
        &self,
        node: &Node,
        selector: &Selector,
        name_range: &Range<usize>,
        metric: &str,
        labels: &[(&str, &str)],
        edits: &[Edit],
    ) -> (String, String) {
        let mut edits = edits.to_vec();
        let mut after = metric.to_owned();
        let added: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        let added = added.join(", ");
        let removed = edits.iter().filter(|(_, text)| text.is_empty()).count();
        match &selector.braces {
            None if added.is_empty() => {}
            None => after = format!("{metric}{{{added}}}"),
            // No matcher of the source is left.
            Some(braces) if removed == selector.matchers.len() && selector.name.is_some() => {
                let text = if added.is_empty() { String::new() } else { format!("{{{added}}}") };
                edits.retain(|(edit, _)| edit.start >= braces.end);
                edits.push((braces.clone(), text));
            }
            Some(braces) => {
                self.remove_commas(selector, &mut edits);
                if !added.is_empty() {
                    let separator = if selector.matchers.is_empty() { "" } else { ", " };
                    edits.push((braces.start + 1..braces.start + 1, format!("{added}{separator}")));
                }
            }
        }
        edits.push((name_range.clone(), after.clone()));
        (after, self.splice(&node.range, edits))
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
            if label == "device" && self.is_native() {
                let text = self.index(matcher);
                let is_there = flow.supplied.contains("gpu");
                self.change(matcher.range.clone(), &text, "dcgm-exporter makes the label device of the index");
                edits.push((matcher.range.clone(), if is_there { text.clone() } else { String::new() }));
                if !is_there {
                    part.filters.info.push(text);
                }
                continue;
            }
            let text = format!("{after}{value}");
            let is_there = flow.supplied.contains(&after);
            match rule {
                Rule::Keep => {}
                Rule::Instance if !is_variable_text(&value) && matcher.matcher.is_match("") => {
                    self.change(matcher.range.clone(), "", "podmeter's device metrics are of whole GPUs");
                    edits.push((matcher.range.clone(), String::new()));
                }
                Rule::Missing(_) | Rule::Instance | Rule::Elsewhere(_) | Rule::Unknown => {
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

    /// podmeter writes the PCI domain with four digits and in lower case, NVML with eight and in upper case.
    fn bus_id(&mut self, matcher: &LocatedMatcher, value: String) -> String {
        if is_variable_text(&value) || !self.is_native() {
            return value;
        }
        match (&matcher.matcher.op, matcher.matcher.value.strip_prefix("0000")) {
            (MatchOp::Equal | MatchOp::NotEqual, Some(short)) if short.starts_with("0000:") => {
                value.replacen("00000000:", "0000:", 1).to_ascii_lowercase()
            }
            _ => {
                self.leave(
                    matcher.range.clone(),
                    "pci_bus_id",
                    "podmeter writes the PCI domain with four digits instead of eight, and in lower case",
                );
                value
            }
        }
    }

    /// The index in `nvidia0`, as a matcher of the label gpu.
    fn index(&mut self, matcher: &LocatedMatcher) -> String {
        let operator = match matcher.matcher.op {
            MatchOp::Equal => "=",
            MatchOp::NotEqual => "!=",
            MatchOp::Re(_) | MatchOp::NotRe(_) => "",
        };
        let number = matcher.matcher.value.strip_prefix("nvidia").filter(|number| number.parse::<u32>().is_ok());
        match number {
            Some(number) if !operator.is_empty() => format!("gpu{operator}\"{number}\""),
            _ => {
                self.leave(matcher.range.clone(), "device", "podmeter has its number alone, as the label gpu");
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
        let names = selects_exporter(matcher);
        if !names && matches!(matcher.matcher.op, MatchOp::Re(_)) && value.split('|').any(|one| is_exporter(label, one))
        {
            self.leave(matcher.range.clone(), label, "it selects dcgm-exporter's own pods and others");
        } else if is_target && !names && !matcher.matcher.is_match("") && rule(self.context.target, label) == Rule::Keep
        {
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

/// Whether the matcher selects dcgm-exporter's own pods alone, as a namespace or a job.
fn selects_exporter(matcher: &LocatedMatcher) -> bool {
    let value = &matcher.matcher.value;
    let is_positive = matches!(matcher.matcher.op, MatchOp::Equal | MatchOp::Re(_));
    is_positive && !is_variable_text(value) && value.split('|').all(|one| is_exporter(&matcher.matcher.name, one))
}

/// Whether a value, or an alternative of a pattern, is that of dcgm-exporter. Pods and namespaces of users can have its name in theirs.
fn is_exporter(label: &str, value: &str) -> bool {
    let name = value.trim_matches(|character: char| "^$.*+()".contains(character));
    let is_named = name == "dcgm" || name.contains("dcgm-exporter") || name.ends_with("gpu-operator");
    is_named || TARGET_LABELS.contains(&label) && name.contains("dcgm")
}

/// Whether Grafana would put something into the text; a `$` at the end of a pattern is no variable.
pub fn is_variable_text(text: &str) -> bool {
    let starts = |rest: &str| rest.starts_with(|next: char| next.is_ascii_alphabetic() || next == '_' || next == '{');
    text.split('$').skip(1).any(starts)
        || text.split("[[").skip(1).any(|rest| rest.starts_with(|next: char| next.is_ascii_alphabetic()))
}
