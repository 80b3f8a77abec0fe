//! Reads the driver's rings of samples and integrates them.

use nvml_wrapper_sys::bindings::{nvmlSample_t, nvmlSamplingType_t, nvmlValue_t};

use super::calls::{Caller, call, fill};
use super::fields::decode;
use super::library::Handle;
use crate::hardware::integrate::{RingIntegral, Sample, Step};
use crate::hardware::plausible::{self, Quantity};

/// More than any known ring; grown where it does not suffice.
const CAPACITY: usize = 256;
const LARGEST: usize = 16 * 1024;

/// The buffer for one ring's samples, shared by the rings of a GPU.
pub struct SampleBuffer {
    raw: Vec<nvmlSample_t>,
    samples: Vec<Sample>,
}

/// One of the driver's rings and how far it has been read.
pub struct Ring {
    kind: nvmlSamplingType_t,
    /// The driver's units in one of ours: percent in a ratio, milliwatts in a watt.
    units: f64,
    quantity: &'static Quantity,
    integral: RingIntegral,
}

impl Default for SampleBuffer {
    fn default() -> Self {
        Self { raw: vec![BLANK; CAPACITY], samples: Vec::with_capacity(CAPACITY) }
    }
}

const BLANK: nvmlSample_t = nvmlSample_t { timeStamp: 0, sampleValue: nvmlValue_t { ullVal: 0 } };

impl Ring {
    pub fn utilization(kind: nvmlSamplingType_t) -> Self {
        Self { kind, units: 100.0, quantity: &plausible::UTILIZATION, integral: RingIntegral::default() }
    }

    pub fn power() -> Self {
        Self { kind: 0, units: 1000.0, quantity: &plausible::POWER, integral: RingIntegral::default() }
    }

    /// Of the whole module.
    pub fn module_power() -> Self {
        Self { kind: 7, ..Self::power() }
    }

    pub fn is_unsupported(&self, caller: &Caller) -> bool {
        caller.is_unsupported("nvmlDeviceGetSamples", self.kind)
    }

    /// `fallback` returns the rate where there is no new sample.
    pub fn advance(
        &mut self,
        caller: &mut Caller,
        handle: Handle,
        buffer: &mut SampleBuffer,
        elapsed: f64,
        fallback: impl FnOnce(&mut Caller) -> Option<f64>,
    ) -> Step {
        buffer.fill(caller, handle, self);
        self.integral.advance(elapsed, &mut buffer.samples, || fallback(caller))
    }
}

impl SampleBuffer {
    fn fill(&mut self, caller: &mut Caller, handle: Handle, ring: &Ring) {
        self.samples.clear();
        let (kind, cursor) = (ring.kind, ring.integral.cursor());
        let mut value_type = 0;
        let filled = fill(&mut self.raw, BLANK, LARGEST, |buffer, count| {
            call!(caller, nvmlDeviceGetSamples[kind](handle.0, kind, cursor, &raw mut value_type, count, buffer))
        });
        let read = self.raw.iter().take(filled.unwrap_or(0));
        self.samples.extend(read.filter(|sample| sample.timeStamp != 0).filter_map(|sample| {
            let value = decode(value_type, sample.sampleValue)? / ring.units;
            Some(Sample { timestamp: sample.timeStamp, value: caller.plausible(ring.quantity, value)? })
        }));
    }
}
