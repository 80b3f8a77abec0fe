//! Random nodes: devices that work, containers that come and go, readings that are late or missing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::*;
use super::boards::{Board, BoardKind};
use super::reference::{History, check_claims};
use crate::domain::holders::{Slots, join};
use crate::domain::model::{Allocatable, Allocations, Container, ContainerRef, DeviceId, MigUuid, UnixSeconds};
pub use crate::simulation::Random;
use crate::test_data::{self, LedgerNode};

pub type Tick = usize;
pub const TICK_SECONDS: f64 = 0.1;
pub const LATE_TICKS: Tick = 50;

/// The values of one GPU at its last reading.
#[derive(Clone, Debug)]
pub struct BoardReading {
    pub complete_until: Tick,
    pub busy: Option<f64>,
    pub energy: Option<f64>,
    pub medium_at: Option<Tick>,
    /// The MIG devices of a partitioned GPU.
    pub mig_devices: Option<Vec<MigReading>>,
    pub processes: Option<DeviceProcesses>,
    /// The SM-seconds by PID, also while the owners of the processes are not known.
    pub process_sm_seconds: Option<BTreeMap<u32, f64>>,
    pub memory: Option<u64>,
    pub gaps: GapReading,
    /// The time in sessions for which the driver gave no samples.
    pub sampleless_seconds: f64,
}

/// Time between sessions.
#[derive(Clone, Copy, Debug, Default)]
pub struct GapReading {
    pub until: Tick,
    pub seconds: f64,
    pub energy: f64,
}

#[derive(Clone, Debug)]
pub struct MigReading {
    pub mig: MigUuid,
    pub fraction: f64,
    /// The active seconds since the device was first read.
    pub active_seconds: Option<f64>,
}

impl Random {
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn ratio(&mut self) -> f64 {
        self.between(0.0, 1.0)
    }
}

pub struct RandomNode {
    pub random: Random,
    pub now: Tick,
    pub boards: Vec<Board>,
    pub histories: Vec<History>,
    pub observed: LedgerNode,
    allocatable: Allocatable,
    slots: Slots,
    /// The holder by device and place on it.
    grants: BTreeMap<(usize, usize), ContainerRef>,
    containers: usize,
    unix: f64,
}

impl RandomNode {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::seeded(seed);
        let crowded = seed.is_multiple_of(100);
        let count = if crowded { 16 } else { if random.chance(4) { 16 } else { 1 + random.below(3) } };
        let boards: Vec<Board> = (0..count)
            .map(|number| {
                Board::new(
                    number,
                    if crowded { BoardKind::Slots(32) } else { BoardKind::any(&mut random) },
                    &mut random,
                )
            })
            .collect();
        let inventory = test_data::inventory(boards.iter().map(Board::gpu));
        let ids: BTreeSet<DeviceId> = boards.iter().flat_map(Board::offered).collect();
        let allocatable = Allocatable { devices: [("nvidia.com/gpu".into(), ids)].into(), ..Allocatable::default() };
        let mut slots = Slots::default();
        slots.update_counts(&Allocations::default(), &allocatable, &inventory, true);
        let mut node = Self {
            random,
            now: 0,
            histories: boards.iter().map(|_| vec![Arc::default()]).collect(),
            boards,
            observed: Self::unobserved(inventory),
            allocatable,
            slots,
            grants: BTreeMap::new(),
            containers: 0,
            unix: 1.7e9,
        };
        if crowded {
            for place in 0..16 * 31 {
                let container = node.container(None);
                node.grants.insert((place / 31, place % 31), container);
            }
        }
        node.relate();
        node
    }

    fn unobserved(inventory: Inventory) -> LedgerNode {
        let retention = Retention { time: Duration::from_secs(86_400), scrapes: 0 };
        LedgerNode { retention, ..LedgerNode::new(inventory, Duration::from_secs(5)) }
    }

    pub fn observe(&mut self) -> LedgerOutput {
        let monotonic = super::monotonic(self.now as u64 * 100);
        self.observed.advance(Moment { monotonic, unix: UnixSeconds(self.unix) })
    }

    /// Lets time pass, then lets some things happen.
    pub fn step(&mut self) {
        let ticks = 1 + self.random.below(20);
        self.now += ticks;
        for history in &mut self.histories {
            let last = history.last().unwrap().clone();
            history.extend(std::iter::repeat_n(last, ticks));
        }
        let holders: Vec<Vec<ContainerRef>> = (0..self.boards.len())
            .map(|gpu| self.grants.range((gpu, 0)..(gpu + 1, 0)).map(|(_, container)| container.clone()).collect())
            .collect();
        for (board, holders) in self.boards.iter_mut().zip(&holders) {
            board.pass(ticks, self.now, holders, &mut self.random);
        }
        if self.random.chance(35) {
            for _ in 0..=self.random.below(3) {
                self.change();
            }
            self.relate();
        }
        // The wall clock may step.
        self.unix += if self.random.chance(5) { self.random.ratio() * 1e6 - 5e5 } else { 0.1 };
        let observed = &mut self.observed;
        for board in &self.boards {
            if let Some(reading) = &board.reading {
                observed.readings.insert(board.uuid.clone(), Arc::new(board.readings(reading)));
                match &reading.processes {
                    Some(processes) => observed.processes.insert(board.uuid.clone(), processes.clone()),
                    None => observed.processes.remove(&board.uuid),
                };
            }
        }
    }

    /// The agent restarts without its earlier state.
    pub fn restart(&mut self) {
        for history in &mut self.histories {
            let last = history.len() - 1;
            history[..last].iter_mut().for_each(|holders| *holders = Arc::default());
        }
        self.boards.iter_mut().for_each(Board::restart);
        let before = std::mem::take(&mut self.observed.inventory);
        self.observed =
            LedgerNode { holdings: std::mem::take(&mut self.observed.holdings), ..Self::unobserved(before) };
    }

    fn container(&mut self, before: Option<&ContainerRef>) -> ContainerRef {
        self.containers += 1;
        let name = format!("c{}", self.containers);
        match before.filter(|_| self.random.chance(40)) {
            // Reused by the next container of the pod.
            Some(before) => ContainerRef::new("team", &before.pod, &name),
            None => ContainerRef::new("team", &format!("pod-{}", self.random.next() % 100_000), &name),
        }
    }

    fn change(&mut self) {
        let gpu = self.random.below(self.boards.len());
        let place = (gpu, self.random.below(self.boards[gpu].kind.places()));
        let before = self.grants.remove(&place);
        if before.is_none() || self.random.chance(50) {
            let container = self.container(before.as_ref());
            self.grants.insert(place, container);
        }
    }

    fn relate(&mut self) {
        let mut containers: BTreeMap<ContainerRef, Container> = BTreeMap::new();
        for ((gpu, place), reference) in &self.grants {
            let board = &self.boards[*gpu];
            let empty = || test_data::container(reference.clone(), &[]);
            let container = containers.entry(reference.clone()).or_insert_with(empty);
            match board.claim(*place) {
                Some(claim) => container.claims.push(claim),
                None => container.devices.push(test_data::held("nvidia.com/gpu", board.id(*place).as_str())),
            }
        }
        let allocations = test_data::allocations(containers.into_values().map(test_data::pod));
        let observed = &mut self.observed;
        observed.holdings = join(&allocations, &self.allocatable, &observed.inventory, &self.slots);
        check_claims(&allocations, &observed.holdings, &observed.inventory);
        for (board, history) in self.boards.iter().zip(&mut self.histories) {
            let holdings = observed.holdings.by_key.iter().filter(|(key, _)| key.gpu == board.uuid);
            let holdings: BTreeMap<_, _> = holdings.map(|(key, holding)| (key.clone(), holding.clone())).collect();
            *history.last_mut().unwrap() = Arc::new(holdings);
        }
    }
}
