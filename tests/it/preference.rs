//! The choice of whole GPUs, compared with every set, and with the sets that NVIDIA's allocator
//! is known to choose.

#![allow(clippy::type_complexity, reason = "tables of cases")]

use std::collections::{BTreeMap, BTreeSet};

use crate::support::links::{Draw as _, LinkedNode, dgx1_pascal, dgx1_volta, nvswitch, pcie_tree, rtx8000, seeded};
use podmeter::domain::model::DeviceId;
use podmeter::domain::preference::{FallbackReason, GpuDrawbacks, PreferredDevices, Topology, choose_gpus};
use proptest::prelude::*;

fn choose(node: &LinkedNode, available: u32, required: u32, size: usize) -> u32 {
    let choice = choose_gpus(&node.request(available, required, size), &node.topology, &BTreeMap::new());
    assert_eq!(choice.fallback, None);
    node.set(&choice)
}

fn set(members: &[usize]) -> u32 {
    members.iter().fold(0, |set, member| set | 1 << member)
}

/// The slow and obvious reference: every set.
mod oracle {
    use super::LinkedNode;

    pub fn sets(all: u32, required: u32, size: usize) -> impl Iterator<Item = u32> {
        (0..=all).filter(move |set| set & !all == 0 && required & !set == 0 && set.count_ones() as usize == size)
    }

    pub fn best_score(node: &LinkedNode, all: u32, required: u32, size: usize) -> u32 {
        sets(all, required, size).map(|set| node.score(set)).max().unwrap()
    }
}

#[test]
fn the_sets_observed_on_eight_gpus_behind_four_switches() {
    let cases: [(u32, &[usize], usize, &[usize]); 6] = [
        (0xff, &[], 2, &[0, 1]),
        (0xff, &[], 4, &[0, 1, 2, 3]),
        (0xfe, &[], 2, &[2, 3]),
        (0xfe, &[], 4, &[4, 5, 6, 7]),
        (0xff, &[7], 2, &[6, 7]),
        (0xff, &[7], 4, &[4, 5, 6, 7]),
    ];
    for same_cpu in [20, 30] {
        let node = pcie_tree(8, same_cpu);
        for (available, required, size, expected) in cases {
            assert_eq!(
                choose(&node, available, set(required), size),
                set(expected),
                "{available:b} {required:?} {size}"
            );
        }
    }
}

#[test]
fn nodes_fill_with_pods_as_well_linked_as_nvidias_allocator_fills_them() {
    let cases: [(&str, LinkedNode, usize, &[&[usize]]); 5] = [
        ("rtx 8000", rtx8000(), 2, &[&[0, 3], &[1, 2]]),
        ("pascal", dgx1_pascal(), 2, &[&[0, 2], &[1, 3], &[4, 6], &[5, 7]]),
        ("pascal", dgx1_pascal(), 4, &[&[0, 1, 2, 3], &[4, 5, 6, 7]]),
        ("volta", dgx1_volta(), 2, &[&[0, 3], &[1, 2], &[4, 7], &[5, 6]]),
        ("volta", dgx1_volta(), 4, &[&[0, 1, 2, 3], &[4, 5, 6, 7]]),
    ];
    for (name, node, size, nvidias) in cases {
        let (mut free, mut sum) = ((1_u32 << node.gpus.len()) - 1, 0);
        for _ in nvidias {
            let chosen = choose(&node, free, 0, size);
            sum += node.score(chosen);
            free &= !chosen;
        }
        assert_eq!(sum, nvidias.iter().map(|members| node.score(set(members))).sum::<u32>(), "{name}, {size}");
    }
}

#[test]
fn all_gpus_behind_nvswitches_are_alike_until_something_is_known() {
    for count in [8, 16] {
        let node = nvswitch(count);
        let all = (1 << count) - 1;
        for size in 1..=count {
            assert_eq!(choose(&node, all, 0, size), (1 << size) - 1);
        }
        assert_eq!(choose(&node, all, set(&[5]), 3), set(&[0, 1, 5]));
        let load = |ratio| GpuDrawbacks { load: Some(ratio), ..GpuDrawbacks::default() };
        let mut drawbacks: BTreeMap<_, _> = node.gpus.iter().map(|gpu| (gpu.clone(), load(0.5))).collect();
        drawbacks.insert(node.gpus[6].clone(), load(0.1));
        drawbacks.insert(node.gpus[0].clone(), load(f64::NAN));
        drawbacks.insert(node.gpus[1].clone(), GpuDrawbacks { row_remap_pending: true, ..load(0.0) });
        drawbacks.remove(&node.gpus[2]);
        let chosen =
            |size, required| node.set(&choose_gpus(&node.request(all, required, size), &node.topology, &drawbacks));
        assert_eq!(chosen(1, 0), set(&[6]));
        assert_eq!(chosen(2, 0), set(&[3, 6]));
        assert_eq!(chosen(2, set(&[1])), set(&[1, 6]), "what must be in is in");
        assert_eq!(chosen(count - 1, 0), all & !set(&[1]), "unknown use is full use, still better than trouble");
        assert_eq!(chosen(count, 0), all);
    }
}

#[test]
fn gpus_to_avoid_are_taken_only_when_the_others_are_not_enough() {
    let node = pcie_tree(8, 20);
    let troubles = [
        GpuDrawbacks { row_remap_pending: true, ..GpuDrawbacks::default() },
        GpuDrawbacks { throttled: true, ..GpuDrawbacks::default() },
        GpuDrawbacks { use_without_allocation: true, ..GpuDrawbacks::default() },
    ];
    for trouble in troubles {
        let drawbacks = [0, 4, 5].map(|gpu: usize| (node.gpus[gpu].clone(), trouble)).into();
        let chosen =
            |available, size| node.set(&choose_gpus(&node.request(available, 0, size), &node.topology, &drawbacks));
        assert_eq!(chosen(0xff, 2), set(&[6, 7]), "1, 2 and 3 stay together");
        assert_eq!(chosen(0xff, 4), set(&[2, 3, 6, 7]), "two whole pairs");
        assert_eq!(chosen(0b0011_0011, 2), set(&[0, 1]));
        assert_eq!(chosen(0xff, 6), set(&[0, 1, 2, 3, 6, 7]));
    }
}

#[test]
fn links_that_are_unknown_or_disagree_leave_numa_nodes_and_then_the_index() {
    let node = pcie_tree(8, 20);
    let gpus = &node.gpus;
    let locations =
        gpus.iter().map(|gpu| (gpu.clone(), node.topology.location(gpu).unwrap())).collect::<BTreeMap<_, _>>();
    let mut asymmetric = node.topology.clone();
    asymmetric.link_as_reported(&gpus[2], &gpus[6], 110);
    let mut one_sided = Topology::new(locations.clone());
    one_sided.link_as_reported(&gpus[0], &gpus[1], 50);
    let nowhere: BTreeMap<_, _> = locations
        .iter()
        .map(|(gpu, location)| {
            (gpu.clone(), podmeter::domain::preference::GpuLocation { numa_node: None, ..*location })
        })
        .collect();
    let cases = [
        (asymmetric, FallbackReason::LinksAsymmetric, set(&[4, 5])),
        (one_sided, FallbackReason::LinksAsymmetric, set(&[4, 5])),
        (Topology::new(locations), FallbackReason::LinksUnknown, set(&[4, 5])),
        (Topology::new(nowhere), FallbackReason::LinksUnknown, set(&[0, 4])),
    ];
    for (topology, reason, expected) in cases {
        let request =
            node.request(if reason == FallbackReason::LinksUnknown { 0b0111_0001 } else { 0b0111_0111 }, 1 << 4, 2);
        let choice = choose_gpus(&request, &topology, &BTreeMap::new());
        assert_eq!((choice.fallback, node.set(&choice)), (Some(reason), expected));
    }
    let choice = choose_gpus(&node.request(0b0011, 0, 1), &node.topology, &BTreeMap::new());
    assert_eq!(choice.fallback, None, "links outside the request do not matter");
}

#[test]
fn an_invalid_request_gets_an_empty_answer_and_the_reason() {
    let node = pcie_tree(8, 20);
    let usual = node.request(0xff, 1, 2);
    let with = |change: &dyn Fn(&mut podmeter::domain::preference::PreferenceRequest)| {
        let mut request = usual.clone();
        change(&mut request);
        request
    };
    let cases = [
        (with(&|request| request.size = 9), FallbackReason::TooFewAvailable),
        (with(&|request| request.size = usize::MAX), FallbackReason::TooFewAvailable),
        (with(&|request| request.size = 0), FallbackReason::TooManyRequired),
        (with(&|request| request.must_include = vec!["GPU-other".into()]), FallbackReason::RequiredNotAvailable),
        (with(&|request| request.available[3].gpu = "GPU-other".into()), FallbackReason::UnknownGpu),
        (with(&|request| request.available[3].gpu = request.available[2].gpu.clone()), FallbackReason::Ambiguous),
        (with(&|request| request.available[3].id = request.available[2].id.clone()), FallbackReason::Ambiguous),
    ];
    for (request, reason) in cases {
        let expected = PreferredDevices { ids: vec![], fallback: Some(reason) };
        assert_eq!(choose_gpus(&request, &node.topology, &BTreeMap::new()), expected);
    }
    let nothing = choose_gpus(&node.request(0xff, 0, 0), &node.topology, &BTreeMap::new());
    assert_eq!(nothing, PreferredDevices::default());
}

#[test]
fn with_more_than_sixteen_free_gpus_the_kubelet_chooses() {
    let node = pcie_tree(24, 20);
    let choice = choose_gpus(&node.request(0xff_fffe, 0, 2), &node.topology, &BTreeMap::new());
    assert_eq!(choice, PreferredDevices { ids: vec![], fallback: Some(FallbackReason::ManyGpus) });
}

/// Scores between `count` GPUs: a tree of random depth, or anything at all.
fn any_node(most: usize) -> impl Strategy<Value = LinkedNode> {
    (1..=most, any::<u64>(), any::<bool>())
        .prop_map(|(count, seed, tree)| if tree { seeded(seed).tree(count) } else { seeded(seed).mesh(count) })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_set_is_better(node in any_node(8), seed: u64) {
        let (available, required, size) = seeded(seed).request(node.gpus.len());
        let chosen = choose(&node, available, required, size);
        prop_assert!(oracle::sets(available, required, size).any(|set| set == chosen));
        let rank = |set: u32| (node.score(set), node.score(available & !set));
        let best = oracle::sets(available, required, size).map(rank).max().unwrap();
        let equal = oracle::sets(available, required, size).filter(|set| rank(*set) == best);
        prop_assert_eq!(equal.max_by_key(|set| set.reverse_bits()), Some(chosen), "the first by index");
    }

    #[test]
    fn sixteen_gpus_in_a_tree_get_the_best_score_there_is(seed: u64) {
        let mut random = seeded(seed);
        let node = random.tree(16);
        let (available, required, size) = random.request(16);
        let chosen = choose(&node, available, required, size);
        prop_assert_eq!(node.score(chosen), oracle::best_score(&node, available, required, size));
    }

    #[test]
    fn the_order_of_inputs_does_not_matter(node in any_node(16), seed: u64) {
        let mut random = seeded(seed);
        let (available, required, size) = random.request(node.gpus.len());
        let drawbacks = node.gpus.iter().map(|gpu| (gpu.clone(), random.drawbacks())).collect();
        let request = node.request(available, required, size);
        let chosen = choose_gpus(&request, &node.topology, &drawbacks);
        let mut other = request;
        random.shuffle(&mut other.available);
        random.shuffle(&mut other.must_include);
        other.available.extend_from_within(..1);
        other.must_include.extend_from_within(..usize::from(required != 0));
        prop_assert_eq!(&choose_gpus(&other, &node.topology, &drawbacks), &chosen);
        let distinct: BTreeSet<&DeviceId> = chosen.ids.iter().collect();
        prop_assert_eq!(distinct.len(), size);
        prop_assert!(other.must_include.iter().all(|id| distinct.contains(id)));
    }
}
