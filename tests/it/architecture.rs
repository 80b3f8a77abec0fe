//! Checks the dependencies between the modules against those that ARCHITECTURE.md draws.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each module with the modules whose items it may name, at their own path or as another module's re-export.
const ARROWS: [(&str, &str); 19] = [
    ("domain", "input words"),
    ("backoff", ""),
    ("clock", "domain"),
    ("files", "domain"),
    ("input", "words"),
    ("wire", ""),
    ("hardware", "backoff clock domain tasks words"),
    ("kubelet", "backoff clock domain files input tasks wire words"),
    ("processes", "clock domain files tasks"),
    ("plugin", "backoff clock domain files input kubelet tasks wire words"),
    ("journal", "clock domain files input tasks terminal"),
    ("serve", "clock domain files input tasks words"),
    ("commands", "agent clock domain files hardware input journal kubelet plugin processes serve tasks terminal words"),
    ("terminal", ""),
    ("tasks", ""),
    ("words", ""),
    ("simulation", "clock domain files hardware wire"),
    ("agent", "clock domain files hardware input journal kubelet plugin processes serve simulation tasks words"),
    ("lib", ""),
];

/// The parts of `plugin`: each uses only those before it.
const PLUGIN_PARTS: [&str; 8] = ["hash", "inputs", "config", "offer", "host", "status", "allocate", "registration"];

/// Other libraries, and the only modules that may use them.
const LIBRARIES: [(&str, &str); 16] = [
    ("tokio", "agent clock commands hardware journal kubelet plugin processes serve simulation tasks wire"),
    ("tonic", "kubelet plugin simulation wire"),
    ("nvml_wrapper", "hardware"),
    ("nvml_wrapper_sys", "hardware"),
    ("axum", "serve"),
    ("prometheus_client", "serve"),
    ("rustls", "commands serve"),
    ("tokio_rustls", "serve"),
    ("hyper_rustls", "commands"),
    ("hyperlocal", "commands"),
    ("ring", "serve"),
    ("bcrypt", "serve"),
    ("hyper", "commands serve"),
    ("crossterm", "commands"),
    ("rusqlite", "journal"),
    ("clap", "agent commands"),
];

/// They read no files, clocks or environment.
const PURE_MODULES: &str = "backoff domain input terminal words";
const PURE_MODULES_REFUSE: [&str; 7] =
    ["std::fs", "std::net", "std::env", "std::thread", "Instant::now", "SystemTime", "tracing::"];

/// A file of a module, without comments.
struct Source {
    module: String,
    file: PathBuf,
    text: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = vec![];
    let mut directories = vec![root.clone()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let file = path.strip_prefix(&root).unwrap().with_extension("");
            // The tests of a module may use more.
            if file.ends_with("tests") || file.ends_with("test_data") || file.ends_with("main") {
                continue;
            }
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
                let module = file.iter().next().unwrap().to_string_lossy().into_owned();
                found.push(Source { module, file, text: code.join("\n") });
            }
        }
    }
    found
}

/// Each `word::word` (or `word`) in `prefix…`, also inside `prefix{a::b, c::{d, e as f}}`.
fn named_after(text: &str, prefix: &str) -> BTreeSet<(String, String)> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let word = |text: &str| text.chars().take_while(|letter| is_word(*letter)).collect::<String>();
    let mut names = BTreeSet::new();
    for (position, _) in text.match_indices(prefix) {
        for path in branches(&text[position + prefix.len()..]) {
            let first = word(path);
            match path[first.len()..].strip_prefix("::") {
                Some(rest) => names.extend(branches(rest).into_iter().map(|rest| (first.clone(), word(rest)))),
                None => drop(names.insert((first, String::new()))),
            }
        }
    }
    names
}

/// What is in the braces that the text begins with, by comma; else the text.
fn branches(text: &str) -> Vec<&str> {
    let Some(group) = text.strip_prefix('{') else { return vec![text] };
    let (mut depth, mut start, mut found) = (0, 0, vec![]);
    for (place, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            ',' if depth == 0 => found.push(group[std::mem::replace(&mut start, place + 1)..place].trim()),
            '}' if depth == 0 => {
                found.push(group[start..place].trim());
                break;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    found.retain(|branch| !branch.is_empty());
    found
}

/// By module and name: the module that the re-exported item is of.
fn re_exports(sources: &[Source]) -> BTreeMap<(String, String), String> {
    let mut found = BTreeMap::new();
    for Source { module, text, .. } in sources {
        for statement in text.split("pub use crate::").skip(1).map(|rest| rest.split(';').next().unwrap()) {
            let (owner, items) = statement.split_once("::").unwrap();
            for item in items.split([',', '{', '}']) {
                let name = item.rsplit([' ', ':']).find(|word| !word.is_empty()).unwrap_or_default();
                found.insert((module.clone(), name.trim().to_owned()), owner.to_owned());
            }
        }
    }
    found
}

fn has(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|one| one == word)
}

#[test]
fn each_part_of_the_plugin_uses_only_those_before_it() {
    for (index, part) in PLUGIN_PARTS.iter().enumerate() {
        for Source { file, text, .. } in sources() {
            if file.with_extension("").starts_with(Path::new("plugin").join(part)) {
                let later = PLUGIN_PARTS[index + 1..].iter().find(|other| text.contains(&format!("plugin::{other}::")));
                assert_eq!(later, None, "{}", file.display());
            }
        }
    }
}

#[test]
fn modules_name_only_the_modules_they_may() {
    let (allowed, sources) = (BTreeMap::from(ARROWS), sources());
    let re_exports = re_exports(&sources);
    let mut wrong = vec![];
    for Source { module, file, text } in &sources {
        let allowed = allowed.get(module.as_str()).unwrap_or_else(|| panic!("{module} is new: add its dependencies"));
        for named in named_after(text, "crate::") {
            let owner = re_exports.get(&named).unwrap_or(&named.0);
            for other in [owner, &named.0] {
                if other != module && !has(allowed, other) && other != "test_data" {
                    wrong.push(format!("{} names crate::{}::{} of {other}", file.display(), named.0, named.1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn libraries_io_and_unsafe_code_stay_in_their_modules() {
    let mut wrong = vec![];
    for Source { module, file, text } in sources() {
        for (library, modules) in LIBRARIES {
            if uses(&text, library) && !has(modules, &module) {
                wrong.push(format!("{} uses {library}", file.display()));
            }
        }
        for word in PURE_MODULES_REFUSE.iter().filter(|_| has(PURE_MODULES, &module)) {
            if text.contains(word) {
                wrong.push(format!("{} has {word}", file.display()));
            }
        }
        if (text.contains("unsafe {") || text.contains("unsafe fn")) && !file.starts_with("hardware/nvml") {
            wrong.push(format!("{} has unsafe code", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A struct that derived `Serialize` would add each new field to the public JSON: `serve::api` lists the fields instead.
#[test]
fn no_domain_struct_is_public_json_by_itself() {
    // The first is generic, the second a string in JSON; the others are the journal's and those of `usage`.
    const WHOLE: [&str; 4] = ["Stamped", "DeviceId", "HoldingCounters", "Cost"];
    let mut whole = vec![];
    for Source { file, text, .. } in sources() {
        if file.starts_with("domain/model") || file.starts_with("domain/history") {
            for (derived, rest) in text.split("#[derive(").skip(1).filter_map(|item| item.split_once(")]")) {
                let head = rest.split(['{', ';']).next().unwrap_or_default();
                let name =
                    head.split_once("pub struct ").map(|(_, name)| name.trim()).filter(|name| !name.contains('('));
                whole.extend(name.filter(|_| derived.contains("Serialize")).map(|name| name.replace("<T>", "")));
            }
        }
    }
    whole.sort_by_key(|name| WHOLE.iter().position(|known| known == name));
    assert_eq!(whole, WHOLE, "list the public fields in src/serve/api/node.rs instead of deriving Serialize");
}

/// Whether the text contains `library::` as a separate word.
fn uses(text: &str, library: &str) -> bool {
    let is_inside = |letter: char| letter.is_alphanumeric() || letter == '_';
    let path = format!("{library}::");
    text.match_indices(&path).any(|(position, _)| !text[..position].chars().next_back().is_some_and(is_inside))
}

#[test]
fn imports_and_re_exports_are_read() {
    let text = "use crate::{model::{A, B as C}, web};\nlet x = crate::kubelet::run();";
    let names: Vec<_> = named_after(text, "crate::").into_iter().collect();
    let expected = [("kubelet", "run"), ("model", "A"), ("model", "B"), ("web", "")];
    assert_eq!(names, expected.map(|(module, name)| (module.to_owned(), name.to_owned())));
    let text =
        "pub use crate::health::{Config as HealthConfig, self_test::Mark};\npub use crate::web::Limits;".to_owned();
    let owners = re_exports(&[Source { module: "agent".into(), file: PathBuf::new(), text }]);
    let owner = |name: &str| owners.get(&("agent".to_owned(), name.to_owned())).map(String::as_str);
    assert_eq!([owner("HealthConfig"), owner("Mark"), owner("Limits")], [Some("health"), Some("health"), Some("web")]);
    assert!(uses("use tonic::Status;", "tonic") && !uses("Monotonic::new(x)", "tonic"));
}
