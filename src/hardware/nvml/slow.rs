//! The slow tier: ECC, row remapping, retired pages, PCIe, NVLink, fabric and the recovery action.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::{
    nvmlGridLicensableFeatures_t, nvmlGridLicenseFeatureCode_t_NVML_GRID_LICENSE_FEATURE_CODE_VGPU as VGPU,
    nvmlRowRemapperHistogramValues_t,
};

use super::calls::{Caller, Refusal, call, value};
use super::fields::{self, ALL_LINKS, Field};
use super::library::Handle;
use super::{fabric, platform};
use crate::model::{EccLocation, LinkCounters, NvLink, Pcie, RowRemap, Slow};

/// By the driver's number.
const ECC_LOCATIONS: [&str; 8] =
    ["l1_cache", "l2_cache", "dram", "register_file", "texture_memory", "texture_shm", "cbu", "sram"];
const CORRECTED: u32 = 0;
const UNCORRECTED: u32 = 1;
const VOLATILE: u32 = 0;
const AGGREGATE: u32 = 1;

const RECOVERY_ACTION: u32 = 230;
const PCIE_ERRORS: [(u32, &str); 11] = [
    (173, "correctable"),
    (174, "naks_received"),
    (175, "receiver_error"),
    (176, "bad_tlp"),
    (177, "naks_sent"),
    (178, "bad_dllp"),
    (179, "non_fatal"),
    (180, "fatal"),
    (181, "unsupported_request"),
    (182, "lcrc"),
    (183, "lane"),
];
const PCIE_BYTES: [u32; 2] = [197, 198];

/// The highest number in the header; the driver stops before.
pub const LINK_LIMIT: u32 = 36;
const KIBIBYTE: f64 = 1024.0;
/// KiB of one link or over all links, up to NVLink 4.
const NVLINK_DATA: [u32; 2] = [138, 139];
/// Bytes of one link, NVLink 5.
const NVLINK_BYTES: [u32; 2] = [202, 204];
const NVLINK_ERRORS: [(u32, &str); 3] = [(161, "replay"), (162, "recovery"), (163, "crc")];
const NVLINK5_ERRORS: [(u32, &str); 9] = [
    (206, "malformed_packet"),
    (207, "buffer_overrun"),
    (208, "receive"),
    (209, "receive_remote"),
    (210, "receive_general"),
    (211, "local_link_integrity"),
    (212, "transmit_discard"),
    (214, "recovery_failed"),
    (215, "recovery"),
];
/// Of one link, NVLink 5.
const NVLINK5_BIT_ERRORS: [(u32, &str); 2] = [(220, "effective"), (222, "symbol")];
/// Over all links, with the scope of that: the older ids have none.
const NVLINK_ERROR_SUMS: [(u32, u32, &str); 5] = [
    (38, 0, "crc_flit"),
    (45, 0, "crc_data"),
    (52, 0, "replay"),
    (59, 0, "recovery"),
    (213, ALL_LINKS, "recovery_successful"),
];

#[derive(Default)]
pub struct SlowReader {
    /// The GPU has the error counters of NVLink 5.
    nvlink5: bool,
}

impl SlowReader {
    pub fn read(&mut self, caller: &mut Caller, handle: Handle) -> Slow {
        let (recovery_action, errors, bytes) = counters(caller, handle);
        Slow {
            ecc: ecc(caller, handle),
            ecc_lifetime_corrected: value!(caller, nvmlDeviceGetTotalEccErrors[0](handle.0, CORRECTED, AGGREGATE)),
            ecc_lifetime_uncorrected: value!(caller, nvmlDeviceGetTotalEccErrors[1](handle.0, UNCORRECTED, AGGREGATE)),
            row_remap: row_remap(caller, handle),
            row_remap_banks: row_remap_banks(caller, handle),
            retired_pages: [(0, "single_bit"), (1, "double_bit")]
                .into_iter()
                .filter_map(|(cause, name)| Some((name, retired_pages(caller, handle, cause)?)))
                .collect(),
            retired_pages_pending: value!(caller, nvmlDeviceGetRetiredPagesPendingStatus(handle.0))
                .map(|pending: u32| pending != 0),
            pcie: pcie(caller, handle, errors, bytes),
            nvlink: self.nvlink(caller, handle),
            c2c: platform::c2c(caller, handle),
            fabric: fabric::read(caller, handle),
            recovery_action,
            vgpu_licensed: vgpu_licensed(caller, handle),
        }
    }

    fn nvlink(&mut self, caller: &mut Caller, handle: Handle) -> NvLink {
        let mut active = Vec::new();
        let mut inactive = 0;
        for link in 0..LINK_LIMIT {
            let mut state = 0;
            match call!(caller, nvmlDeviceGetNvLinkState[link](handle.0, link, &raw mut state)) {
                Ok(()) if state != 0 => active.push(link),
                Ok(()) => inactive += 1,
                Err(Refusal::Unsupported) => break,
                Err(_) => return NvLink::default(),
            }
        }
        if active.is_empty() && inactive == 0 {
            return NvLink::default();
        }
        let mut nvlink = NvLink {
            active_links: u32::try_from(active.len()).ok(),
            inactive_links: Some(inactive),
            of_links: active.iter().map(|link| (*link, LinkCounters::default())).collect(),
            ..NvLink::default()
        };
        let has_bytes = read_bytes(caller, handle, &NVLINK_DATA, KIBIBYTE, &mut nvlink.of_links)
            || read_bytes(caller, handle, &NVLINK_BYTES, 1.0, &mut nvlink.of_links);
        if self.nvlink5 || !read_errors(caller, handle, &NVLINK_ERRORS, &mut nvlink.of_links) {
            self.nvlink5 = read_errors(caller, handle, &NVLINK5_ERRORS, &mut nvlink.of_links);
        }
        if self.nvlink5 {
            read_bit_errors(caller, handle, &mut nvlink.of_links);
        }
        let links = std::mem::take(&mut nvlink.of_links);
        nvlink.sum_link_bytes(links.values());
        nvlink.sum_link_errors(links.values());
        nvlink.of_links = links;
        nvlink.error_sums = error_sums(caller, handle);
        if !has_bytes {
            let sums = fields::read(caller, handle, &NVLINK_DATA.map(|id| (id, ALL_LINKS)));
            let bytes = [0, 1].map(|at: usize| sums[at].and_then(Field::wide).map(|kibibytes| kibibytes * KIBIBYTE));
            [nvlink.transmitted_bytes, nvlink.received_bytes] = bytes;
        }
        nvlink
    }
}

type Links = BTreeMap<u32, LinkCounters>;

/// The fields of every link, in one call: for each link, as many values as ids.
fn per_link(caller: &mut Caller, handle: Handle, ids: &[u32], links: &Links) -> Vec<Option<Field>> {
    let wanted: Vec<_> = links.keys().flat_map(|link| ids.iter().map(|id| (*id, *link))).collect();
    fields::read(caller, handle, &wanted)
}

/// Transmitted and received bytes of each link. False where no link has them.
fn read_bytes(caller: &mut Caller, handle: Handle, ids: &[u32; 2], unit: f64, links: &mut Links) -> bool {
    let values = per_link(caller, handle, ids, links);
    for (counters, values) in links.values_mut().zip(values.chunks(ids.len())) {
        let bytes = |field: Option<Field>| field.and_then(Field::wide).map(|number| number * unit);
        (counters.transmitted_bytes, counters.received_bytes) = (bytes(values[0]), bytes(values[1]));
    }
    values.iter().any(Option::is_some)
}

fn read_errors(caller: &mut Caller, handle: Handle, ids: &[(u32, &'static str)], links: &mut Links) -> bool {
    let numbers: Vec<u32> = ids.iter().map(|(id, _)| *id).collect();
    let values = per_link(caller, handle, &numbers, links);
    for (counters, values) in links.values_mut().zip(values.chunks(ids.len())) {
        let named = ids.iter().zip(values).filter_map(|((_, name), value)| Some((*name, count((*value)?.value))));
        counters.errors.extend(named);
    }
    values.iter().any(Option::is_some)
}

fn read_bit_errors(caller: &mut Caller, handle: Handle, links: &mut Links) {
    let values = per_link(caller, handle, &NVLINK5_BIT_ERRORS.map(|(id, _)| id), links);
    for (counters, values) in links.values_mut().zip(values.chunks(NVLINK5_BIT_ERRORS.len())) {
        let named = NVLINK5_BIT_ERRORS.iter().zip(values);
        let ratios = named.filter_map(|((_, name), value)| Some((*name, bit_error_ratio(count((*value)?.value)))));
        counters.bit_error_ratios.extend(ratios);
    }
}

/// An exponent in the bits 0 to 7 and a mantissa in 8 to 11: 0x20c is 2e-12. All ones are no error.
fn bit_error_ratio(encoded: u64) -> f64 {
    let (exponent, mantissa) = (encoded & 0xff, encoded >> 8 & 0xf);
    if (exponent, mantissa) == (0xff, 0xf) { 0.0 } else { mantissa as f64 * 10_f64.powi(-(exponent as i32)) }
}

fn error_sums(caller: &mut Caller, handle: Handle) -> BTreeMap<&'static str, u64> {
    let values = fields::read(caller, handle, &NVLINK_ERROR_SUMS.map(|(id, scope, _)| (id, scope)));
    let named = NVLINK_ERROR_SUMS.iter().zip(values);
    named.filter_map(|((.., name), value)| Some((*name, count(value?.value)))).collect()
}

fn count(value: f64) -> u64 {
    value as u64
}

/// The recovery action and the PCIe counters, in one call.
fn counters(caller: &mut Caller, handle: Handle) -> (Option<u32>, BTreeMap<&'static str, u64>, [Option<f64>; 2]) {
    let ids = [RECOVERY_ACTION].into_iter().chain(PCIE_BYTES).chain(PCIE_ERRORS.map(|(id, _)| id));
    let values = fields::read(caller, handle, &ids.map(|id| (id, 0)).collect::<Vec<_>>());
    let errors = PCIE_ERRORS.into_iter().zip(&values[3..]);
    let errors = errors.filter_map(|((_, name), value)| Some((name, count((*value)?.value)))).collect();
    let action = values[0].and_then(|action| u32::try_from(count(action.value)).ok());
    (action, errors, [values[1], values[2]].map(|bytes| bytes.and_then(Field::wide)))
}

fn ecc(caller: &mut Caller, handle: Handle) -> Vec<EccLocation> {
    let mut locations = Vec::new();
    for (number, location) in (0..).zip(ECC_LOCATIONS) {
        let mut errors = |kind: u32| {
            value!(caller, nvmlDeviceGetMemoryErrorCounter[kind * 16 + number](handle.0, kind, VOLATILE, number))
        };
        let (corrected, uncorrected) = (errors(CORRECTED), errors(UNCORRECTED));
        if corrected.is_some() || uncorrected.is_some() {
            locations.push(EccLocation { location, corrected, uncorrected });
        }
    }
    locations
}

fn row_remap(caller: &mut Caller, handle: Handle) -> Option<RowRemap> {
    let (mut correctable, mut uncorrectable, mut pending, mut failed) = (0, 0, 0, 0);
    call!(
        caller,
        nvmlDeviceGetRemappedRows(
            handle.0,
            &raw mut correctable,
            &raw mut uncorrectable,
            &raw mut pending,
            &raw mut failed
        )
    )
    .ok()?;
    Some(RowRemap {
        correctable: u64::from(correctable),
        uncorrectable: u64::from(uncorrectable),
        pending: pending != 0,
        failed: failed != 0,
    })
}

fn row_remap_banks(caller: &mut Caller, handle: Handle) -> BTreeMap<&'static str, u64> {
    let mut banks = nvmlRowRemapperHistogramValues_t { max: 0, high: 0, partial: 0, low: 0, none: 0 };
    if call!(caller, nvmlDeviceGetRowRemapperHistogram(handle.0, &raw mut banks)).is_err() {
        return BTreeMap::new();
    }
    let banks = [
        ("max", banks.max),
        ("high", banks.high),
        ("partial", banks.partial),
        ("low", banks.low),
        ("none", banks.none),
    ];
    banks.map(|(availability, count)| (availability, u64::from(count))).into()
}

/// Only their number, which the driver returns for a buffer without space.
fn retired_pages(caller: &mut Caller, handle: Handle, cause: u32) -> Option<u64> {
    let mut count = 0;
    let nowhere = std::ptr::null_mut();
    match call!(caller, nvmlDeviceGetRetiredPages_v2[cause](handle.0, cause, &raw mut count, nowhere, nowhere)) {
        Ok(()) | Err(Refusal::TooSmall) => Some(u64::from(count)),
        Err(_) => None,
    }
}

fn pcie(caller: &mut Caller, handle: Handle, errors: BTreeMap<&'static str, u64>, bytes: [Option<f64>; 2]) -> Pcie {
    let replays: Option<u32> = value!(caller, nvmlDeviceGetPcieReplayCounter(handle.0));
    Pcie {
        replays: replays.map(u64::from),
        errors,
        transmitted_bytes: bytes[0],
        received_bytes: bytes[1],
        link_generation: value!(caller, nvmlDeviceGetCurrPcieLinkGeneration(handle.0)),
        link_generation_max: value!(caller, nvmlDeviceGetMaxPcieLinkGeneration(handle.0)),
        link_width_lanes: value!(caller, nvmlDeviceGetCurrPcieLinkWidth(handle.0)),
        link_width_lanes_max: value!(caller, nvmlDeviceGetMaxPcieLinkWidth(handle.0)),
    }
}

fn vgpu_licensed(caller: &mut Caller, handle: Handle) -> Option<bool> {
    // SAFETY: numbers and texts; all zeroes is a valid value.
    let mut features: nvmlGridLicensableFeatures_t = unsafe { std::mem::zeroed() };
    call!(caller, nvmlDeviceGetGridLicensableFeatures_v4(handle.0, &raw mut features)).ok()?;
    is_licensed(&features)
}

/// As DCGM has it: absent where the driver lists features, and vGPU is none of them.
fn is_licensed(features: &nvmlGridLicensableFeatures_t) -> Option<bool> {
    if features.isGridLicenseSupported == 0 {
        return Some(false);
    }
    let mut listed = features.gridLicensableFeatures.iter().take(features.licensableFeaturesCount as usize);
    listed.find(|feature| feature.featureCode == VGPU).map(|feature| feature.featureState > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_error_ratios_are_a_mantissa_and_an_exponent() {
        let near = |encoded, expected: f64| (bit_error_ratio(encoded) - expected).abs() <= expected * 1e-9;
        assert!(near(0x20c, 2e-12) && near(0xf0f, 1.5e-14) && near(0x106, 1e-6));
        assert_eq!((bit_error_ratio(0xfff), bit_error_ratio(0x00c)), (0.0, 0.0));
    }

    #[test]
    fn the_license_is_that_of_the_vgpu_feature() {
        let with = |supported, listed: u32, state| {
            // SAFETY: numbers and texts; all zeroes is a valid value.
            let mut features: nvmlGridLicensableFeatures_t = unsafe { std::mem::zeroed() };
            (features.isGridLicenseSupported, features.licensableFeaturesCount) = (supported, listed);
            features.gridLicensableFeatures[0].featureCode = VGPU + 1;
            features.gridLicensableFeatures[1].featureCode = VGPU;
            features.gridLicensableFeatures[1].featureState = state;
            is_licensed(&features)
        };
        let licensed = [with(0, 0, 0), with(1, 2, 1), with(1, 2, 0), with(1, 1, 1), with(1, u32::MAX, 1)];
        assert_eq!(licensed, [Some(false), Some(true), Some(false), None, Some(true)]);
    }
}
