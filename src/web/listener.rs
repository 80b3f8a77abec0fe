use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};

/// Of an answer that its client has not taken yet: a large node's page. The kernel doubles it for its own needs.
const SEND_BYTES: u32 = 256 * 1024;
/// The longest head of a request.
const RECEIVE_BYTES: u32 = 64 * 1024;
/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Between two looks at a socket that another process listens on.
const RETRY: Duration = Duration::from_secs(1);

/// Where to listen: `0.0.0.0:9410`, `[::]:9410`, or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug, thiserror::Error)]
#[error("{text:?} is no address to listen on; write IP:PORT, such as 0.0.0.0:9410 or [::]:9410, or unix:PATH")]
pub struct ParseAddressError {
    text: String,
}

/// A listener could not be had: the agent ends with exit code 3.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("cannot listen on {address}: {source}; free the address or choose another with --listen")]
    Tcp { address: SocketAddr, source: io::Error },
    #[error("cannot listen on {}: {source}; the directory must exist and be writable", path.display())]
    Unix { path: PathBuf, source: io::Error },
    #[error("cannot listen on {}: another process listens there; stop it or choose another path", path.display())]
    InUse { path: PathBuf },
    #[error("cannot listen on {}: something that is no socket is in the way; remove it or choose another path", path.display())]
    NotASocket { path: PathBuf },
}

/// What is served on a listener, and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Every page, to whom the web configuration lets in.
    Pages,
    /// Healthy and ready alone, to everybody: a kubelet has no certificate and no password.
    Probes,
    /// Pages and orders; only its owner can open it.
    Private,
}

#[derive(Debug)]
pub enum Listener {
    Tcp { listener: TcpListener, purpose: Purpose },
    Unix { listener: UnixListener, file: SocketFile, purpose: Purpose },
}

impl Listener {
    /// Binds and listens. A unix socket gets the permissions that the process's umask leaves.
    pub async fn bind(address: &ListenAddress) -> Result<Self, BindError> {
        Self::bind_for(address, Purpose::Pages).await
    }

    /// Binds and listens for the kubelet's probes alone.
    pub async fn bind_probes(address: &ListenAddress) -> Result<Self, BindError> {
        Self::bind_for(address, Purpose::Probes).await
    }

    async fn bind_for(address: &ListenAddress, purpose: Purpose) -> Result<Self, BindError> {
        match address {
            ListenAddress::Tcp(address) => match bind_tcp(*address) {
                Ok(listener) => Ok(Self::Tcp { listener, purpose }),
                Err(source) => Err(BindError::Tcp { address: *address, source }),
            },
            ListenAddress::Unix(path) => Self::bind_unix(path, purpose).await,
        }
    }

    /// Binds a unix socket that only its owner can open.
    pub async fn bind_private(path: &Path) -> Result<Self, BindError> {
        Self::bind_unix(path, Purpose::Private).await
    }

    /// As `bind_private`, once no other process listens there: during a rolling update that is the agent before this one.
    pub async fn bind_private_when_free(path: &Path) -> Self {
        let mut problem = String::new();
        loop {
            tokio::time::sleep(RETRY).await;
            match Self::bind_private(path).await {
                Ok(listener) => {
                    tracing::info!(address = %listener.address(), "listening");
                    return listener;
                }
                Err(BindError::InUse { .. }) => problem.clear(),
                Err(error) => {
                    let text = error.to_string();
                    if problem != text {
                        tracing::warn!("{text}; trying again");
                        problem = text;
                    }
                }
            }
        }
    }

    #[must_use]
    pub fn serves_pages(&self) -> bool {
        self.purpose() != Purpose::Probes
    }

    #[must_use]
    pub fn is_private(&self) -> bool {
        self.purpose() == Purpose::Private
    }

    #[must_use]
    pub(super) fn purpose(&self) -> Purpose {
        match self {
            Self::Tcp { purpose, .. } | Self::Unix { purpose, .. } => *purpose,
        }
    }

    /// What was bound, with the port that the system chose where zero was asked for.
    #[must_use]
    pub fn address(&self) -> ListenAddress {
        match self {
            Self::Tcp { listener, .. } => {
                ListenAddress::Tcp(listener.local_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0))))
            }
            Self::Unix { file, .. } => ListenAddress::Unix(file.path.clone()),
        }
    }

    async fn bind_unix(path: &Path, purpose: Purpose) -> Result<Self, BindError> {
        let failed = |source| BindError::Unix { path: path.to_owned(), source };
        clear_the_way(path).await?;
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(failed)?;
        }
        // Bound under another name and moved into place, so that nobody can open it before its mode is set.
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}", std::process::id()));
        let draft = PathBuf::from(draft);
        let _ = std::fs::remove_file(&draft);
        let listener = UnixListener::bind(&draft).map_err(failed)?;
        let placed = place(&draft, path, (purpose == Purpose::Private).then_some(0o600));
        if placed.is_err() {
            let _ = std::fs::remove_file(&draft);
        }
        let inode = placed.map_err(failed)?;
        Ok(Self::Unix { listener, file: SocketFile { path: path.to_owned(), inode }, purpose })
    }
}

/// As `TcpListener::bind` does it, with buffers that the kernel does not grow: it would let a client that takes no answers
/// have 4 MiB of the agent's memory, and one that asks faster than it reads 6 more.
fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BYTES)?;
    socket.set_recv_buffer_size(RECEIVE_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Removes a socket file that nobody listens on any more.
async fn clear_the_way(path: &Path) -> Result<(), BindError> {
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

fn place(draft: &Path, path: &Path, mode: Option<u32>) -> io::Result<u64> {
    if let Some(mode) = mode {
        std::fs::set_permissions(draft, std::fs::Permissions::from_mode(mode))?;
    }
    let inode = std::fs::symlink_metadata(draft)?.ino();
    std::fs::rename(draft, path)?;
    Ok(inode)
}

/// The socket's name in the file system, removed with the listener unless another has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl FromStr for ListenAddress {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(_) => Err(ParseAddressError { text: text.to_owned() }),
            None => text.parse().map(Self::Tcp).map_err(|_| ParseAddressError { text: text.to_owned() }),
        }
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
    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike() {
        for text in ["0.0.0.0:9410", "[::]:9410", "127.0.0.1:0", "unix:/run/podmeter/page.sock"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for text in ["", "9410", ":9410", "localhost:9410", "unix:", "0.0.0.0"] {
            let message = text.parse::<ListenAddress>().unwrap_err().to_string();
            assert!(message.contains("0.0.0.0:9410"), "{message}");
        }
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/podmeter.sock");
        let first = Listener::bind_private(&path).await.unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(Listener::bind_private(&path).await, Err(BindError::InUse { .. })));
        let Listener::Unix { listener, file, .. } = first else { panic!("a unix listener") };
        drop(listener);
        std::mem::forget(file); // as after a kill
        assert!(path.exists());
        let second = Listener::bind_private(&path).await.unwrap();
        drop(second);
        assert!(!path.exists(), "an orderly end removes its file");
    }

    #[tokio::test]
    async fn a_live_socket_is_bound_when_its_process_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("podmeter.sock");
        let Listener::Unix { listener, file, .. } = Listener::bind_private(&path).await.unwrap() else {
            panic!("a unix listener")
        };
        let binding = Listener::bind_private_when_free(&path);
        tokio::pin!(binding);
        assert!(tokio::time::timeout(RETRY * 2, &mut binding).await.is_err(), "it is in use");
        assert!(UnixStream::connect(&path).await.is_ok(), "by the first");
        drop(listener);
        std::mem::forget(file); // as after a kill
        let second = tokio::time::timeout(RETRY * 3, binding).await.expect("bound");
        assert_eq!(second.address(), ListenAddress::Unix(path.clone()));
        assert!(UnixStream::connect(&path).await.is_ok());
    }

    #[tokio::test]
    async fn what_is_no_socket_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        assert!(matches!(Listener::bind_private(&path).await, Err(BindError::NotASocket { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "data");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "no draft is left");
    }

    #[tokio::test]
    async fn a_taken_port_is_named() {
        let first = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let error = Listener::bind(&first.address()).await.unwrap_err();
        assert!(error.to_string().contains(&first.address().to_string()), "{error}");
    }
}
