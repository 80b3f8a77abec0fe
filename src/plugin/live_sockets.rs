//! Which sockets of the device-plugin directory accept connections.
//!
//! In: changes of the directory. Out: the names, published on each change. A connection to each plugin of another
//! vendor is kept open, so that its end is seen at once, also where it is killed and its socket file stays; nothing is
//! sent on it. Other podmeters are dialled again now and then instead: an open connection would delay their end.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use super::sockets::{self, Identity};

/// By name. The kubelet's socket and this agent's own are left out.
pub type LiveSockets = BTreeMap<String, Identity>;

/// The names of this agent's own sockets.
#[derive(Clone, Debug, Default)]
pub struct OwnSockets(Arc<Mutex<BTreeSet<String>>>);

impl OwnSockets {
    pub fn insert(&self, name: &str) {
        self.0.lock().insert(name.to_owned());
    }

    pub fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }

    fn contains(&self, name: &str) -> bool {
        self.0.lock().contains(name)
    }
}

/// Publishes them at the start and after each change. Never ends.
pub async fn watch_sockets(
    directory: PathBuf,
    own: OwnSockets,
    mut changes: watch::Receiver<u64>,
    publish: watch::Sender<Option<Arc<LiveSockets>>>,
) {
    let mut open = OpenConnections::default();
    loop {
        changes.mark_unchanged();
        let live = Arc::new(open.dial(&directory, &own).await);
        publish.send_if_modified(|before| {
            let is_new = before.as_ref() != Some(&live);
            *before = Some(live);
            is_new
        });
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = open.one_closes() => {}
        }
    }
}

#[derive(Default)]
struct OpenConnections {
    /// Each ends with its name when the other side closes the connection.
    tasks: JoinSet<String>,
    by_name: BTreeMap<String, (Identity, AbortHandle)>,
}

impl OpenConnections {
    /// Dials new sockets, and those without an open connection.
    async fn dial(&mut self, directory: &Path, own: &OwnSockets) -> LiveSockets {
        let present: LiveSockets =
            sockets::identities(directory).into_iter().filter(|(name, _)| !own.contains(name)).collect();
        for (_, (_, task)) in self.by_name.extract_if(.., |name, (identity, _)| present.get(name) != Some(identity)) {
            task.abort();
        }
        let mut live = LiveSockets::new();
        for (name, identity) in present {
            if !self.by_name.contains_key(&name) {
                match UnixStream::connect(directory.join(&name)).await {
                    Ok(stream) if !sockets::is_podmeters(&name) => {
                        let task = self.tasks.spawn(closed(stream, name.clone()));
                        self.by_name.insert(name.clone(), (identity, task));
                    }
                    Ok(_) => {}
                    // Its queue of connections is full: it listens.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => continue,
                }
            }
            live.insert(name, identity);
        }
        live
    }

    /// Pending where none is open.
    async fn one_closes(&mut self) {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(name)) => {
                    self.by_name.remove(&name);
                    return;
                }
                // Aborted: its socket is another one.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}

/// Until the other side closes the connection, as all do when their process ends.
async fn closed(stream: UnixStream, name: String) -> String {
    while stream.readable().await.is_ok() {
        match stream.try_read(&mut [0; 256]) {
            Ok(0) => break,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => break,
            _ => {}
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use super::*;

    async fn becomes(live: &mut watch::Receiver<Option<Arc<LiveSockets>>>, names: &[&str]) {
        let is = |live: &Option<Arc<LiveSockets>>| {
            live.as_ref().is_some_and(|live| live.keys().map(String::as_str).eq(names.iter().copied()))
        };
        let became = tokio::time::timeout(Duration::from_secs(10), live.wait_for(is)).await.is_ok();
        assert!(became, "{names:?}, not {:?}", live.borrow());
    }

    #[tokio::test]
    async fn the_end_of_a_killed_plugin_is_seen_although_its_socket_stays() {
        let directory = tempfile::tempdir().unwrap();
        let bind = |name: &str| UnixListener::bind(directory.path().join(name)).unwrap();
        let (_kubelet, own, other) =
            (bind("kubelet.sock"), bind("podmeter-a_b-000000000001.sock"), bind("nvidia-gpu.sock"));
        let podmeter = bind("podmeter-a_b-000000000002.sock");
        let own_sockets = OwnSockets::default();
        own_sockets.insert("podmeter-a_b-000000000001.sock");
        let (changes, changed) = watch::channel(0);
        let (publish, mut live) = watch::channel(None);
        let watching = tokio::spawn(watch_sockets(directory.path().to_owned(), own_sockets, changed, publish));
        becomes(&mut live, &["nvidia-gpu.sock", "podmeter-a_b-000000000002.sock"]).await;
        // The directory does not change.
        drop(other);
        becomes(&mut live, &["podmeter-a_b-000000000002.sock"]).await;
        drop((podmeter, own));
        changes.send_modify(|changes| *changes += 1);
        becomes(&mut live, &[]).await;
        std::fs::remove_file(directory.path().join("nvidia-gpu.sock")).unwrap();
        let _again = bind("nvidia-gpu.sock");
        changes.send_modify(|changes| *changes += 1);
        becomes(&mut live, &["nvidia-gpu.sock"]).await;
        watching.abort();
    }

    /// As a gRPC server does that is sent no preface for two minutes.
    #[tokio::test]
    async fn a_plugin_that_closes_an_idle_connection_stays_listed() {
        let directory = tempfile::tempdir().unwrap();
        let other = tokio::net::UnixListener::bind(directory.path().join("nvidia-gpu.sock")).unwrap();
        let (_changes, changed) = watch::channel(0);
        let (publish, mut live) = watch::channel(None);
        let watching =
            tokio::spawn(watch_sockets(directory.path().to_owned(), OwnSockets::default(), changed, publish));
        becomes(&mut live, &["nvidia-gpu.sock"]).await;
        live.mark_unchanged();
        drop(other.accept().await.unwrap());
        let _second = other.accept().await.unwrap();
        assert!(!live.has_changed().unwrap());
        watching.abort();
    }
}
