//! The allocation journal. Absent without a journal.

use super::family::{Family, Group, counter, gauge};
use super::labels::Labels;
use crate::domain::model::{JournalState, Snapshot};

pub(super) static GROUP: Group = Group {
    section: "Allocation journal",
    labels: "",
    source: "podmeter",
    metrics: &[
        gauge(
            "podmeter_journal_up",
            "Whether the allocation journal is written; only with --state-dir, as all journal metrics.",
            |snapshot, family| {
                push(snapshot, family, |journal| {
                    Some((journal.problem.is_none() && journal.size_bytes.is_some()).into())
                });
            },
        ),
        counter(
            "podmeter_journal_entries_total",
            "Holdings written to the journal; an update of a holding counts again.",
            |snapshot, family| push(snapshot, family, |journal| Some(journal.written)),
        ),
        counter(
            "podmeter_journal_errors_total",
            "Failed writes and openings of the journal; the data waits and is written later.",
            |snapshot, family| push(snapshot, family, |journal| Some(journal.errors)),
        ),
        counter(
            "podmeter_journal_dropped_total",
            "Holdings missing from the journal because too many waited for the disk.",
            |snapshot, family| push(snapshot, family, |journal| Some(journal.dropped)),
        ),
        gauge("podmeter_journal_size_bytes", "Size of the journal file.", |snapshot, family| {
            push(snapshot, family, |journal| journal.size_bytes);
        }),
    ],
};

fn push(snapshot: &Snapshot, family: &mut Family, read: impl Fn(&JournalState) -> Option<u64>) {
    family.push_known(Labels::default(), snapshot.journal.as_ref().and_then(read));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::metrics::tests::value;

    fn up(journal: Option<JournalState>) -> Option<f64> {
        value(&GROUP.families(&Snapshot { journal, ..Snapshot::default() }), "podmeter_journal_up", &[])
    }

    #[test]
    fn it_is_up_once_the_file_is_open_and_nothing_is_wrong() {
        let state = JournalState { size_bytes: Some(4096), ..JournalState::default() };
        assert_eq!(up(Some(state.clone())), Some(1.0));
        assert_eq!(up(Some(JournalState { problem: Some("the disk is full".into()), ..state })), Some(0.0));
        assert_eq!(up(Some(JournalState::default())), Some(0.0));
        assert_eq!(up(None), None);
    }
}
