//! The bounded queue between the log and standard error.
//!
//! In: formatted log lines from any thread. Out: the same lines on standard error, written by one thread. A line that
//! finds the queue full is dropped and counted; no caller waits for standard error. Does not use: levels, formats.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder};
use tracing_subscriber::fmt::MakeWriter;

/// A burst of a large node's messages; at some 200 bytes a line, 200 KiB.
const LINES: usize = 1024;

/// Copies share one queue.
#[derive(Clone)]
pub struct LogQueue {
    lines: NonBlocking,
    progress: Arc<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    queued: AtomicU64,
    /// Taken from the queue, written or not.
    finished: AtomicU64,
    /// Standard error is closed.
    failed: AtomicU64,
    /// Dropped lines that a line in the log has reported.
    reported: AtomicU64,
    writes: Mutex<()>,
    /// After each write.
    written: Condvar,
}

impl LogQueue {
    /// Starts the thread that writes to `output`. It runs until the process ends: joining it could block.
    pub fn start(output: impl Write + Send + 'static) -> Self {
        let progress = Arc::<Progress>::default();
        let output = Output { output, progress: Arc::clone(&progress) };
        let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES).thread_name("log");
        let (lines, guard) = builder.finish(output);
        // When dropped, it waits for the thread and prints to standard error.
        std::mem::forget(guard);
        Self { lines, progress }
    }

    /// Lines that are not and will not be on standard error.
    pub fn dropped(&self) -> u64 {
        dropped(&self.lines.error_counter()) + self.progress.failed.load(Ordering::Relaxed)
    }

    /// Lines dropped since the last call, once all lines that were queued before it are written.
    pub fn take_unreported(&self) -> Option<u64> {
        let dropped = dropped(&self.lines.error_counter());
        let new = dropped - self.progress.reported.load(Ordering::Relaxed);
        if new == 0 || !self.is_drained() {
            return None;
        }
        self.progress.reported.store(dropped, Ordering::Relaxed);
        Some(new)
    }

    /// Returns when everything is written, or after `limit`.
    pub fn flush(&self, limit: Duration) {
        self.progress.written.wait_while_for(&mut self.progress.writes.lock(), |()| !self.is_drained(), limit);
    }

    fn is_drained(&self) -> bool {
        let finished = self.progress.finished.load(Ordering::Acquire) + dropped(&self.lines.error_counter());
        finished >= self.progress.queued.load(Ordering::Acquire)
    }
}

fn dropped(counter: &ErrorCounter) -> u64 {
    counter.dropped_lines() as u64
}

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for LogQueue {
    /// One call is one line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.progress.queued.fetch_add(1, Ordering::Release);
        self.lines.write_all(one_line(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// On the thread that writes.
struct Output<W> {
    output: W,
    progress: Arc<Progress>,
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.write_all(line).map(|()| line.len())
    }

    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        let written = self.output.write_all(line);
        self.progress.failed.fetch_add(u64::from(written.is_err()), Ordering::Relaxed);
        let guard = self.progress.writes.lock();
        self.progress.finished.fetch_add(1, Ordering::Release);
        drop(guard);
        self.progress.written.notify_all();
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Takes a line for each token, as a pipe whose reader has stopped.
    struct Pipe {
        tokens: Receiver<()>,
        lines: Sender<String>,
    }

    impl Write for Pipe {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.tokens.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            let _ = self.lines.send(String::from_utf8_lossy(line).into_owned());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_blocked_output_delays_no_line_and_dropped_lines_are_counted_once() {
        let ((token, tokens), (lines, written)) = (channel(), channel());
        let mut queue = LogQueue::start(Pipe { tokens, lines });
        let sent = LINES + 500;
        for number in 0..sent {
            queue.write_all(format!("line {number}\n").as_bytes()).unwrap();
        }
        // The queue is full, and one line may be in the thread's hands.
        let dropped = queue.dropped();
        assert!((499..=500).contains(&dropped), "{dropped}");
        assert_eq!(queue.take_unreported(), None, "not before it has drained");
        queue.flush(Duration::from_millis(20));
        (0..sent).for_each(|_| token.send(()).unwrap());
        queue.flush(Duration::from_secs(10));
        assert_eq!(written.try_iter().count() as u64, sent as u64 - dropped);
        assert_eq!((queue.take_unreported(), queue.take_unreported()), (Some(dropped), None));
        drop(token);
        while queue.dropped() == dropped {
            queue.write_all(b"unread\n").unwrap();
            queue.flush(Duration::from_secs(10));
        }
        assert_eq!(queue.take_unreported(), None, "a closed output gets no report");
    }

    #[test]
    fn foreign_text_makes_no_line_of_its_own() {
        let forged = "WARN pod=\"a\nERROR forged\r\u{1b}[2J\u{85}\u{2028}\u{202e}b\t\"\n";
        assert_eq!(one_line(forged), "WARN pod=\"a\\nERROR forged\\r\\u001b[2J\\u0085\\u2028\\u202eb\\t\"\n");
        assert!(matches!(one_line("INFO plain text,日本 too\n"), Cow::Borrowed(_)));
    }
}
