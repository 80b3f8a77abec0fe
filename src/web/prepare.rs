use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};

/// Makes the thread-locals that answering takes on this thread: see `threads`. hyper keeps the date there, and has no
/// other way to it than a connection.
pub fn prepare_thread() {
    let never = |_: Request<hyper::body::Incoming>| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) };
    let connection = pin!(http1::Builder::new().serve_connection(HungUp, service_fn(never)));
    // The client has gone: it is over at once, and how it ended does not matter.
    let _ = connection.poll(&mut Context::from_waker(Waker::noop()));
}

/// A client that has hung up.
struct HungUp;

impl Read for HungUp {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: ReadBufCursor<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Write for HungUp {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
