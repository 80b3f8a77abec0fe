//! Memory in use.

use super::super::name::{Name, Shipped, Unit, same, scaled};

const MIG_MEMORY: &str = "GPU instances are in podmeter_mig_memory_bytes";

pub static ROWS: &[Name] = &[
    scaled(
        "DCGM_FI_DEV_FB_USED",
        "DCGM_FI_DEV_FB_USED_BYTES",
        Unit::Mebibytes,
        ["Memory used (MiB).", "Memory used (bytes)."],
    )
    .native(
        same("podmeter_device_memory_bytes", &[("state", "used")])
            .but(MIG_MEMORY)
            .by_container("podmeter_container_memory_used_bytes", "the memory of the container's processes"),
    )
    .values(|page, series| {
        let own = |account: &crate::model::Account| Some(account.memory_used_bytes? as f64);
        page.parts(series, Some(own), |memory, _| Some(memory?.used as f64));
    }),
    scaled(
        "DCGM_FI_DEV_FB_FREE",
        "DCGM_FI_DEV_FB_FREE_BYTES",
        Unit::Mebibytes,
        ["Memory free (MiB).", "Memory free (bytes)."],
    )
    .native(same("podmeter_device_memory_bytes", &[("state", "free")]).but(MIG_MEMORY))
    .values(|page, series| page.parts(series, None, |memory, _| Some(memory?.free as f64))),
    scaled(
        "DCGM_FI_DEV_FB_RESERVED",
        "DCGM_FI_DEV_FB_RESERVED_BYTES",
        Unit::Mebibytes,
        ["Memory reserved by the driver (MiB).", "Memory reserved by the driver (bytes)."],
    )
    .native(same("podmeter_device_memory_bytes", &[("state", "reserved")]).but(MIG_MEMORY))
    .values(|page, series| page.parts(series, None, |memory, _| Some(memory?.reserved? as f64))),
    scaled(
        "DCGM_FI_DEV_FB_TOTAL",
        "DCGM_FI_DEV_FB_CAPACITY_BYTES",
        Unit::Mebibytes,
        ["Memory (MiB).", "Memory (bytes)."],
    )
    .shipped(Shipped::New)
    .native(same("podmeter_device_memory_capacity_bytes", &[]).but(MIG_MEMORY))
    .values(|page, series| page.parts(series, None, |memory, _| Some(memory?.total as f64))),
];
