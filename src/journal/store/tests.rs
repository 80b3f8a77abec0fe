use super::*;
use crate::domain::model::HoldingCounters;
use crate::journal::allocation_record::JournalDevice;

const BOUNDS: Bounds = Bounds { bytes: 4 << 20, age: Duration::from_secs(1000) };

fn record(id: u64, ended: Option<f64>) -> AllocationRecord {
    AllocationRecord {
        id,
        namespace: "team".into(),
        pod: format!("pod-{}", id % 3).into(),
        container: "main".into(),
        device: JournalDevice {
            gpu_uuid: "GPU-1".into(),
            model: Some("a model's name".into()),
            ..JournalDevice::default()
        },
        began: id as f64,
        seen: ended.unwrap_or(id as f64 + 1.0),
        ended,
        counters: HoldingCounters { busy_seconds: Some(0.1 + id as f64), ..HoldingCounters::default() },
        ..AllocationRecord::default()
    }
}

fn all(store: &Store) -> Vec<AllocationRecord> {
    store.records(&Query { limit: usize::MAX, ..Query::all() }).unwrap()
}

#[test]
fn records_are_read_again_and_later_versions_replace_earlier_ones() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(FILE);
    let mut store = Store::open(&file, BOUNDS).unwrap();
    store.write(&[record(1, None), record(2, None)]).unwrap();
    store.write(&[record(1, Some(7.5))]).unwrap();
    drop(store);
    let mut store = Store::open(&file, BOUNDS).unwrap();
    assert_eq!(all(&store), [record(1, Some(7.5)), record(2, None)]);
    assert_eq!(store.open_records().unwrap().1, 2);
    store.write(&[AllocationRecord { replaces: Some(2), ..record(1, Some(8.0)) }]).unwrap();
    assert_eq!(all(&store), [record(1, Some(8.0))]);
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
fn a_query_selects_by_time_pod_and_key() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(&directory.path().join(FILE), BOUNDS).unwrap();
    store.write(&(1..=40).map(|id| record(id, Some(100.0 + id as f64))).collect::<Vec<_>>()).unwrap();
    store.write(&[record(41, None)]).unwrap();
    let ids = |query: Query| store.records(&query).unwrap().iter().map(|record| record.id).collect::<Vec<_>>();
    assert_eq!(ids(Query { limit: 3, after: 7, ..Query::all() }), [8, 9, 10]);
    assert_eq!(ids(Query { since: 139.0, ..Query::all() }), [39, 40, 41], "and what is held");
    assert_eq!(ids(Query { until: 2.0, ..Query::all() }), [1, 2]);
    let pod = Query { namespace: Some("team".into()), pod: Some("pod-1".into()), after: 35, ..Query::all() };
    assert_eq!(ids(pod), [37, 40]);
    assert_eq!(ids(Query { namespace: Some("none".into()), ..Query::all() }), [0_u64; 0]);
    assert_eq!(ids(Query { after: u64::MAX, ..Query::all() }), [0_u64; 0]);
}

#[test]
fn old_ended_holdings_are_removed_and_open_ones_stay() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open(&directory.path().join(FILE), BOUNDS).unwrap();
    store.write(&[record(1, None), record(2, Some(10.0)), record(3, Some(500.0))]).unwrap();
    store.prune(1100.0).unwrap();
    assert_eq!(all(&store), [record(1, None), record(3, Some(500.0))]);
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
    assert_eq!(kept.first(), Some(&record(1, None)), "open holdings stay");
    let ids: Vec<u64> = kept.iter().map(|record| record.id).filter(|id| *id > 1).collect();
    let first = ids[0];
    assert!(first > 2 && ids == (first..2 + 60 * 400).collect::<Vec<_>>(), "only the oldest are removed");
    drop(store);
    // The limit is half of that now.
    let less = Bounds { bytes: 2 << 20, ..BOUNDS };
    let mut store = Store::open(&file, less).unwrap();
    store.prune(0.0).unwrap();
    assert!(size() <= less.bytes, "{}", size());
    assert_eq!(all(&store).first(), Some(&record(1, None)));
    store.write(&[record(90_000, Some(90_000.0))]).unwrap();
}

#[test]
fn what_is_no_sound_journal_is_unusable() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(FILE);
    let problem = || match Store::open(&file, BOUNDS) {
        Err(StoreError::Unusable(problem)) => problem,
        other => panic!("{other:?}"),
    };
    let set = |statement: &str| Connection::open(&file).unwrap().execute_batch(statement).unwrap();
    Store::open(&file, BOUNDS).unwrap().write(&[record(1, None)]).unwrap();
    set("PRAGMA ignore_check_constraints = TRUE; UPDATE holding SET record = substr(record, 2)");
    assert!(problem().contains("CHECK constraint"), "a record that is no JSON");
    set("PRAGMA user_version = 1");
    assert_eq!(problem(), "its format is 1; this podmeter uses 2");
    set("PRAGMA application_id = 1");
    assert_eq!(problem(), "it is the database of another program");
    std::fs::write(&file, "not a database".repeat(100)).unwrap();
    assert_eq!(problem(), "file is not a database");
}
