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
