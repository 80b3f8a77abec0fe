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
pub struct Xids {
    pub counts: XidCounts,
    pub latches: BTreeMap<u32, Latch>,
}

/// An XID that makes the device unhealthy.
#[derive(Debug)]
pub struct Latch {
    pub effect: Effect,
    pub class: XidClass,
    /// Of the last one; of one of an earlier agent, the monotonic time is the start.
    pub at: Moment,
    /// The driver, which always names the instance, named the whole GPU.
    whole: bool,
    instances: BTreeMap<XidInstance, Hit>,
    /// MIG devices that an earlier agent has found.
    earlier: BTreeSet<MigUuid>,
}

#[derive(Debug)]
struct Hit {
    /// Hit since the inventory last mapped the instance numbers.
    pending: bool,
    reach: Option<Reach>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    Whole,
    Instances(BTreeSet<MigUuid>),
}

impl Xids {
    pub fn new(created: UnixSeconds) -> Self {
        let by_class = XidClass::ALL.into_iter().map(|class| (class, 0)).collect();
        let counts = XidCounts { created, by_class, ..XidCounts::default() };
        Self { counts, latches: BTreeMap::new() }
    }

    /// True for the first of its code ever.
    pub fn take(&mut self, event: &XidEvent, effect: Effect, now: Monotonic) -> bool {
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
        if effect.makes_unhealthy() && self.latches.len() < CODES {
            self.latches.entry(event.code).or_insert_with(|| Latch::new(effect, class)).hit(event, at);
        }
        is_new
    }

    /// Restores an XID of an earlier agent.
    pub fn restore(&mut self, code: u32, effect: Effect, fault: &XidFault) {
        let mut latch = Latch::new(effect, classes::class(code));
        latch.at.unix = fault.at;
        latch.whole = fault.whole;
        latch.earlier.clone_from(&fault.mig_devices);
        self.latches.insert(code, latch);
    }

    /// Instance numbers are reused after a reconfiguration, so they are turned into names as soon as that can be done.
    pub fn resolve(&mut self, migs: &[MigDevice]) {
        let hits = self.latches.values_mut().flat_map(|latch| &mut latch.instances);
        for (instance, hit) in hits.filter(|(_, hit)| hit.pending) {
            hit.pending = false;
            let now = reach(*instance, migs);
            hit.reach = Some(match hit.reach.take() {
                None => now,
                Some(before) => before.and(now),
            });
        }
    }

    /// Clears all, or those that concern this MIG device alone.
    pub fn clear(&mut self, mig: Option<&MigUuid>) {
        match mig {
            None => self.latches.clear(),
            Some(mig) => self.latches.retain(|_, latch| {
                if latch.reaches_whole() {
                    return true;
                }
                latch.earlier.remove(mig);
                latch.instances.retain(|_, hit| match &mut hit.reach {
                    Some(Reach::Instances(members)) => {
                        members.remove(mig);
                        !members.is_empty()
                    }
                    _ => true,
                });
                !latch.instances.is_empty() || !latch.earlier.is_empty()
            }),
        }
    }
}

impl Latch {
    fn new(effect: Effect, class: XidClass) -> Self {
        let (at, instances, earlier) = (Moment::default(), BTreeMap::new(), BTreeSet::new());
        Self { effect, class, at, whole: false, instances, earlier }
    }

    fn hit(&mut self, event: &XidEvent, at: Monotonic) {
        if at >= self.at.monotonic {
            self.at = Moment { monotonic: at, unix: event.at.unix };
        }
        match event.instance {
            Some(instance) => {
                self.instances.entry(instance).or_insert(Hit { pending: true, reach: None }).pending = true;
            }
            None => self.whole = true,
        }
    }

    pub fn reaches_whole(&self) -> bool {
        self.whole || self.instances.values().any(|hit| hit.reach == Some(Reach::Whole))
    }

    /// MIG devices that it reaches by name.
    pub fn members(&self) -> impl Iterator<Item = &MigUuid> {
        self.instances
            .values()
            .filter_map(|hit| match &hit.reach {
                Some(Reach::Instances(members)) => Some(members),
                _ => None,
            })
            .flatten()
            .chain(&self.earlier)
    }

    /// For an agent that starts later. An instance whose MIG devices are not known yet is the whole GPU.
    pub fn fault(&self) -> XidFault {
        let is_unresolved = self.instances.values().any(|hit| hit.reach.is_none());
        XidFault {
            at: self.at.unix,
            whole: is_unresolved || self.reaches_whole(),
            mig_devices: self.members().cloned().collect(),
        }
    }
}

impl Reach {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Instances(mut one), Self::Instances(two)) => {
                one.extend(two);
                Self::Instances(one)
            }
            _ => Self::Whole,
        }
    }
}

/// An XID of an unknown instance applies to the whole GPU. One whose compute
/// instance is unknown applies to its GPU instance.
fn reach(instance: XidInstance, migs: &[MigDevice]) -> Reach {
    let inside: Vec<&MigDevice> = migs.iter().filter(|mig| mig.gpu_instance == instance.gpu_instance).collect();
    let named = |mig: &&&MigDevice| instance.compute_instance == Some(mig.compute_instance);
    let exact: BTreeSet<MigUuid> = inside.iter().filter(named).map(|mig| mig.uuid.clone()).collect();
    if inside.is_empty() {
        Reach::Whole
    } else if exact.is_empty() {
        Reach::Instances(inside.into_iter().map(|mig| mig.uuid.clone()).collect())
    } else {
        Reach::Instances(exact)
    }
}
