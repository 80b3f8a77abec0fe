use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use serde::Serialize;

use crate::clock::Clock;
use crate::hardware::nvml::{CallStatistics, LibrarySearch, NvmlDriver};
use crate::hardware::{Driver as _, Due, Failure, Session};
use crate::model::{Fast, GpuUuid, Inventory, Medium, Slow};

/// Between two passes: GPM wants more than 100 ms between its samples.
const PAUSE: Duration = Duration::from_millis(250);

/// What every NVML call that the agent makes does on this machine.
#[derive(Serialize)]
struct Report {
    inventory: Inventory,
    gpus: BTreeMap<GpuUuid, LastPass>,
    calls: BTreeMap<&'static str, Call>,
}

#[derive(Default, Serialize)]
struct LastPass {
    fast: Option<Fast>,
    medium: Option<Medium>,
    slow: Option<Slow>,
    /// `call: code` of each value that could not be had.
    problems: Vec<String>,
}

#[derive(Serialize)]
struct Call {
    supported: Option<bool>,
    count: u64,
    p50_microseconds: Option<f64>,
    p99_microseconds: Option<f64>,
    codes: BTreeMap<&'static str, u64>,
}

/// Reads every GPU `passes` times, all tiers each time, and reports as JSON. Blocks for as long as the driver does.
pub fn probe_nvml(search: LibrarySearch, passes: u32) -> Result<String, Failure> {
    let clock = Clock::start();
    let mut driver = NvmlDriver::with_latencies(search, clock);
    let record = driver.call_record();
    let session = driver.open()?;
    let (inventory, _) = session.inventory()?;
    let gpus = inventory.gpus.keys().map(|gpu| Ok((gpu.clone(), read(&*session, gpu, passes, clock)?)));
    let gpus = gpus.collect::<Result<_, Failure>>()?;
    let calls = record.call_statistics().into_iter().map(|(name, statistics)| (name, Call::from(statistics)));
    let report = Report { inventory, gpus, calls: calls.collect() };
    let mut text = serde_json::to_string_pretty(&report).expect("plain values are JSON");
    text.push('\n');
    Ok(text)
}

fn read(session: &dyn Session, gpu: &GpuUuid, passes: u32, clock: Clock) -> Result<LastPass, Failure> {
    // Nobody ever sends: receiving is a pause.
    let (_sender, pause) = mpsc::channel::<()>();
    let mut reader = session.reader(gpu)?;
    let mut last = LastPass::default();
    for _ in 0..passes.max(1) {
        let pass = reader.read(Due { medium: true, slow: true }, clock.now());
        let problems = pass.problems.iter().map(|problem| format!("{}: {}", problem.call, problem.code)).collect();
        last = LastPass { fast: pass.fast, medium: pass.medium, slow: pass.slow, problems };
        let _ = pause.recv_timeout(PAUSE);
    }
    Ok(last)
}

impl From<CallStatistics> for Call {
    fn from(statistics: CallStatistics) -> Self {
        let microseconds = |latency: Option<Duration>| latency.map(|latency| latency.as_secs_f64() * 1e6);
        Self {
            supported: statistics.supported,
            count: statistics.count,
            p50_microseconds: microseconds(statistics.p50),
            p99_microseconds: microseconds(statistics.p99),
            codes: statistics.codes,
        }
    }
}
