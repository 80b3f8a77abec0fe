use super::*;
use crate::domain::model::{Account, HoldingCounters, Moment, SharingForm, UnixSeconds};
use crate::journal::Query;
use crate::journal::allocation_record::AllocationRecord;

const BOUNDS: Bounds = Bounds { bytes: 4 << 20, age: Duration::from_secs(3600) };

fn settings(directory: &Path) -> JournalSettings {
    JournalSettings { directory: directory.to_owned(), bounds: BOUNDS }
}

/// A snapshot with one pod that holds a GPU.
fn snapshot(clock: &Clock, pod: &str) -> Snapshot {
    let at: Moment = clock.now();
    let account = Account {
        holding: Some(crate::test_data::holding("GPU-1", SharingForm::Exclusive, 1.0)),
        counters: HoldingCounters {
            allocated_seconds: Some(at.monotonic.as_duration().as_secs_f64()),
            ..HoldingCounters::default()
        },
        ..Account::new(crate::test_data::main_of(pod), "GPU-1".into(), None, at.unix)
    };
    Snapshot { at, accounts: vec![account], ..Snapshot::default() }
}

fn until(what: &str, journal: &Journal, condition: impl Fn(&JournalState) -> bool) {
    let clock = Clock::start();
    let (_sender, timer) = sync_channel::<()>(1);
    while !condition(&journal.reader().state()) {
        assert!(clock.now().monotonic < Monotonic::from_secs(60), "not {what} in time: {:?}", journal.reader().state());
        let _ = timer.recv_timeout(Duration::from_millis(10));
    }
}

fn on_disk(directory: &Path) -> Vec<AllocationRecord> {
    let response = crate::journal::read_directory(directory, &Query::all(), UnixSeconds(0.0)).unwrap();
    response.allocations
}

#[test]
fn records_are_on_disk_at_the_end_and_the_next_agent_continues_them() {
    let directory = tempfile::tempdir().unwrap();
    for restarts in 0..2 {
        let clock = Clock::start();
        let journal = Journal::start(settings(directory.path()), clock).unwrap();
        until("open", &journal, |state| state.size_bytes.is_some());
        journal.feed().observe(&snapshot(&clock, "a"));
        journal.stop();
        let records = on_disk(directory.path());
        assert_eq!((records.len(), records[0].agent_restarts), (1, restarts));
    }
}

#[test]
fn a_response_has_records_on_disk_and_newer_ones() {
    let directory = tempfile::tempdir().unwrap();
    let clock = Clock::start();
    let journal = Journal::start(settings(directory.path()), clock).unwrap();
    let feed = journal.feed();
    let response = || journal.reader().respond(&Query::all(), "node-a", clock.now().unix);
    // This holds also before the file exists.
    feed.observe(&snapshot(&clock, "a"));
    assert_eq!(response().allocations.len(), 1);
    until("written", &journal, |state| state.written > 0);
    feed.observe(&snapshot(&clock, "b"));
    until("written twice", &journal, |state| state.written > 2);
    let pods: Vec<_> = response().allocations.iter().map(|record| (record.pod.to_string(), record.is_open())).collect();
    assert_eq!(pods, [("a".to_owned(), false), ("b".to_owned(), true)], "each once");
    drop(feed);
    journal.stop();
}

#[test]
fn a_damaged_file_is_renamed_and_never_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(FILE);
    let contents: Vec<String> = (0..4).map(|round| format!("no database {round}").repeat(1000)).collect();
    for content in &contents {
        std::fs::write(&file, content).unwrap();
        let clock = Clock::start();
        let journal = Journal::start(settings(directory.path()), clock).unwrap();
        until("open", &journal, |state| state.size_bytes.is_some());
        assert_eq!(journal.reader().state().errors, 1);
        journal.feed().observe(&snapshot(&clock, "a"));
        journal.stop();
        assert_eq!(on_disk(directory.path()).len(), 1, "the new file has what happened since");
    }
    let entries = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let is_renamed = |name: &str| name.contains(".damaged-") && !name.ends_with("-journal");
    let renamed = entries.filter(|path| is_renamed(&path.to_string_lossy()));
    let mut kept: Vec<String> = renamed.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    kept.sort();
    assert!(kept == contents, "{} are kept", kept.len());
}

#[test]
fn the_rollback_journal_goes_with_the_damaged_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(FILE);
    let of = |suffix: &str| directory.path().join(format!("{FILE}{suffix}"));
    for round in ["first", "second"] {
        std::fs::write(&file, round).unwrap();
        std::fs::write(of("-journal"), round).unwrap();
        let renamed = set_aside(&file, 7.0).unwrap();
        assert!(!file.exists() && !of("-journal").exists());
        assert_eq!(std::fs::read_to_string(renamed).unwrap(), round);
    }
    assert_eq!(std::fs::read_to_string(of(".damaged-7-journal")).unwrap(), "first");
    assert_eq!(std::fs::read_to_string(of(".damaged-7a-journal")).unwrap(), "second");
}

type Replace = fn(&Path);
const REPLACED: [(&str, Replace); 4] = [
    ("the lock is removed", |state| std::fs::remove_file(state.join(LOCK)).unwrap()),
    ("another file is in its place", |state| {
        std::fs::write(state.join("other"), "").unwrap();
        std::fs::rename(state.join("other"), state.join(LOCK)).unwrap();
    }),
    ("the directory is replaced", |state| {
        std::fs::rename(state, state.with_extension("old")).unwrap();
        std::fs::create_dir(state).unwrap();
    }),
    ("the database is removed", |state| std::fs::remove_file(state.join(FILE)).unwrap()),
];

fn assert_holds_b_once(what: &str, state: &Path) {
    let pods: Vec<_> = on_disk(state).iter().map(|record| (record.pod.to_string(), record.is_open())).collect();
    assert!(pods.contains(&("b".to_owned(), true)), "{what}: {pods:?}");
    assert!(pods.iter().filter(|(pod, _)| pod == "b").count() == 1, "{what}: {pods:?}");
}

/// Otherwise both agents would write the journal, with each holding twice.
#[test]
fn an_agent_whose_lock_or_database_was_replaced_stops_writing_and_opens_them_again() {
    for (what, replace) in REPLACED {
        let parent = tempfile::tempdir().unwrap();
        let state = parent.path().join("state");
        let clock = Clock::start();
        let (feed, mut writer, _woken) = Journal::parts(settings(&state), clock);
        feed.observe(&snapshot(&clock, "a"));
        writer.work().unwrap();
        replace(&state);
        feed.observe(&snapshot(&clock, "b"));
        if what == "the database is removed" {
            let problem = writer.work().unwrap_err().to_string();
            assert!(problem.contains("was removed or replaced"), "{what}: {problem}");
        } else {
            let (_feed, mut other, _woken) = Journal::parts(settings(&state), clock);
            other.work().unwrap();
            assert!(matches!(writer.work(), Err(WriterError::Failed(_))), "{what}");
            assert!(matches!(writer.work(), Err(WriterError::Locked(_))), "{what}");
        }
        assert_eq!(writer.shared.state.lock().written, 1, "{what}");
        writer.work().unwrap();
        assert_holds_b_once(what, &state);
    }
}

/// Otherwise the records that wait would be lost.
#[test]
fn an_agent_whose_lock_or_database_was_replaced_writes_all_at_its_end() {
    for (what, replace) in REPLACED {
        let parent = tempfile::tempdir().unwrap();
        let state = parent.path().join("state");
        let clock = Clock::start();
        let (feed, mut writer, woken) = Journal::parts(settings(&state), clock);
        feed.observe(&snapshot(&clock, "a"));
        writer.work().unwrap();
        replace(&state);
        feed.observe(&snapshot(&clock, "b"));
        woken.try_recv().unwrap();
        drop(feed);
        writer.run(&woken);
        assert_holds_b_once(what, &state);
    }
}
