use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use tempfile::TempDir;

use podmeter::journal::{
    self, AllocationRecord, AllocationsResponse, Bounds, By, Cursor, Device, Ending, FILE, Query, Store, Usage, report,
};
use podmeter::model::{Figures, UnixSeconds};

const NOW: UnixSeconds = UnixSeconds(1_800_000_000.0);
const BOUNDS: Bounds = Bounds { bytes: 4 << 20, age: Duration::from_secs(4_000_000_000) };
/// Enough for an inner page above the leaves.
const HOLDINGS: u64 = 60;

/// The query string of `/api/v1/allocations`.
pub fn journal_query(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Query::parse(&text, NOW) {
        Ok(query) => {
            let again = Query::parse(&query.text(), NOW);
            assert_eq!(again.ok(), Some(query), "{text:?}");
        }
        Err(problem) => assert!(!problem.to_string().is_empty(), "{text:?}"),
    }
    assert!(Cursor::parse(&text).is_none_or(|cursor| cursor.0.is_finite()), "{text:?}");
}

/// What an agent answers to `podmeter usage`, in JSON.
pub fn journal_answer(bytes: &[u8]) {
    let Ok(answer) = serde_json::from_slice::<AllocationsResponse>(bytes) else { return };
    let records = &answer.allocations;
    for by in [By::Namespace, By::Pod, By::Device] {
        let usage = Usage::of(records, by, answer.since, answer.until);
        assert_eq!(usage.total.holdings, usage.rows.iter().map(|row| row.totals.holdings).sum::<u64>(), "{answer:?}");
        let lines = report::usage_table(&usage, by).lines().count();
        assert!(lines >= usage.rows.len() + 3, "{usage:?}");
        assert!(report::usage_csv(&usage, by).lines().count() > usage.rows.len(), "{usage:?}");
        serde_json::to_string(&usage).expect("strings and numbers");
    }
    for text in [report::holdings_table(records), report::holdings_csv(records)] {
        assert!(text.lines().count() > records.len(), "{answer:?}");
    }
    let written = serde_json::to_string(&answer).expect("strings and numbers");
    serde_json::from_str::<AllocationsResponse>(&written).expect("what was written can be read");
}

/// Changes to an intact file: a byte for how it is opened, then three bytes each for a place and its new value. The file
/// may end at the first place.
pub fn journal_file(bytes: &[u8]) {
    let Some((how, changes)) = bytes.split_first() else { return };
    let mut content = SOUND.0.clone();
    let place = |change: &[u8]| usize::from(u16::from_be_bytes([change[0], change[1]])) % SOUND.0.len();
    for change in changes.chunks_exact(3) {
        content[place(change)] = change[2];
    }
    if how & 1 == 1 && changes.len() >= 3 {
        content.truncate(place(changes));
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    fs::write(directory.path().join(FILE), content).expect("written");
    if how & 2 == 2 { reopen(&directory) } else { read_only(&directory) }
}

fn read_only(directory: &TempDir) {
    let query = Query { limit: 10, ..Query::all() };
    if let Ok(answer) = journal::read_directory(directory.path(), &query, NOW) {
        assert_written(&answer.allocations);
    }
}

/// As the agent does.
fn reopen(directory: &TempDir) {
    let file = directory.path().join(FILE);
    let Ok(mut store) = Store::open(&file, BOUNDS) else { return };
    let found = store.open_records().map(|(loaded, _)| loaded.records);
    assert_written(&found.unwrap_or_default());
    let _ = store.write(&[record(HOLDINGS + 1)]);
    let _ = store.prune(NOW.0);
}

/// Nothing is invented: what does not match its checksum is not returned.
fn assert_written(found: &[AllocationRecord]) {
    for record in found {
        assert!(SOUND.1.contains(record), "{record:?} was never written");
    }
}

static SOUND: LazyLock<(Vec<u8>, Vec<AllocationRecord>)> = LazyLock::new(|| {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file: PathBuf = directory.path().join(FILE);
    let records: Vec<AllocationRecord> = (1..=HOLDINGS).map(record).collect();
    Store::open(&file, BOUNDS).and_then(|mut store| store.write(&records)).expect("a new file");
    (fs::read(file).expect("readable"), records)
});

fn record(id: u64) -> AllocationRecord {
    let began = 1_700_000_000.0 + id as f64;
    // Some are still held.
    let ended = (!id.is_multiple_of(9)).then_some(began + 60.0);
    AllocationRecord {
        id,
        namespace: "team".into(),
        pod: format!("pod-{}", id % 7).into(),
        container: "main".into(),
        device: Device { gpu_uuid: "GPU-00000000-0000-0000-0000-000000000000".into(), ..Device::default() },
        began,
        seen: began + 60.0,
        ended,
        ending: ended.map(|_| Ending::Released),
        figures: Figures { held_seconds: Some(60.0), busy_seconds: Some(id as f64), ..Figures::default() },
        ..AllocationRecord::default()
    }
}
