//! Who is on a GPU, and how much of it they take.

use std::collections::BTreeSet;
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
use crate::library::library;
use crate::out::{Many, Out};
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
        let (time, processes) = busy(target.undivided()?, last_seen)?;
        let values: Vec<_> = processes.iter().map(|process| nvmlProcessUtilizationSample_t {
            pid: process.pid,
            timeStamp: time,
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
        let (time, processes) = busy(target.undivided()?, asked.lastSeenTimeStamp)?;
        info.put(nvmlProcessesUtilizationInfo_v1_t { processSamplesCount: processes.len() as c_uint, ..asked })?;
        let array = Many::from_pointer(asked.procUtilArray);
        if array.is_null() || (asked.processSamplesCount as usize) < processes.len() {
            return Err(INSUFFICIENT_SIZE);
        }
        for (index, process) in processes.iter().enumerate() {
            array.put(index, nvmlProcessUtilizationInfo_v1_t {
                timeStamp: time,
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

/// The processes that did anything since last seen, with their means over that time, and when that was measured; with
/// nothing newer than last seen NOT_FOUND.
fn busy(gpu: &Gpu, last_seen: Micros) -> Result<(Micros, Vec<Process>), Code> {
    let now = clock::now();
    let period = gpu.samples.period_microseconds.max(1);
    let measured = now / period * period;
    let mut library = library();
    let history = library.history(&gpu.uuid, now).ok_or(NOT_FOUND)?;
    let from = last_seen.max(history.begin());
    let mut processes = Vec::new();
    if measured > from {
        let pids: BTreeSet<u32> =
            history.during(from, measured).flat_map(|gpu| gpu.processes.iter().map(|process| process.pid)).collect();
        for pid in pids {
            let of = |gpu: &Gpu| gpu.processes.iter().filter(|one| one.pid == pid).map(|one| one.sm).max().unwrap_or(0);
            let sum = history.sum(from, measured, |gpu| Some(f64::from(of(gpu)))).unwrap_or(0.0);
            let sm = (sum / (measured - from) as f64).round() as u32;
            processes.push(Process { pid, sm, ..Process::default() });
        }
    } else if measured > last_seen {
        // So early that no period has ended yet.
        processes.clone_from(&gpu.processes);
    }
    processes.retain(|process| process.sm > 0);
    if processes.is_empty() { Err(NOT_FOUND) } else { Ok((measured, processes)) }
}
