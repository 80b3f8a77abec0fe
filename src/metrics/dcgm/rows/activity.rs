//! How busy a device is: utilization, and the profiling metrics of Hopper and newer.

use super::super::name::{Name, Shipped, Unit, renamed, same, scaled, unchanged};
use crate::metrics::labels::medium;

const MIG_RATIO: &str = "GPU instances are in podmeter_mig_*_ratio";
const COUNTER_ONLY: &str = "the mean over a range, not the last sample";

/// Active cycles of one pipe.
macro_rules! cycles {
    ($name:literal, $pipe:literal, $help:literal) => {
        unchanged($name, Unit::Cycles, $help)
            .counter()
            .shipped(Shipped::Commented)
            .no_native("the fraction of time: podmeter_device_pipe_active_ratio")
            .values(|page, series| page.gpus(series, |readings| medium(readings)?.pipe_cycles.get($pipe).copied()))
    };
}

pub static ROWS: &[Name] = &[
    scaled(
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_GPU_UTIL_RATIO",
        Unit::Percent,
        ["GPU utilization (%).", "GPU utilization (0 to 1)."],
    )
    .native(same("podmeter_device_utilization_ratio", &[]).by_container(
        "podmeter_container_utilization_ratio",
        "on a shared GPU or GPU instance it is of the part that the container holds, 0 to 1",
    ))
    .values(|page, series| {
        page.gpus_and_holders(
            series,
            |account| account.device_utilization_ratio,
            |readings| readings.fast.as_ref()?.value.utilization_ratio,
        );
    }),
    scaled(
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "DCGM_FI_DEV_MEMORY_UTIL_RATIO",
        Unit::Percent,
        ["Memory utilization (%).", "Memory utilization (0 to 1)."],
    )
    .native(same("podmeter_device_memory_busy_seconds_total", &[]).counter_of_rate().unproven(COUNTER_ONLY))
    .values(|page, series| page.gpus(series, |readings| medium(readings)?.rates.memory_utilization_ratio)),
    scaled(
        "DCGM_FI_DEV_ENC_UTIL",
        "DCGM_FI_DEV_ENC_UTIL_RATIO",
        Unit::Percent,
        ["Encoder utilization (%).", "Encoder utilization (0 to 1)."],
    )
    .native(
        same("podmeter_device_engine_busy_seconds_total", &[("engine", "encoder")])
            .counter_of_rate()
            .unproven(COUNTER_ONLY),
    )
    .values(|page, series| {
        page.gpus(series, |readings| medium(readings)?.rates.engine_utilization_ratios.get("encoder").copied());
    }),
    scaled(
        "DCGM_FI_DEV_DEC_UTIL",
        "DCGM_FI_DEV_DEC_UTIL_RATIO",
        Unit::Percent,
        ["Decoder utilization (%).", "Decoder utilization (0 to 1)."],
    )
    .native(
        same("podmeter_device_engine_busy_seconds_total", &[("engine", "decoder")])
            .counter_of_rate()
            .unproven(COUNTER_ONLY),
    )
    .values(|page, series| {
        page.gpus(series, |readings| medium(readings)?.rates.engine_utilization_ratios.get("decoder").copied());
    }),
    renamed(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
        Unit::Ratio,
        "Fraction of time in which the graphics or compute engine was active.",
    )
    .native(same("podmeter_device_graphics_engine_active_ratio", &[]).but(MIG_RATIO))
    .values(|page, series| page.parts(series, None, |_, gpm| gpm.graphics_engine_active)),
    renamed(
        "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_FI_PROF_SM_UTIL_RATIO",
        Unit::Ratio,
        "Fraction of SM time with at least one warp resident.",
    )
    .shipped(Shipped::Commented)
    .native(same("podmeter_device_sm_active_ratio", &[]).but(MIG_RATIO))
    .values(|page, series| page.parts(series, None, |_, gpm| gpm.sm_active)),
    renamed(
        "DCGM_FI_PROF_SM_OCCUPANCY",
        "DCGM_FI_PROF_SM_OCCUPANCY_RATIO",
        Unit::Ratio,
        "Resident warps as a fraction of the maximum.",
    )
    .shipped(Shipped::Commented)
    .native(same("podmeter_device_sm_occupancy_ratio", &[]).but(MIG_RATIO))
    .values(|page, series| page.parts(series, None, |_, gpm| gpm.sm_occupancy)),
    renamed(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "DCGM_FI_PROF_TENSOR_UTIL_RATIO",
        Unit::Ratio,
        "Fraction of time in which the tensor pipe was active.",
    )
    .native(same("podmeter_device_pipe_active_ratio", &[("pipe", "tensor")]).but(MIG_RATIO))
    .values(|page, series| page.parts(series, None, |_, gpm| gpm.pipes.get("tensor").copied())),
    renamed(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "DCGM_FI_PROF_DRAM_UTIL_RATIO",
        Unit::Ratio,
        "Fraction of time in which the memory interface was active.",
    )
    .native(same("podmeter_device_dram_active_ratio", &[]).but(MIG_RATIO))
    .values(|page, series| page.parts(series, None, |_, gpm| gpm.dram_active)),
    renamed(
        "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
        "DCGM_FI_PROF_FP64_UTIL_RATIO",
        Unit::Ratio,
        "Fraction of time in which the FP64 pipe was active.",
    )
    .shipped(Shipped::Commented)
    .native(same("podmeter_device_pipe_active_ratio", &[("pipe", "fp64")]).but(MIG_RATIO))
    .values(|page, series| page.parts(series, None, |_, gpm| gpm.pipes.get("fp64").copied())),
    renamed(
        "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
        "DCGM_FI_PROF_FP32_UTIL_RATIO",
        Unit::Ratio,
        "Fraction of time in which the FP32 pipe was active.",
    )
    .shipped(Shipped::Commented)
    .native(same("podmeter_device_pipe_active_ratio", &[("pipe", "fp32")]).but(MIG_RATIO))
    .values(|page, series| page.parts(series, None, |_, gpm| gpm.pipes.get("fp32").copied())),
    renamed(
        "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
        "DCGM_FI_PROF_FP16_UTIL_RATIO",
        Unit::Ratio,
        "Fraction of time in which the FP16 pipe was active.",
    )
    .shipped(Shipped::Commented)
    .native(same("podmeter_device_pipe_active_ratio", &[("pipe", "fp16")]).but(MIG_RATIO))
    .values(|page, series| page.parts(series, None, |_, gpm| gpm.pipes.get("fp16").copied())),
    unchanged("DCGM_FI_PROF_SM_CYCLES_ELAPSED_TOTAL", Unit::Cycles, "SM cycles.")
        .counter()
        .shipped(Shipped::Commented)
        .native(same("podmeter_device_sm_cycles_total", &[]))
        .values(|page, series| page.gpus(series, |readings| medium(readings)?.sm_cycles)),
    unchanged("DCGM_FI_PROF_SM_CYCLES_ACTIVE_TOTAL", Unit::Cycles, "SM cycles with at least one warp resident.")
        .counter()
        .shipped(Shipped::Commented)
        .native(same("podmeter_device_sm_active_cycles_total", &[]))
        .values(|page, series| page.gpus(series, |readings| medium(readings)?.sm_active_cycles)),
    cycles!("DCGM_FI_PROF_MMA_CYCLES_ACTIVE_TOTAL", "tensor", "Cycles of the matrix pipes."),
    cycles!("DCGM_FI_PROF_DMMA_CYCLES_ACTIVE_TOTAL", "dmma", "Cycles of the FP64 matrix pipe."),
    cycles!("DCGM_FI_PROF_HMMA_CYCLES_ACTIVE_TOTAL", "hmma", "Cycles of the FP16 and BF16 matrix pipe."),
    cycles!("DCGM_FI_PROF_IMMA_CYCLES_ACTIVE_TOTAL", "imma", "Cycles of the integer matrix pipe."),
    cycles!("DCGM_FI_PROF_DFMA_CYCLES_ACTIVE_TOTAL", "dfma", "Cycles of the FP64 multiply-add pipe."),
    cycles!("DCGM_FI_PROF_INT_CYCLES_ACTIVE_TOTAL", "int", "Cycles of the integer pipe."),
    cycles!("DCGM_FI_PROF_FP64_CYCLES_ACTIVE_TOTAL", "fp64", "Cycles of the FP64 pipe."),
    cycles!("DCGM_FI_PROF_FP32_CYCLES_ACTIVE_TOTAL", "fp32", "Cycles of the FP32 pipe."),
    cycles!("DCGM_FI_PROF_FP16_CYCLES_ACTIVE_TOTAL", "fp16", "Cycles of the FP16 pipe."),
];
