//! Addresses and the listeners bound to them.
//!
//! In: `IP:PORT` or `unix:PATH`, and a purpose. Out: a listener with limited buffers. Does not use: HTTP, TLS.

use std::fmt;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket, UnixStream};

use super::connections::ClientStream;

/// The send buffer, for bytes that the client has not taken yet: the metrics of a large node. The kernel doubles it.
pub(super) const SEND_BYTES: u32 = 256 * 1024;
/// The receive buffer, for bytes of requests that are not read yet: more than the longest head.
const RECEIVE_BYTES: u32 = 64 * 1024;
/// The most connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// The pause between two checks whether another process still listens on a socket.
const RETRY: Duration = Duration::from_secs(1);

/// Where to listen: `0.0.0.0:9410`, `[::]:9410`, or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A listener could not be bound. The agent ends with exit code 3, except for an admin socket that is in use or not
/// required.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("cannot listen on {address}: {source}; free the address or choose another with --listen")]
    Tcp { address: SocketAddr, source: io::Error },
    #[error("cannot listen on {}: {source}; its directory must be writable", path.display())]
    Unix { path: PathBuf, source: io::Error },
    #[error("cannot listen on {}: another process listens there; stop it or choose another path", path.display())]
    InUse { path: PathBuf },
    #[error("cannot listen on {}: a file that is not a socket is in the way; remove it or choose another path", path.display())]
    NotASocket { path: PathBuf },
}

/// What a listener serves, and to which clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Page, metrics, API and probes, to clients that the web configuration accepts.
    Public,
    /// `/-/healthy` and `/-/ready`, to all clients: a kubelet has neither certificate nor password.
    Probes,
    /// What `Public` serves, and commands; only the owner of the socket can open it.
    Admin,
}

#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    pub purpose: Purpose,
    /// The bound address, with the actual port where it was given as zero.
    pub address: ListenAddress,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: ListenerFile },
}

impl Listener {
    /// Binds and listens. A unix socket gets the permissions that the umask leaves; with `Purpose::Admin`, mode 0600.
    pub async fn bind(address: &ListenAddress, purpose: Purpose) -> Result<Self, BindError> {
        match address {
            ListenAddress::Tcp(address) => {
                let listener = bind_tcp(*address).and_then(|listener| Ok((listener.local_addr()?, listener)));
                let (bound, listener) = listener.map_err(|source| BindError::Tcp { address: *address, source })?;
                Ok(Self { socket: Socket::Tcp(listener), purpose, address: ListenAddress::Tcp(bound) })
            }
            ListenAddress::Unix(path) => {
                Ok(Self { socket: bind_unix(path, purpose).await?, purpose, address: address.clone() })
            }
        }
    }

    /// Binds the admin socket once no other process listens there: during a rolling update the old agent does.
    pub async fn bind_when_free(address: ListenAddress) -> Self {
        let mut is_failing = false;
        loop {
            tokio::time::sleep(RETRY).await;
            match Self::bind(&address, Purpose::Admin).await {
                Ok(listener) => {
                    tracing::info!(%address, "listening");
                    return listener;
                }
                Err(BindError::InUse { .. }) => is_failing = false,
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!("{error}; trying again");
                    }
                }
            }
        }
    }

    /// A client's stream, and its address; `None` on a unix socket.
    pub(super) async fn accept(&self) -> io::Result<(Box<dyn ClientStream>, Option<IpAddr>)> {
        Ok(match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                let _ = stream.set_nodelay(true); // fails only on a closed connection
                (Box::new(stream), Some(peer.ip().to_canonical()))
            }
            Socket::Unix { listener, .. } => (Box::new(listener.accept().await?.0), None),
        })
    }
}

async fn bind_unix(path: &Path, purpose: Purpose) -> Result<Socket, BindError> {
    let failed = |source| BindError::Unix { path: path.to_owned(), source };
    let directory = path.parent().unwrap_or(Path::new(""));
    DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(failed)?;
    remove_stale_socket(path).await?;
    // It has another name until it listens: another agent would remove a socket that does not listen as stale.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let _ = std::fs::remove_file(&temporary);
    let publish = |socket: UnixSocket| {
        let listener = socket.listen(BACKLOG)?;
        let inode = std::fs::symlink_metadata(&temporary)?.ino();
        std::fs::rename(&temporary, path)?;
        Ok(Socket::Unix { listener, _file: ListenerFile { path: path.to_owned(), inode } })
    };
    bound_unix(&temporary, purpose).and_then(publish).map_err(failed)
}

/// A socket with its mode, to which nothing can connect until it listens.
fn bound_unix(path: &Path, purpose: Purpose) -> io::Result<UnixSocket> {
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    if purpose == Purpose::Admin {
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    }
    Ok(socket)
}

/// Binds as `TcpListener::bind` does, with buffers that the kernel does not grow: a client that takes no responses
/// could otherwise fill 4 MiB of memory charged to the agent, and one that sends requests faster than it reads 6 more.
fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BYTES)?;
    socket.set_recv_buffer_size(RECEIVE_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Removes a socket file without a listener.
async fn remove_stale_socket(path: &Path) -> Result<(), BindError> {
    let failed = |source| BindError::Unix { path: path.to_owned(), source };
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if !metadata.file_type().is_socket() {
        return Err(BindError::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path).await {
        Ok(_) => Err(BindError::InUse { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// The socket's file, removed with the listener unless it was replaced.
#[derive(Debug)]
pub struct ListenerFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for ListenerFile {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl FromStr for ListenAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let address = match text.strip_prefix("unix:") {
            Some(path) => (!path.is_empty()).then(|| Self::Unix(path.into())),
            None => {
                let address = match text.split_once(':') {
                    Some(("", port)) => format!("0.0.0.0:{port}"),
                    Some(("localhost", port)) => format!("127.0.0.1:{port}"),
                    _ => text.to_owned(),
                };
                address.parse().ok().map(Self::Tcp)
            }
        };
        address.ok_or("must be IP:PORT, such as 0.0.0.0:9410 or [::]:9410, or :PORT, localhost:PORT or unix:PATH")
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "{address}"),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    impl Listener {
        /// A listener whose `accept` always fails: its socket is readable and does not listen.
        pub(in crate::serve::web) fn failing() -> Self {
            let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
            socket.set_nonblocking(true).unwrap();
            let listener = TcpListener::from_std(OwnedFd::from(socket).into()).unwrap();
            let address = "127.0.0.1:9410".parse().unwrap();
            Self { socket: Socket::Tcp(listener), purpose: Purpose::Public, address }
        }
    }

    #[test]
    fn addresses_round_trip() {
        for text in ["0.0.0.0:9410", "[::]:9410", "127.0.0.1:0", "unix:/run/podmeter/page.sock"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for (text, address) in [(":9410", "0.0.0.0:9410"), ("localhost:9410", "127.0.0.1:9410")] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), address);
        }
        for text in ["", "9410", ":", "localhost", "unix:", "0.0.0.0", "host:9410"] {
            let message = text.parse::<ListenAddress>().unwrap_err();
            assert!(message.contains("0.0.0.0:9410"), "{message}");
        }
    }

    async fn bind_private(path: &Path) -> Result<Listener, BindError> {
        Listener::bind(&ListenAddress::Unix(path.to_owned()), Purpose::Admin).await
    }

    /// Leaves the socket's file, as a killed process does.
    fn drop_without_file(listener: Listener) {
        let Socket::Unix { listener: socket, _file: file } = listener.socket else { panic!("a unix listener") };
        drop(socket);
        std::mem::forget(file);
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_one_in_use_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/podmeter.sock");
        let first = bind_private(&path).await.unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(bind_private(&path).await, Err(BindError::InUse { .. })));
        drop_without_file(first);
        assert!(path.exists());
        let second = bind_private(&path).await.unwrap();
        drop(second);
        assert!(!path.exists(), "a dropped listener removes its file");
    }

    #[tokio::test]
    async fn a_private_socket_has_its_mode_before_anything_can_connect_to_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("podmeter.sock");
        let bound = bound_unix(&path, Purpose::Admin).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let refused = UnixStream::connect(&path).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let _listener = bound.listen(BACKLOG).unwrap();
        assert!(UnixStream::connect(&path).await.is_ok());
    }

    #[tokio::test]
    async fn a_socket_in_use_is_bound_when_its_process_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("podmeter.sock");
        let first = bind_private(&path).await.unwrap();
        let binding = Listener::bind_when_free(ListenAddress::Unix(path.clone()));
        tokio::pin!(binding);
        assert!(tokio::time::timeout(RETRY * 2, &mut binding).await.is_err(), "it is in use");
        assert!(UnixStream::connect(&path).await.is_ok(), "by the first");
        drop_without_file(first);
        let _second = tokio::time::timeout(RETRY * 3, binding).await.expect("bound");
        assert!(UnixStream::connect(&path).await.is_ok());
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_socket_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "data").unwrap();
        assert!(matches!(bind_private(&path).await, Err(BindError::NotASocket { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[tokio::test]
    async fn the_error_names_a_port_in_use() {
        let first = Listener::bind(&"127.0.0.1:0".parse().unwrap(), Purpose::Public).await.unwrap();
        let error = Listener::bind(&first.address, Purpose::Public).await.unwrap_err();
        assert!(error.to_string().contains(&first.address.to_string()), "{error}");
    }
}
