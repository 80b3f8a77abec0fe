//! Patterns with `*`, `?` and `[…]`, for the names of models, profiles and files.

/// Whether all of `text` matches: `*` is any run of characters, `?` for one, `[a-c7]` and `[!0]` for one of a set.
/// A `[` that is never closed is literal.
#[must_use]
pub fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut position) = (0, 0);
    // The last star, and how far the text had been read when it was met: the one place to return to.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if at < pattern.len() && pattern[at] == '*' {
            star = Some((at, position));
            at += 1;
            continue;
        }
        if at == pattern.len() && position == text.len() {
            return true;
        }
        if at < pattern.len()
            && position < text.len()
            && let Some(width) = one(&pattern[at..], text[position])
        {
            at += width;
            position += 1;
            continue;
        }
        match star {
            Some((star_at, read)) if read < text.len() => {
                star = Some((star_at, read + 1));
                (at, position) = (star_at + 1, read + 1);
            }
            _ => return false,
        }
    }
}

/// What is wrong with a pattern that a person wrote.
pub fn check(pattern: &str) -> Result<(), &'static str> {
    if pattern.is_empty() {
        return Err("an empty pattern matches nothing");
    }
    let letters: Vec<char> = pattern.chars().collect();
    let mut at = 0;
    while at < letters.len() {
        at += match letters[at] {
            '[' => set_end(&letters[at..]).ok_or("a set that begins with [ ends with ]")? + 1,
            _ => 1,
        };
    }
    Ok(())
}

#[must_use]
pub fn has_wildcards(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// The length of the pattern's part that matches `letter`, if it does.
fn one(pattern: &[char], letter: char) -> Option<usize> {
    match pattern[0] {
        '?' => Some(1),
        '[' => {
            let Some(end) = set_end(pattern) else {
                return (letter == '[').then_some(1);
            };
            let negated = pattern[1] == '!' && end > 2;
            let set = &pattern[if negated { 2 } else { 1 }..end];
            (in_set(set, letter) != negated).then_some(end + 1)
        }
        plain => (plain == letter).then_some(1),
    }
}

/// Where the set at the start of the pattern ends.
fn set_end(pattern: &[char]) -> Option<usize> {
    pattern.iter().skip(2).position(|part| *part == ']').map(|place| place + 2)
}

fn in_set(mut set: &[char], letter: char) -> bool {
    while let [first, rest @ ..] = set {
        if let ['-', last, after @ ..] = rest {
            if (*first..=*last).contains(&letter) {
                return true;
            }
            set = after;
        } else {
            if *first == letter {
                return true;
            }
            set = rest;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_fit_whole_names() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "NVIDIA H100", true),
            ("NVIDIA H100*", "NVIDIA H100 80GB HBM3", true),
            ("H100", "NVIDIA H100", false),
            ("*H100*", "NVIDIA A100", false),
            ("1g.*", "1g.10gb", true),
            ("1g.*", "11g.10gb", false),
            ("uverbs?", "uverbs0", true),
            ("uverbs?", "uverbs10", false),
            ("uverbs[0-3]", "uverbs3", true),
            ("uverbs[0-3]", "uverbs4", false),
            ("uverbs[!0]", "uverbs0", false),
            ("uverbs[!0]", "uverbs1", true),
            ("a[", "a[", true),
            ("[]]", "]", true),
            ("", "", true),
            ("", "a", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*.*+*", "1g.10gb", false),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn patterns_that_match_nothing_are_found() {
        for (pattern, expected) in [
            ("", false),
            ("*", true),
            ("gpu-[0-3]", true),
            ("gpu-[0", false),
            ("[]]", true),
            ("a[", false),
            ("[a][b", false),
        ] {
            assert_eq!(check(pattern).is_ok(), expected, "{pattern:?}");
        }
    }

    fn slow(pattern: &[char], text: &[char]) -> bool {
        match pattern {
            [] => text.is_empty(),
            ['*', rest @ ..] => (0..=text.len()).any(|skip| slow(rest, &text[skip..])),
            ['?', rest @ ..] => !text.is_empty() && slow(rest, &text[1..]),
            [letter, rest @ ..] => text.first() == Some(letter) && slow(rest, &text[1..]),
        }
    }

    proptest! {
        #[test]
        fn stars_fit_as_the_slow_way_does(pattern in "[ab*?]{0,8}", text in "[ab]{0,8}") {
            let letters = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(fits(&pattern, &text), slow(&letters(&pattern), &letters(&text)));
        }

        #[test]
        fn any_pattern_ends(pattern in "\\PC{0,20}", text in "\\PC{0,20}") {
            let _ = fits(&pattern, &text);
        }
    }
}
