//! Replays every corpus through the function that its fuzzer runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use podmeter::fuzzing::TARGETS;

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("the folder is there").map(|entry| entry.expect("readable").path());
    entries.map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned()).collect()
}

#[test]
fn every_corpus_holds() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for (name, target) in TARGETS {
        let mut inputs = 0;
        for file in fs::read_dir(corpora.join(name)).expect("a corpus").map(|entry| entry.expect("readable").path()) {
            target(&fs::read(&file).expect("readable"));
            inputs += 1;
        }
        assert!(inputs > 10, "{name}: an empty corpus proves nothing");
    }
}

#[test]
fn every_target_has_a_program_and_a_corpus_and_no_other_is_there() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let expected: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&fuzz.join("corpus")), expected);
    assert_eq!(names(&fuzz.join("fuzz_targets")), expected);
    let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).expect("readable");
    for name in expected {
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name} is not in fuzz/Cargo.toml");
    }
}
