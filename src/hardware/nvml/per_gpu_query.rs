//! Queries each GPU on its own thread, so that a GPU that hangs does not delay the others.
//!
//! In: a function of one GPU's index. Out: the answers by index, without GPUs that did not answer in time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use parking_lot::Mutex;

use super::calls::Caller;
use super::library::Library;
use crate::hardware::source::Problem;

/// Below the watchdog's limit, and longer than one GPU takes to initialise without persistence mode.
const PATIENCE: Duration = Duration::from_secs(5);
const STACK_BYTES: usize = 256 * 1024;

/// A GPU whose last query has not returned is not queried again.
#[derive(Default)]
pub struct PerGpuQuery {
    pending: Arc<Mutex<BTreeSet<u32>>>,
}

/// The answer of one GPU, with the calls that failed.
pub type GpuAnswer<T> = (T, Vec<Problem>);

impl PerGpuQuery {
    /// Returns when all have answered, or when no answer has come for the time limit.
    pub fn run<T: Send + 'static>(
        &self,
        library: &Arc<Library>,
        count: u32,
        query: fn(&mut Caller, u32) -> T,
    ) -> BTreeMap<u32, GpuAnswer<T>> {
        let (answers, answered) = sync_channel(count as usize);
        for index in 0..count {
            if !self.pending.lock().insert(index) {
                continue;
            }
            let (library, pending, answers) = (Arc::clone(library), Arc::clone(&self.pending), answers.clone());
            let body = move || answer(library, &pending, &answers, index, query);
            if Builder::new().name(format!("ask-{index}")).stack_size(STACK_BYTES).spawn(body).is_err() {
                self.pending.lock().remove(&index);
            }
        }
        drop(answers);
        std::iter::from_fn(|| answered.recv_timeout(PATIENCE).ok()).collect()
    }
}

fn answer<T>(
    library: Arc<Library>,
    pending: &Mutex<BTreeSet<u32>>,
    answers: &SyncSender<(u32, GpuAnswer<T>)>,
    index: u32,
    query: fn(&mut Caller, u32) -> T,
) {
    let mut caller = Caller::new(library);
    let answer = query(&mut caller, index);
    let problems = caller.finish().problems;
    // Released before the answer is sent, so that its receiver may close the driver.
    drop(caller);
    pending.lock().remove(&index);
    // The receiver is dropped after the time limit.
    let _ = answers.send((index, (answer, problems)));
}
