//! XIDs of one GPU: counted, and kept while they make the device unhealthy.

use std::collections::{BTreeMap, BTreeSet};

use super::classes::{self, Effect};
use super::faults::XidFault;
use crate::domain::model::{
    LastXid, MigDevice, MigUuid, Moment, Monotonic, RecentCount, UnixSeconds, XidClass, XidCounts, XidEvent,
    XidInstance,
};

/// Codes with their own series; about two hundred exist. Others are counted as 999.
const CODES: usize = 256;
const UNKNOWN_CODE: u32 = 999;

#[derive(Debug, Default)]
pub struct GpuXids {
    pub counts: XidCounts,
    pub active: BTreeMap<u32, ActiveXid>,
}

/// An XID that makes the device unhealthy.
#[derive(Debug)]
pub struct ActiveXid {
    pub effect: Effect,
    pub class: XidClass,
    /// Of the last one; of one of an earlier agent, the monotonic time is the start.
    pub at: Moment,
    /// The driver, which always names the instance, named the whole GPU.
    whole: bool,
    instances: BTreeMap<XidInstance, Occurrence>,
    /// MIG devices that an earlier agent has found.
    earlier: BTreeSet<MigUuid>,
}

#[derive(Debug)]
struct Occurrence {
    /// It occurred since the inventory last mapped the instance numbers.
    pending: bool,
    scope: Option<XidScope>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XidScope {
    Whole,
    MigDevices(BTreeSet<MigUuid>),
}

impl GpuXids {
    pub fn new(created: UnixSeconds) -> Self {
        let by_class = XidClass::ALL.into_iter().map(|class| (class, 0)).collect();
        let counts = XidCounts { created, by_class, ..XidCounts::default() };
        Self { counts, active: BTreeMap::new() }
    }

    /// True for the first of its code, and for each whose code has no line of its own.
    pub fn add(&mut self, event: &XidEvent, effect: Effect, now: Monotonic) -> bool {
        let class = classes::class(event.code);
        let is_new = !self.counts.last.contains_key(&event.code);
        // Beyond the bound, codes share a line; none that exists loses its own.
        let code = if is_new && self.counts.last.len() >= CODES { UNKNOWN_CODE } else { event.code };
        // Not later than now.
        let at = event.at.monotonic.min(now);
        *self.counts.by_class.entry(class).or_default() += event.count;
        let first = || LastXid { class: classes::class(code), at: event.at, count: 0, recent: RecentCount::default() };
        let of_code = self.counts.last.entry(code).or_insert_with(first);
        of_code.count = of_code.count.saturating_add(event.count);
        of_code.recent.add(at, event.count);
        if event.at.monotonic >= of_code.at.monotonic {
            of_code.at = event.at;
        }
        if effect.makes_unhealthy() && self.active.len() < CODES {
            self.active.entry(event.code).or_insert_with(|| ActiveXid::new(effect, class)).add_occurrence(event, at);
        }
        is_new
    }

    /// Restores an XID of an earlier agent.
    pub fn restore(&mut self, code: u32, effect: Effect, fault: &XidFault) {
        let mut xid = ActiveXid::new(effect, classes::class(code));
        xid.at.unix = fault.at;
        xid.whole = fault.whole;
        xid.earlier.clone_from(&fault.mig_devices);
        self.active.insert(code, xid);
    }

    /// Instance numbers are reused after a reconfiguration, so they are turned into names as soon as that can be done.
    pub fn resolve(&mut self, migs: &[MigDevice]) {
        let occurrences = self.active.values_mut().flat_map(|xid| &mut xid.instances);
        for (instance, occurrence) in occurrences.filter(|(_, occurrence)| occurrence.pending) {
            occurrence.pending = false;
            let now = scope(*instance, migs);
            occurrence.scope = Some(match occurrence.scope.take() {
                None => now,
                Some(before) => before.and(now),
            });
        }
    }

    /// Clears all, or those that concern this MIG device alone.
    pub fn clear(&mut self, mig: Option<&MigUuid>) {
        match mig {
            None => self.active.clear(),
            Some(mig) => self.active.retain(|_, xid| {
                if xid.concerns_whole_gpu() {
                    return true;
                }
                xid.earlier.remove(mig);
                xid.instances.retain(|_, occurrence| match &mut occurrence.scope {
                    Some(XidScope::MigDevices(members)) => {
                        members.remove(mig);
                        !members.is_empty()
                    }
                    _ => true,
                });
                !xid.instances.is_empty() || !xid.earlier.is_empty()
            }),
        }
    }
}

impl ActiveXid {
    fn new(effect: Effect, class: XidClass) -> Self {
        let (at, instances, earlier) = (Moment::default(), BTreeMap::new(), BTreeSet::new());
        Self { effect, class, at, whole: false, instances, earlier }
    }

    fn add_occurrence(&mut self, event: &XidEvent, at: Monotonic) {
        if at >= self.at.monotonic {
            self.at = Moment { monotonic: at, unix: event.at.unix };
        }
        match event.instance {
            Some(instance) => {
                self.instances.entry(instance).or_insert(Occurrence { pending: true, scope: None }).pending = true;
            }
            None => self.whole = true,
        }
    }

    pub fn concerns_whole_gpu(&self) -> bool {
        self.whole || self.instances.values().any(|occurrence| occurrence.scope == Some(XidScope::Whole))
    }

    /// MIG devices that it concerns by name.
    pub fn members(&self) -> impl Iterator<Item = &MigUuid> {
        self.instances
            .values()
            .filter_map(|occurrence| match &occurrence.scope {
                Some(XidScope::MigDevices(members)) => Some(members),
                _ => None,
            })
            .flatten()
            .chain(&self.earlier)
    }

    /// For an agent that starts later. An instance whose MIG devices are not known yet is the whole GPU.
    pub fn fault(&self) -> XidFault {
        let is_unresolved = self.instances.values().any(|occurrence| occurrence.scope.is_none());
        XidFault {
            at: self.at.unix,
            whole: is_unresolved || self.concerns_whole_gpu(),
            mig_devices: self.members().cloned().collect(),
        }
    }
}

impl XidScope {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::MigDevices(mut one), Self::MigDevices(two)) => {
                one.extend(two);
                Self::MigDevices(one)
            }
            _ => Self::Whole,
        }
    }
}

/// An XID of an unknown instance applies to the whole GPU. One whose compute
/// instance is unknown applies to its GPU instance.
fn scope(instance: XidInstance, migs: &[MigDevice]) -> XidScope {
    let members: Vec<&MigDevice> = migs.iter().filter(|mig| mig.gpu_instance == instance.gpu_instance).collect();
    let named = |mig: &&&MigDevice| instance.compute_instance == Some(mig.compute_instance);
    let exact: BTreeSet<MigUuid> = members.iter().filter(named).map(|mig| mig.uuid.clone()).collect();
    if members.is_empty() {
        XidScope::Whole
    } else if exact.is_empty() {
        XidScope::MigDevices(members.into_iter().map(|mig| mig.uuid.clone()).collect())
    } else {
        XidScope::MigDevices(exact)
    }
}
