//! Holds the arrows between the rooms as ARCHITECTURE.md draws them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Room → the rooms it may name.
const ARROWS: [(&str, &[&str]); 26] = [
    ("model", &[]),
    ("attribution", &["model"]),
    ("health", &["model"]),
    ("preference", &["model"]),
    ("history", &["model"]),
    ("clock", &["model"]),
    ("wire", &[]),
    ("kubelet", &["attribution", "clock", "model", "tasks", "wire"]),
    ("hardware", &["clock", "model", "threads"]),
    ("plugin", &["attribution", "clock", "model", "preference", "tasks", "wire"]),
    ("processes", &["clock", "model", "tasks"]),
    ("governance", &["model", "processes"]),
    ("client", &["terminal"]),
    ("doctor", &["client", "clock", "hardware", "kubelet", "model", "plugin", "processes", "governance", "terminal"]),
    ("metrics", &["model"]),
    ("terminal", &[]),
    ("tasks", &[]),
    ("threads", &[]),
    ("journal", &["clock", "model", "terminal", "threads"]),
    ("web", &["clock", "history", "metrics", "model", "tasks"]),
    ("simulation", &["clock", "hardware", "model", "wire"]),
    (
        "agent",
        &[
            "attribution",
            "client",
            "clock",
            "doctor",
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
            "threads",
            "web",
        ],
    ),
    ("top", &["client", "clock", "model", "terminal"]),
    ("cli", &["agent", "client", "clock", "journal", "metrics", "model", "top"]),
    (
        "fuzzing",
        &[
            "attribution",
            "cli",
            "client",
            "hardware",
            "journal",
            "kubelet",
            "model",
            "plugin",
            "processes",
            "top",
            "web",
            "wire",
        ],
    ),
    ("lib", &[]),
];

/// Words of other libraries, and the only rooms that may speak them.
const LIBRARIES: [(&str, &[&str]); 15] = [
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
            "threads",
            "top",
            "web",
        ],
    ),
    ("tonic", &["kubelet", "plugin", "simulation", "wire"]),
    ("nvml_wrapper", &["hardware"]),
    ("nvml_wrapper_sys", &["hardware"]),
    // In `web` its tests alone, which decode what was served.
    ("prometheus_client", &["metrics", "web"]),
    ("axum", &["web"]),
    ("rustls", &["web"]),
    ("tokio_rustls", &["web"]),
    ("ring", &["web"]),
    ("bcrypt", &["web"]),
    ("hyper", &["client", "web"]),
    ("ratatui", &["top"]),
    ("rusqlite", &["journal"]),
    ("clap", &["agent", "cli"]),
    ("anyhow", &["cli"]),
];

/// The ground floor decides; it does not read files, clocks or environments.
const GROUND_FLOOR_REFUSES: [&str; 7] =
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

/// Room → file → text without comments.
fn rooms() -> BTreeMap<String, BTreeMap<PathBuf, String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![];
    sources(&root, &mut files);
    let mut rooms: BTreeMap<String, BTreeMap<PathBuf, String>> = BTreeMap::new();
    for file in files {
        let inside = file.strip_prefix(&root).expect("under src");
        // A room's tests may look at it with other eyes.
        if inside.components().any(|part| Path::new(part.as_os_str()).file_stem().is_some_and(|stem| stem == "tests")) {
            continue;
        }
        let first = inside.components().next().expect("not empty");
        let room = Path::new(first.as_os_str()).with_extension("").to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).expect("readable");
        let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        rooms.entry(room).or_default().insert(inside.to_owned(), code.join("\n"));
    }
    rooms.remove("main");
    rooms
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
fn rooms_name_only_the_rooms_they_may() {
    let allowed = BTreeMap::from(ARROWS);
    let mut wrong = vec![];
    for (room, files) in rooms() {
        let allowed = allowed.get(room.as_str()).unwrap_or_else(|| panic!("a new room, {room}: draw its arrows"));
        for (file, text) in files {
            for name in named_after(&text, "crate::") {
                if name != room && allowed.iter().all(|other| *other != name) {
                    wrong.push(format!("{} names crate::{name}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn libraries_stay_in_their_rooms() {
    let mut wrong = vec![];
    for (room, files) in rooms() {
        for (file, text) in files {
            for (library, rooms) in LIBRARIES {
                let named = speaks(&text, library);
                if named && rooms.iter().all(|allowed| *allowed != room) {
                    wrong.push(format!("{} speaks {library}", file.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Whether `library::` stands there as a word of its own.
fn speaks(text: &str, library: &str) -> bool {
    let is_inside = |letter: char| letter.is_alphanumeric() || letter == '_';
    let path = format!("{library}::");
    text.match_indices(&path).any(|(position, _)| !text[..position].chars().next_back().is_some_and(is_inside))
}

#[test]
fn the_ground_floor_does_no_io_and_has_no_clock() {
    let mut wrong = vec![];
    for (room, files) in rooms() {
        if !["model", "attribution", "health", "preference", "history", "terminal"].contains(&room.as_str()) {
            continue;
        }
        for (file, text) in files {
            for word in GROUND_FLOOR_REFUSES {
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
    for files in rooms().into_values() {
        for (file, text) in files {
            if (text.contains("unsafe {") || text.contains("unsafe fn")) && !file.starts_with("hardware/nvml") {
                wrong.push(file);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_reader_of_this_test_reads_groups_too() {
    let text = "use crate::{model::{A, B}, web};\nlet x = crate::kubelet::run();";
    let names: Vec<String> = named_after(text, "crate::").into_iter().collect();
    assert_eq!(names, ["kubelet", "model", "web"]);
    assert!(speaks("use tonic::Status;", "tonic") && !speaks("Monotonic::new(x)", "tonic"));
}
