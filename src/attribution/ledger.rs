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

/// Past this a device without new readings is accounted by the clock on the wall: held, but not known to be busy or idle.
const READINGS_LATE: Duration = Duration::from_secs(5);
/// A page that nobody reads must not grow for ever: beyond this many the longest-ended accounts go first.
const ENDED_LIMIT: usize = 4096;
/// Busy time that samples have already reported for time the device clock has not reached yet.
const CARRY_LIMIT_SECONDS: f64 = 2.0;

#[derive(Debug)]
pub struct Ledger {
    retention: Duration,
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
    /// The totals up to `accounted`.
    busy_seconds: Option<f64>,
    energy_joules: Option<f64>,
    busy_carry: f64,
}

#[derive(Debug)]
struct Entry {
    account: Account,
    /// Held since then and not accounted yet.
    open: Option<Monotonic>,
    /// Held and let go since the device clock last moved.
    closed: Vec<(Monotonic, Monotonic)>,
    /// Share of the last holding; still due for `closed`.
    share: f64,
    exclusive: bool,
    /// `Observation::scrapes` when the final figures were first published.
    final_since_scrape: Option<u64>,
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
    pub fn new(retention: Duration) -> Self {
        Self { retention, devices: BTreeMap::new(), entries: BTreeMap::new() }
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
        for (key, entry) in &mut self.entries {
            if let (None, Some(since)) = (observation.join.holdings.get(key), entry.open) {
                entry.closed.push((since, now.monotonic));
                entry.open = None;
                entry.account.holding = None;
                entry.account.ended = Some(now.monotonic);
            }
        }
        for (key, holding) in &observation.join.holdings {
            match self.entries.get_mut(key) {
                None => {
                    self.entries.insert(key.clone(), Entry::opened(key, holding, now));
                }
                Some(entry) => entry.reopen(holding, now.monotonic),
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
            if now.since(clock.accounted) > READINGS_LATE {
                let interval = Interval { from: clock.accounted, to: now, busy_seconds: None, energy_joules: None };
                clock.accounted = now;
                moved.push((gpu, interval));
            }
        }
        moved
    }

    fn account(&mut self, gpu: &GpuUuid, interval: &Interval, now: UnixSeconds) {
        let length = interval.to.since(interval.from).as_secs_f64();
        for (_, entry) in self.entries.iter_mut().filter(|(key, _)| key.gpu == *gpu) {
            let held = entry.take_held(interval.from, interval.to).as_secs_f64();
            entry.account.allocated_seconds += held * entry.share;
            if !entry.exclusive || length <= 0.0 {
                continue;
            }
            if let Some(busy) = interval.busy_seconds {
                let busy = busy * held / length;
                *entry.account.busy_seconds.get_or_insert(0.0) += busy;
                *entry.account.idle_seconds.get_or_insert(0.0) += (held - busy).max(0.0);
                if busy > 0.0 {
                    entry.account.last_active = Some(now);
                }
                entry.account.last_active.get_or_insert(entry.account.created);
            }
            if let Some(energy) = interval.energy_joules {
                *entry.account.energy_joules.get_or_insert(0.0) += energy * held / length;
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
        Self { accounted: at, read: false, busy_seconds: None, energy_joules: None, busy_carry: 0.0 }
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
        Interval { from, to: through, busy_seconds: busy, energy_joules: gain(&mut self.energy_joules, energy_total) }
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
            allocated_seconds: 0.0,
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
        Self {
            account,
            open: Some(now.monotonic),
            closed: vec![],
            share: holding.share,
            exclusive: holding.sharing == Sharing::Exclusive,
            final_since_scrape: None,
        }
    }

    fn reopen(&mut self, holding: &Holding, now: Monotonic) {
        if self.account.holding.as_ref() != Some(holding) {
            self.account.holding = Some(holding.clone());
            self.share = holding.share;
            self.exclusive = holding.sharing == Sharing::Exclusive;
        }
        self.account.ended = None;
        self.final_since_scrape = None;
        self.open.get_or_insert(now);
    }

    fn is_final(&self) -> bool {
        self.open.is_none() && self.closed.is_empty()
    }

    /// How long this entry held the device between `from` and `to`; what it held up to `to` is then done with.
    fn take_held(&mut self, from: Monotonic, to: Monotonic) -> Duration {
        let within = |since: Monotonic, until: Monotonic| until.min(to).since(since.max(from));
        let mut held = Duration::ZERO;
        self.closed.retain_mut(|(since, until)| {
            held += within(*since, *until);
            *since = (*since).max(to);
            *since < *until
        });
        if let Some(open) = &mut self.open
            && *open < to
        {
            held += within(*open, to);
            *open = to;
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Attribution, ContainerRef, Totals};
    use proptest::prelude::*;

    const GPU: &str = "GPU-aaaaaaaa-0000-0000-0000-000000000000";

    fn moment(milliseconds: u64) -> Moment {
        #[allow(clippy::cast_precision_loss, reason = "small numbers")]
        let unix = UnixSeconds(1_700_000_000.0 + milliseconds as f64 / 1000.0);
        Moment { monotonic: Monotonic::from_millis(milliseconds), unix }
    }

    fn holding(sharing: Sharing, share: f64) -> Holding {
        let attribution = Attribution::Exclusive;
        Holding { resource: Some("nvidia.com/gpu".into()), device_ids: vec![GPU.into()], sharing, attribution, share }
    }

    fn held_by(pods: &[&str], sharing: Sharing, share: f64) -> Join {
        let key =
            |pod: &&str| HoldingKey { container: ContainerRef::new("team", pod, "main"), gpu: GPU.into(), mig: None };
        let holdings = pods.iter().map(|pod| (key(pod), holding(sharing, share))).collect();
        Join { holdings, ..Join::default() }
    }

    /// A ledger with one device whose readings the test speaks.
    struct World {
        ledger: Ledger,
        join: Join,
        readings: BTreeMap<GpuUuid, Arc<DeviceReadings>>,
        scrapes: u64,
    }

    impl World {
        fn new() -> Self {
            let ledger = Ledger::new(Duration::from_secs(300));
            Self { ledger, join: Join::default(), readings: BTreeMap::new(), scrapes: 0 }
        }

        fn read(&mut self, milliseconds: u64, busy: Option<f64>, energy: Option<f64>) -> Vec<Account> {
            let through = Monotonic::from_millis(milliseconds);
            let totals = Totals { through, busy_seconds: busy, energy_joules: energy, ..Totals::default() };
            self.readings.insert(GPU.into(), Arc::new(DeviceReadings { totals, ..DeviceReadings::default() }));
            self.tick(milliseconds)
        }

        fn relate(&mut self, milliseconds: u64, join: Join) -> Vec<Account> {
            self.join = join;
            self.tick(milliseconds)
        }

        fn tick(&mut self, milliseconds: u64) -> Vec<Account> {
            let inventory = Inventory::default();
            self.ledger.advance(&Observation {
                now: moment(milliseconds),
                join: &self.join,
                inventory: &inventory,
                readings: &self.readings,
                scrapes: self.scrapes,
            })
        }
    }

    fn exclusive(pods: &[&str]) -> Join {
        held_by(pods, Sharing::Exclusive, 1.0)
    }

    /// Pod, allocated, busy, idle, energy.
    type Figures = (String, f64, Option<f64>, Option<f64>, Option<f64>);

    fn figures(accounts: &[Account]) -> Vec<Figures> {
        // To the microsecond: floating point is not what these tables are about.
        let round = |value: f64| (value * 1e6).round() / 1e6;
        let row = |account: &Account| {
            let parts = [account.busy_seconds, account.idle_seconds, account.energy_joules].map(|part| part.map(round));
            (account.container.pod.to_string(), round(account.allocated_seconds), parts[0], parts[1], parts[2])
        };
        accounts.iter().map(row).collect()
    }

    #[test]
    fn one_holder_gets_all_of_busy_and_energy() {
        let mut world = World::new();
        world.read(0, Some(0.0), Some(0.0));
        world.relate(0, exclusive(&["a"]));
        let accounts = world.read(1000, Some(0.25), Some(300.0));
        assert_eq!(figures(&accounts), [("a".into(), 1.0, Some(0.25), Some(0.75), Some(300.0))]);
    }

    #[test]
    fn totals_from_before_the_agent_saw_the_holder_are_nobodys() {
        let mut world = World::new();
        world.read(0, Some(500.0), Some(9e6));
        world.read(1000, Some(501.0), Some(9.1e6));
        world.relate(1000, exclusive(&["a"]));
        let accounts = world.read(2000, Some(501.5), Some(9.100_1e6));
        let (_, allocated, busy, idle, energy) = figures(&accounts)[0].clone();
        assert_eq!((allocated, busy, idle), (1.0, Some(0.5), Some(0.5)));
        assert!((energy.unwrap() - 100.0).abs() < 1e-6);
    }

    #[test]
    fn an_interval_is_divided_where_the_holder_changed() {
        let mut world = World::new();
        world.read(0, Some(0.0), Some(0.0));
        world.relate(0, exclusive(&["a"]));
        world.relate(250, exclusive(&[]));
        world.relate(500, exclusive(&["b"]));
        let accounts = world.read(1000, Some(0.8), Some(100.0));
        assert_eq!(
            figures(&accounts),
            [
                ("a".into(), 0.25, Some(0.2), Some(0.05), Some(25.0)),
                ("b".into(), 0.5, Some(0.4), Some(0.1), Some(50.0))
            ]
        );
    }

    #[test]
    fn busy_unknown_is_absent_and_allocated_goes_on() {
        let mut world = World::new();
        world.read(0, None, None);
        world.relate(0, exclusive(&["a"]));
        assert_eq!(figures(&world.read(1000, None, None)), [("a".into(), 1.0, None, None, None)]);
    }

    #[test]
    fn a_device_that_stops_answering_stays_held_but_is_neither_busy_nor_idle() {
        let mut world = World::new();
        world.read(0, Some(0.0), None);
        world.relate(0, exclusive(&["a"]));
        world.read(1000, Some(0.5), None);
        world.tick(5000);
        let accounts = world.tick(61_000);
        assert_eq!(figures(&accounts), [("a".into(), 61.0, Some(0.5), Some(0.5), None)]);
    }

    #[test]
    fn a_shared_slot_counts_its_part_and_claims_no_busy_time() {
        let mut world = World::new();
        world.read(0, Some(0.0), Some(0.0));
        world.relate(0, held_by(&["a", "b"], Sharing::TimeSlicing, 0.25));
        let accounts = world.read(4000, Some(4.0), Some(4000.0));
        let expected = |pod: &str| (pod.to_owned(), 1.0, None, None, None);
        assert_eq!(figures(&accounts), [expected("a"), expected("b")]);
    }

    #[test]
    fn a_driver_total_that_restarts_takes_nothing_back() {
        let mut world = World::new();
        world.read(0, Some(100.0), Some(1000.0));
        world.relate(0, exclusive(&["a"]));
        world.read(1000, Some(100.5), Some(1100.0));
        let accounts = world.read(2000, Some(0.0), Some(0.0));
        assert_eq!(figures(&accounts), [("a".into(), 2.0, Some(0.5), Some(1.5), Some(100.0))]);
    }

    #[test]
    fn busy_time_reported_early_is_carried_to_the_interval_it_belongs_to() {
        let mut world = World::new();
        world.read(0, Some(0.0), None);
        world.relate(0, exclusive(&["a"]));
        world.read(1000, Some(1.1), None);
        let accounts = world.read(2000, Some(2.0), None);
        assert_eq!(figures(&accounts), [("a".into(), 2.0, Some(2.0), Some(0.0), None)]);
    }

    #[test]
    fn last_active_is_the_start_of_holding_until_something_runs() {
        let mut world = World::new();
        world.read(0, Some(0.0), None);
        world.relate(0, exclusive(&["a"]));
        let idle = world.read(1000, Some(0.0), None);
        assert_eq!(idle[0].last_active, Some(moment(0).unix));
        let active = world.read(2000, Some(0.1), None);
        assert_eq!(active[0].last_active, Some(moment(2000).unix));
    }

    #[test]
    fn ended_accounts_stay_for_the_retention_and_until_two_pages_had_them() {
        let mut world = World::new();
        world.read(0, Some(0.0), None);
        world.relate(0, exclusive(&["a"]));
        world.relate(1000, exclusive(&[]));
        world.read(2000, Some(1.0), None);
        let after = |world: &mut World, seconds: u64| world.read(seconds * 1000, Some(1.0), None).len();
        assert_eq!(after(&mut world, 300), 1, "within the retention");
        assert_eq!(after(&mut world, 400), 1, "nobody has read it");
        world.scrapes = 1;
        assert_eq!(after(&mut world, 401), 1, "one page had it");
        world.scrapes = 2;
        assert_eq!(after(&mut world, 402), 0);
    }

    #[test]
    fn a_pod_that_comes_back_under_its_name_goes_on_counting() {
        let mut world = World::new();
        world.read(0, Some(0.0), None);
        world.relate(0, exclusive(&["a"]));
        world.relate(1000, exclusive(&[]));
        world.relate(2000, exclusive(&["a"]));
        let accounts = world.read(3000, Some(3.0), None);
        assert_eq!(figures(&accounts)[0].1, 2.0);
        assert_eq!(accounts[0].ended, None);
    }

    #[test]
    fn a_page_that_nobody_reads_does_not_grow_for_ever() {
        let mut world = World::new();
        world.read(0, Some(0.0), None);
        for pod in 0..ENDED_LIMIT as u64 + 50 {
            world.relate(pod * 10, exclusive(&[&format!("pod-{pod}")]));
        }
        assert!(world.tick(60_000).len() <= ENDED_LIMIT + 1);
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Who holds the device from now on.
        Hold(Option<u8>),
        /// A reading: how much of the time since the last one was busy, in per cent, and joules.
        Read(u8, u16),
    }

    fn steps() -> impl Strategy<Value = Vec<(u16, Step)>> {
        let step = prop_oneof![
            proptest::option::of(0..4_u8).prop_map(Step::Hold),
            (0..=100_u8, 0..1000_u16).prop_map(|(busy, joules)| Step::Read(busy, joules)),
        ];
        proptest::collection::vec((1..2000_u16, step), 1..60)
    }

    proptest! {
        /// Against a reference that asks for every millisecond who held the device.
        #[test]
        fn the_ledger_agrees_with_a_slow_and_obvious_one(steps in steps()) {
            let mut world = World::new();
            world.read(0, Some(0.0), Some(0.0));
            let (mut now, mut read_at, mut holder) = (0_u64, 0_u64, None);
            let (mut busy_total, mut energy_total) = (0.0, 0.0);
            let mut holders: Vec<Option<u8>> = vec![];
            let mut reference: BTreeMap<u8, (f64, f64, f64)> = BTreeMap::new();
            let mut before: BTreeMap<String, f64> = BTreeMap::new();
            for (wait, step) in steps {
                // Readings never come later than they are accounted without: the reference knows no such rule.
                let wait = u64::from(wait).min(4000 - (now - read_at).min(3999));
                holders.extend(std::iter::repeat_n(holder, usize::try_from(wait).unwrap()));
                now += wait;
                let accounts = match step {
                    Step::Hold(pod) => {
                        holder = pod;
                        let pods: Vec<String> = pod.iter().map(u8::to_string).collect();
                        world.relate(now, exclusive(&pods.iter().map(String::as_str).collect::<Vec<_>>()))
                    }
                    Step::Read(busy_percent, joules) => {
                        #[allow(clippy::cast_precision_loss, reason = "small numbers")]
                        let length = (now - read_at) as f64 / 1000.0;
                        let busy = length * f64::from(busy_percent) / 100.0;
                        busy_total += busy;
                        energy_total += f64::from(joules);
                        let span = usize::try_from(read_at).unwrap()..usize::try_from(now).unwrap();
                        for pod in holders[span].iter().flatten() {
                            let row = reference.entry(*pod).or_default();
                            row.0 += 0.001;
                            row.1 += busy * 0.001 / length;
                            row.2 += f64::from(joules) * 0.001 / length;
                        }
                        read_at = now;
                        world.read(now, Some(busy_total), Some(energy_total))
                    }
                };
                for account in &accounts {
                    let pod = account.container.pod.to_string();
                    let seconds = account.allocated_seconds;
                    prop_assert!(seconds >= before.insert(pod, seconds).unwrap_or(0.0), "a counter fell");
                }
            }
            for account in world.tick(now) {
                let pod: u8 = account.container.pod.parse().unwrap();
                let (allocated, busy, energy) = reference.get(&pod).copied().unwrap_or_default();
                let close = |ours: f64, theirs: f64| (ours - theirs).abs() <= 1e-6 * theirs.abs().max(1.0);
                prop_assert!(close(account.allocated_seconds, allocated), "{account:?} {allocated}");
                prop_assert!(close(account.busy_seconds.unwrap_or(0.0), busy), "{account:?} {busy}");
                prop_assert!(close(account.energy_joules.unwrap_or(0.0), energy), "{account:?} {energy}");
                let known = account.busy_seconds.zip(account.idle_seconds);
                let sum = known.map_or(0.0, |(busy, idle)| busy + idle);
                prop_assert!(close(sum, account.allocated_seconds), "allocated = busy + idle: {account:?}");
            }
        }
    }
}
