//! The busy time and energy of an interval, tick by tick.

use std::collections::BTreeMap;

use super::random_node::{MigReading, TICK_SECONDS};
use super::reference::UseByReason;
use crate::domain::holders::HoldingKey;
use crate::domain::model::Holding;

type TickHoldings<'a> = &'a BTreeMap<HoldingKey, Holding>;

/// Divides an amount by weight, limited to the length of a tick: the heaviest are full first. The rest goes to those
/// without weight.
fn divide_up_to_limits(amount: f64, weights: &[f64], limit: f64) -> Vec<f64> {
    let mut heaviest = weights.to_vec();
    heaviest.sort_by(|one, other| other.total_cmp(one));
    let rate = |full: usize| {
        let rest: f64 = heaviest[full..].iter().sum();
        (rest > 0.0).then(|| (amount - full as f64 * limit) / rest)
    };
    let fits = |full: &usize| rate(*full).is_none_or(|rate| rate * heaviest[*full] <= limit * (1.0 + 1e-12));
    let full = (0..weights.len()).find(fits).unwrap_or(weights.len());
    let rate = rate(full).filter(|_| full < weights.len());
    let light = weights.iter().filter(|weight| **weight <= 0.0).count() as f64;
    let left = if rate.is_none() { (amount - full as f64 * limit).max(0.0) / light.max(1.0) } else { 0.0 };
    let of = |weight: &f64| match rate {
        _ if *weight <= 0.0 => left,
        Some(rate) => (rate * weight).min(limit),
        None => limit,
    };
    weights.iter().map(of).collect()
}

fn held(holders: &[TickHoldings<'_>], counts: impl Fn(&HoldingKey) -> bool) -> Vec<f64> {
    holders.iter().map(|holders| if holders.keys().any(&counts) { 1.0 } else { 0.0 }).collect()
}

/// The busy seconds of each tick: by SM time where there is any, else ticks with a holder first.
pub fn busy(
    amount: f64,
    weights: Option<&(BTreeMap<HoldingKey, Vec<f64>>, UseByReason)>,
    holders: &[TickHoldings<'_>],
    covered_ratio: f64,
) -> Vec<f64> {
    let limit = TICK_SECONDS * covered_ratio;
    if let Some((own, others)) = weights {
        let others = others.values().sum::<f64>() / holders.len() as f64;
        let of = |tick: usize| own.values().map(|weights| weights[tick]).sum::<f64>() + others;
        let weights: Vec<f64> = (0..holders.len()).map(of).collect();
        if weights.iter().any(|weight| *weight > 0.0) {
            return divide_up_to_limits(amount, &weights, limit);
        }
    }
    divide_up_to_limits(amount, &held(holders, |_| true), limit)
}

/// The activity by tick and part.
pub fn active(parts: &[MigReading], actives: &[Option<f64>], holders: &[TickHoldings<'_>]) -> Vec<Vec<Option<f64>>> {
    let mut ticks = vec![vec![]; holders.len()];
    for (part, active) in parts.iter().zip(actives) {
        let held = held(holders, |key| key.mig.as_ref().is_none_or(|mig| *mig == part.mig));
        let seconds =
            active.map(|active| divide_up_to_limits(active * holders.len() as f64 * TICK_SECONDS, &held, TICK_SECONDS));
        for (number, tick) in ticks.iter_mut().enumerate() {
            tick.push(seconds.as_ref().map(|seconds| seconds[number] / TICK_SECONDS));
        }
    }
    ticks
}

/// The work of each tick, where all parts report.
pub fn work(parts: &[MigReading], actives: &[Vec<Option<f64>>]) -> Option<Vec<f64>> {
    let of = |actives: &Vec<Option<f64>>| {
        parts.iter().zip(actives).map(|(part, active)| Some((*active)? * part.fraction * TICK_SECONDS)).sum()
    };
    actives.iter().map(of).collect()
}

pub fn energy(joules: f64, idle_watts: Option<f64>, work: Option<&[f64]>, ticks: usize) -> Vec<f64> {
    let done: f64 = work.map_or(0.0, |work| work.iter().sum());
    match (idle_watts, work) {
        (Some(watts), Some(work)) if done >= 1e-9 => {
            let idle = joules.min(watts * ticks as f64 * TICK_SECONDS);
            work.iter().map(|work| idle / ticks as f64 + (joules - idle) * work / done).collect()
        }
        _ => vec![joules / ticks as f64; ticks],
    }
}
