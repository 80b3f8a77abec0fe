use std::collections::BTreeMap;
use std::time::Duration;

use crate::domain::attribution::owners::{DeviceProcesses, OwnedProcess};
use crate::domain::model::{ContainerRef, Monotonic, Owner, PodRef, UnattributedReason};

/// A process that was not reported for so long has ended.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// Up to where the SM time of each process of one device has been used.
#[derive(Debug, Default)]
pub struct Weights {
    /// By pid, as the totals are: whether a process can still be read does not change its past use.
    used: BTreeMap<u32, (f64, Monotonic)>,
}

/// SM-seconds since the last interval.
#[derive(Debug, Default, PartialEq)]
pub struct Gains {
    /// By holder.
    pub holders: Vec<f64>,
    pub others: BTreeMap<UnattributedReason, f64>,
}

impl Weights {
    /// `None` where the driver does not report SM time by process. `holders` are sorted.
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
            // The count of a process that was idle for long restarts at zero.
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

/// The index of the holder that owns the process: its own container, else the first of its pod. A container that takes
/// part in the pod's use without being listed (an init or a debugging container) uses what the pod holds. What is left
/// of an earlier pod of the same name is not the present one's.
pub fn holder_of(process: &OwnedProcess, holders: &[&ContainerRef]) -> Result<usize, UnattributedReason> {
    let (namespace, pod, container) = match &process.owner {
        Owner::Container(container) => match holders.binary_search(&container) {
            Ok(place) => return Ok(place),
            Err(_) => (&container.namespace, &container.pod, Some(container)),
        },
        Owner::Pod(PodRef { namespace, pod }) => (namespace, pod, None),
        owner => return Err(owner.unattributed_reason().unwrap_or(UnattributedReason::Unknown)),
    };
    let first = holders.partition_point(|holder| (&holder.namespace, &holder.pod) < (namespace, pod));
    let of_name = holders.iter().enumerate().skip(first);
    let of_name = of_name.take_while(|(_, holder)| (&holder.namespace, &holder.pod) == (namespace, pod));
    let mut mates = of_name.clone().filter(|(_, holder)| container.is_none_or(|own| own.may_be_in_pod_of(holder)));
    let own = mates.clone().find(|(_, holder)| container.is_some_and(|own| own.has_names_of(holder)));
    match own.or_else(|| mates.next()) {
        Some((place, _)) => Ok(place),
        None if of_name.clone().next().is_some() => Err(UnattributedReason::TerminatedPod),
        None => Err(UnattributedReason::NotAllocated),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::UnknownOwner;

    fn told(owner: Owner, start_ticks: u64, sm_seconds: f64) -> DeviceProcesses {
        let process = crate::test_data::process(7, owner, sm_seconds);
        DeviceProcesses { has_sm_seconds: true, processes: vec![OwnedProcess { start_ticks, ..process }] }
    }

    #[test]
    fn a_process_that_can_no_longer_be_read_does_not_count_again() {
        let main = ContainerRef::new("team", "train", "main");
        let mut weights = Weights::default();
        let mut gains = |second, processes: DeviceProcesses| {
            weights.gains(Some(&processes), &[&main], Monotonic::from_secs(second)).unwrap()
        };
        assert_eq!(gains(1, told(Owner::Container(main.clone()), 5, 30.0)).holders, [30.0]);
        let after = gains(61, told(Owner::Unknown(UnknownOwner::Gone), 0, 30.0));
        assert_eq!(after, Gains { holders: vec![0.0], others: BTreeMap::new() });
    }

    #[test]
    fn a_leftover_process_of_an_earlier_pod_of_the_name_is_not_the_present_ones() {
        let of = |container: &str, uid: Option<&str>| {
            ContainerRef::new("team", "web-0", container).with_uid(uid.map(Into::into))
        };
        let (old, new, side) = (of("main", Some("old")), of("main", Some("new")), of("side", Some("new")));
        let place = |owner: &ContainerRef, holders: &[&ContainerRef]| {
            let told = told(Owner::Container(owner.clone()), 5, 0.0);
            holder_of(&told.processes[0], holders)
        };
        assert_eq!(place(&old, &[&new]), Err(UnattributedReason::TerminatedPod));
        assert_eq!(place(&old, &[&new, &old]), Ok(1), "while both have held it since the last reading");
        assert_eq!(place(&new, &[&new, &old]), Ok(0));
        assert_eq!(place(&of("init", Some("new")), &[&old, &side]), Ok(1), "of its own pod");
        assert_eq!(place(&of("main", None), &[&side, &new]), Ok(1), "where the UID is not known, by name");
        assert_eq!(place(&new, &[&of("main", None)]), Ok(0));
        assert_eq!(place(&new, &[]), Err(UnattributedReason::NotAllocated));
    }
}
