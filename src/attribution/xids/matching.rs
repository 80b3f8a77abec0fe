use std::time::Duration;

use super::owner::XidOwner;
use crate::model::{Monotonic, XidClass};

/// The two sources report one XID within this time of each other; `health` has the same limit.
pub const SAME: Duration = Duration::from_secs(5);
/// Reports within this time are merged, so that a burst takes little memory.
const TOGETHER: Duration = Duration::from_millis(500);

/// XIDs of one code on one GPU that one source has reported and the other may still report.
#[derive(Debug, Default)]
pub struct Matching {
    /// Reported by the driver alone so far, oldest first.
    driver: Vec<Pending>,
    /// Reported by the log alone so far, oldest first: when, how many.
    log: Vec<(Monotonic, u64)>,
}

/// XIDs that were reported at one time.
#[derive(Clone, Debug)]
pub struct Pending {
    pub at: Monotonic,
    pub count: u64,
    pub class: XidClass,
    /// `None`: no owner is known.
    pub owner: Option<XidOwner>,
}

impl Matching {
    pub fn add_from_driver(&mut self, mut xids: Pending) {
        for (at, count) in &mut self.log {
            if are_near(*at, xids.at) {
                take(count, &mut xids.count);
            }
        }
        self.log.retain(|(_, count)| *count > 0);
        if xids.count == 0 {
            return;
        }
        match self.driver.last_mut() {
            Some(last) if last.owner == xids.owner && xids.at.since(last.at) < TOGETHER => {
                last.count = last.count.saturating_add(xids.count);
            }
            _ => self.driver.push(xids),
        }
    }

    pub fn add_from_log(&mut self, xids: &Pending) {
        let mut left = xids.count;
        for pending in &mut self.driver {
            if are_near(pending.at, xids.at) {
                take(&mut pending.count, &mut left);
            }
        }
        self.driver.retain(|pending| pending.count > 0);
        if left == 0 {
            return;
        }
        match self.log.last_mut() {
            Some((at, count)) if xids.at.since(*at) < TOGETHER => *count = count.saturating_add(left),
            _ => self.log.push((xids.at, left)),
        }
    }

    /// Removes and returns what the log has not reported in time, and drops what the driver has not.
    pub fn unmatched(&mut self, now: Monotonic) -> Vec<Pending> {
        self.log.retain(|(at, _)| now.since(*at) <= SAME);
        let (due, still) = std::mem::take(&mut self.driver).into_iter().partition(|xids| now.since(xids.at) > SAME);
        self.driver = still;
        due
    }

    pub fn is_empty(&self) -> bool {
        self.driver.is_empty() && self.log.is_empty()
    }
}

fn are_near(one: Monotonic, other: Monotonic) -> bool {
    one.since(other).max(other.since(one)) <= SAME
}

/// As many from both as both have.
fn take(one: &mut u64, other: &mut u64) {
    let common = (*one).min(*other);
    (*one, *other) = (*one - common, *other - common);
}
