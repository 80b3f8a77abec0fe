//! Protobuf of any size into messages of a bounded size.
//!
//! Empty messages take two bytes each in an answer and a hundred in memory. So a large answer is walked first: what a
//! parent repeats byte for byte is left out, and what would take too much memory is refused before it is decoded.

use std::collections::BTreeSet;

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field};
use prost::{DecodeError, Message};

use crate::wire::{v1, v1alpha1};

/// Of an answer, in memory. Five thousand pods with a device and a claim each take about 8 MiB.
pub const DECODED_LIMIT: usize = 24 << 20;
/// Decoded at once: however it is made up, it takes less than the limit.
const SMALL: usize = 256 << 10;
/// What a separate string or list takes beside its bytes, with the allocator's share.
const STRING: usize = size_of::<String>() + 16;
const NUMBER: usize = size_of::<i64>();

#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    #[error("it is cut off")]
    CutOff,
    #[error("its entries take over {DECODED_LIMIT} bytes of memory")]
    TooLarge,
}

/// A message as far as its size concerns.
pub struct Shape {
    size: usize,
    nested: &'static [(u32, &'static Shape, Repeated)],
    /// Fields of packed numbers.
    numbers: &'static [u32],
}

/// What the same entry twice in a parent means.
#[derive(Clone, Copy, PartialEq)]
enum Repeated {
    Once,
    Twice,
}
use Repeated::{Once, Twice};

const fn shape<M>(nested: &'static [(u32, &'static Shape, Repeated)], numbers: &'static [u32]) -> Shape {
    // A list that grows has twice its length for a moment.
    Shape { size: 2 * size_of::<M>(), nested, numbers }
}

static NUMA_NODE: Shape = shape::<v1::NumaNode>(&[], &[]);
static TOPOLOGY: Shape = shape::<v1::TopologyInfo>(&[(1, &NUMA_NODE, Once)], &[]);
static MEMORY: Shape = shape::<v1::ContainerMemory>(&[(3, &TOPOLOGY, Twice)], &[]);
static DEVICES: Shape = shape::<v1::ContainerDevices>(&[(3, &TOPOLOGY, Twice)], &[]);
static CDI_DEVICE: Shape = shape::<v1::CdiDevice>(&[], &[]);
static CLAIM_RESOURCE: Shape = shape::<v1::ClaimResource>(&[(1, &CDI_DEVICE, Once)], &[]);
static CLAIM: Shape = shape::<v1::DynamicResource>(&[(4, &CLAIM_RESOURCE, Once)], &[]);
static CONTAINER: Shape =
    shape::<v1::ContainerResources>(&[(2, &DEVICES, Once), (4, &MEMORY, Twice), (5, &CLAIM, Once)], &[3]);
static POD: Shape = shape::<v1::PodResources>(&[(3, &CONTAINER, Twice), (5, &MEMORY, Twice)], &[4]);
pub static LIST: Shape = shape::<v1::ListPodResourcesResponse>(&[(1, &POD, Twice)], &[]);
pub static GET: Shape = shape::<v1::GetPodResourcesResponse>(&[(1, &POD, Twice)], &[]);
pub static ALLOCATABLE: Shape =
    shape::<v1::AllocatableResourcesResponse>(&[(1, &DEVICES, Once), (3, &MEMORY, Twice)], &[2]);
static OLD_DEVICES: Shape = shape::<v1alpha1::ContainerDevices>(&[], &[]);
static OLD_CONTAINER: Shape = shape::<v1alpha1::ContainerResources>(&[(2, &OLD_DEVICES, Once)], &[]);
static OLD_POD: Shape = shape::<v1alpha1::PodResources>(&[(3, &OLD_CONTAINER, Twice)], &[]);
pub static OLD_LIST: Shape = shape::<v1alpha1::ListPodResourcesResponse>(&[(1, &OLD_POD, Twice)], &[]);

/// The message without exact repetitions, or why it cannot be had.
pub fn decode<M: Message + Default>(bytes: &[u8], shape: &Shape) -> Result<M, Unreadable> {
    if bytes.len() <= SMALL {
        return Ok(M::decode(bytes)?);
    }
    decode_large(bytes, shape)
}

/// The same, of whatever length.
pub fn decode_large<M: Message + Default>(bytes: &[u8], shape: &Shape) -> Result<M, Unreadable> {
    let mut left = DECODED_LIMIT;
    Ok(M::decode(compact(bytes, shape, &mut left)?.as_slice())?)
}

fn compact(mut bytes: &[u8], shape: &Shape, left: &mut usize) -> Result<Vec<u8>, Unreadable> {
    let (mut compacted, mut seen) = (vec![], BTreeSet::new());
    while !bytes.is_empty() {
        let field = bytes;
        let (tag, wire_type) = decode_key(&mut bytes)?;
        if wire_type != WireType::LengthDelimited {
            skip_field(wire_type, tag, &mut bytes, DecodeContext::default())?;
            spend(left, NUMBER)?;
            compacted.extend_from_slice(&field[..field.len() - bytes.len()]);
            continue;
        }
        let content = delimited(&mut bytes)?;
        let Some((_, nested, repeated)) = shape.nested.iter().find(|(nested, ..)| *nested == tag) else {
            let each = if shape.numbers.contains(&tag) { NUMBER } else { 1 };
            spend(left, STRING + content.len() * each)?;
            compacted.extend_from_slice(&field[..field.len() - bytes.len()]);
            continue;
        };
        if *repeated == Once && !seen.insert((tag, content)) {
            continue;
        }
        spend(left, nested.size)?;
        let inner = compact(content, nested, left)?;
        encode_key(tag, WireType::LengthDelimited, &mut compacted);
        encode_varint(inner.len() as u64, &mut compacted);
        compacted.extend(inner);
    }
    Ok(compacted)
}

fn delimited<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], Unreadable> {
    let length = usize::try_from(decode_varint(bytes)?).unwrap_or(usize::MAX);
    let (content, rest) = bytes.split_at_checked(length).ok_or(Unreadable::CutOff)?;
    *bytes = rest;
    Ok(content)
}

fn spend(left: &mut usize, bytes: usize) -> Result<(), Unreadable> {
    *left = left.checked_sub(bytes).ok_or(Unreadable::TooLarge)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(number: usize) -> v1::DynamicResource {
        v1::DynamicResource {
            claim_name: format!("claim-of-the-trainer-{number}"),
            claim_namespace: "machine-learning".into(),
            claim_resources: vec![v1::ClaimResource {
                cdi_devices: vec![v1::CdiDevice { name: format!("gpu.nvidia.com/device=gpu-{number}") }],
                driver_name: "gpu.nvidia.com".into(),
                pool_name: "node-with-a-name".into(),
                device_name: format!("gpu-{number}"),
                share_id: None,
            }],
        }
    }

    fn pod(number: usize) -> v1::PodResources {
        let device = v1::ContainerDevices {
            resource_name: "nvidia.com/gpu".into(),
            device_ids: vec![format!("GPU-00000000-0000-0000-0000-{number:012}")],
            topology: Some(v1::TopologyInfo { nodes: vec![v1::NumaNode { id: 1 }] }),
        };
        let container = v1::ContainerResources {
            name: "main".into(),
            devices: vec![device],
            cpu_ids: (0..16).collect(),
            memory: vec![],
            dynamic_resources: vec![claim(number)],
        };
        v1::PodResources {
            name: format!("trainer-of-a-large-model-{number}"),
            namespace: "machine-learning".into(),
            containers: vec![container],
            cpu_ids: vec![],
            memory: vec![],
        }
    }

    #[test]
    fn five_thousand_pods_with_claims_come_through_whole() {
        let list = v1::ListPodResourcesResponse { pod_resources: (0..5000).map(pod).collect() };
        let bytes = list.encode_to_vec();
        assert!(bytes.len() > SMALL);
        assert_eq!(decode::<v1::ListPodResourcesResponse>(&bytes, &LIST).unwrap(), list);
    }

    #[test]
    fn what_a_driver_repeats_is_decoded_once() {
        let mut list = v1::ListPodResourcesResponse { pod_resources: vec![pod(0), pod(1)] };
        let whole = list.clone();
        let container = &mut list.pod_resources[0].containers[0];
        container.devices = vec![container.devices[0].clone(); 50_000];
        container.dynamic_resources = vec![claim(0); 50_000];
        let bytes = list.encode_to_vec();
        assert!(bytes.len() > 8 << 20);
        assert_eq!(decode::<v1::ListPodResourcesResponse>(&bytes, &LIST).unwrap(), whole);
    }

    /// Of each kind of entry, what fills an answer with the least bytes.
    #[test]
    fn no_kind_of_empty_entry_takes_more_memory_than_the_limit() {
        let nested = |path: &[u32], content: &[u8]| {
            path.iter().rev().fold(content.to_vec(), |inner, tag| {
                let mut outer = vec![];
                encode_key(*tag, WireType::LengthDelimited, &mut outer);
                encode_varint(inner.len() as u64, &mut outer);
                outer.extend(inner);
                outer
            })
        };
        for (path, tag) in [
            (&[][..], 1),
            (&[1], 3),
            (&[1], 4),
            (&[1], 5),
            (&[1, 3], 4),
            (&[1, 3, 2], 2),
            (&[1, 3, 5, 4], 5),
            (&[1, 3, 4, 3], 2),
        ] {
            let empties = nested(&[tag], &[]).repeat(4 << 20);
            let refused = decode::<v1::ListPodResourcesResponse>(&nested(path, &empties), &LIST);
            assert!(matches!(refused, Err(Unreadable::TooLarge)), "{path:?} {tag}");
        }
        let mut cut = nested(&[1], &vec![0; SMALL]);
        cut.truncate(SMALL + 1);
        assert!(matches!(decode::<v1::ListPodResourcesResponse>(&cut, &LIST), Err(Unreadable::CutOff)));
    }
}
