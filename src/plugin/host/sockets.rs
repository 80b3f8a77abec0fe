//! The sockets in the device-plugin directory: ours, those of other plugins, and the kubelet's.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use inotify::WatchMask;
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};

use crate::domain::model::{PluginState, ResourceName};
use crate::plugin::hash::random;
use crate::tasks::DirectoryEvents;

pub const KUBELET: &str = "kubelet.sock";
const PREFIX: &str = "podmeter-";
const SUFFIX: &str = ".sock";
/// The most bytes of the resource in a socket's name: a socket's path has at most 107 bytes, which the kubelet's
/// directory, the prefix and the unique part share.
const RESOURCE_LENGTH: usize = 32;
/// The interval of the poll where it is the only source: without inotify, or while waiting for other plugins.
const POLL: Duration = Duration::from_secs(1);
/// The interval of the poll beside inotify, whose lost events it replaces.
const POLL_BESIDE_INOTIFY: Duration = Duration::from_secs(5);
/// The time from a change of the sockets to a query of the kubelet: by then a plugin has registered, or the kubelet has
/// noticed its end.
const AFTER_A_CHANGE: Duration = Duration::from_millis(500);

/// The pause after an event, which a socket's creation sends within bind, before listen. A reader that runs at once
/// takes the processor from the kubelet in between, and the first plugin that dials it is refused; NVIDIA's repeats
/// after 1 s.
const BIND_TO_LISTEN: Duration = Duration::from_millis(5);
const EVENTS: WatchMask =
    WatchMask::CREATE.union(WatchMask::DELETE).union(WatchMask::MOVED_TO).union(WatchMask::MOVED_FROM);

/// Identifies a socket's file: another file differs, even with the same inode; a changed mode makes no difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketIdentity {
    device: u64,
    inode: u64,
    /// The time of creation, or of the last modification where the file system has none.
    created: Option<SystemTime>,
}

/// The identity of the file at the path, if there is one.
pub fn identity(path: &Path) -> Option<SocketIdentity> {
    let file = std::fs::symlink_metadata(path).ok()?;
    let created = file.created().or_else(|_| file.modified()).ok();
    Some(SocketIdentity { device: file.dev(), inode: file.ino(), created })
}

pub fn kubelet_socket(directory: &Path) -> PathBuf {
    directory.join(KUBELET)
}

/// A new name at each call, such as `podmeter-nvidia.com_gpu-1f0c3a9be2d4.sock`.
pub fn fresh_name(resource: &ResourceName) -> String {
    format!("{}{:012x}{SUFFIX}", resource_prefix(resource), random() & 0xffff_ffff_ffff)
}

/// The prefix of the names of every podmeter's sockets for this resource.
fn resource_prefix(resource: &ResourceName) -> String {
    let name = resource.as_str().replace('/', "_");
    let first = name.chars().count().saturating_sub(RESOURCE_LENGTH);
    format!("{PREFIX}{}-", name.chars().skip(first).collect::<String>())
}

/// Whether it is the name of a socket on which a podmeter, this one or another, serves the resource.
pub fn is_a_podmeters(name: &str, resource: &ResourceName) -> bool {
    let unique = name.strip_prefix(&resource_prefix(resource)).and_then(|rest| rest.strip_suffix(SUFFIX));
    unique.is_some_and(|unique| unique.len() == 12 && unique.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Whether it is the name of a podmeter's socket, of any resource.
pub fn is_any_podmeters(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// The names of the wanted sockets in the directory that accept connections, sorted, without the kubelet's.
pub async fn live(directory: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let mut live = vec![];
    for name in names(directory).into_iter().filter(|name| name != KUBELET && is_wanted(name)) {
        let connected = UnixStream::connect(directory.join(&name)).await;
        // A socket with a full queue of connections listens.
        if connected.is_ok() || connected.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            live.push(name);
        }
    }
    live
}

/// The identity of each socket in the directory.
pub fn identities(directory: &Path) -> BTreeMap<String, SocketIdentity> {
    let named = |name: String| identity(&directory.join(&name)).map(|identity| (name, identity));
    names(directory).into_iter().filter_map(named).collect()
}

/// The names of the sockets in the directory, without the kubelet's.
pub fn others(directory: &Path) -> BTreeSet<String> {
    names(directory).into_iter().filter(|name| name != KUBELET).collect()
}

/// Removes sockets of an earlier podmeter that refuse connections.
pub async fn remove_stale(directory: &Path) {
    for name in names(directory).into_iter().filter(|name| is_any_podmeters(name)) {
        let path = directory.join(&name);
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if UnixStream::connect(&path).await.is_err_and(refused) {
            match std::fs::remove_file(&path) {
                Ok(()) => tracing::info!(socket = name, "removed a socket that an earlier podmeter left behind"),
                Err(error) => tracing::warn!(socket = name, %error, "a stale socket cannot be removed"),
            }
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return vec![] };
    let is_socket = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_socket());
    let sockets = entries.filter_map(Result::ok).filter(is_socket);
    let mut names: Vec<String> = sockets.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Watches the directory until it is removed: a new one in its place is not visible in this mount. A removed directory
/// that is mounted has metadata with no links; without metadata it does not exist yet. Until then:
///
/// - each change in the directory wakes `changes`, and so does the poll; where every resource is another plugin's, only
///   the poll notices a new socket: see `BIND_TO_LISTEN`;
/// - a change of the sockets is followed by `refresh_allocatable`;
/// - a kubelet after the first is counted in the published state.
pub async fn watch_directory(
    directory: PathBuf,
    changes: watch::Sender<u64>,
    refresh_allocatable: Arc<Notify>,
    publish: watch::Sender<Arc<PluginState>>,
) {
    let mut events = DirectoryEvents::new(vec![(directory.clone(), EVENTS)]);
    let (mut last, mut kubelet, mut due) = (BTreeMap::new(), None, false);
    while std::fs::metadata(&directory).map_or(true, |metadata| metadata.nlink() > 0) {
        let is_waiting = waits_for_others(&publish.borrow());
        events.watch_for(if is_waiting { EVENTS.difference(WatchMask::CREATE) } else { EVENTS });
        changes.send_modify(|changes| *changes += 1);
        let now = identities(&directory);
        if let Some(now) = now.get(KUBELET)
            && kubelet.replace(*now).is_some_and(|last| last != *now)
        {
            publish.send_modify(|state| Arc::make_mut(state).kubelet_restarts += 1);
        }
        due |= last != now;
        last = now;
        let poll = if is_waiting || !events.has_inotify() { POLL } else { POLL_BESIDE_INOTIFY };
        let pause = if due { AFTER_A_CHANGE } else { poll };
        match tokio::time::timeout(pause, events.next()).await {
            Ok(_) => tokio::time::sleep(BIND_TO_LISTEN).await,
            Err(_) if std::mem::take(&mut due) => refresh_allocatable.notify_one(),
            Err(_) => {}
        }
    }
    let directory = directory.display();
    tracing::error!(%directory, "the directory was removed, and the one in its place is not visible in this mount");
}

/// Whether this process registers nothing: every resource is another plugin's.
fn waits_for_others(state: &PluginState) -> bool {
    let mut resources = state.resources.values().filter(|resource| resource.ended.is_none()).peekable();
    resources.peek().is_some() && resources.all(|resource| resource.conflict.is_some() && !resource.registered)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::domain::model::PluginResource;

    #[test]
    fn names_are_fresh_short_and_known_again() {
        let gpu = ResourceName::new("nvidia.com/gpu");
        let name = fresh_name(&gpu);
        assert_ne!(name, fresh_name(&gpu));
        assert!(is_a_podmeters(&name, &gpu), "{name}");
        assert!(!is_a_podmeters(&name, &ResourceName::new("nvidia.com/gpu.shared")));
        assert!(!is_a_podmeters(&fresh_name(&ResourceName::new("nvidia.com/gpu-x")), &gpu), "a longer name");
        assert!(!is_a_podmeters("nvidia-gpu.sock", &gpu));
        let long = ResourceName::new(format!("{}.example.com/{}", "a".repeat(200), "b".repeat(63)));
        let path = Path::new("/var/lib/kubelet/device-plugins").join(fresh_name(&long));
        assert!(path.as_os_str().len() <= 107, "{}", path.display());
        assert!(is_a_podmeters(&fresh_name(&long), &long));
    }

    #[test]
    fn a_socket_with_another_mode_is_the_same_and_a_replaced_one_is_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(KUBELET);
        let _first = UnixListener::bind(&path).unwrap();
        let before = identity(&path);
        std::fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        assert_eq!(identity(&path), before);
        let next = directory.path().join("next");
        let _second = UnixListener::bind(&next).unwrap();
        std::fs::rename(&next, &path).unwrap();
        assert!(identity(&path).is_some_and(|now| Some(now) != before));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(identity(&path), None);
    }

    /// The time from the creation of a kubelet's socket to the published change.
    async fn noticed_after(state: PluginState) -> Duration {
        let directory = tempfile::tempdir().unwrap();
        let (changes, mut changed) = watch::channel(0);
        let publish = watch::channel(Arc::new(state)).0;
        let watching = tokio::spawn(watch_directory(directory.path().to_owned(), changes, Arc::default(), publish));
        changed.changed().await.unwrap();
        let _kubelet = UnixListener::bind(directory.path().join(KUBELET)).unwrap();
        let made = tokio::time::Instant::now();
        changed.changed().await.unwrap();
        watching.abort();
        made.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_kubelet_listens_before_the_directory_is_read_and_wakes_no_plugin_that_waits() {
        let resource = |conflict: Option<Arc<str>>| PluginResource { conflict, ..PluginResource::default() };
        let node = |conflicts: [Option<Arc<str>>; 2]| {
            let resources = ["a/a", "b/b"].map(ResourceName::new).into_iter().zip(conflicts.map(resource));
            PluginState { resources: resources.collect(), ..PluginState::default() }
        };
        assert_eq!(noticed_after(node([None, Some("another's".into())])).await, BIND_TO_LISTEN);
        let mut waits = node(["another's", "another's"].map(|text| Some(text.into())));
        assert_eq!(noticed_after(waits.clone()).await, POLL);
        // Another plugin offers its hardware as another resource.
        waits.resources.values_mut().for_each(|resource| resource.registered = true);
        assert_eq!(noticed_after(waits).await, BIND_TO_LISTEN);
    }

    #[tokio::test]
    async fn only_our_own_dead_sockets_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        drop(UnixListener::bind(at("podmeter-x_y-000000000001.sock")).unwrap());
        drop(UnixListener::bind(at("nvidia-gpu.sock")).unwrap());
        let living = UnixListener::bind(at("podmeter-x_y-000000000002.sock")).unwrap();
        std::fs::write(at("podmeter-notes.sock"), "a file").unwrap();
        remove_stale(directory.path()).await;
        assert_eq!(names(directory.path()), ["nvidia-gpu.sock", "podmeter-x_y-000000000002.sock"]);
        assert!(at("podmeter-notes.sock").exists());
        assert_eq!(live(directory.path(), |_| true).await, ["podmeter-x_y-000000000002.sock"]);
        drop(living);
    }
}
