//! The allocation journal. Absent without a journal.

use std::sync::LazyLock;

use super::family::{Group, counter, gauge};
use super::labels::Labels;
use crate::domain::model::{JournalState, Snapshot};

pub(super) static GROUP: LazyLock<Group> = LazyLock::new(|| Group {
    section: "Allocation journal",
    labels: "",
    source: "podmeter",
    metrics: vec![
        gauge("podmeter_journal_up")
            .help("Whether the allocation journal is written; only with --state-dir, as all journal metrics.")
            .each(journal, |journal| Some(journal.problem.is_none() && journal.size_bytes.is_some())),
        counter("podmeter_journal_entries_total")
            .help("Holdings written to the journal; an update of a holding counts again.")
            .each(journal, |journal| Some(journal.written)),
        counter("podmeter_journal_errors_total")
            .help("Failed writes and openings of the journal; the data waits and is written later.")
            .each(journal, |journal| Some(journal.errors)),
        counter("podmeter_journal_dropped_total")
            .help("Holdings missing from the journal because too many waited for the disk.")
            .each(journal, |journal| Some(journal.dropped)),
        gauge("podmeter_journal_size_bytes")
            .help("Size of the journal file.")
            .each(journal, |journal| journal.size_bytes),
    ],
});

fn journal(snapshot: &Snapshot) -> Vec<(Labels, &JournalState)> {
    snapshot.journal.iter().map(|journal| (Labels::default(), journal)).collect()
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
