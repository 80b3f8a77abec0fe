//! The data file: a machine with its GPUs. The head of lib.rs describes the format.
//!
//! In: JSON text. Out: the machine with every default filled in. Does not use: C, time, calls.

mod gpu;
mod mig;
mod parts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;

pub use gpu::{Gpu, Process, ProcessKind};
pub use mig::{Instance, Mig, Profile};
pub use parts::{EccCounts, Event, Fabric, Gpm, NvLink, RemappedRows, Remote, RetiredPages, Samples};

/// A group: missing names take the default, unknown names are refused.
macro_rules! group {
    ($(#[$about:meta])* $name:ident { $($(#[$note:meta])* $field:ident: $kind:ty = $default:expr,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$note])* pub $field: $kind,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
}

use group;

group! {
    /// The whole file.
    Machine {
        /// A change is a driver reload: see `lib.rs`.
        generation: u64 = 1,
        /// The return code of nvmlInit.
        init: u32 = 0,
        driver_version: String = "580.95.05".to_owned(),
        nvml_version: String = "13.580.95.05".to_owned(),
        /// 13000 is 13.0.
        cuda_version: i32 = 13000,
        gpus: Vec<Arc<Gpu>> = Vec::new(),
        /// Where the driver's clock stands still; 0: it runs.
        clock_microseconds: u64 = 0,
        /// The result of nvmlDeviceGetCount in place of their number.
        gpu_count: Option<u32> = None,
        fail: BTreeMap<String, u32> = BTreeMap::new(),
        /// Milliseconds.
        delay: BTreeMap<String, u64> = BTreeMap::new(),
        /// Microseconds of processor time.
        cost: BTreeMap<String, u64> = BTreeMap::new(),
        hang: BTreeSet<String> = BTreeSet::new(),
        function_not_found: BTreeSet<String> = BTreeSet::new(),
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
        self.cost.remove("*");
        self.hang.remove("*");
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

/// What goes wrong, of one GPU or of the whole library. Calls go by their C names; `*` is every call.
#[derive(Clone, Copy)]
pub struct Faults<'a> {
    fail: &'a BTreeMap<String, u32>,
    delay: &'a BTreeMap<String, u64>,
    cost: &'a BTreeMap<String, u64>,
    hang: &'a BTreeSet<String>,
    function_not_found: &'a BTreeSet<String>,
}

impl Faults<'_> {
    pub fn hangs(&self, call: &str) -> bool {
        self.hang.contains(call) || self.hang.contains("*")
    }

    pub fn delay(&self, call: &str) -> u64 {
        self.delay.get(call).or_else(|| self.delay.get("*")).copied().unwrap_or(0)
    }

    pub fn cost(&self, call: &str) -> u64 {
        self.cost.get(call).or_else(|| self.cost.get("*")).copied().unwrap_or(0)
    }

    /// A name takes precedence over the wildcard: with `{"*": 999, "nvmlDeviceGetName": 0}` one call succeeds.
    pub fn code(&self, call: &str) -> u32 {
        if self.function_not_found.contains(call) {
            return crate::codes::FUNCTION_NOT_FOUND.0;
        }
        self.fail.get(call).or_else(|| self.fail.get("*")).copied().unwrap_or(0)
    }
}
