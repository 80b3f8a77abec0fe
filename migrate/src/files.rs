//! The files that are rewritten: their text as trees with positions, and the changed text.
//!
//! Input: a text, and changes of its scalars as ranges of their values. Output: the text with these changes alone; every other
//! byte stays. The result is parsed again and compared with what was intended. What is put into a scalar needs no escapes: names,
//! numbers, parentheses, operators and blanks. Not known here: PromQL, and what a rule or a dashboard is.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::ops::Range;
use std::vec::IntoIter;

use granit_parser::{Event, Parser, ScalarStyle, Span};
use serde::de::IgnoredAny;

use crate::promql::replaced;

/// A file that failed. Nothing is written then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{file}:{line}: {message}")]
    At { file: String, line: usize, message: String },
    #[error("{file}: {message}")]
    File { file: String, message: String },
}

/// What is wrong with a text, and where.
#[derive(Debug)]
struct Syntax {
    offset: usize,
    message: String,
}

/// A value with the bytes of the text that it takes.
#[derive(Debug)]
pub struct Node {
    pub span: Range<usize>,
    /// Inside a YAML anchor that some alias uses, so that a change would be one of other places too.
    pub shared: bool,
    pub value: Value,
}

#[derive(Debug)]
pub enum Value {
    /// The text without quotes, escapes and indentation.
    Scalar(String, Quotes),
    Sequence(Vec<Node>),
    /// Keys are scalars, each once.
    Mapping(Vec<(Node, Node)>),
    /// A YAML alias; its target stands elsewhere in the text.
    Alias,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quotes {
    None,
    Single,
    Double,
}

impl Node {
    /// The text of a scalar.
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(text, _) => Some(text),
            _ => None,
        }
    }

    pub fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|(name, _)| name.text() == Some(key)).map(|(_, value)| value)
    }

    /// The value at the end of a path of keys.
    pub fn at(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    pub fn text_of(&self, key: &str) -> Option<&str> {
        self.get(key)?.text()
    }

    /// The entries of a mapping; none for another node.
    pub fn entries(&self) -> &[(Node, Node)] {
        match &self.value {
            Value::Mapping(entries) => entries,
            _ => &[],
        }
    }

    /// The items of a sequence; none for another node.
    pub fn items(&self) -> &[Node] {
        match &self.value {
            Value::Sequence(items) => items,
            _ => &[],
        }
    }

    /// The items of the sequence at the end of a path of keys; none where there is no such sequence.
    pub fn items_at(&self, path: &[&str]) -> &[Node] {
        self.at(path).map_or(&[], Self::items)
    }

    /// Calls `visit` with each scalar, also keys, and the nearest key around it.
    pub fn scalars<'n>(&'n self, key: &'n str, visit: &mut impl FnMut(&'n Node, &'n str)) {
        match &self.value {
            Value::Scalar(..) => visit(self, key),
            Value::Sequence(items) => items.iter().for_each(|item| item.scalars(key, visit)),
            Value::Mapping(entries) => entries.iter().for_each(|(name, value)| {
                visit(name, key);
                value.scalars(name.text().unwrap_or(key), visit);
            }),
            Value::Alias => {}
        }
    }
}

/// A parsed text: the file's, or that of a scalar in it, such as a dashboard in a ConfigMap.
#[derive(Debug)]
pub struct Document {
    text: String,
    pub roots: Vec<Node>,
    /// The scalar around it, and where its characters stand there.
    outer: Option<(Place, Characters)>,
}

/// A file with the documents embedded in it, each after the one around it.
#[derive(Debug)]
pub struct File {
    pub name: String,
    pub documents: Vec<Document>,
    is_queries: bool,
}

/// A scalar of a file: its document, and where it begins there.
pub type Place = (usize, usize);

/// Ranges of a text, in order, with what replaces them.
pub type Replacements = Vec<(Range<usize>, String)>;

/// Changes of scalars: ranges of their values.
pub type Edits = BTreeMap<Place, Replacements>;

impl File {
    /// Parses a file, or a file of plain queries; `name` is that of its messages.
    pub fn parse(name: &str, text: String, is_queries: bool) -> Result<Self, Error> {
        let roots = if is_queries { Ok(vec![queries(&text)]) } else { parse(&text) };
        match roots {
            Ok(roots) => {
                let documents = vec![Document { text, roots, outer: None }];
                Ok(Self { name: name.to_owned(), documents, is_queries })
            }
            Err(Syntax { offset, message }) => Err(Error::At { file: name.into(), line: line(&text, offset), message }),
        }
    }

    pub fn text(&self) -> &str {
        &self.documents[0].text
    }

    pub fn is_queries(&self) -> bool {
        self.is_queries
    }

    /// Parses the value of a scalar of the file as a document of its own.
    pub fn embed(&mut self, scalar: usize) -> Result<(), Error> {
        let place = (0, scalar);
        let outside = &self.documents[0];
        let node = outside.find(scalar).expect("a scalar of the file");
        let text = node.text().unwrap_or_default().to_owned();
        let message = "the value could not be located in the text".to_owned();
        let characters = outside.characters(node).ok_or(Syntax { offset: 0, message });
        match characters.and_then(|characters| Ok((parse(&text)?, characters))) {
            Ok((roots, characters)) => self.documents.push(Document { text, roots, outer: Some((place, characters)) }),
            Err(Syntax { offset, message }) => {
                return Err(Error::At { file: self.name.clone(), line: self.line(place, offset), message });
            }
        }
        Ok(())
    }

    /// The scalars that hold embedded documents.
    pub fn embedded(&self) -> BTreeSet<Place> {
        self.documents.iter().filter_map(|document| Some(document.outer.as_ref()?.0)).collect()
    }

    /// The line of the file for a byte of a scalar's value.
    pub fn line(&self, (document, scalar): Place, offset: usize) -> usize {
        let characters =
            self.documents[document].find(scalar).and_then(|node| self.documents[document].characters(node));
        self.line_at(document, characters.map_or(scalar, |characters| characters.start(offset)))
    }

    /// The line of the file for a byte of a document.
    pub fn line_at(&self, document: usize, offset: usize) -> usize {
        match &self.documents[document].outer {
            None => line(self.text(), offset),
            Some((place, characters)) => self.line_at(place.0, characters.start(offset)),
        }
    }

    /// The file's text with the changes, checked.
    pub fn splice(&self, edits: &Edits) -> Result<String, Error> {
        let mut edits = edits.clone();
        for (number, document) in self.documents.iter().enumerate().rev() {
            let here: BTreeMap<usize, Replacements> = edits
                .range((number, 0)..(number + 1, 0))
                .map(|((_, scalar), edits)| (*scalar, edits.clone()))
                .collect();
            if here.is_empty() {
                continue;
            }
            let changes = document.written(&here);
            let text = changes.as_ref().map(|changes| spliced(&document.text, changes));
            let is_intended = text.as_ref().is_some_and(|text| {
                let parsed = if self.is_queries { Ok(vec![queries(text)]) } else { parse(text) };
                parsed.is_ok_and(|roots| {
                    roots.len() == document.roots.len()
                        && document.roots.iter().zip(&roots).all(|(before, after)| same(before, after, &here))
                })
            });
            let (Some(changes), Some(text), true) = (changes, text, is_intended) else {
                let scalar = here.keys().next().copied().unwrap_or(0);
                let message = "the changed text would read otherwise than intended; nothing was written".into();
                return Err(Error::At { file: self.name.clone(), line: self.line((number, scalar), 0), message });
            };
            match &document.outer {
                None => return Ok(text),
                Some((place, _)) => _ = edits.insert(*place, changes),
            }
        }
        Ok(self.text().to_owned())
    }
}

fn spliced(text: &str, edits: &Replacements) -> String {
    replaced(text, edits.iter().map(|(range, after)| (range, after.as_str())))
}

/// The line, from 1, of a byte.
fn line(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// Compares two trees: equal but for the changes.
fn same(before: &Node, after: &Node, edits: &BTreeMap<usize, Replacements>) -> bool {
    let all = |old: &[Node], new: &[Node]| {
        old.len() == new.len() && old.iter().zip(new).all(|(old, new)| same(old, new, edits))
    };
    match (&before.value, &after.value) {
        (Value::Scalar(old, quotes), Value::Scalar(new, after_quotes)) => {
            let changes = edits.get(&before.span.start).filter(|_| !before.span.is_empty());
            quotes == after_quotes
                && changes.map_or(Cow::Borrowed(old), |changes| Cow::Owned(spliced(old, changes))).as_ref() == new
        }
        (Value::Sequence(old), Value::Sequence(new)) => all(old, new),
        (Value::Mapping(old), Value::Mapping(new)) => {
            let pairs = || old.iter().zip(new);
            old.len() == new.len()
                && pairs().all(|((old, _), (new, _))| same(old, new, edits))
                && pairs().all(|((_, old), (_, new))| same(old, new, edits))
        }
        (Value::Alias, Value::Alias) => true,
        _ => false,
    }
}

impl Document {
    /// The scalar that begins at a byte.
    pub fn find(&self, start: usize) -> Option<&Node> {
        let mut found = None;
        for root in self.roots.iter().filter(|root| root.span.start <= start) {
            root.scalars("", &mut |node, _| {
                if node.span.start == start && (found.is_none() || !node.span.is_empty()) {
                    found = Some(node);
                }
            });
        }
        found
    }

    fn characters(&self, node: &Node) -> Option<Characters> {
        let Value::Scalar(text, quotes) = &node.value else { return None };
        let quote = usize::from(*quotes != Quotes::None);
        Characters::locate(&self.text[..node.span.end], node.span.start + quote, text, *quotes)
    }

    /// The changes of the text; `None` where a value cannot be located.
    fn written(&self, edits: &BTreeMap<usize, Replacements>) -> Option<Replacements> {
        let mut changes = vec![];
        for (scalar, edits) in edits {
            let node = self.find(*scalar)?;
            let (characters, text) = (self.characters(node)?, node.text()?);
            changes.extend(edits.iter().map(|(range, after)| (characters.range(text, range), after.clone())));
        }
        changes.sort_by_key(|(range, _)| range.start);
        Some(changes)
    }
}

/// Where each character of a scalar's value, but for blanks, stands in the text, whatever quotes, escapes, folds and indentation
/// are around it.
#[derive(Debug)]
struct Characters {
    /// Byte of the value, and the bytes in the text.
    places: Vec<(usize, Range<usize>)>,
    begin: usize,
}

impl Characters {
    fn locate(text: &str, begin: usize, value: &str, quotes: Quotes) -> Option<Self> {
        let (mut places, mut at) = (vec![], begin);
        for (offset, wanted) in value.char_indices().filter(|(_, wanted)| !wanted.is_whitespace()) {
            loop {
                let rest = text.get(at..)?;
                let (found, length) = match (quotes, rest.chars().next()?) {
                    (Quotes::Double, '\\') => escape(rest)?,
                    (Quotes::Single, '\'') => ('\'', 2),
                    (_, plain) => (plain, plain.len_utf8()),
                };
                at += length;
                if found == wanted {
                    places.push((offset, at - length..at));
                    break;
                }
                if !found.is_whitespace() {
                    return None;
                }
            }
        }
        Some(Self { places, begin })
    }

    /// The first character from an offset on.
    fn start(&self, offset: usize) -> usize {
        let next = self.places.partition_point(|(at, _)| *at < offset);
        self.places.get(next).map_or_else(|| self.end(offset), |(_, place)| place.start)
    }

    /// After the last character before an offset.
    fn end(&self, offset: usize) -> usize {
        let next = self.places.partition_point(|(at, _)| *at < offset);
        next.checked_sub(1).map_or(self.begin, |last| self.places[last].1.end)
    }

    fn range(&self, value: &str, range: &Range<usize>) -> Range<usize> {
        let is_blank = value[range.start..].starts_with(char::is_whitespace) || range.start == value.len();
        let start = if is_blank { self.end(range.start) } else { self.start(range.start) };
        start..if range.is_empty() { start } else { self.end(range.end) }
    }
}

/// The character that an escape stands for, and its length. An escaped line break is a blank too.
fn escape(text: &str) -> Option<(char, usize)> {
    let hexadecimal = |digits: usize| u32::from_str_radix(text.get(2..2 + digits)?, 16).ok();
    let single = |character| Some((character, 2));
    match text[1..].chars().next()? {
        'x' => Some((char::from_u32(hexadecimal(2)?)?, 4)),
        'U' => Some((char::from_u32(hexadecimal(8)?)?, 10)),
        'u' => {
            let first = hexadecimal(4)?;
            if let Some(character) = char::from_u32(first) {
                return Some((character, 6));
            }
            let second = u16::from_str_radix(text.get(6..)?.strip_prefix("\\u")?.get(..4)?, 16).ok()?;
            let pair = [u16::try_from(first).ok()?, second];
            Some((char::decode_utf16(pair).next()?.ok()?, 12))
        }
        'n' | 'r' | 't' | 'v' | 'f' | 'N' | '_' | 'L' | 'P' => single(' '),
        '0' => single('\0'),
        'a' => single('\u{7}'),
        'b' => single('\u{8}'),
        'e' => single('\u{1b}'),
        other => Some((other, 1 + other.len_utf8())),
    }
}

/// A sequence of the paragraphs of a file of plain queries; comments before a query are not part of it.
fn queries(text: &str) -> Node {
    let mut queries: Vec<Range<usize>> = vec![];
    let (mut at, mut is_open) = (0, false);
    for line in text.split_inclusive('\n') {
        let content = line.trim();
        let end = at + line.trim_end().len();
        match queries.last_mut() {
            _ if content.is_empty() => is_open = false,
            Some(last) if is_open => last.end = end,
            _ if content.starts_with('#') => {}
            _ => {
                queries.push(at + (line.len() - line.trim_start().len())..end);
                is_open = true;
            }
        }
        at += line.len();
    }
    let node = |span: Range<usize>, value| Node { span, shared: false, value };
    let query = |span: Range<usize>| node(span.clone(), Value::Scalar(text[span].to_owned(), Quotes::None));
    node(0..text.len(), Value::Sequence(queries.into_iter().map(query).collect()))
}

/// Whether a text is JSON: it begins with a bracket. Two brackets begin a template.
pub fn is_json(text: &str) -> bool {
    let start = text.trim_start_matches('\u{feff}').trim_start();
    start.starts_with(['{', '[']) && !start.starts_with("{{")
}

/// The documents of a YAML text, or of a JSON text, which YAML includes.
fn parse(text: &str) -> Result<Vec<Node>, Syntax> {
    if is_json(text) {
        let json = text.trim_start_matches('\u{feff}');
        serde_json::from_str::<IgnoredAny>(json).map_err(|error| {
            let before = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum::<usize>();
            let message = error.to_string();
            let message = message.split_once(" at line ").map_or(message.as_str(), |(message, _)| message);
            let column = error.column();
            Syntax {
                offset: before + column.saturating_sub(1),
                message: format!("not JSON: {message} (column {column})"),
            }
        })?;
    }
    documents(text).map_err(|error| template(text).unwrap_or(error))
}

/// A template of Helm or Go in place of a value, which is why the text is no YAML.
fn template(text: &str) -> Option<Syntax> {
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let content = line.trim_start_matches(['\u{feff}', ' ', '-']);
        if content.starts_with("{{") || line.contains(": {{") {
            let message =
                "a template ({{ … }}) in place of a value: give the rendered file (for Helm: helm template …)";
            return Some(Syntax { offset, message: message.into() });
        }
        offset += line.len();
    }
    None
}

fn documents(text: &str) -> Result<Vec<Node>, Syntax> {
    let mut options = granit_parser::options! {};
    options.set_emit_comments(false);
    let mut events = vec![];
    // An alias is a reference and never expanded; the parser bounds the nesting.
    let mut aliased = BTreeSet::new();
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| Syntax {
            offset: error.marker().byte_offset().unwrap_or(0),
            message: format!("not YAML: {}", error.info()),
        })?;
        if let Event::Alias(anchor) = event {
            aliased.insert(anchor);
        }
        events.push((event, span));
    }
    let mut builder = Builder { events: events.into_iter().peekable(), aliased };
    let mut documents = vec![];
    while let Some((event, _)) = builder.events.next() {
        if let Event::DocumentStart(..) = event {
            documents.push(builder.node(false)?);
        }
    }
    Ok(documents)
}

struct Builder<'t> {
    events: Peekable<IntoIter<(Event<'t>, Span)>>,
    aliased: BTreeSet<usize>,
}

impl Builder<'_> {
    fn node(&mut self, shared: bool) -> Result<Node, Syntax> {
        let (event, span) = self.events.next().ok_or_else(|| unexpected(0))?;
        let span = span.byte_range().unwrap_or_default();
        let to = |end: &Span| span.start..end.byte_range().map_or(span.end, |end| end.end);
        Ok(match event {
            Event::Alias(_) => Node { span, shared, value: Value::Alias },
            Event::Scalar(text, style, anchor, _) => {
                // The parser gives a null that is not written as `~`.
                let text =
                    if span.is_empty() && style == ScalarStyle::Plain { String::new() } else { text.into_owned() };
                let quotes = match style {
                    ScalarStyle::SingleQuoted => Quotes::Single,
                    ScalarStyle::DoubleQuoted => Quotes::Double,
                    _ => Quotes::None,
                };
                Node { shared: shared || self.aliased.contains(&anchor), value: Value::Scalar(text, quotes), span }
            }
            Event::SequenceStart(_, anchor, _) => {
                let shared = shared || self.aliased.contains(&anchor);
                let mut items = vec![];
                let end = loop {
                    if let Some((_, end)) = self.events.next_if(|(event, _)| matches!(event, Event::SequenceEnd)) {
                        break end;
                    }
                    items.push(self.node(shared)?);
                };
                Node { span: to(&end), shared, value: Value::Sequence(items) }
            }
            Event::MappingStart(_, anchor, _) => {
                let shared = shared || self.aliased.contains(&anchor);
                let mut entries: Vec<(Node, Node)> = vec![];
                let mut keys = BTreeSet::new();
                let end = loop {
                    if let Some((_, end)) = self.events.next_if(|(event, _)| matches!(event, Event::MappingEnd)) {
                        break end;
                    }
                    let key = self.node(shared)?;
                    let offset = key.span.start;
                    let Some(name) = key.text() else {
                        return Err(Syntax { offset, message: "a mapping key that is no scalar".into() });
                    };
                    if name != "<<" && !keys.insert(name.to_owned()) {
                        return Err(Syntax { offset, message: format!("the key `{name}` stands twice") });
                    }
                    entries.push((key, self.node(shared)?));
                };
                Node { span: to(&end), shared, value: Value::Mapping(entries) }
            }
            _ => return Err(unexpected(span.start)),
        })
    }
}

fn unexpected(offset: usize) -> Syntax {
    Syntax { offset, message: "not YAML: an unexpected end".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPERATURE: &str = "DCGM_FI_DEV_GPU_TEMP";

    /// Renames one metric in the scalar that holds it, and adds a factor behind it.
    fn check(text: &str) {
        let mut file = File::parse("file", text.to_owned(), false).unwrap();
        let mut place = None;
        for root in &file.documents[0].roots {
            root.scalars("", &mut |node, _| {
                if node.text().is_some_and(|text| text.contains(TEMPERATURE)) {
                    place = Some((node.span.start, node.text().unwrap().to_owned()));
                }
            });
        }
        let (mut scalar, mut value) = place.unwrap();
        let mut document = 0;
        if is_json(&value) && !is_json(text) {
            file.embed(scalar).unwrap();
            document = 1;
            file.documents[1].roots[0].scalars("", &mut |node, _| {
                if node.text().is_some_and(|text| text.contains(TEMPERATURE)) {
                    (scalar, value) = (node.span.start, node.text().unwrap().to_owned());
                }
            });
        }
        let start = value.find(TEMPERATURE).unwrap();
        let end = start + TEMPERATURE.len();
        let edits =
            vec![(start..start, "(".to_owned()), (start..end, "X".to_owned()), (end..end, " * 100)".to_owned())];
        let spliced = file.splice(&[((document, scalar), edits)].into()).unwrap();
        assert_eq!(spliced, text.replace(TEMPERATURE, "(X * 100)"));
    }

    #[test]
    fn a_change_leaves_every_other_byte() {
        for text in [
            "a: DCGM_FI_DEV_GPU_TEMP > 80 # comment\nb: 1\n",
            "a: 'it''s DCGM_FI_DEV_GPU_TEMP'\n",
            "a: \"\\u00e9 \\\"x\\\"\\n DCGM_FI_DEV_GPU_TEMP \\\n  > 1\"\n",
            "a: |-\n  # é\n  max(\n    DCGM_FI_DEV_GPU_TEMP   # hot\n  )\n\n# end\nb: 1\n",
            "a: >\n  sum(\n    DCGM_FI_DEV_GPU_TEMP\n  )\n  > 1\n",
            "a:\n  DCGM_FI_DEV_GPU_TEMP\n  > 1\n",
            "a: {b: [x, DCGM_FI_DEV_GPU_TEMP]}\r\nc: d\r\n",
            "{\"a\": \"\\ud83d\\ude00 \\\"\\/ DCGM_FI_DEV_GPU_TEMP\\n\\u003e 1\"}",
            "{\n\t\"a\": [\"DCGM_FI_DEV_GPU_TEMP\"]\n}\n",
            "a: |\n  {\"b\": \"x{y=\\\"1\\\"} + DCGM_FI_DEV_GPU_TEMP\"}\n",
            "a: '{\"b\": \"it''s DCGM_FI_DEV_GPU_TEMP\"}'\n",
            "a: \"{\\\"b\\\": \\\"DCGM_FI_DEV_GPU_TEMP\\\"}\"\n",
        ] {
            check(text);
        }
    }

    #[test]
    fn paragraphs_are_queries() {
        let text = "# first\nsum(\n  a)\n\n\nb # c\n# still\n";
        let file = File::parse("f", text.to_owned(), true).unwrap();
        let items: Vec<_> = file.documents[0].roots[0].items().iter().filter_map(Node::text).collect();
        assert_eq!(items, ["sum(\n  a)", "b # c\n# still"]);
    }
}
