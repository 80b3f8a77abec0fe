use std::sync::Arc;

use tokio::sync::watch;

use crate::clock::Clock;
use crate::journal::{self, Journal, Pieces, Query, Reader, Watcher};
use crate::model::Snapshot;
use crate::web::AllocationSource;

/// `None` without a directory, and where the system has no thread to give: that is said, and no reason to end.
pub fn start(settings: Option<&journal::Settings>, clock: Clock) -> Option<Journal> {
    let started = Journal::start(settings?.clone(), clock);
    started.inspect_err(|error| tracing::error!(%error, "no journal of allocations: it got no thread")).ok()
}

/// Tells the journal of every snapshot. Ends only by being dropped, or when the publisher has ended.
pub async fn follow(journal: Watcher, mut snapshots: watch::Receiver<Arc<Snapshot>>) {
    while snapshots.changed().await.is_ok() {
        let snapshot = Arc::clone(&snapshots.borrow_and_update());
        journal.observe(&snapshot);
    }
}

/// Answers `/api/v1/allocations`, whose query string it takes: past and present with a journal, the present without.
pub fn allocations(
    journal: Option<Reader>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    clock: Clock,
) -> AllocationSource {
    Arc::new(move |text| {
        let (journal, snapshot) = (journal.clone(), Arc::clone(&snapshots.borrow()));
        let now = clock.now().unix;
        let query = Query::parse(text, now).map_err(|error| error.to_string())?;
        Ok(Box::new(Pieces::new(query, move |query| match &journal {
            Some(journal) => journal.answer(query, &snapshot.node_name, now),
            None => journal::current(&snapshot, query),
        })))
    })
}
