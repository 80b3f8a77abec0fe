//! Who is on a GPU, and how much of it they take.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_uint, c_ulonglong};
use std::mem::size_of;

use nvml_wrapper_sys::bindings::{
    nvmlProcessInfo_t, nvmlProcessUtilizationInfo_v1_t, nvmlProcessUtilizationSample_t,
    nvmlProcessesUtilizationInfo_v1_t,
};

use super::on_device;
use crate::clock::{self, Micros};
use crate::codes::{Answer, Code, INSUFFICIENT_SIZE, NOT_FOUND};
use crate::gate::Target;
use crate::history::History;
use crate::library::library;
use crate::out::{Many, Out};
use crate::samples::RING_ENTRIES;
use crate::state::{Gpu, Process, ProcessKind};
use crate::versions;

on_device! {
    nvmlDeviceGetComputeRunningProcesses_v3(count: Out<c_uint>, infos: Many<nvmlProcessInfo_t>) |target| {
        list(target, ProcessKind::Compute, count, infos)
    }
    nvmlDeviceGetGraphicsRunningProcesses_v3(count: Out<c_uint>, infos: Many<nvmlProcessInfo_t>) |target| {
        list(target, ProcessKind::Graphics, count, infos)
    }
    nvmlDeviceGetMPSComputeRunningProcesses_v3(count: Out<c_uint>, infos: Many<nvmlProcessInfo_t>) |target| {
        list(target, ProcessKind::Mps, count, infos)
    }
    nvmlDeviceGetComputeRunningProcesses_v2(count: Out<c_uint>, infos: Many<nvmlProcessInfo_t>) |target| {
        list(target, ProcessKind::Compute, count, infos)
    }
    nvmlDeviceGetGraphicsRunningProcesses_v2(count: Out<c_uint>, infos: Many<nvmlProcessInfo_t>) |target| {
        list(target, ProcessKind::Graphics, count, infos)
    }
    nvmlDeviceGetMPSComputeRunningProcesses_v2(count: Out<c_uint>, infos: Many<nvmlProcessInfo_t>) |target| {
        list(target, ProcessKind::Mps, count, infos)
    }
    nvmlDeviceGetProcessUtilization(
        samples: Many<nvmlProcessUtilizationSample_t>, count: Out<c_uint>, last_seen: c_ulonglong
    ) |target| {
        let gpu = target.undivided()?;
        require_entries(gpu, count)?;
        let values: Vec<_> = busy(gpu, last_seen)?.iter().map(|(time, process)| nvmlProcessUtilizationSample_t {
            pid: process.pid,
            timeStamp: *time,
            smUtil: process.sm,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        }).collect();
        samples.put_all(count, &values)
    }
    nvmlDeviceGetProcessesUtilizationInfo(info: Out<nvmlProcessesUtilizationInfo_v1_t>) |target| {
        let asked = info.get()?;
        versions::check(asked.version, 1, size_of::<nvmlProcessesUtilizationInfo_v1_t>())?;
        let busy = busy(target.undivided()?, asked.lastSeenTimeStamp)?;
        info.put(nvmlProcessesUtilizationInfo_v1_t { processSamplesCount: busy.len() as c_uint, ..asked })?;
        let array = Many::from_pointer(asked.procUtilArray);
        if array.is_null() || (asked.processSamplesCount as usize) < busy.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        for (index, (time, process)) in busy.iter().enumerate() {
            array.put(index, nvmlProcessUtilizationInfo_v1_t {
                timeStamp: *time,
                pid: process.pid,
                smUtil: process.sm,
                memUtil: 0,
                encUtil: 0,
                decUtil: 0,
                jpgUtil: 0,
                ofaUtil: 0,
            });
        }
        Ok(())
    }
}

/// A MIG device lists its own processes, the GPU all of them.
fn list(target: &Target, kind: ProcessKind, count: Out<c_uint>, infos: Many<nvmlProcessInfo_t>) -> Answer {
    let processes = target.gpu().processes.iter().filter(|process| process.kind == kind);
    let here = processes.filter(|process| match target.instance() {
        Some(instance) => {
            process.gpu_instance == Some(instance.gpu_instance)
                && process.compute_instance == Some(instance.compute_instance)
        }
        None => true,
    });
    let values: Vec<_> = here
        .map(|process| nvmlProcessInfo_t {
            pid: process.pid,
            usedGpuMemory: process.memory_bytes.unwrap_or(u64::MAX),
            gpuInstanceId: process.gpu_instance.unwrap_or(u32::MAX),
            computeInstanceId: process.compute_instance.unwrap_or(u32::MAX),
        })
        .collect();
    infos.put_all(count, &values)
}

/// An error unless the buffer has as many entries as the driver requires, however few processes there are.
fn require_entries(gpu: &Gpu, count: Out<c_uint>) -> Answer {
    if count.get()? >= gpu.samples.process_entries {
        return Ok(());
    }
    count.put(gpu.samples.process_entries)?;
    Err(INSUFFICIENT_SIZE)
}

/// The processes that did anything since last seen, each with the end of its last period and its mean from last seen to
/// then; with nothing newer than last seen NOT_FOUND.
fn busy(gpu: &Gpu, last_seen: Micros) -> Result<Vec<(Micros, Process)>, Code> {
    let now = clock::now();
    let period = gpu.samples.period_microseconds.max(1);
    let measured = now / period * period;
    let mut library = library();
    let history = library.history(&gpu.uuid, now).ok_or(NOT_FOUND)?;
    let from = last_seen.max(history.begin());
    let mut processes = if measured > from && gpu.samples.one_process_each {
        in_turns(history, from, measured, period)
    } else if measured > from {
        beside_each_other(history, from, measured)
    } else if measured > last_seen {
        // So early that no period has ended yet.
        gpu.processes.iter().map(|process| (measured, process.clone())).collect()
    } else {
        Vec::new()
    };
    processes.retain(|(_, process)| process.sm > 0);
    if processes.is_empty() { Err(NOT_FOUND) } else { Ok(processes) }
}

/// Each process has its part of every period.
fn beside_each_other(history: &History, from: Micros, to: Micros) -> Vec<(Micros, Process)> {
    let pids: BTreeSet<u32> =
        history.during(from, to).flat_map(|gpu| gpu.processes.iter().map(|process| process.pid)).collect();
    let of = |gpu: &Gpu, pid| gpu.processes.iter().filter(|one| one.pid == pid).map(|one| one.sm).max().unwrap_or(0);
    let mean = |pid| {
        let sum = history.sum(from, to, |gpu| Some(f64::from(of(gpu, pid)))).unwrap_or(0.0);
        let sm = (sum / (to - from) as f64).round() as u32;
        (to, Process { pid, sm, ..Process::default() })
    };
    pids.into_iter().map(mean).collect()
}

/// Each period is one process's, with the use of all: over many, its periods are its part.
fn in_turns(history: &History, from: Micros, to: Micros, period: Micros) -> Vec<(Micros, Process)> {
    let first = (from / period).max((to / period).saturating_sub(RING_ENTRIES)) + 1;
    let mut turns: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
    for tick in first..=to / period {
        let Some(gpu) = history.during((tick - 1) * period, tick * period).last() else { continue };
        let all: u32 = gpu.processes.iter().map(|process| process.sm).sum();
        // Multiples of the golden ratio are spread evenly, over any stretch.
        let mut position = (tick as f64 * 0.618_033_988_749_895).fract() * f64::from(all);
        let its = gpu.processes.iter().find(|process| {
            position -= f64::from(process.sm);
            position < 0.0
        });
        if let Some(process) = its {
            let (last, sum) = turns.entry(process.pid).or_default();
            *last = tick;
            *sum += all.min(100);
        }
    }
    let mean = |(pid, (last, sum)): (u32, (u64, u32))| {
        let sm = (f64::from(sum) / (last + 1 - first) as f64).round() as u32;
        (last * period, Process { pid, sm, ..Process::default() })
    };
    turns.into_iter().map(mean).collect()
}
