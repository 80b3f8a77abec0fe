//! The log on standard error.
//!
//! In: events from any thread. Out: lines, written by one thread from a bounded queue. A line that finds the queue full is
//! dropped and counted; no caller waits for standard error.

use std::io::Write;
use std::panic::PanicHookInfo;
use std::sync::mpsc::channel;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::{Event, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, reload};

use super::log_line::log_line;
use crate::agent::{DroppedLogLines, LogFormat};
use crate::clock::Clock;
use crate::words::counted;

/// A burst of a large node's messages; at some 200 bytes a line, 200 KiB.
const LINES: usize = 1024;
/// Wait at the end for a blocked standard error; what it has not accepted by then is lost.
const FLUSH: Duration = Duration::from_millis(300);

/// The running log.
pub struct Log {
    level: reload::Handle<Targets, Registry>,
    dropped: ErrorCounter,
    queue: WorkerGuard,
}

/// Logs to standard error. `level` has been validated.
pub fn start(format: LogFormat, level: &str) -> Log {
    let (filter, level) = reload::Layer::new(targets(level));
    let (lines, queue) = queue(std::io::stderr());
    let dropped = lines.error_counter();
    tracing_subscriber::registry().with(filter).with(Lines { queue: lines, format, clock: Clock::start() }).init();
    // The default hook would block on standard error.
    std::panic::set_hook(Box::new(log_panic));
    Log { level, dropped, queue }
}

fn queue(output: impl Write + Send + 'static) -> (NonBlocking, WorkerGuard) {
    NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES).thread_name("log").finish(output)
}

impl Log {
    /// Changes the level while running.
    pub fn set_level(&self) -> impl Fn(&str) + Send + use<> {
        let handle = self.level.clone();
        move |level| {
            if let Err(error) = handle.reload(targets(level)) {
                tracing::warn!(%error, "the log level is unchanged");
            }
        }
    }

    /// Counts lines dropped so far. Logs new ones once, when the queue accepts lines again.
    pub fn dropped_lines(&self) -> DroppedLogLines {
        let (counter, reported) = (self.dropped.clone(), Mutex::new(0));
        Box::new(move || {
            let (mut reported, dropped) = (reported.lock(), counter.dropped_lines());
            if dropped > *reported {
                tracing::warn!("{} dropped", counted(dropped - *reported, "log line"));
                // Otherwise this line was dropped too.
                if counter.dropped_lines() == dropped {
                    *reported = dropped;
                }
            }
            dropped as u64
        })
    }

    /// Writes the queued lines, for a limited time: the end of the log.
    pub fn finish(self) {
        let (ended, waiting) = channel::<()>();
        // Dropped, the guard waits for the lines, and may print to a blocked output.
        let finishing = std::thread::Builder::new().spawn(move || {
            drop(self.queue);
            drop(ended);
        });
        if finishing.is_ok() {
            let _ = waiting.recv_timeout(FLUSH);
        }
    }
}

/// Queues each event as a line.
struct Lines {
    queue: NonBlocking,
    format: LogFormat,
    clock: Clock,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // It does not fail: a line that does not fit is counted.
        let _ = self.queue.clone().write_all(log_line(event, self.clock.now().unix, self.format).as_bytes());
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::Receiver;

    use super::*;

    /// Blocks until the sender is dropped, as a pipe whose reader has stopped.
    struct Pipe(Receiver<()>);

    impl Write for Pipe {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_blocked_output_delays_no_line_and_dropped_lines_are_counted() {
        let (unblock, blocked) = channel();
        let (mut lines, _guard) = queue(Pipe(blocked));
        for _ in 0..LINES + 500 {
            lines.write_all(b"a line\n").unwrap();
        }
        // One line may be in the thread's hands.
        let dropped = lines.error_counter().dropped_lines();
        assert!((499..=500).contains(&dropped), "{dropped}");
        drop(unblock);
    }
}
