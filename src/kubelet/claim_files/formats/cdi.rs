//! The CDI specification of one claim, and the numbers of MIG capability nodes.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::RecordedDevice;
use crate::domain::model::ClaimHardware;
use crate::input;

/// The compute instance of each `/dev/nvidia-caps/nvidia-cap<N>`, by N: `(GPU's minor, GPU instance, compute instance)`.
pub type CapabilityNodes = BTreeMap<u32, (u32, u32, u32)>;

#[derive(Deserialize)]
struct ClaimSpecification {
    kind: String,
    #[serde(default)]
    devices: Vec<CdiDevice>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CdiDevice {
    name: String,
    #[serde(default)]
    container_edits: ClaimEdits,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimEdits {
    #[serde(default)]
    device_nodes: Vec<ClaimDeviceNode>,
}

#[derive(Deserialize)]
struct ClaimDeviceNode {
    path: String,
}

/// The CDI specification of a claim, whose devices are named `<claim UID>-<device>`.
///
/// `capability_nodes` is called where a device has such nodes.
pub fn cdi(
    text: &str,
    kind: &str,
    claim_uid: &str,
    capability_nodes: impl Fn() -> CapabilityNodes,
) -> Result<Vec<RecordedDevice>, String> {
    let specification = input::yaml::<ClaimSpecification>(text)?.ok_or("the file is empty")?;
    if specification.kind != kind {
        return Err(format!("of kind {}, not {kind}", specification.kind));
    }
    let device = |device: CdiDevice| {
        let name = device.name.strip_prefix(claim_uid)?.strip_prefix('-')?;
        Some(RecordedDevice {
            claim_uid: claim_uid.into(),
            driver: None,
            pool: None,
            device: name.into(),
            hardware: nodes_hardware(&device.container_edits.device_nodes, &capability_nodes),
            allocation: None,
        })
    };
    Ok(specification.devices.into_iter().filter_map(device).collect())
}

/// `None` where the nodes are of several devices, or of instances that are not known.
fn nodes_hardware(nodes: &[ClaimDeviceNode], capability_nodes: &impl Fn() -> CapabilityNodes) -> Option<ClaimHardware> {
    let one = |prefix: &'static str| {
        let mut numbers = nodes.iter().filter_map(|node| node.path.strip_prefix(prefix)?.parse::<u32>().ok());
        let first = numbers.next();
        (first, numbers.all(|number| Some(number) == first))
    };
    let capabilities = nodes.iter().filter_map(|node| node.path.strip_prefix("/dev/nvidia-caps/nvidia-cap"));
    let capabilities: Vec<Option<u32>> = capabilities.map(|number| number.parse().ok()).collect();
    match one("/dev/nvidia") {
        (Some(minor), true) if capabilities.is_empty() => Some(ClaimHardware::Minor(minor)),
        (Some(minor), true) => {
            let known = capability_nodes();
            let mut instances = capabilities.iter().filter_map(|number| known.get(&(*number)?));
            let (minor_of_gpu, gpu_instance, compute_instance) = *instances.next()?;
            let is_one = instances.next().is_none() && minor_of_gpu == minor;
            is_one.then_some(ClaimHardware::Instance { minor, gpu_instance, compute_instance })
        }
        _ => None,
    }
}

/// `/proc/driver/nvidia-caps/mig-minors`: lines such as `gpu0/gi1/ci0/access 13`. Those of GPU instances as a whole are
/// left out.
pub fn capability_nodes(text: &str) -> CapabilityNodes {
    let line = |line: &str| {
        let (path, number) = line.split_once(' ')?;
        let mut parts = path.split('/');
        let mut number_after = |prefix: &str| parts.next()?.strip_prefix(prefix)?.parse::<u32>().ok();
        let instance = (number_after("gpu")?, number_after("gi")?, number_after("ci")?);
        Some((number.trim().parse().ok()?, instance))
    };
    text.lines().filter_map(line).collect()
}
