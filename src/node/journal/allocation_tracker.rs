//! Which records begin, change and end with a snapshot.
//!
//! In: successive snapshots, the open records of an earlier agent. Out: the records to write. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::allocation_record::{AllocationRecord, Ending, Xid};
use super::subject;
use crate::domain::holders::HoldingKey;
use crate::domain::model::{Account, Figures, Moment, Monotonic, Snapshot, UnixSeconds};

/// Open holdings are written this often: a crash loses their figures of at most this time.
pub const PROGRESS: Duration = Duration::from_secs(30);
/// The last seconds of a holding come with the next readings: its figures may grow for this time after its end.
const SETTLING: Duration = Duration::from_secs(20);
/// Records that wait for the disk; beyond that, those that ended first are dropped.
const WAITING_LIMIT: usize = 4096;

/// Derives allocation records from successive snapshots. In memory only.
#[derive(Debug, Default)]
pub struct AllocationTracker {
    tracked: BTreeMap<HoldingKey, Tracked>,
    /// The part of each account that is in a record already.
    counted: BTreeMap<HoldingKey, Counted>,
    /// Open when the last agent ended, and not matched yet.
    orphans: Vec<AllocationRecord>,
    /// Not on disk yet, by id.
    waiting: BTreeMap<u64, AllocationRecord>,
    /// The records of the last agent have been read.
    loaded: bool,
    last_id: u64,
    last_transition: u64,
    last_progress: Monotonic,
    pub dropped: u64,
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    /// Of the account: another one starts at zero.
    created: UnixSeconds,
    figures: Figures,
}

/// A holding that continues, or that still lacks its final figures.
#[derive(Clone, Debug)]
struct Tracked {
    record: AllocationRecord,
    /// The account's figures at the beginning of this holding.
    base: Figures,
    base_xids: Vec<Xid>,
    since: Monotonic,
    /// The record of an earlier agent that this holding continues.
    earlier: Option<AllocationRecord>,
    /// The figures of the earlier agent.
    carried: Figures,
    ended: Option<Monotonic>,
}

impl AllocationTracker {
    /// True when something must be written soon: a beginning, an end, an event.
    pub fn observe(&mut self, snapshot: &Snapshot) -> bool {
        let before = self.waiting.len();
        let mut urgent = false;
        for account in &snapshot.accounts {
            urgent |= self.follow(account, snapshot);
        }
        let at = snapshot.at;
        urgent |= self.settle(snapshot);
        urgent |= self.add_transitions(snapshot);
        urgent |= self.end_orphans(snapshot);
        if at.monotonic.since(self.last_progress) >= PROGRESS {
            self.last_progress = at.monotonic;
            let open = self.tracked.values().filter(|tracked| tracked.ended.is_none());
            self.waiting.extend(open.map(|tracked| (tracked.record.id, tracked.record.clone())));
            urgent |= self.waiting.len() > before;
        }
        self.keep_within_limit();
        urgent
    }

    /// Adds the records that the last agent left open, the first time that a file can be read.
    pub fn load(&mut self, open: Vec<AllocationRecord>, last_id: u64, now: Moment) {
        if std::mem::replace(&mut self.loaded, true) {
            // The file may be another one now; what is here is newer in any case.
            return self.requeue_all();
        }
        self.last_id = self.last_id.max(last_id);
        self.orphans = open;
        for (key, tracked) in &mut self.tracked {
            tracked.continue_one_of(&mut self.orphans, &mut self.waiting, key, now.unix);
        }
    }

    /// The records to write, which wait until they are. None before `load`.
    pub fn to_write(&self) -> Vec<AllocationRecord> {
        if self.loaded { self.waiting.values().cloned().collect() } else { vec![] }
    }

    /// These are on disk. Of some there may be a later version.
    pub fn written(&mut self, records: &[AllocationRecord]) {
        for record in records {
            if self.waiting.get(&record.id) == Some(record) {
                self.waiting.remove(&record.id);
            }
        }
    }

    /// All open holdings wait for the disk: for a new file, or at the end.
    pub fn requeue_all(&mut self) {
        self.waiting.extend(self.tracked.values().map(|tracked| (tracked.record.id, tracked.record.clone())));
        self.waiting.extend(self.orphans.iter().map(|record| (record.id, record.clone())));
    }

    /// Records that are newer than those on disk.
    #[must_use]
    pub fn live(&self) -> BTreeMap<u64, AllocationRecord> {
        let mut live = self.waiting.clone();
        live.extend(self.orphans.iter().map(|record| (record.id, record.clone())));
        live.extend(self.tracked.values().map(|tracked| (tracked.record.id, tracked.record.clone())));
        live
    }

    fn follow(&mut self, account: &Account, snapshot: &Snapshot) -> bool {
        let key = subject::account_key(account);
        let figures = account.figures;
        let counted = Counted { created: account.created, figures };
        let known = self.counted.insert(key.clone(), counted);
        let known = known.filter(|known| known.created == account.created && !figures.fell_since(known.figures));
        let is_held = account.holding.is_some();
        let uid = subject::pod_uid(snapshot, &account.container);
        let mut urgent = false;
        if uid.is_some()
            && let Some(tracked) = self.tracked.get_mut(&key).filter(|tracked| tracked.record.pod_uid.is_none())
        {
            tracked.record.pod_uid = uid;
            tracked.continue_one_of(&mut self.orphans, &mut self.waiting, &key, snapshot.at.unix);
            urgent = true;
        }
        let goes_on = self.tracked.get(&key).is_some_and(|tracked| tracked.ended.is_none());
        if is_held && !goes_on {
            if let Some(tracked) = self.tracked.remove(&key) {
                self.waiting.insert(tracked.record.id, tracked.record);
            }
            self.open(key, account, known, snapshot);
            return true;
        }
        match self.tracked.get_mut(&key) {
            Some(tracked) => {
                let now_ended = !is_held && tracked.ended.is_none();
                urgent |= tracked.update(account, snapshot);
                if now_ended {
                    let replaced = subject::is_replaced(account, snapshot);
                    tracked.end(snapshot.at, if replaced { Ending::Replaced } else { Ending::Released });
                    urgent = true;
                }
                if urgent {
                    self.waiting.insert(tracked.record.id, tracked.record.clone());
                }
                urgent
            }
            // It began and ended between two snapshots.
            None if known.is_none() && !is_held => {
                self.open(key.clone(), account, None, snapshot);
                if let Some(tracked) = self.tracked.get_mut(&key) {
                    tracked.end(snapshot.at, Ending::Released);
                    self.waiting.insert(tracked.record.id, tracked.record.clone());
                }
                true
            }
            None => false,
        }
    }

    fn open(&mut self, key: HoldingKey, account: &Account, known: Option<Counted>, snapshot: &Snapshot) {
        let first = known.is_none();
        let began = if first { account.created } else { snapshot.at.unix };
        let mut tracked = Tracked {
            record: subject::record(account, snapshot, began, self.next_id(snapshot.at)),
            base: known.map_or_else(Figures::default, |known| known.figures),
            base_xids: if first { vec![] } else { subject::xids(account, snapshot) },
            since: snapshot.at.monotonic,
            earlier: None,
            carried: Figures::default(),
            ended: None,
        };
        tracked.update(account, snapshot);
        tracked.continue_one_of(&mut self.orphans, &mut self.waiting, &key, snapshot.at.unix);
        self.waiting.insert(tracked.record.id, tracked.record.clone());
        self.tracked.insert(key, tracked);
    }

    /// Ends holdings without an account, and drops those with their last figures.
    fn settle(&mut self, snapshot: &Snapshot) -> bool {
        let present: BTreeSet<HoldingKey> = snapshot.accounts.iter().map(subject::account_key).collect();
        self.counted.retain(|key, _| present.contains(key));
        let Self { tracked, waiting, .. } = self;
        let mut urgent = false;
        tracked.retain(|key, tracked| {
            if tracked.ended.is_none() && !present.contains(key) {
                tracked.end(snapshot.at, Ending::Released);
                urgent = true;
                waiting.insert(tracked.record.id, tracked.record.clone());
            }
            let Some(ended) = tracked.ended else { return true };
            let is_over = snapshot.at.monotonic.since(ended) >= SETTLING || !present.contains(key);
            if is_over {
                waiting.insert(tracked.record.id, tracked.record.clone());
            }
            !is_over
        });
        urgent
    }

    /// Adds health transitions to the holdings of the device.
    fn add_transitions(&mut self, snapshot: &Snapshot) -> bool {
        let mut urgent = false;
        let transitions = &snapshot.health.transitions;
        for transition in transitions.iter().filter(|transition| transition.number > self.last_transition) {
            for (key, tracked) in &mut self.tracked {
                let concerned = key.gpu == transition.gpu && (transition.mig.is_none() || transition.mig == key.mig);
                if concerned && tracked.ended.is_none() && transition.at.monotonic >= tracked.since {
                    subject::note(&mut tracked.record, subject::health_event(transition));
                    self.waiting.insert(tracked.record.id, tracked.record.clone());
                    urgent = true;
                }
            }
        }
        self.last_transition = transitions.last().map_or(self.last_transition, |transition| transition.number);
        urgent
    }

    /// Ends the orphans that certainly no longer hold the device, at the time they were last seen.
    fn end_orphans(&mut self, snapshot: &Snapshot) -> bool {
        let before = self.orphans.len();
        if before == 0 {
            return false;
        }
        let Self { orphans, waiting, .. } = self;
        orphans.retain_mut(|record| {
            let ended = subject::has_ended(record, snapshot);
            if ended {
                (record.ended, record.ending) = (Some(record.seen), Some(Ending::Unseen));
                waiting.insert(record.id, record.clone());
            }
            !ended
        });
        self.orphans.len() < before
    }

    fn keep_within_limit(&mut self) {
        while self.waiting.len() > WAITING_LIMIT {
            let ended = self.waiting.iter().find(|(_, record)| !record.is_open()).map(|(id, _)| *id);
            let first = ended.or_else(|| self.waiting.keys().next().copied());
            first.and_then(|id| self.waiting.remove(&id));
            self.dropped += 1;
        }
    }

    /// Microseconds of Unix time, or one more than the last.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time since 1970 fits for ages")]
    fn next_id(&mut self, now: Moment) -> u64 {
        self.last_id = (self.last_id + 1).max((now.unix.0 * 1e6) as u64);
        self.last_id
    }
}

impl Tracked {
    /// Updates the record from the account. True when more than the figures changed.
    fn update(&mut self, account: &Account, snapshot: &Snapshot) -> bool {
        let figures = account.figures;
        if figures.fell_since(self.base) {
            // The account of another holding under the same name.
            self.carried = self.record.figures;
            self.base = Figures::default();
        }
        self.record.figures = self.carried.plus(figures.since(self.base));
        if self.ended.is_none() {
            self.set_seen(snapshot.at.unix);
            subject::describe(&mut self.record, account, snapshot);
        }
        let earlier = self.earlier.as_ref().map_or(&[][..], |earlier| &earlier.xids);
        let xids = subject::xids_since(account, snapshot, &self.base_xids, earlier);
        let changed = xids != self.record.xids;
        self.record.xids = xids;
        changed
    }

    fn end(&mut self, now: Moment, ending: Ending) {
        self.ended = Some(now.monotonic);
        self.set_seen(now.unix);
        self.record.ended = Some(now.unix.0);
        self.record.ending = Some(ending);
    }

    /// After a clock that was set back, it began as long ago as it was held.
    fn set_seen(&mut self, now: UnixSeconds) {
        self.record.seen = now.0;
        if now.0 < self.record.began {
            self.record.began = now.0 - self.record.figures.held_seconds.unwrap_or(0.0);
        }
    }

    /// A record with a pod UID waits until the UID of this pod is known.
    fn may_continue(&self, old: &AllocationRecord) -> bool {
        let same_pod = old.pod_uid.is_none() || old.pod_uid == self.record.pod_uid;
        same_pod && self.earlier.is_none() && old.is_open()
    }

    fn continue_one_of(
        &mut self,
        orphans: &mut Vec<AllocationRecord>,
        waiting: &mut BTreeMap<u64, AllocationRecord>,
        key: &HoldingKey,
        now: UnixSeconds,
    ) {
        let is_same = |old: &AllocationRecord| subject::is_same_name_and_device(&subject::record_key(old), key);
        if let Some(index) = orphans.iter().position(|old| is_same(old) && self.may_continue(old)) {
            waiting.remove(&self.record.id);
            self.continue_from(orphans.remove(index), now);
            waiting.insert(self.record.id, self.record.clone());
        }
    }

    /// Continues the record of an earlier agent. Time that both agents observed counts once.
    fn continue_from(&mut self, old: AllocationRecord, now: UnixSeconds) {
        let watched = now.0 - self.record.began;
        let both = (old.seen - self.record.began).clamp(0.0, watched.max(0.0));
        let own = if watched > 0.0 { 1.0 - both / watched } else { 1.0 };
        // Less the figures of the time that both observed.
        let twice = self.record.figures.times(-(1.0 - own));
        self.carried = if own < 1.0 { old.figures.plus(twice) } else { old.figures };
        self.record.figures = old.figures.plus(self.record.figures.times(own));
        self.record.unseen_seconds = old.unseen_seconds + (self.record.began - old.seen).max(0.0);
        self.record.agent_restarts = old.agent_restarts + 1;
        self.record.id = old.id;
        self.record.began = old.began;
        self.record.pod_uid = self.record.pod_uid.take().or_else(|| old.pod_uid.clone());
        self.record.xids = subject::together(&old.xids, &self.record.xids);
        let own_events = std::mem::replace(&mut self.record.health, old.health.clone());
        self.record.health_dropped += old.health_dropped;
        for event in own_events {
            // The earlier record may have the same unhealthy event.
            let last = self.record.health.last();
            if last.is_none_or(|last| (last.healthy, &last.reason) != (event.healthy, &event.reason)) {
                subject::note(&mut self.record, event);
            }
        }
        self.earlier = Some(old);
    }
}

#[cfg(test)]
mod tests;
