//! Prometheus' rules, and Grafana's provisioned alert rules, which have `groups` too.

use super::labels::{Template, uses_value};
use super::{Found, Query, Unit};
use crate::files::tree::Node;

pub fn find<'f>(document: usize, node: &'f Node, found: &mut Found<'f>) {
    for rule in node.items_of("groups").iter().flat_map(|group| group.items_of("rules")) {
        for query in rule.items_of("data") {
            add(document, rule, query.at(&["model", "expr"]), Unit::Kept, found);
        }
        let templates = templates(rule);
        let value_read = templates.iter().any(|template| template.text().is_some_and(uses_value));
        let unit = if rule.get("alert").is_some() && !value_read { Unit::Unread } else { Unit::Kept };
        add(document, rule, rule.get("expr"), unit, found);
    }
}

fn templates(rule: &Node) -> Vec<&Node> {
    let entries = ["labels", "annotations"].into_iter().filter_map(|key| rule.get(key)).flat_map(Node::entries);
    entries.map(|(_, value)| value).collect()
}

fn add<'f>(document: usize, rule: &'f Node, expression: Option<&'f Node>, unit: Unit<'f>, found: &mut Found<'f>) {
    let Some(mut query) = expression.and_then(|expression| Query::new(document, expression)) else { return };
    query.labels_kept = true;
    query.records = rule.text_of("record");
    for template in templates(rule) {
        query.template(Some(template), Template::Rule);
    }
    query.unit = unit;
    found.queries.push(query);
}
