//! The NVLinks of a GPU: where they lead, their state, and their counters.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::{
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as SWITCH, nvmlPciInfo_t,
};

use super::calls::{CallRefusal, Caller, bus_id_in, call, value};
use super::fields::{self, FieldRow};
use super::library::DeviceHandle;
use crate::domain::model::{LinkCounters, NvLink, NvLinkPeers, PciBusId};
use crate::node::hardware::plausible;

/// The highest number in the header; the driver stops before.
const LINK_LIMIT: u32 = 36;
const ALL_LINKS: u32 = u32::MAX;
const TRANSMITTED: &str = "transmitted";
const RECEIVED: &str = "received";
/// KiB of one link or over all links, up to NVLink 4.
const DATA: [(FieldRow, &str); 2] = [(bytes(138, 1.0 / 1024.0), TRANSMITTED), (bytes(139, 1.0 / 1024.0), RECEIVED)];
/// Bytes of one link, NVLink 5.
const BYTES: [(FieldRow, &str); 2] = [(bytes(202, 1.0), TRANSMITTED), (bytes(204, 1.0), RECEIVED)];
const ERRORS: [(FieldRow, &str); 3] = [(errors(161), "replay"), (errors(162), "recovery"), (errors(163), "crc")];
const ERRORS5: [(FieldRow, &str); 9] = [
    (errors(206), "malformed_packet"),
    (errors(207), "buffer_overrun"),
    (errors(208), "receive"),
    (errors(209), "receive_remote"),
    (errors(210), "receive_general"),
    (errors(211), "local_link_integrity"),
    (errors(212), "transmit_discard"),
    (errors(214), "recovery_failed"),
    (errors(215), "recovery"),
];
/// Of one link, NVLink 5.
const BIT_ERRORS: [(FieldRow, &str); 2] = [(FieldRow::plain(220), "effective"), (FieldRow::plain(222), "symbol")];
/// Over all links, with the scope of that: the older ids have none.
const ERROR_SUMS: [(FieldRow, &str); 5] = [
    (errors(38), "crc_flit"),
    (errors(45), "crc_data"),
    (errors(52), "replay"),
    (errors(59), "recovery"),
    (errors(213).of(ALL_LINKS), "recovery_successful"),
];

const fn bytes(id: u32, per: f64) -> FieldRow {
    FieldRow::rising_fast(id, &plausible::TRANSFERRED, per)
}

const fn errors(id: u32) -> FieldRow {
    FieldRow::new(id, &plausible::ERRORS)
}

/// Of the counters of each link.
pub fn error_names(nvlink5: bool) -> Vec<&'static str> {
    let counters: &[(FieldRow, &str)] = if nvlink5 { &ERRORS5 } else { &ERRORS };
    counters.iter().map(|(_, name)| *name).collect()
}

/// Values by link and name.
type ByLink = BTreeMap<u32, BTreeMap<&'static str, f64>>;

#[derive(Default)]
pub struct NvLinkReader {
    /// The GPU has the error counters of NVLink 5.
    nvlink5: bool,
}

impl NvLinkReader {
    pub fn read(&mut self, caller: &mut Caller, handle: DeviceHandle) -> NvLink {
        let Some(states) = states(caller, handle) else { return NvLink::default() };
        let active: Vec<u32> = (0..).zip(&states).filter(|(_, is_active)| **is_active).map(|(link, _)| link).collect();
        let mut bytes = per_link(caller, handle, &DATA, &active);
        if bytes.is_empty() {
            bytes = per_link(caller, handle, &BYTES, &active);
        }
        let mut errors = if self.nvlink5 { ByLink::new() } else { per_link(caller, handle, &ERRORS, &active) };
        if errors.is_empty() {
            errors = per_link(caller, handle, &ERRORS5, &active);
            self.nvlink5 = !errors.is_empty();
        }
        let ratios = if self.nvlink5 { per_link(caller, handle, &BIT_ERRORS, &active) } else { ByLink::new() };
        let mut ratio = |(name, bits)| Some((name, caller.plausible(&plausible::BIT_ERRORS, bit_error_ratio(bits))?));
        let of = |values: &ByLink, link: &u32| values.get(link).cloned().unwrap_or_default();
        let mut counters = |link: &u32| LinkCounters {
            transmitted_bytes: of(&bytes, link).get(TRANSMITTED).copied(),
            received_bytes: of(&bytes, link).get(RECEIVED).copied(),
            errors: counts(of(&errors, link)),
            bit_error_ratios: of(&ratios, link).into_iter().filter_map(&mut ratio).collect(),
        };
        let of_links: BTreeMap<u32, LinkCounters> = active.iter().map(|link| (*link, counters(link))).collect();
        let sums = fields::read(caller, handle, &ERROR_SUMS.map(|(row, _)| row));
        let mut nvlink = NvLink {
            active_links: u32::try_from(active.len()).ok(),
            inactive_links: u32::try_from(states.len() - active.len()).ok(),
            error_sums: counts(fields::named(ERROR_SUMS.iter().map(|(_, name)| name), &sums)),
            ..NvLink::default()
        };
        nvlink.sum_link_bytes(of_links.values());
        nvlink.sum_link_errors(of_links.values());
        nvlink.of_links = of_links;
        if bytes.is_empty() {
            let sums = fields::read(caller, handle, &DATA.map(|(row, _)| row.of(ALL_LINKS)));
            (nvlink.transmitted_bytes, nvlink.received_bytes) = (sums[0], sums[1]);
        }
        nvlink
    }
}

/// Whether each link is active; `None` without NVLink, or where one cannot be read.
fn states(caller: &mut Caller, handle: DeviceHandle) -> Option<Vec<bool>> {
    let mut states = vec![];
    for link in 0..LINK_LIMIT {
        let mut state = 0;
        match call!(caller, nvmlDeviceGetNvLinkState[link](handle.0, link, &raw mut state)) {
            Ok(()) => states.push(state != 0),
            Err(CallRefusal::Unsupported) => break,
            Err(_) => return None,
        }
    }
    Some(states).filter(|states| !states.is_empty())
}

/// These fields of every link, in one call. Links without a value are left out.
fn per_link(caller: &mut Caller, handle: DeviceHandle, rows: &[(FieldRow, &'static str)], links: &[u32]) -> ByLink {
    let wanted: Vec<FieldRow> = links.iter().flat_map(|link| rows.iter().map(|(row, _)| row.of(*link))).collect();
    let values = fields::read(caller, handle, &wanted);
    let of_link = values.chunks(rows.len()).map(|values| fields::named(rows.iter().map(|(_, name)| name), values));
    links.iter().copied().zip(of_link).filter(|(_, values)| !values.is_empty()).collect()
}

fn counts(values: BTreeMap<&'static str, f64>) -> BTreeMap<&'static str, u64> {
    values.into_iter().map(|(name, count)| (name, count as u64)).collect()
}

/// An exponent in the bits 0 to 7 and a mantissa in 8 to 11: 0x20c is 2e-12. All ones are no error.
fn bit_error_ratio(encoded: f64) -> f64 {
    let encoded = encoded as u64;
    let (exponent, mantissa) = (encoded & 0xff, encoded >> 8 & 0xf);
    if (exponent, mantissa) == (0xff, 0xf) { 0.0 } else { mantissa as f64 * 10_f64.powi(-(exponent as i32)) }
}

/// The remote ends of the active links; `None` without NVLink. A link whose remote end cannot be read is left out, with
/// the problem in the caller.
pub fn peers(caller: &mut Caller, handle: DeviceHandle) -> Option<NvLinkPeers> {
    let mut peers = NvLinkPeers::default();
    for (link, _) in (0..).zip(states(caller, handle)?).filter(|(_, is_active)| *is_active) {
        if value!(caller, nvmlDeviceGetNvLinkRemoteDeviceType[link](handle.0, link)) == Some(SWITCH) {
            peers.switch_links += 1;
        } else if let Some(bus_id) = remote_bus_id(caller, handle, link) {
            *peers.by_bus_id.entry(bus_id).or_default() += 1;
        }
    }
    Some(peers)
}

fn remote_bus_id(caller: &mut Caller, handle: DeviceHandle, link: u32) -> Option<PciBusId> {
    // SAFETY: plain numbers and texts; all zeroes is a valid value.
    let mut info: nvmlPciInfo_t = unsafe { std::mem::zeroed() };
    call!(caller, nvmlDeviceGetNvLinkRemotePciInfo_v2[link](handle.0, link, &raw mut info)).ok()?;
    bus_id_in(&info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_error_ratios_are_a_mantissa_and_an_exponent() {
        let near =
            |encoded: u32, expected: f64| (bit_error_ratio(f64::from(encoded)) - expected).abs() <= expected * 1e-9;
        assert!(near(0x20c, 2e-12) && near(0xf0f, 1.5e-14) && near(0x106, 1e-6));
        assert_eq!((bit_error_ratio(4095.0), bit_error_ratio(12.0)), (0.0, 0.0));
    }
}
