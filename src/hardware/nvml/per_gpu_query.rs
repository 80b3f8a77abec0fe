//! Queries each GPU on a separate thread, so that a GPU that hangs does not delay the others.
//!
//! In: a function of one GPU's index. Out: the answers by index, without GPUs that did not answer in time.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::Builder;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::warn;

use super::calls::Caller;
use super::library::Library;
use crate::hardware::source::CallProblem;

/// The limit for the next answer: below the watchdog's, and above a GPU's initialisation without persistence mode.
const PATIENCE: Duration = Duration::from_secs(5);
const STACK_BYTES: usize = 256 * 1024;

/// Queries GPUs; one whose last query has not returned is not queried again. Its clones have the same record of these.
#[derive(Clone, Default)]
pub struct PerGpuQuery {
    pending: Arc<Mutex<BTreeSet<u32>>>,
    /// The threads' stack size; `None` outside tests.
    stack_bytes: Option<usize>,
}

impl PerGpuQuery {
    /// Returns when all have answered, or when no answer has come for the time limit. A GPU for which no thread can be
    /// started is queried on this one. The captures of `query` are dropped before the answer is sent.
    pub fn run<T: Send + 'static>(
        &self,
        count: u32,
        query: impl FnOnce(u32) -> T + Clone + Send + 'static,
    ) -> BTreeMap<u32, T> {
        let (answers, answered) = sync_channel(count as usize);
        for index in 0..count {
            if !self.pending.lock().insert(index) {
                continue;
            }
            let (query, pending, answers) = (query.clone(), Arc::clone(&self.pending), answers.clone());
            let ask = move || {
                // A panic, which has been logged, costs this answer.
                let answer = catch_unwind(AssertUnwindSafe(|| query(index)));
                pending.lock().remove(&index);
                // The receiver is dropped after the time limit.
                let _ = answer.map(|answer| answers.send((index, answer)));
            };
            let thread =
                Builder::new().name(format!("query-{index}")).stack_size(self.stack_bytes.unwrap_or(STACK_BYTES));
            if let Err(problem) = thread.spawn(ask.clone()) {
                warn!(index, %problem, "cannot start a thread to query a GPU");
                ask();
            }
        }
        drop((query, answers));
        std::iter::from_fn(|| answered.recv_timeout(PATIENCE).ok()).collect()
    }
}

/// Makes a query of a GPU's index return its answer together with the calls that failed.
pub fn with_caller<T>(
    library: &Arc<Library>,
    query: fn(&mut Caller, u32) -> T,
) -> impl FnOnce(u32) -> (T, Vec<CallProblem>) + Clone + Send + use<T> {
    let library = Arc::clone(library);
    move |index| {
        let mut caller = Caller::new(library);
        let answer = query(&mut caller, index);
        (answer, caller.finish().problems)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_that_panics_is_made_again() {
        let per_gpu = PerGpuQuery::default();
        assert!(per_gpu.run(1, |_| -> u32 { panic!("a faulty answer") }).is_empty());
        assert_eq!(per_gpu.run(1, |index| index), [(0, 0)].into());
    }

    #[test]
    fn gpus_are_queried_without_threads_where_none_can_be_started() {
        // More than the address space.
        for stack_bytes in [None, Some(1 << 50)] {
            let per_gpu = PerGpuQuery { stack_bytes, ..PerGpuQuery::default() };
            for _ in 0..2 {
                assert_eq!(per_gpu.run(3, |index| index * 2), [(0, 0), (1, 2), (2, 4)].into());
            }
        }
    }
}
