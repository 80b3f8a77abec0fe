//! PCIe, NVLink and the NVLink fabric.

use std::ffi::{c_uchar, c_uint};
use std::mem::size_of;

use nvml_wrapper_sys::bindings::{nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlPciInfo_t};

use super::identity::pci_info;
use super::on_device;
use crate::codes::{ARGUMENT_VERSION_MISMATCH, Code, INVALID_ARGUMENT, NOT_SUPPORTED};
use crate::gate::Target;
use crate::library::wait;
use crate::out::Out;
use crate::state::{Fabric, Remote};
use crate::versions;

/// The driver counts for as long before it answers.
const THROUGHPUT_MICROS: u64 = 20_000;

on_device! {
    nvmlDeviceGetPcieReplayCounter(count: Out<c_uint>) |target| { count.put(target.whole()?.pcie.replay) }
    nvmlDeviceGetCurrPcieLinkGeneration(generation: Out<c_uint>) |target| {
        generation.put(target.whole()?.pcie.generation)
    }
    nvmlDeviceGetMaxPcieLinkGeneration(generation: Out<c_uint>) |target| {
        generation.put(target.whole()?.pcie.max_generation)
    }
    nvmlDeviceGetGpuMaxPcieLinkGeneration(generation: Out<c_uint>) |target| {
        generation.put(target.whole()?.pcie.max_generation)
    }
    nvmlDeviceGetCurrPcieLinkWidth(width: Out<c_uint>) |target| { width.put(target.whole()?.pcie.width) }
    nvmlDeviceGetMaxPcieLinkWidth(width: Out<c_uint>) |target| { width.put(target.whole()?.pcie.max_width) }
    nvmlDeviceGetPcieThroughput(counter: c_uint, value: Out<c_uint>) |target| {
        let pcie = &target.whole()?.pcie;
        let rate = match counter {
            0 => pcie.tx_kilobytes_per_second,
            1 => pcie.rx_kilobytes_per_second,
            _ => return Err(INVALID_ARGUMENT),
        };
        wait(THROUGHPUT_MICROS);
        value.put(rate)
    }
    nvmlDeviceGetNvLinkState(link: c_uint, active: Out<c_uint>) |target| { active.put(link_up(target, link)?.into()) }
    nvmlDeviceGetNvLinkVersion(link: c_uint, version: Out<c_uint>) |target| {
        link_up(target, link)?;
        version.put(target.gpu().nvlink.version)
    }
    nvmlDeviceGetNvLinkRemoteDeviceType(link: c_uint, kind: Out<c_uint>) |target| {
        kind.put(remote(target, link)?.device_type)
    }
    nvmlDeviceGetNvLinkRemotePciInfo_v2(link: c_uint, pci: Out<nvmlPciInfo_t>) |target| {
        let remote = remote(target, link)?;
        pci.put(pci_info(&remote.pci_bus_id, remote.pci_device_id, 0)?)
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
