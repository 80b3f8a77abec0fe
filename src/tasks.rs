//! The tasks that run for as long as the process: each has a name and an owner, and its end is observed.
//!
//! In: futures with their names. Out: which of them has ended, and why. Deliberately unknown: what a task does.

use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinError, JoinSet};

/// Why a task no longer runs.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("the {0} task ended unexpectedly; see the log above for the reason")]
    Ended(&'static str),
    #[error("a task panicked: {0}; please report this")]
    Panicked(JoinError),
}

/// Dropping it aborts its tasks.
#[derive(Debug, Default)]
pub struct Tasks {
    running: JoinSet<&'static str>,
    stop: watch::Sender<bool>,
}

impl Tasks {
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.running.spawn(async move {
            task.await;
            name
        })
    }

    /// Becomes true with [`Tasks::stop`], for the tasks that end on request.
    #[must_use]
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// The first task that ends unexpectedly. Never returns while all of them run.
    pub async fn ended(&mut self) -> TaskError {
        match self.running.join_next().await {
            Some(Ok(name)) => TaskError::Ended(name),
            Some(Err(error)) => TaskError::Panicked(error),
            None => std::future::pending().await,
        }
    }

    /// Returns when the last task has ended.
    pub async fn finish(&mut self) {
        while self.running.join_next().await.is_some() {}
    }

    /// Aborts the tasks and returns when they are dropped.
    pub async fn abort(&mut self) {
        self.running.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_not_an_ordinary_end() {
        let mut tasks = Tasks::default();
        tasks.spawn("broken", async { panic!("a defect") });
        assert!(matches!(tasks.ended().await, TaskError::Panicked(_)));
        tasks.spawn("device plugin", async {});
        assert!(matches!(tasks.ended().await, TaskError::Ended("device plugin")));
    }

    #[tokio::test]
    async fn a_task_that_ends_on_request_is_waited_for() {
        let mut tasks = Tasks::default();
        let mut stopping = tasks.stopping();
        tasks.spawn("server", async move { drop(stopping.wait_for(|stop| *stop).await) });
        tasks.stop();
        tasks.finish().await;
    }
}
