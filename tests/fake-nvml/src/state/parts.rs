//! The groups of values of one GPU.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::group;

group! {
    /// Percent; fractions show in the samples' sum.
    Utilization {
        gpu: f64 = 0.0,
        memory: f64 = 0.0,
        encoder: f64 = 0.0,
        decoder: f64 = 0.0,
        jpeg: f64 = 0.0,
        ofa: f64 = 0.0,
    }
}

group! {
    /// The ring buffer of nvmlDeviceGetSamples.
    Samples {
        period_microseconds: u64 = 166_667,
        /// Always empty: NOT_FOUND, as reported from some drivers.
        silent: bool = false,
        /// Each period is one process's, as on a time-sliced GPU.
        one_process_each: bool = false,
        /// The smallest buffer that nvmlDeviceGetProcessUtilization accepts.
        process_entries: u32 = 0,
    }
}

group! {
    /// v2: total = reserved + used + free. v1 counts the reserved part as used.
    Memory {
        total_bytes: u64 = 85_520_809_984,
        reserved_bytes: u64 = 655_360_000,
        used_bytes: u64 = 0,
    }
}

group! {
    /// Milliwatts.
    PowerLimits {
        enforced: u32 = 700_000,
        management: u32 = 700_000,
        /// Power of the whole module, for the scope 1 of fields 185 and 186 and for sample type 7. `null`: no module.
        module_milliwatts: Option<u32> = None,
        /// The energy counter adds the module's power, as it has been seen to on Grace Hopper.
        energy_counts_module: bool = false,
    }
}

group! {
    /// Degrees Celsius. `null`: not supported.
    Temperatures {
        gpu: Option<i32> = Some(32),
        memory: Option<i32> = Some(40),
        /// How far to the slowdown.
        margin: Option<i32> = Some(55),
    }
}

group! {
    /// MHz.
    Clocks {
        graphics: u32 = 345,
        sm: u32 = 345,
        memory: u32 = 2_619,
        video: u32 = 765,
    }
}

group! {
    /// The mask of this moment, and how long each lasted so far in nanoseconds.
    Reasons {
        mask: u64 = 0,
        power_cap_nanoseconds: u64 = 0,
        sync_boost_nanoseconds: u64 = 0,
        sw_thermal_nanoseconds: u64 = 0,
        hw_thermal_nanoseconds: u64 = 0,
        hw_power_brake_nanoseconds: u64 = 0,
    }
}

group! {
    Pcie {
        generation: u32 = 5,
        width: u32 = 16,
        max_generation: u32 = 5,
        max_width: u32 = 16,
        replay: u32 = 0,
        tx_bytes: u64 = 0,
        rx_bytes: u64 = 0,
        correctable_errors: u64 = 0,
    }
}

group! {
    /// `enabled: null`: not supported.
    Ecc {
        enabled: Option<bool> = Some(true),
        volatile: EccCounts = EccCounts::default(),
        aggregate: EccCounts = EccCounts::default(),
    }
}

group! {
    /// Totals; the part in SRAM is counted in them.
    EccCounts {
        corrected: u64 = 0,
        uncorrected: u64 = 0,
        sram_corrected: u64 = 0,
        sram_uncorrected: u64 = 0,
    }
}

group! {
    RemappedRows {
        correctable: u32 = 0,
        uncorrectable: u32 = 0,
        pending: bool = false,
        failure: bool = false,
        /// Banks with all spare rows left, and so on down to none.
        max: u32 = 640,
        high: u32 = 0,
        partial: u32 = 0,
        low: u32 = 0,
        none: u32 = 0,
    }
}

group! {
    /// Addresses.
    RetiredPages {
        single_bit: Vec<u64> = Vec::new(),
        double_bit: Vec<u64> = Vec::new(),
        pending: bool = false,
    }
}

group! {
    /// The same values for each link that is up; a query over all links gets the sum.
    NvLink {
        links: u32 = 18,
        down: Vec<u32> = Vec::new(),
        version: u32 = 4,
        /// What is at the other end of each link.
        remote: Remote = Remote::default(),
        /// By link, where it is something else.
        remotes: BTreeMap<u32, Remote> = BTreeMap::new(),
        data_tx_kib: u64 = 0,
        data_rx_kib: u64 = 0,
        tx_bytes: u64 = 0,
        rx_bytes: u64 = 0,
        crc_errors: u64 = 0,
    }
}

group! {
    /// The other end of an NVLink.
    Remote {
        /// nvmlIntNvLinkDeviceType_t: 0 a GPU, 1 an IBM NPU, 2 a switch, 255 unknown.
        device_type: u32 = 2,
        pci_bus_id: String = "00000000:C8:00.0".to_owned(),
    }
}

group! {
    /// `null` for the group: state 0, not supported.
    Fabric {
        state: u8 = 3,
        status: u32 = 0,
        clique_id: u32 = 0,
        cluster_uuid: [u8; 16] = [0; 16],
        /// Every group "false" but the configuration, which is 1 = fine: nothing wrong.
        health_mask: u32 = 0x51AA,
        /// 0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity.
        health_summary: u8 = 1,
    }
}

group! {
    /// `null` for the group: not supported, as before Blackwell.
    Platform {
        chassis_serial: String = String::new(),
        /// 255: not given.
        slot: u8 = 255,
        tray: u8 = 255,
        host: u8 = 1,
        /// 0 direct, 1 switch.
        peer_type: u8 = 1,
        module_id: u8 = 0,
        /// 1: a driver that has only the older structure.
        version: u32 = 2,
    }
}

group! {
    /// `null` for the group: not supported.
    C2c {
        enabled: bool = true,
        links: u32 = 10,
        down: Vec<u32> = Vec::new(),
        /// Of one link.
        megabytes_per_second: u32 = 44_712,
    }
}

group! {
    /// By metric id: percent or MiB/s; from 248 on, counters, the rise in one second. Ids 1, 2, 3, 5 and 10 follow the
    /// utilization when absent in the file; all others are then not supported.
    Gpm {
        supported: bool = true,
        metrics: BTreeMap<u32, f64> = BTreeMap::new(),
    }
}

group! {
    /// Delivered to every event set registered before the file got it.
    Event {
        /// Rises over all events of this GPU.
        sequence: u64 = 0,
        /// How often it is delivered.
        count: u64 = 1,
        /// An event bit.
        kind: u64 = 8,
        xid: u64 = 0,
        /// `null`: the whole GPU, which NVML writes as all ones.
        gpu_instance: Option<u32> = None,
        compute_instance: Option<u32> = None,
    }
}
