//! JSON: its tree with positions, and the writing of changed tokens. Comments and trailing commas are errors, as for Grafana.

use std::collections::BTreeSet;
use std::ops::Range;

use jsonc_parser::ast::{ObjectPropName, Value as Parsed};
use jsonc_parser::common::Ranged as _;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use serde::de::IgnoredAny;

use super::pieces::Decoded;
use super::tree::{Node, Scalar, Style, Value};
use super::{Syntax, lines};

/// The one value of the text.
pub fn parse(text: &str) -> Result<Node, Syntax> {
    // Neither parser accepts a byte order mark; spaces keep the positions.
    let marked = text.strip_prefix('\u{feff}').map(|rest| format!("   {rest}"));
    let text = marked.as_deref().unwrap_or(text);
    let options = ParseOptions {
        allow_comments: false,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let parsed = parse_to_ast(text, &CollectOptions::default(), &options).map_err(|error| Syntax {
        offset: error.range().start,
        message: format!("not JSON: {} (column {})", error.kind(), error.column_display()),
    })?;
    let value = parsed.value.ok_or_else(|| Syntax { offset: 0, message: "not JSON: no value".into() })?;
    // Control characters in strings and strange blanks pass until here.
    if let Err(error) = serde_json::from_str::<IgnoredAny>(text) {
        let message = error.to_string();
        let message = message.split_once(" at line ").map_or(message.as_str(), |(message, _)| message);
        let offset = lines::offset(text, error.line(), error.column());
        return Err(Syntax { offset, message: format!("not JSON: {message}") });
    }
    node(value)
}

fn node(parsed: Parsed<'_>) -> Result<Node, Syntax> {
    let range = parsed.range();
    let token = |text: &str| Value::Scalar(Scalar { text: text.to_owned(), style: Style::JsonToken });
    let value = match parsed {
        Parsed::StringLit(string) => string_value(string.value.into_owned()),
        Parsed::NumberLit(number) => token(number.value),
        Parsed::BooleanLit(boolean) => token(if boolean.value { "true" } else { "false" }),
        Parsed::NullKeyword(_) => token("null"),
        Parsed::Array(array) => Value::Sequence(array.elements.into_iter().map(node).collect::<Result<_, _>>()?),
        Parsed::Object(object) => {
            let mut entries = vec![];
            let mut keys = BTreeSet::new();
            for property in object.properties {
                let range = property.name.range();
                let ObjectPropName::String(name) = property.name else {
                    return Err(Syntax { offset: range.start, message: "not JSON: a key without quotes".into() });
                };
                if !keys.insert(name.value.to_string()) {
                    return Err(Syntax {
                        offset: range.start,
                        message: format!("the key `{}` stands twice", name.value),
                    });
                }
                let key = Node { span: span(range), shared: false, value: string_value(name.value.into_owned()) };
                entries.push((key, node(property.value)?));
            }
            Value::Mapping(entries)
        }
    };
    Ok(Node { span: span(range), shared: false, value })
}

fn string_value(text: String) -> Value {
    Value::Scalar(Scalar { text, style: Style::JsonString })
}

fn span(range: jsonc_parser::common::Range) -> Range<usize> {
    range.start..range.end
}

/// A string with the positions of its characters.
pub fn decode(text: &str, span: &Range<usize>) -> Option<Decoded> {
    let mut decoded = Decoded::default();
    let end = span.end.checked_sub(1)?;
    let mut at = span.start + 1;
    while at < end {
        let rest = &text[at..end];
        let Some(escape) = rest.strip_prefix('\\') else {
            let plain = rest.find('\\').unwrap_or(rest.len());
            decoded.verbatim(text, at..at + plain);
            at += plain;
            continue;
        };
        let (character, length) = match escape.chars().next()? {
            'b' => ('\u{8}', 2),
            'f' => ('\u{c}', 2),
            'n' => ('\n', 2),
            'r' => ('\r', 2),
            't' => ('\t', 2),
            'u' => unicode(rest)?,
            other => (other, 1 + other.len_utf8()),
        };
        decoded.special(character, at..at + length);
        at += length;
    }
    Some(decoded)
}

/// `\uXXXX`, or two of them, with its length.
pub fn unicode(escapes: &str) -> Option<(char, usize)> {
    let unit = |escapes: &str| u32::from_str_radix(escapes.strip_prefix("\\u")?.get(..4)?, 16).ok();
    let first = unit(escapes)?;
    if let Some(character) = char::from_u32(first) {
        return Some((character, 6));
    }
    let second = unit(escapes.get(6..)?)?;
    let pair = [u16::try_from(first).ok()?, u16::try_from(second).ok()?];
    Some((char::decode_utf16(pair).next()?.ok()?, 12))
}

/// The inside of a string.
pub fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_decodes_with_positions() {
        let text = r#"["a\"b\u00e9\ud83d\ude00\/c"]"#;
        let root = parse(text).unwrap();
        let string = &root.items()[0];
        let decoded = decode(text, &string.span).unwrap();
        assert_eq!(decoded.text, "a\"bé😀/c");
        assert_eq!(Some(decoded.text.as_str()), string.text());
        let source = |value: &str| {
            let start = decoded.text.find(value).unwrap();
            &text[decoded.source(&(start..start + value.len())).unwrap()]
        };
        assert_eq!(source("\"b"), r#"\"b"#);
        assert_eq!(source("é😀"), r"\u00e9\ud83d\ude00");
        assert_eq!(source("/c"), r"\/c");
    }

    #[test]
    fn what_grafana_does_not_read_is_an_error_with_its_place() {
        for (text, offset, message) in [
            ("{\n  \"a\": 1,\n}", 10, "Trailing commas are not allowed (column 9)"),
            ("// comment\n{}", 0, "Comments are not allowed"),
            ("{\"a\": 1", 0, "Unterminated object"),
            ("{\"a\": 'b'}", 6, "Single-quoted strings are not allowed"),
            ("[\"a\nb\"]", 2, "control character"),
            ("[1] [2]", 4, "more than one JSON value"),
            ("", 0, "no value"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.message.contains(message), "{text:?}: {}", error.message);
            assert_eq!(error.offset, offset, "{text:?}");
        }
        for deep in ["[".repeat(100_000), "{\"a\":".repeat(100_000)] {
            assert!(parse(&deep).unwrap_err().message.contains("nesting depth"), "deep nesting");
        }
    }
}
