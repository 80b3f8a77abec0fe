//! One GPU of the data file. The defaults are an idle H100 80 GB.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::parts::{
    C2c, Clocks, Ecc, Event, Fabric, Gpm, Memory, NvLink, Pcie, Platform, PowerLimits, Reasons, RemappedRows,
    RetiredPages, Samples, Temperatures, Utilization,
};
use super::{Faults, Mig, group};

group! {
    Gpu {
        /// Default: the position in the file. So for `uuid`, `minor` and `pci_bus_id`.
        index: Option<u32> = None,
        uuid: String = String::new(),
        minor: Option<u32> = None,
        /// `domain:bus:device.function`, the domain with 8 hex digits.
        pci_bus_id: String = String::new(),
        /// Absent: position / 4. `-1`: none.
        numa_node: Option<i32> = None,
        name: String = "NVIDIA H100 80GB HBM3".to_owned(),
        /// nvmlDeviceArchitecture_t: 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell.
        architecture: u32 = 9,
        compute_capability: (i32, i32) = (9, 0),
        serial: Option<String> = Some("1650000000000".to_owned()),
        vbios_version: String = "96.00.74.00.01".to_owned(),

        utilization: Utilization = Utilization::default(),
        samples: Samples = Samples::default(),
        memory: Memory = Memory::default(),
        power_milliwatts: u32 = 70_000,
        power_limits: PowerLimits = PowerLimits::default(),
        /// Millijoules when the library first saw this generation; power is added over time.
        energy_millijoules: u64 = 1_000_000,
        temperatures: Temperatures = Temperatures::default(),
        clocks: Clocks = Clocks::default(),
        clock_event_reasons: Reasons = Reasons::default(),
        performance_state: u32 = 0,
        /// One speed in percent for each fan. None on a server board.
        fans: Vec<u32> = Vec::new(),
        pcie: Pcie = Pcie::default(),
        ecc: Ecc = Ecc::default(),
        /// `null`: not supported.
        remapped_rows: Option<RemappedRows> = Some(RemappedRows::default()),
        /// `null`: not supported, as on Ampere and newer.
        retired_pages: Option<RetiredPages> = None,
        nvlink: NvLink = NvLink::default(),
        fabric: Option<Fabric> = Some(Fabric::default()),
        platform: Option<Platform> = None,
        c2c: Option<C2c> = None,
        /// Field 230. `null`: not supported.
        recovery_action: Option<u32> = Some(0),
        /// Whether the vGPU feature has a licence. `null`: no licensing, as on a GPU without virtualization.
        vgpu_license: Option<bool> = None,
        /// nvmlGpuVirtualizationMode_t: 0 none, 1 passed through to this machine, 2 a vGPU, 3 a host of vGPUs.
        virtualization_mode: u32 = 0,
        /// By the id of nvml-wrapper-sys 0.10 (the numbering before driver 580.82): a number, `{"word": 7}` (of 32 bits),
        /// `{"code": 3}`, or `{"by_scope": {"0": 1}}`. Takes precedence over the rest of the file.
        fields: BTreeMap<u32, serde_json::Value> = BTreeMap::new(),
        processes: Vec<Process> = Vec::new(),
        mig: Mig = Mig::default(),
        gpm: Gpm = Gpm::default(),
        supported_events: u64 = 0xFF9F,
        events: Vec<Event> = Vec::new(),

        /// Every call on the handle returns GPU_IS_LOST.
        lost: bool = false,
        fail: BTreeMap<String, u32> = BTreeMap::new(),
        delay: BTreeMap<String, u64> = BTreeMap::new(),
        cost: BTreeMap<String, u64> = BTreeMap::new(),
        hang: BTreeSet<String> = BTreeSet::new(),
        function_not_found: BTreeSet<String> = BTreeSet::new(),
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Process {
    pub pid: u32,
    pub kind: ProcessKind,
    /// `null`: not available, which NVML writes as all ones.
    pub memory_bytes: Option<u64>,
    /// Percent. Zero keeps the process out of the utilization lists, as with the driver.
    pub sm: u32,
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ProcessKind {
    #[default]
    Compute,
    Graphics,
    Mps,
}

impl Gpu {
    pub(super) fn complete(&mut self, position: u32) {
        let index = *self.index.get_or_insert(position);
        self.minor.get_or_insert(index);
        if self.uuid.is_empty() {
            self.uuid = format!("GPU-00000000-0000-0000-0000-{index:012}");
        }
        if self.pci_bus_id.is_empty() {
            self.pci_bus_id = format!("00000000:{:02X}:00.0", 0x10 + index);
        }
        self.numa_node.get_or_insert((position / 4) as i32);
        self.mig.complete(index);
    }

    pub fn faults(&self) -> Faults<'_> {
        Faults {
            fail: &self.fail,
            delay: &self.delay,
            cost: &self.cost,
            hang: &self.hang,
            function_not_found: &self.function_not_found,
        }
    }
}
