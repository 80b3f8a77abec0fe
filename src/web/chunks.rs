use std::sync::Arc;

use axum::body::Body;
use futures_util::stream::try_unfold;
use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tokio_stream::StreamExt as _;
use tracing::error;

/// The chunks of a response body. Making one reads files.
pub type Chunks = Box<dyn Iterator<Item = Vec<u8>> + Send>;

/// Chunks made at once, for all clients together: each reads the disk and has its part of the response in memory.
const WORKERS: usize = 2;

#[derive(Clone)]
pub(super) struct ChunkWorkers(Arc<Semaphore>);

impl Default for ChunkWorkers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(WORKERS)))
    }
}

/// A body that makes each chunk when the client has taken the one before. The first is made here: a failure in it can
/// still be reported with a status code.
pub(super) async fn body(chunks: Chunks, workers: ChunkWorkers) -> Result<Body, JoinError> {
    let (chunks, first) = next(chunks, workers.clone()).await?;
    let rest = try_unfold(chunks, move |chunks| {
        let made = next(chunks, workers.clone());
        async move {
            // The error closes the connection: a partial response must not appear complete.
            let (chunks, chunk) = made
                .await
                .inspect_err(|error| error!(%error, "a response failed in the middle; please report this"))?;
            Ok::<_, JoinError>(chunk.map(|chunk| (chunk, chunks)))
        }
    });
    Ok(Body::from_stream(tokio_stream::iter(first.map(Ok)).chain(rest)))
}

async fn next(mut chunks: Chunks, workers: ChunkWorkers) -> Result<(Chunks, Option<Vec<u8>>), JoinError> {
    let permit = workers.0.acquire_owned().await;
    let making = move || {
        let chunk = chunks.next();
        drop(permit);
        (chunks, chunk)
    };
    tokio::task::spawn_blocking(making).await
}
