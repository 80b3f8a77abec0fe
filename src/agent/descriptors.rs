use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open file descriptors to the hard limit and returns it. `None`: there is no limit.
///
/// The default soft limit is low for programs that use select(2); podmeter does not use it.
pub fn raise_limit() -> Option<u64> {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    if raised != before
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!(%error, limit = before.current, "the limit of open file descriptors could not be raised");
    }
    getrlimit(Resource::Nofile).current
}
