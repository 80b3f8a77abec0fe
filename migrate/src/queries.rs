//! Where queries stand in rules and dashboards, and what reads the labels of their results.
//!
//! Input: parsed files. Output: each query with its legends and templates. Not known here: PromQL, and the names of metrics.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::files::{Error, File, Node, Place, Value};
use crate::names::mentions;

/// A query and what depends on it.
#[derive(Debug)]
pub struct Query<'f> {
    pub place: Place,
    /// The whole scalar.
    pub text: &'f str,
    pub form: Form,
    /// The name of the recording rule, and whether it sets labels.
    pub records: Option<(&'f str, bool)>,
    /// Scalars of the same text, such as the `definition` of a variable.
    pub copies: Vec<Place>,
    pub templates: Vec<(Place, &'f str, Template)>,
    /// By number, in [`Found::panels`].
    pub panel: Option<usize>,
}

/// What part of the scalar is an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    Expression(Range<usize>),
    /// `label_values(selector, label)`.
    LabelValues {
        selector: Range<usize>,
        label: Range<usize>,
    },
    /// `label_values(label)`, or a filter that Grafana adds to every selector.
    LabelOnly(Range<usize>),
}

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

/// What is found in a file.
#[derive(Debug, Default)]
pub struct Found<'f> {
    pub queries: Vec<Query<'f>>,
    /// Of each panel, the texts that may name labels of its results.
    pub panels: Vec<Vec<(Place, &'f str)>>,
    /// Places for a person, whatever they name.
    pub listed: Vec<(Place, String)>,
    /// Queries of other data sources than Prometheus.
    pub others: BTreeSet<Place>,
}

impl<'f> Query<'f> {
    /// `None` for a value that aliases of the file share.
    fn new(document: usize, node: &'f Node) -> Option<Self> {
        let text = node.text().filter(|_| !node.shared)?;
        let form = Form::Expression(0..text.len());
        let place = (document, node.span.start);
        Some(Self { place, text, form, records: None, copies: vec![], templates: vec![], panel: None })
    }

    fn template(&mut self, node: Option<&'f Node>, template: Template) {
        if let Some(node) = node.filter(|node| !node.shared)
            && let Some(text) = node.text()
        {
            self.templates.push(((self.place.0, node.span.start), text, template));
        }
    }
}

impl Template {
    /// The labels that the text names, with their bytes.
    pub fn labels(self, text: &str) -> Vec<(Range<usize>, &str)> {
        let after = |start: &str| -> Vec<(Range<usize>, &str)> {
            let found = text.match_indices(start).map(|(at, _)| {
                let at = at + start.len() + text[at + start.len()..].find(|other| other != ' ').unwrap_or(0);
                let length = text[at..].find(|other| !is_part(other)).unwrap_or(text.len() - at);
                (at..at + length, &text[at..at + length])
            });
            found.filter(|(_, label)| !label.is_empty()).collect()
        };
        let starts: &[&str] = match self {
            Self::List => return words_at(text),
            Self::Legend => &["{{"],
            // In the results of a template's own query, `.Labels` are that query's.
            Self::Rule if text.contains("query") => &["$labels.", "index $labels \""],
            Self::Rule => &["$labels.", "index $labels \"", ".Labels.", "index .Labels \""],
        };
        let mut labels: Vec<_> = starts.iter().flat_map(|start| after(start)).collect();
        labels.sort_by_key(|(range, _)| range.start);
        labels
    }
}

/// The words of a text, with their bytes: names of metrics and labels, and others.
pub fn words_at(text: &str) -> Vec<(Range<usize>, &str)> {
    let words = text.split(|other| !is_part(other)).filter(|word| !word.is_empty());
    let start = |word: &str| word.as_ptr().addr() - text.as_ptr().addr();
    words.map(|word| (start(word)..start(word) + word.len(), word)).collect()
}

pub fn is_part(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':')
}

/// What a document is, by its content.
enum Kind<'n> {
    Empty,
    /// A mapping with `groups`.
    Rules(&'n Node),
    Dashboard(&'n Node),
    /// Scalars that may hold documents, by name.
    Holder(Vec<(&'n str, &'n Node)>),
    List(&'n [Node]),
    Other(String),
}

fn kind(node: &Node) -> Kind<'_> {
    let entries = match &node.value {
        Value::Mapping(entries) => entries,
        Value::Scalar(text, _) if text.is_empty() || text == "~" => return Kind::Empty,
        Value::Sequence(_) => return Kind::Other("a sequence".into()),
        _ => return Kind::Other("plain text".into()),
    };
    if let Some(kind) = node.text_of("kind").filter(|_| node.get("apiVersion").is_some()) {
        return match (kind, node.get("spec")) {
            ("PrometheusRule", Some(spec)) => Kind::Rules(spec),
            ("Dashboard", Some(spec)) if is_dashboard(spec) => Kind::Dashboard(spec),
            ("GrafanaDashboard", Some(spec)) if spec.get("json").is_some() => {
                Kind::Holder(spec.get("json").map(|json| ("json", json)).into_iter().collect())
            }
            ("ConfigMap", _) => {
                let data = node.get("data").map_or(&[][..], Node::entries);
                Kind::Holder(data.iter().filter_map(|(key, value)| Some((key.text()?, value))).collect())
            }
            (kind, _) if kind.ends_with("List") && node.get("items").is_some() => Kind::List(node.items_at(&["items"])),
            _ => Kind::Other(format!("a {kind} object")),
        };
    }
    if matches!(node.get("groups"), Some(Node { value: Value::Sequence(_), .. })) {
        return Kind::Rules(node);
    }
    if is_dashboard(node) {
        return Kind::Dashboard(node);
    }
    if let Some(dashboard) = node.get("dashboard").filter(|inside| is_dashboard(inside)) {
        return Kind::Dashboard(dashboard);
    }
    let keys: Vec<_> = entries.iter().filter_map(|(key, _)| Some(format!("`{}`", key.text()?))).take(5).collect();
    Kind::Other(format!("a mapping with {}", keys.join(", ")))
}

fn is_dashboard(node: &Node) -> bool {
    let has = |key| matches!(node.get(key), Some(Node { value: Value::Sequence(_), .. }));
    has("panels") || has("rows") || (node.get("templating").is_some() && node.get("schemaVersion").is_some())
}

/// Calls `visit` with what each root is, those of lists too.
fn each_kind<'n>(roots: &'n [Node], visit: &mut impl FnMut(Kind<'n>)) {
    for root in roots {
        match kind(root) {
            Kind::List(items) => each_kind(items, visit),
            kind => visit(kind),
        }
    }
}

/// Parses the documents that scalars of the file hold, and checks that there is something to read.
pub fn embed(file: &mut File) -> Result<(), Error> {
    if file.is_queries() {
        return Ok(());
    }
    let (mut recognised, mut others, mut holders) = (false, vec![], vec![]);
    each_kind(&file.documents[0].roots, &mut |kind| match kind {
        Kind::Rules(_) | Kind::Dashboard(_) => recognised = true,
        Kind::Holder(values) => {
            let held =
                values.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.span.start, value.text()?)));
            holders.extend(held.map(|(key, scalar, text)| (key, scalar, mentions(text))));
        }
        Kind::Other(found) => others.push(found),
        Kind::Empty | Kind::List(_) => {}
    });
    for (key, scalar, mentions) in holders {
        // A text that cannot be parsed is an error only if its name is that of a dashboard or rule file.
        let named = [".json", ".yaml", ".yml"].iter().any(|end| key.ends_with(end)) || key == "json";
        match file.embed(scalar) {
            Ok(()) => {
                let mut is_held = false;
                let roots = &file.documents.last().expect("embedded").roots;
                each_kind(roots, &mut |kind| is_held |= matches!(kind, Kind::Rules(_) | Kind::Dashboard(_)));
                recognised |= is_held;
                if !is_held {
                    others.push(format!("`{key}` with something else"));
                    file.documents.pop();
                }
            }
            Err(error) if named && mentions => return Err(error),
            Err(_) => others.push(format!("`{key}` with plain text")),
        }
    }
    if recognised {
        return Ok(());
    }
    let found = if others.is_empty() { "nothing".to_owned() } else { others.join("; ") };
    let wanted = "no rule file, PrometheusRule, Grafana dashboard, or ConfigMap with one of these";
    Err(Error::File { file: file.name.clone(), message: format!("{wanted}: found {found}") })
}

/// The queries of a file.
pub fn find(file: &File) -> Found<'_> {
    let mut found = Found::default();
    for (document, roots) in file.documents.iter().map(|document| &document.roots).enumerate() {
        if file.is_queries() {
            found.queries.extend(roots.iter().flat_map(Node::items).filter_map(|node| Query::new(document, node)));
            continue;
        }
        each_kind(roots, &mut |kind| match kind {
            Kind::Rules(node) => rules(document, node, &mut found),
            Kind::Dashboard(node) => dashboard(document, node, &mut found),
            _ => {}
        });
    }
    found
}

fn rules<'f>(document: usize, node: &'f Node, found: &mut Found<'f>) {
    for rule in node.items_at(&["groups"]).iter().flat_map(|group| group.items_at(&["rules"])) {
        let Some(mut query) = rule.get("expr").and_then(|expression| Query::new(document, expression)) else {
            continue;
        };
        query.records = rule.text_of("record").map(|name| (name, rule.get("labels").is_some()));
        for (_, template) in ["labels", "annotations"].iter().filter_map(|key| rule.get(key)).flat_map(Node::entries) {
            query.template(Some(template), Template::Rule);
        }
        found.queries.push(query);
    }
}

fn dashboard<'f>(document: usize, dashboard: &'f Node, found: &mut Found<'f>) {
    let rows = dashboard.items_at(&["rows"]).iter().flat_map(|row| row.items_at(&["panels"]));
    // An exported dashboard carries the library panels that it uses.
    let elements = dashboard.get("__elements").map_or(&[][..], Node::entries);
    let library = elements.iter().filter_map(|(_, element)| element.get("model"));
    for panel in dashboard.items_at(&["panels"]).iter().chain(rows).chain(library) {
        add_panel(document, panel, found);
        // A collapsed row.
        panel.items_at(&["panels"]).iter().for_each(|nested| add_panel(document, nested, found));
    }
    for variable in dashboard.items_at(&["templating", "list"]) {
        add_variable(document, variable, found);
    }
    for annotation in dashboard.items_at(&["annotations", "list"]) {
        let expressions = [annotation.get("expr"), annotation.at(&["target", "expr"])];
        for expression in expressions.into_iter().flatten() {
            let Some(mut query) = query_of(document, expression, annotation.get("datasource"), found) else { continue };
            for key in ["titleFormat", "textFormat"] {
                query.template(annotation.get(key), Template::Legend);
            }
            query.template(annotation.get("tagKeys"), Template::List);
            found.queries.push(query);
        }
    }
}

/// A query, unless its data source has a type that is not Prometheus or compatible.
fn query_of<'f>(document: usize, node: &'f Node, source: Option<&Node>, found: &mut Found<'f>) -> Option<Query<'f>> {
    // Old dashboards name the data source without its type.
    let kind = source.and_then(|source| source.text_of("type")).unwrap_or_default().to_ascii_lowercase();
    let compatible = ["prometheus", "victoriametrics", "datasource", "mixed"];
    if kind.is_empty() || kind.starts_with('$') || compatible.iter().any(|name| kind.contains(name)) {
        return Query::new(document, node);
    }
    found.others.insert((document, node.span.start));
    None
}

fn add_panel<'f>(document: usize, panel: &'f Node, found: &mut Found<'f>) {
    if let Some(library) = panel.get("libraryPanel")
        && panel.get("targets").is_none()
    {
        let name = library.text_of("name").unwrap_or("without a name");
        let reason = format!("the library panel `{name}`: its queries are not in this file");
        found.listed.push(((document, panel.span.start), reason));
        return;
    }
    for target in panel.items_at(&["targets"]) {
        let Some(expression) = target.get("expr") else { continue };
        let own = target.get("datasource").filter(|source| !source.entries().is_empty());
        let Some(mut query) = query_of(document, expression, own.or_else(|| panel.get("datasource")), found) else {
            continue;
        };
        query.template(target.get("legendFormat"), Template::Legend);
        query.panel = Some(found.panels.len());
        found.queries.push(query);
    }
    let mut readers = vec![];
    for key in ["transformations", "options", "fieldConfig", "links"] {
        let Some(node) = panel.get(key) else { continue };
        node.scalars(key, &mut |node, _| {
            readers.extend(node.text().filter(|_| !node.shared).map(|text| ((document, node.span.start), text)));
        });
    }
    found.panels.push(readers);
}

fn add_variable<'f>(document: usize, variable: &'f Node, found: &mut Found<'f>) {
    if variable.text_of("type") == Some("adhoc") {
        for filter in ["filters", "baseFilters"].iter().flat_map(|key| variable.items_at(&[key])) {
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
    let mut first: Option<Query<'f>> = None;
    for node in [query, variable.get("definition")].into_iter().flatten() {
        let Some(mut query) = query_of(document, node, variable.get("datasource"), found) else { continue };
        let Some(form) = form(query.text) else { continue };
        match &mut first {
            Some(first) if first.text == query.text => first.copies.push(query.place),
            _ => {
                query.form = form;
                found.queries.extend(first.replace(query));
            }
        }
    }
    found.queries.extend(first);
}

/// Where the expression stands in the query of a variable; `None` for functions without one.
fn form(text: &str) -> Option<Form> {
    let trim = |from: usize, to: usize| {
        let part = &text[from..to];
        let start = from + (part.len() - part.trim_start().len());
        start..start + part.trim().len()
    };
    let inside = |name: &str| {
        let arguments = text.trim().strip_prefix(name)?.trim_start().strip_prefix('(')?.strip_suffix(')')?;
        let start = arguments.as_ptr().addr() - text.as_ptr().addr();
        Some(start..start + arguments.len())
    };
    if inside("metrics").is_some() || inside("label_names").is_some() {
        return None;
    }
    let Some(range) = inside("label_values") else {
        return Some(Form::Expression(inside("query_result").unwrap_or(0..text.len())));
    };
    // The label is a name, so that no comma of the selector comes after the one before it.
    let arguments = &text[range.clone()];
    let comma = arguments.rfind(',').filter(|comma| !arguments[*comma..].contains(['}', ')', '"']));
    Some(match comma.map(|comma| range.start + comma) {
        Some(comma) => Form::LabelValues { selector: trim(range.start, comma), label: trim(comma + 1, range.end) },
        None => Form::LabelOnly(trim(range.start, range.end)),
    })
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
        assert_eq!(labels(Template::Legend, "{{Hostname}} GPU {{ gpu }} {{ }} {{"), ["Hostname", "gpu"]);
        let rule = "{{ $labels.Hostname }}: {{$labels.gpu}} {{ index $labels \"UUID\" }} $labelsx {{ .Labels.pod }}";
        assert_eq!(labels(Template::Rule, rule), ["Hostname", "gpu", "UUID", "pod"]);
        assert_eq!(labels(Template::List, "Hostname, gpu,,"), ["Hostname", "gpu"]);
        assert_eq!(labels(Template::Rule, "{{ range query `x` }}{{ .Labels.pod }}{{ end }}{{ $labels.gpu }}"), ["gpu"]);
    }

    #[test]
    fn forms_of_variables() {
        let parts = |text: &str| match form(text) {
            None => "none".to_owned(),
            Some(Form::Expression(range)) => format!("<{}>", &text[range]),
            Some(Form::LabelValues { selector, label }) => format!("<{}> <{}>", &text[selector], &text[label]),
            Some(Form::LabelOnly(label)) => format!("label <{}>", &text[label]),
        };
        for (text, expected) in [
            ("label_values(X{a=\"1\",b=~\"$c\"}, gpu)", "<X{a=\"1\",b=~\"$c\"}> <gpu>"),
            (" label_values( X , gpu ) ", "<X> <gpu>"),
            ("label_values(Hostname)", "label <Hostname>"),
            ("query_result(sum by (a, b) (X))", "<sum by (a, b) (X)>"),
            ("metrics(X.*)", "none"),
            ("label_names()", "none"),
            ("X", "<X>"),
            ("sum(X)", "<sum(X)>"),
        ] {
            assert_eq!(parts(text), expected, "{text}");
        }
    }
}
