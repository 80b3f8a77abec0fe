//! Checks the dependencies between the modules against those that ARCHITECTURE.md draws.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each module with the modules that it may name.
const ARROWS: [(&str, &[&str]); 29] = [
    ("model", &[]),
    ("attribution", &["model"]),
    ("health", &["model"]),
    ("preference", &["model"]),
    ("history", &["model"]),
    ("backoff", &[]),
    ("clock", &["model"]),
    ("files", &["model"]),
    ("input", &[]),
    ("wire", &[]),
    ("kubelet", &["attribution", "backoff", "clock", "files", "input", "model", "tasks", "wire"]),
    ("hardware", &["backoff", "clock", "model"]),
    ("plugin", &["attribution", "backoff", "clock", "files", "input", "model", "preference", "tasks", "wire"]),
    ("processes", &["clock", "files", "model", "tasks"]),
    ("governance", &["model", "processes"]),
    ("api", &["condition", "history", "model"]),
    ("client", &["api", "condition", "model", "terminal"]),
    (
        "doctor",
        &["api", "client", "clock", "hardware", "kubelet", "model", "plugin", "processes", "governance", "terminal"],
    ),
    ("condition", &["model"]),
    ("metrics", &["model", "wire"]),
    ("terminal", &[]),
    ("tasks", &[]),
    ("journal", &["clock", "files", "input", "model", "terminal"]),
    ("web", &["api", "clock", "files", "history", "input", "metrics", "model", "tasks"]),
    ("simulation", &["clock", "files", "hardware", "model", "wire"]),
    (
        "agent",
        &[
            "attribution",
            "client",
            "clock",
            "condition",
            "doctor",
            "files",
            "hardware",
            "health",
            "journal",
            "kubelet",
            "metrics",
            "model",
            "plugin",
            "processes",
            "governance",
            "simulation",
            "tasks",
            "web",
        ],
    ),
    ("top", &["api", "client", "clock", "model", "terminal"]),
    (
        "cli",
        &["agent", "api", "client", "clock", "condition", "input", "journal", "metrics", "model", "terminal", "top"],
    ),
    ("lib", &[]),
];

/// Other libraries, and the only modules that may use them.
const LIBRARIES: [(&str, &[&str]); 12] = [
    (
        "tokio",
        &[
            "agent",
            "cli",
            "client",
            "clock",
            "doctor",
            "hardware",
            "kubelet",
            "plugin",
            "processes",
            "simulation",
            "tasks",
            "top",
            "web",
            "wire",
        ],
    ),
    ("tonic", &["kubelet", "plugin", "simulation", "wire"]),
    ("nvml_wrapper_sys", &["hardware"]),
    ("axum", &["web"]),
    ("rustls", &["client", "web"]),
    ("tokio_rustls", &["client", "web"]),
    ("ring", &["web"]),
    ("bcrypt", &["web"]),
    ("hyper", &["client", "web"]),
    ("ratatui", &["top"]),
    ("rusqlite", &["journal"]),
    ("clap", &["agent", "cli"]),
];

/// They read no files, clocks or environment.
const PURE_MODULES: [&str; 9] =
    ["backoff", "model", "attribution", "health", "preference", "history", "condition", "input", "terminal"];
const PURE_MODULES_REFUSE: [&str; 7] =
    ["std::fs", "std::net", "std::env", "std::thread", "Instant::now", "SystemTime", "tracing::"];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("src is there") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Module → file → text without comments.
fn modules() -> BTreeMap<String, BTreeMap<PathBuf, String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![];
    sources(&root, &mut files);
    let mut modules: BTreeMap<String, BTreeMap<PathBuf, String>> = BTreeMap::new();
    for file in files {
        let inside = file.strip_prefix(&root).expect("under src");
        // The tests of a module may use more.
        if inside.components().any(|part| Path::new(part.as_os_str()).file_stem().is_some_and(|stem| stem == "tests")) {
            continue;
        }
        let first = inside.components().next().expect("not empty");
        let module = Path::new(first.as_os_str()).with_extension("").to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).expect("readable");
        let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        modules.entry(module).or_default().insert(inside.to_owned(), code.join("\n"));
    }
    modules.remove("main");
    modules
}

/// Every `word` in `prefix word`, also inside `use crate::{a, b}`.
fn named_after(text: &str, prefix: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String {
        text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
    };
    let mut names = BTreeSet::new();
    for (position, _) in text.match_indices(prefix) {
        let rest = &text[position + prefix.len()..];
        match rest.strip_prefix('{') {
            None => {
                names.insert(word(rest));
            }
            Some(group) => {
                let (mut depth, mut start) = (0, true);
                for (offset, letter) in group.char_indices() {
                    match letter {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        letter if start && !letter.is_whitespace() => {
                            names.insert(word(&group[offset..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    names
}

#[test]
fn modules_name_only_the_modules_they_may() {
    let allowed = BTreeMap::from(ARROWS);
    let mut wrong = vec![];
    for (module, files) in modules() {
        let allowed =
            allowed.get(module.as_str()).unwrap_or_else(|| panic!("a new module, {module}: add its dependencies"));
        for (file, text) in files {
            for name in named_after(&text, "crate::") {
                if name != module && allowed.iter().all(|other| *other != name) {
                    wrong.push(format!("{} names crate::{name}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn libraries_stay_in_their_modules() {
    let mut wrong = vec![];
    for (module, files) in modules() {
        for (file, text) in files {
            for (library, modules) in LIBRARIES {
                let named = uses(&text, library);
                if named && modules.iter().all(|allowed| *allowed != module) {
                    wrong.push(format!("{} uses {library}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Whether the text contains `library::` as a separate word.
fn uses(text: &str, library: &str) -> bool {
    let is_inside = |letter: char| letter.is_alphanumeric() || letter == '_';
    let path = format!("{library}::");
    text.match_indices(&path).any(|(position, _)| !text[..position].chars().next_back().is_some_and(is_inside))
}

#[test]
fn the_pure_modules_do_no_io_and_have_no_clock() {
    let mut wrong = vec![];
    for (module, files) in modules() {
        if !PURE_MODULES.contains(&module.as_str()) {
            continue;
        }
        for (file, text) in files {
            for word in PURE_MODULES_REFUSE {
                if text.contains(word) {
                    wrong.push(format!("{} has {word}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn unsafe_code_is_in_hardware_nvml_only() {
    let mut wrong = vec![];
    for files in modules().into_values() {
        for (file, text) in files {
            if (text.contains("unsafe {") || text.contains("unsafe fn")) && !file.starts_with("hardware/nvml") {
                wrong.push(file);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn groups_of_imports_are_read() {
    let text = "use crate::{model::{A, B}, web};\nlet x = crate::kubelet::run();";
    let names: Vec<String> = named_after(text, "crate::").into_iter().collect();
    assert_eq!(names, ["kubelet", "model", "web"]);
    assert!(uses("use tonic::Status;", "tonic") && !uses("Monotonic::new(x)", "tonic"));
}
