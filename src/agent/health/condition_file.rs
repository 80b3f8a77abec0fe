//! The condition file, for repair systems.
//!
//! In: snapshots. Out: a file, written when the condition changes and every ten seconds.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use super::kept_file::KeptFile;
use crate::clock::Clock;
use crate::domain::condition::NodeCondition;
use crate::domain::model::Snapshot;
use crate::domain::periods::CONDITION_REWRITTEN;
use crate::tasks::Tasks;

/// Checks of other users read the file.
const MODE: u32 = 0o644;

/// Writes the condition to the file when it changes, and again every ten seconds. Nothing without a file.
pub fn start(file: Option<PathBuf>, snapshots: watch::Receiver<Arc<Snapshot>>, clock: Clock, tasks: &mut Tasks) {
    if let Some(file) = file {
        tasks.spawn("condition file", follow(file, snapshots, clock));
    }
}

async fn follow(path: PathBuf, mut snapshots: watch::Receiver<Arc<Snapshot>>, clock: Clock) {
    let mut file = KeptFile::new(path, MODE, "the condition file", "after a minute it counts as unknown");
    let mut heartbeat = tokio::time::interval(CONDITION_REWRITTEN);
    let mut written: Option<NodeCondition> = None;
    loop {
        let is_due = tokio::select! {
            _ = heartbeat.tick() => true,
            changed = snapshots.changed() => match changed {
                Ok(()) => false,
                Err(_) => return,
            },
        };
        let condition = NodeCondition::assess(&snapshots.borrow_and_update(), clock.now());
        if is_due || written.as_ref().is_none_or(|written| written.differs_from(&condition)) {
            written = file.write(condition.json()).await.then_some(condition);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::metrics::tests::fixture;
    use std::time::Duration;

    #[tokio::test]
    async fn the_file_has_the_condition_of_the_last_snapshot() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("health.json");
        let (publish, snapshots) = watch::channel(Arc::new(Snapshot::default()));
        let mut tasks = Tasks::default();
        start(Some(file.clone()), snapshots, Clock::start(), &mut tasks);
        let until = async |status: &str| {
            let wanted = format!("\n  \"status\": \"{status}\",\n");
            while !std::fs::read_to_string(&file).is_ok_and(|text| text.contains(&wanted)) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let within = Duration::from_secs(30);
        tokio::time::timeout(within, until("unknown")).await.expect("before the first snapshot");
        publish.send_replace(Arc::new(fixture::snapshot()));
        tokio::time::timeout(within, until("unhealthy")).await.expect("on a change, not on the heartbeat");
        tasks.abort().await;
    }
}
