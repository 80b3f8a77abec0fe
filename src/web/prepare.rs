use std::convert::Infallible;
use std::pin::pin;
use std::task::{Context, Waker};

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

/// Creates the thread-locals that serving a request uses on this thread (see `threads`). hyper keeps the date in one
/// and creates it only for a connection.
pub fn prepare_thread() {
    let never = |_: Request<hyper::body::Incoming>| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) };
    // The client of this connection has closed it: it ends at the first poll, with a result that does not matter.
    let closed = TokioIo::new(tokio::io::empty());
    let connection = pin!(http1::Builder::new().serve_connection(closed, service_fn(never)));
    let _ = connection.poll(&mut Context::from_waker(Waker::noop()));
}
