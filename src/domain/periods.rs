//! The times that are compared with those of another module or with one another, with their relations. All others are where they
//! are used.

use std::time::Duration;

/// The upper limit of `--sample-interval`.
pub const LONGEST_SAMPLE_INTERVAL: Duration = Duration::from_secs(15);
/// The longest time between two snapshots: the ages on the page grow while nothing else changes. Not five seconds: else there is a
/// snapshot more, just before the readings.
pub const HEARTBEAT: Duration = Duration::from_secs(6);
/// The page is shown as stale after this time without an event.
pub const PAGE_STALE: Duration = Duration::from_secs(10);
/// Without a snapshot for this long the agent is not healthy and the node's condition is unknown: the publisher only computes.
pub const SNAPSHOTS_LATE: Duration = Duration::from_secs(15);
/// The node's condition is unknown when a GPU has not been read for this long.
pub const CONDITION_READINGS: Duration = LONGEST_SAMPLE_INTERVAL.saturating_mul(3);
/// The interval in which the condition file is rewritten.
pub const CONDITION_REWRITTEN: Duration = Duration::from_secs(10);
/// The time after which a condition that was not rewritten is unknown: a few writes may be late.
pub const CONDITION_VALIDITY: Duration = Duration::from_secs(60);
/// How long the counters of a holding may grow after its end: its last seconds come with the next readings, or as uncovered time.
/// Only energy of a gap may come later, as `DeviceTotals` describes; it is added as long as the account exists.
pub const COUNTERS_FINAL: Duration = Duration::from_secs(60);

/// Readings that are later than this make the time of their GPU uncovered.
pub const fn readings_late(sample_interval: Duration) -> Duration {
    let late = sample_interval.saturating_mul(3);
    if late.as_millis() < 5000 { Duration::from_secs(5) } else { late }
}

/// The time in which a kubelet processes a device list. After it, what it can allocate is queried again.
pub const LIST_PROCESSED: Duration = Duration::from_millis(20);
/// The least time between two device lists: changes within it are sent together.
pub const LISTS_COALESCED: Duration = Duration::from_millis(50);
/// The time after which the kubelet shows an allocation that was granted, where its checkpoint is not seen to change.
pub const GRANT_LISTED: Duration = Duration::from_millis(50);
/// The longest time until the kubelet's answers show a device list, or its end. Two answers without our devices are as far apart.
pub const LIST_SHOWN: Duration = Duration::from_secs(1);
/// The time after a kubelet's start in which it is not called and other plugins register. About 1 s after its sockets are there it
/// admits the pods that run, and kills one whose plugin has not registered: all that it does until then delays the plugins, and its
/// answers lack their devices.
pub const KUBELET_START: Duration = Duration::from_secs(2);
/// A pod that the Pods API or the checkpoint should have and has not is accepted after this time: a plugin may be slow. No pod that
/// stays listed is unconfirmed for longer.
pub const LONGEST_UNCONFIRMED: Duration = Duration::from_secs(10);
/// The longest time for which a kubelet that has just started lists no pod, until the container runtime runs.
pub const LISTS_NONE_AT_START: Duration = Duration::from_secs(30);

/// The time from the first signal to the end of the process.
pub const END: Duration = Duration::from_secs(5);
/// The part of it in which the modules stop: first the web server, then the plugin.
pub const STOP: Duration = Duration::from_millis(4200);
/// The limit for web requests in progress.
pub const WEB_STOP: Duration = Duration::from_secs(3);
/// The limit for calls of the kubelet to the plugin, which are answered from memory.
pub const PLUGIN_STOP: Duration = Duration::from_secs(1);
/// The limit for the last log lines, and as long for a last message: a blocked standard error does not keep the process from ending.
pub const LAST_LINES: Duration = Duration::from_millis(300);

/// A release of the driver that takes longer is answered with what keeps the driver open.
pub const RELEASE_LIMIT: Duration = Duration::from_secs(30);
/// The limit of a command of a client, such as `podmeter release`.
pub const COMMAND_DEADLINE: Duration = Duration::from_secs(40);

const fn is_less(one: Duration, other: Duration) -> bool {
    one.as_millis() < other.as_millis()
}

const _: () = {
    assert!(is_less(HEARTBEAT, PAGE_STALE) && is_less(HEARTBEAT.saturating_mul(2), SNAPSHOTS_LATE));
    assert!(is_less(CONDITION_REWRITTEN.saturating_mul(3), CONDITION_VALIDITY));
    assert!(is_less(readings_late(LONGEST_SAMPLE_INTERVAL).saturating_add(HEARTBEAT), COUNTERS_FINAL));
    assert!(is_less(LIST_PROCESSED, LISTS_COALESCED) && is_less(LIST_SHOWN, KUBELET_START));
    assert!(is_less(WEB_STOP.saturating_add(PLUGIN_STOP), STOP));
    assert!(is_less(STOP.saturating_add(LAST_LINES.saturating_mul(2)), END));
    assert!(is_less(RELEASE_LIMIT, COMMAND_DEADLINE));
};
