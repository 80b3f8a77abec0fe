use std::collections::BTreeMap;
use std::time::Duration;

use crate::attribution::processes::{DeviceProcess, DeviceProcesses, ProcessOwner};
use crate::model::{ContainerRef, Monotonic, PodRef, Reason};

/// A process that was not told of for so long has ended.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// Up to where the SM time of each process of one device has been used.
#[derive(Debug, Default)]
pub struct Weights {
    /// By pid, as the totals are: whether a process can still be looked at changes nothing of what it did before.
    used: BTreeMap<u32, (f64, Monotonic)>,
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
            let total = if process.sm_seconds.is_finite() { process.sm_seconds.max(0.0) } else { 0.0 };
            let (before, _) = self.used.insert(process.pid, (total, now)).unwrap_or((0.0, now));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn told(owner: ProcessOwner, start_ticks: u64, sm_seconds: f64) -> DeviceProcesses {
        let process = DeviceProcess {
            pid: 7,
            start_ticks,
            owner,
            running: false,
            memory_bytes: None,
            gpu_instance: None,
            compute_instance: None,
            sm_seconds,
        };
        DeviceProcesses { has_sm_seconds: true, processes: vec![process] }
    }

    #[test]
    fn a_process_that_can_no_longer_be_looked_at_does_not_count_again() {
        let main = ContainerRef::new("team", "train", "main");
        let mut weights = Weights::default();
        let mut gains = |second, processes: DeviceProcesses| {
            weights.gains(Some(&processes), &[&main], Monotonic::from_secs(second)).unwrap()
        };
        assert_eq!(gains(1, told(ProcessOwner::Container(main.clone()), 5, 30.0)).holders, [30.0]);
        let after = gains(61, told(ProcessOwner::Unknown, 0, 30.0));
        assert_eq!(after, Gains { holders: vec![0.0], others: BTreeMap::new() });
    }
}
