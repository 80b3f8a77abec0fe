//! Nodes with links between their GPUs, and seeded requests.

use std::collections::BTreeMap;

use podmeter::domain::model::GpuUuid;
use podmeter::domain::preference::{
    FreeDevice, GpuDrawbacks, GpuLocation, PreferenceRequest, PreferredDevices, Topology,
};
pub use podmeter::simulation::Random;

#[derive(Debug)]
pub struct LinkedNode {
    pub gpus: Vec<GpuUuid>,
    pub topology: Topology,
    pairs: Vec<Vec<u32>>,
}

impl LinkedNode {
    /// UUIDs are in the opposite order of the indexes, so that the two cannot be confused.
    pub fn new(count: usize, numa_node: impl Fn(usize) -> i64, score: impl Fn(usize, usize) -> u32) -> Self {
        let gpus: Vec<GpuUuid> = (0..count).map(|gpu| GpuUuid::new(format!("GPU-{:02}", 99 - gpu))).collect();
        let location = |gpu: usize| GpuLocation { index: u32::try_from(gpu).unwrap(), numa_node: Some(numa_node(gpu)) };
        let mut topology = Topology::new((0..count).map(|gpu| (gpus[gpu].clone(), location(gpu))).collect());
        let mut pairs = vec![vec![0; count]; count];
        for i in 0..count {
            for j in i + 1..count {
                pairs[i][j] = score(i, j);
                pairs[j][i] = pairs[i][j];
                topology.link_as_reported(&gpus[i], &gpus[j], pairs[i][j]);
                topology.link_as_reported(&gpus[j], &gpus[i], pairs[i][j]);
            }
        }
        Self { gpus, topology, pairs }
    }

    /// Sets are bit masks by GPU index.
    pub fn request(&self, available: u32, required: u32, size: usize) -> PreferenceRequest {
        let members = |set: u32| (0..self.gpus.len()).filter(move |gpu| set & (1 << gpu) != 0);
        PreferenceRequest {
            available: members(available)
                .map(|gpu| FreeDevice { id: self.gpus[gpu].as_str().into(), gpu: self.gpus[gpu].clone() })
                .collect(),
            must_include: members(required).map(|gpu| self.gpus[gpu].as_str().into()).collect(),
            size,
        }
    }

    pub fn set(&self, choice: &PreferredDevices) -> u32 {
        let position = |id: &str| self.gpus.iter().position(|gpu| gpu.as_str() == id).unwrap();
        choice.ids.iter().fold(0, |set, id| set | 1 << position(id.as_str()))
    }

    pub fn score(&self, set: u32) -> u32 {
        let members: Vec<usize> = (0..self.gpus.len()).filter(|gpu| set & (1 << gpu) != 0).collect();
        members.iter().map(|i| members.iter().filter(|j| *j > i).map(|j| self.pairs[*i][*j]).sum::<u32>()).sum()
    }
}

fn half(count: usize) -> impl Fn(usize) -> i64 {
    move |gpu| i64::from(gpu >= count / 2)
}

/// Pairs behind one switch, four GPUs in each NUMA node.
pub fn pcie_tree(count: usize, same_cpu: u32) -> LinkedNode {
    let node = |gpu: usize| i64::try_from(gpu / 4).unwrap();
    LinkedNode::new(count, node, |i, j| {
        if i / 2 == j / 2 {
            50
        } else if i / 4 == j / 4 {
            same_cpu
        } else {
            10
        }
    })
}

/// Every GPU reaches every other over 18 NVLinks.
pub fn nvswitch(count: usize) -> LinkedNode {
    LinkedNode::new(count, half(count), |_, _| 1810)
}

fn with_nvlinks(count: usize, nvlinks: &[(usize, usize, u32)], pcie: impl Fn(usize, usize) -> u32) -> LinkedNode {
    LinkedNode::new(count, half(count), |i, j| {
        let links: u32 = nvlinks.iter().filter(|link| (link.0, link.1) == (i, j)).map(|link| link.2).sum();
        pcie(i, j) + 100 * links
    })
}

/// Two bridged pairs.
pub fn rtx8000() -> LinkedNode {
    with_nvlinks(4, &[(0, 3, 2), (1, 2, 2)], |i, j| match (i, j) {
        (0, 3) | (1, 2) => 0,
        (0, 1) | (2, 3) => 20,
        _ => 10,
    })
}

/// A hybrid cube mesh of single links.
pub fn dgx1_pascal() -> LinkedNode {
    let quad = [(0, 1, 1), (0, 2, 1), (0, 3, 1), (1, 2, 1), (1, 3, 1), (2, 3, 1)];
    let mut links = quad.to_vec();
    links.extend(quad.map(|(i, j, count)| (i + 4, j + 4, count)));
    links.extend((0..4).map(|gpu| (gpu, gpu + 4, 1)));
    with_nvlinks(8, &links, |i, j| {
        if j == i + 2 && i % 4 < 2 {
            50
        } else if i / 4 == j / 4 {
            30
        } else {
            10
        }
    })
}

/// A hybrid cube mesh of single and double links.
pub fn dgx1_volta() -> LinkedNode {
    let quad = [(0, 1, 1), (0, 2, 1), (0, 3, 2), (1, 2, 2), (1, 3, 1), (2, 3, 2)];
    let mut links = quad.to_vec();
    links.extend([(4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)]);
    links.extend([(0, 4, 2), (1, 5, 2), (2, 6, 1), (3, 7, 1)]);
    with_nvlinks(8, &links, |i, j| {
        if i / 2 == j / 2 {
            50
        } else if i / 4 == j / 4 {
            30
        } else {
            10
        }
    })
}

pub fn seeded(seed: u64) -> Random {
    Random::seeded(seed)
}

/// What is drawn from a generator.
pub trait Draw {
    /// Some of the first `count` GPUs, a size they can meet, and fewer required ones than that, mostly none.
    fn request(&mut self, count: usize) -> (u32, u32, usize);
    /// Branches of random widths under each other; the deeper two GPUs part, the closer they are.
    fn tree(&mut self, count: usize) -> LinkedNode;
    fn mesh(&mut self, count: usize) -> LinkedNode;
    fn drawbacks(&mut self) -> GpuDrawbacks;
}

impl Draw for Random {
    fn request(&mut self, count: usize) -> (u32, u32, usize) {
        let mut gpus: Vec<usize> = (0..count).collect();
        self.shuffle(&mut gpus);
        gpus.truncate(1 + self.below(count));
        let size = 1 + self.below(gpus.len());
        let required = if self.below(2) == 0 { self.below(size) } else { 0 };
        let set = |gpus: &[usize]| gpus.iter().fold(0, |set, gpu| set | 1 << gpu);
        (set(&gpus), set(&gpus[..required]), size)
    }

    fn tree(&mut self, count: usize) -> LinkedNode {
        let mut order: Vec<usize> = (0..count).collect();
        if self.below(2) == 0 {
            self.shuffle(&mut order);
        }
        let widths = [8, 4, 2].map(|width| width + self.below(2));
        LinkedNode::new(count, half(count), |i, j| {
            let (i, j) = (order[i], order[j]);
            let shared = [12, widths[0], widths[1], widths[2]].into_iter().scan(true, |together, width| {
                *together = *together && i / width == j / width;
                Some(u32::from(*together))
            });
            10 + 15 * shared.sum::<u32>()
        })
    }

    fn mesh(&mut self, count: usize) -> LinkedNode {
        let scores: BTreeMap<(usize, usize), u32> = (0..count)
            .flat_map(|i| (i + 1..count).map(move |j| (i, j)))
            .map(|pair| (pair, [0, 10, 20, 50, 110, 210, 1210][self.below(7)]))
            .collect();
        LinkedNode::new(count, half(count), |i, j| scores[&(i, j)])
    }

    fn drawbacks(&mut self) -> GpuDrawbacks {
        let load = [None, Some(0.0), Some(0.5), Some(1.0)][self.below(4)];
        GpuDrawbacks { throttled: self.below(5) == 0, load, ..GpuDrawbacks::default() }
    }
}
