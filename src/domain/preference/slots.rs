//! The choice among slots and MIG devices, of which a GPU has several. In: a request. Out: devices, GPU by GPU.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::drawbacks::{GpuDrawbacks, Rank};
use super::request::{CheckedRequest, PreferenceRequest, PreferredDevices};
use super::topology::Topology;
use crate::domain::model::{DeviceId, GpuUuid};

/// The slots that a pod gets where several are free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SlotPolicy {
    /// The next slot comes from the GPU with the fewest slots taken.
    #[default]
    Distributed,
    /// The next slot comes from the GPU with the most slots taken, so that one is full before the next is used.
    Packed,
}

/// Chooses among shared slots and MIG devices, of which a GPU has several. `offered` is the number of each GPU,
/// including taken ones; without it only the free ones count. No GPU to avoid is used while others have slots. Among
/// equals the least used, then the first by index.
pub fn choose_slots(
    request: &PreferenceRequest,
    topology: &Topology,
    drawbacks: &BTreeMap<GpuUuid, GpuDrawbacks>,
    offered: &BTreeMap<GpuUuid, usize>,
    policy: SlotPolicy,
) -> PreferredDevices {
    let CheckedRequest { available, required, size } = match CheckedRequest::new(request, topology) {
        Ok(checked) => checked,
        Err(reason) => return PreferredDevices::empty(reason),
    };
    let mut gpus: BTreeMap<&GpuUuid, GpuSlots> = BTreeMap::new();
    for (id, gpu) in available {
        let slots = gpus.entry(gpu).or_insert_with(|| GpuSlots {
            rank: Rank::new(gpu, drawbacks),
            index: topology.location(gpu).map(|location| location.index),
            taken: 0,
            free: BTreeSet::new(),
            chosen: vec![],
        });
        // `::2` comes before `::10`.
        slots.free.insert((id.as_str().len(), id));
    }
    for (gpu, slots) in &mut gpus {
        slots.taken = offered.get(*gpu).map_or(0, |offered| offered.saturating_sub(slots.free.len()));
        let (chosen, free) = std::mem::take(&mut slots.free).into_iter().partition(|(_, id)| required.contains(*id));
        slots.free = free;
        for (_, id) in BTreeSet::<(usize, &DeviceId)>::into_iter(chosen) {
            slots.choose(id);
        }
    }
    for _ in required.len()..size {
        let next = gpus.values_mut().filter(|slots| !slots.free.is_empty()).min_by_key(|slots| slots.key(policy));
        if let Some(slots) = next
            && let Some((_, id)) = slots.free.pop_first()
        {
            slots.choose(id);
        }
    }
    let mut gpus: Vec<(&GpuUuid, GpuSlots)> = gpus.into_iter().collect();
    gpus.sort_by_key(|(gpu, slots)| (slots.index, *gpu));
    PreferredDevices { ids: gpus.into_iter().flat_map(|(_, slots)| slots.chosen).cloned().collect(), fallback: None }
}

/// One GPU's slots in a request.
struct GpuSlots<'a> {
    rank: Rank,
    index: Option<u32>,
    /// The slots taken by others, and by this request so far.
    taken: usize,
    free: BTreeSet<(usize, &'a DeviceId)>,
    chosen: Vec<&'a DeviceId>,
}

impl<'a> GpuSlots<'a> {
    fn choose(&mut self, id: &'a DeviceId) {
        self.taken += 1;
        self.chosen.push(id);
    }

    /// The key of the order; the GPU with the lowest gives the next slot.
    fn key(&self, policy: SlotPolicy) -> impl Ord + use<> {
        let (taken, free) = (self.taken.cast_signed(), self.free.len().cast_signed());
        let by_use = match policy {
            SlotPolicy::Distributed => (taken, -free),
            SlotPolicy::Packed => (-taken, free),
        };
        (self.rank.avoided, by_use, self.rank.load, self.index)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::request::{FallbackReason, FreeDevice};
    use super::super::topology::GpuLocation;
    use super::*;

    const NAMES: [&str; 3] = ["GPU-c", "GPU-b", "GPU-a"];

    fn topology() -> Topology {
        let location = |index| GpuLocation { index, numa_node: None };
        Topology::new((0..).zip(NAMES).map(|(index, name)| (name.into(), location(index))).collect())
    }

    /// A request with `free` slots of each GPU; others have the lowest numbers.
    fn request(free: [usize; 3], must_include: &[&str], size: usize) -> PreferenceRequest {
        let slots = |(gpu, free): (usize, usize)| {
            (12 - free..12).map(move |slot| FreeDevice { id: id(gpu, slot), gpu: NAMES[gpu].into() })
        };
        let available = free.into_iter().enumerate().flat_map(slots).collect();
        PreferenceRequest { available, must_include: must_include.iter().map(|id| DeviceId::from(*id)).collect(), size }
    }

    fn id(gpu: usize, slot: usize) -> DeviceId {
        DeviceId::new(format!("{}::{slot}", NAMES[gpu]))
    }

    fn counts(choice: &PreferredDevices) -> [usize; 3] {
        NAMES.map(|name| choice.ids.iter().filter(|id| id.as_str().starts_with(name)).count())
    }

    fn offered() -> BTreeMap<GpuUuid, usize> {
        NAMES.map(|name| (name.into(), 12)).into()
    }

    #[test]
    #[allow(clippy::type_complexity, reason = "a table of cases")]
    fn slots_are_spread_or_packed() {
        use SlotPolicy::{Distributed, Packed};
        let cases: [(SlotPolicy, [usize; 3], &[&str], usize, [usize; 3]); 11] = [
            (Distributed, [12, 12, 12], &[], 3, [1, 1, 1]),
            (Distributed, [12, 12, 12], &[], 4, [2, 1, 1]),
            (Distributed, [2, 3, 3], &[], 2, [0, 1, 1]),
            (Distributed, [2, 3, 5], &[], 2, [0, 0, 2]),
            (Distributed, [3, 3, 3], &["GPU-b::11"], 2, [1, 1, 0]),
            (Distributed, [3, 3, 3], &["GPU-b::11", "GPU-b::10"], 3, [1, 2, 0]),
            (Packed, [12, 12, 12], &[], 3, [3, 0, 0]),
            (Packed, [4, 2, 3], &[], 4, [0, 2, 2]),
            (Packed, [3, 3, 3], &["GPU-a::11"], 3, [0, 0, 3]),
            (Packed, [0, 1, 1], &[], 1, [0, 1, 0]),
            (Packed, [3, 3, 3], &[], 9, [3, 3, 3]),
        ];
        for (policy, free, must_include, size, expected) in cases {
            let request = request(free, must_include, size);
            let choice = choose_slots(&request, &topology(), &BTreeMap::new(), &offered(), policy);
            assert_eq!(counts(&choice), expected, "{policy:?} {free:?} {must_include:?} {size}");
            assert!(request.must_include.iter().all(|id| choice.ids.contains(id)));
        }
    }

    #[test]
    fn slots_of_one_gpu_go_by_number_and_the_answer_by_index() {
        let choice = choose_slots(
            &request([12, 12, 0], &[], 6),
            &topology(),
            &BTreeMap::new(),
            &offered(),
            SlotPolicy::default(),
        );
        assert_eq!(choice.ids, [id(0, 0), id(0, 1), id(0, 2), id(1, 0), id(1, 1), id(1, 2)]);
        let request = request([3, 0, 0], &[], 2);
        let choice = choose_slots(&request, &topology(), &BTreeMap::new(), &offered(), SlotPolicy::Packed);
        assert_eq!(choice.ids, [id(0, 9), id(0, 10)]);
    }

    #[test]
    fn trouble_is_avoided_and_load_decides_between_equals() {
        let load = |ratio| GpuDrawbacks { load: Some(ratio), ..GpuDrawbacks::default() };
        let trouble = GpuDrawbacks { use_without_allocation: true, ..load(0.0) };
        let drawbacks = [("GPU-c".into(), load(0.9)), ("GPU-b".into(), load(0.2)), ("GPU-a".into(), trouble)].into();
        for (policy, free, size, expected) in [
            (SlotPolicy::Distributed, [3, 3, 3], 1, [0, 1, 0]),
            (SlotPolicy::Distributed, [3, 3, 9], 2, [1, 1, 0]),
            (SlotPolicy::Packed, [3, 3, 1], 2, [0, 2, 0]),
            (SlotPolicy::Packed, [1, 1, 3], 3, [1, 1, 1]),
        ] {
            let choice = choose_slots(&request(free, &[], size), &topology(), &drawbacks, &offered(), policy);
            assert_eq!(counts(&choice), expected, "{policy:?} {free:?} {size}");
        }
    }

    #[test]
    fn mig_devices_are_spread_over_their_gpus() {
        let device = |id: &str, gpu: &str| FreeDevice { id: id.into(), gpu: gpu.into() };
        let available = vec![device("MIG-1", "GPU-c"), device("MIG-2", "GPU-c"), device("MIG-3", "GPU-a")];
        let request = PreferenceRequest { available, must_include: vec![], size: 2 };
        let choice = choose_slots(&request, &topology(), &BTreeMap::new(), &BTreeMap::new(), SlotPolicy::Distributed);
        assert_eq!(choice.ids, ["MIG-1".into(), "MIG-3".into()]);
    }

    #[test]
    fn an_invalid_request_gets_an_empty_answer_and_the_reason() {
        let choose = |request: &PreferenceRequest| {
            choose_slots(request, &topology(), &BTreeMap::new(), &BTreeMap::new(), SlotPolicy::Distributed)
        };
        for (request, reason) in [
            (request([1, 1, 1], &[], 4), FallbackReason::TooFewAvailable),
            (request([1, 1, 1], &["GPU-c::0"], 1), FallbackReason::RequiredNotAvailable),
            (request([1, 1, 1], &["GPU-c::11", "GPU-b::11"], 1), FallbackReason::TooManyRequired),
        ] {
            assert_eq!(choose(&request), PreferredDevices::empty(reason));
        }
        assert_eq!(choose(&request([0, 0, 0], &[], 0)), PreferredDevices::default());
    }

    proptest! {
        #[test]
        fn spreading_levels_and_packing_leaves_at_most_one_begun(free in prop::array::uniform3(0_usize..12), wanted: usize) {
            let total = free.iter().sum::<usize>();
            let request = request(free, &[], wanted % (total + 1));
            let choose = |policy| choose_slots(&request, &topology(), &BTreeMap::new(), &offered(), policy);
            let spread = counts(&choose(SlotPolicy::Distributed));
            prop_assert_eq!(spread.iter().sum::<usize>(), request.size);
            for (one, other) in [(0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)] {
                // No GPU gave a slot while another GPU would still have two more free slots.
                prop_assert!(spread[one] == 0 || free[one] - spread[one] + 1 >= free[other] - spread[other]);
            }
            let packed = counts(&choose(SlotPolicy::Packed));
            prop_assert_eq!(packed.iter().sum::<usize>(), request.size);
            let begun = (0..3).filter(|gpu| packed[*gpu] > 0 && packed[*gpu] < free[*gpu]).count();
            prop_assert!(begun <= 1);
        }
    }
}
