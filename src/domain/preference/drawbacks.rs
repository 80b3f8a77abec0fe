//! What speaks against a free GPU, and its rank among others.

use std::collections::BTreeMap;

use crate::domain::model::GpuUuid;

/// What speaks against a GPU now. By default nothing is known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuDrawbacks {
    /// Memory rows or banks wait for a reset to be remapped: the reset interrupts every process on the GPU.
    pub row_remap_pending: bool,
    pub throttled: bool,
    /// Processes use the GPU, and no container holds it.
    pub foreign_processes: bool,
    /// Use now as a ratio, 0 to 1; `None`: unknown.
    pub load: Option<f64>,
}

/// Of one request's GPUs, as the choice compares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub avoided: bool,
    /// In thousandths. Unknown counts as full: absent is not zero.
    pub load: u32,
}

const FULL: u32 = 1000;

impl Rank {
    pub(super) fn new(gpu: &GpuUuid, drawbacks: &BTreeMap<GpuUuid, GpuDrawbacks>) -> Self {
        let drawbacks = drawbacks.get(gpu).copied().unwrap_or_default();
        let load = match drawbacks.load {
            Some(ratio) if ratio.is_finite() => (ratio.clamp(0.0, 1.0) * f64::from(FULL)).round() as u32,
            _ => FULL,
        };
        Self { avoided: drawbacks.row_remap_pending || drawbacks.throttled || drawbacks.foreign_processes, load }
    }
}
