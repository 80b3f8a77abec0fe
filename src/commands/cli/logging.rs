//! The log on standard error.
//!
//! In: events from any thread. Out: lines, written by one thread from a bounded queue. A line that finds the queue full is
//! dropped and counted; no caller waits for standard error.

use std::io::Write;
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, reload};

use super::log_line::log_line;
use crate::agent::{DroppedLogLines, LogFormat};
use crate::clock::Clock;
use crate::domain::periods::LAST_LINES;
use crate::tasks::NoThread;
use crate::words::counted;

/// A burst of a large node's messages; at some 200 bytes a line, 200 KiB.
const LINES: usize = 1024;

/// The running log.
pub struct Log {
    level: reload::Handle<Targets, Registry>,
    queue: LogQueue,
}

/// Logs to standard error. `level` has been validated.
pub fn start(format: LogFormat, level: &str) -> Result<Log, NoThread> {
    let (filter, level) = reload::Layer::new(targets(level));
    let queue = LogQueue::start(std::io::stderr())?;
    let lines = Lines { queue: queue.clone(), format, clock: Clock::start() };
    tracing_subscriber::registry().with(filter).with(lines).init();
    // The default hook would block on standard error.
    std::panic::set_hook(Box::new(log_panic));
    Ok(Log { level, queue })
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
        let (queue, reported) = (self.queue.clone(), Mutex::new(0));
        Box::new(move || {
            let (mut reported, dropped) = (reported.lock(), queue.dropped());
            if dropped > *reported {
                tracing::warn!("{} dropped", counted(dropped - *reported, "log line"));
                // Otherwise this line was dropped too.
                if queue.dropped() == dropped {
                    *reported = dropped;
                }
            }
            dropped
        })
    }

    /// Writes the queued lines, for a limited time: the end of the log.
    pub fn finish(self) {
        let (end, ended) = channel();
        let _ = self.queue.messages.send(Message::End(end));
        let _ = ended.recv_timeout(LAST_LINES);
    }
}

/// The lines that wait for the thread that writes them. tracing-appender panics where its thread cannot be started, and at the
/// end waits for a blocked output.
#[derive(Clone)]
struct LogQueue {
    messages: Sender<Message>,
    waiting: Arc<AtomicUsize>,
    dropped: Arc<AtomicU64>,
}

enum Message {
    Line(String),
    /// Dropped once the lines before it are written.
    End(#[expect(dead_code, reason = "its drop is the message")] Sender<()>),
}

impl LogQueue {
    fn start(output: impl Write + Send + 'static) -> Result<Self, NoThread> {
        let (messages, received) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let written = Arc::clone(&waiting);
        std::thread::Builder::new().name("log".into()).spawn(move || write_lines(output, &received, &written))?;
        Ok(Self { messages, waiting, dropped: Arc::default() })
    }

    /// Counts the line as dropped where too many wait.
    fn push(&self, line: String) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) < LINES {
            let _ = self.messages.send(Message::Line(line));
        } else {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

fn write_lines(mut output: impl Write, messages: &Receiver<Message>, waiting: &AtomicUsize) {
    while let Ok(message) = messages.recv() {
        if let Message::Line(line) = message {
            waiting.fetch_sub(1, Ordering::Relaxed);
            let _ = output.write_all(line.as_bytes());
        }
    }
}

/// Queues each event as a line.
struct Lines {
    queue: LogQueue,
    format: LogFormat,
    clock: Clock,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.queue.push(log_line(event, self.clock.now().unix, self.format));
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
        let lines = LogQueue::start(Pipe(blocked)).unwrap();
        for _ in 0..LINES + 500 {
            lines.push("a line\n".to_owned());
        }
        // One line may be in the thread's hands.
        let dropped = lines.dropped();
        assert!((499..=500).contains(&dropped), "{dropped}");
        drop(unblock);
    }
}
