//! A fake `libnvidia-ml.so.1` for tests: the C functions of NVML, answered from a JSON file that may change at any
//! time.
//!
//! In: a data file. Out: the C ABI, with the struct layouts of nvml-wrapper-sys. No call touches hardware.
//!
//! # Files
//!
//! The data file is named by `FAKE_NVML_STATE`, or else is `fake-nvml.json` beside the loaded library. It is read
//! on calls, and read again when its time stamp, size or inode changed; one that cannot be read
//! leaves the last good state, with a line on stderr. Write it beside and rename it.
//! `FAKE_NVML_CALLS` names a file that gets a line for each call (`record.rs`); without both variables it is
//! `fake-nvml-calls` beside the library.
//!
//! # Format
//!
//! Every name may be missing; `{"gpus": [{}, {}]}` is a machine with two idle H100. Unknown names are refused.
//!
//! ```json
//! {
//!   "driver_version": "580.95.05", "nvml_version": "13.580.95.05", "cuda_version": 13000,
//!   "generation": 1, "init": 0,
//!   "fail": {"nvmlDeviceGetPowerUsage": 3}, "delay": {"nvmlDeviceGetName": 50},
//!   "hang": ["nvmlDeviceGetUtilizationRates"], "function_not_found": ["nvmlDeviceGetFieldValues"],
//!   "gpus": [{
//!     "utilization": {"gpu": 75.5, "memory": 20}, "power_milliwatts": 300000,
//!     "memory": {"used_bytes": 1073741824},
//!     "processes": [{"pid": 4711, "kind": "compute", "memory_bytes": 1073741824, "sm": 75}],
//!     "events": [{"sequence": 1, "xid": 79}], "recovery_action": 0, "lost": false,
//!     "mig": {"enabled": true, "instances": [{"gpu_instance": 1, "profile": "1g.10gb"}]},
//!     "gpm": {"metrics": {"2": 45.5}}, "fields": {"142": 3, "230": {"code": 3}}
//!   }]
//! }
//! ```
//!
//! All names with their defaults and units: `state/`.
//!
//! # A driver whose calls cost something
//!
//! A call into this library takes a microsecond; the driver's use the processor in the kernel. `profiles/h100.json` is a
//! state with what was seen on one H100 80GB HBM3, driver 580.159.04, 2026-11-26, and with guesses where nothing was:
//!
//! | in the profile | source |
//! |---|---|
//! | nvmlDeviceGetTotalEnergyConsumption 3.6 ms, nvmlDeviceGetSamples 2.1 ms (each kind), nvmlDeviceGetProcessUtilization 1.0 ms | measured |
//! | nvmlGpmSampleGet 3.65 ms | measured: half of a pair |
//! | nvmlDeviceGetFieldValues 1.8 ms | measured with podmeter's list of 2026-11; a guess that other lists cost the same |
//! | nvmlInit 15 ms | a guess, rather too high: NVIDIA's plugin (main branch) makes four, and 0.20 registered 30 to 36 ms after exec |
//! | all other calls 20 µs | a guess, rather too low: podmeter used 1.75 % of a core there, of which these calls explain two thirds |
//! | nvmlGpmMigSampleGet, nvmlDeviceGetProcessesUtilizationInfo | guesses: as the calls that they resemble |
//! | nvmlDeviceGetPcieThroughput waits for 20 ms | NVML's header: it reads a counter twice |
//! | rings of 100 samples of 0.2 s; one process in each period of a shared GPU | seen |
//! | nvmlDeviceGetProcessUtilization needs a buffer of 100 entries | seen: more than 64, with one process |
//! | a process's mean ends with its own last period | a guess |
//! | no PCIe byte counters (fields 197, 198) | seen |
//!
//! Calls on several GPUs do not wait for each other, which was not seen either.
//!
//! # Time
//!
//! The states of the file make up a history, each from the moment the file was written. Samples, the energy counter and
//! GPM are computed from it, so that they agree with the load exactly, whenever they are read. A new `generation`
//! is a driver reload: all calls return UNINITIALIZED until nvmlShutdown and nvmlInit, old handles are dead, and the
//! energy counter restarts. With `clock_microseconds` the driver's time is that value.
//!
//! # Faults
//!
//! Besides, a GPU's own `wake` is its initialisation, which its handle needs, and which a search for a UUID makes with
//! every GPU before the one that has it; it goes by name alone. `fail`, `delay` (milliseconds), `cost` (microseconds of
//! the calling thread's processor time), `hang` and `function_not_found` go by C name or `*`, for the whole library or
//! for one GPU; of two delays or costs the larger counts. A call that hangs returns once the file no longer lists it.
//! `*` excludes nvmlInit and nvmlShutdown; `init` is the former's code. `lost` makes every call on that GPU's handles
//! return GPU_IS_LOST, and the event wait as well.

#![allow(unsafe_code, reason = "a C ABI: exported names and the caller's pointers")]
#![allow(non_snake_case, reason = "the exported names are the driver's")]

mod calls;
mod clock;
mod codes;
mod events;
mod fields;
mod gate;
mod gpm;
mod handles;
mod history;
mod library;
mod out;
mod record;
mod samples;
mod state;
mod versions;
mod watch;
