//! Device IDs are strings of other programs. They are classified by their form, never by the resource name: resources
//! get renamed, and `nvidia.com/gpu` may mean a whole GPU, a slot of one, or a MIG device. The form is parsed once,
//! where the ID is made.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{PciBusId, ResourceName};

/// A device plugin's ID of a device, or a DRA driver's name of one: any string, and its form. JSON has the
/// text alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "Arc<str>", into = "Arc<str>")]
pub struct DeviceId {
    text: Arc<str>,
    form: DeviceForm,
}

/// The form of a device ID: the kind of hardware, and how the ID names it. Its name is the value of the `form` label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum DeviceForm {
    /// A GPU: `GPU-<uuid>`.
    #[strum(serialize = "gpu_uuid")]
    Gpu,
    /// One slot of a time-sliced or MPS-shared GPU: `GPU-<uuid>::<n>`; the ID does not show which kind of sharing.
    #[strum(serialize = "gpu_uuid_replica")]
    GpuSlot,
    /// A virtual GPU of HAMi: `GPU-<uuid>-<n>`. HAMi may place the container elsewhere.
    #[strum(serialize = "gpu_uuid_virtual")]
    GpuVirtual,
    /// A MIG device: `MIG-<uuid>`.
    #[strum(serialize = "mig_uuid")]
    Mig,
    /// One slot of a MIG device: `MIG-<uuid>::<n>`.
    #[strum(serialize = "mig_uuid_replica")]
    MigSlot,
    /// All GPUs at once, in WSL2: `all[::<n>]`.
    All { is_slot: bool },
    /// The only integrated GPU: `tegra[::<n>]`.
    Tegra { is_slot: bool },
    /// A device of GKE's plugin: `nvidia<minor>[/gi<n>][/vgpu<n>]`.
    Minor { minor: u32, gpu_instance: Option<u32>, is_slot: bool },
    /// A GPU in DRA: `gpu-<minor>`.
    DraGpu { minor: u32 },
    /// A MIG device in DRA: `gpu-<minor>-mig-<profile>-<profile id>-<start>` from 25.12 on,
    /// `gpu-<minor>-mig-<profile id>-<start>-<size>` before.
    DraMig { minor: u32, profile_id: u32, placement_start: u32 },
    /// A PCI address, which other vendors' devices have too: `0000:ca:00.0`.
    PciAddress,
    /// A device of the compute-domain driver, which is no GPU: `channel-<n>`, `daemon-<n>`.
    DraComputeDomain,
    /// A device of NVIDIA's driver for GPUs with a name of unknown form.
    DraUnknown,
    /// A device of some other DRA driver, or a GPU that NVIDIA's prepares for a virtual machine.
    DraOther,
    /// None of the above: another vendor's device.
    Other,
}

/// The length of `GPU-` or `MIG-` and a UUID, with which IDs of hardware begin.
const PREFIXED_UUID: usize = 4 + UUID_LENGTH;
/// The characters of a UUID: 8-4-4-4-12 hexadecimal digits.
pub const UUID_LENGTH: usize = 36;

impl DeviceId {
    /// A device plugin's ID. Every string has a form.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        Self { form: parse_device_id(&text), text }
    }

    /// The name of a DRA device, which the driver with this name gave it.
    pub fn of_claim(driver: &str, device: impl Into<Arc<str>>) -> Self {
        let text = device.into();
        Self { form: parse_claim_device(driver, &text), text }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The shared text, for labels that outlive this value.
    pub fn to_shared(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    pub const fn form(&self) -> DeviceForm {
        self.form
    }

    /// The UUID of the GPU that it names, whole or as a slot.
    pub fn gpu(&self) -> Option<&str> {
        let names_gpu = matches!(self.form, DeviceForm::Gpu | DeviceForm::GpuSlot | DeviceForm::GpuVirtual);
        names_gpu.then(|| &self.text[..PREFIXED_UUID])
    }

    /// The UUID of the MIG device that it names, whole or as a slot.
    pub fn mig(&self) -> Option<&str> {
        matches!(self.form, DeviceForm::Mig | DeviceForm::MigSlot).then(|| &self.text[..PREFIXED_UUID])
    }

    pub fn pci_address(&self) -> Option<PciBusId> {
        (self.form == DeviceForm::PciAddress).then(|| PciBusId::normalized(&self.text))
    }

    /// The ID of the device of which it may be one of several slots: `GPU-…::3` without `::3`.
    pub fn without_slot(&self) -> &str {
        without_slot(&self.text)
    }

    /// Whether it names one of several slots of its device.
    #[must_use]
    pub const fn is_slot(&self) -> bool {
        matches!(
            self.form,
            DeviceForm::GpuSlot
                | DeviceForm::GpuVirtual
                | DeviceForm::MigSlot
                | DeviceForm::All { is_slot: true }
                | DeviceForm::Tegra { is_slot: true }
                | DeviceForm::Minor { is_slot: true, .. }
        )
    }
}

impl From<&str> for DeviceId {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<Arc<str>> for DeviceId {
    fn from(text: Arc<str>) -> Self {
        Self::new(text)
    }
}

impl From<DeviceId> for Arc<str> {
    fn from(id: DeviceId) -> Self {
        id.text
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl ResourceName {
    /// Whether its domain is one of NVIDIA's.
    pub fn is_of_nvidia(&self) -> bool {
        let domain = self.as_str().split_once('/').map_or("", |(domain, _)| domain);
        domain == "nvidia.com" || domain.ends_with(".nvidia.com")
    }
}

fn parse_device_id(id: &str) -> DeviceForm {
    let base = without_slot(id);
    parse_base(base, base.len() < id.len()).unwrap_or(DeviceForm::Other)
}

fn without_slot(id: &str) -> &str {
    id.rsplit_once("::").filter(|(_, slot)| number(slot).is_some()).map_or(id, |(base, _)| base)
}

fn parse_base(base: &str, is_slot: bool) -> Option<DeviceForm> {
    match base {
        "all" => return Some(DeviceForm::All { is_slot }),
        "tegra" => return Some(DeviceForm::Tegra { is_slot }),
        _ => {}
    }
    if let Some(uuid) = base.strip_prefix("MIG-") {
        let form = if is_slot { DeviceForm::MigSlot } else { DeviceForm::Mig };
        return is_uuid(uuid).then_some(form);
    }
    if let Some(rest) = base.strip_prefix("GPU-") {
        if is_uuid(rest) {
            return Some(if is_slot { DeviceForm::GpuSlot } else { DeviceForm::Gpu });
        }
        let (uuid, slot) = rest.rsplit_once('-')?;
        number(slot)?;
        return (is_uuid(uuid) && !is_slot).then_some(DeviceForm::GpuVirtual);
    }
    if let Some(rest) = base.strip_prefix("nvidia").filter(|_| !is_slot) {
        let mut parts = rest.split('/');
        let minor = number(parts.next()?)?;
        let mut next = parts.next();
        let gpu_instance = match next.and_then(|part| part.strip_prefix("gi")) {
            Some(gpu_instance) => {
                next = parts.next();
                Some(number(gpu_instance)?)
            }
            None => None,
        };
        let slot = match next {
            Some(part) => Some(number(part.strip_prefix("vgpu")?)?),
            None => None,
        };
        return parts.next().is_none().then_some(DeviceForm::Minor { minor, gpu_instance, is_slot: slot.is_some() });
    }
    (base.parse::<PciBusId>().is_ok() && !is_slot).then_some(DeviceForm::PciAddress)
}

fn parse_claim_device(driver: &str, device: &str) -> DeviceForm {
    match driver {
        "gpu.nvidia.com" => parse_nvidia_claim_device(device).unwrap_or(DeviceForm::DraUnknown),
        "compute-domain.nvidia.com" => DeviceForm::DraComputeDomain,
        _ => DeviceForm::DraOther,
    }
}

fn parse_nvidia_claim_device(device: &str) -> Option<DeviceForm> {
    let rest = device.strip_prefix("gpu-")?;
    if rest.starts_with("vfio-") {
        return Some(DeviceForm::DraOther);
    }
    let Some((minor, instance)) = rest.split_once("-mig-") else {
        return Some(DeviceForm::DraGpu { minor: number(rest)? });
    };
    let minor = number(minor)?;
    let mut from_the_end = instance.rsplitn(3, '-');
    let (last, middle, first) = (from_the_end.next()?, from_the_end.next()?, from_the_end.next()?);
    // Both generations end in two numbers. Only the older one starts with a number: a profile has letters (`1g12gb`).
    let (profile_id, placement_start) = match number(first) {
        Some(profile_id) => {
            number(last)?;
            (profile_id, number(middle)?)
        }
        None => (number(middle)?, number(last)?),
    };
    Some(DeviceForm::DraMig { minor, profile_id, placement_start })
}

/// The number in a text of decimal digits only: no sign, no white space.
fn number(text: &str) -> Option<u32> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// Whether the text is a UUID: 8-4-4-4-12 hexadecimal digits.
pub fn is_uuid(text: &str) -> bool {
    text.len() == UUID_LENGTH
        && text.bytes().enumerate().all(|(position, byte)| match position {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const U: &str = "5fb06b79-9d4d-4a0e-9d37-1c3c8f5a7e21";

    /// Every configuration in which an ID was observed, as (program, ID, form).
    #[test]
    fn every_known_device_plugin_id_has_its_form() {
        let minor = |minor, gpu_instance, is_slot| DeviceForm::Minor { minor, gpu_instance, is_slot };
        for (writer, id, expected) in [
            ("NVIDIA, whole GPU, uuid or index strategy", format!("GPU-{U}"), DeviceForm::Gpu),
            ("NVIDIA, MIG mixed or single", format!("MIG-{U}"), DeviceForm::Mig),
            ("NVIDIA, time-slicing or MPS", format!("GPU-{U}::3"), DeviceForm::GpuSlot),
            ("NVIDIA, time-slicing on MIG", format!("MIG-{U}::11"), DeviceForm::MigSlot),
            ("NVIDIA, WSL2", "all".into(), DeviceForm::All { is_slot: false }),
            ("NVIDIA, WSL2 shared", "all::2".into(), DeviceForm::All { is_slot: true }),
            ("NVIDIA, Tegra", "tegra".into(), DeviceForm::Tegra { is_slot: false }),
            ("NVIDIA, Tegra shared", "tegra::0".into(), DeviceForm::Tegra { is_slot: true }),
            ("GKE, whole GPU", "nvidia3".into(), minor(3, None, false)),
            ("GKE, MIG", "nvidia3/gi7".into(), minor(3, Some(7), false)),
            ("GKE, shared", "nvidia12/vgpu4".into(), minor(12, None, true)),
            ("GKE, shared MIG", "nvidia0/gi1/vgpu0".into(), minor(0, Some(1), true)),
            ("HAMi", format!("GPU-{U}-4"), DeviceForm::GpuVirtual),
            ("KubeVirt", "00000000:CA:00.0".into(), DeviceForm::PciAddress),
        ] {
            let id = DeviceId::new(id);
            assert_eq!(id.form(), expected, "{writer}: {id}");
            let has_uuid = id.as_str().contains(U);
            assert_eq!(id.gpu(), (has_uuid && id.as_str().starts_with("GPU")).then_some(&*format!("GPU-{U}")), "{id}");
            assert_eq!(id.mig(), (has_uuid && id.as_str().starts_with("MIG")).then_some(&*format!("MIG-{U}")), "{id}");
            let address = (expected == DeviceForm::PciAddress).then(|| "0000:ca:00.0".into());
            assert_eq!(id.pci_address(), address, "{id}");
        }
    }

    #[test]
    fn every_known_claim_device_has_its_form() {
        for (driver, device, expected) in [
            ("gpu.nvidia.com", "gpu-5", DeviceForm::DraGpu { minor: 5 }),
            (
                "gpu.nvidia.com",
                "gpu-0-mig-1g12gb-19-4",
                DeviceForm::DraMig { minor: 0, profile_id: 19, placement_start: 4 },
            ),
            (
                "gpu.nvidia.com",
                "gpu-1-mig-1g12gb-me-20-0",
                DeviceForm::DraMig { minor: 1, profile_id: 20, placement_start: 0 },
            ),
            ("gpu.nvidia.com", "gpu-0-mig-19-4-1", DeviceForm::DraMig { minor: 0, profile_id: 19, placement_start: 4 }),
            ("gpu.nvidia.com", "gpu-vfio-1", DeviceForm::DraOther),
            ("gpu.nvidia.com", "something-new", DeviceForm::DraUnknown),
            ("compute-domain.nvidia.com", "channel-0", DeviceForm::DraComputeDomain),
            ("compute-domain.nvidia.com", "daemon-0", DeviceForm::DraComputeDomain),
            ("test-driver.cdi.k8s.io", "gpu-0", DeviceForm::DraOther),
        ] {
            assert_eq!(DeviceId::of_claim(driver, device).form(), expected, "{driver} {device}");
        }
    }

    /// IDs that are almost valid: as long as a real ID, or one byte off. A wrong join is worse than none.
    #[test]
    fn what_fits_no_form_is_other() {
        for id in [
            "".to_owned(),
            "::".into(),
            "::1".into(),
            "Dev-1".into(),
            "gpu-3".into(),
            "nvidia".into(),
            "nvidia-3".into(),
            "nvidia+3".into(),
            "nvidia3/".into(),
            "nvidia3/gi".into(),
            "nvidia3/vgpu1/gi1".into(),
            "nvidia3/gi1/vgpu1/x".into(),
            "nvidia3::1".into(),
            "nvidia99999999999".into(),
            "GPU-".into(),
            format!("GPU-{U}::"),
            format!("GPU-{U}::-1"),
            format!("GPU-{U}::1::2"),
            format!("GPU-{U}-"),
            format!("GPU-{U}-x"),
            format!("GPU-{U}-1::1"),
            format!("gpu-{U}"),
            format!("GPU-{}", &U[1..]),
            format!("GPU-{U}é"),
            format!("MIG-{U}/1/0"),
            format!("MIG-GPU-{U}"),
            format!("MIG-GPU-{U}/1/0"),
            "0000:ca:00".into(),
            "ca:00.0".into(),
            "0000:3b:00.1::1".into(),
            "mlx5_0".into(),
        ] {
            assert_eq!(DeviceId::new(&*id).form(), DeviceForm::Other, "{id:?}");
        }
    }
}
