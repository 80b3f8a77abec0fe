//! Device IDs are strings of other programs. They are classified by their form, never by the resource name:
//! resources get renamed, and `nvidia.com/gpu` may mean a whole GPU, a slot of one, or a MIG device.

use crate::domain::model::{GpuUuid, MigUuid, PciBusId, ResourceName};

/// The form of a device ID: which kind of hardware it names, and by what. Its name is the value of the `form` label.
#[derive(Clone, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum DeviceForm {
    /// `GPU-<uuid>`
    #[strum(serialize = "gpu_uuid")]
    Gpu { uuid: GpuUuid },
    /// `GPU-<uuid>::<n>`: one slot of a time-sliced or MPS-shared GPU; the ID does not show which kind of sharing.
    #[strum(serialize = "gpu_uuid_replica")]
    GpuSlot { uuid: GpuUuid },
    /// `GPU-<uuid>-<n>`: HAMi's virtual GPU. HAMi itself may place the container elsewhere.
    #[strum(serialize = "gpu_uuid_virtual")]
    GpuVirtual { uuid: GpuUuid },
    /// `MIG-<uuid>`
    #[strum(serialize = "mig_uuid")]
    Mig { uuid: MigUuid },
    /// `MIG-<uuid>::<n>`
    #[strum(serialize = "mig_uuid_replica")]
    MigSlot { uuid: MigUuid },
    /// `all[::<n>]`: WSL2, every GPU at once.
    All { is_slot: bool },
    /// `tegra[::<n>]`: the one integrated GPU.
    Tegra { is_slot: bool },
    /// `nvidia<minor>[/gi<n>][/vgpu<n>]`: GKE's plugin.
    Minor { minor: u32, gpu_instance: Option<u32>, is_slot: bool },
    /// DRA `gpu-<minor>`
    DraGpu { minor: u32 },
    /// DRA `gpu-<minor>-mig-<profile>-<profile id>-<start>` (25.12 and newer), `gpu-<minor>-mig-<profile
    /// id>-<start>-<size>` before.
    DraMig { minor: u32, profile_id: u32, placement_start: u32 },
    /// `0000:ca:00.0`; other vendors' devices have one too.
    PciAddress { address: PciBusId },
    /// `channel-<n>`, `daemon-<n>` of the compute-domain driver: not a GPU.
    DraComputeDomain,
    /// A device of NVIDIA's driver for GPUs, of an unknown naming.
    DraUnknown,
    /// A device of some other DRA driver, or a GPU that NVIDIA's prepares for a virtual machine.
    DraOther,
    /// None of the above: another vendor's device.
    Other,
}

impl DeviceForm {
    /// The GPU that the ID names by its UUID: the whole of it, or a slot.
    pub const fn gpu(&self) -> Option<&GpuUuid> {
        match self {
            Self::Gpu { uuid } | Self::GpuSlot { uuid } | Self::GpuVirtual { uuid } => Some(uuid),
            _ => None,
        }
    }

    /// The MIG device that the ID names by its UUID: the whole of it, or a slot.
    pub const fn mig(&self) -> Option<&MigUuid> {
        match self {
            Self::Mig { uuid } | Self::MigSlot { uuid } => Some(uuid),
            _ => None,
        }
    }

    #[must_use]
    pub const fn is_pci_address(&self) -> bool {
        matches!(self, Self::PciAddress { .. })
    }

    /// Whether the ID names one of several slots of its device.
    #[must_use]
    pub const fn is_slot(&self) -> bool {
        matches!(
            self,
            Self::GpuSlot { .. }
                | Self::GpuVirtual { .. }
                | Self::MigSlot { .. }
                | Self::All { is_slot: true }
                | Self::Tegra { is_slot: true }
                | Self::Minor { is_slot: true, .. }
        )
    }
}

/// The form of a device-plugin ID. Every string has one.
pub fn parse_device_id(id: &str) -> DeviceForm {
    let (base, is_slot) = match id.rsplit_once("::") {
        Some((base, n)) if number(n).is_some() => (base, true),
        _ => (id, false),
    };
    parse_base(base, is_slot).unwrap_or(DeviceForm::Other)
}

fn parse_base(base: &str, is_slot: bool) -> Option<DeviceForm> {
    match base {
        "all" => return Some(DeviceForm::All { is_slot }),
        "tegra" => return Some(DeviceForm::Tegra { is_slot }),
        _ => {}
    }
    if let Some(uuid) = base.strip_prefix("MIG-") {
        let whole = is_uuid(uuid).then(|| MigUuid::from(base))?;
        return Some(if is_slot { DeviceForm::MigSlot { uuid: whole } } else { DeviceForm::Mig { uuid: whole } });
    }
    if let Some(rest) = base.strip_prefix("GPU-") {
        if is_uuid(rest) {
            let uuid = GpuUuid::from(base);
            return Some(if is_slot { DeviceForm::GpuSlot { uuid } } else { DeviceForm::Gpu { uuid } });
        }
        let (uuid, slot) = rest.rsplit_once('-')?;
        number(slot)?;
        return (is_uuid(uuid) && !is_slot)
            .then(|| DeviceForm::GpuVirtual { uuid: GpuUuid::new(format!("GPU-{uuid}")) });
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
    base.parse().ok().filter(|_| !is_slot).map(|address| DeviceForm::PciAddress { address })
}

/// Whether the resource is of a domain of NVIDIA.
pub fn is_domain_of_nvidia(resource: &ResourceName) -> bool {
    let domain = resource.as_str().split_once('/').map_or("", |(domain, _)| domain);
    domain == "nvidia.com" || domain.ends_with(".nvidia.com")
}

/// The form of a DRA device, named by its driver.
pub fn parse_claim_device(driver: &str, device: &str) -> DeviceForm {
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
    // Both generations end in two numbers. Only the older starts with one: a profile has letters (`1g12gb`).
    let (profile_id, placement_start) = match number(first) {
        Some(profile_id) => {
            number(last)?;
            (profile_id, number(middle)?)
        }
        None => (number(middle)?, number(last)?),
    };
    Some(DeviceForm::DraMig { minor, profile_id, placement_start })
}

/// Decimal digits only: no sign, no white space.
fn number(text: &str) -> Option<u32> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// 8-4-4-4-12 hexadecimal digits.
pub fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(position, byte)| match position {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const U: &str = "5fb06b79-9d4d-4a0e-9d37-1c3c8f5a7e21";

    fn gpu() -> GpuUuid {
        GpuUuid::new(format!("GPU-{U}"))
    }

    fn mig() -> MigUuid {
        MigUuid::new(format!("MIG-{U}"))
    }

    /// Every configuration in which an ID has been seen, as (who writes it, id, form).
    #[test]
    fn every_known_device_plugin_id_has_its_form() {
        let minor = |minor, gpu_instance, is_slot| DeviceForm::Minor { minor, gpu_instance, is_slot };
        for (writer, id, expected) in [
            ("NVIDIA, whole GPU, uuid or index strategy", format!("GPU-{U}"), DeviceForm::Gpu { uuid: gpu() }),
            ("NVIDIA, MIG mixed or single", format!("MIG-{U}"), DeviceForm::Mig { uuid: mig() }),
            ("NVIDIA, time-slicing or MPS", format!("GPU-{U}::3"), DeviceForm::GpuSlot { uuid: gpu() }),
            ("NVIDIA, time-slicing on MIG", format!("MIG-{U}::11"), DeviceForm::MigSlot { uuid: mig() }),
            ("NVIDIA, WSL2", "all".into(), DeviceForm::All { is_slot: false }),
            ("NVIDIA, WSL2 shared", "all::2".into(), DeviceForm::All { is_slot: true }),
            ("NVIDIA, Tegra", "tegra".into(), DeviceForm::Tegra { is_slot: false }),
            ("NVIDIA, Tegra shared", "tegra::0".into(), DeviceForm::Tegra { is_slot: true }),
            ("GKE, whole GPU", "nvidia3".into(), minor(3, None, false)),
            ("GKE, MIG", "nvidia3/gi7".into(), minor(3, Some(7), false)),
            ("GKE, shared", "nvidia12/vgpu4".into(), minor(12, None, true)),
            ("GKE, shared MIG", "nvidia0/gi1/vgpu0".into(), minor(0, Some(1), true)),
            ("HAMi", format!("GPU-{U}-4"), DeviceForm::GpuVirtual { uuid: gpu() }),
            ("KubeVirt", "00000000:CA:00.0".into(), DeviceForm::PciAddress { address: "0000:ca:00.0".into() }),
        ] {
            assert_eq!(parse_device_id(&id), expected, "{writer}: {id}");
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
            assert_eq!(parse_claim_device(driver, device), expected, "{driver} {device}");
        }
    }

    /// Near misses: as long as a real ID, or one byte off. A wrong join is worse than none.
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
            assert_eq!(parse_device_id(&id), DeviceForm::Other, "{id:?}");
        }
    }
}
