use std::collections::BTreeSet;

/// A page of metrics in text 0.0.4 that makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    pub bytes: usize,
    pub families: usize,
    pub series: usize,
}

/// What every page of ours has.
const OURS: &str = "podmeter_build_info";

/// `Err`: the first thing wrong with it, with its line.
pub fn check(text: &str) -> Result<Page, String> {
    if !text.ends_with('\n') {
        return Err("it does not end in a line feed: it is truncated".to_owned());
    }
    let (mut families, mut series) = (BTreeSet::new(), BTreeSet::new());
    let mut is_ours = false;
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let wrong = |problem: &str| Err(format!("line {}: {problem}: {}", number + 1, shortened(line)));
        if let Some(comment) = line.strip_prefix('#') {
            let mut words = comment.split_whitespace();
            if words.next() == Some("TYPE") && !words.next().is_some_and(|name| families.insert(name)) {
                return wrong("a TYPE line is repeated or has no name");
            }
            continue;
        }
        let Some((name, rest)) = sample(line) else { return wrong("this is not a sample") };
        if !rest.split(' ').next().is_some_and(is_number) {
            return wrong("its value is not a number");
        }
        is_ours |= name.starts_with(OURS);
        if !series.insert(name) {
            return wrong("this series is duplicated");
        }
    }
    if !is_ours {
        return Err(format!("it has no {OURS}: another program listens there"));
    }
    Ok(Page { bytes: text.len(), families: families.len(), series: series.len() })
}

/// The name with its labels, and what follows.
fn sample(line: &str) -> Option<(&str, &str)> {
    let end = match line.find('{') {
        Some(open) => open + labels(&line[open..])?,
        None => line.find(' ')?,
    };
    let (series, rest) = line.split_at(end);
    let name = series.split('{').next()?;
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let valid = name.starts_with(|first: char| !first.is_ascii_digit()) && name.chars().all(is_name);
    valid.then(|| Some((series, rest.strip_prefix(' ')?))).flatten()
}

/// Where `{…}` ends; a brace within quotes is text.
fn labels(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (position, letter) in text.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '}' if !quoted => return Some(position + 1),
            _ => {}
        }
    }
    None
}

fn is_number(text: &str) -> bool {
    matches!(text, "+Inf" | "-Inf" | "NaN") || text.parse::<f64>().is_ok_and(f64::is_finite)
}

fn shortened(line: &str) -> String {
    line.chars().take(120).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_as_prometheus_would() {
        let page = "# HELP podmeter_build_info Build.\n# TYPE podmeter_build_info gauge\n\
                    podmeter_build_info{version=\"1\"} 1\n# TYPE x histogram\nx_bucket{le=\"+Inf\",a=\"} \\\" {\"} 3\nx_sum NaN 17\n";
        assert_eq!(check(page), Ok(Page { bytes: page.len(), families: 2, series: 3 }));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let info = "podmeter_build_info 1\n";
        for (text, part) in [
            (format!("{info}x 1"), "truncated"),
            ("up 1\n".to_owned(), "another program"),
            (format!("{info}<html>\n"), "line 2: this is not a sample"),
            (format!("{info}x{{a=\"b\" 1\n"), "not a sample"),
            (format!("{info}x\n"), "not a sample"),
            (format!("{info}x one\n"), "not a number"),
            (format!("{info}x 1\nx 2\n"), "line 3: this series is duplicated"),
            (format!("# TYPE x gauge\n# TYPE x gauge\n{info}"), "repeated"),
            (String::new(), "truncated"),
        ] {
            let problem = check(&text).expect_err(&text);
            assert!(problem.contains(part), "{text:?}: {problem}");
        }
    }

    proptest::proptest! {
        #[test]
        fn anything_is_survived(text in "(?s).{0,200}") {
            let _ = check(&text);
        }
    }
}
