//! A page of metrics as a scraper reads it: Prometheus text 0.0.4 or OpenMetrics 1.0.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Characters of a line that an error shows.
const SHOWN: usize = 120;

/// The samples of a page, in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page<'a> {
    /// By family: `counter`, `gauge`, …
    pub types: BTreeMap<&'a str, &'a str>,
    pub samples: Vec<Sample<'a>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'a> {
    pub name: &'a str,
    pub labels: Vec<(&'a str, Cow<'a, str>)>,
    pub value: f64,
}

impl Sample<'_> {
    /// An empty label is an absent one.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        let label = self.labels.iter().find(|(label, _)| *label == name);
        label.map(|(_, value)| &**value).filter(|value| !value.is_empty())
    }
}

impl<'a> Page<'a> {
    /// `Err`: the first thing wrong with it, with its line.
    pub fn parse(text: &'a str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("it is empty".to_owned());
        }
        // OpenMetrics needs no line feed at its end.
        if !text.ends_with('\n') && !text.ends_with("\n# EOF") {
            return Err("it does not end in a line feed: it is truncated".to_owned());
        }
        let (mut page, mut series) = (Self::default(), BTreeSet::new());
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = |problem: &str| format!("line {}: {problem}: {}", number + 1, shortened(line));
            if let Some(comment) = line.strip_prefix('#') {
                let mut words = comment.split_whitespace();
                if words.next() == Some("TYPE") {
                    let typed = words.next().zip(words.next());
                    let is_new = typed.is_some_and(|(name, kind)| page.types.insert(name, kind).is_none());
                    if !is_new {
                        return Err(wrong("a TYPE line is repeated or has no name and type"));
                    }
                }
                continue;
            }
            let (identity, sample) = sample(line).map_err(wrong)?;
            if !series.insert(identity) {
                return Err(wrong("this series is duplicated"));
            }
            page.samples.push(sample);
        }
        Ok(page)
    }
}

/// The text of the name with the labels, and the sample. Timestamps and exemplars are not read.
fn sample(line: &str) -> Result<(&str, Sample<'_>), &'static str> {
    const NOT_A_SAMPLE: &str = "this is not a sample";
    let end = line.find(|letter: char| letter == '{' || letter.is_ascii_whitespace()).ok_or(NOT_A_SAMPLE)?;
    let (name, rest) = (&line[..end], line[end..].trim_start());
    if !is_name(name) {
        return Err(NOT_A_SAMPLE);
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest).ok_or(NOT_A_SAMPLE)?,
        None => (vec![], rest),
    };
    let identity = line[..line.len() - rest.len()].trim_end();
    let value = rest.split_ascii_whitespace().next().ok_or(NOT_A_SAMPLE)?;
    let value = value.parse().map_err(|_| "its value is not a number")?;
    Ok((identity, Sample { name, labels, value }))
}

type Labels<'a> = Vec<(&'a str, Cow<'a, str>)>;

/// The labels after `{`, and what follows `}`.
fn labels(mut text: &str) -> Option<(Labels<'_>, &str)> {
    let mut labels = vec![];
    loop {
        text = text.trim_start();
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once('=')?;
        let rest = rest.trim_start().strip_prefix('"')?;
        let end = end_of_quoted(rest)?;
        let name = name.trim_end();
        if !is_name(name) {
            return None;
        }
        labels.push((name, unescaped(&rest[..end])));
        text = rest[end + 1..].trim_start();
        text = match text.strip_prefix(',') {
            Some(rest) => rest,
            None if text.starts_with('}') => text,
            None => return None,
        };
    }
}

fn end_of_quoted(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let (mut plain, mut letters) = (String::with_capacity(text.len()), text.chars());
    while let Some(letter) = letters.next() {
        match (letter, (letter == '\\').then(|| letters.next()).flatten()) {
            (_, Some('n')) => plain.push('\n'),
            (_, Some(other)) => plain.push(other),
            (letter, None) => plain.push(letter),
        }
    }
    Cow::Owned(plain)
}

fn is_name(text: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    text.starts_with(|first: char| !first.is_ascii_digit()) && text.chars().all(is_letter)
}

fn shortened(line: &str) -> String {
    line.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_as_prometheus_would() {
        let text = "# HELP a_info Build.\n# TYPE a_info gauge\n\na_info{version=\"1\"} 1\n# TYPE x histogram\n\
                    x_bucket{le=\"+Inf\",a=\"} \\\" {\\n\\\\\",} 3 # {trace=\"a\"} 1\nx_sum \tNaN 17\nx_count { le = \"1\" } +Inf\n# EOF\n";
        let page = Page::parse(text).unwrap();
        assert_eq!(page.types, [("a_info", "gauge"), ("x", "histogram")].into());
        let shown: Vec<(&str, f64)> = page.samples.iter().map(|sample| (sample.name, sample.value)).collect();
        assert_eq!(shown[..2], [("a_info", 1.0), ("x_bucket", 3.0)]);
        assert!(shown[2].1.is_nan() && shown[3].1 == f64::INFINITY);
        assert_eq!(page.samples[1].label("a"), Some("} \" {\n\\"));
        assert_eq!((page.samples[3].label("le"), page.samples[0].label("le")), (Some("1"), None));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, part) in [
            ("x 1", "truncated"),
            ("", "it is empty"),
            ("x 1\n# E", "truncated"),
            ("x 1\n<html>\n", "line 2: this is not a sample"),
            ("x{a=\"b\" 1\n", "not a sample"),
            ("x{a=b} 1\n", "not a sample"),
            ("x{a=\"b\"c=\"d\"} 1\n", "not a sample"),
            ("x\n", "not a sample"),
            ("x \n", "not a sample"),
            ("1x 1\n", "not a sample"),
            ("x one\n", "not a number"),
            ("x 1\nx 2\n", "line 2: this series is duplicated"),
            ("# TYPE x gauge\n# TYPE x gauge\n", "repeated"),
            ("# TYPE x\n", "no name and type"),
        ] {
            let problem = Page::parse(text).expect_err(text);
            assert!(problem.contains(part), "{text:?}: {problem}");
        }
    }

    proptest::proptest! {
        #[test]
        fn anything_is_survived(text in "(?s).{0,200}") {
            let _ = Page::parse(&(text + "\n"));
        }
    }
}
