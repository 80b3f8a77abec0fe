//! The division of one tick, rule by rule.

use std::collections::BTreeMap;

use super::reference::Rest;
use super::worlds::{PartReading, TICK_SECONDS};
use crate::domain::attribution::HoldingKey;
use crate::domain::model::{Holding, SharingForm, UnattributedReason};

/// One tick of one device.
pub struct Scene<'a> {
    pub holders: &'a BTreeMap<HoldingKey, Holding>,
    pub busy: Option<f64>,
    pub energy: Option<f64>,
    pub idle: Option<f64>,
}

/// Owner, busy seconds, joules.
pub type Shares<'a> = Vec<(Result<&'a HoldingKey, UnattributedReason>, Option<f64>, Option<f64>)>;

impl<'a> Scene<'a> {
    pub fn equally(&self) -> Shares<'a> {
        let sum: f64 = self.holders.values().map(|holding| holding.weight).sum();
        if self.holders.is_empty() {
            return self.by_process(|_| 0.0, &Rest::new(), 1.0);
        }
        let part = |(key, holding): (&'a HoldingKey, &Holding)| {
            let part = holding.weight / sum;
            (Ok(key), self.busy.map(|busy| busy * part), self.energy.map(|energy| energy * part))
        };
        self.holders.iter().map(part).collect()
    }

    pub fn by_process(&self, weight: impl Fn(&HoldingKey) -> f64, others: &Rest, ticks: f64) -> Shares<'a> {
        let sum: f64 = self.holders.keys().map(&weight).sum::<f64>() + others.values().sum::<f64>() / ticks;
        let sole = self.holders.iter().next().filter(|(_, holding)| holding.sharing == SharingForm::Exclusive);
        let sole = sole.filter(|_| self.holders.len() == 1).map(|(key, _)| key);
        let idle = self.energy.map(|energy| self.idle.unwrap_or(0.0).min(energy));
        let running = self.energy.zip(idle).map(|(energy, idle)| energy - idle);
        let mut shares: Shares<'a> = vec![(sole.ok_or(UnattributedReason::Idle), None, idle)];
        for key in self.holders.keys() {
            let part = if sum > 0.0 { weight(key) / sum } else { 0.0 };
            shares.push((Ok(key), self.busy.map(|busy| busy * part), running.map(|energy| energy * part)));
        }
        for (reason, weight) in others {
            let part = if sum > 0.0 { weight / ticks / sum } else { 0.0 };
            shares.push((Err(*reason), self.busy.map(|busy| busy * part), running.map(|energy| energy * part)));
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
                    shares.retain(|(whose, busy, _)| *whose != Ok(key) || busy.is_none());
                    shares.push((Ok(key), self.busy, running));
                }
                None => {
                    shares.push((Err(UnattributedReason::Unknown), self.busy, None));
                    shares.push((Err(quiet), None, running));
                }
            }
        }
        shares
    }

    pub fn by_part(&self, parts: &[PartReading], actives: &[Option<f64>]) -> Shares<'a> {
        let told = actives.iter().all(Option::is_some);
        let work: f64 = parts.iter().zip(actives).map(|(part, active)| active.unwrap_or(0.0) * part.fraction).sum();
        let idle = self.idle.unwrap_or(0.0);
        let mut shares = vec![];
        let mut left = self.energy;
        if told {
            let idle = self.energy.map(|energy| if work > 0.0 { idle.min(energy) } else { energy });
            shares.push((Err(UnattributedReason::Idle), None, idle));
            left = self.energy.zip(idle).map(|(energy, idle)| energy - idle);
        }
        let mut unpartitioned = 1.0;
        for (part, active) in parts.iter().zip(actives) {
            unpartitioned -= part.fraction;
            let done = active.map(|active| active * part.fraction * TICK_SECONDS);
            let weight = if told { active.unwrap() * part.fraction / work.max(1e-300) } else { part.fraction };
            let energy = left.map(|left| left * weight);
            let holders = self.holders.iter().filter(|(key, _)| key.mig.as_ref() == Some(&part.mig));
            let sum: f64 = holders.clone().map(|(_, holding)| holding.weight).sum();
            for (key, holding) in holders.clone() {
                let share = holding.weight / sum;
                shares.push((Ok(key), done.map(|done| done * share), energy.map(|energy| energy * share)));
            }
            if holders.count() == 0 {
                let idle = if active.is_some() { 0.0 } else { idle * part.fraction };
                let idle = energy.map(|energy| idle.min(energy));
                shares.push((Err(UnattributedReason::Idle), None, idle));
                let rest = energy.zip(idle).map(|(energy, idle)| energy - idle);
                shares.push((Err(UnattributedReason::Unknown), done, rest));
            }
        }
        if !told && unpartitioned > 1e-12 {
            let energy = left.map(|left| left * unpartitioned);
            let idle = energy.map(|energy| energy.min(idle * unpartitioned));
            shares.push((Err(UnattributedReason::Idle), None, idle));
            shares.push((Err(UnattributedReason::Unknown), None, energy.zip(idle).map(|(energy, idle)| energy - idle)));
        }
        shares
    }
}
