//! Batches the XIDs of the event threads for one reader.
//!
//! In: XIDs. Out: batches on a bounded channel. Equal XIDs of a batch are counted; while the channel is full, the batch grows
//! by kinds of XIDs only.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::domain::model::{GpuUuid, Moment, XidEvent, XidInstance};

/// Capacity of the channel.
const BATCHES: usize = 16;

/// Shared by the event threads. No XID is lost while the channel is full: equal ones are counted together.
#[derive(Clone, Debug)]
pub struct Mailbox(Arc<Mutex<Pending>>);

#[derive(Debug)]
struct Pending {
    kinds: BTreeMap<XidKey, (Moment, u64)>,
    batches: Sender<Vec<XidEvent>>,
}

type XidKey = (GpuUuid, Option<XidInstance>, u32);

impl Mailbox {
    pub fn new() -> (Self, Receiver<Vec<XidEvent>>) {
        let (batches, received) = channel(BATCHES);
        (Self(Arc::new(Mutex::new(Pending { kinds: BTreeMap::new(), batches }))), received)
    }

    pub fn put(&self, event: XidEvent) {
        let XidEvent { at, gpu, instance, code, count } = event;
        let mut pending = self.lock();
        let entry = pending.kinds.entry((gpu, instance, code)).or_insert((at, 0));
        *entry = (at, entry.1.saturating_add(count));
    }

    /// Sends the pending XIDs, unless the channel is full.
    pub fn send(&self) {
        let mut pending = self.lock();
        if pending.kinds.is_empty() {
            return;
        }
        let pending = &mut *pending;
        // Without a reader the pending XIDs stay.
        let Ok(permit) = pending.batches.try_reserve() else { return };
        let event =
            |((gpu, instance, code), (at, count)): (XidKey, (Moment, u64))| XidEvent { at, gpu, instance, code, count };
        let mut batch: Vec<_> = std::mem::take(&mut pending.kinds).into_iter().map(event).collect();
        batch.sort_by_key(|event| event.at.monotonic);
        permit.send(batch);
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::{Monotonic, UnixSeconds};

    fn event(code: u32, second: u64) -> XidEvent {
        XidEvent {
            at: Moment { monotonic: Monotonic::from_secs(second), unix: UnixSeconds(0.0) },
            gpu: "GPU-a".into(),
            instance: None,
            code,
            count: 1,
        }
    }

    #[test]
    fn xids_that_find_the_channel_full_are_counted_together() {
        let (mailbox, mut received) = Mailbox::new();
        for second in 0..100_000 {
            mailbox.put(event(31, second));
            mailbox.send();
        }
        let mut batches = 0;
        let mut count = 0;
        for _ in 0..2 {
            while let Ok(batch) = received.try_recv() {
                batches += 1;
                count += batch.iter().map(|event| event.count).sum::<u64>();
            }
            mailbox.send();
        }
        assert_eq!((batches, count), (BATCHES + 1, 100_000));
    }

    #[test]
    fn a_batch_is_in_the_order_of_time() {
        let (mailbox, mut received) = Mailbox::new();
        for (code, second) in [(94, 1), (13, 2), (63, 3), (13, 4)] {
            mailbox.put(event(code, second));
        }
        mailbox.send();
        let batch = received.try_recv().unwrap();
        let kinds: Vec<_> = batch.iter().map(|event| (event.code, event.count)).collect();
        assert_eq!(kinds, [(94, 1), (63, 1), (13, 2)]);
    }

    #[test]
    fn without_a_reader_nothing_fails() {
        let (mailbox, received) = Mailbox::new();
        drop(received);
        mailbox.put(event(79, 0));
        mailbox.send();
    }
}
