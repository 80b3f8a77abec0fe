//! Invariants of attribution on random nodes, against the reference. `PODMETER_RANDOM_NODES=10000 cargo test --release
//! laws` runs that many and prints the violations found.

use std::collections::BTreeMap;

use super::super::*;
use super::random_node::{RandomNode, TICK_SECONDS};
use super::reference::{ReferenceLedger, holder_of};
use crate::domain::holders::HoldingKey;
use crate::domain::model::{ContainerRef, Holding, SharingForm, UnattributedReason};

const STEPS: usize = 40;

#[test]
fn laws_hold_on_random_nodes() {
    let mut steps = 0;
    // In 459 rounding once made busy time out of nothing.
    for seed in (0..node_count()).chain([459]) {
        let mut trial = Trial::new(seed);
        // A node with many holders covers as much in fewer steps.
        let count = if trial.node.boards.len() > 8 { STEPS / 4 } else { STEPS };
        for step in 0..count {
            if let Err(broken) = trial.step() {
                panic!("node {seed}, step {step}, at tick {}: {broken}", trial.node.now);
            }
            steps += 1;
        }
    }
    #[allow(clippy::print_stdout, reason = "a long run reports what it did")]
    {
        println!("nodes = {}, observations = {steps}, violations = 0", node_count());
    }
}

#[test]
fn the_order_of_processes_does_not_matter_and_unchanged_inputs_change_nothing() {
    for seed in 1000..1040 {
        let (mut node, mut reversed) = (Trial::new(seed).node, Trial::new(seed).node);
        for _ in 0..20 {
            node.step();
            reversed.step();
            reversed.observed.processes.values_mut().for_each(|processes| processes.processes.reverse());
            let (one, two) = (node.observe(), reversed.observe());
            let energies = |published: &LedgerOutput| -> Vec<f64> {
                published.accounts.iter().map(|account| account.counters.energy_joules.unwrap_or(-1.0)).collect()
            };
            assert!(energies(&one).iter().zip(energies(&two)).all(|(one, two)| near(*one, two)), "node {seed}");
            assert_eq!(node.observe(), one, "node {seed}: the same again");
        }
    }
}

struct Trial {
    node: RandomNode,
    references: Vec<ReferenceLedger>,
    before: Option<LedgerOutput>,
}

fn key(account: &Account) -> HoldingKey {
    HoldingKey { container: account.container.clone(), gpu: account.gpu.clone(), mig: account.mig.clone() }
}

fn near(one: f64, other: f64) -> bool {
    // These are sums of some thousand parts, each rounded.
    (one - other).abs() <= 1e-9 * one.abs().max(other.abs()).max(1.0)
}

impl Trial {
    fn new(seed: u64) -> Self {
        let node = RandomNode::new(seed);
        let references = node.boards.iter().map(|_| ReferenceLedger::starting(0)).collect();
        let mut trial = Self { node, references, before: None };
        trial.node.observe();
        for (reference, history) in trial.references.iter_mut().zip(&trial.node.histories) {
            reference.observe(0, None, history);
        }
        trial
    }

    fn restart(&mut self) {
        self.node.restart();
        self.references.iter_mut().for_each(|reference| *reference = ReferenceLedger::starting(self.node.now));
        self.before = None;
    }

    fn step(&mut self) -> Result<(), String> {
        self.node.step();
        if self.node.random.chance(2) {
            self.restart();
        }
        let published = self.node.observe();
        let node = &self.node;
        for ((board, reference), history) in node.boards.iter().zip(&mut self.references).zip(&node.histories) {
            reference.observe(node.now, board.reading.as_ref(), history);
        }
        self.check_sums(&published)?;
        self.check_accounts(&published)?;
        self.check_costs(&published)?;
        self.check_memory(&published)?;
        self.check_now(&published)?;
        self.check_counters(&published)?;
        self.before = Some(published);
        Ok(())
    }

    /// Σ containers + Σ unattributed part = device, and Σ A ≤ the device.
    fn check_sums(&self, published: &LedgerOutput) -> Result<(), String> {
        for (board, reference) in self.node.boards.iter().zip(&self.references) {
            let accounts = || published.accounts.iter().filter(|account| account.gpu == board.uuid);
            let Some(unattributed) = published.unattributed.iter().find(|one| one.gpu == board.uuid) else { continue };
            let held = |read: fn(&Account) -> Option<f64>| accounts().filter_map(read).sum::<f64>();
            let busy = held(|account| account.counters.busy_seconds) + unattributed.busy_seconds.values().sum::<f64>();
            let energy =
                held(|account| account.counters.energy_joules) + unattributed.energy_joules.values().sum::<f64>();
            ensure(near(busy, reference.busy), || format!("busy {busy}, device {}", reference.busy))?;
            ensure(near(energy, reference.energy), || format!("energy {energy}, device {}", reference.energy))?;
            let divided = [unattributed.divided.busy_seconds, unattributed.divided.energy_joules];
            for (reported, sum) in divided.into_iter().zip([busy, energy]) {
                ensure(reported.is_none_or(|reported| near(sum, reported)), || {
                    format!("{sum} is not the device's {reported:?}")
                })?;
            }
            let total = board.reading.as_ref().filter(|reading| reading.mig_devices.is_none());
            // A reading of time that was accounted without it is divided with the next reading.
            let total = total.filter(|reading| reference.has_read(reading));
            if let Some(reported) = total.and_then(|reading| reading.busy) {
                ensure(near(busy, reported), || format!("{busy}, not {reported}"))?;
            }
            let allocated = held(|account| account.counters.allocated_seconds);
            let elapsed = self.node.now as f64 * TICK_SECONDS;
            ensure(allocated <= elapsed * (1.0 + 1e-9), || format!("{allocated} of {elapsed} s"))?;
            for (reason, amount) in &unattributed.busy_seconds {
                let expected = reference.unattributed_busy.get(reason).copied().unwrap_or(0.0);
                ensure(near(*amount, expected), || format!("{reason:?} busy {amount}, not {expected}"))?;
            }
            for (reason, amount) in &unattributed.energy_joules {
                let expected = reference.unattributed_energy.get(reason).copied().unwrap_or(0.0);
                ensure(near(*amount, expected), || format!("{reason:?} energy {amount}, not {expected}"))?;
            }
        }
        let violations: u64 = published.violations.values().sum();
        ensure(violations == 0, || format!("{:?}", published.violations))
    }

    /// Each container's counters are the reference's, and allocated + borrowed = busy + idle + uncovered.
    fn check_accounts(&self, published: &LedgerOutput) -> Result<(), String> {
        let places: BTreeMap<_, _> =
            self.node.boards.iter().enumerate().map(|(place, board)| (board.uuid.clone(), place)).collect();
        for account in &published.accounts {
            let expected =
                self.references[places[&account.gpu]].accounts.get(&key(account)).cloned().unwrap_or_default();
            let [allocated, busy, idle, uncovered, borrowed, energy] = [
                account.counters.allocated_seconds,
                account.counters.busy_seconds,
                account.counters.idle_seconds,
                account.counters.uncovered_seconds,
                account.counters.borrowed_seconds,
                account.counters.energy_joules,
            ]
            .map(Option::unwrap_or_default);
            let as_expected =
                near(allocated, expected.allocated) && near(busy, expected.busy) && near(energy, expected.energy);
            ensure(as_expected, || format!("{account:?}\n{expected:?}"))?;
            let adds_up = near(busy + idle + uncovered, allocated + borrowed)
                && near(uncovered, expected.allocated - expected.allocated_with_busy);
            ensure(adds_up, || format!("busy + idle + uncovered: {account:?}\n{expected:?}"))?;
        }
        Ok(())
    }

    /// Each holder pays for its fraction, in parts used, idle and uncovered; with what nobody held, all of the GPUs' time is paid
    /// once, whoever borrowed it.
    fn check_costs(&self, published: &LedgerOutput) -> Result<(), String> {
        let boards = self.node.boards.iter().zip(&self.references).zip(&self.node.histories);
        let (mut paid, mut price_of_all) = (0.0, 0.0);
        for (place, ((board, reference), history)) in (1_u8..).zip(boards) {
            let price = f64::from(place) * 0.7;
            for account in published.accounts.iter().filter(|account| account.gpu == board.uuid) {
                let costs = account.counters.cost(price);
                let held = reference.accounts.get(&key(account)).map_or(0.0, |expected| expected.allocated);
                let cost = costs.cost.unwrap_or_default();
                ensure(near(cost, held / 3600.0 * price), || format!("{costs:?} of {held} s at {price}"))?;
                let parts = [costs.used_cost, costs.idle_cost, costs.uncovered_cost].map(Option::unwrap_or_default);
                ensure(near(parts.iter().sum(), cost), || format!("{costs:?} of {account:?}"))?;
                paid += cost;
            }
            let held =
                |holders: &BTreeMap<_, Holding>| holders.values().filter_map(|holding| holding.fraction).sum::<f64>();
            let unallocated = history[..reference.accounted].iter().map(|holders| 1.0 - held(holders)).sum::<f64>();
            paid += unallocated * TICK_SECONDS / 3600.0 * price;
            price_of_all += reference.accounted as f64 * TICK_SECONDS / 3600.0 * price;
        }
        ensure(near(paid, price_of_all), || format!("{paid} paid of {price_of_all}"))
    }

    fn check_memory(&self, published: &LedgerOutput) -> Result<(), String> {
        for (board, history) in self.node.boards.iter().zip(&self.node.histories) {
            let Some(reading) = &board.reading else { continue };
            let Some(used) = reading.memory else { continue };
            let Some(unattributed) = published.unattributed.iter().find(|one| one.gpu == board.uuid) else { continue };
            let accounts = || published.accounts.iter().filter(|account| account.gpu == board.uuid);
            let held: u64 = accounts().filter_map(|account| account.memory_used_bytes).sum();
            let sum = held + unattributed.memory_bytes.values().sum::<u64>();
            ensure(sum == used, || format!("memory {sum} of {used}"))?;
            let Some(processes) = &reading.processes else { continue };
            let holders = history.last().unwrap();
            for account in accounts().filter(|account| account.holding.is_some()) {
                let own = processes
                    .processes
                    .iter()
                    .filter(|process| process.running && holder_of(process, holders.keys()) == Ok(key(account)));
                let mut bytes: u64 = own.clone().filter_map(|process| process.memory_bytes).sum();
                if let (SharingForm::Exclusive, Some(_)) =
                    (account.holding.as_ref().unwrap().sharing, own.clone().next())
                {
                    let running = processes.processes.iter().filter(|process| process.running);
                    bytes += used - running.filter_map(|process| process.memory_bytes).sum::<u64>();
                }
                ensure(account.memory_used_bytes == Some(bytes), || format!("{account:?}: {bytes} bytes"))?;
                ensure(account.processes == Some(own.count() as u64), || format!("{account:?}"))?;
            }
        }
        Ok(())
    }

    /// What a holder does now is what its counters gained in the last ten seconds that were read: now × time is the increase.
    fn check_now(&self, published: &LedgerOutput) -> Result<(), String> {
        for (board, reference) in self.node.boards.iter().zip(&self.references) {
            let accounts = published.accounts.iter().filter(|account| account.gpu == board.uuid);
            for account in accounts.filter(|account| account.holding.is_some()) {
                let expected = reference.now(&key(account));
                let is_same = match (account.gpu_utilization_ratio, expected) {
                    (Some(now), Some(expected)) => near(now, expected),
                    (now, expected) => now == expected,
                };
                ensure(is_same, || format!("{account:?}: {expected:?} now"))?;
            }
        }
        Ok(())
    }

    /// No value is negative or NaN, and no counter decreases.
    fn check_counters(&self, published: &LedgerOutput) -> Result<(), String> {
        type Counters = BTreeMap<(HoldingKey, Option<UnattributedReason>), [f64; 6]>;
        let counters = |published: &LedgerOutput| {
            let of_account = |account: &Account| {
                let values = [
                    account.counters.allocated_seconds,
                    account.counters.busy_seconds,
                    account.counters.idle_seconds,
                    account.counters.borrowed_seconds,
                    account.counters.energy_joules,
                    account.counters.uncovered_seconds,
                ];
                ((key(account), None), values.map(Option::unwrap_or_default))
            };
            let mut counters: Counters = published.accounts.iter().map(of_account).collect();
            for unattributed in &published.unattributed {
                let nobody = ContainerRef::new("", "", "");
                let key = HoldingKey { container: nobody, gpu: unattributed.gpu.clone(), mig: None };
                for (reason, value) in &unattributed.busy_seconds {
                    counters.entry((key.clone(), Some(*reason))).or_default()[1] = *value;
                }
                for (reason, value) in &unattributed.energy_joules {
                    counters.entry((key.clone(), Some(*reason))).or_default()[4] = *value;
                }
            }
            counters
        };
        let now = counters(published);
        let wrong = now.iter().find(|(_, values)| values.iter().any(|value| !value.is_finite() || *value < 0.0));
        ensure(wrong.is_none(), || format!("no amount: {wrong:?}"))?;
        for (name, before) in self.before.as_ref().map(counters).into_iter().flatten() {
            let after = now.get(&name);
            let rises = after.is_some_and(|after| after.iter().zip(before).all(|(after, before)| *after >= before));
            ensure(rises, || format!("{name:?} fell from {before:?} to {after:?}"))?;
        }
        Ok(())
    }
}

fn ensure(truth: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if truth { Ok(()) } else { Err(what()) }
}

fn node_count() -> u64 {
    std::env::var("PODMETER_RANDOM_NODES")
        .ok()
        .map_or(300, |count| count.parse().expect("PODMETER_RANDOM_NODES is a number"))
}
