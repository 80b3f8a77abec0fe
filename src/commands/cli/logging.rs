//! The log on standard error.
//!
//! In: events from any thread. Out: lines, written by one thread from a bounded queue. A line that finds the queue full is
//! dropped and counted; no caller waits for standard error.

use std::borrow::Cow;
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::sync::mpsc::channel;
use std::time::Duration;

use parking_lot::Mutex;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::agent::{DroppedLogLines, LogFormat};
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
    let lines = fmt::layer().with_writer(move || LogLines(lines.clone())).log_internal_errors(false);
    let output = match format {
        LogFormat::Text => lines.with_ansi(false).with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(output).init();
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

/// Passes lines on, each as one line.
struct LogLines(NonBlocking);

impl Write for LogLines {
    /// One call is one line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(one_line(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The line with every control character before its end escaped, and what would hide or reorder text: a name or a
/// message from elsewhere cannot imitate a separate line. In the same form as in JSON.
fn one_line(line: &str) -> Cow<'_, str> {
    let (text, end) = line.strip_suffix('\n').map_or((line, ""), |text| (text, "\n"));
    if !text.chars().any(must_be_escaped) {
        return Cow::Borrowed(line);
    }
    let mut escaped = String::with_capacity(line.len() + 16);
    for character in text.chars() {
        match character {
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            character if must_be_escaped(character) => escaped.push_str(&format!("\\u{:04x}", u32::from(character))),
            character => escaped.push(character),
        }
    }
    Cow::Owned(escaped + end)
}

fn must_be_escaped(character: char) -> bool {
    // Line and paragraph separators, and the marks that reverse the direction of writing.
    let reorders = matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    character.is_control() || reorders
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

    #[test]
    fn foreign_text_makes_no_line_of_its_own() {
        let forged = "WARN pod=\"a\nERROR forged\r\u{1b}[2J\u{85}\u{2028}\u{202e}b\t\"\n";
        assert_eq!(one_line(forged), "WARN pod=\"a\\nERROR forged\\r\\u001b[2J\\u0085\\u2028\\u202eb\\t\"\n");
        assert!(matches!(one_line("INFO plain text,日本 too\n"), Cow::Borrowed(_)));
    }
}
