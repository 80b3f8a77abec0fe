//! Reads one simulated GPU as a driver's reader would.

use std::collections::BTreeMap;

use super::controls::{Controls, GpuLoad, ProcessLoad, UNLOADED};
use super::curve::{Load, LoadSums};
use super::machine::Model;
use crate::domain::model::{
    C2c, Clocks, DeviceProcess, EccLocation, FabricState, Fast, GpmRatios, Gpu, GpuUuid, InstanceReading, LinkCounters,
    Medium, MemoryUse, MigDevice, Moment, Monotonic, NvLink, Pcie, Rates, RowRemap, Slow, Traffic,
};
use crate::node::hardware::source::{CallProblem, Due, GpuReader, Integrals, Pass, PassStatus};
use crate::node::hardware::{CLOCK_EVENTS, POLICIES, THROTTLE_REASONS};

/// Reserved memory, as on real boards.
const RESERVED_BYTES: u64 = 600 << 20;
/// The part of the SMs' active time in which each pipe is active.
const PIPES: [(&str, f64); 8] = [
    ("tensor", 0.5),
    ("hmma", 0.48),
    ("imma", 0.02),
    ("dfma", 0.0),
    ("fp64", 0.0),
    ("fp32", 0.15),
    ("fp16", 0.05),
    ("int", 0.1),
];
const LOST: CallProblem = CallProblem { call: "simulated", code: "gpu_is_lost" };

pub struct SimulatedReader {
    session: u64,
    controls: Controls,
    uuid: GpuUuid,
    partitions: Vec<MigDevice>,
    model: &'static Model,
    /// The other GPUs of its superchip.
    neighbors: Vec<GpuUuid>,
    /// In the last pass, and in the last of the medium tier.
    last: Option<Board>,
    last_medium: Option<Board>,
}

/// The board at one time.
#[derive(Clone)]
struct Board {
    now: Monotonic,
    load: Load,
    sums: LoadSums,
    instances: BTreeMap<u32, (Load, LoadSums)>,
    processes: BTreeMap<(u32, Option<u32>), ProcessLoad>,
    watts: f64,
    joules: f64,
    /// Of the superchip.
    module: Option<(f64, f64)>,
}

impl GpuReader for SimulatedReader {
    fn read(&mut self, due: Due, now: Moment) -> Pass {
        self.controls.wait_while_hanging(&self.uuid);
        if self.controls.is_over(self.session) {
            return Pass { status: PassStatus::SessionOver, problems: vec![UNLOADED], ..Pass::default() };
        }
        let now = now.monotonic;
        let Some(state) = self.controls.read(&self.uuid, now) else {
            return Pass { status: PassStatus::Lost, problems: vec![LOST], ..Pass::default() };
        };
        let board = self.board(now, state);
        let last = self.last.replace(board.clone()).unwrap_or_else(|| board.clone());
        let is_whole = self.partitions.is_empty();
        let busy_seconds = is_whole.then_some(board.sums.busy - last.sums.busy);
        let module_joules = board.module.zip(last.module).map(|((_, joules), (_, before))| joules - before);
        Pass {
            status: PassStatus::Answers,
            integrals: Integrals {
                busy_seconds,
                module_energy_joules: module_joules,
                memory_busy_seconds: busy_seconds.map(|busy| busy * 0.6),
                engine_busy_seconds: if is_whole { ENGINES.map(|engine| (engine, 0.0)).to_vec() } else { Vec::new() },
                energy_joules: Some(board.joules - last.joules),
                instance_busy_seconds: self.instance_busy_seconds(&board, &last),
                lacks_utilization: !is_whole,
                process_sm_seconds: is_whole.then(|| process_sm_seconds(&board, &last)),
                ..Integrals::default()
            },
            energy_counter: Some((board.joules * 1000.0) as u64),
            counter_is_of_gpu: Some(true),
            fast: Some(Fast {
                utilization_ratio: is_whole.then_some(board.load.utilization),
                power_watts: Some(board.watts),
                instance_utilization_ratios: self.instance_utilization_ratios(&board),
                module_power_watts: board.module.map(|(watts, _)| watts),
            }),
            medium: due.medium.then(|| self.medium(&board)),
            slow: due.slow.then(|| self.slow(&board)),
            ..Pass::default()
        }
    }
}

const ENGINES: [&str; 4] = ["encoder", "decoder", "jpeg", "ofa"];

impl SimulatedReader {
    pub fn new(session: u64, controls: Controls, gpu: Gpu) -> Self {
        let model = controls.profile().model();
        let others = model.superchip.map(|_| controls.inventory().gpus).into_iter().flatten();
        let neighbors = others.filter(|(uuid, other)| other.serial == gpu.serial && *uuid != gpu.uuid);
        Self {
            session,
            neighbors: neighbors.map(|(uuid, _)| uuid).collect(),
            controls,
            uuid: gpu.uuid,
            partitions: gpu.mig_devices,
            model,
            last: None,
            last_medium: None,
        }
    }

    /// Power is a straight line from idle to the limit; a partitioned board adds up its slices.
    fn board(&self, now: Monotonic, state: GpuLoad) -> Board {
        let GpuLoad { load, sums, instances, processes } = state;
        let (level, level_seconds) = if self.partitions.is_empty() {
            (load.utilization, sums.busy)
        } else {
            let shares = self.partitions.iter().filter_map(|mig| {
                let (load, sums) = instances.get(&mig.gpu_instance)?;
                let slices = f64::from(mig.slices) / 7.0;
                Some((load.utilization * slices, sums.busy * slices))
            });
            shares.fold((0.0, 0.0), |sum, share| (sum.0 + share.0, sum.1 + share.1))
        };
        let (watts, joules) = self.draw(now, level, level_seconds);
        Board { now, load, sums, instances, processes, watts, joules, module: self.module(now, watts, joules) }
    }

    /// Watts and joules at a level of load and its integral.
    fn draw(&self, now: Monotonic, level: f64, level_seconds: f64) -> (f64, f64) {
        let range = (self.model.limit_watts - self.model.idle_watts) * 0.95;
        let seconds = now.as_duration().as_secs_f64();
        (self.model.idle_watts + range * level, self.model.idle_watts * seconds + range * level_seconds)
    }

    /// The same of the superchip: its CPU and all its GPUs, which are whole.
    fn module(&self, now: Monotonic, watts: f64, joules: f64) -> Option<(f64, f64)> {
        let cpu_watts = self.model.superchip?.cpu_watts;
        let own = (watts + cpu_watts, joules + cpu_watts * now.as_duration().as_secs_f64());
        let others = self.neighbors.iter().filter_map(|gpu| self.controls.load_at(gpu, now));
        let others = others.map(|(load, sums)| self.draw(now, load.utilization, sums.busy));
        Some(others.fold(own, |sum, other| (sum.0 + other.0, sum.1 + other.1)))
    }

    fn instance_utilization_ratios(&self, board: &Board) -> BTreeMap<u32, f64> {
        let has_gpm = !self.partitions.is_empty() && self.model.has_gpm;
        let instances = board.instances.iter().filter(|_| has_gpm);
        instances.map(|(number, (load, _))| (*number, load.utilization)).collect()
    }

    /// Busy seconds of each GPU instance since the last pass, with GPM.
    fn instance_busy_seconds(&self, board: &Board, last: &Board) -> Option<Vec<(u32, f64)>> {
        let gain =
            |(number, (_, sums)): (&u32, &(Load, LoadSums))| (*number, sums.busy - last.instances[number].1.busy);
        let has_gpm = !self.partitions.is_empty() && self.model.has_gpm;
        has_gpm.then(|| board.instances.iter().map(gain).collect())
    }

    /// All processes of the GPU; those of MIG devices with their instances.
    fn processes(board: &Board) -> Vec<DeviceProcess> {
        let running = board.processes.iter().filter(|(_, process)| process.running);
        let process = |(&(pid, gpu_instance), process): (&(u32, Option<u32>), &ProcessLoad)| DeviceProcess {
            pid,
            gpu_instance,
            compute_instance: gpu_instance.map(|_| 0),
            memory_bytes: Some(process.load.memory_used),
        };
        running.map(process).collect()
    }

    fn medium(&mut self, board: &Board) -> Medium {
        let before = self.last_medium.replace(board.clone());
        let level = board.watts / self.model.limit_watts;
        let temperature = (28.0 + 42.0 * level).round();
        let (low, high) = self.model.sm_hertz;
        let sm_hertz = if board.watts > self.model.idle_watts { high - (high - low) * 0.15 * level } else { low };
        let is_whole = self.partitions.is_empty();
        let used = if is_whole {
            board.load.memory_used
        } else {
            board.instances.values().map(|(load, _)| load.memory_used).sum()
        };
        Medium {
            memory: Some(memory_use(used, self.model.memory_bytes)),
            gpu_temperature_celsius: Some(temperature),
            memory_temperature_celsius: Some(temperature + 8.0),
            temperature_margin_celsius: Some(87.0 - temperature),
            power_limit_watts: Some(self.model.limit_watts),
            power_limit_requested_watts: Some(self.model.limit_watts),
            clocks: Clocks {
                sm_hertz: Some(sm_hertz),
                memory_hertz: Some(self.model.memory_hertz),
                graphics_hertz: Some(sm_hertz),
                video_hertz: Some(sm_hertz * 0.85),
            },
            throttled_seconds: THROTTLE_REASONS.map(|reason| (reason, 0.0)).into(),
            policy_violation_seconds: POLICIES.map(|policy| (policy, 0.0)).into(),
            clock_events: CLOCK_EVENTS.map(|reason| (reason, reason == "idle" && level < 0.2)).into(),
            performance_state: Some(0),
            gpm: before
                .as_ref()
                .filter(|_| is_whole && self.model.has_gpm)
                .map(|before| ratios(board.sums, before.sums, board.now.since(before.now).as_secs_f64()))
                .unwrap_or_default(),
            rates: self.rates(board, before.as_ref()),
            instances: self.instances(board, before.as_ref()),
            processes: Some(Self::processes(board)),
            ..Medium::default()
        }
    }

    /// The rates of the counters of `slow`, since the medium pass before.
    fn rates(&self, board: &Board, before: Option<&Board>) -> Rates {
        let is_whole = self.partitions.is_empty();
        let moved = before.filter(|_| self.model.has_gpm).and_then(|before| {
            let seconds = board.now.since(before.now).as_secs_f64();
            (seconds > 0.0).then(|| (board.sums.sm_active - before.sums.sm_active) / seconds * 1e9)
        });
        Rates {
            memory_utilization_ratio: is_whole.then_some(board.load.utilization * 0.6),
            engine_utilization_ratios: ENGINES.into_iter().filter(|_| is_whole).map(|engine| (engine, 0.0)).collect(),
            traffic: Traffic {
                pcie_transmitted: moved,
                pcie_received: moved.map(|moved| moved * 1.4),
                nvlink_transmitted: moved.map(|moved| moved * 40.0),
                nvlink_received: moved.map(|moved| moved * 40.0),
                c2c_transmitted: moved.filter(|_| self.model.superchip.is_some()).map(|moved| moved * 2.0),
                c2c_received: moved.filter(|_| self.model.superchip.is_some()).map(|moved| moved * 3.0),
            },
            ..Rates::default()
        }
    }

    fn instances(&self, board: &Board, before: Option<&Board>) -> Vec<InstanceReading> {
        let reading = |mig: &MigDevice| {
            let (load, sums) = board.instances.get(&mig.gpu_instance)?;
            let gpm = before.filter(|_| self.model.has_gpm).map(|before| {
                ratios(*sums, before.instances[&mig.gpu_instance].1, board.now.since(before.now).as_secs_f64())
            });
            Some(InstanceReading {
                gpu_instance: mig.gpu_instance,
                members: vec![mig.uuid.clone()],
                memory: mig.memory_bytes.map(|total| memory_use(load.memory_used, total)),
                gpm: gpm.unwrap_or_default(),
            })
        };
        self.partitions.iter().filter_map(reading).collect()
    }

    /// That of a healthy GPU.
    fn fabric(&self) -> FabricState {
        let conditions = self.model.fabric_conditions;
        FabricState {
            state: if conditions.is_empty() { "not_supported" } else { "completed" },
            domain: self.controls.fabric_domain(),
            conditions: conditions.iter().map(|condition| (*condition, false)).collect(),
            ..FabricState::default()
        }
    }

    /// Every link moves the same.
    fn nvlink(&self, moved: f64) -> NvLink {
        let bytes = Some((moved / f64::from(self.model.nvlinks)).floor());
        let errors = self.model.nvlink_errors.iter().map(|kind| (*kind, 0)).collect();
        let link = LinkCounters { transmitted_bytes: bytes, received_bytes: bytes, errors, ..LinkCounters::default() };
        NvLink {
            active_links: Some(self.model.nvlinks),
            inactive_links: Some(0),
            of_links: (0..self.model.nvlinks).map(|number| (number, link.clone())).collect(),
            ..NvLink::default()
        }
    }

    fn c2c(&self) -> C2c {
        let links = self.model.superchip.and_then(|superchip| superchip.c2c_links);
        C2c {
            // Drivers have a mode for Hopper and later, as they have GPM.
            enabled: self.model.has_gpm.then_some(self.model.superchip.is_some()),
            active_links: links.map(|(count, _)| count),
            inactive_links: links.map(|_| 0),
            bytes_per_second_max: links.map(|(count, bytes)| f64::from(count) * bytes),
        }
    }

    fn slow(&self, board: &Board) -> Slow {
        let (recovery_action, uncorrected) = self.controls.faults(&self.uuid).unzip();
        let ecc = |location| {
            let uncorrected = if location == "dram" { uncorrected } else { Some(0) };
            EccLocation { location, corrected: Some(0), uncorrected }
        };
        let moved = board.sums.sm_active * 1e9;
        Slow {
            ecc: ["dram", "l2_cache", "sram"].map(ecc).into(),
            ecc_lifetime_corrected: Some(0),
            ecc_lifetime_uncorrected: Some(0),
            row_remap: Some(RowRemap::default()),
            row_remap_banks: [("max", 640), ("high", 0), ("partial", 0), ("low", 0), ("none", 0)].into(),
            pcie: Pcie {
                replays: Some(0),
                transmitted_bytes: Some(moved.floor()),
                received_bytes: Some((moved * 1.4).floor()),
                link_generation: self.model.pcie_generation,
                link_generation_max: self.model.pcie_generation,
                link_width_lanes: self.model.pcie_generation.map(|_| 16),
                link_width_lanes_max: self.model.pcie_generation.map(|_| 16),
                ..Pcie::default()
            },
            nvlink: self.nvlink(moved * 40.0),
            c2c: self.c2c(),
            fabric: Some(self.fabric()),
            recovery_action,
            vgpu_licensed: Some(false),
            ..Slow::default()
        }
    }
}

/// SM-seconds of each process since the last pass; on a whole GPU, where each process occurs once.
fn process_sm_seconds(board: &Board, last: &Board) -> Vec<(u32, f64)> {
    let since = |(key, process): (&(u32, Option<u32>), &ProcessLoad)| {
        (key.0, process.sums.busy - last.processes.get(key).map_or(0.0, |before| before.sums.busy))
    };
    board.processes.iter().map(since).filter(|(_, seconds)| *seconds > 0.0).collect()
}

fn memory_use(used: u64, total: u64) -> MemoryUse {
    let reserved = RESERVED_BYTES.min(total / 50);
    let used = used.min(total - reserved);
    MemoryUse { used, free: total - reserved - used, reserved: Some(reserved), total }
}

/// Means over the time between two sums.
fn ratios(now: LoadSums, before: LoadSums, seconds: f64) -> GpmRatios {
    if seconds <= 0.0 {
        return GpmRatios::default();
    }
    let busy = (now.busy - before.busy) / seconds;
    let sm_active = (now.sm_active - before.sm_active) / seconds;
    GpmRatios {
        graphics_engine_active: Some(busy),
        sm_active: Some(sm_active),
        sm_occupancy: Some(sm_active * 0.4),
        dram_active: Some(busy * 0.45),
        pipes: PIPES.into_iter().map(|(pipe, share)| (pipe, sm_active * share)).collect(),
    }
}
