use std::io::{Seek as _, SeekFrom, Write as _};
use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::journal::allocation_record::Device;
use crate::model::Figures;

const BOUNDS: Bounds = Bounds { bytes: 4 << 20, age: Duration::from_secs(1000) };

fn record(id: u64, ended: Option<f64>) -> AllocationRecord {
    AllocationRecord {
        id,
        namespace: "team".into(),
        pod: format!("pod-{}", id % 3).into(),
        container: "main".into(),
        device: Device { gpu_uuid: "GPU-1".into(), model: Some("a model's name".into()), ..Device::default() },
        began: id as f64,
        seen: ended.unwrap_or(id as f64 + 1.0),
        ended,
        figures: Figures { busy_seconds: Some(0.1 + id as f64), ..Figures::default() },
        ..AllocationRecord::default()
    }
}

fn all(store: &Store) -> Vec<AllocationRecord> {
    let (mut records, mut after) = (vec![], Some((0.0, 0)));
    while let Some(from) = after {
        let ended = store.ended_records((0.0, f64::MAX), (None, None), from, 1_000_000).unwrap();
        records.extend(ended.records);
        after = ended.stopped_at;
    }
    let (open, _) = store.open_records().unwrap();
    records.into_iter().chain(open.records).collect()
}

#[test]
fn records_are_read_again_and_later_versions_replace_earlier_ones() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(FILE);
    let mut store = Store::open(&file, BOUNDS).unwrap();
    store.write(&[record(1, None), record(2, None)]).unwrap();
    store.write(&[record(1, Some(7.5))]).unwrap();
    drop(store);
    let store = Store::open(&file, BOUNDS).unwrap();
    assert_eq!(all(&store), [record(1, Some(7.5)), record(2, None)]);
    assert_eq!(store.open_records().unwrap().1, 2);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_linked_directory_is_followed_and_a_linked_file_is_not() {
    use std::os::unix::fs::symlink;
    let directory = tempfile::tempdir().unwrap();
    let (real, link) = (directory.path().join("real"), directory.path().join("link"));
    std::fs::create_dir(&real).unwrap();
    symlink(&real, &link).unwrap();
    Store::open(&link.join(FILE), BOUNDS).unwrap().write(&[record(1, None)]).unwrap();
    assert_eq!(all(&Store::open_to_read(&link.join(FILE)).unwrap()).len(), 1);
    let other = directory.path().join("other.sqlite");
    symlink(real.join(FILE), &other).unwrap();
    assert!(Store::open(&other, BOUNDS).is_err() && Store::open_to_read(&other).is_err());
}

#[test]
fn pages_have_neither_gaps_nor_overlaps() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(&directory.path().join(FILE), BOUNDS).unwrap();
    // Several with the same end.
    let records: Vec<AllocationRecord> = (1..=40).map(|id| record(id, Some(100.0 + (id / 7) as f64))).collect();
    store.write(&records).unwrap();
    let (mut after, mut read) = ((0.0, 0), vec![]);
    loop {
        let page = store.ended_records((0.0, f64::MAX), (Some("team"), None), after, 6).unwrap().records;
        let Some(last) = page.last() else { break };
        after = (last.ended.unwrap(), last.id);
        read.extend(page);
    }
    assert_eq!(read, records);
    let one = store.ended_records((0.0, f64::MAX), (Some("team"), Some("pod-1")), (0.0, 0), 100).unwrap().records;
    assert!(!one.is_empty() && one.iter().all(|record| &*record.pod == "pod-1"));
    let late = store.ended_records((105.0, f64::MAX), (None, None), (0.0, 0), 100).unwrap().records;
    assert!(!late.is_empty() && late.iter().all(|record| record.ended >= Some(105.0)));
    // A query without matches stops too.
    store
        .write(&(41..=40 + READ_AT_ONCE as u64).map(|id| record(id, Some(1000.0 + id as f64))).collect::<Vec<_>>())
        .unwrap();
    let none = store.ended_records((0.0, f64::MAX), (Some("none"), None), (0.0, 0), 100).unwrap();
    let stopped_at = none.stopped_at.unwrap();
    assert_eq!((none.records.len(), stopped_at.1), (0, READ_AT_ONCE as u64));
    let rest = store.ended_records((0.0, f64::MAX), (Some("none"), None), stopped_at, 100).unwrap();
    assert_eq!((rest.records.len(), rest.stopped_at), (0, None));
    let early = store.ended_records((0.0, 5.0), (None, None), (0.0, 0), 100).unwrap().records;
    assert_eq!(early.len(), 5, "those that began by then");
}

#[test]
fn old_ended_holdings_are_removed_and_open_ones_stay() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(&directory.path().join(FILE), BOUNDS).unwrap();
    store.write(&[record(1, None), record(2, Some(10.0)), record(3, Some(500.0))]).unwrap();
    assert_eq!(store.prune(1100.0).unwrap(), 1);
    assert_eq!(all(&store), [record(3, Some(500.0)), record(1, None)]);
}

#[test]
fn the_file_stays_within_its_limit_and_the_oldest_are_removed_first() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(FILE);
    let mut store = Store::open(&file, BOUNDS).unwrap();
    store.write(&[record(1, None)]).unwrap();
    let size = || std::fs::metadata(&file).unwrap().len();
    let mut largest = 0;
    for batch in 0..60_u64 {
        let records: Vec<AllocationRecord> =
            (0..400).map(|number| 2 + batch * 400 + number).map(|id| record(id, Some(id as f64))).collect();
        store.write(&records).unwrap();
        largest = largest.max(size());
    }
    assert!(largest <= BOUNDS.bytes && largest > BOUNDS.bytes / 2, "{largest}");
    let kept = all(&store);
    assert_eq!(kept.last(), Some(&record(1, None)), "open holdings stay");
    let ids: Vec<u64> = kept.iter().map(|record| record.id).filter(|id| *id > 1).collect();
    let first = ids[0];
    assert!(first > 2 && ids == (first..2 + 60 * 400).collect::<Vec<_>>(), "only the oldest are removed");
    drop(store);
    // Now half of it is allowed.
    let less = Bounds { bytes: 2 << 20, ..BOUNDS };
    let mut store = Store::open(&file, less).unwrap();
    store.prune(0.0).unwrap();
    assert!(size() <= less.bytes, "{}", size());
    assert_eq!(all(&store).last(), Some(&record(1, None)));
    store.write(&[record(90_000, Some(90_000.0))]).unwrap();
}

#[test]
fn another_programs_database_and_a_newer_format_are_different_errors() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(FILE);
    drop(Store::open(&file, BOUNDS).unwrap());
    let set = |pragma: &str| Connection::open(&file).unwrap().execute_batch(pragma).unwrap();
    set("PRAGMA user_version = 2");
    assert!(matches!(Store::open(&file, BOUNDS), Err(StoreError::Newer(2))));
    set("PRAGMA application_id = 1");
    assert!(matches!(Store::open(&file, BOUNDS), Err(StoreError::Foreign)));
    std::fs::write(&file, "not a database".repeat(100)).unwrap();
    assert!(matches!(Store::open(&file, BOUNDS), Err(StoreError::Damaged(_))));
}

static FILLED: LazyLock<(Vec<u8>, Vec<AllocationRecord>)> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(FILE);
    let records = filled(&file);
    (std::fs::read(&file).unwrap(), records)
});

/// A file of 200 holdings, some rewritten.
fn filled(file: &Path) -> Vec<AllocationRecord> {
    let mut store = Store::open(file, BOUNDS).unwrap();
    for batch in 0..20_u64 {
        let records: Vec<AllocationRecord> = (1..=10).map(|number| record(batch * 10 + number, None)).collect();
        store.write(&records).unwrap();
        let ended: Vec<AllocationRecord> = records.iter().map(|one| record(one.id, Some(one.began + 5.0))).collect();
        store.write(&ended[..9]).unwrap();
    }
    all(&store)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Whatever a disk does to the file: it opens or is reported as damaged, and only what was written is read from it.
    #[test]
    fn damaged_records_are_never_returned(
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<[u8; 7]>()), 0..12),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(FILE);
        let (bytes, written) = &*FILLED;
        std::fs::write(&file, bytes).unwrap();
        let length = std::fs::metadata(&file).unwrap().len();
        let mut bytes = std::fs::File::options().write(true).open(&file).unwrap();
        for (place, garbage) in &hits {
            bytes.seek(SeekFrom::Start(place.index(length as usize) as u64)).unwrap();
            bytes.write_all(garbage).unwrap();
        }
        if let Some(cut) = cut {
            bytes.set_len(cut.index(length as usize) as u64).unwrap();
        }
        drop(bytes);
        let is_written = |record: &AllocationRecord| written.contains(record);
        match Store::open(&file, BOUNDS) {
            Ok(mut store) => {
                let ended = store.ended_records((0.0, f64::MAX), (None, None), (0.0, 0), 10_000);
                let open = store.open_records().map(|(open, _)| open);
                for loaded in [ended, open].into_iter().flatten() {
                    prop_assert!(loaded.records.iter().all(is_written));
                }
                // Damage that the check does not notice may be an error now, but not a panic.
                let _ = store.write(&[record(9999, Some(1.0))]);
                let _ = store.prune(0.0);
            }
            Err(StoreError::Failed(problem)) => prop_assert!(false, "damage is reported as another error: {problem}"),
            Err(_) => {}
        }
    }
}
