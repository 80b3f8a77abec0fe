//! Decides which records begin, change and end with a snapshot.
//!
//! In: successive snapshots, the open records of an earlier agent. Out: the records to write. Pure.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::Duration;

use super::allocation_record::{AllocationRecord, Ending, Xid};
use super::recording::{self, HoldersByKey};
use crate::domain::holders::HoldingKey;
use crate::domain::model::{Account, HoldingCounters, Moment, Monotonic, Snapshot, UnixSeconds};
use crate::domain::periods::{COUNTERS_FINAL, LISTS_NONE_AT_START};

/// The period in which open holdings are written: a crash loses their counters of at most this time.
pub const PROGRESS: Duration = Duration::from_secs(30);
/// The most ended records that wait for the disk; more are dropped, the oldest first. Open ones are in memory anyway.
const WAITING_LIMIT: usize = 4096;

/// Earlier agents' open records by container and device, without the pod's UID; those of one key in the file's order.
type Orphans = BTreeMap<HoldingKey, Vec<AllocationRecord>>;

/// Derives allocation records from successive snapshots, in memory only.
#[derive(Debug, Default)]
pub struct AllocationTracker {
    tracked: BTreeMap<HoldingKey, Tracked>,
    /// Each account in the last snapshot, from which the next holding counts.
    last_accounts: BTreeMap<HoldingKey, LastAccount>,
    observations: u64,
    /// The records that were open when the last agent ended, and are not matched yet.
    orphans: Orphans,
    /// Since when the settled answers of the kubelet list no pod.
    lists_none_since: Option<Monotonic>,
    /// The records of which the disk has no version, or may have an older one, by ID.
    waiting: BTreeMap<u64, AllocationRecord>,
    /// Whether the records of the last agent have been read.
    loaded: bool,
    last_id: u64,
    last_transition: u64,
    last_progress: Monotonic,
    pub dropped: u64,
}

#[derive(Clone, Copy, Debug)]
struct LastAccount {
    created: UnixSeconds,
    counters: HoldingCounters,
    /// The number of the last observation with the account.
    seen: u64,
}

/// A holding that continues, or whose account is not removed yet. The record's counters and XIDs are `carried` +
/// (account − `base`).
#[derive(Clone, Debug, Default)]
struct Tracked {
    record: AllocationRecord,
    /// The counters of the account in the last snapshot before this holding: they lack at most the time since the last reading, which
    /// this holding then has.
    base: HoldingCounters,
    base_xids: Vec<Xid>,
    /// The counters of an earlier agent's record that this one continues, without those of time that both observed.
    carried: HoldingCounters,
    carried_xids: Vec<Xid>,
    since: Monotonic,
    ended: Option<Monotonic>,
    /// The counters that were passed to `waiting` as final.
    final_counters: Option<HoldingCounters>,
}

impl AllocationTracker {
    /// Updates the records from a snapshot. Returns true when a record must be written soon: for a beginning, an end,
    /// an event, or progress that is due.
    pub fn observe(&mut self, snapshot: &Snapshot) -> bool {
        self.observations += 1;
        let before = self.waiting.len();
        let mut urgent = false;
        let holders = LazyCell::new(|| recording::holders(snapshot));
        for account in &snapshot.accounts {
            urgent |= self.follow(account, snapshot, &holders);
        }
        let at = snapshot.at;
        urgent |= self.finish_ended(snapshot);
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

    /// Adds the records that another agent left open, when a file was opened.
    pub fn load(&mut self, open: Vec<AllocationRecord>, last_id: u64, now: Moment) {
        if std::mem::replace(&mut self.loaded, true) {
            // It may be another file now.
            self.requeue_all();
        }
        self.last_id = self.last_id.max(last_id);
        // A record in memory is always newer.
        let live = self.live();
        for record in open.into_iter().filter(|record| !record.is_in(&live)) {
            self.orphans.entry(recording::record_key(&record)).or_default().push(record);
        }
        for (key, tracked) in &mut self.tracked {
            tracked.continue_one_of(&mut self.orphans, &mut self.waiting, key, now.unix);
        }
    }

    /// The records to write, which wait until they are. None before `load`.
    pub fn to_write(&self) -> Vec<AllocationRecord> {
        if self.loaded { self.waiting.values().cloned().collect() } else { vec![] }
    }

    /// Applies that these are on disk. A record may have a later version by now.
    pub fn written(&mut self, records: &[AllocationRecord]) {
        for record in records {
            if self.waiting.get(&record.id) == Some(record) {
                self.waiting.remove(&record.id);
            }
        }
    }

    /// Makes all records that may still change wait for the disk: for a file that is opened again, or at the end.
    pub fn requeue_all(&mut self) {
        self.waiting = self.live();
    }

    /// The records that may be newer than those on disk, or not be there: all in memory except those with written final counters.
    #[must_use]
    pub fn live(&self) -> BTreeMap<u64, AllocationRecord> {
        let mut live = self.waiting.clone();
        live.extend(self.orphans.values().flatten().map(|record| (record.id, record.clone())));
        let tracked = self.tracked.values().filter(|tracked| tracked.final_counters != Some(tracked.record.counters));
        live.extend(tracked.map(|tracked| (tracked.record.id, tracked.record.clone())));
        live
    }

    fn follow<'a>(
        &mut self,
        account: &Account,
        snapshot: &'a Snapshot,
        holders: &impl Deref<Target = HoldersByKey<'a>>,
    ) -> bool {
        let key = recording::account_key(account);
        let counters = account.counters;
        let now = LastAccount { created: account.created, counters, seen: self.observations };
        let last = self.last_accounts.insert(key.clone(), now);
        // Another account starts at zero; after the clock was set back it may be of the same second.
        let last = last.filter(|last| last.created == account.created && !counters.fell_since(last.counters));
        let is_held = account.holding.is_some();
        let goes_on = last.is_some() && self.tracked.get(&key).is_some_and(|tracked| tracked.ended.is_none());
        // An account that is new and not held had a holding between two snapshots.
        let begins = if is_held { !goes_on } else { last.is_none() };
        if begins {
            self.finish(&key, snapshot.at);
            self.open(key, account, last, snapshot);
            return true;
        }
        let Some(tracked) = self.tracked.get_mut(&key) else { return false };
        let mut urgent = false;
        if tracked.record.pod_uid.is_none()
            && let Some(uid) = recording::pod_uid(snapshot, &account.container)
        {
            tracked.record.pod_uid = Some(uid);
            tracked.continue_one_of(&mut self.orphans, &mut self.waiting, &key, snapshot.at.unix);
            urgent = true;
        }
        urgent |= tracked.update(account, snapshot);
        if !is_held && goes_on {
            let replaced = recording::is_replaced(account, holders);
            tracked.end(snapshot.at, if replaced { Ending::Replaced } else { Ending::Released });
            urgent = true;
        }
        if urgent {
            self.waiting.insert(tracked.record.id, tracked.record.clone());
        }
        urgent
    }

    /// Ends the tracked holding, as another holding or account follows under the key. What it has used since the last reading is in
    /// the next holding's counters if the account stays the same: the ledger counts by account.
    fn finish(&mut self, key: &HoldingKey, now: Moment) {
        if let Some(mut tracked) = self.tracked.remove(key) {
            if tracked.ended.is_none() {
                tracked.end(now, Ending::Released);
            }
            self.waiting.insert(tracked.record.id, tracked.record);
        }
    }

    /// Begins a record. `last`: the account in the last snapshot.
    fn open(&mut self, key: HoldingKey, account: &Account, last: Option<LastAccount>, snapshot: &Snapshot) {
        let first = last.is_none();
        let began = if first { account.created } else { snapshot.at.unix };
        let mut tracked = Tracked {
            record: recording::record(account, snapshot, began, self.next_id(snapshot.at)),
            base: last.map_or_else(HoldingCounters::default, |last| last.counters),
            base_xids: if first { vec![] } else { recording::xids(account, snapshot) },
            since: snapshot.at.monotonic,
            ..Tracked::default()
        };
        tracked.update(account, snapshot);
        tracked.continue_one_of(&mut self.orphans, &mut self.waiting, &key, snapshot.at.unix);
        if account.holding.is_none() {
            tracked.end(snapshot.at, Ending::Released);
        }
        self.waiting.insert(tracked.record.id, tracked.record.clone());
        self.tracked.insert(key, tracked);
    }

    /// Ends holdings without an account, and removes them. Writes the final counters of ended ones, and again where the energy of a gap
    /// comes later.
    fn finish_ended(&mut self, snapshot: &Snapshot) -> bool {
        self.last_accounts.retain(|_, last| last.seen == self.observations);
        let Self { tracked, waiting, last_accounts: present, .. } = self;
        let mut urgent = false;
        tracked.retain(|key, tracked| {
            if tracked.ended.is_none() && !present.contains_key(key) {
                tracked.end(snapshot.at, Ending::Released);
                urgent = true;
                waiting.insert(tracked.record.id, tracked.record.clone());
            }
            let Some(ended) = tracked.ended else { return true };
            let (is_present, counters) = (present.contains_key(key), Some(tracked.record.counters));
            let is_final = snapshot.at.monotonic.since(ended) >= COUNTERS_FINAL || !is_present;
            if is_final && std::mem::replace(&mut tracked.final_counters, counters) != counters {
                waiting.insert(tracked.record.id, tracked.record.clone());
            }
            is_present
        });
        urgent
    }

    /// Adds health transitions to the holdings of the device.
    fn add_transitions(&mut self, snapshot: &Snapshot) -> bool {
        let mut urgent = false;
        let transitions = &snapshot.health.transitions;
        for transition in transitions.iter().filter(|transition| transition.number > self.last_transition) {
            for (key, tracked) in &mut self.tracked {
                // A cause of a GPU is also one of its MIG devices.
                let concerned = (&transition.gpu, &transition.mig) == (&key.gpu, &key.mig);
                if concerned && tracked.ended.is_none() && transition.at.monotonic >= tracked.since {
                    recording::add_health_event(&mut tracked.record, recording::health_event(transition));
                    self.waiting.insert(tracked.record.id, tracked.record.clone());
                    urgent = true;
                }
            }
        }
        self.last_transition = transitions.last().map_or(self.last_transition, |transition| transition.number);
        // A first check is no transition, and an earlier agent may have left the device in another state.
        for (key, tracked) in self.tracked.iter_mut().filter(|(_, tracked)| tracked.ended.is_none()) {
            let health = snapshot.health.device(&key.gpu, key.mig.as_ref());
            if health.is_some_and(|health| recording::add_health_difference(&mut tracked.record, health)) {
                self.waiting.insert(tracked.record.id, tracked.record.clone());
                urgent = true;
            }
        }
        urgent
    }

    /// Ends the orphans that certainly no longer hold the device, at the time of their last update.
    fn end_orphans(&mut self, snapshot: &Snapshot) -> bool {
        let now = snapshot.at.monotonic;
        self.lists_none_since = snapshot.kubelet.lists_none().then(|| self.lists_none_since.unwrap_or(now));
        if self.orphans.is_empty() || self.lists_none_since.is_some_and(|since| now.since(since) < LISTS_NONE_AT_START)
        {
            return false;
        }
        let Self { orphans, waiting, .. } = self;
        let holders = recording::holders(snapshot);
        let mut urgent = false;
        orphans.retain(|key, records| {
            records.retain_mut(|record| {
                let ended = recording::has_ended(record, key, snapshot, &holders);
                if ended {
                    (record.ended, record.ending) = (Some(record.seen), Some(Ending::Unseen));
                    waiting.insert(record.id, record.clone());
                    urgent = true;
                }
                !ended
            });
            !records.is_empty()
        });
        urgent
    }

    fn keep_within_limit(&mut self) {
        let ended = self.waiting.values().filter(|record| !record.is_open());
        let ended: Vec<u64> = ended.map(|record| record.id).collect();
        let surplus = ended.len().saturating_sub(WAITING_LIMIT);
        for id in &ended[..surplus] {
            self.waiting.remove(id);
            self.dropped += 1;
        }
    }

    /// The next ID: microseconds of Unix time, or one more than the last ID.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time since 1970 fits for ages")]
    fn next_id(&mut self, now: Moment) -> u64 {
        self.last_id = (self.last_id + 1).max((now.unix.0 * 1e6) as u64);
        self.last_id
    }
}

impl Tracked {
    /// Updates the record from the account. Returns true when more than the counters changed.
    fn update(&mut self, account: &Account, snapshot: &Snapshot) -> bool {
        self.record.counters = self.carried.plus(account.counters.since(self.base));
        if self.ended.is_none() {
            self.set_seen(snapshot.at.unix);
            recording::describe(&mut self.record, account, snapshot);
        }
        let own = recording::xids_since(account, snapshot, &self.base_xids);
        let xids = recording::together(&self.carried_xids, &own);
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

    /// Sets the time of the last update. After the clock was set back, the beginning becomes `now` less the time held.
    fn set_seen(&mut self, now: UnixSeconds) {
        self.record.seen = now.0;
        if now.0 < self.record.began {
            self.record.began = now.0 - self.record.counters.held_seconds.unwrap_or(0.0);
        }
    }

    /// Whether this holding may continue the record; one with a pod UID waits until the UID of this pod is known.
    fn may_continue(&self, old: &AllocationRecord) -> bool {
        let same_pod = old.pod_uid.is_none() || old.pod_uid == self.record.pod_uid;
        same_pod && self.record.replaces.is_none() && old.is_open()
    }

    fn continue_one_of(
        &mut self,
        orphans: &mut Orphans,
        waiting: &mut BTreeMap<u64, AllocationRecord>,
        key: &HoldingKey,
        now: UnixSeconds,
    ) {
        let Some(same) = orphans.get_mut(&recording::without_uid(key)) else { return };
        if let Some(index) = same.iter().position(|old| self.may_continue(old)) {
            waiting.remove(&self.record.id);
            self.continue_from(same.remove(index), now);
            waiting.insert(self.record.id, self.record.clone());
        }
    }

    /// Continues the record of an earlier agent. Time that both agents observed counts once; XIDs have no times,
    /// and one that both attributed counts twice.
    fn continue_from(&mut self, old: AllocationRecord, now: UnixSeconds) {
        let observed = now.0 - self.record.began;
        // This is the part of the earlier record that both agents observed.
        let both = old.seen - old.began.max(self.record.began);
        let overlap = if observed > 0.0 { (both / observed).clamp(0.0, 1.0) } else { 0.0 };
        self.carried = old.counters.plus(self.record.counters.times(-overlap));
        self.record.counters = self.carried.plus(self.record.counters);
        self.record.unseen_seconds = old.unseen_seconds + (self.record.began - old.seen).max(0.0);
        self.record.agent_restarts = old.agent_restarts + 1;
        self.record.replaces = Some(std::mem::replace(&mut self.record.id, old.id));
        // The agent whose lock was replaced may have begun first.
        self.record.began = old.began.min(self.record.began);
        self.record.pod_uid = self.record.pod_uid.take().or_else(|| old.pod_uid.clone());
        self.record.xids = recording::together(&old.xids, &self.record.xids);
        let own_events = std::mem::replace(&mut self.record.health, old.health.clone());
        self.record.health_dropped += old.health_dropped;
        for event in own_events {
            recording::add_health_event(&mut self.record, event);
        }
        self.carried_xids = old.xids;
    }
}

#[cfg(test)]
mod tests;
