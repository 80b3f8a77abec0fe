use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open file descriptors as far as this process may, and returns it. `None`: there is no limit.
///
/// The soft limit of a service is low for the sake of programs that use select(2), which podmeter does not.
pub fn raise_limit() -> Option<u64> {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    if raised != before
        && let Err(error) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!(%error, limit = before.current, "the limit of open file descriptors stays as it is");
    }
    getrlimit(Resource::Nofile).current
}
