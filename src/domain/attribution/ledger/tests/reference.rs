//! A slow and obvious ledger: each tick is a segment, whose holders it stores. `segments` gives each its busy time and energy,
//! `parts` divides it, and the parts are added to the accounts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::parts::ReferenceSegment;
use super::random_node::{BoardReading, LATE_TICKS, MigReading, TICK_SECONDS, Tick};
use super::segments;
use crate::domain::attribution::OwnedProcess;
use crate::domain::holders::{HoldingKey, Holdings};
use crate::domain::model::{Allocations, ClaimDevice, ClaimHardware, Holding, Inventory, Owner, UnattributedReason};

/// A container on a device, as the reference counts it.
#[derive(Clone, Debug, Default)]
pub struct ReferenceAccount {
    pub allocated: f64,
    pub allocated_with_busy: f64,
    pub busy: f64,
    pub energy: f64,
}

pub type UseByReason = BTreeMap<UnattributedReason, f64>;

/// One GPU.
#[derive(Default)]
pub struct ReferenceLedger {
    pub accounts: BTreeMap<HoldingKey, ReferenceAccount>,
    pub unattributed_busy: UseByReason,
    pub unattributed_energy: UseByReason,
    /// The totals to divide.
    pub busy: f64,
    pub energy: f64,
    /// The intervals of each holder since the last gap: the seconds held with known busy seconds, and these.
    pub intervals: BTreeMap<HoldingKey, Vec<(f64, f64)>>,
    pub accounted: Tick,
    /// Whether it has been read, or held.
    known: bool,
    read: Option<BoardReading>,
    gap_since: Option<Tick>,
    used_sm: BTreeMap<u32, f64>,
    idle: Vec<(f64, f64)>,
}

/// The holders in each tick, the present tick last.
pub type History = Vec<Arc<BTreeMap<HoldingKey, Holding>>>;

impl ReferenceLedger {
    pub fn starting(at: Tick) -> Self {
        Self { accounted: at, ..Self::default() }
    }

    pub fn observe(&mut self, now: Tick, reading: Option<&BoardReading>, history: &History) {
        if !self.known {
            self.accounted = now;
        }
        self.known |= reading.is_some() || !history[now].is_empty();
        if let Some(reading) = reading {
            self.read(reading, history);
        }
        self.intervals.retain(|key, _| history[now].contains_key(key));
        let pending = history[self.accounted..=now].iter().any(|holders| !holders.is_empty());
        if pending && now - self.accounted > LATE_TICKS {
            self.gap_since.get_or_insert(self.accounted);
            self.intervals.clear();
            self.allocate(self.accounted, now, history);
            self.accounted = now;
        }
    }

    fn read(&mut self, reading: &BoardReading, history: &History) {
        let Some(before) = self.read.clone() else {
            self.allocate(self.accounted, reading.complete_until, history);
            self.accounted = reading.complete_until;
            self.gap_since = None;
            self.add_unattributed(reading.busy.unwrap_or(0.0), reading.energy.unwrap_or(0.0));
            self.read = Some(reading.clone());
            self.skip_sm_seconds(reading);
            return;
        };
        if reading.complete_until <= self.accounted {
            return;
        }
        let (begin, end) = (self.accounted, reading.complete_until);
        self.allocate(begin, end, history);
        self.accounted = end;
        let late_since = self.gap_since.take();
        let has_gap = reading.gaps.until > before.gaps.until;
        let from = match (has_gap, late_since) {
            (true, _) => reading.gaps.until.clamp(begin, end),
            (false, Some(_)) => end,
            (false, None) => begin,
        };
        let gap = (has_gap || late_since.is_some()).then(|| late_since.unwrap_or(begin)..from);
        let gain = |now: Option<f64>, before: Option<f64>| {
            now.map(|now| ((now - before.unwrap_or(0.0)).max(0.0), before.is_some()))
        };
        let (busy, energy) = (gain(reading.busy, before.busy), gain(reading.energy, before.energy));
        let last = |now: Option<f64>, before: Option<f64>| now.or(before);
        self.read = Some(BoardReading {
            busy: last(reading.busy, before.busy),
            energy: last(reading.energy, before.energy),
            ..reading.clone()
        });
        let length = (end - from) as f64 * TICK_SECONDS;
        let uncovered = (reading.sampleless_seconds - before.sampleless_seconds).min(length);
        let busy = match busy {
            Some((gain, true)) => {
                let divided = gain.min(length - uncovered);
                self.add_unattributed(gain - divided, 0.0);
                (length - uncovered > 1e-9).then_some(divided)
            }
            Some((gain, false)) => {
                self.add_unattributed(gain, 0.0);
                None
            }
            None => None,
        };
        let energy = match (energy, gap) {
            (Some((gain, true)), None) => Some(gain),
            (Some((gain, true)), Some(gap)) => {
                let of_gaps = (reading.gaps.energy - before.gaps.energy).clamp(0.0, gain);
                let of_gap = if from < end { of_gaps } else { gain };
                self.divide_gap(gap, of_gap, reading, history);
                (from < end).then_some(gain - of_gap)
            }
            (Some((gain, false)), _) => {
                self.add_unattributed(0.0, gain);
                None
            }
            (None, _) => None,
        };
        if from < end && (busy.is_some() || energy.is_some() || reading.mig_devices.is_some()) {
            let active = actives(reading, &before);
            let covered_ratio = if reading.mig_devices.is_some() { 1.0 } else { 1.0 - uncovered / length };
            if from > begin {
                self.intervals.clear();
            }
            self.divide((from, end), busy, energy, (reading, active, covered_ratio), history);
        } else {
            self.intervals.clear();
            self.skip_sm_seconds(reading);
        }
    }

    /// Skips the SM time of time that is not divided, or not by process.
    fn skip_sm_seconds(&mut self, reading: &BoardReading) {
        self.used_sm.extend(reading.process_sm_seconds.iter().flatten());
    }

    /// Divides the energy of a gap equally among its ticks, and that of a tick among its holders, or by slices.
    fn divide_gap(&mut self, ticks: std::ops::Range<Tick>, joules: f64, reading: &BoardReading, history: &History) {
        if ticks.is_empty() {
            return self.add_unattributed(0.0, joules);
        }
        let watts = self.idle_watts();
        self.energy += joules;
        for tick in ticks.clone() {
            let energy = Some(joules / ticks.len() as f64);
            let segment = ReferenceSegment {
                holders: &history[tick],
                busy: None,
                energy,
                idle: watts.map(|watts| watts * TICK_SECONDS),
            };
            let parts = match &reading.mig_devices {
                Some(devices) => segment.by_mig_activity(devices, &vec![None; devices.len()]),
                None => segment.by_holding(),
            };
            for (owner, _, energy) in parts {
                match owner {
                    Ok(key) => self.accounts.entry(key.clone()).or_default().energy += energy.unwrap_or(0.0),
                    Err(reason) => *self.unattributed_energy.entry(reason).or_default() += energy.unwrap_or(0.0),
                }
            }
        }
    }

    /// How busy it was in the last ten known seconds, back from now, interval by interval.
    pub fn now(&self, key: &HoldingKey) -> Option<f64> {
        let (mut left, mut seconds, mut busy) = (10.0, 0.0, 0.0);
        for (length, of_it) in self.intervals.get(key)?.iter().rev() {
            let used = if seconds == 0.0 { *length } else { length.min(left) };
            (left, seconds, busy) = (f64::max(left - used, 0.0), seconds + used, busy + of_it * used / length);
        }
        (seconds > 0.0).then(|| (busy / seconds).min(1.0))
    }

    pub fn has_read(&self, reading: &BoardReading) -> bool {
        self.read.as_ref().is_some_and(|last| last.complete_until == reading.complete_until)
    }

    fn add_unattributed(&mut self, busy: f64, energy: f64) {
        *self.unattributed_busy.entry(UnattributedReason::Unknown).or_default() += busy;
        *self.unattributed_energy.entry(UnattributedReason::Unknown).or_default() += energy;
        self.busy += busy;
        self.energy += energy;
    }

    fn allocate(&mut self, from: Tick, to: Tick, history: &History) {
        for holders in history.get(from..to).unwrap_or_default() {
            for (key, holding) in &**holders {
                self.accounts.entry(key.clone()).or_default().allocated += holding.fraction.unwrap() * TICK_SECONDS;
            }
        }
    }

    fn idle_watts(&self) -> Option<f64> {
        let (mut seconds, mut joules, mut later) = (0.0, 0.0, 0.0);
        for (length, energy) in self.idle.iter().rev() {
            let fading = 0.5_f64.powf(later / 300.0);
            seconds += length * fading;
            joules += energy * fading;
            later += length;
        }
        (seconds >= 1.0).then(|| joules / seconds)
    }

    fn divide(
        &mut self,
        (from, to): (Tick, Tick),
        busy: Option<f64>,
        energy: Option<f64>,
        (reading, actives, covered_ratio): (&BoardReading, Option<Vec<Option<f64>>>, f64),
        history: &History,
    ) {
        let ticks = (to - from) as f64;
        let watts = self.idle_watts();
        // A holding ended in or after the interval, as far as is known by now.
        let has_ended = (from.max(1)..history.len())
            .any(|tick| history[tick - 1].keys().any(|key| !history[tick].contains_key(key)));
        let weights = self.weights(from, to, reading, history);
        let holders: Vec<_> = history[from..to].iter().map(|holders| &**holders).collect();
        let actives =
            actives.map(|actives| segments::active(reading.mig_devices.as_ref().unwrap(), &actives, &holders));
        let busys = busy.map(|busy| segments::busy(busy, weights.as_ref(), &holders, covered_ratio));
        let works = match &actives {
            None => busys.clone(),
            Some(actives) => segments::work(reading.mig_devices.as_ref().unwrap(), actives),
        };
        let energies = energy.map(|energy| segments::energy(energy, watts, works.as_deref(), to - from));
        let active = works.map(|works| works.iter().sum::<f64>());
        let mut known: BTreeMap<HoldingKey, (f64, f64)> = BTreeMap::new();
        for tick in from..to {
            let segment = ReferenceSegment {
                holders: &history[tick],
                busy: busys.as_ref().map(|busy| busy[tick - from]),
                energy: energies.as_ref().map(|energy| energy[tick - from]),
                idle: watts.map(|watts| watts * TICK_SECONDS),
            };
            let parts = match (&actives, &weights) {
                (Some(actives), _) => {
                    segment.by_mig_activity(reading.mig_devices.as_ref().unwrap(), &actives[tick - from])
                }
                (None, Some((holders, others))) => segment.by_process(|key| holders[key][tick - from], others, ticks),
                (None, None) => segment.by_holding(),
            };
            for (owner, busy, energy) in parts {
                self.busy += busy.unwrap_or(0.0);
                self.energy += energy.unwrap_or(0.0);
                match owner {
                    Ok(key) => {
                        let account = self.accounts.entry(key.clone()).or_default();
                        account.busy += busy.unwrap_or(0.0);
                        if let Some(busy) = busy {
                            let known = known.entry(key.clone()).or_default();
                            *known = (known.0 + TICK_SECONDS * covered_ratio, known.1 + busy);
                        }
                        account.energy += energy.unwrap_or(0.0);
                        let share = busy.and(history[tick][key].fraction).unwrap_or(0.0);
                        account.allocated_with_busy += share * TICK_SECONDS * covered_ratio;
                    }
                    Err(reason) => {
                        let reason = if has_ended { perhaps_ended(reason) } else { reason };
                        *self.unattributed_busy.entry(reason).or_default() += busy.unwrap_or(0.0);
                        *self.unattributed_energy.entry(reason).or_default() += energy.unwrap_or(0.0);
                    }
                }
            }
        }
        self.intervals
            .retain(|key, _| known.contains_key(key) || history[from..to].iter().all(|ticks| !ticks.contains_key(key)));
        for (key, interval) in known {
            self.intervals.entry(key).or_default().push(interval);
        }
        if let (Some(0.0..1e-9), Some(energy), 1.0) = (active, energy, covered_ratio) {
            self.idle.push((ticks * TICK_SECONDS, energy));
        }
    }

    /// The SM-seconds by holder and tick, and those of all other processes.
    fn weights(
        &mut self,
        from: Tick,
        to: Tick,
        reading: &BoardReading,
        history: &History,
    ) -> Option<(BTreeMap<HoldingKey, Vec<f64>>, UseByReason)> {
        let Some(processes) = reading.processes.as_ref().filter(|processes| processes.has_sm_seconds) else {
            self.skip_sm_seconds(reading);
            return None;
        };
        let mut holders: BTreeMap<HoldingKey, Vec<f64>> = BTreeMap::new();
        for key in history[from..to].iter().flat_map(|holders| holders.keys()) {
            holders.insert(key.clone(), vec![0.0; to - from]);
        }
        let keys: BTreeSet<HoldingKey> = holders.keys().cloned().collect();
        let mut others = UseByReason::new();
        let mut add = |owner: Result<HoldingKey, UnattributedReason>, gain: f64| match owner {
            Ok(key) => {
                let held: Vec<Tick> = (from..to).filter(|tick| history[*tick].contains_key(&key)).collect();
                for tick in &held {
                    holders.get_mut(&key).unwrap()[tick - from] += gain / held.len() as f64;
                }
            }
            Err(reason) => *others.entry(reason).or_default() += gain,
        };
        for process in &processes.processes {
            let gain = process.sm_seconds - self.used_sm.insert(process.pid, process.sm_seconds).unwrap_or(0.0);
            if process.owner != Owner::MpsServer {
                add(holder_of(process, keys.iter()), gain);
                continue;
            }
            // Each byte of a client has the same part of it; without any, each holder.
            let client = |process: &OwnedProcess| Some((holder_of(process, keys.iter()).ok()?, process.memory_bytes?));
            let mut clients: Vec<_> =
                processes.processes.iter().filter_map(client).filter(|(_, bytes)| *bytes > 0).collect();
            if clients.is_empty() {
                clients = keys.iter().map(|key| (key.clone(), 1)).collect();
            }
            let bytes: u64 = clients.iter().map(|(_, bytes)| bytes).sum();
            if clients.is_empty() {
                add(Err(UnattributedReason::Unknown), gain);
            }
            for (key, part) in clients {
                add(Ok(key), gain * part as f64 / bytes as f64);
            }
        }
        Some((holders, others))
    }
}

fn perhaps_ended(reason: UnattributedReason) -> UnattributedReason {
    match reason {
        UnattributedReason::Driver
        | UnattributedReason::Ended
        | UnattributedReason::Host
        | UnattributedReason::Idle => reason,
        UnattributedReason::NotAllocated | UnattributedReason::TerminatedPod | UnattributedReason::Unknown => {
            UnattributedReason::Ended
        }
    }
}

/// How active each part was between two readings, 0 to 1.
fn actives(reading: &BoardReading, before: &BoardReading) -> Option<Vec<Option<f64>>> {
    let is_anew = reading.gaps.until > before.gaps.until;
    let from = if is_anew { reading.gaps.until } else { before.complete_until };
    let seconds = (reading.complete_until - from) as f64 * TICK_SECONDS;
    let devices = reading.mig_devices.as_ref()?.iter().zip(before.mig_devices.as_ref()?);
    let had = |before: &MigReading| before.active_seconds.map(|seconds| if is_anew { 0.0 } else { seconds });
    Some(devices.map(|(now, before)| Some((now.active_seconds? - had(before)?) / seconds)).collect())
}

/// A slow and obvious division of devices by claims: a claim that holds has its part of the device, and each of its
/// containers the same part of that; an observer has none.
pub fn check_claims(allocations: &Allocations, holdings: &Holdings, inventory: &Inventory) {
    let mut expected: BTreeMap<HoldingKey, f64> = BTreeMap::new();
    let listed =
        || allocations.containers().flat_map(|container| container.claims.iter().map(move |claim| (container, claim)));
    let holding =
        || listed().filter(|(_, claim)| !claim.record.allocation.as_ref().is_some_and(|how| how.admin_access));
    let hardware = |claim: &ClaimDevice| claim.record.hardware.values().next().cloned().unwrap();
    let devices: BTreeSet<ClaimHardware> = holding().map(|(_, claim)| hardware(claim)).collect();
    for device in devices {
        let of_device: Vec<_> = holding().filter(|(_, claim)| hardware(claim) == device).collect();
        let name = |claim: &ClaimDevice| (claim.claim.clone(), claim.share_id.clone());
        let consumed = |claim: &ClaimDevice| {
            claim.consumed().find(|(capacity, _)| *capacity == "memory").map(|(_, amount)| amount as f64)
        };
        let is_known = of_device.iter().all(|(_, claim)| consumed(claim).is_some());
        let claims: BTreeMap<_, f64> = of_device
            .iter()
            .map(|(_, claim)| (name(claim), if is_known { consumed(claim).unwrap() } else { 1.0 }))
            .collect();
        let (gpu, mig, whole) = match &device {
            ClaimHardware::Gpu(uuid) => (uuid.clone(), None, 1.0),
            ClaimHardware::Mig(uuid) => {
                let (gpu, mig) = inventory.mig(uuid.as_str()).unwrap();
                (gpu.uuid.clone(), Some(uuid.clone()), f64::from(mig.slices) / 7.0)
            }
            other => panic!("{other:?}"),
        };
        for (container, claim) in &of_device {
            let sharers = of_device.iter().filter(|(_, other)| name(other) == name(claim)).count() as f64;
            let part = claims[&name(claim)] / claims.values().sum::<f64>() / sharers;
            let key = HoldingKey { container: container.reference.clone(), gpu: gpu.clone(), mig: mig.clone() };
            *expected.entry(key).or_default() += whole * part;
        }
    }
    let held = holdings.by_key.iter().filter(|(_, holding)| holding.resource.is_none());
    let found: BTreeMap<&HoldingKey, f64> = held.map(|(key, holding)| (key, holding.fraction.unwrap())).collect();
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (key, share) in found {
        assert!((share - expected[key]).abs() < 1e-9, "{key:?}: {share}, not {}", expected[key]);
    }
    assert!(holdings.claims.is_sorted_by_key(|joined| joined.claim.key()), "a search finds each");
    for (container, claim) in listed() {
        let joined = holdings.claims.iter().find(|joined| joined.claim.is_same_share(claim));
        assert!(joined.is_some(), "{:?} of {:?} is not joined", claim.device, container.reference);
    }
}

/// The owner if it holds, else the first holder of its pod, else why not.
pub fn holder_of<'a>(
    process: &OwnedProcess,
    holders: impl Iterator<Item = &'a HoldingKey> + Clone,
) -> Result<HoldingKey, UnattributedReason> {
    let pod = match &process.owner {
        Owner::Container(container) => {
            if let Some(key) = holders.clone().find(|key| key.container == *container) {
                return Ok(key.clone());
            }
            (container.namespace.clone(), container.pod.clone())
        }
        Owner::Pod(pod) => (pod.namespace.clone(), pod.pod.clone()),
        Owner::EndedPod { .. } => return Err(UnattributedReason::TerminatedPod),
        Owner::Host => return Err(UnattributedReason::Host),
        Owner::MpsServer => return Err(UnattributedReason::Driver),
        Owner::Unknown(_) => return Err(UnattributedReason::Unknown),
    };
    let mate = |key: &&HoldingKey| (key.container.namespace.clone(), key.container.pod.clone()) == pod;
    holders.clone().find(mate).cloned().ok_or(UnattributedReason::NotAllocated)
}
