//! When to query the kubelet again.
//!
//! In: file events beside the kubelet's sockets. Out: triggers. Does not use: the queries.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use inotify::{EventStream, Inotify, WatchMask};
use tokio_stream::StreamExt;

/// Why a refresh is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl Trigger {
    pub const ALL: [Self; 5] = [Self::Checkpoint, Self::Reconnect, Self::Timer, Self::Allocate, Self::PodsApi];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Reconnect => "reconnect",
            Self::Timer => "timer",
            Self::Allocate => "allocate",
            Self::PodsApi => "pods_api",
        }
    }
}

pub(super) const CHECKPOINT: &str = "kubelet_internal_checkpoint";

/// Changes beside the kubelet's sockets. Directories that are not there yet are watched once they are.
pub struct FileEvents {
    stream: Option<EventStream<[u8; 1024]>>,
    directories: [PathBuf; 2],
    socket_name: Option<OsString>,
}

impl FileEvents {
    pub fn new(socket: &Path, device_plugin_directory: &Path) -> Self {
        let stream = Inotify::init().and_then(|inotify| inotify.into_event_stream([0; 1024]));
        if let Err(error) = &stream {
            tracing::warn!(%error, "no inotify (fs.inotify.max_user_instances?): the kubelet is asked only at intervals");
        }
        let directory = socket.parent().unwrap_or_else(|| Path::new("/")).to_owned();
        let mut events = Self {
            stream: stream.ok(),
            directories: [directory, device_plugin_directory.to_owned()],
            socket_name: socket.file_name().map(ToOwned::to_owned),
        };
        events.watch_directories();
        events
    }

    /// Watching a directory again is harmless, so this is called on every timer: it may have been made or replaced.
    pub fn watch_directories(&mut self) {
        let Some(stream) = &self.stream else { return };
        for directory in &self.directories {
            let mask = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::CLOSE_WRITE | WatchMask::ONLYDIR;
            if let Err(error) = stream.watches().add(directory, mask) {
                tracing::debug!(directory = %directory.display(), %error, "cannot be watched yet");
            }
        }
    }

    /// Waits for the next change that matters; pending where there is no inotify. Cancel safe.
    pub async fn next(&mut self) -> Trigger {
        loop {
            let Some(stream) = &mut self.stream else { return std::future::pending().await };
            match stream.next().await {
                Some(Ok(event)) if event.name.as_deref() == Some(CHECKPOINT.as_ref()) => return Trigger::Checkpoint,
                Some(Ok(event)) if event.name.is_some() && event.name == self.socket_name => return Trigger::Reconnect,
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::warn!(%error, "inotify failed: the kubelet is asked only at intervals");
                    self.stream = None;
                }
                None => self.stream = None,
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
