//! What people write: YAML files, names, sizes and switches.
//!
//! Inputs: a text. Outputs: its value, or what is wrong, with its line, and for a misspelt name the one that is meant. Does not
//! use: files, what a key is for.

mod size;
mod switch;

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_saphyr::{DefaultMessageFormatter, Error, MessageFormatter};

pub use size::Size;
pub use switch::SwitchOr;

/// A misspelt name is as similar as this to the one that is meant, by Jaro's measure; clap has the same limit for flags.
const SIMILAR: f64 = 0.7;
/// Known names that a message lists.
const LISTED: usize = 12;

/// `None`: nothing but comments.
pub fn yaml<T: DeserializeOwned>(text: &str) -> Result<Option<T>, String> {
    read(text).map_err(|error| error.render_with_formatter(&WithSuggestions))
}

/// As `yaml`, for files with secrets: an error does not quote the lines around it.
pub fn secret_yaml<T: DeserializeOwned>(text: &str) -> Result<Option<T>, String> {
    read(text).map_err(|error| error.without_snippet().render_with_formatter(&WithSuggestions))
}

fn read<T: DeserializeOwned>(text: &str) -> Result<Option<T>, Error> {
    // The parser rejects a document without content.
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(None);
    }
    serde_saphyr::from_str(text).map(Some)
}

struct WithSuggestions;

impl MessageFormatter for WithSuggestions {
    fn format_message<'a>(&self, error: &'a Error) -> Cow<'a, str> {
        match error {
            Error::SerdeUnknownField { field, expected, .. } => {
                Cow::Owned(format!("unknown key `{field}`{}", suggestion(field, expected)))
            }
            Error::DuplicateMappingKey { key: Some(key), .. } => Cow::Owned(format!("`{key}` is given twice")),
            Error::DuplicateMappingKey { .. } => Cow::Borrowed("a key is given twice"),
            Error::MultipleDocuments { .. } => Cow::Borrowed("only one document is read; remove `---`"),
            error => DefaultMessageFormatter.format_message(error),
        }
    }
}

/// What follows an unknown name: `: did you mean ...?`, and the known ones where they are few.
pub fn suggestion(name: &str, known: &[&str]) -> String {
    let measured =
        known.iter().map(|other| (strsim::jaro(name, other), other)).filter(|(measure, _)| *measure >= SIMILAR);
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
        assert!(yaml::<SampleFile>(text).unwrap_err().contains("hidden"));
        let error = secret_yaml::<SampleFile>(text).unwrap_err();
        assert!(
            error.contains("did you mean `limit`?") && error.contains("line 3") && !error.contains("hidden"),
            "{error}"
        );
    }

    #[test]
    fn comments_alone_are_nothing() {
        for text in ["", "\n", "# nothing yet\n"] {
            assert_eq!(yaml::<SampleFile>(text), Ok(None), "{text:?}");
        }
        assert_eq!(yaml::<BTreeMap<String, u32>>("a: 1\n").unwrap().unwrap()["a"], 1);
    }
}
