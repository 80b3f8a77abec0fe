//! The data file: a machine with its GPUs. The head of lib.rs describes the format.
//!
//! In: JSON text. Out: the machine with every default filled in. Does not use: C, time, calls.

mod gpu;
mod mig;
mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;

pub use gpu::{Gpu, Process, ProcessKind, Vgpu};
pub use mig::{Instance, Mig, Profile};
pub use parts::{EccCounts, Event, Fabric, Gpm, NvLink, RemappedRows, Remote, RetiredPages, Samples};

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Machine {
    /// A change is a driver reload: see `lib.rs`.
    pub generation: u64,
    /// The return code of nvmlInit.
    pub init: u32,
    pub driver_version: String,
    pub nvml_version: String,
    /// 13000 is 13.0.
    pub cuda_version: i32,
    pub gpus: Vec<Arc<Gpu>>,
    /// Where the driver's clock stands still; 0: it runs.
    pub clock_microseconds: u64,
    /// The result of nvmlDeviceGetCount in place of their number.
    pub gpu_count: Option<u32>,
    pub fail: BTreeMap<String, u32>,
    /// Milliseconds.
    pub delay: BTreeMap<String, u64>,
    pub hang: BTreeSet<String>,
    pub function_not_found: BTreeSet<String>,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            generation: 1,
            init: 0,
            driver_version: "580.95.05".to_owned(),
            nvml_version: "13.580.95.05".to_owned(),
            cuda_version: 13000,
            gpus: Vec::new(),
            clock_microseconds: 0,
            gpu_count: None,
            fail: BTreeMap::new(),
            delay: BTreeMap::new(),
            hang: BTreeSet::new(),
            function_not_found: BTreeSet::new(),
        }
    }
}

impl Machine {
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let mut machine: Self = serde_json::from_str(text)?;
        for (position, gpu) in machine.gpus.iter_mut().enumerate() {
            Arc::make_mut(gpu).complete(position as u32);
        }
        Ok(machine)
    }

    pub fn gpu(&self, uuid: &str) -> Option<&Arc<Gpu>> {
        self.gpus.iter().find(|gpu| gpu.uuid == uuid)
    }

    pub fn gpu_at(&self, index: u32) -> Option<&Arc<Gpu>> {
        self.gpus.iter().find(|gpu| gpu.index == Some(index))
    }

    /// `(580, 95)` of 580.95.05.
    pub fn driver_number(&self) -> (u32, u32) {
        let mut numbers = self.driver_version.split('.').map(|part| part.parse().unwrap_or(0_u32));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    /// Drops the wildcards.
    pub fn remove_wildcards(&mut self) {
        self.fail.remove("*");
        self.delay.remove("*");
        self.hang.remove("*");
    }

    pub fn faults(&self) -> Faults<'_> {
        Faults { fail: &self.fail, delay: &self.delay, hang: &self.hang, function_not_found: &self.function_not_found }
    }
}

/// What goes wrong, of one GPU or of the whole library. Calls go by their C names; `*` is every call.
#[derive(Clone, Copy)]
pub struct Faults<'a> {
    fail: &'a BTreeMap<String, u32>,
    delay: &'a BTreeMap<String, u64>,
    hang: &'a BTreeSet<String>,
    function_not_found: &'a BTreeSet<String>,
}

impl<'a> Faults<'a> {
    pub fn new(
        fail: &'a BTreeMap<String, u32>,
        delay: &'a BTreeMap<String, u64>,
        hang: &'a BTreeSet<String>,
        function_not_found: &'a BTreeSet<String>,
    ) -> Self {
        Self { fail, delay, hang, function_not_found }
    }

    pub fn hangs(&self, call: &str) -> bool {
        self.hang.contains(call) || self.hang.contains("*")
    }

    pub fn delay(&self, call: &str) -> u64 {
        self.delay.get(call).or_else(|| self.delay.get("*")).copied().unwrap_or(0)
    }

    /// A name takes precedence over the wildcard: with `{"*": 999, "nvmlDeviceGetName": 0}` one call succeeds.
    pub fn code(&self, call: &str) -> u32 {
        if self.function_not_found.contains(call) {
            return crate::codes::FUNCTION_NOT_FOUND.0;
        }
        self.fail.get(call).or_else(|| self.fail.get("*")).copied().unwrap_or(0)
    }
}
