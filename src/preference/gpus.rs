use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::condition::{Condition, Rank};
use super::links::Links;
use super::request::{Checked, Choice, FallbackReason, Request};
use super::sets::{MOST, Scores, Subsets, before, members};
use super::topology::Topology;
use crate::model::{DeviceId, GpuUuid};

/// Whole GPUs. Ones to avoid are chosen only when others are too few. Then the links decide: the set that scores highest,
/// and among such the one that leaves the rest best linked. Among equals the least used, then the first by index.
#[must_use]
pub fn choose_gpus(request: &Request, topology: &Topology, conditions: &BTreeMap<GpuUuid, Condition>) -> Choice {
    match Pool::new(request, topology, conditions) {
        Ok(pool) => pool.choose(topology),
        Err(reason) => Choice::empty(reason),
    }
}

struct Free<'a> {
    id: &'a DeviceId,
    gpu: &'a GpuUuid,
    rank: Rank,
    required: bool,
}

/// The GPUs to choose from, by index.
struct Pool<'a> {
    free: Vec<Free<'a>>,
    size: usize,
}

impl<'a> Pool<'a> {
    fn new(
        request: &'a Request,
        topology: &Topology,
        conditions: &BTreeMap<GpuUuid, Condition>,
    ) -> Result<Self, FallbackReason> {
        let Checked { available, required, size } = Checked::new(request, topology)?;
        let gpus: BTreeMap<&GpuUuid, &DeviceId> = available.iter().map(|(id, gpu)| (*gpu, *id)).collect();
        if gpus.len() < available.len() {
            return Err(FallbackReason::Ambiguous);
        }
        let free = |(gpu, id): (&'a GpuUuid, &'a DeviceId)| Free {
            id,
            gpu,
            rank: Rank::of(gpu, conditions),
            required: required.contains(id),
        };
        let mut free: Vec<Free> = gpus.into_iter().map(free).collect();
        free.sort_by_key(|free| (topology.place(free.gpu).map(|place| place.index), free.gpu));
        let good = |free: &Free| free.required || !free.rank.avoided;
        if free.iter().filter(|free| good(free)).count() >= size {
            free.retain(good);
        } else {
            for free in &mut free {
                free.required = good(free);
            }
        }
        Ok(Self { free, size })
    }

    fn choose(&self, topology: &Topology) -> Choice {
        if self.size == 0 || self.size == self.free.len() {
            return self.choice(0..self.size, None);
        }
        let gpus: Vec<&GpuUuid> = self.free.iter().map(|free| free.gpu).collect();
        let links = Links::between(&gpus, topology);
        if gpus.len() > MOST {
            return self.choice(self.grown(&links.pairs), Some(links.fallback.unwrap_or(FallbackReason::ManyGpus)));
        }
        self.choice(members(self.best_set(&links.pairs)), links.fallback)
    }

    fn choice(&self, positions: impl IntoIterator<Item = usize>, fallback: Option<FallbackReason>) -> Choice {
        Choice { ids: positions.into_iter().map(|position| self.free[position].id.clone()).collect(), fallback }
    }

    fn best_set(&self, pairs: &[Vec<u32>]) -> u32 {
        let scores = Scores::of(pairs);
        let all = (1_u32 << self.free.len()) - 1;
        let required = (0..self.free.len()).filter(|i| self.free[*i].required).fold(0, |set, i| set | (1 << i));
        let mut best = Best::new(self);
        for others in Subsets::new(all & !required, self.size - required.count_ones() as usize) {
            let set = required | others;
            best.try_set(set, (scores.score(set), scores.score(all & !set)));
        }
        best.set
    }

    fn load(&self, set: u32) -> u32 {
        members(set).map(|i| self.free[i].rank.load).sum()
    }

    /// From each GPU (or from the required ones), always the GPU with the closest links to those taken; the best of
    /// these sets. Cubic in the number of GPUs.
    fn grown(&self, pairs: &[Vec<u32>]) -> Vec<usize> {
        let count = self.free.len();
        let required: Vec<usize> = (0..count).filter(|i| self.free[*i].required).collect();
        let seeds: Vec<Vec<usize>> =
            if required.is_empty() { (0..count).map(|i| vec![i]).collect() } else { vec![required] };
        let grow = |mut set: Vec<usize>| {
            let mut near: Vec<u64> = (0..count).map(|i| set.iter().map(|j| u64::from(pairs[i][*j])).sum()).collect();
            let mut taken = vec![false; count];
            set.iter().for_each(|i| taken[*i] = true);
            let mut score: u64 = set.iter().map(|i| near[*i]).sum::<u64>() / 2;
            while set.len() < self.size {
                let next =
                    (0..count).filter(|i| !taken[*i]).min_by_key(|i| (Reverse(near[*i]), self.free[*i].rank.load));
                let next = next.expect("more GPUs are free than wanted");
                score += near[next];
                taken[next] = true;
                set.push(next);
                (0..count).for_each(|i| near[i] += u64::from(pairs[i][next]));
            }
            set.sort_unstable();
            let load: u32 = set.iter().map(|i| self.free[*i].rank.load).sum();
            (Reverse(score), load, set)
        };
        seeds.into_iter().map(grow).min().map(|(_, _, set)| set).expect("more GPUs are free than wanted")
    }
}

/// The best set so far: by value, then the least used, then the first by index.
struct Best<'p, 'a, V> {
    pool: &'p Pool<'a>,
    set: u32,
    value: Option<V>,
    load: u32,
}

impl<'p, 'a, V: Ord> Best<'p, 'a, V> {
    const fn new(pool: &'p Pool<'a>) -> Self {
        Self { pool, set: 0, value: None, load: 0 }
    }

    fn try_set(&mut self, set: u32, value: V) {
        let value = Some(value);
        if value < self.value {
            return;
        }
        let load = self.pool.load(set);
        if value > self.value || load < self.load || load == self.load && before(set, self.set) {
            *self = Self { pool: self.pool, set, value, load };
        }
    }
}
