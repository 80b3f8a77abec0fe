//! Which call to the kubelet is due next, and when. Pure.
//!
//! In: changes that a call may show, outcomes of calls, times. Out: the next call, within the call budget. It does not use
//! what is requested and answered.

use std::time::Duration;

use super::accepted::SETTLE;
use super::trigger::Trigger;
use crate::backoff::Backoff;
use crate::domain::model::{Monotonic, TokenBucket};
use crate::domain::periods::{GRANT_LISTED, KUBELET_START};

/// Calls per second on average, beside one for each allocation that the bundled plugin grants and for each change of the Pods API in
/// which holders end. The kubelet's own limit of 100 is shared by all its clients.
const CALLS_PER_SECOND: f64 = 2.0;
/// Calls without a pause after a quiet time: a changed allocation is published at once.
const BURST: f64 = 4.0;
/// First and longest pause after a failure. Of `List`: at most the refresh interval.
const RETRIES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// Allocatable devices are queried at this interval, and after a change that might concern them.
const ALLOCATABLE_INTERVAL: Duration = Duration::from_secs(10);
/// Between two queries of allocatable devices: a busy node writes its checkpoint often, and `List` comes first.
const ALLOCATABLE_PAUSE: Duration = Duration::from_secs(2);

/// The next call.
#[derive(Clone, Copy, Debug)]
pub enum NextCall {
    /// `List`. Without a trigger where a file event or a failed `Get` was its cause, which is counted already, or where an
    /// unconfirmed pod is due, which is none.
    Refresh(Option<Trigger>),
    /// Query the pods that have ended.
    EndedPods,
    /// Query allocatable devices only.
    Allocatable,
}

/// What the accepted allocations wait for.
#[derive(Clone, Copy, Debug)]
pub struct PendingAllocations {
    pub is_settled: bool,
    pub has_ended_pods: bool,
    /// When the next unconfirmed pod is to be accepted.
    pub unconfirmed_due: Option<Monotonic>,
}

/// When to call the kubelet. Each trigger and each outcome of a call is reported to it.
pub struct CallSchedule {
    /// The calls that may be made now.
    budget: TokenBucket,
    /// No call before: the kubelet is starting.
    quiet_until: Monotonic,
    /// After a failure of `List`.
    retry: Option<Duration>,
    retries: Backoff,
    allocatable: AllocatableSchedule,
    /// Since when a file event or a failed `Get` waits for a refresh.
    changed_at: Option<Monotonic>,
    /// When to query a granted allocation, unless the checkpoint changes before.
    granted_due: Option<Monotonic>,
    /// The pauses count from here, whatever else was done meanwhile.
    refreshed_at: Monotonic,
}

struct AllocatableSchedule {
    /// The earliest time of the next call, if the budget permits.
    due: Option<Monotonic>,
    queried_at: Option<Monotonic>,
    retries: Backoff,
}

impl CallSchedule {
    pub fn new(now: Monotonic) -> Self {
        Self {
            budget: TokenBucket::full(CALLS_PER_SECOND, BURST, now),
            quiet_until: now,
            retry: None,
            retries: Backoff::new(RETRIES),
            allocatable: AllocatableSchedule { due: None, queried_at: None, retries: Backoff::new(RETRIES) },
            changed_at: None,
            granted_due: None,
            refreshed_at: now,
        }
    }

    /// The next call, and how long to wait for it when nothing happens. None is due before the budget has it.
    pub fn next(&mut self, interval: Duration, pending: PendingAllocations, now: Monotonic) -> (Duration, NextCall) {
        let pause = match self.retry {
            Some(retry) => retry.min(interval),
            // The next answer that is equal settles it.
            None if !pending.is_settled => SETTLE.min(interval),
            None => interval,
        };
        let affordable = now + self.budget.wait_for(1.0, now);
        // These wait until `List` has succeeded.
        let list_fails = self.retry.is_some();
        let unconfirmed = pending.unconfirmed_due.filter(|_| !list_fails);
        let allocatable = self.allocatable.due.filter(|_| !list_fails);
        let calls = [
            self.changed_at.map(|at| (at.max(affordable), NextCall::Refresh(None))),
            self.granted_due.map(|due| (due.max(affordable), NextCall::Refresh(Some(Trigger::Allocate)))),
            (pending.has_ended_pods && !list_fails).then_some((affordable, NextCall::EndedPods)),
            unconfirmed.map(|due| (due.max(affordable), NextCall::Refresh(None))),
            Some(((self.refreshed_at + pause).max(affordable), NextCall::Refresh(Some(Trigger::Timer)))),
            // Only with two tokens: one is left for `List`.
            allocatable.map(|due| (due.max(now + self.budget.wait_for(2.0, now)), NextCall::Allocatable)),
        ];
        let (due, call) = calls.into_iter().flatten().min_by_key(|(due, _)| *due).expect("the timer is always due");
        (due.max(self.quiet_until).since(now), call)
    }

    pub fn triggered(&mut self, trigger: Trigger, now: Monotonic) {
        match trigger {
            Trigger::Checkpoint => {
                self.request_allocatable(ALLOCATABLE_PAUSE);
                // What was granted is written: this refresh shows it.
                self.granted_due = None;
                self.changed_at = Some(now);
            }
            Trigger::Reconnect => {
                self.changed_at = Some(now);
                self.quiet_until = now + KUBELET_START;
                self.request_allocatable(ALLOCATABLE_PAUSE);
            }
            Trigger::Allocate | Trigger::Timer => drop(self.granted_due.take_if(|due| *due <= now)),
            Trigger::PodsApi => self.budget.add(now),
        }
    }

    /// An allocation was granted. The kubelet shows it only after it has our answer: a query now would waste a call. A
    /// kubelet that allocates has started.
    pub fn allocation_granted(&mut self, now: Monotonic) {
        self.quiet_until = now;
        self.budget.add(now);
        self.granted_due = Some(now + GRANT_LISTED);
    }

    /// A call begins, which consumes its part of the budget.
    pub fn call_began(&mut self, now: Monotonic) {
        self.budget.consume(now);
    }

    pub fn refresh_began(&mut self) {
        self.changed_at = None;
    }

    /// `has_allocatable`: the kubelet has `GetAllocatableResources`.
    pub fn refreshed(&mut self, has_allocatable: bool, now: Monotonic) {
        self.allocatable.due.take_if(|_| !has_allocatable);
        if has_allocatable && self.allocatable.due.is_none() {
            self.request_allocatable(ALLOCATABLE_INTERVAL);
        }
        self.refreshed_at = now;
    }

    pub fn list_succeeded(&mut self) {
        self.retry = None;
        self.retries.reset();
    }

    pub fn list_failed(&mut self) {
        self.retry = Some(self.retries.pause());
    }

    pub fn get_failed(&mut self, now: Monotonic) {
        self.changed_at = Some(now);
    }

    pub fn allocatable_queried(&mut self, now: Monotonic) {
        self.allocatable.queried_at = Some(now);
        self.allocatable.due = None;
    }

    pub fn allocatable_succeeded(&mut self) {
        self.request_allocatable(ALLOCATABLE_INTERVAL);
        self.allocatable.retries.reset();
    }

    pub fn allocatable_failed(&mut self, now: Monotonic) {
        self.allocatable.due = Some(now + self.allocatable.retries.pause());
    }

    /// Allocatable devices are queried no sooner than `pause` after their last query, and at once if there was none. Of
    /// several requests the earliest counts.
    pub fn request_allocatable(&mut self, pause: Duration) {
        let due = self.allocatable.queried_at.map_or(self.refreshed_at, |at| at + pause);
        self.allocatable.due = Some(self.allocatable.due.map_or(due, |already| already.min(due)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unconfirmed_pod_that_is_due_does_not_call_a_failing_kubelet_more_often() {
        let now = Monotonic::from_secs(100);
        let mut schedule = CallSchedule::new(now);
        let due = Some(Monotonic::from_secs(90));
        let pending = PendingAllocations { is_settled: true, has_ended_pods: false, unconfirmed_due: due };
        let interval = Duration::from_secs(5);
        assert!(matches!(schedule.next(interval, pending, now), (Duration::ZERO, NextCall::Refresh(None))));
        let pause = Duration::from_secs(4);
        schedule.retry = Some(pause);
        let (wait, call) = schedule.next(interval, pending, now);
        assert!(wait == pause && matches!(call, NextCall::Refresh(Some(Trigger::Timer))), "{call:?} after {wait:?}");
    }

    #[test]
    fn a_method_that_the_kubelet_lacks_is_not_called_after_a_change_of_the_checkpoint() {
        let now = Monotonic::from_secs(100);
        let mut schedule = CallSchedule::new(now);
        schedule.triggered(Trigger::Checkpoint, now);
        schedule.refreshed(false, now);
        assert_eq!(schedule.allocatable.due, None);
    }

    #[test]
    fn a_kubelet_that_starts_is_not_called_until_it_allocates_through_us() {
        let now = Monotonic::from_secs(100);
        let interval = Duration::from_secs(1);
        let mut schedule = CallSchedule::new(now);
        schedule.changed_at = Some(now);
        schedule.request_allocatable(Duration::ZERO);
        schedule.quiet_until = now + KUBELET_START;
        let pending = PendingAllocations { is_settled: false, has_ended_pods: true, unconfirmed_due: Some(now) };
        assert!(matches!(schedule.next(interval, pending, now), (KUBELET_START, NextCall::Refresh(None))));
        schedule.allocation_granted(now);
        assert_eq!(schedule.next(interval, pending, now).0, Duration::ZERO);
    }
}
