use std::collections::BTreeMap;
use std::time::Duration;

use super::record::{Ending, Figures, Record};
use super::subject::{self, Key};
use crate::model::{Account, Moment, Monotonic, Snapshot, UnixSeconds};

/// What goes on is written this often; a crash costs the figures of so long.
pub const PROGRESS: Duration = Duration::from_secs(30);
/// The last seconds of a device come with its next readings: so long after its end a holding's figures may still rise.
const SETTLING: Duration = Duration::from_secs(20);
/// Holdings that wait for the disk; beyond it those that ended first are given up.
const WAITING_LIMIT: usize = 4096;

/// From successive snapshots, who held which device from when to when. In memory alone.
#[derive(Debug, Default)]
pub struct Chronicle {
    tracked: BTreeMap<Key, Tracked>,
    /// How much of each account is in some record already.
    counted: BTreeMap<Key, Counted>,
    /// Open when the last agent ended, and not seen again yet.
    orphans: Vec<Record>,
    /// What the disk does not know yet, by id.
    waiting: BTreeMap<u64, Record>,
    /// Being written: not yet on disk, and no longer waiting.
    in_flight: BTreeMap<u64, Record>,
    /// What the last agent left has been read.
    loaded: bool,
    last_id: u64,
    last_turn: u64,
    last_progress: Monotonic,
    pub dropped: u64,
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    /// Of the account: another one counts anew.
    created: UnixSeconds,
    figures: Figures,
}

/// A holding that is held, or whose last figures are still awaited.
#[derive(Clone, Debug)]
struct Tracked {
    record: Record,
    /// The account's figures when this holding began.
    base: Figures,
    base_xids: BTreeMap<u32, u64>,
    since: Monotonic,
    /// Under an earlier agent.
    earlier: Option<Record>,
    /// What of the earlier agent's figures counts.
    carried: Figures,
    /// Whose pod's UID this is was said in this agent's life.
    uid_is_fresh: bool,
    ended: Option<Monotonic>,
}

impl Chronicle {
    /// True when something is to be written soon: a beginning, an end, an event.
    pub fn observe(&mut self, snapshot: &Snapshot) -> bool {
        let before = self.waiting.len();
        let mut urgent = false;
        for account in &snapshot.accounts {
            urgent |= self.follow(account, snapshot);
        }
        let at = snapshot.at;
        urgent |= self.settle(snapshot);
        urgent |= self.turns(snapshot);
        urgent |= self.bury_orphans(snapshot);
        if at.monotonic.since(self.last_progress) >= PROGRESS {
            self.last_progress = at.monotonic;
            let open = self.tracked.values().filter(|tracked| tracked.ended.is_none());
            self.waiting.extend(open.map(|tracked| (tracked.record.id, tracked.record.clone())));
            urgent |= self.waiting.len() > before;
        }
        self.keep_within_limit();
        urgent
    }

    /// What the last agent left open. Once, when the disk is there.
    pub fn load(&mut self, open: Vec<Record>, last_id: u64, now: Moment) {
        self.loaded = true;
        self.last_id = self.last_id.max(last_id);
        for record in open {
            let continues = |(key, tracked): &(&Key, &mut Tracked)| {
                subject::is_named(&record, key) && tracked.may_continue(&record)
            };
            match self.tracked.iter_mut().find(continues) {
                Some((_, tracked)) => {
                    self.waiting.remove(&tracked.record.id);
                    tracked.go_on_from(record, now.unix);
                    self.waiting.insert(tracked.record.id, tracked.record.clone());
                }
                None => self.orphans.push(record),
            }
        }
    }

    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// What is to be written, and is then the caller's. Nothing before `load`.
    pub fn take(&mut self) -> Vec<Record> {
        if !self.loaded {
            return vec![];
        }
        self.in_flight = std::mem::take(&mut self.waiting);
        self.in_flight.values().cloned().collect()
    }

    /// What was taken is on disk.
    pub fn written(&mut self) {
        self.in_flight.clear();
    }

    /// What could not be written: it waits on, unless there is a later word.
    pub fn give_back(&mut self, records: Vec<Record>) {
        self.in_flight.clear();
        for record in records {
            self.waiting.entry(record.id).or_insert(record);
        }
        self.keep_within_limit();
    }

    /// Everything that is held, for a journal begun anew, or at the end.
    pub fn all_wait(&mut self) {
        self.waiting.extend(self.tracked.values().map(|tracked| (tracked.record.id, tracked.record.clone())));
        self.waiting.extend(self.orphans.iter().map(|record| (record.id, record.clone())));
    }

    /// What the disk may not know, or not so well.
    #[must_use]
    pub fn live(&self) -> BTreeMap<u64, Record> {
        let mut live = self.in_flight.clone();
        live.extend(self.waiting.iter().map(|(id, record)| (*id, record.clone())));
        live.extend(self.orphans.iter().map(|record| (record.id, record.clone())));
        live.extend(self.tracked.values().map(|tracked| (tracked.record.id, tracked.record.clone())));
        live
    }

    fn follow(&mut self, account: &Account, snapshot: &Snapshot) -> bool {
        let key = (account.container.clone(), account.gpu.clone(), account.mig.clone());
        let figures = subject::figures(account);
        let counted = Counted { created: account.created, figures };
        let known = self.counted.insert(key.clone(), counted);
        let known = known.filter(|known| known.created == account.created && !figures.fell_since(known.figures));
        let is_held = account.holding.is_some();
        let uid = subject::pod_uid(snapshot, &account.container);
        let mut urgent = false;
        if let Some(tracked) = self.tracked.get_mut(&key) {
            match tracked.take_uid(uid.clone()) {
                Uid::Same => {}
                Uid::Learnt => urgent = true,
                Uid::OtherThanBefore => {
                    // What the last agent saw was another pod's.
                    let (mut old, id) = (tracked.forget_earlier(uid), self.next_id(snapshot.at));
                    self.tracked.entry(key.clone()).and_modify(|tracked| tracked.record.id = id);
                    (old.ended, old.ending) = (Some(old.seen), Some(Ending::Unseen));
                    self.waiting.insert(old.id, old);
                    urgent = true;
                }
            }
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
            // It came and went between two snapshots.
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

    fn open(&mut self, key: Key, account: &Account, known: Option<Counted>, snapshot: &Snapshot) {
        let first = known.is_none();
        let began = if first { account.created } else { snapshot.at.unix };
        let mut tracked = Tracked {
            record: subject::record(account, snapshot, began, self.next_id(snapshot.at)),
            base: known.map_or_else(Figures::default, |known| known.figures),
            base_xids: if first { BTreeMap::new() } else { subject::xids(account, snapshot) },
            since: snapshot.at.monotonic,
            earlier: None,
            carried: Figures::default(),
            uid_is_fresh: subject::pod_uid(snapshot, &account.container).is_some(),
            ended: None,
        };
        tracked.update(account, snapshot);
        let earlier = self.orphans.iter().position(|old| subject::is_named(old, &key) && tracked.may_continue(old));
        if let Some(position) = earlier {
            tracked.go_on_from(self.orphans.remove(position), snapshot.at.unix);
        }
        self.waiting.insert(tracked.record.id, tracked.record.clone());
        self.tracked.insert(key, tracked);
    }

    /// Ends what has no account any more, and lets go of what has its last figures.
    fn settle(&mut self, snapshot: &Snapshot) -> bool {
        let of = |account: &Account| (account.container.clone(), account.gpu.clone(), account.mig.clone());
        let present: std::collections::BTreeSet<Key> = snapshot.accounts.iter().map(of).collect();
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

    /// Devices that turned healthy or unhealthy under their holders.
    fn turns(&mut self, snapshot: &Snapshot) -> bool {
        let mut urgent = false;
        for turn in snapshot.health.transitions.iter().filter(|turn| turn.number > self.last_turn) {
            for ((_, gpu, mig), tracked) in &mut self.tracked {
                let concerned = *gpu == turn.gpu && (turn.mig.is_none() || turn.mig == *mig);
                if concerned && tracked.ended.is_none() && turn.at.monotonic >= tracked.since {
                    subject::note(&mut tracked.record, subject::health_event(turn));
                    self.waiting.insert(tracked.record.id, tracked.record.clone());
                    urgent = true;
                }
            }
        }
        self.last_turn = snapshot.health.transitions.last().map_or(self.last_turn, |turn| turn.number);
        urgent
    }

    /// Ends at its last sight what is certainly gone.
    fn bury_orphans(&mut self, snapshot: &Snapshot) -> bool {
        let before = self.orphans.len();
        if before == 0 {
            return false;
        }
        let Self { orphans, waiting, .. } = self;
        orphans.retain_mut(|record| {
            let gone = subject::is_gone(record, snapshot);
            if gone {
                (record.ended, record.ending) = (Some(record.seen), Some(Ending::Unseen));
                waiting.insert(record.id, record.clone());
            }
            !gone
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

enum Uid {
    Same,
    Learnt,
    /// Than the one that the last agent knew, and this one took over.
    OtherThanBefore,
}

impl Tracked {
    /// Brings the record up to the account. True when it says something new beside larger figures.
    fn update(&mut self, account: &Account, snapshot: &Snapshot) -> bool {
        let figures = subject::figures(account);
        if figures.fell_since(self.base) {
            // Another account under the same name.
            self.carried = self.record.figures;
            self.base = Figures::default();
        }
        self.record.figures = self.carried.plus(figures.since(self.base));
        if self.ended.is_none() {
            let earlier = self.earlier.as_ref().map_or(0.0, |earlier| earlier.held_seconds);
            self.record.held_seconds = earlier + snapshot.at.monotonic.since(self.since).as_secs_f64();
            self.record.seen = snapshot.at.unix.0;
            subject::describe(&mut self.record, account, snapshot);
        }
        let earlier = self.earlier.as_ref().map_or(&[][..], |earlier| &earlier.xids);
        let xids = subject::xids_since(account, snapshot, &self.base_xids, earlier);
        let news = xids != self.record.xids;
        self.record.xids = xids;
        news
    }

    fn end(&mut self, now: Moment, ending: Ending) {
        self.ended = Some(now.monotonic);
        self.record.ended = Some(now.unix.0);
        self.record.seen = now.unix.0;
        self.record.ending = Some(ending);
    }

    fn may_continue(&self, old: &Record) -> bool {
        let same_pod = match (&self.record.pod_uid, &old.pod_uid) {
            (Some(one), Some(two)) => one == two,
            _ => true,
        };
        same_pod && self.earlier.is_none() && old.is_open()
    }

    /// Is what an earlier agent began. Where both watched at once, what both saw counts once.
    fn go_on_from(&mut self, old: Record, now: UnixSeconds) {
        let watched = now.0 - self.record.began;
        let both = (old.seen - self.record.began).clamp(0.0, watched.max(0.0));
        let own = if watched > 0.0 { 1.0 - both / watched } else { 1.0 };
        // Less what both saw: figures add up, so it may be taken from what is carried.
        let twice = self.record.figures.times(-(1.0 - own));
        self.carried = if own < 1.0 { old.figures.plus(twice) } else { old.figures };
        self.record.figures = old.figures.plus(self.record.figures.times(own));
        self.record.unseen_seconds = old.unseen_seconds + (self.record.began - old.seen).max(0.0);
        self.record.held_seconds += old.held_seconds;
        self.record.agent_restarts = old.agent_restarts + 1;
        self.record.id = old.id;
        self.record.began = old.began;
        self.record.pod_uid = self.record.pod_uid.take().or_else(|| old.pod_uid.clone());
        self.record.xids = subject::together(&old.xids, &self.record.xids);
        let own_events = std::mem::replace(&mut self.record.health, old.health.clone());
        self.record.health_dropped += old.health_dropped;
        for event in own_events {
            // That it was unhealthy already, the last agent knew too.
            if self
                .record
                .health
                .last()
                .is_none_or(|last| (last.healthy, &last.reason) != (event.healthy, &event.reason))
            {
                subject::note(&mut self.record, event);
            }
        }
        self.earlier = Some(old);
    }

    fn take_uid(&mut self, uid: Option<std::sync::Arc<str>>) -> Uid {
        let Some(uid) = uid.filter(|_| self.ended.is_none()) else { return Uid::Same };
        let was_fresh = std::mem::replace(&mut self.uid_is_fresh, true);
        match &self.record.pod_uid {
            Some(known) if *known == uid => Uid::Same,
            Some(_) if self.earlier.is_some() && !was_fresh => Uid::OtherThanBefore,
            // A holder keeps its UID: another pod of the name is another holder.
            Some(_) => Uid::Same,
            None => {
                self.record.pod_uid = Some(uid);
                Uid::Learnt
            }
        }
    }

    /// Becomes a holding of its own again; what the last agent said is handed back.
    fn forget_earlier(&mut self, uid: Option<std::sync::Arc<str>>) -> Record {
        let old = self.earlier.take().unwrap_or_default();
        self.carried = Figures::default();
        self.record.pod_uid = uid;
        self.record.began = old.seen + (self.record.unseen_seconds - old.unseen_seconds);
        self.record.unseen_seconds = 0.0;
        self.record.agent_restarts = 0;
        self.record.health.retain(|event| event.at >= self.record.began);
        old
    }
}

#[cfg(test)]
mod tests;
