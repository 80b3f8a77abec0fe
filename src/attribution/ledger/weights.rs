use std::collections::BTreeMap;
use std::time::Duration;

use crate::attribution::processes::{DeviceProcess, DeviceProcesses, ProcessOwner};
use crate::model::{ContainerRef, Monotonic, PodRef, Reason};

/// A process that was not told of for so long has ended.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// Up to where the SM time of each process of one device has been used.
#[derive(Debug, Default)]
pub struct Weights {
    used: BTreeMap<(u32, u64), (f64, Monotonic)>,
}

/// SM-seconds since the last interval.
#[derive(Debug, Default, PartialEq)]
pub struct Gains {
    /// By holder.
    pub holders: Vec<f64>,
    pub others: BTreeMap<Reason, f64>,
}

impl Weights {
    /// `None` where the driver does not tell SM time by process. `holders` are sorted.
    pub fn gains(
        &mut self,
        processes: Option<&DeviceProcesses>,
        holders: &[&ContainerRef],
        now: Monotonic,
    ) -> Option<Gains> {
        let processes = processes.filter(|processes| processes.has_sm_seconds)?;
        let mut gains = Gains { holders: vec![0.0; holders.len()], others: BTreeMap::new() };
        for process in &processes.processes {
            let key = (process.pid, process.start_ticks);
            let total = if process.sm_seconds.is_finite() { process.sm_seconds.max(0.0) } else { 0.0 };
            let (before, _) = self.used.insert(key, (total, now)).unwrap_or((0.0, now));
            // A process that did nothing for long is counted anew, from zero.
            let gain = if total < before { total } else { total - before };
            if gain > 0.0 {
                match holder_of(process, holders) {
                    Ok(place) => gains.holders[place] += gain,
                    Err(reason) => *gains.others.entry(reason).or_default() += gain,
                }
            }
        }
        self.used.retain(|_, (_, seen)| now.since(*seen) < FORGOTTEN);
        Some(gains)
    }
}

/// The place of the holder whose process it is: its own container, else the first of its pod. A container that takes
/// part in the pod's use without being listed (an init or a debugging container) uses what the pod holds.
pub fn holder_of(process: &DeviceProcess, holders: &[&ContainerRef]) -> Result<usize, Reason> {
    let pod = match &process.owner {
        ProcessOwner::Container(container) => match holders.binary_search(&container) {
            Ok(place) => return Ok(place),
            Err(_) => (&container.namespace, &container.pod),
        },
        ProcessOwner::Pod(PodRef { namespace, pod }) => (namespace, pod),
        ProcessOwner::TerminatedPod => return Err(Reason::TerminatedPod),
        ProcessOwner::Host => return Err(Reason::Host),
        ProcessOwner::Unknown => return Err(Reason::Unknown),
    };
    let first = holders.partition_point(|holder| (&holder.namespace, &holder.pod) < pod);
    let is_mate = holders.get(first).is_some_and(|holder| (&holder.namespace, &holder.pod) == pod);
    if is_mate { Ok(first) } else { Err(Reason::NotAllocated) }
}
