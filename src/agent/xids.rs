use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::model::XidEvent;

/// Batches that wait for each reader. While one is late the source counts equal XIDs together.
const BATCHES: usize = 16;

type Batch = Vec<XidEvent>;

/// The same batches, whole and in order, to two readers, as long as the future is driven. A reader that has gone is left
/// out; when the source ends, so do the readers' channels, and the future goes on doing nothing.
pub fn for_two(mut source: Receiver<Batch>) -> (impl Future<Output = ()>, Receiver<Batch>, Receiver<Batch>) {
    let ((one, first), (two, second)) = (channel(BATCHES), channel(BATCHES));
    let hand_out = async move {
        while let Some(batch) = source.recv().await {
            put(&one, batch.clone()).await;
            put(&two, batch).await;
        }
        drop((one, two));
        std::future::pending::<()>().await;
    };
    (hand_out, first, second)
}

async fn put(reader: &Sender<Batch>, batch: Batch) {
    // An error: the reader has gone.
    let _ = reader.send(batch).await;
}

/// The next batch; never, where there is nobody to hear any from.
pub async fn next(xids: &mut Option<Receiver<Batch>>) -> Option<Batch> {
    match xids {
        Some(xids) => xids.recv().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Moment, XidSource};

    fn batch(code: u32) -> Batch {
        let at = Moment::default();
        vec![XidEvent {
            at,
            gpu: "GPU-1".into(),
            instance: None,
            code,
            source: XidSource::Nvml,
            process: None,
            count: 1,
        }]
    }

    #[tokio::test(start_paused = true)]
    async fn both_readers_get_all_and_one_that_has_gone_holds_up_nobody() {
        let (source, heard) = channel(1);
        let (hand_out, mut one, two) = for_two(heard);
        let task = tokio::spawn(hand_out);
        let mut two = Some(two);
        source.send(batch(13)).await.unwrap();
        assert_eq!((one.recv().await, next(&mut two).await), (Some(batch(13)), Some(batch(13))));
        drop(one);
        for _ in 0..3 * BATCHES {
            source.send(batch(31)).await.unwrap();
            assert_eq!(next(&mut two).await, Some(batch(31)));
        }
        drop(source);
        assert_eq!(next(&mut two).await, None, "the source has ended");
        assert!(!task.is_finished());
    }
}
