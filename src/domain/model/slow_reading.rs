//! The slow tier of the readings of one GPU: memory errors, links, the NVLink fabric.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The readings of the slow tier: every minute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slow {
    pub ecc: Vec<EccLocation>,
    /// The corrected errors over the board's lifetime.
    pub ecc_lifetime_corrected: Option<u64>,
    /// The uncorrected errors over the board's lifetime.
    pub ecc_lifetime_uncorrected: Option<u64>,
    pub row_remap: Option<RowRemap>,
    /// The number of banks by availability: max, high, partial, low, none.
    pub row_remap_banks: BTreeMap<&'static str, u64>,
    /// The number of bank remaps: active, inactive. On Rubin and newer.
    pub bank_remaps: BTreeMap<&'static str, u64>,
    /// The number of bank groups by the spare banks left: max, none.
    pub bank_remap_groups: BTreeMap<&'static str, u64>,
    pub bank_remap_pending: Option<bool>,
    /// The number of pages by cause: single_bit, double_bit.
    pub retired_pages: BTreeMap<&'static str, u64>,
    pub retired_pages_pending: Option<bool>,
    pub pcie: Pcie,
    pub nvlink: NvLink,
    pub c2c: C2c,
    pub fabric: Option<FabricState>,
    /// The number of the recovery action, NVML field 230.
    pub recovery_action: Option<u32>,
    /// Whether vGPU is licensed; false also on a GPU without vGPU licensing.
    pub vgpu_licensed: Option<bool>,
}

impl Slow {
    /// Whether rows or banks wait for a reset of the GPU. `None`: unknown.
    pub fn remap_pending(&self) -> Option<bool> {
        let rows = self.row_remap.map(|remap| remap.pending);
        rows.into_iter().chain(self.bank_remap_pending).reduce(|rows, banks| rows || banks)
    }
}

/// Volatile ECC counts of one location, since the driver was loaded, monotonic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EccLocation {
    pub location: &'static str,
    pub corrected: Option<u64>,
    pub uncorrected: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowRemap {
    pub correctable: u64,
    pub uncorrectable: u64,
    pub pending: bool,
    pub failed: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pcie {
    pub replays: Option<u64>,
    pub errors: BTreeMap<&'static str, u64>,
    pub transmitted_bytes: Option<f64>,
    pub received_bytes: Option<f64>,
    pub link_generation: Option<u32>,
    pub link_generation_max: Option<u32>,
    pub link_width_lanes: Option<u32>,
    pub link_width_lanes_max: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NvLink {
    /// The sums over all links, including those that are down. A reader sets sums of bytes only where links have none.
    pub transmitted_bytes: Option<f64>,
    pub received_bytes: Option<f64>,
    pub errors: BTreeMap<&'static str, u64>,
    /// The driver's sums over all links: crc_flit, crc_data, replay, recovery (fields 38, 45, 52, 59), and of NVLink 5
    /// recovery_successful (field 213).
    pub error_sums: BTreeMap<&'static str, u64>,
    pub active_links: Option<u32>,
    pub inactive_links: Option<u32>,
    /// The active links, by number.
    pub of_links: BTreeMap<u32, LinkCounters>,
}

/// The counters of one NVLink.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkCounters {
    pub transmitted_bytes: Option<f64>,
    pub received_bytes: Option<f64>,
    pub errors: BTreeMap<&'static str, u64>,
}

/// NVLink-C2C between the GPU and the CPU of its module.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct C2c {
    pub enabled: Option<bool>,
    pub active_links: Option<u32>,
    pub inactive_links: Option<u32>,
    /// The maximum of all active links in total.
    pub bytes_per_second_max: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct FabricState {
    /// The state: not_supported, not_started, in_progress, completed or failed.
    pub state: &'static str,
    /// The domain; `None`: the GPU is in none, as on a single node. The driver then reports an all-zero cluster UUID,
    /// or another state than `completed`.
    pub domain: Option<FabricDomain>,
    /// The conditions that the driver supports; each is a fault or a limit where it is true.
    pub conditions: BTreeMap<&'static str, bool>,
    /// Why the configuration is incorrect, where it is: `insufficient_nvlinks`.
    pub incorrect_configuration: Option<&'static str>,
    /// The driver's health mask, of which the conditions are parts.
    pub health_mask: Option<u32>,
    /// The driver's health summary: 0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity.
    pub health_summary: Option<u8>,
}

/// The NVLink domain (a rack) and the clique in it: GPUs with the same domain and clique reach each other over NVLink.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FabricDomain {
    pub cluster_uuid: Arc<str>,
    pub clique_id: u32,
}
