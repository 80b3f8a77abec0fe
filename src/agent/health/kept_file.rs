//! A file that is written again and again, with a log line when that begins to fail and when it works again.

use std::io;
use std::path::PathBuf;

use crate::files;

/// A file that is written again and again. A file system that hangs blocks its writer alone.
pub struct KeptFile {
    path: PathBuf,
    mode: u32,
    /// What the file is, and what a failure to write it means, in the log.
    what: &'static str,
    without: &'static str,
    failure: Option<String>,
}

impl KeptFile {
    pub fn new(path: PathBuf, mode: u32, what: &'static str, without: &'static str) -> Self {
        Self { path, mode, what, without, failure: None }
    }

    pub const fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Whether it has the text now. Logs a failure when it begins, changes or ends.
    pub async fn write(&mut self, text: String) -> bool {
        let (path, mode) = (self.path.clone(), self.mode);
        let written = tokio::task::spawn_blocking(move || files::replace(&path, text.as_bytes(), mode)).await;
        let failure = written.map_err(io::Error::other).flatten().err().map(|error| error.to_string());
        if failure != self.failure {
            let (file, what, without) = (self.path.display(), self.what, self.without);
            match &failure {
                None => tracing::info!(%file, "{what} is written again"),
                Some(error) => tracing::warn!(%file, %error, "{what} cannot be written: {without}"),
            }
        }
        self.failure = failure;
        !self.has_failed()
    }
}
