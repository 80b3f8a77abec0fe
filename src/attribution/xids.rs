//! The owner of an XID: the container of the process that the source names; without one, the holder if the device or
//! the MIG device has exactly one. With several holders and no process the XID has no owner; the device's counter has
//! it.
//!
//! Two sources report the same XID, and only the kernel log names a process. So a report of the driver waits for the
//! one of the log, and each is matched with one of the other source: each XID counts once.

mod matching;
mod owner;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use self::matching::{Matching, Pending};
use self::owner::XidOwner;
use super::join::Join;
use crate::model::{
    Account, ContainerRef, ContainerXid, GpuUuid, Inventory, MigUuid, Moment, Monotonic, Owner, ProcessState,
    UnixSeconds, UnknownOwner, XidClass, XidEvent, XidSource,
};

/// A process that is not scanned by then has no owner. Shorter than the time between the two sources.
const OWNER_WAIT: Duration = Duration::from_secs(3);
/// One XID seldom comes alone, and later ones arrive after the process ended: its owner is kept this long.
const PROCESS_MEMORY: Duration = Duration::from_secs(60);
/// Processes queried at a time; further ones get no owner.
const PROCESSES: usize = 256;
/// Series, past which a container's further codes count together.
const SERIES: usize = 4096;
const UNKNOWN_CODE: u32 = 999;
/// Pages that have shown a container's last count before it may go.
const SCRAPES: u64 = 2;

/// XIDs by container. Counts never fall while they are there.
#[derive(Debug)]
pub struct ContainerXids {
    /// The kernel log is read too, so an XID of the driver may be reported twice.
    two_sources: bool,
    waiting: Vec<Waiting>,
    /// The processes that XIDs have named, and when the last one did.
    named: BTreeMap<u32, Monotonic>,
    matching: BTreeMap<(GpuUuid, u32), Matching>,
    counts: BTreeMap<Key, Count>,
}

/// An XID that counts, and the class that it counts in.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassedXid {
    pub event: XidEvent,
    pub class: XidClass,
}

/// What is known at one moment.
pub struct XidObservation<'a> {
    pub now: Moment,
    /// Received since the last observation.
    pub events: Vec<ClassedXid>,
    pub join: &'a Join,
    pub inventory: &'a Inventory,
    /// As they are now: a count stays as long as its container's account.
    pub accounts: &'a [Account],
    pub processes: &'a ProcessState,
    /// How long the count of a container without an account stays.
    pub retention: Duration,
    /// Pages delivered so far.
    pub scrapes: u64,
}

/// An XID whose process is being scanned.
#[derive(Debug)]
struct Waiting {
    xid: ClassedXid,
    pid: u32,
    holder: Option<XidOwner>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    container: ContainerRef,
    gpu: GpuUuid,
    mig: Option<MigUuid>,
    code: u32,
}

#[derive(Debug)]
struct Count {
    class: XidClass,
    count: u64,
    created: UnixSeconds,
    last: Monotonic,
    scrapes: u64,
}

impl ContainerXids {
    #[must_use]
    pub fn new(two_sources: bool) -> Self {
        Self {
            two_sources,
            waiting: vec![],
            named: BTreeMap::new(),
            matching: BTreeMap::new(),
            counts: BTreeMap::new(),
        }
    }

    /// The host process IDs whose owners are needed.
    pub fn wanted(&self) -> impl Iterator<Item = u32> + '_ {
        self.named.keys().copied()
    }

    /// By container, GPU, MIG device and code.
    pub fn advance(&mut self, mut observation: XidObservation<'_>) -> Vec<ContainerXid> {
        let mut events = std::mem::take(&mut observation.events);
        events.sort_by_key(|xid| xid.event.at.monotonic);
        for xid in events {
            self.take(xid, &observation);
        }
        self.resolve(&observation);
        self.settle(&observation);
        self.forget(&observation);
        self.counts.iter().map(|(key, count)| count.published(key)).collect()
    }

    fn take(&mut self, xid: ClassedXid, observation: &XidObservation<'_>) {
        let holder = XidOwner::holding(&xid.event, observation);
        match &xid.event.process {
            Some(process)
                if observation.processes.enabled
                    && (self.named.len() < PROCESSES || self.named.contains_key(&process.pid)) =>
            {
                let pid = process.pid;
                self.named.insert(pid, observation.now.monotonic);
                self.waiting.push(Waiting { xid, pid, holder });
            }
            _ => self.match_sources(xid, holder, observation),
        }
    }

    /// Passes on the XIDs whose process has an owner now, or whose time limit has passed.
    fn resolve(&mut self, observation: &XidObservation<'_>) {
        let now = observation.now.monotonic;
        let mut still = vec![];
        for waiting in std::mem::take(&mut self.waiting) {
            let owner = match observation.processes.owner(waiting.pid) {
                Owner::Unknown(UnknownOwner::NotResolved) if now.since(waiting.xid.event.at.monotonic) < OWNER_WAIT => {
                    still.push(waiting);
                    continue;
                }
                Owner::Container(container) => Some(XidOwner::of_container(container, &waiting.xid.event, observation)),
                Owner::Pod(pod) => XidOwner::in_pod(pod, None, &waiting.xid.event, observation),
                Owner::EndedPod { uid, pod: Some(pod) } => {
                    XidOwner::in_pod(pod, Some(uid), &waiting.xid.event, observation)
                }
                // A process of no container, or of an ended pod whose name is unknown.
                Owner::Host | Owner::EndedPod { pod: None, .. } => None,
                Owner::Unknown(_) => waiting.holder,
            };
            self.match_sources(waiting.xid, owner, observation);
        }
        self.waiting = still;
    }

    fn match_sources(&mut self, xid: ClassedXid, owner: Option<XidOwner>, observation: &XidObservation<'_>) {
        let ClassedXid { event, class } = xid;
        let pending =
            Pending { at: event.at.monotonic.min(observation.now.monotonic), count: event.count, class, owner };
        if !self.two_sources {
            self.count(&event.gpu, event.code, pending, observation);
            return;
        }
        let matching = self.matching.entry((event.gpu.clone(), event.code)).or_default();
        match event.source {
            XidSource::Nvml => matching.add_from_driver(pending),
            XidSource::Kmsg => {
                matching.add_from_log(&pending);
                self.count(&event.gpu, event.code, pending, observation);
            }
        }
    }

    /// An XID that only the driver reported belongs to the holder at that time.
    fn settle(&mut self, observation: &XidObservation<'_>) {
        let now = observation.now.monotonic;
        let mut over = vec![];
        for ((gpu, code), matching) in &mut self.matching {
            over.extend(matching.unmatched(now).into_iter().map(|pending| (gpu.clone(), *code, pending)));
        }
        for (gpu, code, pending) in over {
            self.count(&gpu, code, pending, observation);
        }
        self.matching.retain(|_, matching| !matching.is_empty());
    }

    fn count(&mut self, gpu: &GpuUuid, code: u32, pending: Pending, observation: &XidObservation<'_>) {
        let Some(XidOwner { container, mig }) = pending.owner else { return };
        let mut key = Key { container, gpu: gpu.clone(), mig, code };
        let mut class = pending.class;
        if self.counts.len() >= SERIES && !self.counts.contains_key(&key) {
            (key.code, class) = (UNKNOWN_CODE, XidClass::Unknown);
            if self.counts.len() >= 2 * SERIES && !self.counts.contains_key(&key) {
                return;
            }
        }
        let account = observation.accounts.iter().find(|account| is_of(account, &key));
        let count = self.counts.entry(key).or_insert_with(|| Count {
            class,
            count: 0,
            // There was none since the holding began.
            created: account.map_or(observation.now.unix, |account| account.created),
            last: pending.at,
            scrapes: 0,
        });
        count.count = count.count.saturating_add(pending.count);
        (count.last, count.scrapes) = (observation.now.monotonic, observation.scrapes);
    }

    fn forget(&mut self, observation: &XidObservation<'_>) {
        let now = observation.now.monotonic;
        self.named.retain(|_, at| now.since(*at) <= PROCESS_MEMORY);
        self.counts.retain(|key, count| {
            now.since(count.last) <= observation.retention
                || observation.scrapes < count.scrapes + SCRAPES
                || observation.accounts.iter().any(|account| is_of(account, key))
        });
    }
}

fn is_of(account: &Account, key: &Key) -> bool {
    account.container == key.container && account.gpu == key.gpu
}

impl Count {
    fn published(&self, key: &Key) -> ContainerXid {
        ContainerXid {
            container: key.container.clone(),
            gpu: key.gpu.clone(),
            mig: key.mig.clone(),
            code: key.code,
            class: self.class,
            count: self.count,
            created: self.created,
        }
    }
}
