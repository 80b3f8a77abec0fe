//! Waits for what another thread or process does.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use tokio::sync::watch;

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

/// The value once it satisfies `condition`.
pub async fn until_published<T: Clone + Debug>(
    values: &mut watch::Receiver<T>,
    what: &str,
    condition: impl Fn(&T) -> bool,
) -> T {
    let found = tokio::time::timeout(PATIENCE, values.wait_for(|value| condition(value))).await;
    let found = found.map(|value| value.expect("the publishing task runs").clone());
    found.unwrap_or_else(|_| panic!("never: {what}; now {:#?}", values.borrow()))
}
