//! PCIe, NVLink, the NVLink fabric, NVLink-C2C and the GPU's place in the chassis.

use std::ffi::{c_uchar, c_uint};
use std::mem::size_of;

use nvml_wrapper_sys::bindings::{
    nvmlC2cModeInfo_v1_t, nvmlDevice_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t,
    nvmlPciInfo_t, nvmlPlatformInfo_v2_t,
};

use super::identity::pci_info;
use super::on_device;
use crate::codes::{ARGUMENT_VERSION_MISMATCH, Code, INVALID_ARGUMENT, NOT_SUPPORTED};
use crate::gate::Target;
use crate::handles::Handle;
use crate::library::library;
use crate::out::Out;
use crate::state::{Fabric, Remote};
use crate::versions;

/// nvmlGpuTopologyLevel_t.
const SAME_NODE: c_uint = 40;
const SYSTEM: c_uint = 50;

on_device! {
    nvmlDeviceGetPcieReplayCounter(count: Out<c_uint>) |target| { count.put(target.whole()?.pcie.replay) }
    nvmlDeviceGetCurrPcieLinkGeneration(generation: Out<c_uint>) |target| {
        generation.put(target.whole()?.pcie.generation)
    }
    nvmlDeviceGetMaxPcieLinkGeneration(generation: Out<c_uint>) |target| {
        generation.put(target.whole()?.pcie.max_generation)
    }
    nvmlDeviceGetCurrPcieLinkWidth(width: Out<c_uint>) |target| { width.put(target.whole()?.pcie.width) }
    nvmlDeviceGetMaxPcieLinkWidth(width: Out<c_uint>) |target| { width.put(target.whole()?.pcie.max_width) }
    nvmlDeviceGetPcieThroughput(_counter: c_uint, kilobytes: Out<c_uint>) |target| {
        target.whole()?;
        kilobytes.put(0)
    }
    nvmlDeviceGetNvLinkState(link: c_uint, active: Out<c_uint>) |target| { active.put(link_up(target, link)?.into()) }
    nvmlDeviceGetNvLinkRemoteDeviceType(link: c_uint, kind: Out<c_uint>) |target| {
        kind.put(remote(target, link)?.device_type)
    }
    nvmlDeviceGetNvLinkRemotePciInfo_v2(link: c_uint, pci: Out<nvmlPciInfo_t>) |target| {
        let remote = remote(target, link)?;
        pci.put(pci_info(&remote.pci_bus_id)?)
    }
    nvmlDeviceGetTopologyCommonAncestor(other: nvmlDevice_t, level: Out<c_uint>) |target| {
        let uuid = library().uuid(Handle::from_pointer(other)).ok_or(INVALID_ARGUMENT)?.to_owned();
        let other = target.machine.gpu(&uuid).ok_or(INVALID_ARGUMENT)?;
        level.put(if other.numa_node == target.whole()?.numa_node { SAME_NODE } else { SYSTEM })
    }
    nvmlDeviceGetGpuFabricInfo(info: Out<nvmlGpuFabricInfo_t>) |target| {
        let fabric = fabric(target)?;
        info.put(nvmlGpuFabricInfo_t {
            clusterUuid: fabric.cluster_uuid,
            status: fabric.status,
            cliqueId: fabric.clique_id,
            state: fabric.state as c_uchar,
        })
    }
    nvmlDeviceGetGpuFabricInfoV(info: Out<nvmlGpuFabricInfo_v3_t>) |target| {
        let fabric = fabric(target)?;
        let version = info.cast::<c_uint>().get()?;
        let (clusterUuid, status, cliqueId) = (fabric.cluster_uuid, fabric.status, fabric.clique_id);
        let (state, healthMask, healthSummary) = (fabric.state, fabric.health_mask, fabric.health_summary);
        if version == versions::word(3, size_of::<nvmlGpuFabricInfo_v3_t>()) {
            return info.put(nvmlGpuFabricInfo_v3_t {
                version, clusterUuid, status, cliqueId, state, healthMask, healthSummary,
            });
        }
        if version == versions::word(2, size_of::<nvmlGpuFabricInfo_v2_t>()) {
            let info = info.cast::<nvmlGpuFabricInfo_v2_t>();
            return info.put(nvmlGpuFabricInfo_v2_t { version, clusterUuid, status, cliqueId, state, healthMask });
        }
        Err(ARGUMENT_VERSION_MISMATCH)
    }
    nvmlDeviceGetPlatformInfo(info: Out<nvmlPlatformInfo_v2_t>) |target| {
        let platform = target.whole()?.platform.as_ref().ok_or(NOT_SUPPORTED)?;
        let version = info.cast::<c_uint>().get()?;
        // Both versions have the same size and places.
        if !(1..=platform.version).any(|number| version == versions::word(number, size_of::<nvmlPlatformInfo_v2_t>())) {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        let mut chassisSerialNumber = [0; 16];
        for (place, byte) in chassisSerialNumber.iter_mut().zip(platform.chassis_serial.bytes()) {
            *place = byte;
        }
        info.put(nvmlPlatformInfo_v2_t {
            version,
            ibGuid: [0; 16],
            chassisSerialNumber,
            slotNumber: platform.slot,
            trayIndex: platform.tray,
            hostId: platform.host,
            peerType: platform.peer_type,
            moduleId: platform.module_id,
        })
    }
    nvmlDeviceGetC2cModeInfoV(info: Out<nvmlC2cModeInfo_v1_t>) |target| {
        let c2c = target.whole()?.c2c.as_ref().ok_or(NOT_SUPPORTED)?;
        info.put(nvmlC2cModeInfo_v1_t { isC2cEnabled: c2c.enabled.into() })
    }
}

fn link_up(target: &Target, link: u32) -> Result<bool, Code> {
    let nvlink = &target.whole()?.nvlink;
    match (nvlink.links, link) {
        (0, _) => Err(NOT_SUPPORTED),
        (links, link) if link >= links => Err(INVALID_ARGUMENT),
        _ => Ok(!nvlink.down.contains(&link)),
    }
}

fn remote(target: &Target, link: u32) -> Result<&Remote, Code> {
    link_up(target, link)?;
    let nvlink = &target.gpu().nvlink;
    Ok(nvlink.remotes.get(&link).unwrap_or(&nvlink.remote))
}

fn fabric(target: &Target) -> Result<Fabric, Code> {
    let none = Fabric { state: 0, health_mask: 0, health_summary: 0, ..Fabric::default() };
    Ok(target.whole()?.fabric.clone().unwrap_or(none))
}
