//! The choice among whole GPUs. In: a request. Out: the best-linked set. The number of GPUs bounds the search.

use std::collections::BTreeMap;

use super::drawbacks::{Avoided, GpuDrawbacks, Rank};
use super::links::Links;
use super::request::{CheckedRequest, FallbackReason, PreferenceRequest, PreferredDevices};
use super::sets::{MOST, Scores, Subsets, before, members};
use super::topology::Topology;
use crate::domain::model::{DeviceId, GpuUuid};

/// Whole GPUs. Ones to avoid are chosen only when others are too few. Then the links decide: the set that scores
/// highest, and among such the one that leaves the rest best linked. Among equals the least used, then the first by
/// index.
pub fn choose_gpus(
    request: &PreferenceRequest,
    topology: &Topology,
    drawbacks: &BTreeMap<GpuUuid, GpuDrawbacks>,
) -> PreferredDevices {
    match FreeGpus::new(request, topology, drawbacks) {
        Ok(free_gpus) => free_gpus.choose(topology),
        Err(reason) => PreferredDevices::empty(reason),
    }
}

struct FreeGpu<'a> {
    id: &'a DeviceId,
    gpu: &'a GpuUuid,
    rank: Rank,
    required: bool,
}

/// The GPUs to choose from, by index.
struct FreeGpus<'a> {
    free: Vec<FreeGpu<'a>>,
    size: usize,
}

impl<'a> FreeGpus<'a> {
    fn new(
        request: &'a PreferenceRequest,
        topology: &Topology,
        drawbacks: &BTreeMap<GpuUuid, GpuDrawbacks>,
    ) -> Result<Self, FallbackReason> {
        let CheckedRequest { available, required, size } = CheckedRequest::new(request, topology)?;
        let gpus: BTreeMap<&GpuUuid, &DeviceId> = available.iter().map(|(id, gpu)| (*gpu, *id)).collect();
        if gpus.len() < available.len() {
            return Err(FallbackReason::Ambiguous);
        }
        let free = |(gpu, id): (&'a GpuUuid, &'a DeviceId)| FreeGpu {
            id,
            gpu,
            rank: Rank::new(gpu, drawbacks),
            required: required.contains(id),
        };
        let mut free: Vec<FreeGpu> = gpus.into_iter().map(free).collect();
        free.sort_by_key(|free| (topology.location(free.gpu).map(|location| location.index), free.gpu));
        // If the GPUs with the least drawbacks are too few, all are chosen and the next ones complete the set.
        let usable = |free: &FreeGpu, most: Avoided| free.required || free.rank.avoided <= most;
        let is_enough = |most: &Avoided| free.iter().filter(|free| usable(free, *most)).count() >= size;
        let most = Avoided::ALL.into_iter().find(is_enough).unwrap_or(Avoided::InUse);
        free.retain(|free| usable(free, most));
        for free in &mut free {
            free.required |= free.rank.avoided < most;
        }
        Ok(Self { free, size })
    }

    fn choose(&self, topology: &Topology) -> PreferredDevices {
        if self.size == 0 || self.size == self.free.len() {
            return self.choice(0..self.size, None);
        }
        let gpus: Vec<&GpuUuid> = self.free.iter().map(|free| free.gpu).collect();
        if gpus.len() > MOST {
            return PreferredDevices::empty(FallbackReason::ManyGpus);
        }
        let links = Links::between(&gpus, topology);
        self.choice(members(self.best_set(&links.pairs)), links.fallback)
    }

    fn choice(&self, positions: impl IntoIterator<Item = usize>, fallback: Option<FallbackReason>) -> PreferredDevices {
        PreferredDevices {
            ids: positions.into_iter().map(|position| self.free[position].id.clone()).collect(),
            fallback,
        }
    }

    fn best_set(&self, pairs: &[Vec<u32>]) -> u32 {
        let scores = Scores::new(pairs);
        let all = (1_u32 << self.free.len()) - 1;
        let required = (0..self.free.len()).filter(|i| self.free[*i].required).fold(0, |set, i| set | (1 << i));
        let mut best = BestSet::new(self);
        for others in Subsets::new(all & !required, self.size - required.count_ones() as usize) {
            let set = required | others;
            best.try_set(set, (scores.score(set), scores.score(all & !set)));
        }
        best.set
    }

    fn load(&self, set: u32) -> u32 {
        members(set).map(|i| self.free[i].rank.load).sum()
    }
}

/// The best set so far: by value, then the least used, then the first by index.
struct BestSet<'p, 'a, V> {
    free_gpus: &'p FreeGpus<'a>,
    set: u32,
    value: Option<V>,
    load: u32,
}

impl<'p, 'a, V: Ord> BestSet<'p, 'a, V> {
    const fn new(free_gpus: &'p FreeGpus<'a>) -> Self {
        Self { free_gpus, set: 0, value: None, load: 0 }
    }

    fn try_set(&mut self, set: u32, value: V) {
        let value = Some(value);
        if value < self.value {
            return;
        }
        let load = self.free_gpus.load(set);
        if value > self.value || load < self.load || load == self.load && before(set, self.set) {
            *self = Self { free_gpus: self.free_gpus, set, value, load };
        }
    }
}
