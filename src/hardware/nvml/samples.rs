//! Reads the driver's rings of samples and integrates them.

use nvml_wrapper_sys::bindings::{nvmlSample_t, nvmlSamplingType_t};

use super::calls::{Caller, call, fill};
use super::library::DeviceHandle;
use super::rows::decode;
use crate::hardware::integrate::{IntegralStep, RingIntegral, RingSample};
use crate::hardware::plausible::{self, QuantityRange};

/// More samples than any known ring has; the buffer grows where that does not suffice.
const CAPACITY: usize = 256;
const LARGEST: usize = 16 * 1024;

/// One of the driver's rings and how far it has been read.
pub struct Ring {
    kind: nvmlSamplingType_t,
    /// How many of the driver's units one of ours is: percent in a ratio, milliwatts in a watt.
    units: f64,
    quantity: &'static QuantityRange,
    integral: RingIntegral,
    capacity: usize,
}

impl Ring {
    pub fn utilization(kind: nvmlSamplingType_t) -> Self {
        Self {
            kind,
            units: 100.0,
            quantity: &plausible::UTILIZATION,
            integral: RingIntegral::default(),
            capacity: CAPACITY,
        }
    }

    pub fn power(kind: nvmlSamplingType_t) -> Self {
        Self { units: 1000.0, quantity: &plausible::POWER, ..Self::utilization(kind) }
    }

    pub fn is_refused(&self, caller: &Caller) -> bool {
        caller.is_refused("nvmlDeviceGetSamples", self.kind)
    }

    /// Reads the new samples and integrates them. `fallback` returns the rate where there is none.
    pub fn advance(
        &mut self,
        caller: &mut Caller,
        handle: DeviceHandle,
        elapsed: f64,
        fallback: impl FnOnce(&mut Caller) -> Option<f64>,
    ) -> IntegralStep {
        let mut samples = self.samples(caller, handle);
        self.integral.advance(elapsed, &mut samples, || fallback(caller))
    }

    fn samples(&mut self, caller: &mut Caller, handle: DeviceHandle) -> Vec<RingSample> {
        let (kind, cursor) = (self.kind, self.integral.cursor());
        let mut value_type = 0;
        let read = fill(&mut self.capacity, LARGEST, |buffer, count| {
            call!(caller, nvmlDeviceGetSamples[kind](handle.0, kind, cursor, &raw mut value_type, count, buffer))
        });
        let mut sample = |sample: nvmlSample_t| {
            let value = decode(value_type, sample.sampleValue)? / self.units;
            Some(RingSample { timestamp: sample.timeStamp, value: caller.plausible(self.quantity, value)? })
        };
        let read = read.unwrap_or_default().into_iter().filter(|sample| sample.timeStamp != 0);
        read.filter_map(&mut sample).collect()
    }
}
