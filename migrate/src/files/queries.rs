//! A file of plain queries: paragraphs of PromQL with blank lines between.

use super::tree::{Node, Scalar, Style, Value};

/// A sequence of the queries; comments before a query are not part of it.
pub fn parse(text: &str) -> Node {
    let mut queries = vec![];
    let mut query = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let content = line.trim();
        let end = at + line.trim_end().len();
        if content.is_empty() {
            queries.extend(query.take());
        } else if query.is_some() || !content.starts_with('#') {
            let start =
                query.map_or(at + (line.len() - line.trim_start().len()), |query: std::ops::Range<usize>| query.start);
            query = Some(start..end);
        }
        at += line.len();
    }
    queries.extend(query);
    let items = queries.into_iter().map(|span| {
        let scalar = Scalar { text: text[span.clone()].to_owned(), style: Style::Query };
        Node { span, shared: false, value: Value::Scalar(scalar) }
    });
    Node { span: 0..text.len(), shared: false, value: Value::Sequence(items.collect()) }
}
