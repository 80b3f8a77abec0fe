//! The fake's time: microseconds that rise, and are no wall clock, like the time stamps of the driver.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

pub type Micros = u64;

/// Where the count begins: anything but zero, which is the empty cursor.
const BEGIN: Micros = 7_000_000_000;

#[allow(clippy::disallowed_methods, reason = "the driver keeps its own time, and so does its fake")]
fn instant() -> Instant {
    Instant::now()
}

#[allow(clippy::disallowed_methods, reason = "a file's time stamp is wall clock and has to be carried over")]
fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Microseconds since the beginning at which a test has stopped the clock; 0 while it runs.
static STOPPED: AtomicU64 = AtomicU64::new(0);

pub fn stop_at(micros: Micros) {
    STOPPED.store(micros, Ordering::Relaxed);
}

pub fn now() -> Micros {
    static START: OnceLock<Instant> = OnceLock::new();
    let stopped = STOPPED.load(Ordering::Relaxed);
    if stopped > 0 {
        return BEGIN + stopped;
    }
    let start = *START.get_or_init(instant);
    BEGIN + instant().duration_since(start).as_micros() as Micros
}

/// The moment of a wall clock time; a future one is now, one before the history is its beginning.
pub fn at_wall_clock(seconds: i64, nanoseconds: i64) -> Micros {
    let then = Duration::new(seconds.max(0) as u64, nanoseconds.clamp(0, 999_999_999) as u32);
    let ago = wall_clock().saturating_sub(then).as_micros() as Micros;
    now().saturating_sub(ago)
}

/// Uses the processor for this time, as the driver does in the kernel: a thread that is not run meanwhile takes longer.
pub fn use_processor(micros: Micros) {
    let used = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as Micros * 1_000_000 + time.tv_nsec as Micros / 1_000
    };
    if micros == 0 {
        return;
    }
    let until = used() + micros;
    while used() < until {
        std::hint::spin_loop();
    }
}
