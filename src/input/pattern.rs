//! Patterns with `*`, `?` and `[…]`, for the names of models, profiles, nodes and files.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};

/// A pattern that must match the whole text: `*` is any run of characters, `?` one, `[a-c7]` and `[!0]` one of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(glob::Pattern);

impl Pattern {
    pub fn new(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("an empty pattern matches nothing".to_owned());
        }
        glob::Pattern::new(text).map(Self).map_err(|error| format!("{text:?} is no pattern: {error}"))
    }

    pub fn matches(&self, text: &str) -> bool {
        self.0.matches(text)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0.as_str())
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

pub fn has_wildcards(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_name_must_match() {
        for (pattern, text, expected) in [
            ("*", "NVIDIA H100", true),
            ("NVIDIA H100*", "NVIDIA H100 80GB HBM3", true),
            ("H100", "NVIDIA H100", false),
            ("*H100*", "NVIDIA A100", false),
            ("1g.*", "11g.10gb", false),
            ("uverbs?", "uverbs10", false),
            ("uverbs[0-3]", "uverbs3", true),
            ("uverbs[!0]", "uverbs0", false),
            ("*a/b", "x/a/b", true),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().matches(text), expected, "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn a_bad_pattern_is_refused_with_the_reason() {
        for (pattern, reason) in [("", "empty"), ("gpu-[0", "gpu-[0"), ("a**", "a**")] {
            let error = Pattern::new(pattern).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
