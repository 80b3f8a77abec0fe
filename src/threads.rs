//! Initialises thread-locals before a library is loaded into the process.
//!
//! In: the current thread, or the runtime. Out: initialised thread-locals. Does not use: the library, the thread's
//! task.
//!
//! `dlopen` holds the lock of the C library's loader until the library's initialisers have returned, and the first use
//! of a thread-local that has a destructor takes the same lock. A driver library that hangs while it is loaded would
//! hold up every thread that has not used its thread-locals before, and every thread that starts.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;
use tracing::Dispatch;
use tracing::dispatcher::with_default;
use tracing_subscriber::fmt;

/// Blocking threads that exist before a library is loaded: pages are rendered on them.
const BLOCKING: usize = 4;
/// Wait for the other threads, so that no thread takes a second task.
const PAUSE: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_millis(500);
/// Shorter than the ten seconds after which the runtime ends an idle thread.
pub const KEEP: Duration = Duration::from_secs(4);

/// Initialises the thread-locals of the runtime, channels, locks and the log on this thread.
pub fn prepare() {
    drop(Handle::try_current());
    pause(Duration::from_millis(1));
    Condvar::new().wait_for(&mut Mutex::new(()).lock(), Duration::ZERO);
    static SILENT: OnceLock<Dispatch> = OnceLock::new();
    let silent = SILENT.get_or_init(|| Dispatch::new(fmt().with_writer(std::io::sink).finish()));
    with_default(silent, || tracing::info!("a thread is prepared"));
}

/// Starts blocking threads of the runtime, prepared ones where it prepares its threads, and waits until they have
/// started.
pub fn start_blocking(runtime: &Handle) {
    let started = keep_blocking(runtime);
    for _ in 0..BLOCKING {
        if started.recv_timeout(PATIENCE).is_err() {
            return;
        }
    }
}

/// Keeps them, or starts them without waiting.
pub fn keep_blocking(runtime: &Handle) -> Receiver<()> {
    let (starts, started) = channel();
    let together = Arc::new((Mutex::new(0), Condvar::new()));
    for _ in 0..BLOCKING {
        let (starts, together) = (starts.clone(), Arc::clone(&together));
        runtime.spawn_blocking(move || {
            wait_for_the_others(&together);
            // The receiver is dropped where the caller does not wait.
            let _ = starts.send(());
        });
    }
    started
}

fn wait_for_the_others((arrived, changed): &(Mutex<usize>, Condvar)) {
    let mut arrived = arrived.lock();
    *arrived += 1;
    changed.notify_all();
    changed.wait_while_for(&mut arrived, |arrived| *arrived < BLOCKING, PAUSE);
}

fn pause(duration: Duration) {
    // Nothing is ever sent: receiving is a pause.
    let (_sender, receiver) = channel::<()>();
    let _ = receiver.recv_timeout(duration);
}
