//! A gRPC server on a unix socket that can be cut off in the middle of everything, as a killed process would be.

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::{Connected, Router};
use tonic::transport::{Channel, Endpoint, Uri};

/// Dropping it closes the listener and every connection at once. The socket's file stays.
#[derive(Debug)]
pub struct Server {
    task: JoinHandle<()>,
    open: Open,
}

/// A second handle of each open connection, to shut it down with.
type Open = Arc<Mutex<BTreeMap<u64, StdUnixStream>>>;

impl Server {
    pub fn start(listener: UnixListener, router: Router) -> Self {
        let open = Open::default();
        let mut last = 0;
        let connections = Arc::clone(&open);
        let incoming = UnixListenerStream::new(listener).map(move |accepted| {
            last += 1;
            Connection::new(accepted?, last, Arc::clone(&connections))
        });
        let task = tokio::spawn(async move {
            if let Err(error) = router.serve_with_incoming(incoming).await {
                tracing::warn!(%error, "a simulated server ended");
            }
        });
        Self { task, open }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        for connection in self.open.lock().values() {
            // The peer may have closed it already.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// A channel that connects again after a failure, as Go's do. The authority is `localhost`, as kubelets from 1.26 send
/// it.
pub async fn channel(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()))?;
    endpoint.origin(Uri::from_static("http://localhost")).connect().await
}

/// Listens on a temporary name in the directory and renames it, so that the path never names a socket without a
/// listener.
pub fn bind_by_rename(path: &Path, temporary: &str) -> io::Result<UnixListener> {
    let temporary = path.with_file_name(temporary);
    let listener = UnixListener::bind(&temporary)?;
    std::fs::rename(temporary, path)?;
    Ok(listener)
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    number: u64,
    open: Open,
}

impl Connection {
    fn new(stream: UnixStream, number: u64, open: Open) -> io::Result<Self> {
        let stream = stream.into_std()?;
        open.lock().insert(number, stream.try_clone()?);
        Ok(Self { stream: UnixStream::from_std(stream)?, number, open })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.lock().remove(&self.number);
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
