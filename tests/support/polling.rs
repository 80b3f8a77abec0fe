//! Waits for what another thread or process does.

use std::time::{Duration, Instant};

/// The bound of every wait: only a hang exceeds it, also on a machine that is busy with other work.
pub const PATIENCE: Duration = Duration::from_mins(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Polls until there is a value. `None`: never.
pub fn poll<T>(mut check: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = check();
        if found.is_some() || Instant::now() > deadline {
            return found;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

pub fn until<T>(what: &str, check: impl FnMut() -> Option<T>) -> T {
    poll(check).unwrap_or_else(|| panic!("never: {what}"))
}

pub fn until_true(what: &str, mut condition: impl FnMut() -> bool) {
    until(what, || condition().then_some(()));
}
