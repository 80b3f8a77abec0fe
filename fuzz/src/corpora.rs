//! Replays every corpus through the function that its fuzzer runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::TARGETS;
use crate::simulation::Random;

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

/// Each input of the corpora changed in a few places, the same ones in every run: what libFuzzer would begin with.
/// `FUZZ_MUTATIONS` is the number for each target.
#[test]
fn changed_inputs_break_no_promise() {
    let count: u64 = std::env::var("FUZZ_MUTATIONS").map_or(300, |count| count.parse().expect("a number"));
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for (name, target) in TARGETS {
        let folder = fs::read_dir(corpora.join(name)).expect("a corpus").map(|entry| entry.expect("readable").path());
        let files: BTreeSet<_> = folder.collect();
        let inputs: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).expect("readable")).collect();
        let mut random = Random::seeded(1);
        for _ in 0..count {
            let input = changed(&inputs, &mut random);
            let outcome = std::panic::catch_unwind(|| target(&input));
            assert!(outcome.is_ok(), "{name} breaks on {:?}", input.escape_ascii().to_string());
        }
    }
}

fn changed(inputs: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    const ODD: [u8; 10] = [0, 1, 0x7f, 0x80, 0xff, b'\n', b':', b'0', b'-', b'*'];
    let mut input = inputs[random.below(inputs.len())].clone();
    for _ in 0..=random.below(6) {
        let at = random.below(input.len());
        let end = (at + 1 + random.below(16)).min(input.len());
        match random.below(6) {
            0 if at < input.len() => input[at] = ODD[random.below(ODD.len())],
            1 if at < input.len() => input[at] ^= 1 << random.below(8),
            2 => drop(input.drain(at..end)),
            3 => input.insert(at, ODD[random.below(ODD.len())]),
            4 => {
                let again = input[at..end].to_vec();
                input.splice(at..at, again);
            }
            _ => {
                let other = &inputs[random.below(inputs.len())];
                let from = random.below(other.len());
                let to = (from + random.below(64)).min(other.len());
                input.splice(at..at, other[from..to].iter().copied());
            }
        }
    }
    input
}
