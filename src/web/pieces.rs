use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::Semaphore;
use tokio::task::JoinError;
use tokio_stream::Stream;
use tracing::error;

/// An answer piece by piece. What makes them reads files.
pub type Pieces = Box<dyn Iterator<Item = Vec<u8>> + Send>;

/// At once, by all clients together: each reads the disk and has a piece's holdings in memory.
const MAKERS: usize = 2;

pub(super) struct PieceMakers(Arc<Semaphore>);

impl Default for PieceMakers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAKERS)))
    }
}

type Making = Pin<Box<dyn Future<Output = Result<(Pieces, Option<Vec<u8>>), JoinError>> + Send>>;

/// The body of an answer. The next piece is made when the client has taken the one before.
pub(super) struct PieceStream {
    makers: Arc<PieceMakers>,
    first: Option<Vec<u8>>,
    making: Option<Making>,
}

impl PieceStream {
    /// With the first piece made, so that a failure there can still be answered as one.
    pub async fn begin(pieces: Pieces, makers: Arc<PieceMakers>) -> Result<Self, JoinError> {
        let (pieces, first) = make(pieces, &makers).await?;
        let making = Some(make(pieces, &makers));
        Ok(Self { makers, first, making })
    }
}

fn make(mut pieces: Pieces, makers: &PieceMakers) -> Making {
    let makers = Arc::clone(&makers.0);
    Box::pin(async move {
        let permit = makers.acquire_owned().await;
        let making = move || {
            let piece = pieces.next();
            drop(permit);
            (pieces, piece)
        };
        tokio::task::spawn_blocking(making).await
    })
}

impl Stream for PieceStream {
    type Item = Result<Vec<u8>, JoinError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        let Some(making) = &mut self.making else { return Poll::Ready(None) };
        let made = ready!(making.as_mut().poll(context));
        self.making = None;
        Poll::Ready(match made {
            Ok((pieces, Some(piece))) => {
                self.making = Some(make(pieces, &self.makers));
                Some(Ok(piece))
            }
            Ok((_, None)) => None,
            // The connection is cut: half an answer must not look like a whole one.
            Err(broke) => {
                error!(%broke, "an answer broke in the middle; please report this");
                Some(Err(broke))
            }
        })
    }
}
