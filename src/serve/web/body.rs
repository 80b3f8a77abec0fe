//! Response bodies: those of metrics, page, node and history are in memory once for all clients, long ones as gzip, and
//! are given to a connection in pieces. So a client that reads slowly has no copy of a page; with tower-http's
//! compression it would have one of each page that it leaves unread.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, BufWriter, Cursor, Read, Write};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_LENGTH;
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::task::JoinError;

use super::listener::SEND_BYTES;
use super::page::View;
use crate::domain::model::Monotonic;
use crate::serve::metrics::Format;

/// A longer body is kept as gzip. The send buffer of a connection, which the kernel doubles as far as
/// `net.core.wmem_max` permits, takes about a body of this length.
const PLAIN_BYTES: usize = 2 * SEND_BYTES as usize;
const PIECE_BYTES: usize = 16 * 1024;

/// The content coding of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Coding {
    Identity,
    Gzip,
}

#[derive(Clone, Debug)]
pub(super) struct StoredBody {
    bytes: Bytes,
    /// Whether it is kept as gzip and unpacked for each client: a long body for clients that do not accept gzip.
    unpacks: bool,
    /// The length in bytes that clients get.
    length: usize,
}

/// Collects the bytes of a body, for clients that accept the coding.
pub(super) struct BodyWriter {
    coding: Coding,
    plain: Vec<u8>,
    gzip: Option<BufWriter<GzEncoder<Vec<u8>>>>,
    length: usize,
}

/// What a body depends on. The number of `Metrics` and `Node` is the sequence of its snapshot.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BodyKey {
    Metrics(Format, Coding, u64),
    Page { sequence: u64, history: Monotonic, second: u64, not_ready: Option<String>, view: View },
    Node(u64),
    History(Monotonic),
}

/// The bodies that several clients get, until the next snapshot: `streams::follow` forgets them.
#[derive(Clone, Default)]
pub struct CachedBodies(Arc<Mutex<BTreeMap<BodyKey, Arc<OnceCell<StoredBody>>>>>);

impl BodyWriter {
    pub fn new(coding: Coding) -> Self {
        Self { coding, plain: vec![], gzip: (coding == Coding::Gzip).then(encoder), length: 0 }
    }

    pub fn finish(self) -> StoredBody {
        let unpacks = self.gzip.is_some() && self.coding == Coding::Identity;
        let packed = self.gzip.map(|gzip| gzip.into_inner().map_err(io::Error::from).and_then(GzEncoder::finish));
        let bytes = packed.map_or(self.plain, |gzip| gzip.expect("writing to memory does not fail"));
        StoredBody { unpacks, length: if unpacks { self.length } else { bytes.len() }, bytes: bytes.into() }
    }
}

/// Compresses at the lowest level: pages are repetitive enough, and CPU time matters more.
fn encoder() -> BufWriter<GzEncoder<Vec<u8>>> {
    BufWriter::new(GzEncoder::new(vec![], Compression::fast()))
}

impl Write for BodyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.length += bytes.len();
        if self.gzip.is_none() && self.length > PLAIN_BYTES {
            let gzip = self.gzip.insert(encoder());
            gzip.write_all(&std::mem::take(&mut self.plain))?;
        }
        match &mut self.gzip {
            Some(gzip) => gzip.write_all(bytes)?,
            None => self.plain.extend_from_slice(bytes),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl StoredBody {
    pub fn from_text(text: impl AsRef<[u8]>) -> Self {
        let mut writer = BodyWriter::new(Coding::Identity);
        writer.write_all(text.as_ref()).expect("writing to memory does not fail");
        writer.finish()
    }

    fn pieces(self) -> impl Iterator<Item = Bytes> + Send {
        let stored = Cursor::new(self.bytes);
        pieces(if self.unpacks { Box::new(GzDecoder::new(stored)) } else { Box::new(stored) as Box<dyn Read + Send> })
    }
}

/// The pieces of a body that is read from memory, or unpacked.
pub(super) fn pieces(mut source: impl Read + Send) -> impl Iterator<Item = Bytes> + Send {
    std::iter::from_fn(move || {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        source.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece).expect("what was packed is complete");
        (!piece.is_empty()).then(|| piece.into())
    })
}

impl IntoResponse for StoredBody {
    fn into_response(self) -> Response {
        let length = self.length;
        let pieces = tokio_stream::iter(self.pieces().map(Ok::<_, Infallible>));
        ([(CONTENT_LENGTH, length)], Body::from_stream(pieces)).into_response()
    }
}

impl CachedBodies {
    /// The body of this key, made on a blocking thread once for all requests meanwhile, also where the first client
    /// disconnects. An error where `make` panicked.
    pub(super) async fn get(
        &self,
        key: BodyKey,
        make: impl FnOnce() -> StoredBody + Send + 'static,
    ) -> Result<StoredBody, JoinError> {
        let body = Arc::clone(self.0.lock().entry(key).or_default());
        tokio::spawn(async move { body.get_or_try_init(|| tokio::task::spawn_blocking(make)).await.cloned() }).await?
    }

    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn requests_share_a_body_and_a_failure_is_not_kept() {
        let (bodies, made) = (CachedBodies::default(), Arc::new(AtomicUsize::new(0)));
        let get = |key: u64, fails: bool| {
            let (bodies, made) = (bodies.clone(), Arc::clone(&made));
            tokio::spawn(async move {
                let make = move || {
                    let number = made.fetch_add(1, Ordering::Relaxed);
                    assert!(!fails);
                    StoredBody::from_text([u8::try_from(number).unwrap()])
                };
                bodies.get(BodyKey::Node(key), make).await.ok().map(|body| body.bytes)
            })
        };
        assert_eq!(get(1, true).await.unwrap(), None);
        let requests: Vec<_> = (0..10).map(|_| get(1, false)).collect();
        for one in requests {
            assert_eq!(one.await.unwrap().unwrap(), [1][..]);
        }
        assert_eq!(get(2, false).await.unwrap().unwrap(), [2][..]);
        bodies.forget();
        assert_eq!(get(2, false).await.unwrap().unwrap(), [3][..]);
    }

    #[tokio::test]
    async fn a_body_is_made_once_also_where_the_first_client_disconnects() {
        let bodies = CachedBodies::default();
        let (go, wait) = std::sync::mpsc::channel();
        let make = move || {
            wait.recv().unwrap();
            StoredBody::from_text("first")
        };
        let first = tokio::time::timeout(Duration::ZERO, bodies.get(BodyKey::Node(1), make)).await;
        assert!(first.is_err(), "the client has disconnected");
        go.send(()).unwrap();
        let second = bodies.get(BodyKey::Node(1), || StoredBody::from_text("second")).await.unwrap();
        assert_eq!(second.bytes, "first");
    }

    #[test]
    fn a_client_has_one_piece_of_a_long_body_whatever_its_coding() {
        let text: String = (0..200_000).map(|number| format!("line {number}\n")).collect();
        let mut writer = BodyWriter::new(Coding::Gzip);
        text.as_bytes().chunks(1000).for_each(|part| writer.write_all(part).unwrap());
        for (stored, coding) in [
            (StoredBody::from_text("short"), Coding::Identity),
            (StoredBody::from_text(&text), Coding::Identity),
            (writer.finish(), Coding::Gzip),
        ] {
            assert!(stored.bytes.len() <= PLAIN_BYTES, "{} of {} bytes", stored.bytes.len(), stored.length);
            let (whole, length) = (stored.bytes.clone(), stored.length);
            let response = stored.clone().into_response();
            let expected: usize = response.headers()[CONTENT_LENGTH].to_str().unwrap().parse().unwrap();
            let mut read = vec![];
            for piece in stored.pieces() {
                assert!(!piece.is_empty() && piece.len() <= PIECE_BYTES);
                read.extend_from_slice(&piece);
            }
            assert_eq!(read.len(), expected);
            match coding {
                Coding::Gzip => assert_eq!(read, whole),
                Coding::Identity => {
                    assert!(read.len() == length && text.as_bytes().starts_with(&read) || read == b"short");
                }
            }
        }
    }
}
