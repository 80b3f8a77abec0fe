use proptest::prelude::*;

use super::*;

/// Replaces `before` by `after` in each scalar that has it.
fn edited(text: &str, before: &str, after: &str) -> Result<String, Error> {
    let file = File::parse("file", text.to_owned(), format_of(text))?;
    let mut edits = Edits::new();
    for root in &file.documents[0].roots {
        root.scalars(&mut |node, scalar| {
            let found: Vec<_> = scalar.text.match_indices(before).collect();
            if !found.is_empty() {
                let each = found.iter().map(|(at, _)| (*at..at + before.len(), after.to_owned())).collect();
                edits.insert((0, node.span.start), each);
            }
        });
    }
    file.splice(&edits)
}

#[track_caller]
fn check(text: &str, before: &str, after: &str, expected: &str) {
    assert_eq!(edited(text, before, after).expect("spliced"), expected);
}

#[test]
fn a_change_keeps_every_other_byte() {
    for text in [
        "a: OLD # comment\n",
        "# first\na:   OLD   \nb: 'x'\n",
        "a: 'OLD{x=\"it''s\"}'\n",
        "a: \"OLD{x=\\\"y\\\"} \\u00e9\"\n",
        "a: |\n  # a comment of PromQL\n  sum(\n    OLD\n  )\n\n\nb: 1\n",
        "a: |- # header\n  OLD\n  + OLD\n\n# comment\nb: |+\n    OLD\n\n\nc: 1",
        "a: >-\n  sum(\n    OLD\n  )\n  > 5\n\n  and OLD\nb: >2\n    OLD\n  OLD\n",
        "a: >\n\n  OLD\n\n    more\n\n  OLD\n",
        "a:\n  sum(OLD)\n  > 5\n\n  and OLD # comment\n",
        "a: 'sum(OLD)\n\n  OLD'\nb: \"sum(OLD)   \n  \\\n  OLD \\\n   x\"\n",
        "a: |\r\n  OLD\r\n  OLD\r\nb: OLD\r\n",
        "\u{feff}a: OLD\n",
        "%YAML 1.2\n---\na: OLD\n...\n---\nb: !!str OLD\n--- |\n OLD\n",
        "a: [OLD, \"OLD\", {b: OLD}]\n",
        "- OLD\n-\tOLD\n",
        "a: &x OLD\nb: {a: 1, \"b\": 'OLD'}\n",
        "a: |\n  OLD",
        "? a\n: OLD\n",
        "{\"a\" : [ \"OLD\", 1.50, \"\\u003eOLD\\/\" ],\n\t\"b\":null}\n",
        "\u{feff}{\"a\": \"OLD\"}",
    ] {
        for after in ["NEW", "(OLD * 100)", "A_LONGER_NAME{x=1}"] {
            if !(text.contains("[OLD,") && after.contains('{')) {
                check(text, "OLD", after, &text.replace("OLD", after));
            }
        }
    }
}

#[test]
fn a_value_that_its_style_cannot_hold_is_quoted() {
    check("a: OLD\n", "OLD", "{x: 1}", "a: '{x: 1}'\n");
    check("a: OLD # c\n", "OLD", "it's # 1", "a: 'it''s # 1' # c\n");
    check("a: [OLD, 1]\n", "OLD", "X{y=\"1\",z='2'}", "a: ['X{y=\"1\",z=''2''}', 1]\n");
    check("a: OLD\n", "OLD", "x\ny", "a: \"x\\ny\"\n");
    check("a: 'OLD'\n", "OLD", "it's", "a: 'it''s'\n");
    check("a: 'OLD'\n", "OLD", "x\ny", "a: \"x\\ny\"\n");
    check("a: \"OLD\"\n", "OLD", "\"x\"\n\\", "a: \"\\\"x\\\"\\n\\\\\"\n");
    check("a: |\n    OLD\n", "OLD", "x\ny", "a: |\n    x\n    y\n");
    check("a: >\n    z OLD\n", "OLD", "x\ny", "a: >\n    z x\n\n    y\n");
    check("a: |\r\n  OLD\r\n", "OLD", "x\ny", "a: |\r\n  x\r\n  y\r\n");
    check("[\"OLD\"]", "OLD", "\"x\"\n\u{1}", "[\"\\\"x\\\"\\n\\u0001\"]");
}

#[test]
fn a_change_may_take_line_breaks() {
    check("a: |\n    x OLD\n      y\n    z\n", "OLD\n", "1 ", "a: |\n    x 1   y\n    z\n");
    check("a: |\n    x OLD\n      y\n", "OLD\n  ", "1\n", "a: |\n    x 1\n    y\n");
    check("a: |\n    OLD\n\n    y\n", "OLD\n\n", "1\n  2\n3 ", "a: |\n    1\n      2\n    3 y\n");
    check("a: >\n    x\n    OLD\n    y\n", "OLD ", "1 ", "a: >\n    x\n    1 y\n");
    check("a: 'x\n  OLD\n\n  y'\n", "OLD\n", "1 ", "a: 'x\n  1 y'\n");
    check("a: x OLD\n  y\n", "OLD ", "1 ", "a: x 1 y\n");
    // Written as a whole, with keys behind it.
    for (block, written) in [
        (">-\n      x\n        OLD\n      y\n", "|-\n      x\n      y\n"),
        (">\n      x\n        OLD\n\n      y\n\n", "|\n      x\n      \n      y\n\n"),
        (">+2 # c\n      x\n        OLD\n      y\n\n    # d\n", "|+2 # c\n      x\n      y\n\n    # d\n"),
    ] {
        let rule = |block| format!("- rules:\n  - expr: {block}    for: 5m\n    labels: {{a: b}}\n");
        check(&rule(block), "\n  OLD", "", &rule(written));
    }
    // What a fold would drop is written otherwise.
    check("a: 'x OLD\n  y'\n", "OLD", "1 ", "a: \"x 1  y\"\n");
    check(
        "a > b: >-  # c\n    x OLD\n    y\n\n    z\nb: 1\n",
        " OLD",
        "\n\n\n   1",
        "a > b: |-  # c\n    x\n    \n    \n       1 y\n    z\nb: 1\n",
    );
}

#[test]
fn nothing_is_spliced_that_would_read_otherwise() {
    let error = edited("a: |\n  OLD\n", "OLD", "x\u{7}").expect_err("a control character");
    assert_eq!(error.to_string(), "file:2: the changed value cannot be written in this place; nothing was written");
    // The first line of a block scalar defines its indentation.
    let error = edited("a: |\n  OLD\n  b\n", "OLD", "   x").expect_err("other indentation");
    assert!(error.to_string().starts_with("file:2: the changed text reads otherwise than intended"), "{error}");
}

#[test]
fn errors_have_a_line() {
    for (text, message) in [
        ("a: 1\nb: [1\n", "file:2: not YAML: unclosed bracket"),
        ("a: 1\na: 2\n", "file:2: the key `a` stands twice"),
        ("a: *x\n", "file:1: not YAML: "),
        ("a:\n  b: {{ .Values.x }}\n", "file:2: a template ({{ … }}) in place of a value"),
        ("{{- if .Values.x }}\na: 1\n{{- end }}\n", "file:1: a template"),
        ("[1]: 2\n", "file:1: not JSON: Text cannot contain more than one JSON value"),
        ("- [1]: 2\n", "file:1: a mapping key that is no scalar"),
        ("{\"a\": 1,\n \"a\": 2}\n", "file:2: the key `a` stands twice"),
        ("{\"a\": 1,\n}\n", "file:1: not JSON: Trailing commas are not allowed (column 8)"),
        ("a: \"\\q\"\n", "file:1: not YAML: "),
    ] {
        let error = File::parse("file", text.into(), format_of(text)).expect_err(text).to_string();
        assert!(error.starts_with(message), "{text:?}: {error}");
    }
    for deep in ["[".repeat(100_000), format!("a: {}", "[".repeat(100_000)), "- ".repeat(100_000), "a:\n ".repeat(9)] {
        File::parse("file", deep.clone(), format_of(&deep)).expect_err("too deep or unfinished");
    }
}

#[test]
fn aliases_are_not_expanded() {
    let mut text = String::from("a0: &a0 [x, x]\n");
    for level in 1..100 {
        text += &format!("a{level}: &a{level} [*a{0}, *a{0}]\n", level - 1);
    }
    let file = File::parse("file", text, Format::Yaml).expect("parsed");
    let mut shared = 0;
    file.documents[0].roots[0].scalars(&mut |node, _| shared += usize::from(node.shared));
    assert_eq!(shared, 2);
}

#[test]
fn an_embedded_document_has_the_lines_of_the_file_around_it() {
    for (text, line) in [
        ("data:\n  x: |\n    {\n      \"a\": [\n        \"OLD\"\n    ]}\n", 5),
        ("data:\n  x: |\n    a:\n    # c\n    - >\n      OLD\n", 6),
        ("data:\n  x: \"a: 1\\n\\\n    b: OLD\\n\"\n", 3),
        ("{\"data\":\n{\"x\": \"{\\\"a\\\": \\\"OLD\\\"}\"}}", 2),
    ] {
        let mut file = File::parse("file", text.into(), format_of(text)).expect("parsed");
        let scalar = file.documents[0].roots[0].at(&["data", "x"]).expect("there").span.start;
        let embedded = file.embed(0, scalar).expect("embedded");
        let mut place = None;
        file.documents[embedded].roots[0].scalars(&mut |node, scalar| {
            place = scalar.text.find("OLD").map(|at| ((embedded, node.span.start), at)).or(place);
        });
        let (place, at) = place.expect("found");
        assert_eq!(file.line(place, at), line, "{text}");
        let edits = Edits::from([(place, vec![(at..at + 3, "\"NEW\"".to_owned())])]);
        let spliced = file.splice(&edits).expect("spliced");
        let quoted = match &text[..1] {
            "{" => r#"\\\"NEW\\\""#,
            _ if text.contains('{') => r#"\"NEW\""#,
            _ if text.contains("\\n") => r#"'\"NEW\"'"#,
            _ => "\"NEW\"",
        };
        assert_eq!(spliced, text.replace("OLD", quoted));
    }
}

#[test]
fn queries_are_paragraphs() {
    let text = "# one\n\n# two\nsum(\n  OLD # x\n)\r\n\r\n  OLD\n\n\n# end\n";
    let file = File::parse("file", text.into(), Format::Queries).expect("parsed");
    let texts: Vec<_> = file.documents[0].roots[0].items().iter().filter_map(Node::text).collect();
    assert_eq!(texts, ["sum(\n  OLD # x\n)", "OLD"]);
}

/// Texts made of what YAML and JSON are made of.
fn fragments() -> impl Strategy<Value = String> {
    let parts = vec![
        "a", "b: ", "- ", "\n", "  ", "    ", "\r\n", "'", "''", "\"", "\\n", "\\\n", "|", ">", "|-\n  ", ">+\n  ",
        "# c\n", "{", "}", "[", "]", ", ", ": ", "&x ", "*x", "---\n", "\t", "é", "1", "OLD", "\u{feff}", "? ",
        "!!str ", "\0", "\\u00e9", "{{",
    ];
    prop::collection::vec(prop::sample::select(parts), 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_text_panics(text in prop_oneof![fragments(), any::<String>()]) {
        for format in [Format::Yaml, Format::Json, Format::Queries] {
            let _ = File::parse("file", text.clone(), format);
        }
    }

    /// A value of several lines becomes any other of the same characters.
    #[test]
    fn every_style_takes_changes_across_lines(
        before in "[ab]([ab \n]{0,12}[ab])?", from in 0..12_usize, length in 0..12_usize, after in "[ab \n]{0,6}",
    ) {
        let indented = before.replace('\n', "\n  ");
        let folded = before.replace('\n', "\n\n  ");
        for text in [format!("k: |\n  {indented}\n"), format!("k: \"{folded}\"\n"), format!("k: >-\n  {folded}\n")] {
            // With a key behind it that is indented too, and changes.
            let text = format!("- {}\n  s: OLD\n", text.trim_end().replace('\n', "\n  "));
            let file = File::parse("file", text.clone(), Format::Yaml).expect("parsed");
            let [node, behind] = ["k", "s"].map(|key| file.documents[0].roots[0].items()[0].get(key).expect("there"));
            let value = node.text().expect("a scalar");
            let start = from.min(value.len());
            let range = start..(start + length).min(value.len());
            let intended = replaced(value, &[(range.clone(), after.clone())]);
            let edits = Edits::from([
                ((0, node.span.start), vec![(range, after.clone())]),
                ((0, behind.span.start), vec![(0..3, "NEW".to_owned())]),
            ]);
            // The lines of a block scalar cannot begin with a space, nor end with another number of line breaks.
            let block = !text.contains('"');
            let ends = |value: &str| value.len() - value.trim_end_matches('\n').len();
            if block && (intended.trim_matches('\n').starts_with(' ') || intended.trim() == "" || ends(&intended) != ends(value)) {
                let _ = file.splice(&edits);
                continue;
            }
            let spliced = file.splice(&edits).map_err(|error| TestCaseError::fail(format!("{text:?} {error}")))?;
            let file = File::parse("file", spliced, Format::Yaml).expect("parsed");
            let entry = &file.documents[0].roots[0].items()[0];
            prop_assert_eq!((entry.text_of("k"), entry.text_of("s")), (Some(intended.as_str()), Some("NEW")));
        }
    }

    /// Whatever is spliced reads as intended; `splice` itself compares, and refuses otherwise.
    #[test]
    fn a_change_of_any_text_is_exact_or_refused(text in fragments()) {
        if let Ok(after) = edited(&text, "OLD", "NEW{x=\"1\"}") {
            prop_assert_eq!(after.matches("NEW{").count(), text.matches("OLD").count());
        }
    }
}
