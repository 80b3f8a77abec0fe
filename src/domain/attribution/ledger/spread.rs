//! When in an interval a device was used. The interval has the amount; its stretches differ in their holders.
//!
//! A stretch without a holder counts as idle where possible: holders do the work. Where SM time
//! by process is known, a stretch did as much work as its holders.

use super::division::{Part, is_nothing};

/// What rounding leaves over.
const ROUNDING: f64 = 1e-12;

/// Divides `amount` by weight, up to the limit of each. What exceeds the limits of those with a weight goes to
/// the others, by limit.
pub fn pour(amount: f64, rooms: &[f64], weights: &[f64]) -> Vec<f64> {
    let mut filled = vec![0.0; rooms.len()];
    let mut left = amount;
    let mut open: Vec<usize> = (0..rooms.len()).filter(|place| weights[*place] > 0.0).collect();
    while !open.is_empty() {
        let sum: f64 = open.iter().map(|place| weights[*place]).sum();
        let part = |place: usize| left * weights[place] / sum;
        let (full, others): (Vec<usize>, Vec<usize>) = open.iter().partition(|place| part(**place) > rooms[**place]);
        if full.is_empty() {
            open.iter().for_each(|place| filled[*place] = part(*place));
            return filled;
        }
        for place in full {
            filled[place] = rooms[place];
            left -= rooms[place];
        }
        open = others;
    }
    if left > amount * ROUNDING {
        let is_light = |place: &usize| weights[*place] <= 0.0;
        let mut rest: Vec<usize> = (0..rooms.len()).filter(is_light).collect();
        if rest.is_empty() {
            rest = (0..rooms.len()).collect();
        }
        let sum: f64 = rest.iter().map(|place| rooms[*place]).sum();
        rest.into_iter().for_each(|place| filled[place] += left * rooms[place] / sum);
    }
    filled
}

/// Joules by stretch: idle power all the time, and the rest as the work was. Without either, by time.
pub fn energy(joules: f64, idle_watts: Option<f64>, lengths: &[f64], work: Option<&[f64]>) -> Vec<f64> {
    let length: f64 = lengths.iter().sum();
    let done: f64 = work.map_or(0.0, |work| work.iter().sum());
    let (Some(watts), Some(work), false) = (idle_watts, work, is_nothing(done)) else {
        return lengths.iter().map(|seconds| joules * seconds / length).collect();
    };
    let idle = (watts * length).min(joules);
    let of = |(seconds, work): (&f64, &f64)| idle * seconds / length + (joules - idle) * work / done;
    lengths.iter().zip(work).map(of).collect()
}

/// The parts of a partitioned device, stretch by stretch. `is_held(stretch, part)`.
pub fn parts(parts: &[Part], lengths: &[f64], is_held: impl Fn(usize, usize) -> bool) -> Vec<Vec<Part>> {
    let length: f64 = lengths.iter().sum();
    let mut by_stretch = vec![parts.to_vec(); lengths.len()];
    for (place, part) in parts.iter().enumerate() {
        let Some(active) = part.active else { continue };
        let weight = |(stretch, seconds): (usize, &f64)| if is_held(stretch, place) { *seconds } else { 0.0 };
        let weights: Vec<f64> = lengths.iter().enumerate().map(weight).collect();
        let poured = pour(active * length, lengths, &weights);
        for ((stretch, seconds), lengths) in by_stretch.iter_mut().zip(poured).zip(lengths) {
            stretch[place].active = Some(seconds / lengths);
        }
    }
    by_stretch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gets_its_weight_up_to_its_limit() {
        assert_eq!(pour(0.5, &[1.0, 1.0], &[1.0, 3.0]), [0.125, 0.375]);
        assert_eq!(pour(1.5, &[1.0, 1.0], &[1.0, 3.0]), [0.5, 1.0]);
        assert_eq!(pour(0.75, &[0.5, 1.0], &[0.5, 0.0]), [0.5, 0.25], "the unheld time did the rest");
        assert_eq!(pour(0.25, &[0.5, 1.0], &[0.0, 0.0]).iter().sum::<f64>(), 0.25);
        assert_eq!(pour(0.0, &[0.5], &[0.0]), [0.0]);
    }

    #[test]
    fn joules_follow_the_work_above_idle_power() {
        assert_eq!(energy(500.0, Some(100.0), &[1.0, 1.0], Some(&[0.75, 0.25])), [325.0, 175.0]);
        assert_eq!(energy(500.0, None, &[1.0, 1.0], Some(&[0.75, 0.25])), [250.0, 250.0]);
        assert_eq!(energy(100.0, Some(100.0), &[1.0, 1.0], Some(&[1.0, 0.0])), [50.0, 50.0]);
    }

    #[test]
    fn a_part_was_active_while_it_was_held() {
        let part =
            Part { fraction: 0.5, active: Some(0.25), unheld: crate::domain::model::UnattributedReason::Unknown };
        let by_stretch = parts(&[part], &[1.0, 1.0], |stretch, _| stretch == 1);
        let active: Vec<Option<f64>> = by_stretch.iter().map(|parts| parts[0].active).collect();
        assert_eq!(active, [Some(0.0), Some(0.5)]);
    }
}
