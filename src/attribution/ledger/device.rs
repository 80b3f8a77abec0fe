use std::collections::BTreeMap;

use super::activity::Activity;
use super::audit::Audit;
use super::clock::{DeviceClock, Interval};
use super::division::{Evidence, Holder, Part, Stretch, is_nothing};
use super::entry::{Entry, Gain, Span};
use super::idle_power::IdlePower;
use super::partition::Partitions;
use super::spread;
use super::weights::{Gains, Weights};
use crate::attribution::processes::DeviceProcesses;
use crate::model::{ContainerRef, Divided, GpuUuid, MigUuid, Moment, Monotonic, Quantity, Reason, Remainder};

pub type Tenant = (ContainerRef, Option<MigUuid>);

/// One GPU: its clock, those who hold or held it, and what is nobody's.
#[derive(Debug)]
pub struct Device {
    pub clock: DeviceClock,
    pub entries: BTreeMap<Tenant, Entry>,
    pub remainder: Remainder,
    pub weights: Weights,
    pub idle_power: IdlePower,
    pub activity: Activity,
}

/// What tells whose an interval was.
pub struct Known<'a> {
    pub processes: Option<&'a DeviceProcesses>,
    pub partitions: Option<Partitions<'a>>,
}

impl Device {
    pub fn new(gpu: &GpuUuid, now: Moment) -> Self {
        let remainder = Remainder {
            gpu: gpu.clone(),
            created: now.unix,
            busy_seconds: BTreeMap::new(),
            energy_joules: BTreeMap::new(),
            memory_bytes: BTreeMap::new(),
            processes: BTreeMap::new(),
            divided: Divided::default(),
        };
        Self {
            clock: DeviceClock::starting(now.monotonic),
            entries: BTreeMap::new(),
            remainder,
            weights: Weights::default(),
            idle_power: IdlePower::default(),
            activity: Activity::default(),
        }
    }

    pub fn statement(&self) -> Remainder {
        Remainder { divided: self.clock.divided(), ..self.remainder.clone() }
    }

    /// Divides an interval among those who held the device in it.
    pub fn account(&mut self, interval: &Interval, known: &Known<'_>, now: Moment, audit: &mut Audit) {
        self.remain(interval, known.processes.is_some_and(|processes| processes.has_sm_seconds));
        let length = interval.seconds();
        let mut held: Vec<(&Tenant, &mut Entry, Vec<Span>, Gain)> = Vec::new();
        for (tenant, entry) in &mut self.entries {
            let mut spans = entry.take(interval.allocated_from, interval.to);
            let mut gain = Gain::default();
            for span in &spans {
                if let Some(share) = span.grip.share {
                    *gain.allocated.get_or_insert(0.0) += share * span.length().as_secs_f64();
                }
            }
            // A silence of the device is over, in which nobody took hold or let go: it is already allocated.
            spans.iter_mut().for_each(|span| {
                if span.from == interval.allocated_from {
                    span.from = interval.from;
                }
            });
            if !spans.is_empty() {
                held.push((tenant, entry, spans, gain));
            }
        }
        let told = interval.busy_seconds.is_some() || interval.energy_joules.is_some();
        let parts = known.partitions.as_ref().map(Partitions::parts);
        if length > 0.0 && (told || parts.is_some()) {
            let gains = {
                let containers: Vec<&ContainerRef> = held.iter().map(|(tenant, ..)| &tenant.0).collect();
                self.weights.gains(known.processes, &containers, now.monotonic)
            };
            let books = Books { interval, known, parts: parts.as_deref(), gains, idle_watts: self.idle_power.watts() };
            let (busy, energy) = books.divide(&mut held, &mut self.remainder, audit);
            if busy.is_some_and(is_nothing)
                && let Some(energy) = energy
            {
                self.idle_power.learn(length, energy);
            }
        }
        for (_, entry, _, gain) in &mut held {
            entry.gain(gain, length, now.unix);
        }
    }

    /// What nobody can be told to have used; and every reason that may come, from zero.
    fn remain(&mut self, interval: &Interval, by_process: bool) {
        let remainder = &mut self.remainder;
        if by_process {
            let reasons = [Reason::Host, Reason::NotAllocated, Reason::TerminatedPod];
            for reason in reasons.iter().filter(|_| interval.busy_seconds.is_some()) {
                remainder.busy_seconds.entry(*reason).or_default();
            }
            for reason in reasons.iter().filter(|_| interval.energy_joules.is_some()) {
                remainder.energy_joules.entry(*reason).or_default();
            }
        }
        if interval.busy_seconds.is_some() || interval.nobodys_busy_seconds > 0.0 {
            *remainder.busy_seconds.entry(Reason::Unknown).or_default() += interval.nobodys_busy_seconds;
        }
        if interval.energy_joules.is_some() || interval.nobodys_energy_joules > 0.0 {
            remainder.energy_joules.entry(Reason::Idle).or_default();
            *remainder.energy_joules.entry(Reason::Unknown).or_default() += interval.nobodys_energy_joules;
        }
    }
}

struct Books<'a> {
    interval: &'a Interval,
    known: &'a Known<'a>,
    parts: Option<&'a [Part]>,
    gains: Option<Gains>,
    idle_watts: Option<f64>,
}

/// A stretch of an interval: who held the device in it, as places in the list of all holders and as the division has it.
struct Held {
    seconds: f64,
    indices: Vec<(usize, Option<f64>)>,
    holders: Vec<Holder>,
}

/// What each stretch has of its interval.
struct Spread {
    busy: Option<Vec<f64>>,
    energy: Option<Vec<f64>>,
    parts: Option<Vec<Vec<Part>>>,
}

impl Books<'_> {
    fn spread(&self, stretches: &[Held]) -> Spread {
        let lengths: Vec<f64> = stretches.iter().map(|stretch| stretch.seconds).collect();
        let parts = self.parts.map(|parts| {
            let is_of = |holder: &Holder, part| holder.part.is_none_or(|held| held == part);
            spread::parts(parts, &lengths, |number, part| {
                stretches[number].holders.iter().any(|holder| is_of(holder, part))
            })
        });
        let busy = self.interval.busy_seconds.map(|busy| spread::pour(busy, &lengths, &self.weights(stretches)));
        let work = match &parts {
            None => busy.clone(),
            Some(parts) => {
                let of = |(parts, seconds): (&Vec<Part>, &f64)| {
                    parts.iter().map(|part| Some(part.active? * part.fraction * seconds)).sum::<Option<f64>>()
                };
                parts.iter().zip(&lengths).map(of).collect()
            }
        };
        let energy = self.interval.energy_joules;
        let energy = energy.map(|energy| spread::energy(energy, self.idle_watts, &lengths, work.as_deref()));
        Spread { busy, energy, parts }
    }

    /// By SM time where there is any, else by time that somebody held the device.
    fn weights(&self, stretches: &[Held]) -> Vec<f64> {
        let length = self.interval.seconds();
        if let Some(gains) = &self.gains {
            let others: f64 = gains.others.values().sum();
            let of = |stretch: &Held| {
                let holders: f64 = stretch.holders.iter().map(|holder| holder.sm_seconds).sum();
                holders + others * stretch.seconds / length
            };
            let weights: Vec<f64> = stretches.iter().map(of).collect();
            if weights.iter().any(|weight| *weight > 0.0) {
                return weights;
            }
        }
        let held = |stretch: &Held| if stretch.holders.is_empty() { 0.0 } else { stretch.seconds };
        stretches.iter().map(held).collect()
    }

    /// Divides stretch by stretch. Gives the busy seconds and joules that the device had in all.
    fn divide(
        &self,
        held: &mut [(&Tenant, &mut Entry, Vec<Span>, Gain)],
        remainder: &mut Remainder,
        audit: &mut Audit,
    ) -> (Option<f64>, Option<f64>) {
        let length = self.interval.seconds();
        let mut bounds = vec![self.interval.from, self.interval.to];
        bounds.extend(held.iter().flat_map(|(_, _, spans, _)| spans.iter().flat_map(|span| [span.from, span.to])));
        bounds.sort_unstable();
        bounds.dedup();
        let held_seconds: Vec<f64> =
            held.iter().map(|(_, _, spans, _)| spans.iter().map(|span| span.length().as_secs_f64()).sum()).collect();
        let places: Vec<Option<usize>> = held
            .iter()
            .map(|(tenant, ..)| tenant.1.as_ref().and_then(|mig| self.known.partitions.as_ref()?.place(mig)))
            .collect();
        let mut stretches = vec![];
        for stretch in bounds.windows(2) {
            let [from, to] = [stretch[0], stretch[1]];
            let seconds = to.since(from).as_secs_f64();
            let (mut indices, mut holders) = (vec![], vec![]);
            for (index, (tenant, _, spans, _)) in held.iter().enumerate() {
                let Some(span) = spans.iter().find(|span| span.covers(from, to)) else { continue };
                if tenant.1.is_some() && places[index].is_none() {
                    continue; // its MIG device is gone
                }
                let weight = self.gains.as_ref().map_or(0.0, |gains| gains.holders[index] / held_seconds[index]);
                indices.push((index, span.grip.share));
                holders.push(Holder {
                    exclusive: span.grip.exclusive,
                    weight: span.grip.weight,
                    sm_seconds: weight * seconds,
                    part: places[index],
                });
            }
            stretches.push(Held { seconds, indices, holders });
        }
        let spread = self.spread(&stretches);
        let (mut busy_sum, mut energy_sum) = (None, None);
        let (mut nobodys_busy, mut nobodys_energy) = (0.0, 0.0);
        for (number, Held { seconds, indices, holders }) in stretches.iter().enumerate() {
            let seconds = *seconds;
            let others: Option<BTreeMap<Reason, f64>> = self.gains.as_ref().map(|gains| {
                gains.others.iter().map(|(reason, weight)| (*reason, weight * seconds / length)).collect()
            });
            let division = Stretch {
                seconds,
                busy: spread.busy.as_ref().map(|busy| busy[number]),
                energy: spread.energy.as_ref().map(|energy| energy[number]),
                idle_energy: self.idle_watts.map(|watts| watts * seconds),
                holders,
                evidence: match (&spread.parts, &others) {
                    (Some(parts), _) => Evidence::Partitions(&parts[number]),
                    (None, Some(others)) => Evidence::Processes(others),
                    (None, None) => Evidence::Holding,
                },
            }
            .divide();
            for (place, (index, share)) in indices.iter().enumerate() {
                let gain = &mut held[*index].3;
                if let Some(busy) = division.busy[place] {
                    let first = gain.busy.is_none();
                    *gain.busy.get_or_insert(0.0) += busy;
                    let before = if first { Some(0.0) } else { gain.allocated_with_busy };
                    gain.allocated_with_busy = before.zip(*share).map(|(sum, share)| sum + share * seconds);
                    *busy_sum.get_or_insert(0.0) += busy;
                }
                if let Some(energy) = division.energy[place] {
                    *gain.energy.get_or_insert(0.0) += energy;
                    *energy_sum.get_or_insert(0.0) += energy;
                }
            }
            for (reason, busy) in division.remainder_busy {
                *remainder.busy_seconds.entry(reason).or_default() += busy;
                *busy_sum.get_or_insert(0.0) += busy;
                nobodys_busy += busy;
            }
            for (reason, energy) in division.remainder_energy {
                *remainder.energy_joules.entry(reason).or_default() += energy;
                *energy_sum.get_or_insert(0.0) += energy;
                nobodys_energy += energy;
            }
        }
        let of_parts = self.parts.map_or(0.0, |parts| {
            let work = parts.iter().map(|part| part.active.unwrap_or(0.0) * part.fraction).sum::<f64>();
            work * length
        });
        let shares = |read: fn(&Gain) -> Option<f64>| held.iter().filter_map(move |(_, _, _, gain)| read(gain));
        let whole = self.interval.busy_seconds.unwrap_or(0.0) + of_parts;
        audit.check(Quantity::Busy, whole, shares(|gain| gain.busy).chain([nobodys_busy]));
        let whole = self.interval.energy_joules.unwrap_or(0.0);
        audit.check(Quantity::Energy, whole, shares(|gain| gain.energy).chain([nobodys_energy]));
        (busy_sum, energy_sum)
    }
}

impl Device {
    /// Final figures are kept for the retention, and until two pages had them.
    pub fn forget(&mut self, now: Monotonic, retention: std::time::Duration, scrapes: u64) {
        for entry in self.entries.values_mut().filter(|entry| entry.is_final()) {
            entry.final_since_scrape.get_or_insert(scrapes);
        }
        self.entries.retain(|_, entry| match (entry.account.ended, entry.final_since_scrape) {
            (Some(ended), Some(since)) => now.since(ended) < retention || scrapes < since + 2,
            _ => true,
        });
    }
}
