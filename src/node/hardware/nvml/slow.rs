//! The slow tier: ECC, row remapping, retired pages, PCIe, fabric and the recovery action.

use std::collections::BTreeMap;

use nvml_wrapper_sys::bindings::{
    nvmlGridLicensableFeatures_t, nvmlGridLicenseFeatureCode_t_NVML_GRID_LICENSE_FEATURE_CODE_VGPU as VGPU,
    nvmlRowRemapperHistogramValues_t,
};

use super::calls::{CallRefusal, Caller, call, reading, value};
use super::fields::{self, FieldRow};
use super::library::DeviceHandle;
use super::nvlink::NvLinkReader;
use super::platform;
use crate::domain::model::{EccLocation, Pcie, RowRemap, Slow};
use crate::node::hardware::plausible;

/// By the driver's number.
const ECC_LOCATIONS: [&str; 8] =
    ["l1_cache", "l2_cache", "dram", "register_file", "texture_memory", "texture_shm", "cbu", "sram"];
const CORRECTED: u32 = 0;
const UNCORRECTED: u32 = 1;
const VOLATILE: u32 = 0;
const AGGREGATE: u32 = 1;

const RECOVERY_ACTION: FieldRow = FieldRow::plain(230);
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
const PCIE_BYTES: [FieldRow; 2] = [
    FieldRow::rising_fast(197, &plausible::TRANSFERRED, 1.0),
    FieldRow::rising_fast(198, &plausible::TRANSFERRED, 1.0),
];

#[derive(Default)]
pub struct SlowReader {
    nvlink: NvLinkReader,
}

impl SlowReader {
    pub fn read(&mut self, caller: &mut Caller, handle: DeviceHandle) -> Slow {
        let (recovery_action, errors, bytes) = counters(caller, handle);
        Slow {
            ecc: ecc(caller, handle),
            ecc_lifetime_corrected: reading!(
                caller,
                ERRORS,
                nvmlDeviceGetTotalEccErrors[0](handle.0, CORRECTED, AGGREGATE)
            ),
            ecc_lifetime_uncorrected: reading!(
                caller,
                ERRORS,
                nvmlDeviceGetTotalEccErrors[1](handle.0, UNCORRECTED, AGGREGATE)
            ),
            row_remap: row_remap(caller, handle),
            row_remap_banks: row_remap_banks(caller, handle),
            retired_pages: [(0, "single_bit"), (1, "double_bit")]
                .into_iter()
                .filter_map(|(cause, name)| Some((name, retired_pages(caller, handle, cause)?)))
                .collect(),
            retired_pages_pending: value!(caller, nvmlDeviceGetRetiredPagesPendingStatus(handle.0))
                .map(|pending: u32| pending != 0),
            pcie: pcie(caller, handle, errors, bytes),
            nvlink: self.nvlink.read(caller, handle),
            c2c: platform::c2c(caller, handle),
            fabric: platform::fabric(caller, handle),
            recovery_action,
            vgpu_licensed: vgpu_licensed(caller, handle),
        }
    }
}

/// The recovery action and the PCIe counters, in one call.
fn counters(caller: &mut Caller, handle: DeviceHandle) -> (Option<u32>, BTreeMap<&'static str, u64>, [Option<f64>; 2]) {
    let errors = PCIE_ERRORS.map(|(id, _)| FieldRow::new(id, &plausible::ERRORS));
    let rows: Vec<FieldRow> = [RECOVERY_ACTION].into_iter().chain(PCIE_BYTES).chain(errors).collect();
    let values = fields::read(caller, handle, &rows);
    let errors = fields::named(PCIE_ERRORS.iter().map(|(_, name)| name), &values[3..]);
    let errors = errors.into_iter().map(|(name, count)| (name, count as u64)).collect();
    let action = values[0].and_then(|action| u32::try_from(action as u64).ok());
    (action, errors, [values[1], values[2]])
}

fn ecc(caller: &mut Caller, handle: DeviceHandle) -> Vec<EccLocation> {
    let mut locations = Vec::new();
    for (number, location) in (0..).zip(ECC_LOCATIONS) {
        let mut errors = |kind: u32| {
            reading!(
                caller,
                ERRORS,
                nvmlDeviceGetMemoryErrorCounter[kind * 16 + number](handle.0, kind, VOLATILE, number)
            )
        };
        let (corrected, uncorrected) = (errors(CORRECTED), errors(UNCORRECTED));
        if corrected.is_some() || uncorrected.is_some() {
            locations.push(EccLocation { location, corrected, uncorrected });
        }
    }
    locations
}

fn row_remap(caller: &mut Caller, handle: DeviceHandle) -> Option<RowRemap> {
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
    let mut rows = |count: u32| caller.plausible(&plausible::ROWS, u64::from(count));
    let (correctable, uncorrectable) = (rows(correctable), rows(uncorrectable));
    Some(RowRemap {
        correctable: correctable?,
        uncorrectable: uncorrectable?,
        pending: pending != 0,
        failed: failed != 0,
    })
}

fn row_remap_banks(caller: &mut Caller, handle: DeviceHandle) -> BTreeMap<&'static str, u64> {
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
    let known = |(availability, count)| Some((availability, caller.plausible(&plausible::ROWS, u64::from(count))?));
    banks.into_iter().filter_map(known).collect()
}

/// Only their number, which the driver returns for a buffer without space.
fn retired_pages(caller: &mut Caller, handle: DeviceHandle, cause: u32) -> Option<u64> {
    let mut count = 0;
    let nowhere = std::ptr::null_mut();
    match call!(caller, nvmlDeviceGetRetiredPages_v2[cause](handle.0, cause, &raw mut count, nowhere, nowhere)) {
        Ok(()) | Err(CallRefusal::TooSmall) => caller.plausible(&plausible::ROWS, u64::from(count)),
        Err(_) => None,
    }
}

fn pcie(
    caller: &mut Caller,
    handle: DeviceHandle,
    errors: BTreeMap<&'static str, u64>,
    bytes: [Option<f64>; 2],
) -> Pcie {
    let replays: Option<u32> = reading!(caller, ERRORS, nvmlDeviceGetPcieReplayCounter(handle.0));
    Pcie {
        replays: replays.map(u64::from),
        errors,
        transmitted_bytes: bytes[0],
        received_bytes: bytes[1],
        link_generation: reading!(caller, PCIE_GENERATION, nvmlDeviceGetCurrPcieLinkGeneration(handle.0)),
        link_generation_max: reading!(caller, PCIE_GENERATION, nvmlDeviceGetMaxPcieLinkGeneration(handle.0)),
        link_width_lanes: reading!(caller, PCIE_WIDTH, nvmlDeviceGetCurrPcieLinkWidth(handle.0)),
        link_width_lanes_max: reading!(caller, PCIE_WIDTH, nvmlDeviceGetMaxPcieLinkWidth(handle.0)),
    }
}

fn vgpu_licensed(caller: &mut Caller, handle: DeviceHandle) -> Option<bool> {
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
