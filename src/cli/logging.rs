use std::panic::PanicHookInfo;
use std::time::Duration;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use super::log_queue::LogQueue;
use crate::agent::{DroppedLogLines, LogFormat};

/// Wait at the end for a blocked standard error; what it has not accepted by then is lost.
const FLUSH: Duration = Duration::from_millis(300);

/// Changes the level while running.
#[derive(Clone)]
pub struct Log {
    level: reload::Handle<Targets, Registry>,
    queue: LogQueue,
}

/// Logs to standard error, through a queue that drops what standard error does not accept. `level` has been validated.
pub fn start(format: LogFormat, level: &str) -> Log {
    let (filter, handle) = reload::Layer::new(targets(level));
    let queue = LogQueue::start(std::io::stderr());
    let lines = fmt::layer().with_writer(queue.clone()).log_internal_errors(false);
    let output = match format {
        LogFormat::Text => lines.with_ansi(false).with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(output).init();
    // The default hook would block on standard error.
    std::panic::set_hook(Box::new(log_panic));
    Log { level: handle, queue }
}

impl Log {
    pub fn set_level(&self, level: &str) {
        if let Err(error) = self.level.reload(targets(level)) {
            tracing::warn!(%error, "the log level is unchanged");
        }
    }

    /// Counts lines dropped so far. When called after the queue has drained, logs new ones once.
    pub fn dropped_lines(&self) -> DroppedLogLines {
        let queue = self.queue.clone();
        Box::new(move || {
            if let Some(lines) = queue.take_unreported() {
                tracing::warn!("{lines} log lines dropped");
            }
            queue.dropped()
        })
    }

    /// Waits for queued lines, for a limited time.
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

/// tonic logs each failed call; podmeter logs a failure once, when it changes.
fn targets(level: &str) -> Targets {
    let targets: Targets = level.parse().expect("validated settings");
    let names_tonic = targets.iter().any(|(target, _)| target.starts_with("tonic"));
    if names_tonic { targets } else { targets.with_target("tonic", LevelFilter::OFF) }
}
