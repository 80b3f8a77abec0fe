//! Devices of random nodes.

use super::super::*;
use super::monotonic;
use super::random_node::{BoardReading, GapReading, MigReading, Random, TICK_SECONDS, Tick};
use crate::domain::attribution::OwnedProcess;
use crate::domain::model::{
    ClaimAllocation, ClaimDevice, ClaimHardware, ClaimRecord, ClaimSource, ContainerRef, DeviceId, DeviceTotals, Fast,
    GpmRatios, Gpu, InstanceReading, Medium, MemoryUse, MigDevice, Owner, PodRef, ReadingGaps, Stamped, UnknownOwner,
};
use crate::test_data;

pub enum BoardKind {
    Whole,
    Slots(usize),
    /// The slices of each GPU instance, and those of its compute instances.
    Mig {
        shape: &'static [(u32, &'static [u32])],
        gpm: bool,
    },
    Claims,
    /// MIG devices that claims allocate.
    ClaimedMig {
        shape: &'static [(u32, &'static [u32])],
    },
}

/// The place of a claim with admin access.
const OBSERVER: usize = 5;
const SHAPES: [&[(u32, &[u32])]; 4] = [
    &[(1, &[1]), (1, &[1]), (1, &[1]), (1, &[1]), (1, &[1]), (1, &[1]), (1, &[1])],
    &[(3, &[3]), (3, &[1, 2]), (1, &[1])],
    &[(3, &[1, 1]), (2, &[2])],
    &[(7, &[7])],
];

impl BoardKind {
    pub fn any(random: &mut Random) -> Self {
        match random.below(6) {
            0 => Self::Whole,
            1 => Self::Slots(1 + random.below(8)),
            2 => Self::Mig { shape: SHAPES[random.below(4)], gpm: true },
            3 => Self::Mig { shape: SHAPES[random.below(4)], gpm: false },
            4 => Self::ClaimedMig { shape: SHAPES[random.below(4)] },
            _ => Self::Claims,
        }
    }

    pub fn places(&self) -> usize {
        match self {
            Self::Whole => 2,
            Self::Slots(slots) => *slots,
            Self::Mig { shape, .. } | Self::ClaimedMig { shape } => {
                2 * shape.iter().map(|(_, members)| members.len()).sum::<usize>()
            }
            Self::Claims => 6,
        }
    }
}

/// One device. Its work is decided tick by tick; readings cover several ticks.
pub struct Board {
    pub uuid: GpuUuid,
    pub kind: BoardKind,
    pub reading: Option<BoardReading>,
    number: usize,
    tells: (bool, bool, bool, bool),
    level: f64,
    busy: f64,
    reported_busy: f64,
    energy: f64,
    /// The busy seconds by GPU instance.
    active: Vec<f64>,
    memory: u64,
    processes: Vec<OwnedProcess>,
    gap_until: Tick,
    was_silent: bool,
    gaps: GapReading,
    sampleless: f64,
    without_processes_until: Tick,
    origin: (f64, f64),
}

impl Board {
    pub fn new(number: usize, kind: BoardKind, random: &mut Random) -> Self {
        Self {
            uuid: GpuUuid::new(format!("GPU-{number:08x}-0000-0000-0000-000000000000")),
            number,
            tells: (random.chance(85), random.chance(85), random.chance(60), random.chance(80)),
            active: vec![0.0; 7],
            kind,
            reading: None,
            level: 0.0,
            busy: 0.0,
            reported_busy: 0.0,
            energy: 0.0,
            memory: 0,
            processes: vec![],
            gap_until: 0,
            was_silent: false,
            gaps: GapReading::default(),
            sampleless: 0.0,
            without_processes_until: 0,
            origin: (0.0, 0.0),
        }
    }

    fn migs(&self) -> Vec<(MigDevice, u32)> {
        let (BoardKind::Mig { shape, .. } | BoardKind::ClaimedMig { shape }) = &self.kind else { return vec![] };
        let mut devices = vec![];
        for (instance, (slices, members)) in shape.iter().enumerate() {
            for (member, member_slices) in members.iter().enumerate() {
                let uuid = format!("MIG-{:08x}-{instance:04x}-{member:04x}-0000-000000000000", self.number);
                let part = if slices == member_slices { String::new() } else { format!("{member_slices}c.") };
                let (instance, profile) = (instance as u32 + 1, format!("{part}{slices}g.10gb"));
                let device = test_data::mig(&uuid, instance, &profile, *member_slices);
                let device = MigDevice { index: devices.len() as u32, compute_instance: member as u32, ..device };
                devices.push((device, members.iter().sum::<u32>()));
            }
        }
        devices
    }

    pub fn gpu(&self) -> Gpu {
        let mig_devices: Vec<MigDevice> = self.migs().into_iter().map(|(device, _)| device).collect();
        Gpu {
            minor: Some(self.number as u32),
            mig_slices: Some(7),
            mig_enabled: Some(!mig_devices.is_empty()),
            mig_devices,
            ..Gpu::listed(self.uuid.clone(), self.number as u32)
        }
    }

    pub fn id(&self, place: usize) -> DeviceId {
        match &self.kind {
            BoardKind::Slots(_) => DeviceId::new(format!("{}::{place}", self.uuid)),
            // Every MIG device has two slots.
            BoardKind::Mig { .. } | BoardKind::ClaimedMig { .. } => {
                DeviceId::new(format!("{}::{}", self.migs()[place / 2].0.uuid, place % 2))
            }
            BoardKind::Whole | BoardKind::Claims => DeviceId::new(self.uuid.to_shared()),
        }
    }

    /// The claim at a place. Some observe the device. Two claims of two pods each share it, alone or, where their
    /// shares are known, in unequal parts. `None`: it is no device of claims.
    pub fn claim(&self, place: usize) -> Option<ClaimDevice> {
        let (claim, hardware) = match &self.kind {
            BoardKind::Claims => {
                (if place == OBSERVER { place } else { place % 3 }, ClaimHardware::Gpu(self.uuid.clone()))
            }
            BoardKind::ClaimedMig { .. } => (place, ClaimHardware::Mig(self.migs()[place / 2].0.uuid.clone())),
            _ => return None,
        };
        let has_shares = self.number % 2 == 1;
        let consumed = has_shares.then(|| ("memory".into(), 1000 * (1 + claim as u64)));
        let allocation = ClaimAllocation { admin_access: place == OBSERVER, consumed: consumed.into_iter().collect() };
        let hardware = [(ClaimSource::Checkpoint, hardware)].into();
        Some(ClaimDevice {
            claim: format!("claim-{claim}").into(),
            share_id: (has_shares && place == 3).then(|| "share".into()),
            record: ClaimRecord { hardware, allocation: Some(allocation) },
            ..test_data::claim("gpu.nvidia.com", &format!("gpu-{}", self.number))
        })
    }

    pub fn offered(&self) -> Vec<DeviceId> {
        (0..self.kind.places()).map(|place| self.id(place)).collect()
    }

    pub fn restart(&mut self) {
        self.reading = None;
        (self.gaps, self.sampleless, self.was_silent) = (GapReading::default(), 0.0, false);
        self.active.fill(0.0);
        self.origin = (self.reported_busy, self.energy);
        self.processes.clear();
    }

    pub fn pass(&mut self, ticks: usize, now: Tick, holders: &[ContainerRef], random: &mut Random) {
        let seconds = ticks as f64 * TICK_SECONDS;
        self.busy += self.level * seconds;
        self.energy += (60.0 + 500.0 * self.level) * seconds;
        self.run(seconds, holders, random);
        if now >= self.gap_until {
            self.read(now, random);
            if random.chance(2) {
                self.gap_until = now + 30 + random.below(400);
                self.was_silent = true;
            }
        }
        if random.chance(20) {
            self.level = if random.chance(40) { 0.0 } else { random.ratio() };
        }
    }

    /// Processes come, work and end.
    fn run(&mut self, seconds: f64, holders: &[ContainerRef], random: &mut Random) {
        let mut left = self.level * seconds;
        for process in self.processes.iter_mut().filter(|process| process.running) {
            let worked = left * random.ratio();
            process.sm_seconds += worked;
            left -= worked;
        }
        if random.chance(15) && self.processes.len() < 12 {
            let owner = match (random.below(8), holders) {
                (0, _) if self.number % 2 == 1 => Owner::MpsServer,
                (0, _) => Owner::Host,
                (1, _) => Owner::EndedPod { uid: "ended".into(), pod: None },
                (2, _) => Owner::Unknown(UnknownOwner::Gone),
                (3, _) | (_, []) => Owner::Container(ContainerRef::new("other", "guest", "main")),
                (4, [first, ..]) => Owner::Pod(PodRef::new("team", &first.pod)),
                (5, [first, ..]) => Owner::Container(ContainerRef::new("team", &first.pod, "debug")),
                (_, holders) => Owner::Container(holders[random.below(holders.len())].clone()),
            };
            let process = test_data::process(random.next() as u32, owner, 0.0);
            self.processes.push(OwnedProcess { memory_bytes: Some(random.next() % (1 << 30)), ..process });
        }
        if random.chance(10) && !self.processes.is_empty() {
            let place = random.below(self.processes.len());
            if self.processes[place].running {
                self.processes[place].running = false;
            } else {
                self.processes.remove(place);
            }
        }
    }

    fn read(&mut self, now: Tick, random: &mut Random) {
        // Samples arrive late, sometimes by much.
        self.reported_busy = if random.chance(80) { self.busy } else { self.reported_busy };
        let (tells_busy, tells_energy, tells_processes, has_sm_seconds) = self.tells;
        let complete_until = now.saturating_sub(random.below(4));
        if self.reading.as_ref().is_some_and(|last| last.complete_until >= complete_until) {
            return;
        }
        let last_medium = self.reading.as_ref().and_then(|last| last.medium_at).filter(|at| now - at < 300);
        let medium_at = if last_medium.is_none_or(|at| now - at >= 100) {
            self.memory = random.next() % (1 << 36) + (1 << 34);
            Some(now)
        } else {
            last_medium
        };
        if std::mem::take(&mut self.was_silent) && random.chance(60) {
            self.begin_session(complete_until, random);
        } else if random.chance(5)
            && let Some(last) = &self.reading
        {
            let most = (complete_until - last.complete_until) as f64 * TICK_SECONDS;
            self.sampleless += if random.chance(30) { most } else { random.ratio() * most };
        }
        let before = self.reading.as_ref().map_or(0, |last| last.complete_until.max(self.gaps.until));
        for (device, members) in self.migs() {
            if self.reading.is_some() && device.compute_instance == 0 {
                // No compute instance can be busier than always.
                let most = 1.0 / of_instance(&device, members);
                let ratio = if random.chance(30) { 0.0 } else { random.ratio() * most.min(1.0) };
                self.active[device.gpu_instance as usize - 1] +=
                    ratio * (complete_until - before) as f64 * TICK_SECONDS;
            }
        }
        let is_partitioned = matches!(self.kind, BoardKind::Mig { .. } | BoardKind::ClaimedMig { .. });
        if random.chance(3) {
            self.without_processes_until = now + random.below(100);
        }
        let mig_devices = self.migs().into_iter().map(|(device, members)| MigReading {
            fraction: f64::from(device.slices) / 7.0,
            active_seconds: self.active_seconds(&device).map(|seconds| seconds * of_instance(&device, members)),
            mig: device.uuid,
        });
        let processes = DeviceProcesses { has_sm_seconds, processes: self.processes.clone() };
        let tells_processes = tells_processes && !is_partitioned;
        let sm_seconds = self.processes.iter().map(|process| (process.pid, process.sm_seconds));
        let process_sm_seconds = (tells_processes && has_sm_seconds).then(|| sm_seconds.collect());
        let tells_processes = tells_processes && now >= self.without_processes_until;
        self.reading = Some(BoardReading {
            complete_until,
            busy: (tells_busy && !is_partitioned).then_some(self.reported_busy - self.origin.0),
            energy: tells_energy.then_some(self.energy - self.origin.1),
            medium_at,
            mig_devices: is_partitioned.then(|| mig_devices.collect()),
            processes: tells_processes.then_some(processes),
            process_sm_seconds,
            memory: medium_at.map(|_| self.memory),
            gaps: self.gaps,
            sampleless_seconds: self.sampleless,
        });
    }

    /// Since the last reading the driver was closed or the reader replaced. Now and then the first pass of the new
    /// session is not published.
    fn begin_session(&mut self, complete_until: Tick, random: &mut Random) {
        let Some(last) = &self.reading else { return };
        let until = (complete_until - random.below(3)).max(last.complete_until + 1);
        let of_gap = if until == complete_until { 1.0 } else { random.ratio() };
        self.gaps.until = until;
        self.gaps.seconds += (until - last.complete_until) as f64 * TICK_SECONDS;
        if let Some(busy) = last.busy {
            self.origin.0 += (self.reported_busy - self.origin.0 - busy) * of_gap;
        }
        if let Some(energy) = last.energy {
            let drawn = (self.energy - self.origin.1 - energy) * of_gap;
            let lost = if random.chance(60) { 0.0 } else { drawn };
            self.origin.1 += lost;
            self.gaps.energy += drawn - lost;
        }
        self.active.fill(0.0);
    }

    /// What the driver reports for its GPU instance.
    fn active_seconds(&self, device: &MigDevice) -> Option<f64> {
        let BoardKind::Mig { gpm: true, .. } = self.kind else { return None };
        Some(self.active[device.gpu_instance as usize - 1])
    }

    pub fn readings(&self, reading: &BoardReading) -> DeviceReadings {
        let memory = |used| MemoryUse { used, free: 0, reserved: None, total: used };
        let mut instances: Vec<InstanceReading> = vec![];
        for (device, _) in self.migs() {
            match instances.iter_mut().find(|one| one.gpu_instance == device.gpu_instance) {
                Some(instance) => instance.members.push(device.uuid),
                None => instances.push(InstanceReading {
                    gpu_instance: device.gpu_instance,
                    members: vec![device.uuid],
                    memory: Some(memory(u64::from(device.gpu_instance) << 28)),
                    gpm: GpmRatios::default(),
                }),
            }
        }
        let at = |tick: Tick| monotonic(tick as u64 * 100);
        let of_instances = self.migs().into_iter();
        let instance_busy_seconds =
            of_instances.filter_map(|(device, _)| Some((device.gpu_instance, self.active_seconds(&device)?))).collect();
        let medium = Medium { memory: reading.memory.map(memory), instances, ..Medium::default() };
        DeviceReadings {
            totals: DeviceTotals {
                complete_until: at(reading.complete_until),
                busy_seconds: reading.busy,
                energy_joules: reading.energy,
                // The laws hold with a module's energy beside the GPU's: it is no part of what is divided.
                module_energy_joules: reading.energy.map(|joules| joules * 2.5 + 1000.0),
                instance_busy_seconds,
                uncovered_seconds: reading.gaps.seconds + reading.sampleless_seconds,
                gaps: ReadingGaps {
                    seconds: reading.gaps.seconds,
                    energy_joules: reading.gaps.energy,
                    until: at(reading.gaps.until),
                },
                process_sm_seconds: reading.process_sm_seconds.clone(),
                ..DeviceTotals::default()
            },
            fast: Some(Stamped {
                at: at(reading.complete_until),
                value: Fast {
                    utilization_ratio: Some(self.level),
                    instance_utilization_ratios: (1..=7).map(|instance| (instance, self.level)).collect(),
                    ..Fast::default()
                },
            }),
            medium: reading.medium_at.map(|tick| Stamped { at: at(tick), value: medium }),
            ..DeviceReadings::default()
        }
    }
}

/// The slices of its GPU instance for each slice that its compute instances have in total.
fn of_instance(device: &MigDevice, members: u32) -> f64 {
    let slices: u32 = device.profile.split('.').find_map(|word| word.strip_suffix('g')).unwrap().parse().unwrap();
    f64::from(slices) / f64::from(members)
}
