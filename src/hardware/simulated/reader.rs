//! Reads one simulated GPU as a driver's reader would.

use super::driver::{ProcessCurve, SimulatedGpu, SimulatedSession};
use super::machine::SimulatedMachine;
use crate::domain::model::{
    C2c, Clocks, DeviceProcess, EccLocation, FabricState, Fast, GpmRatios, Gpu, GpuUuid, InstanceReading, LinkCounters,
    Medium, MemoryUse, MigDevice, Moment, Monotonic, NvLink, Pcie, Rates, RowRemap, Slow, Traffic,
};
use crate::hardware::CLOCK_EVENTS;
use crate::hardware::nvml::nvlink;
use crate::hardware::source::{GpuReader, Integrals, Pass};
use crate::hardware::tiers::{Due, Tier};

/// The reserved memory, as on real boards.
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
/// The throttling reasons, with the names that `nvml` gives them.
const THROTTLE_REASONS: [&str; 5] =
    ["sw_power_cap", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"];
const POLICIES: [&str; 4] = ["thermal", "board_limit", "low_utilization", "reliability"];
const ENGINES: [&str; 4] = ["encoder", "decoder", "jpeg", "ofa"];

pub struct SimulatedReader {
    session: SimulatedSession,
    gpu: Gpu,
    machine: &'static SimulatedMachine,
    /// The other GPUs of its superchip.
    neighbors: Vec<GpuUuid>,
    /// The reading in the last pass of the fast tier.
    last: Option<GpuReading>,
    last_medium: Option<GpuReading>,
}

/// The GPU and its power in one pass.
#[derive(Clone)]
struct GpuReading {
    now: Monotonic,
    gpu: SimulatedGpu,
    power: PowerDraw,
    /// The power of the superchip.
    module_power: Option<PowerDraw>,
}

/// Power, and the energy since the start.
#[derive(Clone, Copy)]
struct PowerDraw {
    watts: f64,
    joules: f64,
}

impl GpuReader for SimulatedReader {
    fn read(&mut self, due: &Due, Moment { monotonic: now, .. }: Moment) -> Pass {
        let gpu = match self.session.read(&self.gpu.uuid, now) {
            Ok(gpu) => gpu,
            Err((status, problem)) => return Pass { status, problems: vec![problem], ..Pass::default() },
        };
        let reading = self.with_power(now, gpu);
        let mut pass = Pass::default();
        if due.contains(&Tier::Fast) {
            let last = self.last.replace(reading.clone()).unwrap_or_else(|| reading.clone());
            pass = reading.fast(&last);
        }
        if due.contains(&Tier::Medium) {
            pass.integrals.engine_busy_seconds = reading.idle_engines();
            pass.medium = Some(self.medium(&reading));
        }
        pass.slow = due.contains(&Tier::Slow).then(|| self.slow(&reading));
        let lists = due.contains(&Tier::Medium) || due.contains(&Tier::Processes);
        pass.pids = lists.then(|| reading.processes().iter().map(|process| process.pid).collect());
        pass
    }
}

impl GpuReading {
    /// The pass of the fast tier, as the difference from the last one.
    fn fast(&self, last: &Self) -> Pass {
        let (whole, is_whole) = (self.gpu.whole(), self.gpu.whole().is_some());
        let busy_seconds = whole.zip(last.gpu.whole()).map(|(curve, last)| curve.busy_seconds - last.busy_seconds);
        let module_joules = self.module_power.zip(last.module_power).map(|(power, last)| power.joules - last.joules);
        let instances = self.gpu.instances();
        Pass {
            integrals: Integrals {
                busy_seconds,
                module_energy_joules: module_joules,
                memory_busy_seconds: busy_seconds.map(|busy| busy * 0.6),
                instance_busy_seconds: (!is_whole).then(|| self.instance_busy_seconds(last)),
                lacks_utilization: !is_whole,
                process_sm_seconds: is_whole.then(|| self.process_sm_seconds(last)),
                ..Integrals::default()
            },
            energy_counter: Some((self.power.joules * 1000.0) as u64),
            counter_is_of_gpu: Some(true),
            fast: Some(Fast {
                utilization_ratio: whole.map(|curve| curve.load.utilization),
                power_watts: Some(self.power.watts),
                instance_utilization_ratios: instances.map(|(id, curve)| (id, curve.load.utilization)).collect(),
                module_power_watts: self.module_power.map(|power| power.watts),
            }),
            ..Pass::default()
        }
    }

    /// A value of 0 for each engine; a partitioned GPU has none.
    fn idle_engines(&self) -> Vec<(&'static str, f64)> {
        if self.gpu.whole().is_some() { ENGINES.map(|engine| (engine, 0.0)).to_vec() } else { Vec::new() }
    }

    /// The bytes over PCIe since the start. A partitioned GPU moves none.
    fn moved_bytes(&self) -> f64 {
        self.gpu.whole().map_or(0.0, |curve| curve.sm_active_seconds * 1e9)
    }

    /// The busy seconds of each GPU instance since the last pass.
    fn instance_busy_seconds(&self, last: &Self) -> Vec<(u32, f64)> {
        let before = |instance| last.gpu.parts[&Some(instance)].busy_seconds;
        self.gpu.instances().map(|(instance, curve)| (instance, curve.busy_seconds - before(instance))).collect()
    }

    /// The SM-seconds of each process since the last pass; only of a whole GPU, where each process occurs once.
    fn process_sm_seconds(&self, last: &Self) -> Vec<(u32, f64)> {
        let since = |(key, process): (&(u32, Option<u32>), &ProcessCurve)| {
            let before = last.gpu.processes.get(key).map_or(0.0, |before| before.curve.busy_seconds);
            (key.0, process.curve.busy_seconds - before)
        };
        self.gpu.processes.iter().map(since).filter(|(_, seconds)| *seconds > 0.0).collect()
    }

    /// All processes of the GPU; those of MIG devices with their instances.
    fn processes(&self) -> Vec<DeviceProcess> {
        let process = |(&(pid, gpu_instance), process): (&(u32, Option<u32>), &ProcessCurve)| DeviceProcess {
            pid,
            gpu_instance,
            compute_instance: gpu_instance.map(|_| 0),
            memory_bytes: Some(process.curve.load.memory_used),
        };
        self.gpu.processes.iter().filter(|(_, process)| process.running).map(process).collect()
    }
}

impl SimulatedReader {
    pub fn new(session: SimulatedSession, uuid: &GpuUuid) -> Self {
        let gpus = &session.driver.inventory.gpus;
        let gpu = gpus[uuid].clone();
        let machine = session.driver.profile.machine;
        let neighbors = gpus.values().filter(|other| other.serial == gpu.serial && other.uuid != gpu.uuid);
        let neighbors = neighbors.map(|other| other.uuid.clone()).collect();
        Self { session, gpu, machine, neighbors, last: None, last_medium: None }
    }

    fn with_power(&self, now: Monotonic, gpu: SimulatedGpu) -> GpuReading {
        let (mut level, mut level_seconds) = (0.0, 0.0);
        for (instance, curve) in &gpu.parts {
            let mig = self.gpu.mig_devices.iter().find(|mig| Some(mig.gpu_instance) == *instance);
            let share = mig.and_then(|mig| self.gpu.slice_fraction(mig.slices)).unwrap_or(1.0);
            level += curve.load.utilization * share;
            level_seconds += curve.busy_seconds * share;
        }
        let power = self.power(now, level, level_seconds);
        GpuReading { now, gpu, power, module_power: self.module_power(now, power) }
    }

    /// The power at a level of load, on a straight line from idle to the limit, and the energy at its integral.
    fn power(&self, now: Monotonic, level: f64, level_seconds: f64) -> PowerDraw {
        let (idle, range) = (self.machine.idle_watts, (self.machine.limit_watts - self.machine.idle_watts) * 0.95);
        let joules = idle * now.as_duration().as_secs_f64() + range * level_seconds;
        PowerDraw { watts: idle + range * level, joules }
    }

    /// The power of a superchip: of its CPU and all its GPUs, which are whole.
    fn module_power(&self, now: Monotonic, own: PowerDraw) -> Option<PowerDraw> {
        let cpu_watts = self.machine.superchip?.cpu_watts;
        let cpu_joules = cpu_watts * now.as_duration().as_secs_f64();
        let mut sum = PowerDraw { watts: own.watts + cpu_watts, joules: own.joules + cpu_joules };
        for curve in self.neighbors.iter().filter_map(|gpu| self.session.driver.load_at(gpu, now)) {
            let other = self.power(now, curve.load.utilization, curve.busy_seconds);
            sum.watts += other.watts;
            sum.joules += other.joules;
        }
        Some(sum)
    }

    fn medium(&mut self, reading: &GpuReading) -> Medium {
        let before = self.last_medium.replace(reading.clone());
        let level = reading.power.watts / self.machine.limit_watts;
        let temperature = (28.0 + 42.0 * level).round();
        let (low, high) = self.machine.sm_hertz;
        let is_busy = reading.power.watts > self.machine.idle_watts;
        let sm_hertz = if is_busy { high - (high - low) * 0.15 * level } else { low };
        let used = reading.gpu.parts.values().map(|curve| curve.load.memory_used).sum();
        Medium {
            memory: Some(memory_use(used, self.machine.memory_bytes)),
            gpu_temperature_celsius: Some(temperature),
            memory_temperature_celsius: Some(temperature + 8.0),
            temperature_margin_celsius: Some(87.0 - temperature),
            power_limit_watts: Some(self.machine.limit_watts),
            power_limit_requested_watts: Some(self.machine.limit_watts),
            clocks: Clocks {
                sm_hertz: Some(sm_hertz),
                memory_hertz: Some(self.machine.memory_hertz),
                graphics_hertz: Some(sm_hertz),
                video_hertz: Some(sm_hertz * 0.85),
            },
            throttled_seconds: THROTTLE_REASONS.map(|reason| (reason, 0.0)).into(),
            policy_violation_seconds: POLICIES.map(|policy| (policy, 0.0)).into(),
            clock_events: CLOCK_EVENTS.map(|reason| (reason, reason == "idle" && level < 0.2)).into(),
            performance_state: Some(0),
            gpm: self.gpm(reading, before.as_ref(), None),
            rates: self.rates(reading, before.as_ref()),
            instances: self.gpu.mig_devices.iter().map(|mig| self.instance(mig, reading, before.as_ref())).collect(),
            processes: Some(reading.processes()),
            ..Medium::default()
        }
    }

    fn instance(&self, mig: &MigDevice, reading: &GpuReading, before: Option<&GpuReading>) -> InstanceReading {
        let load = reading.gpu.parts[&Some(mig.gpu_instance)].load;
        InstanceReading {
            gpu_instance: mig.gpu_instance,
            members: vec![mig.uuid.clone()],
            memory: mig.memory_bytes.map(|total| memory_use(load.memory_used, total)),
            gpm: self.gpm(reading, before, Some(mig.gpu_instance)),
        }
    }

    /// GPM's ratios of the whole GPU, or of one GPU instance, since the medium pass before.
    fn gpm(&self, reading: &GpuReading, before: Option<&GpuReading>, part: Option<u32>) -> GpmRatios {
        let curves = before.and_then(|before| Some((reading.gpu.parts.get(&part)?, before.gpu.parts.get(&part)?)));
        let means = curves.and_then(|(curve, before)| curve.means_since(before));
        let Some((busy, sm_active)) = means.filter(|_| self.machine.has_gpm) else { return GpmRatios::default() };
        GpmRatios {
            graphics_engine_active: Some(busy),
            sm_active: Some(sm_active),
            sm_occupancy: Some(sm_active * 0.4),
            dram_active: Some(busy * 0.45),
            pipes: PIPES.map(|(pipe, share)| (pipe, sm_active * share)).into(),
        }
    }

    /// The rates of the counters of `slow`, since the medium pass before.
    fn rates(&self, reading: &GpuReading, before: Option<&GpuReading>) -> Rates {
        let moved = before.filter(|_| self.machine.has_gpm).and_then(|before| {
            let seconds = reading.now.since(before.now).as_secs_f64();
            (seconds > 0.0).then(|| (reading.moved_bytes() - before.moved_bytes()) / seconds)
        });
        let of_cpu = moved.filter(|_| self.machine.superchip.is_some());
        Rates {
            memory_utilization_ratio: reading.gpu.whole().map(|curve| curve.load.utilization * 0.6),
            engine_utilization_ratios: reading.idle_engines().into_iter().collect(),
            traffic: Traffic {
                pcie_transmitted: moved,
                pcie_received: moved.map(|moved| moved * 1.4),
                nvlink_transmitted: moved.map(|moved| moved * 40.0),
                nvlink_received: moved.map(|moved| moved * 40.0),
                c2c_transmitted: of_cpu.map(|moved| moved * 2.0),
                c2c_received: of_cpu.map(|moved| moved * 3.0),
            },
            ..Rates::default()
        }
    }

    /// The fabric of a healthy GPU.
    fn fabric(&self) -> FabricState {
        let conditions = self.machine.fabric_conditions;
        FabricState {
            state: if conditions.is_empty() { "not_supported" } else { "completed" },
            domain: self.session.driver.fabric_domain.clone(),
            conditions: conditions.iter().map(|condition| (*condition, false)).collect(),
            ..FabricState::default()
        }
    }

    /// The links' counters; every link moves the same number of bytes.
    fn nvlink(&self, moved: f64) -> NvLink {
        let bytes = Some((moved / f64::from(self.machine.nvlinks)).floor());
        let errors = nvlink::error_names(self.machine.has_nvlink5).map(|name| (name, 0)).collect();
        let link = LinkCounters { transmitted_bytes: bytes, received_bytes: bytes, errors };
        NvLink {
            active_links: Some(self.machine.nvlinks),
            inactive_links: Some(0),
            of_links: (0..self.machine.nvlinks).map(|number| (number, link.clone())).collect(),
            ..NvLink::default()
        }
    }

    fn c2c(&self) -> C2c {
        let links = self.machine.superchip.and_then(|superchip| superchip.c2c_links);
        C2c {
            // Drivers have a mode for Hopper and later, as they have GPM.
            enabled: self.machine.has_gpm.then_some(self.machine.superchip.is_some()),
            active_links: links.map(|(count, _)| count),
            inactive_links: links.map(|_| 0),
            bytes_per_second_max: links.map(|(count, bytes)| f64::from(count) * bytes),
        }
    }

    fn slow(&self, reading: &GpuReading) -> Slow {
        let ecc = |location| {
            let uncorrected = if location == "dram" { reading.gpu.uncorrected } else { 0 };
            EccLocation { location, corrected: Some(0), uncorrected: Some(uncorrected) }
        };
        let moved = reading.moved_bytes();
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
                link_generation: self.machine.pcie_generation,
                link_generation_max: self.machine.pcie_generation,
                link_width_lanes: self.machine.pcie_generation.map(|_| 16),
                link_width_lanes_max: self.machine.pcie_generation.map(|_| 16),
                ..Pcie::default()
            },
            nvlink: self.nvlink(moved * 40.0),
            c2c: self.c2c(),
            fabric: Some(self.fabric()),
            recovery_action: Some(reading.gpu.recovery_action),
            vgpu_licensed: Some(false),
            ..Slow::default()
        }
    }
}

fn memory_use(used: u64, total: u64) -> MemoryUse {
    let reserved = RESERVED_BYTES.min(total / 50);
    let used = used.min(total - reserved);
    MemoryUse { used, free: total - reserved - used, reserved: Some(reserved), total }
}
