//! Time that is not read is neither busy nor idle: the hardware's record and the ledger together, on random sequences
//! of readings, silences, releases, losses, changes of the MIG layout, reloads of the driver and refused utilization.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use podmeter::domain::attribution::LedgerOutput;
use podmeter::domain::model::{ContainerRef, DeviceTotals, Fast, Gpu, Monotonic, SharingForm, UnattributedReason};
use podmeter::hardware::{GpuState, Integrals, Pass, Staleness};
use proptest::prelude::*;

use crate::support::test_data::{LedgerNode, at_millisecond, holding, inventory, key, processes};

const GPU: &str = "GPU-aaaaaaaa-0000-0000-0000-000000000000";
const LATE: Duration = Duration::from_secs(5);
const STALENESS: Staleness =
    Staleness { fast: Duration::from_secs(5), medium: Duration::from_secs(30), slow: Duration::from_secs(180) };
/// What the board draws idle, and what full load adds.
const IDLE_WATTS: u64 = 70;
const LOAD_WATTS: u64 = 600;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn busy_idle_and_uncovered_are_all_time_and_no_silence_is_idle(
        by_process in any::<bool>(),
        first in 0_usize..4,
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut gpu = InterruptedGpu::new(by_process);
        gpu.hold(first);
        gpu.is_steady = true;
        for step in &steps {
            gpu.act(step)?;
        }
    }
}

#[derive(Clone, Debug)]
enum GpuStep {
    /// Passes, 100 ms to 3 s apart.
    Read(Vec<u64>),
    /// The next pass of the same reader comes so late. Milliseconds.
    Late(u64),
    /// A call hangs, returns, and the same reader continues.
    Hang(u64),
    /// The driver is closed and opened again.
    Release(u64),
    /// The GPU is lost and returns.
    Loss(u64),
    /// A new reader, while the readings of the old one stay.
    MigChange(u64),
    /// The driver no longer supports utilization, up to the next reader.
    Refusal(u64),
    /// The driver is reloaded, and its counter restarts at zero.
    Reload(u64),
    /// Per cent of a second.
    Load(u64),
    /// The holders from now on: none, one alone, or this many slots of four.
    Hold(usize),
}

fn step() -> impl Strategy<Value = GpuStep> {
    let passes = || prop::collection::vec(100_u64..3000, 1..8).prop_map(GpuStep::Read);
    let silence = 200_u64..90_000;
    prop_oneof![
        4 => passes(),
        1 => (200_u64..20_000).prop_map(GpuStep::Late),
        1 => (10_000_u64..90_000).prop_map(GpuStep::Hang),
        1 => silence.clone().prop_map(GpuStep::Release),
        1 => silence.clone().prop_map(GpuStep::Loss),
        1 => (200_u64..3000).prop_map(GpuStep::MigChange),
        1 => (200_u64..20_000).prop_map(GpuStep::Refusal),
        1 => silence.prop_map(GpuStep::Reload),
        2 => prop_oneof![Just(0), Just(100), 0_u64..=100].prop_map(GpuStep::Load),
        1 => (0_usize..4).prop_map(GpuStep::Hold),
    ]
}

struct InterruptedGpu {
    now: u64,
    load: u64,
    /// Busy milliseconds times 100, and millijoules: the board's own.
    busy: u64,
    energy: u64,
    /// The driver's counter is the energy since then.
    loaded_at: u64,
    /// Up to where the present reader has integrated.
    read: (u64, u64),
    record: GpuState,
    node: LedgerNode,
    output: Option<LedgerOutput>,
    /// GPU-milliseconds times four, by holder.
    held: BTreeMap<ContainerRef, u64>,
    /// Millijoules that the driver's counter has gained from pass to pass.
    counted: u64,
    last_pass: u64,
    last_counter: Option<u64>,
    /// A lower one after it, or the first.
    fallen: Option<u64>,
    /// Ledger and record have read the same time since the last gap, with the same holders.
    is_steady: bool,
}

/// Checks what `DeviceTotals` promises, for totals up to one pass later.
fn check_promises(before: &DeviceTotals, now: &DeviceTotals) {
    const ROUNDING: f64 = 1e-6;
    let time = now.complete_until.since(before.complete_until).as_secs_f64();
    let gap = now.gaps.seconds - before.gaps.seconds;
    let uncovered = now.uncovered_seconds - before.uncovered_seconds;
    let is_sound = now.complete_until >= before.complete_until
        && (0.0..=uncovered + ROUNDING).contains(&gap)
        && uncovered <= time + ROUNDING
        && if gap > 0.0 { now.gaps.until == now.complete_until } else { now.gaps.until == before.gaps.until };
    assert!(is_sound, "{before:?} {now:?}");
    if let (Some(busy), Some(was_busy)) = (now.busy_seconds, before.busy_seconds) {
        let most = if gap > 0.0 { f64::INFINITY } else { time - uncovered + ROUNDING };
        assert!((0.0..=most).contains(&(busy - was_busy)), "{before:?} {now:?}");
    }
    let energy = now.energy_joules.unwrap_or(0.0) - before.energy_joules.unwrap_or(0.0);
    let of_gaps = now.gaps.energy_joules - before.gaps.energy_joules;
    assert!((0.0..=energy + ROUNDING).contains(&of_gaps), "{before:?} {now:?}");
}

impl InterruptedGpu {
    fn new(by_process: bool) -> Self {
        let mut node = LedgerNode::new(inventory([Gpu::listed(GPU.into(), 0)]), LATE);
        node.retention.time = Duration::from_secs(1_000_000);
        if by_process {
            node.processes = [(GPU.into(), processes([]))].into();
        }
        let mut gpu = Self {
            now: 1000,
            load: 0,
            busy: 0,
            energy: 5_000_000,
            loaded_at: 0,
            read: (0, 0),
            record: GpuState::default(),
            node,
            output: None,
            held: BTreeMap::new(),
            counted: 0,
            last_pass: 1000,
            last_counter: None,
            fallen: None,
            is_steady: false,
        };
        gpu.observe();
        gpu.pass(true);
        gpu
    }

    fn at(&self) -> Monotonic {
        Monotonic::from_millis(self.now)
    }

    /// Lets time pass; the ledger is updated once a second, independent of the driver.
    fn wait(&mut self, milliseconds: u64) {
        let end = self.now + milliseconds;
        while self.now < end {
            let length = (end - self.now).min(1000);
            self.now += length;
            self.busy += length * self.load;
            self.energy += length * (IDLE_WATTS + LOAD_WATTS * self.load / 100);
            for (key, holding) in &self.node.holdings.by_key {
                *self.held.entry(key.container.clone()).or_default() +=
                    length * (holding.fraction.unwrap() * 4.0) as u64;
            }
            if self.now < end {
                self.observe();
            }
        }
    }

    fn made(&mut self, fresh: bool) -> Pass {
        let (busy, energy) = if fresh { (self.busy, self.energy) } else { self.read };
        let integrals = Integrals {
            busy_seconds: Some((self.busy - busy) as f64 / 1e5),
            energy_joules: Some((self.energy - energy) as f64 / 1e3),
            ..Integrals::default()
        };
        self.read = (self.busy, self.energy);
        let fast = Fast { utilization_ratio: Some(self.load as f64 / 100.0), power_watts: None, ..Fast::default() };
        let counter = self.energy - self.loaded_at;
        Pass {
            integrals,
            energy_counter: Some(counter),
            counter_is_of_gpu: Some(true),
            fast: Some(fast),
            ..Pass::default()
        }
    }

    fn pass(&mut self, fresh: bool) {
        let pass = self.made(fresh);
        self.take(fresh, pass);
    }

    fn take(&mut self, fresh: bool, pass: Pass) {
        self.record.add_pass(self.at(), fresh, pass);
        // One that is lower than before does not span the time between, and counts once the next one is higher.
        let counter = self.energy - self.loaded_at;
        let since_fall = self.fallen.and_then(|fallen| counter.checked_sub(fallen)).filter(|gain| *gain > 0);
        let since_last = self.last_counter.and_then(|last| counter.checked_sub(last));
        match since_last.or(since_fall) {
            Some(gain) => {
                self.counted += gain;
                (self.last_counter, self.fallen) = (Some(counter), None);
            }
            None => self.fallen = Some(counter),
        }
        self.last_pass = self.now;
        self.observe();
    }

    fn observe(&mut self) {
        if self.last_pass > 1000 || self.read.1 > 0 {
            let readings = Arc::new(self.record.readings(self.at(), STALENESS));
            if let Some(before) = self.node.readings.insert(GPU.into(), Arc::clone(&readings)) {
                check_promises(&before.totals, &readings.totals);
            }
        }
        self.output = Some(self.node.advance(at_millisecond(self.now)));
    }

    fn hold(&mut self, slots: usize) {
        self.is_steady = false;
        let holders = match slots {
            0 => vec![],
            1 => vec![("alone", SharingForm::Exclusive, 1.0)],
            slots => [("one", 0.25), ("two", 0.5), ("three", 0.25)][..slots]
                .iter()
                .map(|(pod, share)| (*pod, SharingForm::TimeSlicing, *share))
                .collect(),
        };
        let held = |(pod, sharing, share): (&str, SharingForm, f64)| (key(pod, GPU), holding(GPU, sharing, share));
        self.node.holdings.by_key = holders.into_iter().map(held).collect();
        self.observe();
    }

    fn idle(&self) -> BTreeMap<String, f64> {
        let accounts = &self.output.as_ref().unwrap().accounts;
        let idle =
            |account: &podmeter::domain::model::Account| (account.container.to_string(), account.counters.idle_seconds);
        accounts.iter().map(idle).map(|(name, idle)| (name, idle.unwrap_or(0.0))).collect()
    }

    /// A gap, the fault of the driver in its middle, and the pass that ends it.
    fn silent(&mut self, length: u64, middle: impl FnOnce(&mut Self), fresh: bool) -> Result<(), TestCaseError> {
        let before = self.idle();
        self.wait(length / 2);
        middle(self);
        self.wait(length - length / 2);
        self.pass(fresh);
        self.is_steady = true;
        for (name, idle) in self.idle() {
            let had = before.get(&name).copied().unwrap_or(0.0);
            prop_assert!((idle - had).abs() < 1e-9, "{name}: idle grew from {had} to {idle} in a silence");
        }
        Ok(())
    }

    fn act(&mut self, step: &GpuStep) -> Result<(), TestCaseError> {
        match step {
            GpuStep::Read(pauses) => {
                for pause in pauses {
                    self.wait(*pause);
                    self.pass(false);
                }
            }
            GpuStep::Late(length) if Duration::from_millis(*length) > LATE + Duration::from_secs(1) => {
                self.silent(*length, |_| {}, false)?;
                self.is_steady = false;
            }
            GpuStep::Late(length) => {
                self.wait(*length);
                self.pass(false);
            }
            GpuStep::Hang(length) => {
                let began = self.at();
                self.record.withdraw();
                let comes_back = |gpu: &mut Self| {
                    let pass = gpu.made(false);
                    gpu.record.add_late_pass(began, pass);
                };
                self.silent(*length, comes_back, false)?;
            }
            GpuStep::Release(length) | GpuStep::Loss(length) => {
                self.record.withdraw();
                self.silent(*length, |_| {}, true)?;
            }
            GpuStep::MigChange(length) => self.silent(*length, |_| {}, true)?,
            GpuStep::Refusal(length) => {
                let passes = |gpu: &mut Self| {
                    for _ in 0..length / 1000 {
                        gpu.wait(1000);
                        let mut pass = gpu.made(false);
                        pass.integrals = Integrals { busy_seconds: None, lacks_utilization: true, ..pass.integrals };
                        gpu.take(false, pass);
                    }
                };
                self.silent(1000, passes, true)?;
            }
            GpuStep::Reload(length) => {
                self.record.withdraw();
                self.silent(*length, |gpu| gpu.loaded_at = gpu.energy, true)?;
            }
            GpuStep::Load(percent) => self.load = *percent,
            GpuStep::Hold(slots) => self.hold(*slots),
        }
        self.check()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let near = |one: f64, other: f64| (one - other).abs() <= 1e-6;
        let output = self.output.as_ref().unwrap();
        prop_assert!(output.violations.values().all(|count| *count == 0), "{:?}", output.violations);
        for account in &output.accounts {
            let [allocated, busy, idle, uncovered, borrowed] = [
                account.counters.allocated_seconds,
                account.counters.busy_seconds,
                account.counters.idle_seconds,
                account.counters.uncovered_seconds,
                account.counters.borrowed_seconds,
            ]
            .map(Option::unwrap_or_default);
            prop_assert!(near(busy + idle + uncovered, allocated + borrowed), "{account:?}");
            let held = self.held.get(&account.container).copied().unwrap_or(0) as f64 / 4e3;
            let since = (self.now - self.last_pass) as f64 / 1e3;
            prop_assert!(allocated <= held + 1e-6 && allocated >= held - since - 1e-6, "{account:?}: held {held} s");
        }
        let known = output.accounts.iter().filter(|account| account.holding.is_some());
        let now: Vec<f64> = known.filter_map(|account| account.gpu_utilization_ratio).collect();
        let is_divided = self.node.processes.is_empty() || self.node.holdings.by_key.len() == 1;
        if self.is_steady && is_divided && !now.is_empty() {
            let device = self.node.readings[&GPU.into()].fast.as_ref().unwrap().value.utilization_ratio.unwrap();
            let sum: f64 = now.iter().sum();
            prop_assert!(near(sum, device), "{sum} of holders, {device} of the device now");
        }
        let unattributed = &output.unattributed[0];
        let booked = output.accounts.iter().filter_map(|account| account.counters.energy_joules).sum::<f64>()
            + unattributed.energy_joules.values().sum::<f64>();
        let counted = self.counted as f64 / 1e3;
        prop_assert!(near(booked, counted), "{booked} J booked, {counted} J counted");
        let idle = unattributed.energy_joules.get(&UnattributedReason::Idle).copied().unwrap_or(0.0);
        let most = IDLE_WATTS as f64 * self.now as f64 / 1e3;
        prop_assert!(idle <= most + 1e-6, "{idle} J of idle power, of at most {most}");
        Ok(())
    }
}
