//! Which devices a configuration offers of an inventory.

use std::collections::BTreeSet;

use prost::Message as _;

use super::devices::list_bytes;
use super::*;
use crate::domain::holders::HeldHardware;
use crate::domain::model::{Gpu, Inventory, UnhealthyReason};
use crate::plugin::test_data::{
    entry, four_gpus, gpu, inventory, listed, mig_uuid, nvidia, resources, two_with_mig, uuid,
};
use crate::test_data;
use crate::wire::v1beta1::{Device, ListAndWatchResponse, NumaNode, TopologyInfo};

#[test]
fn numa_nodes_come_from_the_inventory_and_are_left_out_when_unknown() {
    let offered = offers(&nvidia(""), &inventory([gpu(3, None), gpu(5, None)]), &[]).offers.remove(0);
    let nodes: Vec<_> = offered.devices.iter().map(|device| device.numa_nodes.clone()).collect();
    assert_eq!(nodes, [BTreeSet::from([1]), BTreeSet::new()]);
}

#[test]
fn mig_devices_are_offered_by_strategy() {
    let migs = |gpu| (0..2).map(move |number| mig_uuid(gpu, number));
    let all: Vec<String> = (0..2).flat_map(migs).collect();
    let whole = vec![uuid(0), uuid(1)];
    assert_eq!(listed(&nvidia("migStrategy: none"), &two_with_mig()), resources([("nvidia.com/gpu", whole)]));
    assert_eq!(listed(&nvidia("migStrategy: single"), &two_with_mig()), resources([("nvidia.com/gpu", all)]));
    let node = inventory([gpu(0, Some(&["1g.10gb", "1g.10gb+me"])), gpu(1, None)]);
    let expected = resources([
        ("nvidia.com/gpu", vec![uuid(1)]),
        ("nvidia.com/mig-1g.10gb", vec![mig_uuid(0, 0)]),
        ("nvidia.com/mig-1g.10gb.me", vec![mig_uuid(0, 1)]),
    ]);
    assert_eq!(listed(&nvidia("migStrategy: mixed"), &node), expected);
}

#[test]
fn single_with_unequal_layouts_offers_the_commonest_and_names_the_rest() {
    let uneven = |gpus: Vec<Gpu>| offers(&nvidia("migStrategy: single"), &inventory(gpus), &[]);
    let ids = |offered: &Offers| -> Vec<String> {
        offered.offers.iter().flat_map(|offer| &offer.devices).map(|device| device.id.to_string()).collect()
    };
    let offered = uneven(vec![gpu(0, None), gpu(1, None), gpu(2, Some(&["1g.10gb", "1g.10gb", "1g.10gb"]))]);
    assert_eq!(ids(&offered), [uuid(0), uuid(1)]);
    assert!(offered.problems[0].contains(&mig_uuid(2, 1)), "{:?}", offered.problems);
    let offered = uneven(vec![gpu(0, Some(&["1g.10gb", "3g.40gb", "1g.10gb"]))]);
    assert_eq!(ids(&offered), [mig_uuid(0, 0), mig_uuid(0, 2)]);
    let offered = uneven(vec![gpu(0, Some(&["2g.20gb"])), gpu(1, Some(&["1g.10gb"]))]);
    assert_eq!(ids(&offered), [mig_uuid(1, 0)], "a tie goes to the first by name");
    let offered = uneven(vec![gpu(0, Some(&["1g.10gb"])), gpu(1, Some(&[]))]);
    assert_eq!((ids(&offered).len(), offered.problems.len()), (1, 1));
}

#[test]
fn the_number_of_slots_is_limited_by_what_the_kubelet_accepts() {
    let merged = |previous: &[Offer], gpus: std::ops::Range<u32>, replicas: u32| {
        let config = nvidia(&format!("sharing: {{timeSlicing: {{replicas: {replicas}}}}}"));
        let inventory = inventory(gpus.map(|index| gpu(index, None)));
        merge(previous, offers(&config, &inventory, &[]), &inventory)
    };
    let offered = |gpus: u32, replicas: u32| merged(&[], 0..gpus, replicas);
    for (gpus, replicas) in [(1, 60_000), (8, 7_000)] {
        let offers = offered(gpus, replicas);
        assert_eq!((offers.offers[0].devices.len(), offers.problems.len()), ((gpus * replicas) as usize, 0));
    }
    let mut offer = offered(2, 1_000).offers.remove(0);
    let lost = PluginUnhealthy::device(UnhealthyReason::Lost, "");
    offer.devices.iter_mut().for_each(|device| device.health = Err(lost.clone()));
    let nodes = |device: &OfferedDevice| device.numa_nodes.iter().map(|id| NumaNode { id: *id }).collect();
    let device = |device: &OfferedDevice| Device {
        id: device.id.to_string(),
        health: "Unhealthy".to_owned(),
        topology: Some(TopologyInfo { nodes: nodes(device) }),
    };
    let list = ListAndWatchResponse { devices: offer.devices.iter().map(device).collect() };
    assert!((list.encoded_len()..=list.encoded_len() + 2 * list.devices.len()).contains(&list_bytes(&offer)));
    let offers = offered(8, 9_000);
    assert!(offers.offers.is_empty());
    let problem = &offers.problems[0];
    assert!(problem.contains("nvidia.com/gpu is not offered: its list of 72000 devices"), "{problem}");
    // Six GPUs were replaced by others, whose slots do not fit into the list of the registration.
    let before = offered(6, 7_000).offers;
    let Offers { offers, problems } = merged(&before, 4..10, 7_000);
    let ids = |offers: &[Offer]| offers[0].devices.iter().map(|device| device.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&offers), ids(&before));
    assert_eq!(offers[0].devices.iter().filter(|device| device.health.is_ok()).count(), 14_000);
    let problem = &problems[0];
    assert!(problem.contains("nvidia.com/gpu is offered without its new devices: its list of 70000"), "{problem}");
    assert!(problem.contains("restart podmeter"), "{problem}");
}

/// A node is given to as many containers as the entry has slots, whatever the slots were before.
#[test]
fn a_node_that_is_held_under_an_id_of_another_number_of_slots_is_not_given_out() {
    let node = |id: &str| PathDevice { id: id.into(), nodes: [].into(), numa_nodes: BTreeSet::new() };
    for (shared, held, expected) in [
        (2, "fuse", "fuse::0 fuse::1"),
        (2, "fuse::0", ""),
        (2, "fuse::5", "fuse::0 fuse::1"),
        (1, "fuse::0", "fuse"),
        (1, "fuse", ""),
        (2, "fuse2::5", ""),
    ] {
        let config = entry(&format!("kind: path, name: example.com/x, paths: [/dev/x], shared: {shared}"));
        let kubelet = test_data::kubelet([test_data::holder("a", &[("example.com/x", held)])]);
        let held_hardware = HeldHardware::new(kubelet.holding_containers(), &Inventory::default());
        let offer = offers(&config, &Inventory::default(), &[node("fuse"), node("nic")]).offers.remove(0);
        let offer = offer.with_holders(&held_hardware);
        let refused = offer.devices.iter().filter_map(|device| Some((&device.id, device.health.as_ref().err()?)));
        let refused: Vec<_> = refused
            .map(|(id, unhealthy)| {
                assert_eq!(&*unhealthy.detail, format!("held by team/a as example.com/x {held}"));
                id.to_string()
            })
            .collect();
        assert_eq!(refused.join(" "), expected, "{shared} {held}");
    }
}

#[test]
fn names_follow_the_model() {
    let config = nvidia("names: {gpus: [{pattern: \"*H100*\", name: nvidia.com/h100}]}");
    let other = Gpu { model: Some("NVIDIA L4".into()), ..gpu(1, None) };
    let expected = resources([("nvidia.com/gpu", vec![uuid(1)]), ("nvidia.com/h100", vec![uuid(0)])]);
    assert_eq!(listed(&config, &inventory([gpu(0, None), other])), expected);
}

#[test]
fn a_device_never_leaves_the_list() {
    let config = nvidia("");
    let before = offers(&config, &four_gpus(), &[]).offers;
    let now = offers(&config, &inventory([gpu(1, None), gpu(5, None)]), &[]);
    let merge = |previous: &[Offer], offers: Offers, inventory: &Inventory| merge(previous, offers, inventory).offers;
    let merged = merge(&before, now, &inventory([gpu(1, None), gpu(5, None)]));
    let health: Vec<_> =
        merged[0].devices.iter().map(|device| (device.id.to_string(), device.health.is_ok())).collect();
    let expected = [(uuid(0), false), (uuid(1), true), (uuid(2), false), (uuid(3), false), (uuid(5), true)];
    assert_eq!(health, expected);
    // A present GPU that is offered under another name no longer has its device; without the GPU the device is lost.
    let partitioned = merge(&before, Offers::default(), &inventory([gpu(1, Some(&["3g.40gb"]))]));
    let reasons = partitioned[0].devices.iter().map(|device| device.health.as_ref().unwrap_err().reason.into());
    assert_eq!(reasons.collect::<Vec<&str>>(), ["lost", "layout", "lost", "lost"]);
    // The devices return; and a resource has no device left.
    assert_eq!(merge(&before, Offers::default(), &Inventory::default())[0].devices.len(), 4);
    let back =
        merge(&merge(&before, Offers::default(), &four_gpus()), offers(&config, &four_gpus(), &[]), &four_gpus());
    assert_eq!(back, before);
}

#[test]
fn nothing_to_offer_is_no_resource() {
    assert_eq!(offers(&nvidia(""), &Inventory::default(), &[]), Offers::default());
}
