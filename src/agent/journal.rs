//! The journal's wiring: snapshots to its thread, and the responses of `/api/v1/allocations`.

use std::sync::Arc;

use tokio::sync::watch;

use crate::clock::Clock;
use crate::domain::model::Snapshot;
use crate::journal::{self, Journal, JournalFeed, JournalReader, JournalSettings, Query};
use crate::serve::web::AllocationSource;
use crate::tasks::{NoThread, Tasks};

/// Writes the holdings of each snapshot. `None` without a state directory.
pub fn start(
    settings: Option<&JournalSettings>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    clock: Clock,
    tasks: &mut Tasks,
) -> Result<Option<Journal>, NoThread> {
    let Some(settings) = settings else { return Ok(None) };
    let journal = Journal::start(settings.clone(), clock)?;
    tasks.spawn("journal", follow(journal.feed(), snapshots));
    Ok(Some(journal))
}

async fn follow(journal: JournalFeed, mut snapshots: watch::Receiver<Arc<Snapshot>>) {
    while snapshots.changed().await.is_ok() {
        let snapshot = Arc::clone(&snapshots.borrow_and_update());
        journal.observe(&snapshot);
    }
}

/// Answers `/api/v1/allocations`: past and present allocations with a journal, present ones without.
pub fn allocations(
    journal: Option<JournalReader>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    clock: Clock,
) -> AllocationSource {
    Arc::new(move |text| {
        let (snapshot, now) = (Arc::clone(&snapshots.borrow()), clock.now().unix);
        let query = Query::parse(text, now).map_err(|error| error.to_string())?;
        let response = match &journal {
            Some(journal) => journal.respond(&query, &snapshot.node_name, now),
            None => journal::current(&snapshot, &query),
        };
        // What a slow client holds: no spare capacity.
        let text = serde_json::to_vec(&response).expect("strings and numbers");
        Ok(text.into_boxed_slice().into_vec())
    })
}
