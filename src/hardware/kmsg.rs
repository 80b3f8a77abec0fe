//! Reads the kernel log for XIDs: it names the process, and has codes that the driver's events lack.
//!
//! In: the log, and the inventory for its PCI addresses. Out: XIDs into the mailbox, and notices for the supervisor.
//!
//! Read as lines, not as records: `/dev/kmsg` gives one whole line (and lines of attributes that begin with a space) at
//! each read, a file or FIFO gives any piece of them.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, TrySendError};
use std::thread::Builder;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use tokio::sync::watch;
use tracing::{info, warn};

use super::event_thread::Notice;
use super::kmsg_line::{KernelLine, KernelXid, parse_bus_id, parse_kernel_line};
use super::mailbox::Mailbox;
use super::source::Problem;
use super::worker::Event;
use crate::clock::Clock;
use crate::model::{GpuUuid, HardwareState, Monotonic, PciBusId, XidEvent, XidSource};
use crate::threads;

const STACK_BYTES: usize = 256 * 1024;
/// The kernel's longest record; a longer line is skipped.
const LINE_BYTES: usize = 8 * 1024;
/// How often an XID without a known GPU is looked up again.
const RESOLVE: Duration = Duration::from_secs(1);
/// Pause between two reads at the end of a file or FIFO, for which `poll` does not wait.
const TAIL: Duration = Duration::from_millis(100);
/// First and longest wait before the log is opened again.
const REOPEN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// XIDs of GPUs that are not in the inventory, and how long they are kept.
const UNKNOWN_GPUS: usize = 64;
const UNKNOWN_FOR: Duration = Duration::from_secs(60);
/// The driver logs a GPU that falls off the bus with an XID and without: within this time both are one event.
const SAME: Duration = Duration::from_secs(10);
const FALLEN_OFF_THE_BUS: u32 = 79;

/// The running reader. Dropping it wakes and ends the thread.
pub struct Kmsg {
    _wake: UnixStream,
}

impl Kmsg {
    /// `_ends` is dropped when the thread ends.
    pub fn spawn(
        path: PathBuf,
        clock: Clock,
        states: watch::Receiver<Arc<HardwareState>>,
        mailbox: Mailbox,
        events: SyncSender<Event>,
        ends: Sender<()>,
    ) -> std::io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        let mut reader = Reader {
            path,
            clock,
            states,
            mailbox,
            events,
            woken,
            lines: Lines::default(),
            unknown: VecDeque::new(),
            gone: BTreeMap::new(),
            notice: Notice::default(),
        };
        Builder::new().name("kmsg".to_owned()).stack_size(STACK_BYTES).spawn(move || {
            threads::prepare();
            reader.run();
            drop(ends);
        })?;
        Ok(Self { _wake: wake })
    }
}

struct Reader {
    path: PathBuf,
    clock: Clock,
    states: watch::Receiver<Arc<HardwareState>>,
    mailbox: Mailbox,
    events: SyncSender<Event>,
    /// Readable at the end of the hardware threads.
    woken: UnixStream,
    lines: Lines,
    unknown: VecDeque<(Monotonic, KernelXid)>,
    /// GPUs off the bus, with the time, and whether an XID reported it.
    gone: BTreeMap<PciBusId, (Monotonic, bool)>,
    notice: Notice,
}

/// The result of a read.
enum Step {
    Read,
    /// No data; `poll` waits for more.
    Empty,
    /// No data, and `poll` does not wait for more.
    End,
    Broken(std::io::Error),
}

impl Reader {
    fn run(&mut self) {
        let mut wait = REOPEN.0;
        let mut complained = false;
        loop {
            match open(&self.path) {
                Ok(mut log) => {
                    info!(path = %self.path.display(), "the kernel log is read for XIDs");
                    (wait, complained) = (REOPEN.0, false);
                    self.lines = Lines::default();
                    let Some(error) = self.follow(&mut log) else { return };
                    warn!(path = %self.path.display(), %error, "reading the kernel log failed; it is opened again");
                    self.problem("read_failed");
                }
                Err(error) => {
                    if !std::mem::replace(&mut complained, true) {
                        warn!(
                            path = %self.path.display(), %error,
                            "the kernel log cannot be read, so XIDs come from the driver alone; mount the device \
                             and give the container CAP_SYSLOG, or turn it off"
                        );
                    }
                    self.problem("open_failed");
                }
            }
            self.send_notice();
            if self.is_woken(None, wait) {
                return;
            }
            wait = (wait * 2).min(REOPEN.1);
        }
    }

    /// Reads until the hardware threads end (`None`) or the log fails.
    fn follow(&mut self, log: &mut File) -> Option<std::io::Error> {
        let mut buffer = [0; LINE_BYTES];
        loop {
            let (log_to_wait_for, patience) = match self.step(log, &mut buffer) {
                Step::Read => (None, Duration::ZERO),
                Step::Empty => (Some(&*log), RESOLVE),
                Step::End => (None, TAIL),
                Step::Broken(error) => return Some(error),
            };
            self.resolve();
            self.mailbox.send();
            self.send_notice();
            if self.is_woken(log_to_wait_for, patience) {
                return None;
            }
        }
    }

    fn step(&mut self, log: &mut File, buffer: &mut [u8]) -> Step {
        match log.read(buffer) {
            Ok(0) => Step::End,
            Ok(bytes) => {
                let mut lines = std::mem::take(&mut self.lines);
                lines.take(&buffer[..bytes], |line| {
                    if let Some(line) = parse_kernel_line(line) {
                        self.take(line);
                    }
                });
                self.lines = lines;
                Step::Read
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Step::Empty,
            Err(error) if error.kind() == ErrorKind::Interrupted => Step::Read,
            // The ring was overwritten before it was read; the next read begins at its oldest record.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.problem("overwritten");
                Step::Read
            }
            Err(error) => Step::Broken(error),
        }
    }

    fn take(&mut self, line: KernelLine) {
        let now = self.clock.now().monotonic;
        let (xid, by_xid) = match line {
            KernelLine::Xid(xid) => (xid, true),
            KernelLine::OffTheBus(bus_id) => {
                (KernelXid { bus_id, instance: None, code: FALLEN_OFF_THE_BUS, process: None }, false)
            }
        };
        if xid.code == FALLEN_OFF_THE_BUS {
            self.gone.retain(|_, (at, _)| now.since(*at) < SAME);
            // A second XID is another event; a text near an XID is the same event.
            if let Some((at, had_xid)) = self.gone.get_mut(&xid.bus_id).filter(|(_, had_xid)| !(by_xid && *had_xid)) {
                (*at, *had_xid) = (now, *had_xid || by_xid);
                return;
            }
            if self.gone.len() < UNKNOWN_GPUS {
                self.gone.insert(xid.bus_id.clone(), (now, by_xid));
            }
        }
        match self.gpu(&xid.bus_id) {
            Some(gpu) => self.put(gpu, xid),
            None if self.unknown.len() < UNKNOWN_GPUS => self.unknown.push_back((now, xid)),
            None => self.problem("unknown_gpu"),
        }
    }

    /// Handles XIDs that came before the inventory.
    fn resolve(&mut self) {
        let now = self.clock.now().monotonic;
        for (at, xid) in std::mem::take(&mut self.unknown) {
            match self.gpu(&xid.bus_id) {
                Some(gpu) => self.put(gpu, xid),
                None if now.since(at) < UNKNOWN_FOR => self.unknown.push_back((at, xid)),
                None => {
                    warn!(bus_id = %xid.bus_id, code = xid.code, "an XID of a GPU that the driver has never listed");
                    self.problem("unknown_gpu");
                }
            }
        }
    }

    fn put(&mut self, gpu: GpuUuid, xid: KernelXid) {
        let KernelXid { instance, code, process, .. } = xid;
        self.notice.slow_due.insert(gpu.clone());
        let (at, source, count) = (self.clock.now(), XidSource::Kmsg, 1);
        self.mailbox.put(XidEvent { at, gpu, instance, code, source, process, count });
    }

    fn gpu(&self, bus_id: &PciBusId) -> Option<GpuUuid> {
        let inventory = Arc::clone(&self.states.borrow().inventory);
        let has_place = |at: &PciBusId| parse_bus_id(at.as_str()).as_ref() == Some(bus_id);
        let found = inventory.gpus.values().find(|gpu| gpu.pci_bus_id.as_ref().is_some_and(has_place));
        found.map(|gpu| gpu.uuid.clone())
    }

    fn problem(&mut self, code: &'static str) {
        self.notice.problems.push(Problem { call: "kmsg", code });
        self.notice.problems.truncate(UNKNOWN_GPUS);
    }

    /// Never blocks: with a full queue the notice is sent with the next one.
    fn send_notice(&mut self) {
        if self.notice.slow_due.is_empty() && self.notice.problems.is_empty() {
            return;
        }
        let notice = std::mem::take(&mut self.notice);
        if let Err(TrySendError::Full(Event::Notice(kept))) = self.events.try_send(Event::Notice(Box::new(notice))) {
            self.notice = *kept;
        }
    }

    /// Waits until the log has more, or for `patience`. True at the end of the hardware threads.
    fn is_woken(&self, log: Option<&File>, patience: Duration) -> bool {
        let mut waiting = vec![PollFd::new(&self.woken, PollFlags::IN)];
        waiting.extend(log.map(|log| PollFd::new(log, PollFlags::IN)));
        let timeout = Timespec::try_from(patience).ok();
        match poll(&mut waiting, timeout.as_ref()) {
            Ok(_) => !waiting[0].revents().is_empty(),
            Err(Errno::INTR) => false,
            // Impossible with two open files; ends the thread rather than looping.
            Err(_) => true,
        }
    }
}

/// At its end: earlier events are in the driver's state, or over.
fn open(path: &Path) -> std::io::Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("the flag is a small number");
    let mut log = File::options().read(true).custom_flags(flags).open(path)?;
    // A FIFO has no end to go to.
    let _ = log.seek(SeekFrom::End(0));
    Ok(log)
}

/// Joins pieces into lines of a bounded length.
#[derive(Default)]
struct Lines {
    begun: Vec<u8>,
    /// The line is too long, and skipped to its end.
    is_skipped: bool,
}

impl Lines {
    fn take(&mut self, bytes: &[u8], mut read: impl FnMut(&str)) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !self.is_skipped && self.begun.len() + piece.len() <= LINE_BYTES {
                self.begun.extend_from_slice(piece);
            } else {
                self.is_skipped = true;
            }
            if piece.ends_with(b"\n") {
                if !std::mem::take(&mut self.is_skipped) {
                    read(String::from_utf8_lossy(&self.begun).trim_end());
                }
                self.begun.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_from_any_pieces() {
        let mut text = b"one\ntwo \xff\n".to_vec();
        text.extend(vec![b'x'; 3 * LINE_BYTES]);
        text.extend(b"\nlast\nbegun");
        for size in [1, 3, 100, LINE_BYTES, text.len()] {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for piece in text.chunks(size) {
                lines.take(piece, |line| found.push(line.to_owned()));
                assert!(lines.begun.len() <= LINE_BYTES);
            }
            assert_eq!(found, ["one", "two \u{fffd}", "last"], "in pieces of {size}");
        }
    }
}
