//! The scores between one request's GPUs: from the topology, or from NUMA nodes where links are unknown.

use super::request::FallbackReason;
use super::topology::{PciRelation, Topology};
use crate::domain::model::GpuUuid;

/// The scores between the GPUs of one request: square, symmetric, zero on the diagonal.
pub(super) struct Links {
    pub pairs: Vec<Vec<u32>>,
    pub fallback: Option<FallbackReason>,
}

impl Links {
    /// The scores from the topology's links when all are known and agree, otherwise from the NUMA nodes.
    pub(super) fn between(gpus: &[&GpuUuid], topology: &Topology) -> Self {
        match reported_scores(gpus, topology) {
            Ok(pairs) => Self { pairs, fallback: None },
            Err(reason) => Self { pairs: by_numa_node(gpus, topology), fallback: Some(reason) },
        }
    }
}

fn reported_scores(gpus: &[&GpuUuid], topology: &Topology) -> Result<Vec<Vec<u32>>, FallbackReason> {
    let mut pairs = vec![vec![0; gpus.len()]; gpus.len()];
    for (i, left) in gpus.iter().enumerate() {
        for (j, right) in gpus.iter().enumerate().skip(i + 1) {
            let score = match (topology.reported(left, right), topology.reported(right, left)) {
                (Some(one), Some(other)) if one == other => one,
                (None, None) => return Err(FallbackReason::LinksUnknown),
                _ => return Err(FallbackReason::LinksAsymmetric),
            };
            pairs[i][j] = score;
            pairs[j][i] = score;
        }
    }
    Ok(pairs)
}

fn by_numa_node(gpus: &[&GpuUuid], topology: &Topology) -> Vec<Vec<u32>> {
    let nodes: Vec<Option<i64>> =
        gpus.iter().map(|gpu| topology.location(gpu).and_then(|location| location.numa_node)).collect();
    let score = |i: usize, j: usize| match (nodes[i], nodes[j]) {
        _ if i == j => 0,
        (Some(left), Some(right)) if left == right => PciRelation::SameCpu.score(),
        (Some(_), Some(_)) => PciRelation::CrossCpu.score(),
        _ => 0,
    };
    (0..gpus.len()).map(|i| (0..gpus.len()).map(|j| score(i, j)).collect()).collect()
}
