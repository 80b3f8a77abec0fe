//! Sets of up to sixteen GPUs as bit masks: bit i is the i-th of the request's GPUs by index.

/// Above this many GPUs the tables below and the walk over all sets would cost too much.
pub(super) const MOST: usize = 16;

/// The score of every set: the sum over its pairs.
pub(super) struct Scores(Vec<u32>);

impl Scores {
    /// `pairs` is square, symmetric, of at most `MOST` rows.
    pub(super) fn new(pairs: &[Vec<u32>]) -> Self {
        let mut scores = vec![0; 1 << pairs.len()];
        for set in 1_usize..scores.len() {
            let (first, last) = (set.trailing_zeros() as usize, set.ilog2() as usize);
            if first != last {
                // What the set without one end and without the other have in common is counted twice.
                let (left, right) = (set & !(1 << last), set & !(1 << first));
                scores[set] = scores[left] + scores[right] - scores[left & right] + pairs[first][last];
            }
        }
        Self(scores)
    }

    pub(super) fn score(&self, set: u32) -> u32 {
        self.0[set as usize]
    }
}

/// All subsets of a set that have a given size, each once.
pub(super) struct Subsets {
    set: u32,
    /// The n lowest members, for n from 0 to `size`.
    lowest: [u32; MOST + 1],
    next: Option<u32>,
}

impl Subsets {
    /// `set` has members among the lowest `MOST` bits only.
    pub(super) fn new(set: u32, size: usize) -> Self {
        let mut lowest = [0; MOST + 1];
        if size > set.count_ones() as usize {
            return Self { set, lowest, next: None };
        }
        let mut rest = set;
        for number in 0..size {
            lowest[number + 1] = lowest[number] | (rest & rest.wrapping_neg());
            rest &= rest.wrapping_sub(1);
        }
        Self { set, lowest, next: Some(lowest[size]) }
    }
}

impl Iterator for Subsets {
    type Item = u32;

    /// Gosper's hack in the places of `set` alone: the other bits are raised, so that a carry runs through them. In the set
    /// 0b11011, the carry of 0b00011 is 0b01000 (`raised`) and frees two members; all but one become the lowest: 0b01001.
    #[inline]
    fn next(&mut self) -> Option<u32> {
        let now = self.next?;
        let raised = (now | !self.set).wrapping_add(now & now.wrapping_neg()) & self.set;
        self.next = (now != 0 && raised != 0).then(|| {
            let freed = (now & !raised).count_ones() as usize;
            raised | self.lowest[freed - 1]
        });
        Some(now)
    }
}

/// Whether `left` comes before `right` in index order; both have the same size.
pub(super) fn before(left: u32, right: u32) -> bool {
    let differ = left ^ right;
    left & differ & differ.wrapping_neg() != 0
}

pub(super) fn members(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let position = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(position)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn subsets_are_all_there_once() {
        for of in [0_u32, 1, 0b1011, 0b1000_0000_0000_0001, 0b1101_0110_1001, 0xffff, 0xff00] {
            for size in 0..=17 {
                let found: Vec<u32> = Subsets::new(of, size).collect();
                let distinct: BTreeSet<u32> = found.iter().copied().collect();
                let expected: BTreeSet<u32> =
                    (0..=0xffff).filter(|set| set & !of == 0 && set.count_ones() as usize == size).collect();
                assert_eq!(distinct, expected, "{size} of {of:b}");
                assert_eq!(found.len(), expected.len());
            }
        }
    }

    #[test]
    fn a_set_scores_the_sum_of_its_pairs() {
        let pairs: Vec<Vec<u32>> =
            (0..7_u32).map(|i| (0..7_u32).map(|j| if i == j { 0 } else { (i + j) * 7 + i * j }).collect()).collect();
        let scores = Scores::new(&pairs);
        for set in 0..1 << 7 {
            let sum: u32 = members(set)
                .flat_map(|i| members(set).filter(move |j| *j > i).map(move |j| (i, j)))
                .map(|(i, j)| pairs[i][j])
                .sum();
            assert_eq!(scores.score(set), sum);
        }
    }
}
