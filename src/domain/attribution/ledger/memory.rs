//! How the memory in use at one moment is divided. Memory has an owner where a process list names it; without one,
//! only an exclusive holder is known to use it.

use std::collections::BTreeMap;

use super::weights::holder_of;
use crate::domain::attribution::owners::OwnedProcess;
use crate::domain::model::{ContainerRef, UnattributedReason};

/// The memory of a GPU, or of one GPU instance.
pub struct Pool<'a> {
    pub used: u64,
    /// Sorted by container.
    pub holders: &'a [&'a ContainerRef],
    /// One holder has the pool exclusively, by allocation.
    pub sole: bool,
    /// Those that run in it; `None` where processes are not known.
    pub processes: Option<&'a [&'a OwnedProcess]>,
}

/// Adds up to the pool.
#[derive(Debug, Default, PartialEq)]
pub struct MemoryDivision {
    /// By holder. `None`: not known.
    pub holders: Vec<Option<u64>>,
    pub unattributed: BTreeMap<UnattributedReason, u64>,
}

impl Pool<'_> {
    pub fn divide(&self) -> MemoryDivision {
        let Some(processes) = self.processes else {
            let (holders, unattributed) = if self.sole && self.holders.len() == 1 {
                (vec![Some(self.used)], BTreeMap::new())
            } else {
                (vec![None; self.holders.len()], BTreeMap::from([(UnattributedReason::Unknown, self.used)]))
            };
            return MemoryDivision { holders, unattributed };
        };
        let mut holders = vec![Some(0_u64); self.holders.len()];
        let mut unattributed: BTreeMap<UnattributedReason, u64> = BTreeMap::new();
        let mut untold = false;
        let known = processes.iter().filter_map(|process| process.memory_bytes);
        let sum: u128 = known.map(u128::from).sum();
        for process in processes {
            let holder = holder_of(process, self.holders);
            let Some(bytes) = process.memory_bytes else {
                untold = true;
                if let Ok(place) = holder {
                    holders[place] = None;
                }
                continue;
            };
            let bytes = self.scaled(bytes, sum);
            match holder {
                Ok(place) => holders[place] = holders[place].map(|held| held + bytes),
                Err(reason) => *unattributed.entry(reason).or_default() += bytes,
            }
        }
        let listed: u64 = holders.iter().flatten().chain(unattributed.values()).sum();
        let rest = self.used.saturating_sub(listed);
        match (&mut holders[..], self.sole) {
            ([holder], true) if !untold => *holder = holder.map(|held| held + rest),
            // What a process with an unknown figure has is in here.
            _ if untold => *unattributed.entry(UnattributedReason::Unknown).or_default() += rest,
            _ => *unattributed.entry(UnattributedReason::Driver).or_default() += rest,
        }
        MemoryDivision { holders, unattributed }
    }

    /// The list and the sum are read at slightly different times: shares are limited to the sum.
    fn scaled(&self, bytes: u64, sum: u128) -> u64 {
        if sum <= u128::from(self.used) {
            return bytes;
        }
        u64::try_from(u128::from(bytes) * u128::from(self.used) / sum).unwrap_or(self.used)
    }
}
