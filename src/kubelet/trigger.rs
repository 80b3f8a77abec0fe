//! Why the kubelet is queried again, and the file events that are two of the reasons.
//!
//! In: file events beside the kubelet's sockets. Out: triggers. Does not use: the queries.

use std::ffi::OsString;
use std::path::Path;

use inotify::WatchMask;
use strum::{EnumIter, IntoStaticStr};

use crate::tasks::DirectoryEvents;

/// Why a refresh is due; the `trigger` label. Counted as it comes: one refresh may answer several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Trigger {
    /// The kubelet wrote its device checkpoint: an allocation changed.
    Checkpoint,
    /// The socket was replaced: another kubelet process.
    Reconnect,
    Timer,
    /// The bundled plugin granted an allocation, which the kubelet is about to write down.
    Allocate,
    /// The Pods API reported that a pod which holds devices has ended.
    PodsApi,
}

pub(super) const CHECKPOINT: &str = "kubelet_internal_checkpoint";

/// Changes beside the kubelet's sockets.
pub struct FileEvents {
    events: DirectoryEvents,
    socket_name: Option<OsString>,
}

impl FileEvents {
    pub fn new(socket: &Path, device_plugin_directory: &Path) -> Self {
        let directory = socket.parent().unwrap_or_else(|| Path::new("/")).to_owned();
        // A kubelet of earlier releases makes the socket in place.
        let socket_events = WatchMask::CREATE | WatchMask::MOVED_TO;
        // Creation is not watched: a new file is still empty, and the event of the kubelet's registration socket comes
        // between bind and listen. A reader that runs then delays listen, and plugins that connect are refused.
        let checkpoint_events = WatchMask::MOVED_TO | WatchMask::CLOSE_WRITE;
        let events = DirectoryEvents::new(vec![
            (directory, socket_events),
            (device_plugin_directory.to_owned(), checkpoint_events),
        ]);
        Self { events, socket_name: socket.file_name().map(ToOwned::to_owned) }
    }

    /// To be called at intervals.
    pub fn watch_directories(&mut self) {
        self.events.watch();
    }

    /// Waits for the next change that matters; pending where there is no inotify. Cancel safe.
    pub async fn next(&mut self) -> Trigger {
        loop {
            match self.events.next().await {
                Some(name) if name == *CHECKPOINT => return Trigger::Checkpoint,
                Some(name) if Some(&name) == self.socket_name.as_ref() => return Trigger::Reconnect,
                _ => {}
            }
        }
    }

    /// A change that has happened already; `None` when there is none to wait for.
    pub async fn ready(&mut self) -> Option<Trigger> {
        tokio::select! {
            biased;
            trigger = self.next() => Some(trigger),
            () = std::future::ready(()) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_of_the_kubelet_or_of_a_plugin_is_no_event_and_a_renamed_checkpoint_is_one() {
        let (root, plugins) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut files = FileEvents::new(&root.path().join("kubelet.sock"), plugins.path());
        let _kubelet = std::os::unix::net::UnixListener::bind(plugins.path().join("kubelet.sock")).unwrap();
        let elsewhere = tempfile::NamedTempFile::new().unwrap();
        std::fs::rename(elsewhere.path(), plugins.path().join(CHECKPOINT)).unwrap();
        assert_eq!(files.events.next().await.unwrap(), CHECKPOINT, "nothing before");
        std::fs::write(root.path().join("kubelet.sock"), "").unwrap();
        assert_eq!(files.next().await, Trigger::Reconnect);
    }
}
