//! The status of a source.

use std::time::Duration;

use super::Moment;

/// The status of one source: a tier of the hardware or its events, the kubelet, the processes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceStatus {
    pub success: bool,
    pub stuck: bool,
    pub last_success: Option<Moment>,
    pub duration: Option<Duration>,
}
