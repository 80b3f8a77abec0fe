use promql_parser::parser::{Expr, parse};
use proptest::prelude::*;

use super::{NEW, OLD, POD, show};
use crate::promql::locate::locate;
use crate::promql::parsing::{MAX_OPERATORS, parsed};
use crate::promql::template::fill;
use crate::promql::tree::{Kind, Node};
use crate::promql::{Context, rewrite};
use std::collections::BTreeSet;

/// Expressions of random shape over names of both generations and others.
fn expression() -> impl Strategy<Value = String> {
    let selector = prop_oneof![
        Just("DCGM_FI_DEV_GPU_UTIL"),
        Just("DCGM_FI_DEV_FB_USED{Hostname=\"a\", gpu=~\"$gpu\"}"),
        Just("DCGM_FI_DEV_FB_FREE {modelName=\"A100\",} offset 5m"),
        Just("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
        Just("{__name__=\"DCGM_FI_DEV_SM_CLOCK_HERTZ\"} @ start()"),
        Just("DCGM_FI_DEV_POWER_USAGE{pod!=\"\"}"),
        Just("up{job=\"x\"}"),
    ]
    .prop_map(str::to_owned);
    selector.prop_recursive(5, 24, 3, |inner| {
        let binary = (inner.clone(), 0..OPERATORS.len(), inner.clone());
        prop_oneof![
            binary.prop_map(|(left, operator, right)| format!("{left} {} {right}", OPERATORS[operator])),
            (inner.clone(), 0..WRAPPERS.len()).prop_map(|(inner, wrapper)| WRAPPERS[wrapper].replace("X", &inner)),
        ]
    })
}

const OPERATORS: [&str; 12] = [
    "+",
    "- # minus\n",
    "*",
    "/ on (Hostname)",
    "% ignoring (gpu, UUID)",
    "^",
    "> bool",
    "== on (UUID) group_left (modelName)",
    "and",
    "or on (gpu)",
    "unless",
    "* 1024 /",
];
const WRAPPERS: [&str; 12] = [
    "(X)",
    "-(X)",
    "sum by (Hostname, gpu) (X)",
    "avg(X) without (UUID)",
    "topk(3, X)",
    "max_over_time((X)[1h:$__interval])",
    "label_replace(X, \"node\", \"$1\", \"Hostname\", \"(.+)\")",
    "clamp_max(X, 5)",
    "(X) > 80",
    "(X) / 1024 / 1024",
    "100 * (X)",
    "count by (exported_pod) (X)",
];

/// Every range of the tree has the text of its node.
fn check_ranges(text: &str, node: &Node) {
    let source = &text[node.range.clone()];
    match &node.kind {
        Kind::Selector(selector) => {
            assert!(parse(source).is_ok(), "{source}");
            if let Some(name) = &selector.name {
                assert_eq!(text[name.range.clone()], name.name);
            }
            for matcher in &selector.matchers {
                let written = &text[matcher.range.clone()];
                let again = parse(&format!("x{{{written}}}"));
                if matcher.label != matcher.value && matcher.matcher.name != "__name__" {
                    let Ok(Expr::VectorSelector(again)) = again else { panic!("{written}") };
                    assert_eq!(again.matchers.matchers, std::slice::from_ref(&matcher.matcher));
                }
            }
        }
        Kind::Paren(inner) | Kind::Unary(inner) | Kind::Subquery(inner) => {
            check_ranges(text, inner);
        }
        Kind::Call { name, arguments } => {
            assert!(source.starts_with(name.as_str()) && source.ends_with(')'));
            arguments.iter().for_each(|argument| check_ranges(text, argument));
        }
        Kind::Aggregate { grouping, operand, .. } => {
            for label in grouping.iter().flat_map(|list| &list.labels) {
                assert_eq!(text[label.range.clone()], label.name);
            }
            check_ranges(text, operand);
        }
        Kind::Binary(binary) => {
            assert!(binary.left.range.end <= binary.operator.start && binary.operator.end <= binary.right.range.start);
            for label in binary.matching.iter().flat_map(|list| &list.labels) {
                assert_eq!(text[label.range.clone()], label.name);
            }
            check_ranges(text, &binary.left);
            check_ranges(text, &binary.right);
        }
        Kind::Number(value) => assert_eq!(source.parse::<f64>().ok(), Some(*value)),
        Kind::Text(_) => assert!(source.starts_with('"')),
    }
}

proptest! {
    #[test]
    fn ranges_read_as_the_tree_says(input in expression()) {
        let filled = fill(&input);
        if let Ok((tree, tokens)) = parsed(&filled, MAX_OPERATORS) {
            let node = locate(&filled.text, &tokens, &tree).expect("the tree fits the tokens");
            check_ranges(&filled.text, &node);
        }
    }

    #[test]
    fn a_result_is_stable_or_the_input(input in expression(), target in prop_oneof![Just(NEW), Just(OLD), Just(POD)], labels in any::<bool>()) {
        let labels_read = if labels { ["modelName".to_owned(), "pod".to_owned()].into() } else { BTreeSet::new() };
        let context = Context { labels_read, ..Context::new(target) };
        if rewrite(&input, &context).is_ok() {
            show(&input, &Context { labels_read: BTreeSet::new(), ..context.clone() });
            let rewritten = rewrite(&input, &context).expect("as before");
            prop_assert!(rewritten.left.iter().all(|left| left.reason != "the rewritten expression could not be verified"), "{:?}", rewritten.left);
        }
    }

    #[test]
    fn no_text_makes_it_panic(input in ".{0,60}", prefix in "[-+(\\[{\"'`$]{0,6}") {
        let _ = rewrite(&format!("{prefix}DCGM_FI_DEV_GPU_UTIL{input}"), &Context::new(POD));
        let _ = rewrite(&format!("{input}{{DCGM{prefix}"), &Context::new(NEW));
    }

    #[test]
    fn no_tokens_make_it_panic(parts in prop::collection::vec(0..FRAGMENTS.len(), 0..20)) {
        let input: String = parts.into_iter().map(|part| FRAGMENTS[part]).collect::<Vec<_>>().join(" ");
        let _ = rewrite(&input, &Context::new(POD));
    }
}

const FRAGMENTS: [&str; 30] = [
    "DCGM_FI_DEV_GPU_UTIL",
    "{",
    "}",
    "gpu",
    "=",
    "\"x\"",
    "=~",
    "(",
    ")",
    "sum",
    "by",
    "on",
    "[5m]",
    "[",
    "]",
    "1e400",
    "offset",
    "@",
    "-",
    "+",
    "*",
    "/",
    "${x}",
    "$y",
    "[[z]]",
    "é",
    "`",
    "rate",
    ",",
    "inf",
];
