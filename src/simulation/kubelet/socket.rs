//! A gRPC server on a unix socket that can end at any moment, as a killed process does.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::Router;
use tonic::transport::{Channel, Endpoint, Uri};

/// A running server. Dropping it closes the listener and every connection at once; the socket's file stays.
#[derive(Debug)]
pub struct SocketServer {
    task: JoinHandle<()>,
    /// A second handle of each connection, to shut it down.
    accepted: Arc<Mutex<Vec<StdUnixStream>>>,
}

impl SocketServer {
    pub fn start(listener: UnixListener, router: Router) -> Self {
        let accepted = Arc::<Mutex<Vec<StdUnixStream>>>::default();
        let connections = Arc::clone(&accepted);
        let incoming = UnixListenerStream::new(listener).map(move |stream| {
            let stream = stream?.into_std()?;
            let mut connections = connections.lock();
            connections.retain(is_open);
            connections.push(stream.try_clone()?);
            UnixStream::from_std(stream)
        });
        let task = tokio::spawn(async move {
            if let Err(error) = router.serve_with_incoming(incoming).await {
                tracing::warn!(%error, "a simulated server ended");
            }
        });
        Self { task, accepted }
    }
}

impl Drop for SocketServer {
    fn drop(&mut self) {
        self.task.abort();
        for connection in self.accepted.lock().iter() {
            // The peer may have closed it already.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// Whether the peer has not closed the connection.
fn is_open(connection: &StdUnixStream) -> bool {
    let mut events = [PollFd::new(connection, PollFlags::HUP)];
    matches!(poll(&mut events, Some(&Timespec::default())), Ok(0))
}

/// A channel that connects again after a failure, as Go's do. The authority is `localhost`, as kubelets from 1.26 send
/// it.
pub async fn channel(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()))?;
    endpoint.origin(Uri::from_static("http://localhost")).connect().await
}

/// Listens on a temporary name in the directory and renames it, so that the path never names a socket without a
/// listener.
pub fn bind_by_rename(path: &Path) -> io::Result<UnixListener> {
    let temporary = path.with_extension("starting");
    let listener = UnixListener::bind(&temporary)?;
    std::fs::rename(temporary, path)?;
    Ok(listener)
}
