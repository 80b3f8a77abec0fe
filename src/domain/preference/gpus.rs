//! The choice among whole GPUs. In: a request. Out: the best-linked set. The number of GPUs bounds the search.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::convert::Infallible;

use itertools::Itertools;

use super::drawbacks::{Avoided, GpuDrawbacks, Rank};
use super::request::{CheckedRequest, FallbackReason, PreferenceRequest, PreferredDevices};
use super::topology::{PciRelation, Topology};
use crate::domain::model::{DeviceId, GpuUuid};

/// The most GPUs: with more there are too many sets to compare.
const MOST: usize = 16;

/// Chooses whole GPUs. Ones to avoid are chosen only when others are too few. Then the links decide: the set that
/// scores highest, and among such the one that leaves the rest best linked. Among equals the least used, then the first
/// by index.
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
        match pairs(&gpus, |left, right| reported_score(topology, left, right)) {
            Ok(pairs) => self.choice(self.best_set(&pairs), None),
            Err(reason) => {
                let Ok(pairs) = pairs(&gpus, |left, right| Ok::<_, Infallible>(numa_score(topology, left, right)));
                self.choice(self.best_set(&pairs), Some(reason))
            }
        }
    }

    fn choice(&self, positions: impl IntoIterator<Item = usize>, fallback: Option<FallbackReason>) -> PreferredDevices {
        PreferredDevices {
            ids: positions.into_iter().map(|position| self.free[position].id.clone()).collect(),
            fallback,
        }
    }

    /// The positions of the best set, ascending.
    fn best_set(&self, pairs: &[Vec<u32>]) -> Vec<usize> {
        let (required, others): (Vec<usize>, Vec<usize>) =
            (0..self.free.len()).partition(|position| self.free[*position].required);
        let scores = scores(pairs);
        let mask = |set: &[usize]| set.iter().fold(0, |mask, position| mask | (1 << position));
        let load = |set: &[usize]| set.iter().map(|position| self.free[*position].rank.load).sum::<u32>();
        let required_mask = mask(&required);
        // The lowest key is the best; among equals `combinations` has the first by index first.
        let key = |others: &Vec<usize>| {
            let set = required_mask | mask(others);
            (Reverse((scores[set], scores[scores.len() - 1 - set])), load(others))
        };
        let best = others.into_iter().combinations(self.size - required.len()).min_by_key(key).unwrap_or_default();
        required.into_iter().merge(best).collect()
    }
}

/// The score of each two of the GPUs: square, zero on the diagonal.
fn pairs<E>(gpus: &[&GpuUuid], score: impl Fn(&GpuUuid, &GpuUuid) -> Result<u32, E>) -> Result<Vec<Vec<u32>>, E> {
    let score = |left: &GpuUuid, right: &GpuUuid| if left == right { Ok(0) } else { score(left, right) };
    gpus.iter().map(|left| gpus.iter().map(|right| score(left, right)).collect()).collect()
}

/// The score of a link that is known, and about which both ends agree.
fn reported_score(topology: &Topology, left: &GpuUuid, right: &GpuUuid) -> Result<u32, FallbackReason> {
    match (topology.reported(left, right), topology.reported(right, left)) {
        (Some(one), Some(other)) if one == other => Ok(one),
        (None, None) => Err(FallbackReason::LinksUnknown),
        _ => Err(FallbackReason::LinksAsymmetric),
    }
}

/// The score where links are unknown.
fn numa_score(topology: &Topology, left: &GpuUuid, right: &GpuUuid) -> u32 {
    let node = |gpu| topology.location(gpu).and_then(|location| location.numa_node);
    match (node(left), node(right)) {
        (Some(left), Some(right)) if left == right => PciRelation::SameCpu.score(),
        (Some(_), Some(_)) => PciRelation::CrossCpu.score(),
        _ => 0,
    }
}

/// The score of each set of GPUs, the sum over its pairs, by its bit mask. `pairs` has at most `MOST` rows.
fn scores(pairs: &[Vec<u32>]) -> Vec<u32> {
    let mut scores = vec![0; 1 << pairs.len()];
    for set in 1_usize..scores.len() {
        let (first, last) = (set.trailing_zeros() as usize, set.ilog2() as usize);
        if first != last {
            // The pairs that are in both sets are counted twice.
            let (left, right) = (set & !(1 << last), set & !(1 << first));
            scores[set] = scores[left] + scores[right] - scores[left & right] + pairs[first][last];
        }
    }
    scores
}
