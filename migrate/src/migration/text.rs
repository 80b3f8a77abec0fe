//! Texts of PromQL without their grammar: selectors, matchers, and the difference of two expressions.

use std::ops::Range;

use similar::{Algorithm, DiffOp, capture_diff_slices};

use crate::files::Replacements;

/// The matchers of a text that is a selector and nothing else: `{…}`, or nothing.
pub fn selector_matchers(text: &str) -> Option<&str> {
    let text = text.trim();
    let name =
        text.find(|other: char| !other.is_ascii_alphanumeric() && !matches!(other, '_' | ':')).unwrap_or(text.len());
    let matchers = &text[name..];
    if matchers.is_empty() {
        return (name > 0).then_some(matchers);
    }
    let (end, _) = unquoted(matchers).find(|(_, character)| *character == '}')?;
    (matchers.starts_with('{') && end + 1 == matchers.len()).then_some(matchers)
}

/// The characters outside quotes.
fn unquoted(text: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut quote, mut escaped) = (None, false);
    text.char_indices().filter(move |(_, character)| {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(open) if *character == '\\' && open != '`' => escaped = true,
            Some(open) if *character == open => quote = None,
            Some(_) => {}
            None if matches!(character, '"' | '\'' | '`') => quote = Some(*character),
            None => return true,
        }
        false
    })
}

/// The labels of the matchers in `{…}`, with their bytes.
pub fn matcher_labels(matchers: &str) -> Vec<(Range<usize>, &str)> {
    let mut labels = vec![];
    let mut start = None;
    for (at, character) in unquoted(matchers) {
        if character.is_ascii_alphanumeric() || character == '_' {
            start.get_or_insert(at);
        } else if let Some(start) = start.take() {
            labels.push((start..at, &matchers[start..at]));
        }
    }
    labels
}

/// The replacements that make one text of the other, word by word.
pub fn differences(before: &str, after: &str) -> Replacements {
    let (old, new) = (tokens(before), tokens(after));
    if old.len() + new.len() > MOST_TOKENS {
        return vec![(0..before.len(), after.to_owned())];
    }
    let mut edits = Replacements::new();
    let (mut old, mut new) = (old.into_iter(), new.into_iter());
    let length = |tokens: &mut dyn Iterator<Item = &str>, count| tokens.take(count).map(str::len).sum::<usize>();
    let (mut old_at, mut new_at) = (0, 0);
    for op in capture_diff_slices(Algorithm::Myers, &tokens(before), &tokens(after)) {
        let removed = length(&mut old, op.old_range().len());
        let added = length(&mut new, op.new_range().len());
        let (range, text) = (old_at..old_at + removed, &after[new_at..new_at + added]);
        (old_at, new_at) = (range.end, new_at + added);
        if let DiffOp::Equal { .. } = op {
            continue;
        }
        match edits.last_mut() {
            Some((last, replacement)) if last.end == range.start => {
                last.end = range.end;
                replacement.push_str(text);
            }
            _ => edits.push((range, text.to_owned())),
        }
    }
    edits
}

/// Of two expressions together: with more, a comparison takes long, and one replacement does.
const MOST_TOKENS: usize = 20_000;

/// Words and single other characters.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = vec![];
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let word = |character: char| character.is_alphanumeric() || matches!(character, '_' | ':' | '.');
        let length = if word(first) { rest.find(|other| !word(other)).unwrap_or(rest.len()) } else { first.len_utf8() };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::files::replaced;

    #[test]
    fn selectors() {
        for (text, matchers) in [
            ("X", Some("")),
            (" X{a=\"}\", b=~'$c'} ", Some("{a=\"}\", b=~'$c'}")),
            ("{__name__=\"X\"}", Some("{__name__=\"X\"}")),
            ("X * 100", None),
            ("sum(X)", None),
            ("X{a=\"1\"}[5m]", None),
            ("X{a=\"1\"", None),
            ("", None),
        ] {
            assert_eq!(selector_matchers(text), matchers, "{text}");
        }
    }

    #[test]
    fn labels_of_matchers() {
        let labels: Vec<_> =
            matcher_labels("{a=\"b=\\\"c\", d!~'$e',f =~`g\\`}").into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["a", "d", "f"]);
        assert!(matcher_labels("{}").is_empty() && matcher_labels("").is_empty());
    }

    proptest! {
        #[test]
        fn differences_make_the_other_text(before in "[ab (){}\n]{0,20}", after in "[ab (){}\n]{0,20}") {
            prop_assert_eq!(replaced(&before, &differences(&before, &after)), after);
        }
    }
}
