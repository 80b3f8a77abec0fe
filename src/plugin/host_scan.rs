//! HostScans at the host, one at a time and on a thread of its own: one that hangs costs that thread and keeps what was seen.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};

use super::host::{Host, ScanResult, Surroundings, Wanted};
use crate::model::Monotonic;

/// Device nodes, files and other daemons come and go without telling anybody.
const INTERVAL: Duration = Duration::from_secs(1);
/// A look that takes longer hangs, and is a problem to tell.
const LIMIT: Duration = Duration::from_secs(10);
/// For the last one, which takes back what was written.
const LAST: Duration = Duration::from_secs(1);

type Finished = (Host, BTreeMap<u64, ScanResult>);

#[derive(Debug)]
pub struct HostScans {
    /// `None` while a look has it.
    host: Option<Host>,
    under_way: JoinSet<Finished>,
    began: Monotonic,
    /// The entries and the inventory that the last look was of.
    of: Option<(Vec<u64>, u64)>,
}

impl HostScans {
    pub fn new(around: Surroundings) -> Self {
        Self { host: Some(Host::new(around)), under_way: JoinSet::new(), began: Monotonic::default(), of: None }
    }

    /// Begins a look where one is due: what is wanted is not what the last one was of, or that one is old and the host
    /// changes unasked.
    pub fn begin(&mut self, wanted: &BTreeMap<u64, Wanted>, needs_polling: bool, now: Monotonic) {
        let generation = wanted.values().map(|wanted| wanted.inventory.generation).max().unwrap_or_default();
        let of = Some((wanted.keys().copied().collect(), generation));
        let is_old = needs_polling && now.since(self.began) >= INTERVAL;
        if self.of == of && !is_old {
            return;
        }
        let Some(host) = self.host.take() else { return };
        (self.of, self.began) = (of, now);
        let wanted = wanted.clone();
        self.under_way.spawn_blocking(move || look(host, &wanted));
    }

    /// What was seen, when the look under way is done. Never, where there is none.
    pub async fn done(&mut self) -> Result<BTreeMap<u64, ScanResult>, JoinError> {
        match self.under_way.join_next().await {
            Some(looked) => {
                let (host, seen) = looked?;
                self.host = Some(host);
                Ok(seen)
            }
            None => std::future::pending().await,
        }
    }

    /// When to ask again whether a look is due or hangs.
    pub fn next(&self, needs_polling: bool, now: Monotonic) -> Option<Duration> {
        (needs_polling || self.host.is_none()).then(|| INTERVAL.saturating_sub(now.since(self.began))).map(|left| {
            // One that is under way already is not due.
            if left.is_zero() { INTERVAL } else { left }
        })
    }

    pub fn problem(&self, now: Monotonic) -> Option<String> {
        let hangs = self.host.is_none() && now.since(self.began) >= LIMIT;
        hangs.then(|| {
            format!(
                "a look at the host's device nodes and files has not come back for {} s, and what was seen before it \
                 stands: look for a file system that hangs below the paths of devicePlugin, /proc/driver, /sys and the CDI \
                 directories",
                LIMIT.as_secs()
            )
        })
    }

    /// Takes back what was written on the host.
    pub async fn end(mut self) {
        let last = async {
            if self.host.is_none() {
                self.done().await?;
            }
            if let Some(host) = self.host.take() {
                self.under_way.spawn_blocking(move || look(host, &BTreeMap::new()));
                self.done().await?;
            }
            Ok::<(), JoinError>(())
        };
        if !matches!(tokio::time::timeout(LAST, last).await, Ok(Ok(()))) {
            tracing::warn!("a look at the host does not come back: a CDI specification of ours may stay behind");
        }
    }
}

fn look(mut host: Host, wanted: &BTreeMap<u64, Wanted>) -> Finished {
    let seen = host.scan(wanted);
    (host, seen)
}
