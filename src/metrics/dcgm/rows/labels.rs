//! What dcgm-exporter writes as a label on every series.

use super::super::name::{LabelName, Shipped};

pub static ROWS: &[LabelName] = &[
    LabelName {
        old: "DCGM_FI_DRIVER_VERSION",
        new: "DCGM_FI_SYSTEM_DRIVER_VERSION",
        shipped: Shipped::Active,
        served: true,
        podmeter: Some(("podmeter_driver_info", "driver_version")),
    },
    LabelName {
        old: "DCGM_FI_NVML_VERSION",
        new: "DCGM_FI_SYSTEM_NVML_VERSION",
        podmeter: Some(("podmeter_driver_info", "nvml_version")),
        ..COMMENTED
    },
    LabelName {
        old: "DCGM_FI_DEV_BRAND",
        new: "DCGM_FI_DEV_GPU_BRAND",
        podmeter: Some(("podmeter_device_info", "model")),
        ..COMMENTED
    },
    LabelName { old: "DCGM_FI_DEV_SERIAL", new: "DCGM_FI_DEV_BOARD_SERIAL", ..COMMENTED },
    LabelName { old: "DCGM_FI_DEV_OEM_INFOROM_VER", new: "DCGM_FI_DEV_INFOROM_OEM_VERSION", ..COMMENTED },
    LabelName { old: "DCGM_FI_DEV_ECC_INFOROM_VER", new: "DCGM_FI_DEV_INFOROM_ECC_VERSION", ..COMMENTED },
    LabelName { old: "DCGM_FI_DEV_POWER_INFOROM_VER", new: "DCGM_FI_DEV_INFOROM_POWER_VERSION", ..COMMENTED },
    LabelName { old: "DCGM_FI_DEV_INFOROM_IMAGE_VER", new: "DCGM_FI_DEV_INFOROM_IMAGE_VERSION", ..COMMENTED },
    LabelName {
        old: "DCGM_FI_DEV_VBIOS_VERSION",
        new: "DCGM_FI_DEV_VBIOS_VERSION",
        podmeter: Some(("podmeter_device_info", "vbios_version")),
        ..COMMENTED
    },
];

const COMMENTED: LabelName = LabelName { old: "", new: "", shipped: Shipped::Commented, served: false, podmeter: None };
