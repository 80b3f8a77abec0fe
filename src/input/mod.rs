//! User input: YAML files, names, patterns, sizes and switches.
//!
//! Inputs: a text. Outputs: its value, or what is wrong, with its line, and for a misspelt name the similar one. Does
//! not use: files, what a key is for.

mod duration;
mod pattern;
mod size;
mod switch;

use std::borrow::Cow;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_saphyr::{Error, Localizer, Location, MessageFormatter, UserMessageFormatter};

pub use duration::Duration;
pub use pattern::{Pattern, has_wildcards};
pub use size::Size;
pub use switch::SwitchOr;

/// The least similarity of a misspelt name to a known one: half of its letters, in their order.
const SIMILAR: f64 = 0.5;
/// The most known names that a message lists.
const LISTED: usize = 12;
/// The most characters that a message quotes.
const QUOTED: usize = 40;

/// Reads YAML; `None`: the text has only comments.
pub fn yaml<T: DeserializeOwned>(text: &str) -> Result<Option<T>, String> {
    read(text).map_err(|error| YamlMessages { quoted: Some(text) }.render(&error))
}

/// Reads YAML of files with secrets: an error quotes only the keys of the file.
pub fn secret_yaml<T: DeserializeOwned>(text: &str) -> Result<Option<T>, String> {
    read(text).map_err(|error| YamlMessages { quoted: None }.render(&error))
}

fn read<T: DeserializeOwned>(text: &str) -> Result<Option<T>, Error> {
    // The parser rejects a document without content.
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(None);
    }
    // An error in the YAML syntax comes before an error of its keys.
    let first = |error| serde_saphyr::from_str::<IgnoredAny>(text).err().unwrap_or(error);
    serde_saphyr::from_str(text).map(Some).map_err(first)
}

/// Makes errors one line, in terms of the file and not of the parser.
struct YamlMessages<'t> {
    /// The text from which to quote what was found; `None`: it has secrets.
    quoted: Option<&'t str>,
}

impl YamlMessages<'_> {
    fn render(&self, error: &Error) -> String {
        error.without_snippet().render_with_formatter(self)
    }

    /// The text at the error's place, as `, not x`.
    fn found(&self, error: &Error) -> String {
        let Some((text, at)) = self.quoted.zip(error.location()) else { return String::new() };
        let index = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).saturating_sub(1);
        let line = text.lines().nth(index(at.line())).unwrap_or_default();
        let rest: String = line.chars().skip(index(at.column())).take(QUOTED).collect();
        if rest.trim().is_empty() { String::new() } else { format!(", not `{}`", rest.trim()) }
    }

    fn mismatch(&self, unexpected: &str, expected: &str) -> String {
        let found = if self.quoted.is_some() { format!(", not {unexpected}") } else { String::new() };
        format!("must be {}{found}", plainly(expected))
    }
}

/// What serde and the parser expect, in plain words.
fn plainly(expected: &str) -> &str {
    match expected {
        "mapping start" => "a mapping (KEY: VALUE)",
        "sequence start" => "a list, such as [a, b]",
        "string scalar" | "scalar" => "one value",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number",
        "f32" | "f64" => "a number",
        "bool" | "boolean" | "a boolean" => "true or false",
        other => other,
    }
}

impl MessageFormatter for YamlMessages<'_> {
    fn localizer(&self) -> &dyn Localizer {
        self
    }

    fn format_message<'a>(&self, error: &'a Error) -> Cow<'a, str> {
        Cow::Owned(match error {
            Error::SerdeUnknownField { field, expected, .. } => {
                format!("unknown key `{field}`{}", suggestion(field, expected))
            }
            Error::SerdeMissingField { field, .. } => format!("the key `{field}` is missing"),
            Error::SerdeUnknownVariant { variant, expected, .. } => {
                self.mismatch(&format!("`{variant}`"), &format!("one of {}", expected.join(", ")))
            }
            Error::SerdeInvalidType { unexpected, expected, .. }
            | Error::SerdeInvalidValue { unexpected, expected, .. } => self.mismatch(unexpected, expected),
            Error::Unexpected { expected, .. } => format!("must be {}{}", plainly(expected), self.found(error)),
            Error::InvalidScalar { ty, .. } => format!("must be {}{}", plainly(ty), self.found(error)),
            Error::DuplicateMappingKey { key: Some(key), .. } => format!("`{key}` is given twice"),
            Error::DuplicateMappingKey { .. } => "a key is given twice".to_owned(),
            Error::MultipleDocuments { .. } => "only one document is read; remove `---`".to_owned(),
            error => return UserMessageFormatter.format_message(error),
        })
    }
}

impl Localizer for YamlMessages<'_> {
    fn attach_location<'a>(&self, message: Cow<'a, str>, at: Location) -> Cow<'a, str> {
        match at == Location::UNKNOWN {
            true => message,
            false => Cow::Owned(format!("line {} column {}: {message}", at.line(), at.column())),
        }
    }
}

/// The hint after an unknown name: `: did you mean ...?`, or the known names where they are few.
pub fn suggestion(name: &str, known: &[&str]) -> String {
    let measured = known
        .iter()
        .map(|other| (strsim::normalized_damerau_levenshtein(name, other), other))
        .filter(|(measure, _)| *measure >= SIMILAR);
    let meant = measured.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, name)| name);
    let all = (1..=LISTED).contains(&known.len()).then(|| known.join(", "));
    match (meant, all) {
        (Some(meant), Some(all)) => format!(": did you mean `{meant}`? There are {all}"),
        (Some(meant), None) => format!(": did you mean `{meant}`?"),
        (None, Some(all)) => format!("; there are {all}"),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, Default, PartialEq, serde::Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct SampleFile {
        interval: u32,
        limit: u32,
    }

    #[test]
    fn a_misspelt_key_names_the_near_one_and_another_key_all() {
        let error = |text: &str| yaml::<SampleFile>(text).unwrap_err();
        let near = error("limit: 1\nintervall: 5\n");
        assert!(
            near.contains("line 2") && near.contains("unknown key `intervall`: did you mean `interval`?"),
            "{near}"
        );
        let far = error("colour: 1\n");
        assert!(far.contains("unknown key `colour`; there are interval, limit"), "{far}");
        assert!(error("interval: soon\n").contains("line 1"));
    }

    #[test]
    fn a_key_given_twice_and_a_second_document_are_named() {
        for (text, expected) in [
            ("limit: 1\ninterval: 5\nlimit: 2\n", "line 3 column 1: `limit` is given twice"),
            ("limit: 1\n---\n", "line 2 column 4: only one document is read; remove `---`"),
        ] {
            let error = yaml::<SampleFile>(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn secrets_are_not_quoted() {
        let text = "interval: 1\n# hidden\nlimt: 2\n";
        assert!(
            secret_yaml::<SampleFile>(text).unwrap_err().starts_with("line 3 column 1: unknown key `limt`: did you")
        );
        for text in ["limit: hidden", "limit: [hidden]", "limit: 1\nlimit: hidden", "limit: [hidden", "hidden"] {
            let error = secret_yaml::<SampleFile>(text).unwrap_err();
            assert!(error.starts_with("line ") && !error.contains("hidden"), "{error}");
        }
    }

    #[test]
    fn an_error_is_one_line_with_what_was_found_and_what_is_accepted() {
        for (text, expected) in [
            ("limit: many\n", "line 1 column 8: must be a whole number, not `many`"),
            ("interval: {a: 1}\n", "line 1 column 11: must be one value, not `{a: 1}`"),
            ("- limit\n", "line 1 column 1: must be a mapping (KEY: VALUE), not `- limit`"),
            // The text is no YAML, whatever the key.
            ("a: [1\n", "line 1 column 4: unclosed bracket '['"),
            ("health: 1\n", "line 1 column 1: unknown key `health`; there are interval, limit"),
        ] {
            assert_eq!(yaml::<SampleFile>(text), Err(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn comments_alone_are_nothing() {
        for text in ["", "\n", "# nothing yet\n"] {
            assert_eq!(yaml::<SampleFile>(text), Ok(None), "{text:?}");
        }
        assert_eq!(yaml::<BTreeMap<String, u32>>("a: 1\n").unwrap().unwrap()["a"], 1);
    }
}
