use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Clock;
use crate::condition::NodeCondition;
use crate::files;
use crate::model::Snapshot;
use crate::tasks::Tasks;

/// Well within the validity of a condition: a few writes may be late.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Other users' checks read it.
const MODE: u32 = 0o644;

/// Writes the condition of each changed snapshot to the file, and again every ten seconds. Nothing without a file.
pub fn start(file: Option<PathBuf>, snapshots: watch::Receiver<Arc<Snapshot>>, clock: Clock, tasks: &mut Tasks) {
    if let Some(file) = file {
        tasks.spawn("condition file", follow(file.into(), snapshots, clock));
    }
}

async fn follow(file: Arc<Path>, mut snapshots: watch::Receiver<Arc<Snapshot>>, clock: Clock) {
    let mut heartbeat = tokio::time::interval(HEARTBEAT);
    let (mut written, mut failure): (Option<NodeCondition>, Option<String>) = (None, None);
    loop {
        let is_due = tokio::select! {
            _ = heartbeat.tick() => true,
            changed = snapshots.changed() => match changed {
                Ok(()) => false,
                Err(_) => return,
            },
        };
        let condition = NodeCondition::of(&snapshots.borrow_and_update(), clock.now());
        if !is_due && written.as_ref().is_some_and(|written| !written.differs_from(&condition)) {
            continue;
        }
        // A file system that hangs blocks this task alone; the file then grows stale, which is unknown.
        let (path, text) = (Arc::clone(&file), condition.json());
        let outcome = tokio::task::spawn_blocking(move || files::replace(&path, &text, MODE)).await;
        let outcome = outcome.map_err(io::Error::other).flatten().map_err(|error| error.to_string());
        if outcome.as_ref().err() != failure.as_ref() {
            match &outcome {
                Ok(()) => tracing::info!(file = %file.display(), "the condition file is written again"),
                Err(error) => {
                    tracing::warn!(file = %file.display(), %error, "the condition file cannot be written: after a minute it counts as unknown");
                }
            }
        }
        written = outcome.is_ok().then_some(condition);
        failure = outcome.err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::fixture;

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
