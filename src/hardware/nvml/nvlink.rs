//! The NVLinks of a GPU: where they lead, their state, and their counters.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as SWITCH;

use super::calls::{CallRefusal, Caller, bus_id_in, fetch, value};
use super::library::DeviceHandle;
use super::rows::{self, FieldRow, ReadingRow, ReadingSource, row};
use crate::domain::model::{LinkCounters, NvLink, NvLinkPeers};
use crate::hardware::plausible;

/// The most links in the header; the driver stops earlier.
const LINK_LIMIT: u32 = 36;
const ALL_LINKS: u32 = u32::MAX;
/// The traffic of one link up to NVLink 4, in KiB.
const DATA: &[ReadingRow<LinkCounters>] =
    &[row!(transmitted_bytes = wide 138: TRANSFERRED * 1024.0), row!(received_bytes = wide 139: TRANSFERRED * 1024.0)];
/// The traffic of one link of NVLink 5, in bytes.
const BYTES: &[ReadingRow<LinkCounters>] =
    &[row!(transmitted_bytes = wide 202: TRANSFERRED), row!(received_bytes = wide 204: TRANSFERRED)];
const ERRORS: &[ReadingRow<LinkCounters>] = &[
    row!(errors["replay"] = field 161: ERRORS),
    row!(errors["recovery"] = field 162: ERRORS),
    row!(errors["crc"] = field 163: ERRORS),
];
const ERRORS5: &[ReadingRow<LinkCounters>] = &[
    row!(errors["malformed_packet"] = field 206: ERRORS),
    row!(errors["buffer_overrun"] = field 207: ERRORS),
    row!(errors["receive"] = field 208: ERRORS),
    row!(errors["receive_remote"] = field 209: ERRORS),
    row!(errors["receive_general"] = field 210: ERRORS),
    row!(errors["local_link_integrity"] = field 211: ERRORS),
    row!(errors["transmit_discard"] = field 212: ERRORS),
    row!(errors["recovery_failed"] = field 214: ERRORS),
    row!(errors["recovery"] = field 215: ERRORS),
];
/// The errors of all links; only the newest ID needs a scope for that.
const ERROR_SUMS: &[ReadingRow<NvLink>] = &[
    row!(error_sums["crc_flit"] = field 38: ERRORS),
    row!(error_sums["crc_data"] = field 45: ERRORS),
    row!(error_sums["replay"] = field 52: ERRORS),
    row!(error_sums["recovery"] = field 59: ERRORS),
    row!(error_sums["recovery_successful"] = field 213[ALL_LINKS]: ERRORS),
];

/// The names of the error counters of each link.
pub fn error_names(nvlink5: bool) -> impl Iterator<Item = &'static str> {
    let rows = if nvlink5 { ERRORS5 } else { ERRORS };
    let mut link = LinkCounters::default();
    rows::set(rows.iter(), rows.iter().map(|_| Some(0.0)), &mut link);
    link.errors.into_keys()
}

type LinkCountersByNumber = BTreeMap<u32, LinkCounters>;

#[derive(Default)]
pub struct NvLinkReader {
    /// Whether the GPU has the error counters of NVLink 5.
    nvlink5: bool,
}

impl NvLinkReader {
    pub fn read(&mut self, caller: &mut Caller, handle: DeviceHandle) -> NvLink {
        let Some(states) = states(caller, handle) else { return NvLink::default() };
        let active = (0..).zip(&states).filter(|(_, is_active)| **is_active);
        let mut links: LinkCountersByNumber = active.map(|(link, _)| (link, LinkCounters::default())).collect();
        // `Monotone` sums them, with the links that are down.
        if !read_links(caller, handle, DATA, &mut links) {
            read_links(caller, handle, BYTES, &mut links);
        }
        if self.nvlink5 || !read_links(caller, handle, ERRORS, &mut links) {
            self.nvlink5 = read_links(caller, handle, ERRORS5, &mut links);
        }
        let mut nvlink = NvLink {
            active_links: u32::try_from(links.len()).ok(),
            inactive_links: u32::try_from(states.len() - links.len()).ok(),
            of_links: links,
            ..NvLink::default()
        };
        rows::read(caller, handle, ERROR_SUMS.iter(), &mut nvlink);
        nvlink
    }
}

/// Whether each link is active; `None` without NVLink, or where one cannot be read.
fn states(caller: &mut Caller, handle: DeviceHandle) -> Option<Vec<bool>> {
    let mut states = vec![];
    for link in 0..LINK_LIMIT {
        match fetch!(caller, 0, nvmlDeviceGetNvLinkState[link](handle.0, link)) {
            Ok(state) => states.push(state != 0),
            Err(CallRefusal::Unsupported) => break,
            Err(_) => return None,
        }
    }
    Some(states).filter(|states| !states.is_empty())
}

/// Reads these fields of every link, in one call. Returns false where none has a value.
fn read_links(
    caller: &mut Caller,
    handle: DeviceHandle,
    rows: &[ReadingRow<LinkCounters>],
    links: &mut LinkCountersByNumber,
) -> bool {
    let fields_of = |link: u32| rows.iter().filter_map(move |row| Some(row.field()?.with_scope(link)));
    let fields: Vec<FieldRow> = links.keys().copied().flat_map(fields_of).collect();
    let values = rows::fields(caller, handle, &fields);
    let mut any = false;
    for (counters, values) in links.values_mut().zip(values.chunks(rows.len())) {
        any |= rows::set(rows.iter(), values.iter().copied(), counters);
    }
    any
}

/// The remote ends of the active links; `None` without NVLink. A link whose remote end cannot be read is left out, with
/// the problem in the caller.
pub fn peers(caller: &mut Caller, handle: DeviceHandle) -> Option<NvLinkPeers> {
    let mut peers = NvLinkPeers::default();
    for (link, _) in (0..).zip(states(caller, handle)?).filter(|(_, is_active)| *is_active) {
        if value!(caller, nvmlDeviceGetNvLinkRemoteDeviceType[link](handle.0, link)) == Some(SWITCH) {
            peers.switch_links += 1;
        } else if let Some(info) = value!(caller, nvmlDeviceGetNvLinkRemotePciInfo_v2[link](handle.0, link))
            && let Some(bus_id) = bus_id_in(&info)
        {
            *peers.by_bus_id.entry(bus_id).or_default() += 1;
        }
    }
    Some(peers)
}
