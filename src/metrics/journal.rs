//! How the journal of allocations fares. Absent without a journal.

use super::{Descriptor, Family, Group, Value};
use crate::model::{JournalState, Snapshot};

const OWN: &str = "podmeter";

static UP: Descriptor = Descriptor::gauge(
    "podmeter_journal_up",
    &[],
    "",
    OWN,
    "Whether the journal of allocations is written, 0 or 1; only with --state-dir, as all of these.",
);
static ENTRIES: Descriptor = Descriptor::counter(
    "podmeter_journal_entries_total",
    &[],
    "",
    OWN,
    "Holdings written to the journal; a later word on the same holding counts again.",
);
static ERRORS: Descriptor = Descriptor::counter(
    "podmeter_journal_errors_total",
    &[],
    "",
    OWN,
    "Writes and openings of the journal that failed; what was to be written waits.",
);
static DROPPED: Descriptor = Descriptor::counter(
    "podmeter_journal_dropped_total",
    &[],
    "",
    OWN,
    "Holdings that the journal lacks because too many waited for the disk.",
);
static SIZE: Descriptor =
    Descriptor::gauge("podmeter_journal_size_bytes", &[], "bytes", OWN, "Size of the journal's file.");

pub(super) const GROUP: Group =
    Group { section: "Journal of allocations", descriptors: &[&UP, &ENTRIES, &ERRORS, &DROPPED, &SIZE], families };

fn families(snapshot: &Snapshot) -> Vec<Family> {
    let journal = snapshot.journal.as_ref();
    let counter = |descriptor, read: fn(&JournalState) -> u64| {
        let mut family = Family::new(descriptor);
        family.push_created(vec![], journal.map(read), snapshot.started);
        family
    };
    let is_up = |journal: &JournalState| journal.problem.is_none() && journal.size_bytes.is_some();
    vec![
        gauge(&UP, journal.map(is_up)),
        counter(&ENTRIES, |journal| journal.written),
        counter(&ERRORS, |journal| journal.errors),
        counter(&DROPPED, |journal| journal.dropped),
        gauge(&SIZE, journal.and_then(|journal| journal.size_bytes)),
    ]
}

fn gauge<V: Into<Value>>(descriptor: &'static Descriptor, value: Option<V>) -> Family {
    let mut family = Family::new(descriptor);
    family.push_known(vec![], value);
    family
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::value;

    fn up(journal: Option<JournalState>) -> Option<f64> {
        value(&families(&Snapshot { journal, ..Snapshot::default() }), "podmeter_journal_up", &[])
    }

    #[test]
    fn it_is_up_once_the_file_is_open_and_nothing_is_wrong() {
        let state = JournalState { size_bytes: Some(4096), ..JournalState::default() };
        assert_eq!(up(Some(state.clone())), Some(1.0));
        assert_eq!(up(Some(JournalState { problem: Some("no room".into()), ..state })), Some(0.0));
        assert_eq!(up(Some(JournalState::default())), Some(0.0));
        assert_eq!(up(None), None);
    }
}
