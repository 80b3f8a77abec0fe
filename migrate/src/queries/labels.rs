//! Where texts name labels: legends of Grafana, templates of Prometheus' rules.

use std::ops::Range;

/// dcgm-exporter's labels and those that Prometheus and Kubernetes add to its series. A word of another query is taken for the
/// name of a label only if it is one of these.
pub const OF_DCGM_SERIES: &[&str] = &[
    "Hostname",
    "hostname",
    "UUID",
    "uuid",
    "gpu",
    "gpu_uuid",
    "device",
    "modelName",
    "model_name",
    "pci_bus_id",
    "GPU_I_ID",
    "GPU_I_PROFILE",
    "DCGM_FI_DRIVER_VERSION",
    "DCGM_FI_SYSTEM_DRIVER_VERSION",
    "pod",
    "namespace",
    "container",
    "exported_pod",
    "exported_namespace",
    "exported_container",
    "pod_name",
    "pod_namespace",
    "container_name",
    "pod_uid",
    "vgpu",
    "nvlink",
    "nvswitch",
];

/// How a text names labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    /// Grafana: `{{label}}`.
    Legend,
    /// Prometheus: `{{ $labels.label }}`.
    Rule,
    /// Names with commas between.
    List,
}

impl Template {
    /// The labels that the text names, with their bytes.
    pub fn labels(self, text: &str) -> Vec<(Range<usize>, &str)> {
        let mut found = vec![];
        match self {
            Template::List => found = words_at(text),
            Template::Legend => {
                for (start, _) in text.match_indices("{{") {
                    let inside = &text[start + 2..];
                    let Some(length) = inside.find("}}") else { continue };
                    let label = inside[..length].trim();
                    if is_name(label) {
                        let at = start + 2 + (length - inside[..length].trim_start().len());
                        found.push((at..at + label.len(), label));
                    }
                }
            }
            Template::Rule => {
                // In the results of a template's own query, `.Labels` are that query's.
                let own = !text.contains("query");
                for start in ["$labels.", "index $labels \"", ".Labels.", "index .Labels \""] {
                    if start.starts_with('$') || start.contains('$') || own {
                        for (at, _) in text.match_indices(start) {
                            let at = at + start.len();
                            let label = name_at(&text[at..]);
                            if !label.is_empty() {
                                found.push((at..at + label.len(), label));
                            }
                        }
                    }
                }
                found.sort_by_key(|(range, _)| range.start);
            }
        }
        found
    }
}

/// Whether a rule's template uses the value of the expression.
pub fn uses_value(template: &str) -> bool {
    template.contains("$value") || template.contains(".Value")
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && name_at(text).len() == text.len() && !text.starts_with(|first: char| first.is_ascii_digit())
}

fn name_at(text: &str) -> &str {
    &text[..text.find(|other: char| !other.is_ascii_alphanumeric() && other != '_').unwrap_or(text.len())]
}

/// The words of a text: names of metrics and labels, and others.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|other: char| !is_part(other)).filter(|word| !word.is_empty())
}

/// The same with their bytes.
pub fn words_at(text: &str) -> Vec<(Range<usize>, &str)> {
    let start = |word: &str| word.as_ptr().addr() - text.as_ptr().addr();
    words(text).map(|word| (start(word)..start(word) + word.len(), word)).collect()
}

fn is_part(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | ':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_templates() {
        let labels = |template: Template, text: &'static str| -> Vec<&str> {
            let found = template.labels(text);
            found.iter().for_each(|(range, label)| assert_eq!(&text[range.clone()], *label));
            found.into_iter().map(|(_, label)| label).collect()
        };
        assert_eq!(labels(Template::Legend, "{{Hostname}} GPU {{ gpu }} {{ }} {{a b}} {{"), ["Hostname", "gpu"]);
        assert_eq!(
            labels(
                Template::Rule,
                "{{ $labels.Hostname }}: {{$labels.gpu}} {{ index $labels \"UUID\" }} $labelsx {{ .Labels.pod }}"
            ),
            ["Hostname", "gpu", "UUID", "pod"]
        );
        assert_eq!(labels(Template::List, "Hostname, gpu,,"), ["Hostname", "gpu"]);
        assert_eq!(labels(Template::Rule, "{{ range query `x` }}{{ .Labels.pod }}{{ end }}{{ $labels.gpu }}"), ["gpu"]);
    }
}
