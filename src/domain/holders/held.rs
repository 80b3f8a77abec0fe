//! Which hardware is held, by whom, and under which name. In: containers that hold devices, or may; the inventory. Out: the
//! holders of a GPU or MIG device, other than those that a resource itself accounts for. Does not know which IDs are offered.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::claims::resolve_claim;
use super::resolve::resolve_device;
use crate::domain::model::{
    Allocatable, ClaimDevice, ClaimSource, Container, DeviceId, DeviceRef, GpuUuid, HeldDevice, Inventory, PodRef,
    ResourceName,
};

/// The held GPUs and MIG devices, and the IDs under which devices are held, also those that are no GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldHardware {
    parts: BTreeMap<GpuUuid, Vec<HeldPart>>,
    /// The first holder of each ID, also of those that are no GPUs; `None`: only the kubelet's checkpoint has it.
    ids: BTreeMap<(ResourceName, DeviceId), Option<PodRef>>,
}

/// What of it is held under other names than those that a resource accounts for.
#[derive(Debug)]
pub struct OtherHolders<'a>(BTreeMap<&'a GpuUuid, Vec<&'a HeldPart>>);

/// A GPU or MIG device that a container holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HeldPart {
    device: DeviceRef,
    /// `None`: only the kubelet's checkpoint has it.
    pod: Option<PodRef>,
    name: HeldName,
}

/// Under what the kubelet lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HeldName {
    Device(ResourceName, DeviceId),
    /// A claim, with its namespace.
    Claim(String),
}

impl fmt::Display for HeldName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(resource, id) => write!(formatter, "{resource} {id}"),
            Self::Claim(claim) => write!(formatter, "claim {claim}"),
        }
    }
}

impl HeldHardware {
    pub fn new<'a>(containers: impl IntoIterator<Item = &'a Container>, inventory: &Inventory) -> Self {
        let mut held = Self::default();
        held.add(containers, inventory);
        held
    }

    pub fn add<'a>(&mut self, containers: impl IntoIterator<Item = &'a Container>, inventory: &Inventory) {
        for container in containers {
            for HeldDevice { resource, id, .. } in &container.devices {
                let pod = || Some(container.reference.pod_ref());
                self.ids.entry((resource.clone(), id.clone())).or_insert_with(pod);
            }
            let devices = container.devices.iter().flat_map(|HeldDevice { resource, id, .. }| {
                let (_, devices) = resolve_device(resource, id, inventory);
                devices.into_iter().map(|device| (device, HeldName::Device(resource.clone(), id.clone())))
            });
            let claims = container.claims.iter().filter(|claim| !claim.is_observer()).flat_map(|claim| {
                let ClaimDevice { claim_namespace, claim: name, .. } = claim;
                let (devices, _) =
                    resolve_claim(claim, inventory).unwrap_or_else(|_| (vec![], ClaimSource::DeviceName));
                let name = format!("{claim_namespace}/{name}");
                devices.into_iter().map(move |device| (device, HeldName::Claim(name.clone())))
            });
            for (device, name) in devices.chain(claims) {
                let part = HeldPart { device, pod: Some(container.reference.pod_ref()), name };
                self.parts.entry(part.device.gpu.clone()).or_default().push(part);
            }
        }
    }

    /// Adds the IDs of the kubelet's checkpoint, of which no pod is known.
    #[must_use]
    pub fn with_checkpoint(mut self, ids: &BTreeSet<(ResourceName, DeviceId)>, inventory: &Inventory) -> Self {
        for (resource, id) in ids {
            if let Entry::Vacant(unlisted) = self.ids.entry((resource.clone(), id.clone())) {
                unlisted.insert(None);
                for device in resolve_device(resource, id, inventory).1 {
                    let name = HeldName::Device(resource.clone(), id.clone());
                    let part = HeldPart { device, pod: None, name };
                    self.parts.entry(part.device.gpu.clone()).or_default().push(part);
                }
            }
        }
        self
    }

    /// Whether a container holds the GPU, or a part of it.
    pub fn contains(&self, gpu: &GpuUuid) -> bool {
        self.parts.contains_key(gpu)
    }

    /// Whether the ID is held, also that of a device that is no GPU and one that only the kubelet's checkpoint has.
    pub fn contains_id(&self, resource: &ResourceName, id: &DeviceId) -> bool {
        self.ids.contains_key(&(resource.clone(), id.clone()))
    }

    /// Who holds the device of the resource with this ID, or a slot of it, under another ID than those that `is_accounted` for. The
    /// hardware of a device that is no GPU has no other name.
    pub fn other_slots(
        &self,
        resource: &ResourceName,
        device: &str,
        is_accounted: impl Fn(&DeviceId) -> bool,
    ) -> Option<String> {
        let ids = self.ids.range((resource.clone(), DeviceId::new(device))..);
        let ids = ids.take_while(|((held, id), _)| held == resource && id.as_str().starts_with(device));
        let mut others = ids.filter(|((_, id), _)| id.without_slot() == device && !is_accounted(id));
        let ((_, first), pod) = others.next()?;
        Some(held_by(pod.as_ref(), &format!("{resource} {first}"), others.count()))
    }

    /// The holders, without those of the IDs that `is_accounted` for.
    pub fn others(&self, is_accounted: impl Fn(&ResourceName, &DeviceId) -> bool) -> OtherHolders<'_> {
        let is_other = |part: &&HeldPart| match &part.name {
            HeldName::Device(resource, id) => !is_accounted(resource, id),
            HeldName::Claim(_) => true,
        };
        let others = self.parts.iter().map(|(gpu, parts)| (gpu, parts.iter().filter(is_other).collect()));
        OtherHolders(others.filter(|(_, parts): &(_, Vec<_>)| !parts.is_empty()).collect())
    }

    /// Of each resource: how many of its allocatable devices nobody holds under their own name, although their hardware is held
    /// under that of another resource, by a claim, or as a whole where these are slots.
    pub(super) fn unavailable(
        &self,
        allocatable: &Allocatable,
        inventory: &Inventory,
    ) -> BTreeMap<ResourceName, usize> {
        let count = |(resource, ids): (&ResourceName, &BTreeSet<DeviceId>)| {
            let others = [false, true].map(|slot| self.others(|held, id| held == resource && id.is_slot() == slot));
            let is_unavailable = |id: &&DeviceId| {
                let others = &others[usize::from(id.is_slot())];
                !others.0.is_empty()
                    && !self.contains_id(resource, id)
                    && resolve_device(resource, id, inventory).1.iter().any(|device| others.of(device).is_some())
            };
            (resource.clone(), ids.iter().filter(is_unavailable).count())
        };
        allocatable.devices.iter().map(count).filter(|(_, count)| *count > 0).collect()
    }
}

impl OtherHolders<'_> {
    /// Who holds the device, a part of it or all of its GPU: `held by namespace/pod as …`.
    pub fn of(&self, device: &DeviceRef) -> Option<String> {
        let mut holders = self.0.get(&device.gpu)?.iter().filter(|part| part.device.overlaps(device));
        let first = holders.next()?;
        Some(held_by(first.pod.as_ref(), &first.name, holders.count()))
    }
}

fn held_by(pod: Option<&PodRef>, name: &impl fmt::Display, more: usize) -> String {
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let holder = pod.map_or_else(|| "a pod of the kubelet's checkpoint".to_owned(), ToString::to_string);
    format!("held by {holder} as {name}{more}")
}

/// The first resource, other than those of `is_own`, of which the kubelet lists hardware of `devices` as allocatable, and how many
/// IDs of it: a device plugin is connected that offers them.
pub fn other_offer<'a>(
    devices: &BTreeSet<DeviceRef>,
    allocatable: &'a Allocatable,
    inventory: &Inventory,
    is_own: impl Fn(&ResourceName) -> bool,
) -> Option<(&'a ResourceName, usize)> {
    let count = |(resource, ids): (&'a ResourceName, &BTreeSet<DeviceId>)| {
        let overlaps = |id: &&DeviceId| {
            let (_, theirs) = resolve_device(resource, id, inventory);
            theirs.iter().any(|theirs| devices.iter().any(|ours| ours.overlaps(theirs)))
        };
        (resource, ids.iter().filter(overlaps).count())
    };
    let others = allocatable.devices.iter().filter(|(resource, _)| !is_own(resource));
    others.map(count).find(|(_, count)| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::holders::test_data::{A, B, M1, M2, container, inventory};
    use crate::test_data::allocatable;

    const GPU: &str = "nvidia.com/gpu";

    fn held(holders: Vec<Container>) -> HeldHardware {
        HeldHardware::new(&holders, &inventory())
    }

    #[test]
    fn a_device_is_held_under_any_name_of_its_hardware() {
        let whole = DeviceRef { gpu: A.into(), mig: None };
        let part = |mig: &str| DeviceRef { gpu: B.into(), mig: Some(mig.into()) };
        let slot = format!("{A}::2");
        let claim = [("gpu.nvidia.com", "gpu-1")];
        for (what, holder, device, expected) in [
            ("by its own ID", container("p", &[(GPU, A)], &[]), &whole, None),
            ("by another's", container("p", &[(GPU, M1)], &[]), &whole, None),
            ("as a slot", container("p", &[(GPU, &slot)], &[]), &whole, Some(format!("{GPU} {slot}"))),
            ("of a renamed resource", container("p", &[("x.io/y", A)], &[]), &whole, Some(format!("x.io/y {A}"))),
            ("by a claim", container("p", &[], &claim), &whole, Some("claim team/claim".to_owned())),
            ("through its parent", container("p", &[(GPU, B)], &[]), &part(M1), Some(format!("{GPU} {B}"))),
            ("its own MIG device", container("p", &[("x.io/y", M1)], &[]), &part(M1), Some(format!("x.io/y {M1}"))),
            ("a neighbour", container("p", &[("x.io/y", M2)], &[]), &part(M1), None),
        ] {
            let held = held(vec![holder]);
            let others = held.others(|resource, id| resource.as_str() == GPU && id.as_str() == A);
            assert_eq!(others.of(device), expected.map(|name| format!("held by team/p as {name}")), "{what}");
        }
    }

    #[test]
    fn what_only_the_checkpoint_has_is_held_too() {
        let ids = [(GPU.into(), A.into()), ("x.io/y".into(), format!("{A}::1").as_str().into())].into();
        let held = held(vec![container("p", &[(GPU, A)], &[])]).with_checkpoint(&ids, &inventory());
        let others = held.others(|resource, _| resource.as_str() == GPU);
        let text = others.of(&DeviceRef { gpu: A.into(), mig: None }).unwrap();
        assert_eq!(text, format!("held by a pod of the kubelet's checkpoint as x.io/y {A}::1"));
        assert!(held.others(|_, _| true).of(&DeviceRef { gpu: A.into(), mig: None }).is_none());
    }

    #[test]
    fn several_holders_are_counted() {
        let held = held(vec![container("p", &[("x.io/y", A)], &[]), container("q", &[("x.io/y", A)], &[])]);
        let text = held.others(|_, _| false).of(&DeviceRef { gpu: A.into(), mig: None }).unwrap();
        assert_eq!(text, format!("held by team/p as x.io/y {A} and 1 more"));
    }

    #[test]
    fn what_is_held_under_another_name_is_not_unallocated() {
        let ids = |ids: &[&str]| ids.iter().map(|id| DeviceId::from(*id)).collect::<BTreeSet<_>>();
        let slots = [0, 1].map(|slot| format!("{A}::{slot}"));
        let slots = slots.each_ref().map(String::as_str);
        for (holder, allocatable, expected) in [
            (container("p", &[(GPU, A)], &[]), vec![(GPU, ids(&[A]))], vec![]),
            (container("p", &[(GPU, A)], &[]), vec![("x.io/y", ids(&[A]))], vec![("x.io/y", 1)]),
            (container("p", &[(GPU, slots[0])], &[]), vec![(GPU, ids(&slots))], vec![]),
            (container("p", &[(GPU, A)], &[]), vec![(GPU, ids(&slots))], vec![(GPU, 2)]),
            (container("p", &[], &[("gpu.nvidia.com", "gpu-1")]), vec![(GPU, ids(&slots))], vec![(GPU, 2)]),
        ] {
            let devices = allocatable.into_iter().map(|(resource, ids)| (resource.into(), ids)).collect();
            let allocatable = Allocatable { devices, ..Allocatable::default() };
            let unavailable = held(vec![holder.clone()]).unavailable(&allocatable, &inventory());
            let expected = expected.into_iter().map(|(resource, count)| (resource.into(), count)).collect();
            assert_eq!(unavailable, expected, "{holder:?}");
        }
    }

    #[test]
    fn another_resource_offers_the_same_hardware() {
        let ours =
            BTreeSet::from([DeviceRef { gpu: A.into(), mig: None }, DeviceRef { gpu: B.into(), mig: Some(M1.into()) }]);
        let found = |allocatable: &Allocatable| {
            let other = other_offer(&ours, allocatable, &inventory(), |resource| resource.as_str() == GPU);
            other.map(|(resource, count)| format!("{count} of {resource}"))
        };
        assert_eq!(found(&allocatable(GPU, &[A])), None, "our own");
        assert_eq!(found(&allocatable("x.io/y", &[&format!("{A}::7")])).as_deref(), Some("1 of x.io/y"));
        assert_eq!(found(&allocatable("x.io/y", &[M2])), None, "its neighbour");
        assert_eq!(found(&allocatable("x.io/y", &[B])).as_deref(), Some("1 of x.io/y"), "its parent");
        assert_eq!(found(&allocatable("x.io/y", &["nic-1"])), None);
    }
}
