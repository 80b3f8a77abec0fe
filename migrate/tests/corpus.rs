//! The corpus, rewritten in every direction: how much of it needs no person, and what is left. `UPDATE_GOLDEN=1 cargo test
//! -p podmeter-migrate --test corpus` writes `corpus/left.txt`. `scripts/check-migration` compares the values.
#![allow(clippy::unwrap_used, reason = "in a test an unwrap is an assertion")]
#![allow(clippy::disallowed_methods, reason = "the test starts the binary")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

struct Direction {
    name: &'static str,
    arguments: &'static [&'static str],
    /// Whether a file has names to rewrite.
    is_from: fn(&Path) -> bool,
    /// The share that must need no person.
    least: f64,
}

const DIRECTIONS: &[Direction] = &[
    Direction { name: "4.8 to 4.9", arguments: &["--to", "4.9"], is_from: |path| !is_new(path), least: 0.95 },
    Direction { name: "4.9 to 4.8", arguments: &["--to", "4.8"], is_from: is_new, least: 0.95 },
];

fn is_new(path: &Path) -> bool {
    path.file_name().unwrap().to_str().unwrap().contains("4.9")
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn files() -> Vec<PathBuf> {
    let folders = std::fs::read_dir(corpus()).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let files = folders.flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    let mut files: Vec<_> = files.collect();
    files.sort();
    files
}

fn migrate(arguments: &[&str], files: &[PathBuf]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_podmeter-migrate")).args(arguments).args(files).output().unwrap()
}

/// Expressions, and other places with DCGM's names, in the files of one direction.
struct Count {
    rewritten: usize,
    left: Vec<String>,
}

fn count(direction: &Direction) -> Count {
    let files: Vec<_> = files().into_iter().filter(|path| (direction.is_from)(path)).collect();
    let arguments = [direction.arguments, &["--gpu-util-ratio", "ratio", "-o", "json"]].concat();
    let output = migrate(&arguments, &files);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut count = Count { rewritten: 0, left: vec![] };
    for file in report["files"].as_array().unwrap() {
        let path = Path::new(file["file"].as_str().unwrap()).strip_prefix(corpus()).unwrap();
        let line = |left: &Value| {
            let [name, reason] = ["name", "reason"].map(|key| left[key].as_str().unwrap_or_default());
            format!("{}:{} {name}: {reason}", path.display(), left["line"])
        };
        for expression in file["expressions"].as_array().unwrap() {
            match expression["left"].as_array().unwrap().first() {
                Some(first) => count.left.push(line(first)),
                None => count.rewritten += usize::from(expression["before"] != expression["after"]),
            }
        }
        count.left.extend(file["left"].as_array().unwrap().iter().map(line));
    }
    count
}

#[test]
fn nearly_all_queries_are_rewritten_without_a_person() {
    let (mut text, mut rewritten, mut all) = (String::new(), 0, 0);
    let mut shares = vec![];
    for direction in DIRECTIONS {
        let count = count(direction);
        let total = count.rewritten + count.left.len();
        let share = count.rewritten as f64 / total as f64;
        writeln!(text, "== {}: {} of {total} rewritten, {:.1} %\n", direction.name, count.rewritten, 100.0 * share)
            .unwrap();
        count.left.iter().for_each(|line| writeln!(text, "{line}").unwrap());
        writeln!(text).unwrap();
        rewritten += count.rewritten;
        all += total;
        shares.push((direction, share));
    }
    writeln!(text, "All: {rewritten} of {all} rewritten, {:.1} %", 100.0 * rewritten as f64 / all as f64).unwrap();
    let golden = corpus().join("left.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &text).unwrap();
    }
    let command = "UPDATE_GOLDEN=1 cargo test -p podmeter-migrate --test corpus";
    assert_eq!(text, std::fs::read_to_string(&golden).unwrap_or_default(), "{}: {command}", golden.display());
    for (direction, share) in shares {
        assert!(share >= direction.least, "{}: {share}", direction.name);
    }
}

#[test]
fn a_second_run_finds_nothing_to_rewrite() {
    let directory = tempfile::tempdir().unwrap();
    let copies: Vec<_> = files()
        .iter()
        .map(|file| {
            let copy = directory.path().join(file.strip_prefix(corpus()).unwrap().to_str().unwrap().replace('/', "-"));
            std::fs::copy(file, &copy).unwrap();
            copy
        })
        .collect();
    for target in ["4.9", "4.8"] {
        let arguments = ["--to", target, "--gpu-util-ratio", "ratio"];
        let written = migrate(&[&arguments[..], &["--write"]].concat(), &copies);
        assert!(matches!(written.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&written.stderr));
        let texts = || copies.iter().map(|copy| std::fs::read_to_string(copy).unwrap()).collect::<Vec<_>>();
        let first = texts();
        migrate(&[&arguments[..], &["--write"]].concat(), &copies);
        assert_eq!(first, texts(), "to {target}");
    }
}
