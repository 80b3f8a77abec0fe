use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::mpsc;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use crate::clock::Clock;
use crate::hardware::nvml::{CallRecord, CallStatistics, LibrarySearch, NvmlDriver};
use crate::hardware::{Driver as _, Due, Failure, Session};
use crate::model::{Fast, GpuUuid, Inventory, Medium, Slow};

const REMEDY: &str =
    "look for Xid and NVRM lines in the kernel log; if the driver is only slow, set a longer --deadline";

/// Pause between two passes: GPM needs more than 100 ms between its samples.
const PAUSE: Duration = Duration::from_millis(250);

/// The result of every NVML call that the agent makes, on this machine.
#[derive(Serialize)]
pub struct Probe {
    /// The version of podmeter.
    podmeter: &'static str,
    date: String,
    inventory: Inventory,
    gpus: BTreeMap<GpuUuid, LastPass>,
    calls: BTreeMap<&'static str, Call>,
}

#[derive(Default, Serialize)]
struct LastPass {
    fast: Option<Fast>,
    medium: Option<Medium>,
    slow: Option<Slow>,
    /// `call: code` of each value that could not be read.
    problems: Vec<String>,
    /// The calls made for this GPU that never succeeded, with their commonest code.
    refused: BTreeMap<&'static str, &'static str>,
}

#[derive(Serialize)]
struct Call {
    supported: Option<bool>,
    count: u64,
    p50_microseconds: Option<f64>,
    p99_microseconds: Option<f64>,
    codes: BTreeMap<&'static str, u64>,
}

/// Messages of the probing thread.
enum Progress {
    Begins(String),
    Ended(Box<Result<Probe, Failure>>),
}

/// Reads every GPU `passes` times, all tiers each time. A step that takes longer than `deadline` is an error, and its
/// thread is abandoned inside the driver.
pub fn probe_nvml(search: LibrarySearch, passes: u32, deadline: Duration) -> Result<Probe, Failure> {
    let (sender, receiver) = mpsc::channel();
    let probing = move || {
        let ended = probe(search, passes, &|step| drop(sender.send(Progress::Begins(step))));
        drop(sender.send(Progress::Ended(Box::new(ended))));
    };
    let failed = |code, reason| Failure { call: "probe", code, reason, remedy: REMEDY };
    let thread = std::thread::Builder::new().name("probe".to_owned()).spawn(probing);
    thread.map_err(|error| failed("no_thread", format!("cannot start a thread for the driver: {error}")))?;
    let mut step = "opening the driver".to_owned();
    loop {
        match receiver.recv_timeout(deadline) {
            Ok(Progress::Begins(next)) => step = next,
            Ok(Progress::Ended(ended)) => return *ended,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let limit = humantime::format_duration(deadline);
                return Err(failed("timeout", format!("{step} has not finished within {limit}")));
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(failed("panic", format!("{step} made its thread panic; please report this")));
            }
        }
    }
}

fn probe(search: LibrarySearch, passes: u32, begins: &dyn Fn(String)) -> Result<Probe, Failure> {
    let clock = Clock::start();
    let mut driver = NvmlDriver::with_latencies(search, clock);
    let record = driver.call_record();
    let session = driver.open()?;
    begins("listing the GPUs".to_owned());
    let (inventory, _) = session.inventory()?;
    let mut gpus = BTreeMap::new();
    for gpu in inventory.gpus.keys() {
        begins(format!("reading {gpu}"));
        gpus.insert(gpu.clone(), read(&*session, gpu, passes, clock, &record)?);
    }
    begins("closing the driver".to_owned());
    drop(session);
    let calls = record.call_statistics().into_iter().map(|(name, statistics)| (name, Call::from(statistics)));
    let now = UNIX_EPOCH + Duration::from_secs_f64(clock.now().unix.0.max(0.0));
    Ok(Probe {
        podmeter: env!("CARGO_PKG_VERSION"),
        date: humantime::format_rfc3339_seconds(now).to_string(),
        inventory,
        gpus,
        calls: calls.collect(),
    })
}

fn read(
    session: &dyn Session,
    gpu: &GpuUuid,
    passes: u32,
    clock: Clock,
    record: &CallRecord,
) -> Result<LastPass, Failure> {
    // Nothing is ever sent: receiving is a pause.
    let (_sender, pause) = mpsc::channel::<()>();
    let before = record.call_statistics();
    let mut reader = session.reader(gpu)?;
    let mut last = LastPass::default();
    for _ in 0..passes.max(1) {
        let pass = reader.read(Due { medium: true, slow: true }, clock.now());
        let problems = pass.problems.iter().map(|problem| format!("{}: {}", problem.call, problem.code)).collect();
        last =
            LastPass { fast: pass.fast, medium: pass.medium, slow: pass.slow, problems, refused: BTreeMap::default() };
        let _ = pause.recv_timeout(PAUSE);
    }
    last.refused = refused(&before, &record.call_statistics());
    Ok(last)
}

/// Calls made between the two counts of which none succeeded.
fn refused(
    before: &BTreeMap<&'static str, CallStatistics>,
    after: &BTreeMap<&'static str, CallStatistics>,
) -> BTreeMap<&'static str, &'static str> {
    let none = CallStatistics::default();
    let refusal = |(name, after): (&&'static str, &CallStatistics)| {
        let before = before.get(name).unwrap_or(&none);
        let rise = |(code, count): (&&'static str, &u64)| (count - before.codes.get(code).unwrap_or(&0), *code);
        let rises: Vec<_> = after.codes.iter().map(rise).collect();
        let made = after.count - before.count;
        let failed: u64 = rises.iter().map(|(count, _)| count).sum();
        let (_, commonest) = rises.into_iter().max()?;
        (made > 0 && failed == made).then_some((*name, commonest))
    };
    after.iter().filter_map(refusal).collect()
}

impl Probe {
    #[must_use]
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("plain values are JSON");
        text.push('\n');
        text
    }

    /// The driver, the GPUs, and one line for each call.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        let unknown = || "unknown".into();
        if let Some(driver) = &self.inventory.driver {
            let cuda = driver.cuda_version.clone().unwrap_or_else(unknown);
            let nvml = driver.nvml_version.clone().unwrap_or_else(unknown);
            let _ = writeln!(text, "driver {}, CUDA {cuda}, NVML {nvml}", driver.driver_version);
        }
        for gpu in self.inventory.gpus.values() {
            let index = gpu.index.map_or_else(|| "-".to_owned(), |index| index.to_string());
            let _ = writeln!(text, "{index} {} {}", gpu.uuid, gpu.model.clone().unwrap_or_else(unknown));
        }
        let width = self.calls.keys().map(|name| name.len()).max().unwrap_or(0);
        let _ = writeln!(text, "\n{:width$}  supported  count   p50 us   p99 us  codes", "call");
        for (name, call) in &self.calls {
            let supported = call.supported.map_or("unknown", |supported| if supported { "yes" } else { "no" });
            let latency = |latency: Option<f64>| latency.map_or("-".into(), |latency| format!("{latency:.1}"));
            let codes: Vec<_> = call.codes.iter().map(|(code, count)| format!("{code} {count}")).collect();
            let line = format!(
                "{name:width$}  {supported:9}  {:5}  {:>7}  {:>7}  {}",
                call.count,
                latency(call.p50_microseconds),
                latency(call.p99_microseconds),
                codes.join(", ")
            );
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }
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
