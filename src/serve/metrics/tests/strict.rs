//! A second opinion on the pages: a small, strict parser of text 0.0.4 and OpenMetrics independent of their
//! writer. It rejects what Prometheus would reject, and what OpenMetrics forbids.

use std::collections::{BTreeMap, BTreeSet};

type SampleKey = (String, Vec<(String, String)>);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Text,
    OpenMetrics,
}

pub(super) struct StrictPage {
    /// The values by name and sorted labels.
    pub samples: BTreeMap<SampleKey, f64>,
}

impl StrictPage {
    pub fn parse(page: &str, dialect: Dialect) -> Result<Self, String> {
        let mut lines: Vec<&str> = page.strip_suffix('\n').ok_or("no newline at the end")?.split('\n').collect();
        if dialect == Dialect::OpenMetrics && lines.pop() != Some("# EOF") {
            return Err("no # EOF at the end".into());
        }
        let mut state = State { dialect, family: None, seen: BTreeSet::new(), samples: BTreeMap::new() };
        for (number, line) in lines.iter().enumerate() {
            state.line(line).map_err(|problem| format!("line {}: {problem}: {line:?}", number + 1))?;
        }
        Ok(Self { samples: state.samples })
    }
}

struct State {
    dialect: Dialect,
    /// The name, and type and help if they were given.
    family: Option<(String, Option<String>, bool)>,
    seen: BTreeSet<String>,
    samples: BTreeMap<SampleKey, f64>,
}

impl State {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(rest) = line.strip_prefix("# ") {
            let (keyword, rest) = rest.split_once(' ').ok_or("bare comment")?;
            let (name, text) = rest.split_once(' ').ok_or("metadata without text")?;
            return self.metadata(keyword, name, text);
        }
        let (series, value) = series(line)?;
        self.check_name(&series)?;
        if value.is_nan() {
            return Err("not a number".into());
        }
        match self.samples.insert(series, value) {
            Some(_) => Err("series twice".into()),
            None => Ok(()),
        }
    }

    fn metadata(&mut self, keyword: &str, name: &str, text: &str) -> Result<(), String> {
        if self.family.as_ref().is_none_or(|(current, ..)| current != name) {
            if !self.seen.insert(name.to_owned()) {
                return Err("family in two places".into());
            }
            self.family = Some((name.to_owned(), None, false));
        }
        let (_, kind, help) = self.family.as_mut().expect("just set");
        match keyword {
            "TYPE" if kind.is_none() => *kind = Some(text.to_owned()),
            "HELP" if !*help => {
                *help = true;
                unescape(text, if self.dialect == Dialect::Text { "\\n" } else { "\\n\"" })?;
            }
            _ => return Err("metadata out of order, twice or unknown".into()),
        }
        Ok(())
    }

    fn check_name(&self, (name, labels): &SampleKey) -> Result<(), String> {
        let (family, kind, help) = self.family.as_ref().ok_or("sample without family")?;
        if !help {
            return Err("family without help".into());
        }
        let suffix = name.strip_prefix(family.as_str()).ok_or("sample of another family")?;
        let fits = match (kind.as_deref(), self.dialect) {
            (Some("gauge"), _) | (Some("counter"), Dialect::Text) => suffix.is_empty(),
            (Some("counter"), Dialect::OpenMetrics) => suffix == "_total",
            (Some("histogram"), _) => match suffix {
                "_bucket" => labels.iter().any(|(name, _)| name == "le"),
                "_sum" | "_count" => true,
                _ => false,
            },
            _ => false,
        };
        if fits { Ok(()) } else { Err("sample does not fit its type".into()) }
    }
}

fn series(line: &str) -> Result<(SampleKey, f64), String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    check_identifier(name, ":")?;
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, value) = rest.split_once("=\"").ok_or("label without value")?;
            check_identifier(label, "")?;
            let end = end_of_value(value)?;
            if labels.insert(label.to_owned(), unescape(&value[..end], "\\n\"")?).is_some() {
                return Err("label twice".into());
            }
            rest = &value[end + 1..];
            match rest.as_bytes().first() {
                Some(b',') => rest = &rest[1..],
                Some(b'}') => break,
                _ => return Err("no end of labels".into()),
            }
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').ok_or("no space before the value")?;
    let number = value.parse().map_err(|_| format!("{value:?} is no number"))?;
    Ok(((name.to_owned(), labels.into_iter().collect()), number))
}

fn check_identifier(name: &str, more: &str) -> Result<(), String> {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || more.contains(letter);
    if name.is_empty() || name.starts_with(|letter: char| letter.is_ascii_digit()) || !name.chars().all(allowed) {
        return Err(format!("{name:?} is no name"));
    }
    Ok(())
}

fn end_of_value(text: &str) -> Result<usize, String> {
    let mut escaped = false;
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Ok(index),
            _ => {}
        }
    }
    Err("label value without end".into())
}

fn unescape(text: &str, allowed: &str) -> Result<String, String> {
    let mut plain = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            plain.push(letter);
            continue;
        }
        match letters.next() {
            Some(escaped) if allowed.contains(escaped) => plain.push(if escaped == 'n' { '\n' } else { escaped }),
            other => return Err(format!("escape of {other:?}")),
        }
    }
    Ok(plain)
}

#[test]
fn it_refuses_broken_pages() {
    for (page, dialect) in [
        ("x 1", Dialect::Text),
        ("x 1\n", Dialect::Text),
        ("# HELP x X.\n# TYPE x gauge\nx 1\nx 1\n", Dialect::Text),
        ("# HELP x X.\n# TYPE x gauge\nx{a=\"b} 1\n", Dialect::Text),
        ("# HELP x X.\n# TYPE x gauge\nx{a=\"\\q\"} 1\n", Dialect::Text),
        ("# HELP x X.\n# TYPE x gauge\ny 1\n", Dialect::Text),
        ("# HELP x X.\n# TYPE x gauge\nx{a=\"1\"}1\n", Dialect::Text),
        ("# TYPE x gauge\n# HELP x X.\nx 1\n", Dialect::OpenMetrics),
        ("# TYPE x counter\n# HELP x X.\nx 1\n# EOF\n", Dialect::OpenMetrics),
    ] {
        assert!(StrictPage::parse(page, dialect).is_err(), "{page:?}");
    }
    assert!(StrictPage::parse("# TYPE x counter\n# HELP x X.\nx_total 1\n# EOF\n", Dialect::OpenMetrics).is_ok());
}
