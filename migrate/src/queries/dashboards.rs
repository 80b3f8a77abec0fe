//! Grafana's dashboards of the classic schema: panels, variables, annotations.

use std::collections::BTreeSet;
use std::ops::Range;

use super::labels::{OF_DCGM_SERIES, Template, words, words_at};
use super::{Form, Found, Panel, Query, Unit};
use crate::files::tree::Node;

const OTHER_SOURCE: &str = "a query of a data source that is not Prometheus";

pub fn find<'f>(document: usize, dashboard: &'f Node, found: &mut Found<'f>) {
    let rows = dashboard.items_of("rows").iter().flat_map(|row| row.items_of("panels"));
    // An exported dashboard carries the library panels that it uses.
    let elements = dashboard.get("__elements").map_or(&[][..], Node::entries);
    let library = elements.iter().filter_map(|(_, element)| element.get("model"));
    for panel in dashboard.items_of("panels").iter().chain(rows).chain(library) {
        add_panel(document, panel, found);
        // A collapsed row.
        panel.items_of("panels").iter().for_each(|nested| add_panel(document, nested, found));
    }
    for variable in dashboard.get("templating").map_or(&[][..], |templating| templating.items_of("list")) {
        add_variable(document, variable, found);
    }
    for annotation in dashboard.get("annotations").map_or(&[][..], |annotations| annotations.items_of("list")) {
        for expression in [annotation.get("expr"), annotation.at(&["target", "expr"])].into_iter().flatten() {
            if of_other_source(annotation.get("datasource")) {
                found.others.push(((document, expression.span.start), OTHER_SOURCE));
            } else if let Some(mut query) = Query::new(document, expression) {
                for key in ["titleFormat", "textFormat"] {
                    query.template(annotation.get(key), Template::Legend);
                }
                query.template(annotation.get("tagKeys"), Template::List);
                found.queries.push(query);
            }
        }
    }
}

fn add_panel<'f>(document: usize, panel: &'f Node, found: &mut Found<'f>) {
    let place = (document, panel.span.start);
    if let Some(library) = panel.get("libraryPanel")
        && panel.get("targets").is_none()
    {
        let name = library.text_of("name").unwrap_or("without a name");
        found.listed.push((place, format!("the library panel `{name}`: its queries are not in this file")));
        return;
    }
    let number = found.panels.len();
    found.panels.push(Panel { document, node: panel });
    let read: BTreeSet<String> =
        readers(panel).iter().flat_map(Reader::labels).map(|(_, label, _)| label.to_owned()).collect();
    for target in panel.items_of("targets") {
        let Some(expression) = target.get("expr") else { continue };
        let source = target
            .get("datasource")
            .filter(|source| source.is_mapping() || source.text().is_some_and(|text| !text.is_empty()));
        if of_other_source(source.or_else(|| panel.get("datasource"))) {
            found.others.push(((document, expression.span.start), OTHER_SOURCE));
            continue;
        }
        let Some(mut query) = Query::new(document, expression) else { continue };
        query.template(target.get("legendFormat"), Template::Legend);
        query.labels_kept = panel.text_of("type") == Some("table");
        query.labels_read = read.clone();
        query.unit = Unit::Panel(number);
        found.queries.push(query);
    }
}

/// A text of a panel that may name labels of the results.
pub struct Reader<'n> {
    pub node: &'n Node,
    pub text: &'n str,
    /// Names of fields: the whole text may be a label, and patterns may have one. Otherwise only variables such as
    /// `${__field.labels.Hostname}` are labels.
    field: bool,
}

impl<'n> Reader<'n> {
    /// The labels that the text names, with their bytes; false for a part of a pattern.
    pub fn labels(&self) -> Vec<(Range<usize>, &'n str, bool)> {
        let named = words_at(self.text).into_iter().filter_map(|(range, word)| {
            let before = &self.text[..range.start];
            if ["${__data.fields.", "${__field.labels."].iter().any(|prefix| before.ends_with(prefix)) {
                return Some((range, word, true));
            }
            // A variable of the dashboard keeps its name. Words that are labels by chance are frequent in patterns.
            let variable = ["var-", "$", "${"].iter().any(|prefix| before.ends_with(prefix));
            let whole = range == (0..self.text.len());
            (self.field && !variable && (whole || !EVERYDAY.contains(&word))).then_some((range, word, whole))
        });
        named.filter(|(_, word, _)| OF_DCGM_SERIES.contains(word)).collect()
    }
}

/// Labels that are words of other texts too.
const EVERYDAY: [&str; 6] = ["gpu", "device", "pod", "namespace", "container", "hostname"];

/// Texts of a panel that may name labels of the results.
pub fn readers(panel: &Node) -> Vec<Reader<'_>> {
    let mut readers = vec![];
    for key in ["transformations", "options"] {
        add_readers(panel.get(key), true, &mut readers);
    }
    for one in panel.at(&["fieldConfig", "overrides"]).map_or(&[][..], Node::items) {
        add_readers(one.get("matcher"), true, &mut readers);
        add_readers(one.get("properties"), false, &mut readers);
    }
    add_readers(panel.at(&["fieldConfig", "defaults"]), false, &mut readers);
    add_readers(panel.get("links"), false, &mut readers);
    readers
}

fn add_readers<'n>(node: Option<&'n Node>, field: bool, readers: &mut Vec<Reader<'n>>) {
    let Some(node) = node else { return };
    if let Some(text) = node.text() {
        readers.push(Reader { node, text, field });
    }
    node.items().iter().for_each(|item| add_readers(Some(item), field, readers));
    for (key, value) in node.entries() {
        add_readers(Some(key), field, readers);
        // What a field is shown as.
        add_readers(Some(value), field && key.text() != Some("renameByName"), readers);
    }
    // The names of the fields themselves.
    if let Some(renamed) = node.get("renameByName").filter(|_| field) {
        let shown = |reader: &Reader<'_>| renamed.entries().iter().any(|(key, _)| std::ptr::eq(key, reader.node));
        readers.iter_mut().filter(|reader| shown(reader)).for_each(|reader| reader.field = true);
    }
}

fn of_dcgm<'t>(texts: impl Iterator<Item = &'t str>) -> BTreeSet<String> {
    texts.flat_map(words).filter(|word| OF_DCGM_SERIES.contains(word)).map(str::to_owned).collect()
}

/// Whether a data source has a type that is not Prometheus or compatible.
fn of_other_source(source: Option<&Node>) -> bool {
    // Old dashboards name the data source without its type.
    let kind = source.and_then(|source| source.text_of("type"));
    kind.is_some_and(|kind| {
        let compatible = ["prometheus", "victoriametrics", "datasource", "mixed"];
        !kind.is_empty()
            && !kind.starts_with('$')
            && !compatible.iter().any(|name| kind.to_ascii_lowercase().contains(name))
    })
}

fn add_variable<'f>(document: usize, variable: &'f Node, found: &mut Found<'f>) {
    if variable.text_of("type") == Some("adhoc") {
        // Grafana adds them to every selector.
        for filter in ["filters", "baseFilters"].into_iter().flat_map(|key| variable.items_of(key)) {
            if let Some(mut query) = filter.get("key").and_then(|key| Query::new(document, key)) {
                query.form = Form::LabelOnly(0..query.text.len());
                found.queries.push(query);
            }
        }
    }
    if variable.text_of("type") != Some("query") {
        return;
    }
    let query = variable.get("query").map(|query| query.get("query").unwrap_or(query));
    let definition = variable.get("definition");
    for node in [query, definition].into_iter().flatten() {
        if of_other_source(variable.get("datasource")) {
            found.others.push(((document, node.span.start), OTHER_SOURCE));
            continue;
        }
        let Some(mut query) = Query::new(document, node) else { continue };
        let Some(form) = form(query.text) else { continue };
        query.form = form;
        query.labels_read = of_dcgm(variable.text_of("regex").into_iter());
        match found.queries.last_mut() {
            Some(last)
                if last.place.0 == document && last.text == query.text && Some(last.place.1) == start(variable) =>
            {
                last.copies.push(query.place);
            }
            _ => found.queries.push(query),
        }
    }
}

/// Where the query of a variable begins.
fn start(variable: &Node) -> Option<usize> {
    variable.get("query").map(|query| query.get("query").unwrap_or(query).span.start)
}

/// Where the expression stands in the query of a variable; `None` for functions without one.
fn form(text: &str) -> Option<Form> {
    let trimmed = text.trim();
    let begin = text.len() - text.trim_start().len();
    let Some(open) = trimmed.find('(') else { return Some(Form::Expression) };
    let inside = |name: &str| {
        (trimmed[..open].trim_end() == name && trimmed.ends_with(')'))
            .then_some(begin + open + 1..begin + trimmed.len() - 1)
    };
    if let Some(range) = inside("query_result") {
        return Some(Form::Inside(range));
    }
    if inside("metrics").is_some() || inside("label_names").is_some() {
        return None;
    }
    let Some(range) = inside("label_values") else { return Some(Form::Expression) };
    // The label is a name, so that no comma of the selector comes after the one before it.
    let arguments = &text[range.clone()];
    let comma = arguments.rfind(',').filter(|comma| !arguments[*comma..].contains(['}', ')', '"']));
    let trimmed = |from: usize, to: usize| {
        let part = &text[from..to];
        let start = from + (part.len() - part.trim_start().len());
        start..start + part.trim().len()
    };
    Some(match comma {
        Some(comma) => Form::LabelValues {
            selector: trimmed(range.start, range.start + comma),
            label: trimmed(range.start + comma + 1, range.end),
        },
        None => Form::LabelOnly(trimmed(range.start, range.end)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_in_texts_of_panels() {
        let text = r#"{
          "transformations": [{"options": {"renameByName": {"Hostname": "pod"}, "pattern": "/^UUID pod$/"}}],
          "options": {"sortBy": [{"displayName": "modelName"}], "mode": "single"},
          "fieldConfig": {
            "defaults": {"displayName": "pod ${__field.labels.exported_pod}"},
            "overrides": [{"matcher": {"options": "gpu"},
              "properties": [{"value": "/d/x?var-Hostname=${__data.fields.Hostname}&a=${Hostname}$Hostname"}]}]
          }}"#;
        let panel = crate::files::json::parse(text).unwrap();
        let readers = readers(&panel);
        let labels: Vec<_> = readers.iter().flat_map(Reader::labels).map(|(_, label, exact)| (label, exact)).collect();
        let expected = [
            ("Hostname", true),
            ("UUID", false),
            ("modelName", true),
            ("gpu", true),
            ("Hostname", true),
            ("exported_pod", true),
        ];
        assert_eq!(labels, expected);
    }

    #[test]
    fn forms_of_variables() {
        let parts = |text: &str| match form(text) {
            None => "none".to_owned(),
            Some(Form::Expression) => "expression".to_owned(),
            Some(Form::Inside(range)) => format!("<{}>", &text[range]),
            Some(Form::LabelValues { selector, label }) => format!("<{}> <{}>", &text[selector], &text[label]),
            Some(Form::LabelOnly(label)) => format!("label <{}>", &text[label]),
        };
        for (text, expected) in [
            ("label_values(X{a=\"1\",b=~\"$c\"}, gpu)", "<X{a=\"1\",b=~\"$c\"}> <gpu>"),
            (" label_values( X , gpu ) ", "<X> <gpu>"),
            ("label_values(Hostname)", "label <Hostname>"),
            ("label_values(X{a=\"1\",b=\"2\"})", "label <X{a=\"1\",b=\"2\"}>"),
            ("query_result(sum by (a, b) (X))", "<sum by (a, b) (X)>"),
            ("metrics(X.*)", "none"),
            ("label_names()", "none"),
            ("X", "expression"),
            ("sum(X)", "expression"),
        ] {
            assert_eq!(parts(text), expected, "{text}");
        }
    }
}
