//! The files that are rewritten: their text as trees with positions, and the changed text.
//!
//! Input: a text, and changes of its scalars as ranges of their values. Output: the text with these changes alone; every other
//! byte stays. The result is parsed again and compared with what was intended. Does not use: the file system, PromQL, and what
//! a rule or a dashboard is.

pub mod json;
pub mod lines;
pub mod pieces;
pub mod queries;
pub mod tree;
pub mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use lines::Lines;
use pieces::Decoded;
use tree::{Node, Scalar, Style, Value};

#[cfg(test)]
mod tests;

/// What is wrong with a text, and where.
#[derive(Debug)]
pub struct Syntax {
    pub offset: usize,
    pub message: String,
}

/// A file, or a step of its reading, that failed. Nothing is written then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{file}:{line}: {message}")]
    At { file: String, line: usize, message: String },
    #[error("{file}: {message}")]
    File { file: String, message: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Yaml,
    Json,
    Queries,
}

/// A parsed text: the file's, or that of a scalar in it, such as a dashboard in a ConfigMap.
#[derive(Debug)]
pub struct Document {
    text: String,
    format: Format,
    pub roots: Vec<Node>,
    outer: Option<Outer>,
}

/// Where an embedded document stands.
#[derive(Debug)]
struct Outer {
    document: usize,
    scalar: usize,
    decoded: Option<Decoded>,
}

/// A file with the documents embedded in it, each after the one around it.
#[derive(Debug)]
pub struct File {
    pub name: String,
    pub documents: Vec<Document>,
    lines: Lines,
}

/// A scalar of a file: its document, and where it begins there.
pub type Place = (usize, usize);

/// Ranges of a text, in order, with what replaces them.
pub type Replacements = Vec<(Range<usize>, String)>;

/// Changes of scalars: ranges of their values.
pub type Edits = BTreeMap<Place, Replacements>;

/// The same of one document, by where each scalar begins.
type ScalarEdits = BTreeMap<usize, Replacements>;

/// Scalars that are written as a whole one by one; after these, all that change.
const MOST_ATTEMPTS: usize = 16;

impl Document {
    fn parse(text: String, format: Format, outer: Option<Outer>) -> Result<Self, Syntax> {
        let roots = match format {
            Format::Yaml => yaml::parse(&text)?,
            Format::Json => vec![json::parse(&text)?],
            Format::Queries => vec![queries::parse(&text)],
        };
        Ok(Self { text, format, roots, outer })
    }

    /// The scalar that holds an embedded document.
    pub fn place(&self) -> Option<Place> {
        self.outer.as_ref().map(|outer| (outer.document, outer.scalar))
    }

    fn decode(&self, node: &Node) -> Option<Decoded> {
        match self.format {
            Format::Yaml => yaml::decode(&self.text, node),
            Format::Json => {
                json::decode(&self.text, &node.span).filter(|decoded| Some(decoded.text.as_str()) == node.text())
            }
            Format::Queries => {
                let mut decoded = Decoded::default();
                decoded.verbatim(&self.text, node.span.clone());
                Some(decoded)
            }
        }
    }

    fn encode(&self, node: &Node, edits: &[(Range<usize>, String)], whole: bool) -> Option<Replacements> {
        let scalar = node.scalar()?;
        match scalar.style {
            Style::JsonToken => Some(vec![(node.span.clone(), replaced(&scalar.text, edits))]),
            Style::JsonString => {
                let decoded = self.decode(node)?;
                let each =
                    |(range, after): &(Range<usize>, String)| Some((decoded.source(range)?, json::escaped(after)));
                edits.iter().map(each).collect()
            }
            Style::Query => {
                let each = |(range, after): &(Range<usize>, String)| {
                    (node.span.start + range.start..node.span.start + range.end, after.clone())
                };
                Some(edits.iter().map(each).collect())
            }
            _ if whole => yaml::encode_whole(&self.text, node, &replaced(&scalar.text, edits)),
            _ => yaml::encode(&self.text, node, edits),
        }
    }
}

/// JSON begins with a bracket, all else is YAML. Two brackets begin a template, which the YAML module reports.
pub fn format_of(text: &str) -> Format {
    let start = text.trim_start_matches('\u{feff}').trim_start();
    if start.starts_with(['{', '[']) && !start.starts_with("{{") { Format::Json } else { Format::Yaml }
}

impl File {
    /// Parses a file; `name` is that of its messages.
    pub fn parse(name: &str, text: String, format: Format) -> Result<Self, Error> {
        let lines = Lines::new(&text);
        let document = Document::parse(text, format, None).map_err(|error| Error::At {
            file: name.to_owned(),
            line: lines.line(error.offset),
            message: error.message,
        })?;
        Ok(Self { name: name.to_owned(), documents: vec![document], lines })
    }

    pub fn text(&self) -> &str {
        &self.documents[0].text
    }

    pub fn format(&self) -> Format {
        self.documents[0].format
    }

    /// Parses the value of a scalar as a document of its own, and gives its number.
    pub fn embed(&mut self, document: usize, scalar: usize) -> Result<usize, Error> {
        let outside = &self.documents[document];
        let Some(node) = outside.find(scalar) else {
            return Err(self.error((document, scalar), 0, "the value is no scalar"));
        };
        let text = node.text().unwrap_or_default().to_owned();
        let outer = Outer { document, scalar, decoded: outside.decode(node) };
        let format = format_of(&text);
        match Document::parse(text, format, Some(outer)) {
            Ok(embedded) => {
                self.documents.push(embedded);
                Ok(self.documents.len() - 1)
            }
            Err(error) => Err(self.error((document, scalar), error.offset, &error.message)),
        }
    }

    /// The line of the file for a byte of a scalar's value.
    pub fn line(&self, (document, scalar): Place, value_offset: usize) -> usize {
        let found = self.documents[document].find(scalar);
        let offset = found.and_then(|node| self.documents[document].decode(node)?.start(value_offset));
        self.line_at(document, offset.unwrap_or(scalar))
    }

    /// The line of the file for a byte of a document.
    pub fn line_at(&self, document: usize, offset: usize) -> usize {
        match &self.documents[document].outer {
            None => self.lines.line(offset),
            Some(outer) => {
                let outside = outer.decoded.as_ref().and_then(|decoded| decoded.start(offset));
                self.line_at(outer.document, outside.unwrap_or(outer.scalar))
            }
        }
    }

    /// An error at a byte of a scalar's value.
    pub fn error(&self, place: Place, value_offset: usize, message: &str) -> Error {
        Error::At { file: self.name.clone(), line: self.line(place, value_offset), message: message.to_owned() }
    }

    /// The file's text with the changes, checked.
    pub fn splice(&self, edits: &Edits) -> Result<String, Error> {
        let mut edits = edits.clone();
        for (number, document) in self.documents.iter().enumerate().rev() {
            let here: ScalarEdits = edits
                .range((number, 0)..(number + 1, 0))
                .map(|((_, scalar), edits)| (*scalar, edits.clone()))
                .collect();
            if here.is_empty() && number > 0 {
                continue;
            }
            let (changes, text) = self.splice_document(number, &here)?;
            match &document.outer {
                None => return Ok(text),
                Some(outer) => {
                    edits.insert((outer.document, outer.scalar), changes);
                }
            }
        }
        Ok(self.text().to_owned())
    }

    /// The changes of a document's text and the text with them, checked. A scalar that would read otherwise in its lines, for
    /// example with a blank at the end of one, is written as a whole.
    fn splice_document(&self, number: usize, edits: &ScalarEdits) -> Result<(Replacements, String), Error> {
        let document = &self.documents[number];
        let mut whole = BTreeSet::new();
        loop {
            let mut changes = vec![];
            for (scalar, edits) in edits {
                let node = document.find(*scalar);
                let written = node.and_then(|node| document.encode(node, edits, whole.contains(scalar)));
                changes.extend(written.ok_or_else(|| {
                    let message = "the changed value cannot be written in this place; nothing was written";
                    self.error((number, *scalar), 0, message)
                })?);
            }
            changes.sort_by_key(|(range, _)| range.start);
            let text = replaced(&document.text, &changes);
            let Err(offset) = check(document, edits, &text) else { return Ok((changes, text)) };
            let wrong = if edits.contains_key(&offset) && whole.len() < MOST_ATTEMPTS {
                whole.insert(offset)
            } else {
                let before = whole.len();
                whole.extend(edits.keys());
                whole.len() > before
            };
            if !wrong {
                let message = "the changed text reads otherwise than intended; nothing was written. This is an error of podmeter-migrate";
                // A text that is not even parsed has no offset.
                let first = edits.keys().next().copied().unwrap_or(offset);
                let line = self.line_at(number, if offset == 0 { first } else { offset });
                return Err(Error::At { file: self.name.clone(), line, message: message.into() });
            }
        }
    }
}

impl Document {
    /// The scalar value that begins at a byte.
    pub fn find(&self, start: usize) -> Option<&Node> {
        fn find(node: &Node, start: usize) -> Option<&Node> {
            match &node.value {
                Value::Scalar(_) => (node.span.start == start).then_some(node),
                Value::Sequence(items) => {
                    find(items[..items.partition_point(|item| item.span.start <= start)].last()?, start)
                }
                Value::Mapping(entries) => {
                    let before = entries.partition_point(|(key, _)| key.span.start <= start);
                    let (key, value) = entries[..before].last()?;
                    find(key, start).or_else(|| find(value, start))
                }
                Value::Alias => None,
            }
        }
        find(self.roots[..self.roots.partition_point(|root| root.span.start <= start)].last()?, start)
    }
}

/// Whether the text reads as the document with these changes; else the byte of the document from which on it does not.
fn check(document: &Document, edits: &ScalarEdits, text: &str) -> Result<(), usize> {
    let parsed = Document::parse(text.to_owned(), document.format, None).map_err(|_| 0_usize)?;
    if parsed.roots.len() != document.roots.len() {
        return Err(0);
    }
    document.roots.iter().zip(&parsed.roots).try_for_each(|(before, after)| same(before, after, edits))
}

/// Compares two trees: equal but for the changes.
fn same(before: &Node, after: &Node, edits: &ScalarEdits) -> Result<(), usize> {
    let differs = || Err(before.span.start);
    match (&before.value, &after.value) {
        (Value::Scalar(old), Value::Scalar(new)) => {
            let equal = match edits.get(&before.span.start) {
                Some(edits) if !before.span.is_empty() => {
                    new.text == replaced(&old.text, edits) && (new.style == old.style || rewritten(new))
                }
                _ => old == new,
            };
            if equal { Ok(()) } else { differs() }
        }
        (Value::Sequence(old), Value::Sequence(new)) if old.len() == new.len() => {
            old.iter().zip(new).try_for_each(|(old, new)| same(old, new, edits))
        }
        (Value::Mapping(old), Value::Mapping(new)) if old.len() == new.len() => {
            old.iter().zip(new).try_for_each(|((old_key, old), (new_key, new))| {
                same(old_key, new_key, edits)?;
                same(old, new, edits)
            })
        }
        (Value::Alias, Value::Alias) => Ok(()),
        _ => differs(),
    }
}

/// The styles of scalars that are written anew.
fn rewritten(scalar: &Scalar) -> bool {
    matches!(scalar.style, Style::SingleQuoted | Style::DoubleQuoted | Style::Literal)
}

/// The text with ranges replaced, which are in order.
pub fn replaced(text: &str, edits: &[(Range<usize>, String)]) -> String {
    let mut result = String::with_capacity(text.len());
    let mut end = 0;
    for (range, after) in edits {
        result.push_str(&text[end..range.start]);
        result.push_str(after);
        end = range.end;
    }
    result.push_str(&text[end..]);
    result
}
