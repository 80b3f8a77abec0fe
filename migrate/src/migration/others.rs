//! Names of metrics in texts that are no queries.

use std::collections::{BTreeMap, BTreeSet};

use super::{Left, Work};
use crate::files::Place;
use crate::files::tree::{Node, Value};
use crate::promql::{self, Rewritten};
use crate::queries::labels::words;
use crate::queries::mentions;

impl Work<'_> {
    /// Lists metrics in texts that are no queries: titles, annotations, transformations, other objects.
    pub fn list_others(&mut self) {
        let handled: BTreeSet<Place> =
            self.found.queries.iter().flat_map(|query| query.copies.iter().chain([&query.place])).copied().collect();
        let reasons: BTreeMap<Place, &str> = self.found.others.iter().copied().collect();
        let mut texts = vec![];
        for (number, document) in self.file.documents.iter().enumerate() {
            for root in &document.roots {
                collect(root, "", &mut |node, key| {
                    let place = (number, node.span.start);
                    if let Some(text) = node.text()
                        && mentions(text)
                        && !handled.contains(&place)
                        && !self.found.embedded.contains(&place)
                    {
                        texts.push((place, text, key.to_owned(), node.shared));
                    }
                });
            }
        }
        let mut known: BTreeMap<String, Option<Rewritten>> = BTreeMap::new();
        for (place, text, key, shared) in texts {
            let mut names: Vec<(&str, Rewritten)> = vec![];
            for word in words(text).filter(|word| mentions(word)) {
                let rewritten = known.entry(word.to_owned()).or_insert_with(|| {
                    let rewritten = promql::rewrite(word, &self.drafting().context(BTreeSet::new(), false)).ok()?;
                    (!rewritten.changes.is_empty() || !rewritten.left.is_empty()).then_some(rewritten)
                });
                if let Some(rewritten) = rewritten
                    && !names.iter().any(|(name, _)| *name == word)
                {
                    names.push((word, rewritten.clone()));
                }
            }
            let Some((first, rewritten)) = names.first() else { continue };
            let reason = match reasons.get(&place) {
                Some(reason) => (*reason).to_owned(),
                None if shared => "a value that aliases (*) of this file share".to_owned(),
                None if key.is_empty() => "not in a place for queries".to_owned(),
                None => format!("named in `{key}`, which is no query"),
            };
            let more = names.len() - 1;
            self.left.push(Left {
                line: self.file.line(place, text.find(first).unwrap_or(0)),
                name: if more == 0 { (*first).to_owned() } else { format!("{first} and {more} more") },
                reason,
                suggestion: (more == 0 && !rewritten.changes.is_empty()).then(|| rewritten.text.clone()),
            });
        }
        for (place, reason) in &self.found.listed {
            let line = self.file.line_at(place.0, place.1);
            self.left.push(Left { line, name: "panel".into(), reason: reason.clone(), suggestion: None });
        }
    }
}

/// Calls `visit` with each scalar and the nearest key around it.
fn collect<'n>(node: &'n Node, key: &str, visit: &mut impl FnMut(&'n Node, &str)) {
    match &node.value {
        Value::Scalar(_) => visit(node, key),
        Value::Sequence(items) => items.iter().for_each(|item| collect(item, key, visit)),
        Value::Mapping(entries) => entries.iter().for_each(|(name, value)| {
            visit(name, key);
            collect(value, name.text().unwrap_or(key), visit);
        }),
        Value::Alias => {}
    }
}
