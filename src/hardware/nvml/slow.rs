//! The slow tier: ECC, row remapping, retired pages, PCIe, fabric and the recovery action.

use std::collections::BTreeMap;

use nvml_wrapper::enum_wrappers::device::{
    EccCounter::Aggregate,
    MemoryError::{Corrected, Uncorrected},
};
use nvml_wrapper_sys::bindings::{
    nvmlGridLicensableFeatures_t, nvmlGridLicenseFeatureCode_t_NVML_GRID_LICENSE_FEATURE_CODE_VGPU as VGPU,
    nvmlRowRemapperHistogramValues_t,
};

use super::calls::{CallRefusal, Caller, call, value};
use super::library::DeviceHandle;
use super::nvlink::NvLinkReader;
use super::platform;
use super::rows::{self, FieldRow, ReadingRow, ReadingSource, row};
use crate::domain::model::{C2c, EccLocation, NvLink, RowRemap, Slow};
use crate::hardware::plausible;

/// The ECC locations by the driver's number.
const ECC_LOCATIONS: [&str; 8] =
    ["l1_cache", "l2_cache", "dram", "register_file", "texture_memory", "texture_shm", "cbu", "sram"];
const CORRECTED: u32 = 0;
const UNCORRECTED: u32 = 1;
const VOLATILE: u32 = 0;

const READINGS: &[ReadingRow<Slow>] = &[
    row!(recovery_action = code 230),
    row!(bank_remaps["active"] = field 303: ROWS),
    row!(bank_remaps["inactive"] = field 304: ROWS),
    row!(bank_remap_groups["max"] = field 305: ROWS),
    row!(bank_remap_groups["none"] = field 306: ROWS),
    ReadingRow {
        source: ReadingSource::Field(FieldRow::plain(307)),
        set: |slow, pending| slow.bank_remap_pending = (pending <= 1.0).then_some(pending > 0.0),
    },
    row!(pcie.transmitted_bytes = wide 197: TRANSFERRED),
    row!(pcie.received_bytes = wide 198: TRANSFERRED),
    row!(pcie.errors["correctable"] = field 173: ERRORS),
    row!(pcie.errors["naks_received"] = field 174: ERRORS),
    row!(pcie.errors["receiver_error"] = field 175: ERRORS),
    row!(pcie.errors["bad_tlp"] = field 176: ERRORS),
    row!(pcie.errors["naks_sent"] = field 177: ERRORS),
    row!(pcie.errors["bad_dllp"] = field 178: ERRORS),
    row!(pcie.errors["non_fatal"] = field 179: ERRORS),
    row!(pcie.errors["fatal"] = field 180: ERRORS),
    row!(pcie.errors["unsupported_request"] = field 181: ERRORS),
    row!(pcie.errors["lcrc"] = field 182: ERRORS),
    row!(pcie.errors["lane"] = field 183: ERRORS),
    row!(pcie.replays = nvmlDeviceGetPcieReplayCounter pcie_replay_counter(): ERRORS),
    row!(pcie.link_generation = nvmlDeviceGetCurrPcieLinkGeneration current_pcie_link_gen(): PCIE_GENERATION),
    row!(pcie.link_generation_max = nvmlDeviceGetMaxPcieLinkGeneration max_pcie_link_gen(): PCIE_GENERATION),
    row!(pcie.link_width_lanes = nvmlDeviceGetCurrPcieLinkWidth current_pcie_link_width(): PCIE_WIDTH),
    row!(pcie.link_width_lanes_max = nvmlDeviceGetMaxPcieLinkWidth max_pcie_link_width(): PCIE_WIDTH),
    row!(ecc_lifetime_corrected = nvmlDeviceGetTotalEccErrors[0] total_ecc_errors(Corrected, Aggregate): ERRORS),
    row!(ecc_lifetime_uncorrected = nvmlDeviceGetTotalEccErrors[1] total_ecc_errors(Uncorrected, Aggregate): ERRORS),
];

#[derive(Default)]
pub struct SlowReader {
    nvlink: NvLinkReader,
    has_read: bool,
}

impl SlowReader {
    pub fn read(&mut self, caller: &mut Caller, handle: DeviceHandle) -> Slow {
        // The first pass, for which health waits, omits the links: they cost several lists of fields, and are not for
        // it.
        let has_read = std::mem::replace(&mut self.has_read, true);
        let mut slow = Slow::default();
        rows::read(caller, handle, READINGS.iter(), &mut slow);
        for (cause, name) in [(0, "single_bit"), (1, "double_bit")] {
            slow.retired_pages.extend(retired_pages(caller, handle, cause).map(|count| (name, count)));
        }
        let pending: Option<u32> = value!(caller, nvmlDeviceGetRetiredPagesPendingStatus(handle.0));
        Slow {
            ecc: ecc(caller, handle),
            row_remap: row_remap(caller, handle),
            row_remap_banks: row_remap_banks(caller, handle),
            retired_pages_pending: pending.map(|pending| pending != 0),
            nvlink: if has_read { self.nvlink.read(caller, handle) } else { NvLink::default() },
            c2c: if has_read { platform::c2c(caller, handle) } else { C2c::default() },
            fabric: platform::fabric(caller, handle),
            vgpu_licensed: value!(caller, nvmlDeviceGetGridLicensableFeatures_v4(handle.0))
                .and_then(|features| is_licensed(&features)),
            ..slow
        }
    }
}

fn ecc(caller: &mut Caller, handle: DeviceHandle) -> Vec<EccLocation> {
    let mut locations = Vec::new();
    for (number, location) in (0..).zip(ECC_LOCATIONS) {
        let mut errors = |kind: u32| {
            let variant = kind * 16 + number;
            let count: u64 =
                value!(caller, nvmlDeviceGetMemoryErrorCounter[variant](handle.0, kind, VOLATILE, number))?;
            caller.plausible(&plausible::ERRORS, count as f64).map(|_| count)
        };
        let (corrected, uncorrected) = (errors(CORRECTED), errors(UNCORRECTED));
        if corrected.is_some() || uncorrected.is_some() {
            locations.push(EccLocation { location, corrected, uncorrected });
        }
    }
    locations
}

fn row_remap(caller: &mut Caller, handle: DeviceHandle) -> Option<RowRemap> {
    let mut values = [0; 4];
    let [correctable, uncorrectable, pending, failed] = values.each_mut().map(std::ptr::from_mut);
    call!(caller, nvmlDeviceGetRemappedRows(handle.0, correctable, uncorrectable, pending, failed)).ok()?;
    let [correctable, uncorrectable, pending, failed] = values;
    let mut rows = |count: u32| caller.plausible(&plausible::ROWS, count).map(u64::from);
    let (correctable, uncorrectable) = (rows(correctable), rows(uncorrectable));
    Some(RowRemap {
        correctable: correctable?,
        uncorrectable: uncorrectable?,
        pending: pending != 0,
        failed: failed != 0,
    })
}

fn row_remap_banks(caller: &mut Caller, handle: DeviceHandle) -> BTreeMap<&'static str, u64> {
    let banks: Option<nvmlRowRemapperHistogramValues_t> = value!(caller, nvmlDeviceGetRowRemapperHistogram(handle.0));
    let Some(banks) = banks else { return BTreeMap::new() };
    let counts = [banks.max, banks.high, banks.partial, banks.low, banks.none];
    let banks = ["max", "high", "partial", "low", "none"].into_iter().zip(counts);
    let known =
        |(availability, count): (_, u32)| Some((availability, caller.plausible(&plausible::ROWS, count)?.into()));
    banks.filter_map(known).collect()
}

/// The number of retired pages, which the driver returns for a buffer without space.
fn retired_pages(caller: &mut Caller, handle: DeviceHandle, cause: u32) -> Option<u64> {
    let mut count = 0;
    let nowhere = std::ptr::null_mut();
    match call!(caller, nvmlDeviceGetRetiredPages_v2[cause](handle.0, cause, &raw mut count, nowhere, nowhere)) {
        Ok(()) | Err(CallRefusal::TooSmall) => caller.plausible(&plausible::ROWS, count).map(u64::from),
        Err(_) => None,
    }
}

/// Whether vGPU is licensed. As in DCGM, absent where the driver lists features, and vGPU is none of them.
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
    use crate::hardware::nvml::calls::Blank;

    #[test]
    fn the_license_is_that_of_the_vgpu_feature() {
        let with = |supported, listed: u32, state| {
            let mut features = nvmlGridLicensableFeatures_t::blank();
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
