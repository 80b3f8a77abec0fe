//! Takes XIDs from the event threads and sends them to one reader, in batches.
//!
//! In: XIDs. Out: batches on a bounded channel. XIDs that find the channel full are counted by kind, with a bound on
//! kinds.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::model::{GpuUuid, Moment, XidEvent, XidInstance};

/// Capacity of the channel.
const BATCHES: usize = 16;
/// Kinds of XIDs that are counted separately while the channel is full.
const KINDS: usize = 1024;
/// Replaces the code when there are too many kinds.
const UNKNOWN_XID: u32 = 999;

/// Shared by the event threads. No XID is lost while the channel is full: equal ones are counted together.
#[derive(Clone, Debug)]
pub struct Mailbox(Arc<Mutex<Pending>>);

#[derive(Debug)]
struct Pending {
    kinds: BTreeMap<Kind, (Moment, u64)>,
    batches: Sender<Vec<XidEvent>>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    gpu: GpuUuid,
    instance: Option<XidInstance>,
    code: u32,
}

impl Mailbox {
    pub fn new() -> (Self, Receiver<Vec<XidEvent>>) {
        let (batches, received) = channel(BATCHES);
        (Self(Arc::new(Mutex::new(Pending { kinds: BTreeMap::new(), batches }))), received)
    }

    pub fn put(&self, event: XidEvent) {
        let XidEvent { at, gpu, instance, code, count } = event;
        let mut pending = self.lock();
        let kind = pending.place(Kind { gpu, instance, code });
        let entry = pending.kinds.entry(kind).or_insert((at, 0));
        *entry = (at, entry.1.saturating_add(count));
    }

    /// Sends the pending XIDs, unless the channel is full.
    pub fn send(&self) {
        let mut pending = self.lock();
        if pending.kinds.is_empty() {
            return;
        }
        let pending = &mut *pending;
        // Without a reader the pending XIDs stay, in bounded memory.
        let Ok(place) = pending.batches.try_reserve() else { return };
        let event = |(kind, (at, count)): (Kind, (Moment, u64))| {
            let Kind { gpu, instance, code } = kind;
            XidEvent { at, gpu, instance, code, count }
        };
        let mut batch: Vec<_> = std::mem::take(&mut pending.kinds).into_iter().map(event).collect();
        batch.sort_by_key(|event| event.at.monotonic);
        place.send(batch);
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock()
    }
}

impl Pending {
    /// Above the limit everything but the GPU is dropped.
    fn place(&self, kind: Kind) -> Kind {
        if self.kinds.len() < KINDS || self.kinds.contains_key(&kind) {
            return kind;
        }
        Kind { instance: None, code: UNKNOWN_XID, ..kind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Monotonic, UnixSeconds};

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
    fn many_kinds_take_bounded_memory() {
        let (mailbox, mut received) = Mailbox::new();
        for number in 0..10_000 {
            mailbox.put(event(number, 0));
        }
        mailbox.send();
        let batch = received.try_recv().unwrap();
        assert!(batch.len() <= KINDS + 1, "{}", batch.len());
        assert_eq!(batch.iter().map(|event| event.count).sum::<u64>(), 10_000);
    }

    #[test]
    fn without_a_reader_nothing_fails() {
        let (mailbox, received) = Mailbox::new();
        drop(received);
        mailbox.put(event(79, 0));
        mailbox.send();
    }
}
