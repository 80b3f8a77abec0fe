//! What a GPU is.

use std::ffi::{c_int, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlGridLicensableFeatures_t, nvmlGridLicenseFeatureCode_t_NVML_GRID_LICENSE_FEATURE_CODE_VGPU as VGPU,
    nvmlPciInfo_st, nvmlPciInfo_t,
};

use super::on_device;
use crate::codes::{Code, INVALID_ARGUMENT, NOT_SUPPORTED};
use crate::out::{Out, Text, fill};

on_device! {
    nvmlDeviceGetName(name: Text, length: c_uint) |target| {
        match target.instance() {
            Some(instance) if target.gpu().mig.named_devices => {
                name.put(&format!("{} MIG {}", target.gpu().name, instance.profile), length)
            }
            _ => name.put(&target.gpu().name, length),
        }
    }
    nvmlDeviceGetUUID(uuid: Text, length: c_uint) |target| {
        uuid.put(target.instance().map_or(&target.gpu().uuid, |instance| &instance.uuid), length)
    }
    nvmlDeviceGetMinorNumber(minor: Out<c_uint>) |target| {
        minor.put(target.whole()?.minor.ok_or(NOT_SUPPORTED)?)
    }
    nvmlDeviceGetPciInfo_v3(pci: Out<nvmlPciInfo_t>) |target| {
        pci.put(pci_info(&target.gpu().pci_bus_id)?)
    }
    nvmlDeviceGetArchitecture(architecture: Out<c_uint>) |target| {
        architecture.put(target.gpu().architecture)
    }
    nvmlDeviceGetCudaComputeCapability(major: Out<c_int>, minor: Out<c_int>) |target| {
        let (first, second) = target.gpu().compute_capability;
        major.put(first)?;
        minor.put(second)
    }
    nvmlDeviceGetVbiosVersion(version: Text, length: c_uint) |target| {
        version.put(&target.whole()?.vbios_version, length)
    }
    nvmlDeviceGetSerial(serial: Text, length: c_uint) |target| {
        serial.put(target.whole()?.serial.as_deref().ok_or(NOT_SUPPORTED)?, length)
    }
    nvmlDeviceGetVirtualizationMode(mode: Out<c_uint>) |target| { mode.put(target.whole()?.virtualization_mode) }
    nvmlDeviceGetGridLicensableFeatures_v4(features: Out<nvmlGridLicensableFeatures_t>) |target| {
        let license = target.whole()?.vgpu_license;
        let mut answer = features.get()?;
        answer.isGridLicenseSupported = license.is_some().into();
        answer.licensableFeaturesCount = license.is_some().into();
        answer.gridLicensableFeatures[0].featureCode = VGPU;
        answer.gridLicensableFeatures[0].featureState = license.unwrap_or(false).into();
        features.put(answer)
    }
}

/// From `domain:bus:device.function`; empty: all zeroes.
pub(super) fn pci_info(bus_id: &str) -> Result<nvmlPciInfo_t, Code> {
    let parts: Vec<u32> = bus_id.split([':', '.']).map_while(|part| u32::from_str_radix(part, 16).ok()).collect();
    let (legacy, [domain, bus, device]) = match parts[..] {
        [domain, bus, device, _function] => (format!("{domain:04X}:{bus:02X}:{device:02X}.0"), [domain, bus, device]),
        [] => (String::new(), [0; 3]),
        _ => return Err(INVALID_ARGUMENT),
    };
    Ok(nvmlPciInfo_st {
        busIdLegacy: fill(&legacy),
        domain,
        bus,
        device,
        pciDeviceId: 0,
        pciSubSystemId: 0,
        busId: fill(bus_id),
    })
}
