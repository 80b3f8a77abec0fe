use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use parking_lot::Mutex;

use super::calls::Caller;
use super::library::Library;
use crate::hardware::source::Problem;

/// Below the watchdog's limit, and longer than one GPU takes to wake without persistence mode.
const SILENCE: Duration = Duration::from_secs(5);
const STACK_BYTES: usize = 256 * 1024;

/// Asks each GPU on a thread of its own, so that one that hangs hides no other. A GPU that still has a question open
/// is asked no second one.
#[derive(Default)]
pub struct PerGpuQuery {
    asked: Arc<Mutex<BTreeSet<u32>>>,
}

/// What one GPU said, with the calls that failed.
pub type GpuAnswer<T> = (T, Vec<Problem>);

impl PerGpuQuery {
    /// The answers by index. Who has not answered after a silence is left out.
    pub fn ask<T: Send + 'static>(
        &self,
        library: &Arc<Library>,
        count: u32,
        question: fn(&mut Caller, u32) -> T,
    ) -> BTreeMap<u32, GpuAnswer<T>> {
        let (answers, answered) = sync_channel(count as usize);
        for index in 0..count {
            if !self.asked.lock().insert(index) {
                continue;
            }
            let (library, asked, answers) = (Arc::clone(library), Arc::clone(&self.asked), answers.clone());
            let body = move || answer(library, &asked, &answers, index, question);
            if Builder::new().name(format!("ask-{index}")).stack_size(STACK_BYTES).spawn(body).is_err() {
                self.asked.lock().remove(&index);
            }
        }
        drop(answers);
        std::iter::from_fn(|| answered.recv_timeout(SILENCE).ok()).collect()
    }
}

fn answer<T>(
    library: Arc<Library>,
    asked: &Mutex<BTreeSet<u32>>,
    answers: &SyncSender<(u32, GpuAnswer<T>)>,
    index: u32,
    question: fn(&mut Caller, u32) -> T,
) {
    let mut caller = Caller::new(library);
    let said = question(&mut caller, index);
    let problems = caller.finish().problems;
    // The library is let go of before the answer, so that whoever got it may close the driver.
    drop(caller);
    asked.lock().remove(&index);
    // Nobody waits any more: the next question gets the answer.
    let _ = answers.send((index, (said, problems)));
}
