//! Where queries stand in rules, dashboards and scalers, and what reads their results.
//!
//! Input: parsed files. Output: each query with its legends, templates and thresholds. Does not use: PromQL, the names of metrics.

pub mod dashboards;
pub mod labels;
pub mod rules;
pub mod scalers;

use std::collections::BTreeSet;
use std::ops::Range;

use crate::files::tree::{Node, Value};
use crate::files::{Error, File, Format, Place};
use labels::Template;

/// A query and what depends on it.
#[derive(Debug)]
pub struct Query<'f> {
    pub place: Place,
    /// The whole scalar.
    pub text: &'f str,
    pub form: Form,
    /// Of a dashboard, where Grafana's variables have values.
    pub dashboard: bool,
    /// The name of the recording rule.
    pub records: Option<&'f str>,
    /// Scalars of the same text, such as the `definition` of a variable.
    pub copies: Vec<Place>,
    pub templates: Vec<(Place, &'f str, Template)>,
    /// Whether all labels of the result are shown or matched: of an alert, a recorded series, a table.
    pub labels_kept: bool,
    /// Labels of the result that are read by others than the templates.
    pub labels_read: BTreeSet<String>,
    pub unit: Unit<'f>,
}

/// What part of the scalar is an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    Expression,
    /// A function of Grafana's variables around an expression.
    Inside(Range<usize>),
    /// `label_values(selector, label)`.
    LabelValues {
        selector: Range<usize>,
        label: Range<usize>,
    },
    /// `label_values(label)`.
    LabelOnly(Range<usize>),
}

/// What holds the unit of the result.
#[derive(Debug)]
pub enum Unit<'f> {
    /// Others that are not converted: the values must stay.
    Kept,
    /// Nothing reads the values: a rule that compares inside its expression.
    Unread,
    /// Numbers to which the result is compared.
    Thresholds(Vec<(Place, &'f str)>),
    /// A panel of the same file, by number.
    Panel(usize),
}

/// A panel of a dashboard.
#[derive(Debug)]
pub struct Panel<'f> {
    pub document: usize,
    pub node: &'f Node,
}

/// What is found in a file.
#[derive(Debug, Default)]
pub struct Found<'f> {
    pub queries: Vec<Query<'f>>,
    pub panels: Vec<Panel<'f>>,
    /// Places for a person, whatever they name.
    pub listed: Vec<(Place, String)>,
    /// Scalars that hold no query to rewrite, with the reason: to list where they name a metric.
    pub others: Vec<(Place, &'static str)>,
    /// Scalars whose value is a document of its own.
    pub embedded: BTreeSet<Place>,
}

impl<'f> Query<'f> {
    /// `None` for a value that aliases of the file share.
    pub fn new(document: usize, node: &'f Node) -> Option<Self> {
        let text = node.text().filter(|_| !node.shared)?;
        Some(Self {
            place: (document, node.span.start),
            text,
            form: Form::Expression,
            dashboard: false,
            records: None,
            copies: vec![],
            templates: vec![],
            labels_kept: false,
            labels_read: BTreeSet::new(),
            unit: Unit::Kept,
        })
    }

    pub fn template(&mut self, node: Option<&'f Node>, template: Template) {
        if let Some(node) = node
            && let Some(text) = node.text()
        {
            self.templates.push(((self.place.0, node.span.start), text, template));
        }
    }

    /// Labels of the result that something reads.
    pub fn read(&self) -> BTreeSet<String> {
        let named = self.templates.iter().flat_map(|(_, text, template)| template.labels(text));
        named.map(|(_, label)| label.to_owned()).chain(self.labels_read.iter().cloned()).collect()
    }
}

/// What a document is, by its content.
enum Kind<'n> {
    Empty,
    /// A mapping with `groups`.
    Rules(&'n Node),
    Dashboard(&'n Node),
    /// A mapping with `triggers`.
    Scaler(&'n Node),
    /// Scalars that may hold documents, by name.
    Holder(Vec<(&'n str, &'n Node)>),
    List(&'n [Node]),
    Other(String),
}

fn kind(node: &Node) -> Kind<'_> {
    let Value::Mapping(entries) = &node.value else {
        return match &node.value {
            Value::Scalar(scalar) if scalar.text.is_empty() || scalar.text == "~" => Kind::Empty,
            Value::Sequence(_) => Kind::Other("a sequence".into()),
            _ => Kind::Other("plain text".into()),
        };
    };
    let spec = node.get("spec");
    if let Some(kind) = node.text_of("kind").filter(|_| node.get("apiVersion").is_some()) {
        let other = || Kind::Other(format!("a {kind} object"));
        return match (kind, spec) {
            ("PrometheusRule" | "VMRule", Some(spec)) => Kind::Rules(spec),
            ("ScaledObject" | "ScaledJob", Some(spec)) => Kind::Scaler(spec),
            ("Dashboard", Some(spec)) if is_dashboard(spec) => Kind::Dashboard(spec),
            ("GrafanaDashboard", Some(spec)) => match spec.get("json") {
                Some(json) => Kind::Holder(vec![("json", json)]),
                None => Kind::Other("a GrafanaDashboard object without `spec.json`".into()),
            },
            ("ConfigMap", _) => {
                let data = node.get("data").map_or(&[][..], Node::entries);
                Kind::Holder(data.iter().filter_map(|(key, value)| Some((key.text()?, value))).collect())
            }
            (kind, _) if kind.ends_with("List") && node.get("items").is_some() => Kind::List(node.items_of("items")),
            _ => other(),
        };
    }
    if node.get("groups").is_some_and(Node::is_sequence) {
        return Kind::Rules(node);
    }
    if is_dashboard(node) {
        return Kind::Dashboard(node);
    }
    if let Some(dashboard) = node.get("dashboard").filter(|inside| is_dashboard(inside)) {
        return Kind::Dashboard(dashboard);
    }
    if node.items_of("rules").iter().any(|rule| rule.get("seriesQuery").is_some()) {
        return Kind::Other(
            "a configuration of prometheus-adapter, whose queries are templates: change them by hand".into(),
        );
    }
    let keys: Vec<_> = entries.iter().filter_map(|(key, _)| Some(format!("`{}`", key.text()?))).take(5).collect();
    Kind::Other(if keys.is_empty() { "an empty mapping".into() } else { format!("a mapping with {}", keys.join(", ")) })
}

fn is_dashboard(node: &Node) -> bool {
    let has = |key| node.get(key).is_some_and(Node::is_sequence);
    has("panels") || has("rows") || (node.get("templating").is_some() && node.get("schemaVersion").is_some())
}

/// Parses the documents that scalars of the file hold, and checks that there is something to read.
pub fn embed(file: &mut File) -> Result<(), Error> {
    if file.format() == Format::Queries {
        return Ok(());
    }
    let mut recognised = false;
    let mut others = vec![];
    let mut holders = vec![];
    for root in &file.documents[0].roots {
        survey(root, &mut recognised, &mut others, &mut holders);
    }
    for (key, scalar) in holders {
        let text = file.documents[0].find(scalar).and_then(Node::text).unwrap_or_default();
        // A text that cannot be parsed is an error only if its name is that of a dashboard or rule file.
        let named = [".json", ".yaml", ".yml"].iter().any(|end| key.ends_with(end)) || key == "json";
        let must = named && mentions(text);
        match file.embed(0, scalar) {
            Ok(document) => {
                let roots = &file.documents[document].roots;
                match roots.iter().map(kind).find(|kind| !matches!(kind, Kind::Empty)) {
                    Some(Kind::Rules(_) | Kind::Dashboard(_)) => recognised = true,
                    found => {
                        let found = if let Some(Kind::Other(found)) = found { found } else { "another object".into() };
                        others.push(format!("`{key}` with {found}"));
                        file.documents.truncate(document);
                    }
                }
            }
            Err(error) if must => return Err(error),
            Err(_) => others.push(format!("`{key}` with plain text")),
        }
    }
    if recognised {
        return Ok(());
    }
    let found = if others.is_empty() { "nothing".to_owned() } else { others.join("; ") };
    let wanted = "no rule file, PrometheusRule, Grafana dashboard, ConfigMap with one of these, or KEDA scaler";
    Err(Error::File { file: file.name.clone(), message: format!("{wanted}: found {found}") })
}

/// Whether a text may name a metric of dcgm-exporter.
pub fn mentions(text: &str) -> bool {
    text.as_bytes().windows(5).any(|window| window.eq_ignore_ascii_case(b"dcgm_"))
}

fn survey(root: &Node, recognised: &mut bool, others: &mut Vec<String>, holders: &mut Vec<(String, usize)>) {
    match kind(root) {
        Kind::Empty => {}
        Kind::Rules(_) | Kind::Dashboard(_) | Kind::Scaler(_) => *recognised = true,
        Kind::Holder(values) => {
            if values.is_empty() {
                others.push("an object without data".into());
            }
            let scalars = values.into_iter().filter(|(_, value)| value.scalar().is_some());
            holders.extend(scalars.map(|(key, value)| (key.to_owned(), value.span.start)));
        }
        Kind::List(items) => items.iter().for_each(|item| survey(item, recognised, others, holders)),
        Kind::Other(found) => others.push(found),
    }
}

/// The queries of a file.
pub fn find(file: &File) -> Found<'_> {
    let mut found = Found::default();
    if file.format() == Format::Queries {
        let roots = &file.documents[0].roots;
        found.queries = roots.iter().flat_map(Node::items).filter_map(|node| Query::new(0, node)).collect();
        return found;
    }
    for (number, document) in file.documents.iter().enumerate() {
        found.embedded.extend(document.place());
        for root in &document.roots {
            find_in(number, root, &mut found);
        }
    }
    found
}

fn find_in<'f>(document: usize, root: &'f Node, found: &mut Found<'f>) {
    match kind(root) {
        Kind::Rules(node) => rules::find(document, node, found),
        Kind::Dashboard(node) => {
            let before = found.queries.len();
            dashboards::find(document, node, found);
            found.queries[before..].iter_mut().for_each(|query| query.dashboard = true);
        }
        Kind::Scaler(node) => scalers::find(document, node, found),
        Kind::List(items) => items.iter().for_each(|item| find_in(document, item, found)),
        Kind::Empty | Kind::Holder(_) | Kind::Other(_) => {}
    }
}
