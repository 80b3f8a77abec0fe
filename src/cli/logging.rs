use std::panic::PanicHookInfo;
use std::time::Duration;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use super::log_queue::LogQueue;
use crate::agent::{DroppedLogLines, LogFormat};

/// At the end. What a blocked standard error has not taken by then is lost.
const FLUSH: Duration = Duration::from_millis(300);

/// Changes what is logged while running.
#[derive(Clone)]
pub struct Log {
    level: reload::Handle<Targets, Registry>,
    queue: LogQueue,
}

/// Logs go to standard error, through a queue that drops what standard error does not take. `level` has been validated.
pub fn start(format: LogFormat, level: &str) -> Log {
    let (filter, handle) = reload::Layer::new(targets(level));
    let queue = LogQueue::start(std::io::stderr());
    let lines = fmt::layer().with_writer(queue.clone()).log_internal_errors(false);
    let output = match format {
        LogFormat::Text => lines.with_ansi(false).with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(output).init();
    // The usual hook writes to standard error itself and would wait for it.
    std::panic::set_hook(Box::new(log_panic));
    Log { level: handle, queue }
}

impl Log {
    pub fn set_level(&self, level: &str) {
        if let Err(error) = self.level.reload(targets(level)) {
            tracing::warn!(%error, "the log level stays as it was");
        }
    }

    /// Lines dropped so far; says so in the log, once, when the queue has drained. To be called now and then.
    pub fn dropped_lines(&self) -> DroppedLogLines {
        let queue = self.queue.clone();
        Box::new(move || {
            if let Some(lines) = queue.take_unreported() {
                tracing::warn!("{lines} log lines dropped");
            }
            queue.dropped()
        })
    }

    /// Waits for what is queued, but not long.
    pub fn flush(&self) {
        self.queue.flush(FLUSH);
    }
}

fn log_panic(panic: &PanicHookInfo) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let location = panic.location().map(tracing::field::display);
    let backtrace = std::backtrace::Backtrace::capture();
    let backtrace = (backtrace.status() == std::backtrace::BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(thread, location, backtrace, "panicked: {}", panic.payload_as_str().unwrap_or("no message"));
}

/// What tonic says of a call's failure, podmeter logs once, when it changes; tonic says it at each call.
fn targets(level: &str) -> Targets {
    let targets: Targets = level.parse().expect("the settings hold only what can be read");
    let names_tonic = targets.iter().any(|(target, _)| target.starts_with("tonic"));
    if names_tonic { targets } else { targets.with_target("tonic", LevelFilter::OFF) }
}
