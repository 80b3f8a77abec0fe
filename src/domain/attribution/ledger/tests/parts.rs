//! The parts of one tick as a segment, rule by rule, as docs/attribution.md has them.

use std::collections::BTreeMap;

use super::random_node::{MigReading, TICK_SECONDS};
use super::reference::UseByReason;
use crate::domain::holders::HoldingKey;
use crate::domain::model::{Holding, SharingForm, UnattributedReason};

/// One tick of one device.
pub struct ReferenceSegment<'a> {
    pub holders: &'a BTreeMap<HoldingKey, Holding>,
    pub busy: Option<f64>,
    pub energy: Option<f64>,
    pub idle: Option<f64>,
}

/// The parts: owner, busy seconds, joules.
pub type ReferenceParts<'a> = Vec<(Result<&'a HoldingKey, UnattributedReason>, Option<f64>, Option<f64>)>;

impl<'a> ReferenceSegment<'a> {
    pub fn by_holding(&self) -> ReferenceParts<'a> {
        let sum: f64 = self.holders.values().map(|holding| holding.weight).sum();
        if self.holders.is_empty() {
            return self.by_process(|_| 0.0, &UseByReason::new(), 1.0);
        }
        let part = |(key, holding): (&'a HoldingKey, &Holding)| {
            let part = holding.weight / sum;
            (Ok(key), self.busy.map(|busy| busy * part), self.energy.map(|energy| energy * part))
        };
        self.holders.iter().map(part).collect()
    }

    pub fn by_process(
        &self,
        weight: impl Fn(&HoldingKey) -> f64,
        others: &UseByReason,
        ticks: f64,
    ) -> ReferenceParts<'a> {
        let sum: f64 = self.holders.keys().map(&weight).sum::<f64>() + others.values().sum::<f64>() / ticks;
        let sole = self.holders.iter().next().filter(|(_, holding)| holding.sharing == SharingForm::Exclusive);
        let sole = sole.filter(|_| self.holders.len() == 1).map(|(key, _)| key);
        let idle = self.energy.map(|energy| self.idle.unwrap_or(0.0).min(energy));
        let running = self.energy.zip(idle).map(|(energy, idle)| energy - idle);
        let mut parts: ReferenceParts<'a> = vec![(sole.ok_or(UnattributedReason::Idle), None, idle)];
        for key in self.holders.keys() {
            let part = if sum > 0.0 { weight(key) / sum } else { 0.0 };
            parts.push((Ok(key), self.busy.map(|busy| busy * part), running.map(|energy| energy * part)));
        }
        for (reason, weight) in others {
            let part = if sum > 0.0 { weight / ticks / sum } else { 0.0 };
            parts.push((Err(*reason), self.busy.map(|busy| busy * part), running.map(|energy| energy * part)));
        }
        if sum <= 0.0 {
            let quiet = if matches!(self.busy, Some(0.0..1e-9)) {
                UnattributedReason::Idle
            } else {
                UnattributedReason::Unknown
            };
            match sole {
                Some(key) => {
                    // Already there with nothing: its busy time is known once.
                    parts.retain(|(owner, busy, _)| *owner != Ok(key) || busy.is_none());
                    parts.push((Ok(key), self.busy, running));
                }
                None => {
                    parts.push((Err(UnattributedReason::Unknown), self.busy, None));
                    parts.push((Err(quiet), None, running));
                }
            }
        }
        parts
    }

    pub fn by_mig_activity(&self, devices: &[MigReading], actives: &[Option<f64>]) -> ReferenceParts<'a> {
        let is_known = actives.iter().all(Option::is_some);
        let work: f64 =
            devices.iter().zip(actives).map(|(device, active)| active.unwrap_or(0.0) * device.fraction).sum();
        let idle = self.idle.unwrap_or(0.0);
        let mut parts = vec![];
        let mut left = self.energy;
        if is_known {
            let idle = self.energy.map(|energy| if work > 0.0 { idle.min(energy) } else { energy });
            parts.push((Err(UnattributedReason::Idle), None, idle));
            left = self.energy.zip(idle).map(|(energy, idle)| energy - idle);
        }
        let mut unpartitioned = 1.0;
        for (device, active) in devices.iter().zip(actives) {
            unpartitioned -= device.fraction;
            let done = active.map(|active| active * device.fraction * TICK_SECONDS);
            let weight = if is_known { active.unwrap() * device.fraction / work.max(1e-300) } else { device.fraction };
            let energy = left.map(|left| left * weight);
            let holders = self.holders.iter().filter(|(key, _)| key.mig.as_ref() == Some(&device.mig));
            let sum: f64 = holders.clone().map(|(_, holding)| holding.weight).sum();
            for (key, holding) in holders.clone() {
                let share = holding.weight / sum;
                parts.push((Ok(key), done.map(|done| done * share), energy.map(|energy| energy * share)));
            }
            if holders.count() == 0 {
                let idle = if active.is_some() { 0.0 } else { idle * device.fraction };
                let idle = energy.map(|energy| idle.min(energy));
                parts.push((Err(UnattributedReason::Idle), None, idle));
                let rest = energy.zip(idle).map(|(energy, idle)| energy - idle);
                parts.push((Err(UnattributedReason::Unknown), done, rest));
            }
        }
        if !is_known && unpartitioned > 1e-12 {
            let energy = left.map(|left| left * unpartitioned);
            let idle = energy.map(|energy| energy.min(idle * unpartitioned));
            parts.push((Err(UnattributedReason::Idle), None, idle));
            parts.push((Err(UnattributedReason::Unknown), None, energy.zip(idle).map(|(energy, idle)| energy - idle)));
        }
        parts
    }
}
