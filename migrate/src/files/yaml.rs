//! YAML: its tree with positions, where each character of a scalar stands, and how a changed one is written in its style.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::iter::Peekable;
use std::ops::Range;
use std::vec::IntoIter;

use granit_parser::{Event, Parser, ScalarStyle, Span, StructureStyle};

use super::json;
use super::pieces::Decoded;
use super::tree::{Node, Scalar, Style, Value};
use super::{Replacements, Syntax};

/// The documents of the text; one without content is a null.
pub fn parse(text: &str) -> Result<Vec<Node>, Syntax> {
    documents(text).map_err(|error| template(text).unwrap_or(error))
}

/// A template of Helm or Go in place of a value, which is why the text is no YAML.
pub fn template(text: &str) -> Option<Syntax> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let content = line.trim_start_matches(['\u{feff}', ' ', '-']);
        if content.starts_with("{{") || line.contains(": {{") {
            let message =
                "a template ({{ … }}) in place of a value: give the rendered file (for Helm: helm template …)";
            return Some(Syntax { offset: start, message: message.into() });
        }
        start += line.len();
    }
    None
}

type Events<'t> = Peekable<IntoIter<(Event<'t>, Span)>>;

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
    let mut builder = Builder { events: events.into_iter().peekable(), aliased, flow: 0 };
    let mut documents = vec![];
    while let Some((event, _)) = builder.events.next() {
        if let Event::DocumentStart(..) = event {
            documents.push(builder.node(false)?);
        }
    }
    Ok(documents)
}

struct Builder<'t> {
    events: Events<'t>,
    aliased: BTreeSet<usize>,
    /// Flow collections around the next node.
    flow: usize,
}

impl Builder<'_> {
    fn node(&mut self, shared: bool) -> Result<Node, Syntax> {
        let (event, span) = self.events.next().ok_or_else(|| unexpected(0))?;
        let span = span.byte_range().unwrap_or_default();
        Ok(match event {
            Event::Alias(_) => Node { span, shared, value: Value::Alias },
            Event::Scalar(text, style, anchor, _) => {
                // The parser gives a null that is not written as `~`.
                let text =
                    if span.is_empty() && style == ScalarStyle::Plain { String::new() } else { text.into_owned() };
                Node {
                    shared: shared || self.aliased.contains(&anchor),
                    value: Value::Scalar(Scalar { text, style: self.style(style) }),
                    span,
                }
            }
            Event::SequenceStart(style, anchor, _) => {
                let shared = shared || self.aliased.contains(&anchor);
                self.flow += usize::from(style == StructureStyle::Flow);
                let mut items = vec![];
                let end = loop {
                    if let Some((_, end)) = self.events.next_if(|(event, _)| matches!(event, Event::SequenceEnd)) {
                        break end;
                    }
                    items.push(self.node(shared)?);
                };
                self.flow -= usize::from(style == StructureStyle::Flow);
                Node { span: to(span, &end), shared, value: Value::Sequence(items) }
            }
            Event::MappingStart(style, anchor, _) => {
                let shared = shared || self.aliased.contains(&anchor);
                self.flow += usize::from(style == StructureStyle::Flow);
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
                    let value = self.node(shared)?;
                    entries.push((key, value));
                };
                self.flow -= usize::from(style == StructureStyle::Flow);
                Node { span: to(span, &end), shared, value: Value::Mapping(entries) }
            }
            _ => return Err(unexpected(span.start)),
        })
    }

    fn style(&self, style: ScalarStyle) -> Style {
        // A block scalar's indentation is read from the text where it is needed.
        match style {
            ScalarStyle::Plain => Style::Plain { flow: self.flow > 0 },
            ScalarStyle::SingleQuoted => Style::SingleQuoted,
            ScalarStyle::DoubleQuoted => Style::DoubleQuoted,
            ScalarStyle::Literal => Style::Literal,
            ScalarStyle::Folded => Style::Folded,
        }
    }
}

fn to(start: Range<usize>, end: &Span) -> Range<usize> {
    start.start..end.byte_range().map_or(start.end, |end| end.end)
}

fn unexpected(offset: usize) -> Syntax {
    Syntax { offset, message: "not YAML: an unexpected end".into() }
}

/// The value of a scalar with the positions of its characters. `None` where this module reads it otherwise than the parser.
pub fn decode(text: &str, node: &Node) -> Option<Decoded> {
    let scalar = node.scalar()?;
    let span = &node.span;
    let decoded = match scalar.style {
        Style::Plain { .. } => flow(text, span.clone(), None)?,
        Style::SingleQuoted => flow(text, span.start + 1..span.end.checked_sub(1)?, Some('\''))?,
        Style::DoubleQuoted => flow(text, span.start + 1..span.end.checked_sub(1)?, Some('"'))?,
        Style::Literal | Style::Folded => block(text, node, scalar)?,
        Style::JsonString | Style::JsonToken | Style::Query => return None,
    };
    (decoded.text == scalar.text).then_some(decoded)
}

/// Length of the line break at the start of the text; 0 for none.
fn line_break(text: &str) -> usize {
    match text.as_bytes() {
        [b'\r', b'\n', ..] => 2,
        [b'\r' | b'\n', ..] => 1,
        _ => 0,
    }
}

fn blanks(text: &str) -> usize {
    text.len() - text.trim_start_matches([' ', '\t']).len()
}

/// A plain or quoted scalar: a line break is a space, several are one less, with the blanks around them.
fn flow(text: &str, range: Range<usize>, quote: Option<char>) -> Option<Decoded> {
    let text = text.get(..range.end)?;
    let mut decoded = Decoded::default();
    let mut at = range.start;
    while at < range.end {
        let rest = &text[at..];
        let blank = blanks(rest);
        if line_break(&rest[blank..]) > 0 {
            at = folded(text, at, false, &mut decoded);
        } else if blank > 0 {
            decoded.verbatim(text, at..at + blank);
            at += blank;
        } else if quote == Some('\'') && rest.starts_with("''") {
            decoded.special('\'', at..at + 2);
            at += 2;
        } else if quote == Some('"') && rest.starts_with('\\') {
            if line_break(&rest[1..]) > 0 {
                at = folded(text, at + 1, true, &mut decoded);
            } else {
                let (character, length) = escape(rest)?;
                decoded.special(character, at..at + length);
                at += length;
            }
        } else {
            let length = rest.chars().next()?.len_utf8();
            decoded.verbatim(text, at..at + length);
            at += length;
        }
    }
    Some(decoded)
}

/// Appends the fold that begins here, and gives where the text goes on. After an escaped break the break itself is nothing.
fn folded(text: &str, start: usize, escaped: bool, decoded: &mut Decoded) -> usize {
    let mut at = start;
    let mut breaks = vec![];
    loop {
        at += blanks(&text[at..]);
        let length = line_break(&text[at..]);
        if length == 0 {
            break;
        }
        breaks.push(at..at + length);
        at += length;
    }
    match breaks.as_slice() {
        [_] if !escaped => decoded.special(' ', start..at),
        [_, others @ ..] => others.iter().for_each(|other| decoded.special('\n', other.clone())),
        [] => {}
    }
    at
}

fn escape(text: &str) -> Option<(char, usize)> {
    let hexadecimal = |digits: usize| {
        let value = u32::from_str_radix(text.get(2..2 + digits)?, 16).ok()?;
        Some((char::from_u32(value)?, 2 + digits))
    };
    Some(match text[1..].chars().next()? {
        '0' => ('\0', 2),
        'a' => ('\u{7}', 2),
        'b' => ('\u{8}', 2),
        't' | '\t' => ('\t', 2),
        'n' => ('\n', 2),
        'v' => ('\u{b}', 2),
        'f' => ('\u{c}', 2),
        'r' => ('\r', 2),
        'e' => ('\u{1b}', 2),
        'N' => ('\u{85}', 2),
        '_' => ('\u{a0}', 2),
        'L' => ('\u{2028}', 2),
        'P' => ('\u{2029}', 2),
        'x' => hexadecimal(2)?,
        'u' => json::unicode(text)?,
        'U' => hexadecimal(8)?,
        other @ (' ' | '"' | '/' | '\\') => (other, 2),
        _ => return None,
    })
}

/// The lines of a block scalar, from the one after its header, each without its indentation.
struct Line {
    content: Range<usize>,
    /// Empty after the last line of a text that does not end with a break.
    end: Range<usize>,
}

fn block_lines(text: &str, node: &Node) -> Option<Vec<Line>> {
    // The span begins at the first character, after blank lines.
    let header = text[..node.span.start].trim_end_matches([' ', '\n', '\r']).len();
    let header_end = header + text[header..].find('\n')? + 1;
    let indent = indent(text, node);
    let mut lines = vec![];
    let mut at = header_end;
    while at < node.span.end {
        let rest = &text[at..];
        let length = rest.find(['\n', '\r']).unwrap_or(rest.len());
        let spaces = rest.len() - rest.trim_start_matches(' ').len();
        // The span goes on to what follows, past its indentation.
        if spaces < indent.min(length) {
            break;
        }
        let content = at + spaces.min(indent).min(length)..at + length;
        let end = content.end..content.end + line_break(&rest[length..]);
        at = end.end;
        lines.push(Line { content, end });
        if at == text.len() {
            break;
        }
    }
    Some(lines)
}

/// The indentation of a block scalar: the column of its first character.
fn indent(text: &str, node: &Node) -> usize {
    let start = text[..node.span.start].rfind(['\n', '\r']).map_or(0, |at| at + 1);
    node.span.start - start
}

fn block(text: &str, node: &Node, scalar: &Scalar) -> Option<Decoded> {
    let mut decoded = Decoded::default();
    let folded = scalar.style == Style::Folded;
    // Breaks since the last line with content, and whether that line may be joined with the next.
    let mut breaks: Vec<Range<usize>> = vec![];
    let mut joins = None;
    for line in block_lines(text, node)? {
        let content = &text[line.content.clone()];
        if content.is_empty() {
            breaks.push(line.end);
            continue;
        }
        let normal = !content.starts_with([' ', '\t']);
        match breaks.as_slice() {
            [one] if folded && normal && joins == Some(true) => decoded.special(' ', one.start..line.content.start),
            [_, others @ ..] if folded && normal && joins == Some(true) => {
                others.iter().for_each(|other| decoded.special('\n', other.clone()));
            }
            all => all.iter().for_each(|one| decoded.special('\n', one.clone())),
        }
        decoded.verbatim(text, line.content);
        breaks = vec![line.end];
        joins = Some(normal);
    }
    breaks.iter().for_each(|one| decoded.special('\n', one.clone()));
    // The header defines how many breaks at the end are kept.
    decoded.truncate(scalar.text.len());
    Some(decoded)
}

/// Whether a value can stand without quotes.
fn plain(value: &str, flow: bool) -> bool {
    let start = value.chars().next().is_some_and(|first| !"-?:,[]{}#&*!|>'\"%@` \t".contains(first));
    let inside = !value.contains(": ") && !value.contains(" #");
    let end = !value.ends_with([':', ' ', '\t']);
    start && inside && end && !(flow && value.contains(['[', ']', '{', '}', ',']))
}

/// The text that replaces a range of the source, for each change of a scalar: `edits` are ranges of the value in order.
pub fn encode(text: &str, node: &Node, edits: &[(Range<usize>, String)]) -> Option<Replacements> {
    let scalar = node.scalar()?;
    let value = super::replaced(&scalar.text, edits);
    let Some(decoded) = decode(text, node) else { return encode_whole(text, node, &value) };
    let each = |encoded: &dyn Fn(&str) -> String| -> Option<Vec<_>> {
        edits.iter().map(|(range, after)| Some((decoded.source(range)?, encoded(after)))).collect()
    };
    let added = |unwanted: &dyn Fn(char) -> bool| edits.iter().any(|(_, after)| after.contains(unwanted));
    let controls = added(&char::is_control);
    match scalar.style {
        Style::Plain { flow } if !controls && plain(&value.replace('\n', " "), flow) => each(&str::to_owned),
        Style::Plain { .. } if !value.contains(char::is_control) && !text[node.span.clone()].contains('\n') => {
            Some(vec![(node.span.clone(), format!("'{}'", value.replace('\'', "''")))])
        }
        Style::SingleQuoted if !controls => each(&|after| after.replace('\'', "''")),
        Style::DoubleQuoted => each(&|after| escaped(after).into_owned()),
        Style::Literal | Style::Folded if !added(&|character| character.is_control() && character != '\n') => {
            let line_end = break_after(text, decoded.start(0)?);
            let repeated = if scalar.style == Style::Folded { 2 } else { 1 };
            let next = format!("{}{}", line_end.repeat(repeated), " ".repeat(indent(text, node)));
            each(&|after| after.replace('\n', &next))
        }
        Style::Plain { .. } | Style::SingleQuoted => Some(vec![(node.span.clone(), double_quoted(&value))]),
        _ => None,
    }
}

/// The same for a scalar of which nothing stays: in double quotes, or as a literal block.
pub fn encode_whole(text: &str, node: &Node, value: &str) -> Option<Replacements> {
    if !matches!(node.scalar()?.style, Style::Literal | Style::Folded) {
        return Some(vec![(node.span.clone(), double_quoted(value))]);
    }
    let lines = block_lines(text, node)?;
    let filled = |line: &&Line| !line.content.is_empty();
    let content = lines.iter().find(filled)?.content.start..lines.iter().rfind(filled)?.content.end;
    let first = lines.first()?.content.start.min(content.start);
    let header_end = text[..first].rfind(['\n', '\r']).map(|end| text[..end].trim_end_matches('\r').len())?;
    let header_start = text[..header_end].rfind(['\n', '\r']).map_or(0, |end| end + 1);
    let header = &text[header_start..header_end];
    // The indicator is the first after which nothing but its modifiers and a comment stands.
    let (at, _) = header.match_indices(['|', '>']).find(|(at, _)| {
        let rest =
            header[at + 1..].trim_start_matches(|other: char| other.is_ascii_digit() || matches!(other, '+' | '-'));
        rest.trim().is_empty() || rest.trim_start().len() < rest.len() && rest.trim_start().starts_with('#')
    })?;
    let next = format!("{}{}", break_after(text, content.start), " ".repeat(indent(text, node)));
    let written = value.trim_end_matches('\n').replace('\n', &next);
    let at = header_start + at;
    Some(vec![(at..at + 1, "|".into()), (content, written)])
}

/// The line break at the end of the line.
fn break_after(text: &str, offset: usize) -> &str {
    let rest = &text[offset..];
    let at = rest.find(['\n', '\r']).unwrap_or(rest.len());
    let length = line_break(&rest[at..]);
    if length == 0 { "\n" } else { &rest[at..at + length] }
}

fn double_quoted(value: &str) -> String {
    format!("\"{}\"", escaped(value))
}

/// The inside of a double-quoted scalar.
fn escaped(value: &str) -> Cow<'_, str> {
    if !value.contains(|character: char| character.is_control() || matches!(character, '"' | '\\' | '\u{feff}')) {
        return value.into();
    }
    let mut text = String::new();
    for character in value.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            other if other.is_control() || other == '\u{feff}' => {
                text.push_str(&format!("\\u{:04x}", u32::from(other)));
            }
            other => text.push(other),
        }
    }
    text.into()
}
