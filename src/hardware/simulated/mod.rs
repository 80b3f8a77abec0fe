//! GPUs that exist only here, for `--hardware simulated` and the demo.
//!
//! In: a profile, a seed, and what [`Controls`] are told. Out: the same readings as from a driver, except that the
//! integrals are the exact integrals of the load. Refuses to know: pods, and who sets the loads.

mod controls;
mod profile;

use std::collections::BTreeMap;
use std::time::Duration;

pub use controls::{Controls, Load};
pub use profile::{Profile, UnknownProfile};

use self::controls::{ProcessState, State, Sums};
use self::profile::Model;
use super::source::{
    Driver, Due, EventFailure, EventSource, Failure, Integrals, Pass, Problem, RawEvent, Reader, Session, Verdict,
};
use crate::model::{
    Clocks, DeviceProcess, EccLocation, Fast, GpmRatios, GpuUuid, InstanceReading, Inventory, Medium, MemoryUse,
    MigDevice, Moment, Monotonic, NodeDevices, NvLink, Pcie, RowRemap, Slow,
};

/// What the driver keeps for itself, as on real boards.
const RESERVED_BYTES: u64 = 600 << 20;
/// Seconds until the temperature has followed most of a change.
const THERMAL_SECONDS: f64 = 20.0;
/// Nothing here hangs, so nobody has to wait long for a session to end.
const LONGEST_WAIT: Duration = Duration::from_millis(200);
const LOST: Problem = Problem { call: "simulated", code: "gpu_is_lost" };

/// Simulated GPUs behind the same contract as NVML's.
#[derive(Clone, Debug)]
pub struct SimulatedDriver {
    controls: Controls,
}

impl SimulatedDriver {
    #[must_use]
    pub fn new(profile: Profile, seed: u64) -> Self {
        Self { controls: Controls::new(profile, seed) }
    }

    #[must_use]
    pub fn controls(&self) -> Controls {
        self.controls.clone()
    }
}

impl Driver for SimulatedDriver {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn open(&mut self) -> Result<Box<dyn Session>, Failure> {
        Ok(Box::new(SimulatedSession { controls: self.controls.clone() }))
    }
}

struct SimulatedSession {
    controls: Controls,
}

impl Session for SimulatedSession {
    fn inventory(&self) -> Result<(Inventory, Vec<Problem>), Failure> {
        Ok((self.controls.inventory(), Vec::new()))
    }

    fn reader(&self, gpu: &GpuUuid) -> Result<Box<dyn Reader>, Failure> {
        let mut inventory = self.controls.inventory();
        let Some(gpu) = inventory.gpus.remove(gpu) else {
            return Err(Failure {
                call: "simulated",
                code: "not_found",
                reason: format!("{gpu} is not simulated"),
                remedy: "choose another profile",
            });
        };
        Ok(Box::new(SimulatedReader {
            controls: self.controls.clone(),
            uuid: gpu.uuid,
            partitions: gpu.mig_devices,
            model: self.controls.profile().model(),
            last: None,
            last_instances: BTreeMap::new(),
            worked: BTreeMap::new(),
            last_medium: None,
            temperature: None,
        }))
    }

    fn layout_changed(&self) -> bool {
        false
    }

    fn node_devices(&self) -> Option<NodeDevices> {
        Some(NodeDevices { expected: self.controls.inventory().gpus.len(), vfio: 0 })
    }

    fn events(&self) -> Option<Box<dyn EventSource>> {
        self.controls.forget_events();
        Some(Box::new(SimulatedEvents { controls: self.controls.clone() }))
    }
}

struct SimulatedEvents {
    controls: Controls,
}

impl EventSource for SimulatedEvents {
    fn wait(&mut self, patience: Duration, _now: Monotonic) -> Result<Option<RawEvent>, EventFailure> {
        Ok(self.controls.wait_for_event(patience.min(LONGEST_WAIT)))
    }
}

struct SimulatedReader {
    controls: Controls,
    uuid: GpuUuid,
    partitions: Vec<MigDevice>,
    model: &'static Model,
    /// When the last pass was, with the busy seconds and joules up to then.
    last: Option<(Monotonic, f64, f64)>,
    /// Busy seconds of each GPU instance up to the last pass.
    last_instances: BTreeMap<u32, f64>,
    /// By pid: its SM-seconds up to the last pass.
    worked: BTreeMap<u32, f64>,
    last_medium: Option<(Monotonic, Sums, BTreeMap<u32, Sums>)>,
    temperature: Option<f64>,
}

/// The board as it is at one moment.
struct Board {
    now: Monotonic,
    load: Load,
    sums: Sums,
    instances: BTreeMap<u32, (Load, Sums)>,
    processes: BTreeMap<(u32, Option<u32>), ProcessState>,
    watts: f64,
    joules: f64,
}

impl Reader for SimulatedReader {
    fn read(&mut self, due: Due, now: Moment) -> Pass {
        let now = now.monotonic;
        let Some(state) = self.controls.read(&self.uuid, now).filter(|_| !self.controls.is_lost(&self.uuid)) else {
            return Pass { verdict: Verdict::Lost, problems: vec![LOST], ..Pass::default() };
        };
        let sums = state.sums;
        let board = self.board(now, state);
        let (since, busy, joules) =
            self.last.replace((now, sums.busy, board.joules)).unwrap_or((now, sums.busy, board.joules));
        self.warm(&board, now.since(since).as_secs_f64());
        let is_whole = self.partitions.is_empty();
        let busy_seconds = is_whole.then_some(sums.busy - busy);
        Pass {
            verdict: Verdict::Answers,
            integrals: Integrals {
                busy_seconds,
                memory_busy_seconds: busy_seconds.map(|busy| busy * 0.6),
                engine_busy_seconds: if is_whole { ENGINES.map(|engine| (engine, 0.0)).to_vec() } else { Vec::new() },
                energy_joules: Some(board.joules - joules),
                instance_busy_seconds: self.instance_busy_seconds(&board),
                uncovered_seconds: 0.0,
                process_sm_seconds: self.work(&board.processes).filter(|_| is_whole),
            },
            fast: Some(Fast {
                utilization_ratio: is_whole.then_some(board.load.utilization),
                power_watts: Some(board.watts),
            }),
            medium: due.medium.then(|| self.medium(&board)),
            slow: due.slow.then(|| self.slow(&board)),
            problems: Vec::new(),
        }
    }
}

const ENGINES: [&str; 4] = ["encoder", "decoder", "jpeg", "ofa"];

impl SimulatedReader {
    /// Power is a straight line from idle to the limit; a partitioned board adds up its slices.
    fn board(&self, now: Monotonic, state: State) -> Board {
        let State { load, sums, instances, processes } = state;
        let (level, level_seconds) = if self.partitions.is_empty() {
            (load.utilization, sums.power_share)
        } else {
            let shares = self.partitions.iter().filter_map(|mig| {
                let (load, sums) = instances.get(&mig.gpu_instance)?;
                let slices = f64::from(mig.slices) / 7.0;
                Some((load.utilization * slices, sums.power_share * slices))
            });
            shares.fold((0.0, 0.0), |sum, share| (sum.0 + share.0, sum.1 + share.1))
        };
        let range = (self.model.limit_watts - self.model.idle_watts) * 0.95;
        let seconds = now.as_duration().as_secs_f64();
        let watts = self.model.idle_watts + range * level;
        let joules = self.model.idle_watts * seconds + range * level_seconds;
        Board { now, load, sums, instances, processes, watts, joules }
    }

    /// What each GPU instance has done since the last pass, where the model tells it.
    fn instance_busy_seconds(&mut self, board: &Board) -> Option<Vec<(u32, f64)>> {
        if self.partitions.is_empty() || !self.model.has_gpm {
            return None;
        }
        let gain = |(number, (_, sums)): (&u32, &(Load, Sums))| {
            let before = self.last_instances.insert(*number, sums.busy).unwrap_or(sums.busy);
            (*number, sums.busy - before)
        };
        Some(board.instances.iter().map(gain).collect())
    }

    /// What each process has done since the last pass; of a whole GPU, where each is there once.
    fn work(&mut self, processes: &BTreeMap<(u32, Option<u32>), ProcessState>) -> Option<Vec<(u32, f64)>> {
        let now = processes.iter().map(|((pid, _), process)| (*pid, process.sums.busy)).collect();
        let before = std::mem::replace(&mut self.worked, now);
        let since = |(pid, total): (&u32, &f64)| (*pid, total - before.get(pid).copied().unwrap_or(0.0));
        Some(self.worked.iter().map(since).filter(|(_, seconds)| *seconds > 0.0).collect())
    }

    /// As of the driver: all of the GPU's, those of MIG devices with their instances.
    fn processes(board: &Board) -> Vec<DeviceProcess> {
        let living = board.processes.iter().filter(|(_, process)| process.lives);
        let process = |(&(pid, gpu_instance), process): (&(u32, Option<u32>), &ProcessState)| DeviceProcess {
            pid,
            gpu_instance,
            compute_instance: gpu_instance.map(|_| 0),
            memory_bytes: Some(process.load.memory_used),
        };
        living.map(process).collect()
    }

    fn warm(&mut self, board: &Board, seconds: f64) {
        let goal = 28.0 + 42.0 * board.watts / self.model.limit_watts;
        let before = self.temperature.unwrap_or(goal);
        self.temperature = Some(goal + (before - goal) * (-seconds / THERMAL_SECONDS).exp());
    }

    fn medium(&mut self, board: &Board) -> Medium {
        let sums_now = board.instances.iter().map(|(number, (_, sums))| (*number, *sums)).collect();
        let before = self.last_medium.replace((board.now, board.sums, sums_now));
        let level = board.watts / self.model.limit_watts;
        let temperature = self.temperature.map(f64::round);
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
            gpu_temperature_celsius: temperature,
            memory_temperature_celsius: temperature.map(|celsius| celsius + 8.0),
            temperature_margin_celsius: temperature.map(|celsius| 87.0 - celsius),
            power_limit_watts: Some(self.model.limit_watts),
            clocks: Clocks {
                sm_hertz: Some(sm_hertz),
                memory_hertz: Some(self.model.memory_hertz),
                graphics_hertz: Some(sm_hertz),
                video_hertz: Some(sm_hertz * 0.85),
            },
            throttled_seconds: super::THROTTLE_REASONS.map(|reason| (reason, 0.0)).into(),
            clock_events: super::CLOCK_EVENTS.map(|reason| (reason, reason == "idle" && level < 0.2)).into(),
            performance_state: Some(0),
            fan_speed_ratios: Vec::new(),
            gpm: before
                .as_ref()
                .filter(|_| is_whole && self.model.has_gpm)
                .map(|(at, sums, _)| ratios(board.sums, *sums, board.now.since(*at).as_secs_f64()))
                .unwrap_or_default(),
            sm_cycles: None,
            sm_active_cycles: None,
            instances: self.instances(board, before.as_ref()),
            processes: Some(Self::processes(board)),
        }
    }

    fn instances(
        &self,
        board: &Board,
        before: Option<&(Monotonic, Sums, BTreeMap<u32, Sums>)>,
    ) -> Vec<InstanceReading> {
        let reading = |mig: &MigDevice| {
            let (load, sums) = board.instances.get(&mig.gpu_instance)?;
            let gpm = before.filter(|_| self.model.has_gpm).and_then(|(at, _, instances)| {
                Some(ratios(*sums, *instances.get(&mig.gpu_instance)?, board.now.since(*at).as_secs_f64()))
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

    fn slow(&self, board: &Board) -> Slow {
        let none = |location| EccLocation { location, corrected: Some(0), uncorrected: Some(0) };
        let moved = board.sums.sm_active * 1e9;
        Slow {
            ecc: ["dram", "l2_cache", "sram"].map(none).into(),
            ecc_lifetime_corrected: Some(0),
            ecc_lifetime_uncorrected: Some(0),
            row_remap: Some(RowRemap::default()),
            row_remap_banks: [("max", 640), ("high", 0), ("partial", 0), ("low", 0), ("none", 0)].into(),
            pcie: Pcie {
                replays: Some(0),
                transmitted_bytes: Some(moved.floor()),
                received_bytes: Some((moved * 1.4).floor()),
                link_generation: Some(self.model.pcie_generation),
                link_generation_max: Some(self.model.pcie_generation),
                link_width_lanes: Some(16),
                link_width_lanes_max: Some(16),
                ..Pcie::default()
            },
            nvlink: NvLink {
                transmitted_bytes: Some((moved * 40.0).floor()),
                received_bytes: Some((moved * 40.0).floor()),
                errors: [("replay", 0), ("recovery", 0), ("crc", 0)].into(),
                active_links: Some(self.model.nvlinks),
                inactive_links: Some(0),
            },
            recovery_action: Some(0),
            ..Slow::default()
        }
    }
}

fn memory_use(used: u64, total: u64) -> MemoryUse {
    let reserved = RESERVED_BYTES.min(total / 50);
    let used = used.min(total - reserved);
    MemoryUse { used, free: total - reserved - used, reserved: Some(reserved), total }
}

/// Means over the time between two sums.
fn ratios(now: Sums, before: Sums, seconds: f64) -> GpmRatios {
    if seconds <= 0.0 {
        return GpmRatios::default();
    }
    let busy = (now.busy - before.busy) / seconds;
    let sm_active = (now.sm_active - before.sm_active) / seconds;
    let pipes = [("tensor", 0.5), ("hmma", 0.48), ("imma", 0.02), ("dfma", 0.0)].into_iter();
    let pipes = pipes.chain([("fp64", 0.0), ("fp32", 0.15), ("fp16", 0.05), ("int", 0.1)]);
    GpmRatios {
        graphics_engine_active: Some(busy),
        sm_active: Some(sm_active),
        sm_occupancy: Some(sm_active * 0.4),
        dram_active: Some(busy * 0.45),
        pipes: pipes.map(|(pipe, share)| (pipe, sm_active * share)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::UnixSeconds;

    fn at(seconds: u64) -> Moment {
        Moment { monotonic: Monotonic::from_secs(seconds), unix: UnixSeconds(0.0) }
    }

    fn first(driver: &SimulatedDriver) -> (GpuUuid, Box<dyn Reader>) {
        let session = driver.clone().open().unwrap();
        let (inventory, _) = session.inventory().unwrap();
        let gpu = inventory.gpus.values().find(|gpu| gpu.index == 0).unwrap().uuid.clone();
        let reader = session.reader(&gpu).unwrap();
        (gpu, reader)
    }

    #[test]
    fn busy_seconds_and_energy_are_the_integral_of_the_load() {
        let driver = SimulatedDriver::new(Profile::H100, 1);
        let (gpu, mut reader) = first(&driver);
        driver.controls().take_over(Monotonic::default());
        let full = Due { medium: true, slow: true };
        assert_eq!(reader.read(full, at(0)).integrals.busy_seconds, Some(0.0));
        driver.controls().set_load(&gpu, Monotonic::from_secs(4), Load::new(1.0, 1 << 30));
        let pass = reader.read(full, at(10));
        assert_eq!(pass.integrals.busy_seconds, Some(6.0));
        let expected = 70.0 * 10.0 + 630.0 * 0.95 * 6.0;
        assert!((pass.integrals.energy_joules.unwrap() - expected).abs() < 1e-6);
        let medium = pass.medium.unwrap();
        assert!((medium.gpm.graphics_engine_active.unwrap() - 0.6).abs() < 1e-9);
        let memory = medium.memory.unwrap();
        assert_eq!(memory.used, 1 << 30);
        assert_eq!(memory.used + memory.free + memory.reserved.unwrap(), memory.total);
    }

    #[test]
    fn a_partitioned_gpu_has_no_utilization_and_instances_have_gpm() {
        let driver = SimulatedDriver::new(Profile::H100Mig, 1);
        let (gpu, mut reader) = first(&driver);
        let controls = driver.controls();
        controls.set_instance_load(
            &gpu,
            8,
            Monotonic::from_secs(0),
            Load { utilization: 1.0, sm_active: 0.5, memory_used: 7 },
        );
        reader.read(Due { medium: true, slow: true }, at(0));
        let pass = reader.read(Due { medium: true, slow: false }, at(10));
        assert_eq!((pass.integrals.busy_seconds, pass.fast.unwrap().utilization_ratio), (None, None));
        assert_eq!(pass.integrals.instance_busy_seconds.unwrap()[..2], [(7, 0.0), (8, 10.0)]);
        let instances = pass.medium.unwrap().instances;
        assert_eq!(instances.len(), 7);
        assert_eq!((instances[0].gpm.sm_active, instances[1].gpm.sm_active), (Some(0.0), Some(0.5)));
        assert_eq!(instances[1].memory.unwrap().used, 7);
    }

    #[test]
    fn what_processes_do_adds_up_to_what_the_gpu_does() {
        let driver = SimulatedDriver::new(Profile::H100TimeSliced, 1);
        let (gpu, mut reader) = first(&driver);
        let controls = driver.controls();
        let load = |at, pid, utilization| {
            controls.set_process_load(&gpu, None, pid, Monotonic::from_secs(at), Load::new(utilization, 1 << 30));
        };
        controls.set_load(&gpu, Monotonic::default(), Load::new(0.75, 2 << 30));
        load(0, 10, 0.5);
        load(0, 11, 0.25);
        let medium = Due { medium: true, slow: false };
        reader.read(medium, at(0));
        controls.end_process(&gpu, 10, Monotonic::from_secs(2));
        controls.set_load(&gpu, Monotonic::from_secs(2), Load::new(0.25, 1 << 30));
        let pass = reader.read(medium, at(4));
        assert_eq!(pass.integrals.busy_seconds, Some(2.0));
        assert_eq!(pass.integrals.process_sm_seconds, Some(vec![(10, 1.0), (11, 1.0)]));
        let there = DeviceProcess { pid: 11, gpu_instance: None, compute_instance: None, memory_bytes: Some(1 << 30) };
        assert_eq!(pass.medium.unwrap().processes, Some(vec![there]));
        assert_eq!(reader.read(medium, at(5)).integrals.process_sm_seconds, Some(vec![(11, 0.25)]));
    }

    #[test]
    fn a_lost_gpu_says_so_and_comes_back() {
        let driver = SimulatedDriver::new(Profile::A100, 1);
        let (gpu, mut reader) = first(&driver);
        driver.controls().set_lost(&gpu, true);
        assert_eq!(reader.read(Due::default(), at(1)).verdict, Verdict::Lost);
        driver.controls().set_lost(&gpu, false);
        let pass = reader.read(Due { medium: true, slow: false }, at(2));
        assert_eq!((pass.verdict, pass.medium.unwrap().gpm), (Verdict::Answers, GpmRatios::default()));
    }
}
