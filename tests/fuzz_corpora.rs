//! Replays every corpus through the function that its fuzzer runs.

use std::fs;
use std::path::Path;

type Target = fn(&[u8]);

#[test]
fn every_corpus_holds() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let targets: [(&str, Target); 4] = [
        ("cgroup", podmeter::fuzzing::cgroup),
        ("device_id", podmeter::fuzzing::device_id),
        ("kmsg_line", podmeter::fuzzing::kmsg_line),
        ("mountinfo", podmeter::fuzzing::mountinfo),
    ];
    let folders = fs::read_dir(&corpora).expect("the corpora are there").count();
    assert_eq!(folders, targets.len(), "a corpus without a target here, or the other way round");
    for (name, target) in targets {
        let mut inputs = 0;
        for file in fs::read_dir(corpora.join(name)).expect("a corpus").map(|entry| entry.expect("readable").path()) {
            target(&fs::read(&file).expect("readable"));
            inputs += 1;
        }
        assert!(inputs > 10, "{name}: an empty corpus proves nothing");
    }
}
