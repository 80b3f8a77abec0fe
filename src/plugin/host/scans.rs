//! Runs scans of the host, one at a time on a blocking thread. While one hangs, running registrations keep the last result; a new
//! one that depends on the host waits.
//!
//! In: the configured entries to scan for, the time. Out: scan results and a problem.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};

use super::scanner::{HostPaths, HostScanner, ScanRequest, ScanResult};
use crate::domain::model::{Inventory, Monotonic};
use crate::tasks::LATE;

/// The pause between two scans: device nodes, files and other daemons appear and disappear without an event.
const INTERVAL: Duration = Duration::from_secs(1);

type Finished = (HostScanner, BTreeMap<u64, ScanResult>);

#[derive(Debug)]
pub struct HostScans {
    /// The scanner; `None` while a scan uses it.
    scanner: Option<HostScanner>,
    under_way: JoinSet<Finished>,
    began: Monotonic,
    /// The entries of the last scan, and its inventory.
    last: Option<(Vec<u64>, Arc<Inventory>)>,
}

impl HostScans {
    pub fn new(paths: HostPaths, device_plugins: PathBuf) -> Self {
        let scanner = Some(HostScanner::new(paths, device_plugins));
        Self { scanner, under_way: JoinSet::new(), began: Monotonic::default(), last: None }
    }

    /// Begins a scan where one is due: the entries or the inventory have changed, or the last scan is old and the host
    /// needs polling.
    pub fn begin(&mut self, request: ScanRequest, inventory: &Arc<Inventory>, needs_polling: bool, now: Monotonic) {
        let next = Some((request.keys().copied().collect(), Arc::clone(inventory)));
        let is_old = needs_polling && now.since(self.began) >= INTERVAL;
        if self.last == next && !is_old {
            return;
        }
        let Some(scanner) = self.scanner.take() else { return };
        (self.last, self.began) = (next, now);
        let inventory = Arc::clone(inventory);
        self.under_way.spawn_blocking(move || scan(scanner, &request, &inventory));
    }

    /// The results of the scan under way, when it is done. Without a scan it never completes.
    pub async fn done(&mut self) -> Result<BTreeMap<u64, ScanResult>, JoinError> {
        match self.under_way.join_next().await {
            Some(scanned) => {
                let (scanner, results) = scanned?;
                self.scanner = Some(scanner);
                Ok(results)
            }
            None => std::future::pending().await,
        }
    }

    /// When to check again whether a scan is due or hangs, after `begin` of the same time.
    pub fn next_check(&self, needs_polling: bool, now: Monotonic) -> Option<Duration> {
        if !needs_polling && self.scanner.is_some() {
            return None;
        }
        let left = INTERVAL.saturating_sub(now.since(self.began));
        // Zero only while a scan is under way: `begin` has started the one that was due.
        Some(if left.is_zero() { INTERVAL } else { left })
    }

    pub fn problem(&self, now: Monotonic) -> Option<String> {
        let hangs = self.scanner.is_none() && now.since(self.began) >= LATE;
        hangs.then(|| {
            format!(
                "reading the host's device nodes and files has hung for {} s, and the previous results stay in use: check for \
                 a file system that hangs below the paths of devicePlugin, /proc/driver, /sys and the CDI directories",
                LATE.as_secs()
            )
        })
    }
}

fn scan(mut scanner: HostScanner, request: &ScanRequest, inventory: &Inventory) -> Finished {
    let results = scanner.scan(request, inventory);
    (scanner, results)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::{Gpu, NvLinkPeers, PciBusId};
    use crate::plugin::host::topology::topology;
    use crate::plugin::test_data::{gpu, host_roots, inventory, nvidia};

    #[tokio::test]
    async fn a_gpu_that_returns_without_another_generation_is_linked_again() {
        let root = tempfile::tempdir().unwrap();
        let host = HostPaths { roots: host_roots(root.path()), proc: root.path().join("proc"), cdi: vec![] };
        let mut scans = HostScans::new(host, root.path().to_owned());
        let config = Arc::new(nvidia("deviceListStrategy: envvar"));
        let bus_id = |index: u32| PciBusId::new(format!("0000:{:02x}:00.0", 0x10 + index));
        for present in [true, false, true] {
            let linked = |index: u32| {
                let peers = NvLinkPeers { by_bus_id: [(bus_id(1 - index), 4)].into(), switch_links: 0 };
                let present = present || index == 0;
                Gpu { pci_bus_id: Some(bus_id(index)), nvlink_peers: Some(peers), present, ..gpu(index, None) }
            };
            let inventory = Arc::new(Inventory { generation: 1, ..inventory((0..2).map(linked)) });
            scans.begin([(7, Arc::clone(&config))].into(), &inventory, false, Monotonic::default());
            assert!(scans.scanner.is_none(), "a scan is under way");
            let results = scans.done().await.unwrap();
            assert_eq!(results[&7].facts.topology, topology(&inventory, &root.path().join("sys")), "{present}");
        }
    }
}
