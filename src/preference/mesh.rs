//! Links that are no tree (NVLink meshes): the best division of all GPUs into sets of the requested size.

use std::cmp::Reverse;

use super::sets::{MOST, Scores, Subsets, before};

/// Steps of some nanoseconds each: a quarter of a millisecond or two. Twelve GPUs need at most nine thousand for any
/// size, sixteen in pairs ten thousand, but in fours 181 thousand, and listing the sets takes up to as many again.
const BUDGET: u32 = 40_000;
const UNKNOWN: u32 = u32::MAX;

/// The work would pass the budget.
#[derive(Debug)]
pub(super) struct TooMuch;

/// Of all divisions of `all` into sets of `size` (and one smaller set, when it does not divide evenly) that keep
/// `required` together, those with the highest sum of scores count. The first of them by index is NVIDIA's, and its
/// highest-scoring set the answer, unless an equal set of another such division is less used.
pub(super) fn choose(
    scores: &Scores,
    all: u32,
    required: u32,
    size: usize,
    load: impl Fn(u32) -> u32,
) -> Result<u32, TooMuch> {
    let mut division =
        Division { scores, size, best: vec![UNKNOWN; 1 << MOST.min(all.ilog2() as usize + 1)], steps: 0 };
    let mut equal = vec![];
    let usual = if required == 0 {
        let usual = division.first(all)?.into_iter().filter(|part| part.count_ones() as usize == size);
        let usual = usual.rev().max_by_key(|set| scores.score(*set)).expect("all has at least one set");
        division.list(all, &mut vec![false; division.best.len()], &mut |set| equal.push(set))?;
        usual
    } else {
        equal = division.sets_with(all, required)?;
        let mut first: Option<(u32, Vec<u32>)> = None;
        for set in &equal {
            let mut parts = division.first(all & !set)?;
            parts.push(*set);
            parts.sort_unstable_by_key(|part| part.trailing_zeros());
            if first.as_ref().is_none_or(|(_, other)| earlier(&parts, other)) {
                first = Some((*set, parts));
            }
        }
        first.map(|(set, _)| set).expect("some set has the required ones")
    };
    equal.retain(|set| scores.score(*set) == scores.score(usual));
    let rank = |set: &u32| (load(*set), *set != usual, Reverse(set.reverse_bits()));
    Ok(equal.into_iter().min_by_key(rank).unwrap_or(usual))
}

/// Whether one division comes before another by index.
fn earlier(parts: &[u32], other: &[u32]) -> bool {
    let differ = parts.iter().zip(other).find(|(one, other)| one != other);
    differ.is_some_and(|(one, other)| before(*one, *other))
}

struct Division<'a> {
    scores: &'a Scores,
    size: usize,
    /// For each set of GPUs the highest sum over its divisions.
    best: Vec<u32>,
    steps: u32,
}

impl Division<'_> {
    /// The sizes that the part with the lowest GPU can have.
    fn parts(&self, set: u32) -> impl Iterator<Item = usize> + use<> {
        let smaller = set.count_ones() as usize % self.size;
        [self.size, smaller].into_iter().filter(|part| *part > 0)
    }

    fn step(&mut self) -> Result<(), TooMuch> {
        self.steps += 1;
        if self.steps > BUDGET { Err(TooMuch) } else { Ok(()) }
    }

    fn best(&mut self, set: u32) -> Result<u32, TooMuch> {
        if set.count_ones() as usize <= self.size {
            return Ok(self.scores.score(set));
        }
        if self.best[set as usize] != UNKNOWN {
            return Ok(self.best[set as usize]);
        }
        // Some part has the lowest GPU, so it is enough to try its parts first.
        let lowest = set & set.wrapping_neg();
        let mut best = 0;
        for size in self.parts(set) {
            for others in Subsets::new(set & !lowest, size - 1) {
                self.step()?;
                let part = lowest | others;
                best = best.max(self.scores.score(part) + self.best(set & !part)?);
            }
        }
        self.best[set as usize] = best;
        Ok(best)
    }

    /// The sets with all of `required` that a best division has.
    fn sets_with(&mut self, all: u32, required: u32) -> Result<Vec<u32>, TooMuch> {
        let mut best = (0, vec![]);
        for others in Subsets::new(all & !required, self.size - required.count_ones() as usize) {
            let set = required | others;
            let sum = self.scores.score(set) + self.best(all & !set)?;
            if sum > best.0 || best.1.is_empty() {
                best = (sum, vec![set]);
            } else if sum == best.0 {
                best.1.push(set);
            }
        }
        Ok(best.1)
    }

    /// The first best division by index, in order of the lowest members.
    fn first(&mut self, mut set: u32) -> Result<Vec<u32>, TooMuch> {
        let mut parts = vec![];
        while set.count_ones() as usize > self.size {
            let best = self.best(set)?;
            let lowest = set & set.wrapping_neg();
            let mut first = None;
            for size in self.parts(set) {
                for others in Subsets::new(set & !lowest, size - 1) {
                    self.step()?;
                    let part = lowest | others;
                    if self.scores.score(part) + self.best(set & !part)? == best
                        && first.is_none_or(|first| before(part, first))
                    {
                        first = Some(part);
                    }
                }
            }
            let part = first.expect("the best sum is some part's");
            parts.push(part);
            set &= !part;
        }
        parts.push(set);
        Ok(parts)
    }

    /// Calls `found` with each set of the full size that a best division has; with some more than once.
    fn list(&mut self, set: u32, seen: &mut [bool], found: &mut impl FnMut(u32)) -> Result<(), TooMuch> {
        let count = set.count_ones() as usize;
        if count == self.size {
            found(set);
        }
        if count <= self.size || std::mem::replace(&mut seen[set as usize], true) {
            return Ok(());
        }
        let best = self.best(set)?;
        let lowest = set & set.wrapping_neg();
        for size in self.parts(set) {
            for others in Subsets::new(set & !lowest, size - 1) {
                self.step()?;
                let part = lowest | others;
                if self.scores.score(part) + self.best(set & !part)? == best {
                    if size == self.size {
                        found(part);
                    }
                    self.list(set & !part, seen, found)?;
                }
            }
        }
        Ok(())
    }
}
