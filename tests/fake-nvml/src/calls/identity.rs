//! What a GPU is.

use std::ffi::{c_int, c_uint, c_ulong};

use nvml_wrapper_sys::bindings::{
    nvmlGridLicensableFeatures_t, nvmlGridLicenseFeatureCode_t_NVML_GRID_LICENSE_FEATURE_CODE_VGPU as VGPU,
    nvmlPciInfo_st, nvmlPciInfo_t,
};

use super::on_device;
use crate::codes::{Answer, Code, INVALID_ARGUMENT, NOT_SUPPORTED};
use crate::out::{Many, Out, Text, fill};
use crate::state::Gpu;

on_device! {
    nvmlDeviceGetName(name: Text, length: c_uint) |target| {
        match target.instance() {
            Some(_) if !target.gpu().mig.named_devices => name.put(&target.gpu().name, length),
            Some(instance) => name.put(&format!("{} MIG {}", target.gpu().name, instance.profile), length),
            None => name.put(&target.gpu().name, length),
        }
    }
    nvmlDeviceGetUUID(uuid: Text, length: c_uint) |target| {
        uuid.put(target.instance().map_or(&target.gpu().uuid, |instance| &instance.uuid), length)
    }
    nvmlDeviceGetMinorNumber(minor: Out<c_uint>) |target| {
        minor.put(target.whole()?.minor.ok_or(NOT_SUPPORTED)?)
    }
    nvmlDeviceGetIndex(index: Out<c_uint>) |target| {
        let own = target.instance().map_or(target.gpu().index, |instance| instance.index);
        index.put(own.ok_or(NOT_SUPPORTED)?)
    }
    nvmlDeviceGetPciInfo_v3(pci: Out<nvmlPciInfo_t>) |target| {
        pci.put(own_pci_info(target.gpu())?)
    }
    nvmlDeviceGetPciInfo_v2(pci: Out<nvmlPciInfo_t>) |target| {
        pci.put(own_pci_info(target.gpu())?)
    }
    nvmlDeviceGetArchitecture(architecture: Out<c_uint>) |target| {
        architecture.put(target.gpu().architecture)
    }
    nvmlDeviceGetBrand(brand: Out<c_uint>) |target| {
        brand.put(target.gpu().brand)
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
    nvmlDeviceGetGridLicensableFeatures_v4(features: Out<nvmlGridLicensableFeatures_t>) |target| {
        let license = target.whole()?.vgpu_license;
        let mut answer = features.get()?;
        answer.isGridLicenseSupported = license.is_some().into();
        answer.licensableFeaturesCount = license.is_some().into();
        answer.gridLicensableFeatures[0].featureCode = VGPU;
        answer.gridLicensableFeatures[0].featureState = license.unwrap_or(false).into();
        features.put(answer)
    }
    nvmlDeviceGetPersistenceMode(mode: Out<c_uint>) |target| {
        mode.put(target.whole()?.persistence_mode.into())
    }
    nvmlDeviceGetNumaNodeId(node: Out<c_uint>) |target| {
        node.put(numa_node(target.gpu())?)
    }
    nvmlDeviceGetMemoryAffinity(words: c_uint, set: Many<c_ulong>, _scope: c_uint) |target| {
        numa_set(numa_node(target.gpu())?, words, set)
    }
}

fn numa_node(gpu: &Gpu) -> Result<u32, Code> {
    gpu.numa_node.and_then(|node| u32::try_from(node).ok()).ok_or(NOT_SUPPORTED)
}

/// A bit set with one bit for the node.
fn numa_set(node: u32, words: c_uint, set: Many<c_ulong>) -> Answer {
    if set.is_null() || words == 0 {
        return Err(INVALID_ARGUMENT);
    }
    for word in 0..words {
        set.put(word as usize, if node / c_ulong::BITS == word { 1 << (node % c_ulong::BITS) } else { 0 });
    }
    Ok(())
}

fn own_pci_info(gpu: &Gpu) -> Result<nvmlPciInfo_t, Code> {
    pci_info(&gpu.pci_bus_id, gpu.pci_device_id, gpu.pci_subsystem_id)
}

/// From `domain:bus:device.function`.
pub(super) fn pci_info(bus_id: &str, device_id: u32, subsystem_id: u32) -> Result<nvmlPciInfo_t, Code> {
    let parts: Vec<u32> = bus_id.split([':', '.']).map_while(|part| u32::from_str_radix(part, 16).ok()).collect();
    let [domain, bus, device, _function] = parts[..] else { return Err(INVALID_ARGUMENT) };
    Ok(nvmlPciInfo_st {
        busIdLegacy: fill(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        pciDeviceId: device_id,
        pciSubSystemId: subsystem_id,
        busId: fill(bus_id),
    })
}
