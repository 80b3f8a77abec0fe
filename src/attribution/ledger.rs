//! The ledger turns who-holds-what and device totals into per-container counters. It is the only state of attribution.
//!
//! Each device has its own clock, which stands at the time its readings are complete to. When a reading moves that clock
//! on, the interval it covers is divided among the holders by the time each of them held the device inside it. So a
//! container's allocated, busy and idle seconds always speak of the same time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::join::{HoldingKey, Join};
use crate::model::{Account, DeviceReadings, GpuUuid, Holding, Inventory, Moment, Monotonic, Sharing, UnixSeconds};

/// A page that nobody reads must not grow for ever: beyond this many the longest-ended accounts go first.
const ENDED_LIMIT: usize = 4096;
/// Busy time that samples have already reported for time the device clock has not reached yet.
const CARRY_LIMIT_SECONDS: f64 = 2.0;

#[derive(Debug)]
pub struct Ledger {
    retention: Duration,
    /// Past this a device without new readings is accounted by the clock on the wall: held, but not known to be busy or
    /// idle.
    readings_late: Duration,
    devices: BTreeMap<GpuUuid, DeviceClock>,
    entries: BTreeMap<HoldingKey, Entry>,
}

/// What is known at one moment.
pub struct Observation<'a> {
    pub now: Moment,
    pub join: &'a Join,
    pub inventory: &'a Inventory,
    pub readings: &'a BTreeMap<GpuUuid, Arc<DeviceReadings>>,
    /// Pages delivered so far; an ended account stays until two of them had it.
    pub scrapes: u64,
}

#[derive(Debug)]
struct DeviceClock {
    accounted: Monotonic,
    /// Whether a reading has been seen; the first one is where counting starts.
    read: bool,
    /// When somebody last took hold or let go.
    holders_changed: Monotonic,
    /// Since when `accounted` has gone on without readings.
    late_since: Option<Monotonic>,
    /// The totals at the last reading.
    busy_seconds: Option<f64>,
    energy_joules: Option<f64>,
    busy_carry: f64,
}

#[derive(Debug)]
struct Entry {
    account: Account,
    /// Held since then, like this, and not accounted yet.
    open: Option<(Monotonic, Grip)>,
    /// Held and let go, or held in another way, since the device clock last moved.
    closed: Vec<(Monotonic, Monotonic, Grip)>,
    /// `Observation::scrapes` when the final figures were first published.
    final_since_scrape: Option<u64>,
}

/// How a device is held, as far as accounting goes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Grip {
    /// `None` while it is not known how many slots the device has.
    share: Option<f64>,
    exclusive: bool,
}

/// What one interval of a device brought.
struct Interval {
    from: Monotonic,
    to: Monotonic,
    busy_seconds: Option<f64>,
    energy_joules: Option<f64>,
}

impl Ledger {
    #[must_use]
    pub fn new(retention: Duration, readings_late: Duration) -> Self {
        Self { retention, readings_late, devices: BTreeMap::new(), entries: BTreeMap::new() }
    }

    pub fn set_retention(&mut self, retention: Duration) {
        self.retention = retention;
    }

    /// Brings the ledger up to `observation.now` and gives all accounts, in order.
    pub fn advance(&mut self, observation: &Observation<'_>) -> Vec<Account> {
        // Time up to now belongs to those who held until now; the new relation holds from now on.
        self.open_and_close(observation);
        for (gpu, interval) in self.intervals(observation) {
            self.account(&gpu, &interval, observation.now.unix);
        }
        self.gauge(observation);
        self.forget(observation);
        self.entries.values().map(|entry| entry.account.clone()).collect()
    }

    fn open_and_close(&mut self, observation: &Observation<'_>) {
        let now = observation.now;
        let mut changed = vec![];
        for (key, entry) in &mut self.entries {
            if !observation.join.holdings.contains_key(key) && entry.close(now.monotonic) {
                changed.push(key.gpu.clone());
            }
        }
        for (key, holding) in &observation.join.holdings {
            let opened = match self.entries.get_mut(key) {
                None => {
                    self.entries.insert(key.clone(), Entry::opened(key, holding, now));
                    true
                }
                Some(entry) => entry.hold(holding, now),
            };
            if opened {
                changed.push(key.gpu.clone());
            }
        }
        for gpu in changed {
            if let Some(clock) = self.devices.get_mut(&gpu) {
                clock.holders_changed = now.monotonic;
            }
        }
    }

    /// Moves the device clocks and says what each moved over.
    fn intervals(&mut self, observation: &Observation<'_>) -> Vec<(GpuUuid, Interval)> {
        let now = observation.now.monotonic;
        let mut moved = vec![];
        for (gpu, readings) in observation.readings {
            let totals = &readings.totals;
            let clock = self.devices.entry(gpu.clone()).or_insert_with(|| DeviceClock::starting(totals.through));
            if !clock.read {
                clock.read = true;
                clock.accounted = totals.through;
                (clock.busy_seconds, clock.energy_joules) = (totals.busy_seconds, totals.energy_joules);
            } else if totals.through > clock.accounted {
                moved.push((gpu.clone(), clock.advance(totals.through, totals.busy_seconds, totals.energy_joules)));
            }
        }
        let held: Vec<GpuUuid> = self.entries.keys().map(|key| key.gpu.clone()).collect();
        for gpu in held {
            let clock = self.devices.entry(gpu.clone()).or_insert_with(|| DeviceClock::starting(now));
            if now.since(clock.accounted) > self.readings_late {
                let interval = Interval { from: clock.accounted, to: now, busy_seconds: None, energy_joules: None };
                clock.late_since.get_or_insert(clock.accounted);
                clock.accounted = now;
                moved.push((gpu, interval));
            }
        }
        moved
    }

    fn account(&mut self, gpu: &GpuUuid, interval: &Interval, now: UnixSeconds) {
        let length = interval.to.since(interval.from).as_secs_f64();
        for (_, entry) in self.entries.iter_mut().filter(|(key, _)| key.gpu == *gpu) {
            let held = entry.take_held(interval.from, interval.to);
            if let Some(allocated) = held.allocated_seconds {
                *entry.account.allocated_seconds.get_or_insert(0.0) += allocated;
            }
            if held.alone_seconds <= 0.0 || length <= 0.0 {
                continue;
            }
            if let Some(busy) = interval.busy_seconds {
                let busy = busy * held.alone_seconds / length;
                *entry.account.busy_seconds.get_or_insert(0.0) += busy;
                *entry.account.idle_seconds.get_or_insert(0.0) += (held.alone_seconds - busy).max(0.0);
                if busy > 0.0 {
                    entry.account.last_active = Some(now);
                }
                entry.account.last_active.get_or_insert(entry.account.created);
            }
            if let Some(energy) = interval.energy_joules {
                *entry.account.energy_joules.get_or_insert(0.0) += energy * held.alone_seconds / length;
            }
        }
    }

    /// Present values: of those who hold now, from readings that are fresh.
    fn gauge(&mut self, observation: &Observation<'_>) {
        for (key, entry) in &mut self.entries {
            let account = &mut entry.account;
            let readings = observation.readings.get(&key.gpu).filter(|_| account.holding.is_some());
            let fast = readings.and_then(|readings| readings.fast.as_ref()).map(|stamped| &stamped.value);
            let medium = readings.and_then(|readings| readings.medium.as_ref()).map(|stamped| &stamped.value);
            let sharing = account.holding.as_ref().map(|holding| holding.sharing);
            let instance = medium
                .zip(key.mig.as_ref())
                .and_then(|(medium, mig)| medium.instances.iter().find(|instance| instance.members.contains(mig)));
            let (gpm, memory) = match sharing {
                Some(Sharing::Exclusive) => (medium.map(|medium| &medium.gpm), medium.and_then(|medium| medium.memory)),
                Some(Sharing::Mig) => {
                    // A GPU instance of several compute instances: its figures are not this container's alone.
                    let alone = instance.filter(|instance| instance.members.len() == 1);
                    (alone.map(|instance| &instance.gpm), alone.and_then(|instance| instance.memory))
                }
                _ => (None, None),
            };
            account.utilization_ratio =
                fast.filter(|_| sharing == Some(Sharing::Exclusive)).and_then(|fast| fast.utilization_ratio);
            account.sm_active_ratio = gpm.and_then(|gpm| gpm.sm_active);
            account.dram_active_ratio = gpm.and_then(|gpm| gpm.dram_active);
            account.memory_used_bytes = memory.map(|memory| memory.used);
            account.memory_limit_bytes = sharing.and_then(|_| match &key.mig {
                Some(mig) => observation.inventory.mig(mig).and_then(|(_, mig)| mig.memory_bytes),
                None => observation.inventory.gpus.get(&key.gpu).and_then(|gpu| gpu.memory_bytes),
            });
        }
    }

    /// Ended accounts go after the retention, once two pages had their final figures.
    fn forget(&mut self, observation: &Observation<'_>) {
        let now = observation.now.monotonic;
        for entry in self.entries.values_mut().filter(|entry| entry.is_final()) {
            entry.final_since_scrape.get_or_insert(observation.scrapes);
        }
        let retention = self.retention;
        self.entries.retain(|_, entry| match (entry.account.ended, entry.final_since_scrape) {
            (Some(ended), Some(scrapes)) => now.since(ended) < retention || observation.scrapes < scrapes + 2,
            _ => true,
        });
        let ended = |entry: &Entry| entry.account.ended;
        let surplus = self.entries.values().filter_map(ended).count().saturating_sub(ENDED_LIMIT);
        if surplus > 0 {
            let mut by_end: Vec<(Monotonic, HoldingKey)> =
                self.entries.iter().filter_map(|(key, entry)| Some((ended(entry)?, key.clone()))).collect();
            by_end.sort();
            for (_, key) in by_end.into_iter().take(surplus) {
                self.entries.remove(&key);
            }
        }
    }
}

impl DeviceClock {
    fn starting(at: Monotonic) -> Self {
        Self {
            accounted: at,
            read: false,
            holders_changed: at,
            late_since: None,
            busy_seconds: None,
            energy_joules: None,
            busy_carry: 0.0,
        }
    }

    fn advance(&mut self, through: Monotonic, busy_total: Option<f64>, energy_total: Option<f64>) -> Interval {
        let from = std::mem::replace(&mut self.accounted, through);
        let busy = gain(&mut self.busy_seconds, busy_total).map(|busy| {
            // Samples come in steps of a sixth of a second or more and may reach past the interval they are read in.
            let due = busy + self.busy_carry;
            let taken = due.min(through.since(from).as_secs_f64());
            self.busy_carry = (due - taken).min(CARRY_LIMIT_SECONDS);
            taken
        });
        // Energy drawn while nobody was reading belongs to whoever held the device all that time, or to nobody.
        let whose = self.late_since.take().is_none_or(|since| self.holders_changed <= since);
        let energy = gain(&mut self.energy_joules, energy_total).filter(|_| whose);
        Interval { from, to: through, busy_seconds: busy, energy_joules: energy }
    }
}

/// What a total has gained since it was last seen; the first sight of a total is where it starts.
fn gain(last: &mut Option<f64>, total: Option<f64>) -> Option<f64> {
    let total = total?;
    let before = last.replace(total)?;
    Some((total - before).max(0.0))
}

impl Entry {
    fn opened(key: &HoldingKey, holding: &Holding, now: Moment) -> Self {
        let account = Account {
            container: key.container.clone(),
            gpu: key.gpu.clone(),
            mig: key.mig.clone(),
            holding: Some(holding.clone()),
            created: now.unix,
            allocated_seconds: holding.share.map(|_| 0.0),
            busy_seconds: None,
            idle_seconds: None,
            energy_joules: None,
            last_active: None,
            utilization_ratio: None,
            sm_active_ratio: None,
            dram_active_ratio: None,
            memory_used_bytes: None,
            memory_limit_bytes: None,
            ended: None,
        };
        Self { account, open: Some((now.monotonic, Grip::of(holding))), closed: vec![], final_since_scrape: None }
    }

    /// Holds on, or takes hold again. True when that is a change.
    fn hold(&mut self, holding: &Holding, now: Moment) -> bool {
        let grip = Grip::of(holding);
        if self.account.holding.as_ref() != Some(holding) {
            self.account.holding = Some(holding.clone());
        }
        if self.account.ended.take().is_some() {
            // Another pod under the same name, perhaps: it has not been idle since before it was there.
            self.account.last_active = self.account.last_active.map(|_| now.unix);
            self.final_since_scrape = None;
        }
        match self.open {
            Some((_, held)) if held == grip => false,
            Some((since, held)) => {
                self.closed.push((since, now.monotonic, held));
                self.open = Some((now.monotonic, grip));
                true
            }
            None => {
                self.open = Some((now.monotonic, grip));
                true
            }
        }
    }

    /// Lets go. True when it held.
    fn close(&mut self, now: Monotonic) -> bool {
        let Some((since, grip)) = self.open.take() else { return false };
        self.closed.push((since, now, grip));
        self.account.holding = None;
        self.account.ended = Some(now);
        true
    }

    fn is_final(&self) -> bool {
        self.open.is_none() && self.closed.is_empty()
    }

    /// What this entry held of the device between `from` and `to`; what it held up to `to` is then done with.
    fn take_held(&mut self, from: Monotonic, to: Monotonic) -> Held {
        let mut held = Held::default();
        self.closed.retain_mut(|(since, until, grip)| {
            held.add((*until).min(to).since((*since).max(from)), *grip);
            *since = (*since).max(to);
            *since < *until
        });
        if let Some((open, grip)) = &mut self.open
            && *open < to
        {
            held.add(to.since((*open).max(from)), *grip);
            *open = to;
        }
        held
    }
}

/// What one entry held in one interval.
#[derive(Debug, Default)]
struct Held {
    /// `None` where no share was known.
    allocated_seconds: Option<f64>,
    /// As the only holder.
    alone_seconds: f64,
}

impl Held {
    fn add(&mut self, duration: Duration, grip: Grip) {
        let seconds = duration.as_secs_f64();
        if let Some(share) = grip.share {
            *self.allocated_seconds.get_or_insert(0.0) += seconds * share;
        }
        if grip.exclusive {
            self.alone_seconds += seconds;
        }
    }
}

impl Grip {
    fn of(holding: &Holding) -> Self {
        Self { share: holding.share, exclusive: holding.sharing == Sharing::Exclusive }
    }
}

#[cfg(test)]
mod tests;
