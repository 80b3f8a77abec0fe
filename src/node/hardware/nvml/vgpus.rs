//! The vGPUs of a host, and whether a GPU is virtualized.
//!
//! In: NVML's vGPU instances of one GPU. Out: one reading for each. A GPU that is no host of vGPUs is asked once for its
//! mode, and for nothing else.

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::Arc;

use nvml_wrapper_sys::bindings::{nvmlVgpuInstanceUtilizationSample_t, nvmlVgpuLicenseInfo_t};

use super::calls::{Caller, call, fill, read_text, text, value};
use super::library::DeviceHandle;
use crate::domain::model::Vgpu;
use crate::node::hardware::plausible;

/// In the order of the header; the first is bare metal.
const MODES: [Option<&str>; 5] = [None, Some("passthrough"), Some("vgpu"), Some(HOST_VGPU), Some("host_vsga")];
const HOST_VGPU: &str = "host_vgpu";
/// More vGPUs than a GPU can have.
const LARGEST: usize = 256;
const CAPACITY: usize = 8;

#[derive(Default)]
pub struct VgpuReader {
    /// The mode changes with the driver alone; read until the driver returns it.
    mode: Option<c_uint>,
    /// The time of the last sample, by the driver's clock.
    last_sample: u64,
}

impl VgpuReader {
    pub fn virtualization(&mut self, caller: &mut Caller, handle: DeviceHandle) -> Option<&'static str> {
        self.mode = self.mode.or_else(|| value!(caller, nvmlDeviceGetVirtualizationMode(handle.0)));
        MODES.get(self.mode? as usize).copied().flatten()
    }

    /// The vGPUs that run; empty on a GPU that is no host of vGPUs.
    pub fn read(&mut self, caller: &mut Caller, handle: DeviceHandle, virtualization: Option<&str>) -> Vec<Vgpu> {
        if virtualization != Some(HOST_VGPU) {
            return vec![];
        }
        let running = fill(0, CAPACITY, LARGEST, |instances, count| {
            call!(caller, nvmlDeviceGetActiveVgpus(handle.0, &raw mut *count, instances))
        });
        let Ok(running) = running else { return vec![] };
        let utilization = self.utilization(caller, handle);
        running.into_iter().filter_map(|instance| describe(caller, instance, &utilization)).collect()
    }

    /// SM use since the last pass, by vGPU. One without a sample is absent.
    fn utilization(&mut self, caller: &mut Caller, handle: DeviceHandle) -> BTreeMap<c_uint, f64> {
        // SAFETY: numbers only; all zeroes is a valid value.
        let blank: nvmlVgpuInstanceUtilizationSample_t = unsafe { std::mem::zeroed() };
        let since = self.last_sample;
        let mut kind = 0;
        let samples = fill(blank, CAPACITY, LARGEST, |samples, count| {
            call!(caller, nvmlDeviceGetVgpuUtilization(handle.0, since, &raw mut kind, &raw mut *count, samples))
        });
        let mut by_instance = BTreeMap::new();
        for sample in samples.unwrap_or_default().into_iter().filter(|sample| sample.timeStamp > since) {
            self.last_sample = self.last_sample.max(sample.timeStamp);
            // SAFETY: the driver's type of these values is unsigned int, and every bit pattern is one.
            let ratio = f64::from(unsafe { sample.smUtil.uiVal }) / 100.0;
            by_instance
                .extend(caller.plausible(&plausible::UTILIZATION, ratio).map(|ratio| (sample.vgpuInstance, ratio)));
        }
        by_instance
    }
}

/// `None` for a vGPU that has ended meanwhile.
fn describe(caller: &mut Caller, instance: c_uint, utilization: &BTreeMap<c_uint, f64>) -> Option<Vgpu> {
    let uuid = text!(caller, nvmlVgpuInstanceGetUUID(instance))?;
    let kind: Option<c_uint> = value!(caller, nvmlVgpuInstanceGetType(instance));
    let total: Option<u64> = kind.and_then(|kind| value!(caller, nvmlVgpuTypeGetFramebufferSize(kind)));
    let used: Option<u64> = value!(caller, nvmlVgpuInstanceGetFbUsage(instance));
    let mut plausible =
        |bytes: Option<u64>| bytes.filter(|bytes| caller.plausible(&plausible::MEMORY, *bytes as f64).is_some());
    let (used, total) = (plausible(used), plausible(total));
    Some(Vgpu {
        uuid,
        mdev_uuid: text!(caller, nvmlVgpuInstanceGetMdevUUID(instance)),
        vgpu_type: kind.and_then(|kind| type_name(caller, kind)),
        vm_id: vm_id(caller, instance),
        memory_used_bytes: used,
        memory_total_bytes: total,
        sm_utilization_ratio: utilization.get(&instance).copied(),
        license_state: license_state(caller, instance),
    })
}

fn type_name(caller: &mut Caller, kind: c_uint) -> Option<Arc<str>> {
    let (mut buffer, mut size) = ([0; 96], 96);
    call!(caller, nvmlVgpuTypeGetName(kind, buffer.as_mut_ptr(), &raw mut size)).ok()?;
    read_text(&buffer)
}

fn vm_id(caller: &mut Caller, instance: c_uint) -> Option<Arc<str>> {
    let (mut buffer, mut kind) = ([0; 96], 0);
    call!(caller, nvmlVgpuInstanceGetVmID(instance, buffer.as_mut_ptr(), 96, &raw mut kind)).ok()?;
    read_text(&buffer)
}

fn license_state(caller: &mut Caller, instance: c_uint) -> Option<&'static str> {
    let info: nvmlVgpuLicenseInfo_t = value!(caller, nvmlVgpuInstanceGetLicenseInfo_v2(instance))?;
    Vgpu::LICENSE_STATES.get(info.currentState as usize).copied()
}
