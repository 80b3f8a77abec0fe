//! Where the NVLinks of a GPU lead.

use nvml_wrapper_sys::bindings::{
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as SWITCH, nvmlPciInfo_t,
};

use super::calls::{Caller, Refusal, call, value};
use super::inventory::bus_id_in;
use super::library::Handle;
use super::slow::LINK_LIMIT;
use crate::model::{NvLinkPeers, PciBusId};

/// The remote ends of the active links; `None` without NVLink. A link whose remote end cannot be read is left out, with
/// the problem in the caller.
pub fn peers(caller: &mut Caller, handle: Handle) -> Option<NvLinkPeers> {
    let mut peers = None;
    for link in 0..LINK_LIMIT {
        let mut state = 0;
        let outcome = call!(caller, nvmlDeviceGetNvLinkState[link](handle.0, link, &raw mut state));
        match outcome {
            Ok(()) => {}
            Err(Refusal::Unsupported) => break,
            Err(_) if !caller.answers() => break,
            Err(_) => continue,
        }
        let peers: &mut NvLinkPeers = peers.get_or_insert_default();
        if state == 0 {
            continue;
        }
        if value!(caller, nvmlDeviceGetNvLinkRemoteDeviceType[link](handle.0, link)) == Some(SWITCH) {
            peers.switch_links += 1;
        } else if let Some(bus_id) = remote_bus_id(caller, handle, link) {
            *peers.by_bus_id.entry(bus_id).or_default() += 1;
        }
    }
    peers
}

fn remote_bus_id(caller: &mut Caller, handle: Handle, link: u32) -> Option<PciBusId> {
    // SAFETY: plain numbers and texts; all zeroes is a valid value.
    let mut info: nvmlPciInfo_t = unsafe { std::mem::zeroed() };
    call!(caller, nvmlDeviceGetNvLinkRemotePciInfo_v2[link](handle.0, link, &raw mut info)).ok()?;
    bus_id_in(&info)
}
