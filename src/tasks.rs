//! The tasks that run for as long as the process, and five ways in which a task waits. Does not depend on what a task does.
//!
//! - [`runtime`]: what the tasks run on, with its threads.
//! - [`Tasks`]: each has a name and an owner, and its end is observed.
//! - [`changed`]: for a change of a watched value.
//! - [`within`]: with a deadline, which does not count time in which the process was stopped.
//! - [`blocking`]: for work that blocks, however long it takes.
//! - [`SlowRead`]: for a file system that may hang.
//! - [`DirectoryEvents`]: for changed entries of directories.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use inotify::{EventStream, Inotify, WatchMask};
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt as _;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinError, JoinHandle, JoinSet, spawn_blocking};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::StreamExt as _;

/// A timer that fires later than this shows that the process or the machine was stopped.
const STOPPED: Duration = Duration::from_secs(1);
/// The time after which [`blocking`] work is late.
pub const LATE: Duration = Duration::from_secs(10);

/// The node, the pod or the user has no process ID left, or the process no file descriptor.
#[derive(Debug, thiserror::Error)]
#[error(
    "a thread cannot be started: {0}; raise the limit of process IDs (podPidsLimit of the kubelet, pids.max of the cgroup, \
     ulimit -u), or of open files where these are too many (ulimit -n), or end processes"
)]
pub struct NoThread(#[from] io::Error);

/// A runtime on the thread that calls it, and this many threads for work that blocks. They are started here and never end:
/// with none of them running, `spawn_blocking` panics when the node has no process ID left. Fewer run where that is so now;
/// at least one does, and work waits for it.
pub fn runtime(name: &str, blocking_threads: usize) -> Result<Runtime, NoThread> {
    let runtime = Builder::new_current_thread()
        .thread_name(name)
        .max_blocking_threads(blocking_threads)
        .thread_keep_alive(Duration::MAX)
        .enable_all()
        .build()?;
    let (_reader, writer) = io::pipe()?;
    let write = async {
        let mut file = tokio::fs::File::from_std(File::from(OwnedFd::from(writer)));
        file.write_all(&[0]).await
    };
    // Without a thread this fails, where `spawn_blocking` would panic.
    runtime.block_on(write).map_err(|_| io::Error::from(rustix::io::Errno::AGAIN))?;
    let all_started = Arc::new(Mutex::new(()));
    let starting = all_started.lock();
    for _ in 0..blocking_threads {
        let all_started = Arc::clone(&all_started);
        runtime.spawn_blocking(move || drop(all_started.lock()));
    }
    drop(starting);
    Ok(runtime)
}

/// Why a task no longer runs.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("the {0} task ended unexpectedly; see the log above for the reason")]
    Ended(&'static str),
    #[error("a task panicked: {0}; please report this")]
    Panicked(JoinError),
}

/// Dropping it aborts its tasks.
#[derive(Debug, Default)]
pub struct Tasks {
    running: JoinSet<&'static str>,
    stop: watch::Sender<bool>,
}

impl Tasks {
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.running.spawn(async move {
            task.await;
            name
        })
    }

    /// Becomes true with [`Tasks::stop`], for the tasks that end on request.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// The first task that ends unexpectedly. Never returns while all of them run.
    pub async fn ended(&mut self) -> TaskError {
        match self.running.join_next().await {
            Some(Ok(name)) => TaskError::Ended(name),
            Some(Err(error)) => TaskError::Panicked(error),
            None => std::future::pending().await,
        }
    }

    /// Returns when the last task has ended.
    pub async fn finish(&mut self) {
        while self.running.join_next().await.is_some() {}
    }

    /// Aborts the tasks and returns when they are dropped.
    pub async fn abort(&mut self) {
        self.running.shutdown().await;
    }
}

/// Completes when the value changes; never, once nothing can change it any more.
pub async fn changed<T>(value: &mut watch::Receiver<T>) {
    if value.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Awaits `call` until `deadline`; `None` past it. Time in which the process was stopped does not count: an answer may
/// have arrived meanwhile.
pub async fn within<T>(deadline: Duration, call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    loop {
        let due = Instant::now() + deadline;
        match timeout_at(due, &mut call).await {
            Ok(answer) => return Some(answer),
            Err(_) if Instant::now() < due + STOPPED => return None,
            Err(_) => {}
        }
    }
}

/// The result of `work`, which blocks for milliseconds. Once it has taken [`LATE`], as where a file system hangs, `late` is
/// called and the wait goes on.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
    late: impl FnOnce(),
) -> Result<T, JoinError> {
    let mut working = spawn_blocking(work);
    match timeout(LATE, &mut working).await {
        Ok(done) => done,
        Err(_) => {
            late();
            working.await
        }
    }
}

/// Reads of a file system that may hang: then one thread waits for it, and callers go on without an answer.
#[derive(Debug)]
pub struct SlowRead<T>(Option<JoinHandle<T>>);

impl<T: Send + 'static> SlowRead<T> {
    pub const fn idle() -> Self {
        Self(None)
    }

    /// The answer of `read`; or of an earlier one that was still in progress, and `read` is dropped. `None`: not in time.
    pub async fn answer(
        &mut self,
        deadline: Duration,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Result<T, JoinError>> {
        let (patience, mut reading) = match self.0.take() {
            Some(reading) => (Duration::ZERO, reading),
            None => (deadline, spawn_blocking(read)),
        };
        let answer = timeout(patience, &mut reading).await.ok();
        if answer.is_none() {
            self.0 = Some(reading);
        }
        answer
    }

    /// The answer of the read in progress; never, without one. Cancel safe.
    pub async fn finished(&mut self) -> Result<T, JoinError> {
        let Some(reading) = &mut self.0 else { return std::future::pending().await };
        let answer = reading.await;
        self.0 = None;
        answer
    }

    pub const fn is_idle(&self) -> bool {
        self.0.is_none()
    }
}

/// Changes of entries of directories. Directories that are not there yet are watched once they are.
#[derive(Debug)]
pub struct DirectoryEvents {
    /// `None` where there is no inotify: the owner polls.
    stream: Option<EventStream<[u8; 1024]>>,
    directories: Vec<(PathBuf, WatchMask)>,
}

impl DirectoryEvents {
    pub fn new(directories: Vec<(PathBuf, WatchMask)>) -> Self {
        let stream = Inotify::init().and_then(|inotify| inotify.into_event_stream([0; 1024]));
        if let Err(error) = &stream {
            tracing::warn!(%error, "no inotify (fs.inotify.max_user_instances?): changes of files are noticed at intervals only");
        }
        let mut events = Self { stream: stream.ok(), directories };
        events.watch();
        events
    }

    /// To be called at intervals: a directory may have been made or replaced. Watching one twice is harmless.
    pub fn watch(&mut self) {
        let Some(stream) = &self.stream else { return };
        for (directory, mask) in &self.directories {
            if let Err(error) = stream.watches().add(directory, *mask | WatchMask::ONLYDIR) {
                tracing::debug!(directory = %directory.display(), %error, "cannot be watched yet");
            }
        }
    }

    pub fn has_inotify(&self) -> bool {
        self.stream.is_some()
    }

    /// Other events than before, of each directory.
    pub fn watch_for(&mut self, mask: WatchMask) {
        self.directories.iter_mut().for_each(|(_, watched)| *watched = mask);
        self.watch();
    }

    /// The name of the next entry that changes; pending without inotify. Cancel safe.
    pub async fn next(&mut self) -> Option<OsString> {
        let Some(stream) = &mut self.stream else { return std::future::pending().await };
        match stream.next().await {
            Some(Ok(event)) => event.name,
            failed => {
                tracing::warn!(error = ?failed.and_then(Result::err), "inotify failed: changes of files are noticed at intervals only");
                self.stream = None;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_arrived_while_the_process_was_stopped_is_read() {
        let deadline = Duration::from_secs(5);
        let (answer, call) = tokio::sync::oneshot::channel();
        let waiting = tokio::spawn(within(deadline, call));
        tokio::task::yield_now().await;
        tokio::time::advance(deadline * 2).await;
        tokio::task::yield_now().await; // the timer fires
        answer.send("answer").unwrap();
        assert_eq!(waiting.await.unwrap(), Some(Ok("answer")));

        assert_eq!(within(deadline, std::future::pending::<()>()).await, None);
    }

    #[tokio::test]
    async fn a_file_system_that_hangs_keeps_one_thread() {
        let (answer, hangs) = std::sync::mpsc::channel::<u32>();
        let mut read = SlowRead::idle();
        assert!(read.answer(Duration::from_millis(1), move || hangs.recv().unwrap()).await.is_none());
        assert!(read.answer(Duration::ZERO, || panic!("a second thread")).await.is_none());
        answer.send(7).unwrap();
        let answered = loop {
            tokio::task::yield_now().await;
            if let Some(answered) = read.answer(Duration::ZERO, || panic!("a second thread")).await {
                break answered;
            }
        };
        assert_eq!(answered.unwrap(), 7);
        assert!(read.is_idle());
    }

    #[tokio::test]
    async fn a_panic_is_not_an_ordinary_end() {
        let mut tasks = Tasks::default();
        tasks.spawn("broken", async { panic!("a defect") });
        assert!(matches!(tasks.ended().await, TaskError::Panicked(_)));
        tasks.spawn("device plugin", async {});
        assert!(matches!(tasks.ended().await, TaskError::Ended("device plugin")));
    }

    #[tokio::test]
    async fn a_task_that_ends_on_request_is_waited_for() {
        let mut tasks = Tasks::default();
        let mut stopping = tasks.stopping();
        tasks.spawn("server", async move { drop(stopping.wait_for(|stop| *stop).await) });
        tasks.stop();
        tasks.finish().await;
    }
}
