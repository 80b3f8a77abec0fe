//! One GPU of the data file. The defaults are an idle H100 80 GB.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::parts::{
    C2c, Clocks, Ecc, Event, Fabric, Gpm, Memory, NvLink, Pcie, Platform, PowerLimits, Reasons, RemappedRows,
    RetiredPages, Samples, Temperatures, Utilization,
};
use super::{Faults, Mig};

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    /// Default: the position in the file. So for `uuid`, `minor` and `pci_bus_id`.
    pub index: Option<u32>,
    pub uuid: String,
    pub minor: Option<u32>,
    /// `domain:bus:device.function`, the domain with 8 hex digits.
    pub pci_bus_id: String,
    /// Absent: position / 4. `-1`: none.
    pub numa_node: Option<i32>,
    pub name: String,
    /// nvmlDeviceArchitecture_t: 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell.
    pub architecture: u32,
    pub compute_capability: (i32, i32),
    pub serial: Option<String>,
    pub vbios_version: String,

    pub utilization: Utilization,
    pub samples: Samples,
    pub memory: Memory,
    pub power_milliwatts: u32,
    pub power_limits: PowerLimits,
    /// Millijoules when the library first saw this generation; power is added over time.
    pub energy_millijoules: u64,
    pub temperatures: Temperatures,
    pub clocks: Clocks,
    pub clock_event_reasons: Reasons,
    pub performance_state: u32,
    /// One speed in percent for each fan. None on a server board.
    pub fans: Vec<u32>,
    pub pcie: Pcie,
    pub ecc: Ecc,
    /// `null`: not supported.
    pub remapped_rows: Option<RemappedRows>,
    /// `null`: not supported, as on Ampere and newer.
    pub retired_pages: Option<RetiredPages>,
    pub nvlink: NvLink,
    pub fabric: Option<Fabric>,
    pub platform: Option<Platform>,
    pub c2c: Option<C2c>,
    /// Field 230. `null`: not supported.
    pub recovery_action: Option<u32>,
    /// Whether the vGPU feature has a licence. `null`: no licensing, as on a GPU without virtualization.
    pub vgpu_license: Option<bool>,
    /// nvmlGpuVirtualizationMode_t: 0 none, 1 passed through to this machine, 2 a vGPU, 3 a host of vGPUs.
    pub virtualization_mode: u32,
    /// The vGPUs of a host.
    pub vgpus: Vec<Vgpu>,
    /// By the id of nvml-wrapper-sys 0.10 (the numbering before driver 580.82): a number, `{"word": 7}` (of 32 bits),
    /// `{"code": 3}`, or `{"by_scope": {"0": 1}}`. Takes precedence over the rest of the file.
    pub fields: BTreeMap<u32, serde_json::Value>,
    pub processes: Vec<Process>,
    pub mig: Mig,
    pub gpm: Gpm,
    pub supported_events: u64,
    pub events: Vec<Event>,

    /// Every call on the handle returns GPU_IS_LOST.
    pub lost: bool,
    pub fail: BTreeMap<String, u32>,
    pub delay: BTreeMap<String, u64>,
    pub hang: BTreeSet<String>,
    pub function_not_found: BTreeSet<String>,
}

/// One vGPU.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Vgpu {
    /// nvmlVgpuInstance_t, of all GPUs together.
    pub instance: u32,
    pub uuid: String,
    /// `null`: NOT_SUPPORTED, as where the hypervisor has no mediated devices.
    pub mdev_uuid: Option<String>,
    pub vm_id: String,
    pub vgpu_type: String,
    pub memory_total_bytes: u64,
    pub memory_used_bytes: u64,
    /// Percent. `null`: no sample.
    pub sm: Option<u32>,
    /// `null`: DRIVER_NOT_LOADED, as in a virtual machine without a driver.
    pub license_state: Option<u32>,
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
        Faults::new(&self.fail, &self.delay, &self.hang, &self.function_not_found)
    }
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            index: None,
            uuid: String::new(),
            minor: None,
            pci_bus_id: String::new(),
            numa_node: None,
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            architecture: 9,
            compute_capability: (9, 0),
            serial: Some("1650000000000".to_owned()),
            vbios_version: "96.00.74.00.01".to_owned(),
            utilization: Utilization::default(),
            samples: Samples::default(),
            memory: Memory::default(),
            power_milliwatts: 70_000,
            power_limits: PowerLimits::default(),
            energy_millijoules: 1_000_000,
            temperatures: Temperatures::default(),
            clocks: Clocks::default(),
            clock_event_reasons: Reasons::default(),
            performance_state: 0,
            fans: Vec::new(),
            pcie: Pcie::default(),
            ecc: Ecc::default(),
            remapped_rows: Some(RemappedRows::default()),
            retired_pages: None,
            nvlink: NvLink::default(),
            fabric: Some(Fabric::default()),
            platform: None,
            c2c: None,
            recovery_action: Some(0),
            vgpu_license: None,
            virtualization_mode: 0,
            vgpus: Vec::new(),
            fields: BTreeMap::new(),
            processes: Vec::new(),
            mig: Mig::default(),
            gpm: Gpm::default(),
            supported_events: 0xFF9F,
            events: Vec::new(),
            lost: false,
            fail: BTreeMap::new(),
            delay: BTreeMap::new(),
            hang: BTreeSet::new(),
            function_not_found: BTreeSet::new(),
        }
    }
}
