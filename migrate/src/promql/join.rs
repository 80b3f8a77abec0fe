//! Labels that podmeter's device metrics lack: joins with its info metrics, where a label is used and only there.

use super::labels::{ALLOCATION_INFO, ALLOCATION_LABELS, DEVICE_INFO, Rule, rule};
use super::part::{Filters, Level, Part};
use super::tree::Label;
use super::walk::Walk;

impl Walk<'_> {
    /// The part with those of the labels that its series had before.
    pub fn supply(&mut self, part: Part, labels: &[Label]) -> Part {
        self.supply_for(part, labels, true)
    }

    /// As [`Self::supply`]; `keeps_idle`: GPUs that nothing holds matter.
    pub fn supply_for(&mut self, part: Part, labels: &[Label], keeps_idle: bool) -> Part {
        if !self.is_native() {
            return part;
        }
        let (mut info, mut pods) = (vec![], false);
        for label in labels {
            let origin = part.flow.origin(&label.name);
            if !origin.dcgm || self.filled.is_variable(&label.range) {
                continue;
            }
            match rule(self.context.target, &label.name) {
                Rule::Info(name) if !part.flow.supplied.contains(name) && !info.contains(&name) => info.push(name),
                Rule::Pods(name) if !part.flow.supplied.contains(name) => pods = true,
                _ => continue,
            }
            if !part.flow.has_uuid() {
                self.leave(
                    label.range.clone(),
                    &label.name,
                    "podmeter's is joined by UUID, which the result does not have here",
                );
                return part;
            }
        }
        let part = if pods {
            self.join_pods(part, &Filters { pods_match_empty: keeps_idle, ..Filters::default() })
        } else {
            part
        };
        if info.contains(&"pci_bus_id") {
            self.differences.insert("pci_bus_id has four digits of the domain and lower case".to_owned());
        }
        // dcgm-exporter makes the label device of the index.
        let makes_device = info.contains(&"device");
        if makes_device && !info.contains(&"gpu") {
            info.push("gpu");
        }
        info.retain(|name| *name != "device" && !part.flow.supplied.contains(*name));
        let part = if info.is_empty() { part } else { join_info(part, &info, &[]) };
        if makes_device { make_device(part) } else { part }
    }

    /// Applies the pending filters.
    pub fn filtered(&mut self, mut part: Part) -> Part {
        let filters = std::mem::take(&mut part.filters);
        if !filters.pods.is_empty() {
            part = self.join_pods(part, &filters);
        }
        if filters.info.is_empty() {
            return part;
        }
        let labels: Vec<&'static str> = ["gpu", "model"]
            .into_iter()
            .filter(|name| !part.flow.supplied.contains(*name))
            .filter(|name| filters.info.iter().any(|matcher| matcher.starts_with(name)))
            .collect();
        join_info(part, &labels, &filters.info)
    }

    /// One series for each container that holds the GPU as a whole; GPUs that nothing holds keep their one.
    fn join_pods(&mut self, part: Part, filters: &Filters) -> Part {
        if part.is_of_range {
            self.differences.insert("a range counts for the pods that hold the GPU at its end".to_owned());
        }
        let part = part.summed();
        let whole = format!("{ALLOCATION_INFO}{{mig_uuid=\"\"}}");
        let mut allocations = whole.clone();
        if !filters.pods.is_empty() {
            allocations = format!("{ALLOCATION_INFO}{{mig_uuid=\"\", {}}}", filters.pods.join(", "));
        }
        let carried: Vec<String> = part.flow.supplied.iter().cloned().collect();
        let joined = format!(
            "{allocations} * on (gpu_uuid) group_left ({}) {}",
            carried.join(", "),
            part.at_least_when_changed(Level::Power)
        );
        let (text, level) = if !filters.pods_match_empty {
            (joined, Level::Multiply)
        } else if filters.pods.is_empty() {
            (format!("{joined} or on (gpu_uuid) {}", part.at_least_when_changed(Level::And)), Level::Or)
        } else {
            let idle = format!("{} unless on (gpu_uuid) {whole}", part.at_least_when_changed(Level::And));
            (format!("{joined} or on (gpu_uuid) ({idle})"), Level::Or)
        };
        let mut part = part.with_text(text, level);
        part.flow.supplied.extend(["namespace", "pod", "container"].map(str::to_owned));
        part.flow.extras =
            ALLOCATION_LABELS.iter().map(|label| ((*label).to_owned(), Some(ALLOCATION_INFO.to_owned()))).collect();
        part
    }
}

/// Adds labels of `podmeter_device_info`.
fn join_info(mut part: Part, labels: &[&'static str], matchers: &[String]) -> Part {
    let mut info = DEVICE_INFO.to_owned();
    if !matchers.is_empty() {
        info = format!("{info}{{{}}}", matchers.join(", "));
    }
    let level = if part.level >= Level::Multiply { Level::Multiply } else { Level::Atom };
    let text =
        format!("{} * on (gpu_uuid) group_left ({}) {info}", part.at_least_when_changed(level), labels.join(", "));
    part.flow.supplied.extend(labels.iter().map(|label| (*label).to_owned()));
    part.with_text(text, Level::Multiply)
}

/// Adds the label device.
fn make_device(mut part: Part) -> Part {
    let text = format!("label_replace({}, \"device\", \"nvidia$1\", \"gpu\", \"(.+)\")", part.text);
    part.flow.supplied.insert("device".to_owned());
    part.with_text(text, Level::Atom)
}
