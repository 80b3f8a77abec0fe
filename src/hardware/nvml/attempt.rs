//! Records the library that is being loaded, so that the next start reports one that crashed podmeter.
//!
//! In: the path of a library, and the time. Out: a file, and a refusal to load the same library again too soon.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::hardware::source::Failure;

/// How long a library that has crashed podmeter is not loaded: doubled after each further crash.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// The file, which exists while a library is loaded and initialised, and afterwards only if podmeter crashed.
#[derive(Clone, Debug)]
pub struct Attempts {
    file: PathBuf,
    clock: Clock,
    /// Reads the file and never writes it.
    read_only: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Attempt {
    path: PathBuf,
    size: u64,
    modified: i64,
    /// How often podmeter has begun to load this file without finishing.
    times: u32,
    /// Unix seconds of the latest.
    at: f64,
}

impl Attempts {
    #[must_use]
    pub fn new(file: PathBuf, clock: Clock) -> Self {
        Self { file, clock, read_only: false }
    }

    /// For callers that change nothing.
    #[must_use]
    pub fn to_read(file: PathBuf, clock: Clock) -> Self {
        Self { file, clock, read_only: true }
    }

    /// Refuses a library that has crashed podmeter a short time ago and is unchanged; otherwise records the attempt.
    pub(super) fn begin(&self, path: &Path) -> Result<(), Failure> {
        let metadata = fs::metadata(path).ok();
        let (size, modified) = metadata.map_or((0, 0), |metadata| (metadata.size(), metadata.mtime()));
        let now = self.clock.now().unix.0;
        let before =
            self.read().filter(|before| before.path == path && (before.size, before.modified) == (size, modified));
        let times = before.as_ref().map_or(0, |before| before.times);
        if let Some(before) = before {
            let until = before.at + pause(before.times).as_secs_f64();
            // A clock that was set back does not extend the pause.
            if now < until && now >= before.at {
                return Err(self.refusal(&before, until));
            }
        }
        if !self.read_only {
            self.write(&Attempt { path: path.to_owned(), size, modified, times: times + 1, at: now });
        }
        Ok(())
    }

    /// The library has been initialised or has returned an error.
    pub(super) fn end(&self) {
        if !self.read_only {
            // Without a state directory there is no file.
            let _ = fs::remove_file(&self.file);
        }
    }

    fn refusal(&self, before: &Attempt, until: f64) -> Failure {
        let at = UNIX_EPOCH + Duration::try_from_secs_f64(until).unwrap_or_default();
        Failure {
            call: "dlopen",
            code: "library_ended_podmeter",
            reason: format!(
                "podmeter ended while it loaded {} ({} bytes), {} in a row: the same file is not loaded again before {} \
                 unless {} is removed",
                before.path.display(),
                before.size,
                if before.times == 1 { "once".to_owned() } else { format!("{} times", before.times) },
                humantime::format_rfc3339_seconds(at),
                self.file.display()
            ),
            remedy: "reinstall the NVIDIA driver; a file that has changed is loaded at once",
        }
    }

    fn read(&self) -> Option<Attempt> {
        serde_json::from_slice(&fs::read(&self.file).ok()?).ok()
    }

    fn write(&self, attempt: &Attempt) {
        let text = serde_json::to_vec(attempt).unwrap_or_default();
        let directory = self.file.parent().unwrap_or(Path::new("/"));
        let written = fs::create_dir_all(directory).and_then(|()| fs::write(&self.file, text));
        if let Err(error) = written {
            tracing::debug!(file = %self.file.display(), %error, "cannot record the loading of the driver library");
        }
    }
}

fn pause(times: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << times.saturating_sub(1).min(10)).min(LONGEST_PAUSE)
}

/// The file that the loader is expected to use for this name.
pub fn file_of(candidate: &OsStr, search_path: Option<&OsStr>, places: &[&str]) -> PathBuf {
    let name = Path::new(candidate);
    if name.components().count() > 1 {
        return name.to_owned();
    }
    let named = search_path.map(std::env::split_paths).into_iter().flatten();
    let usual = places.iter().map(|place| Path::new("/").join(place));
    let found = named.chain(usual).map(|directory| directory.join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_ended_podmeter_waits_until_it_changes() {
        let directory = tempfile::tempdir().unwrap();
        let (library, file) = (directory.path().join("lib.so"), directory.path().join("state/driver-library.json"));
        fs::write(&library, "one").unwrap();
        let attempts = Attempts::new(file.clone(), Clock::start());
        attempts.begin(&library).unwrap();
        // At the next start.
        let refused = attempts.begin(&library).unwrap_err().to_string();
        assert!(refused.contains("lib.so (3 bytes), once") && refused.contains("driver-library.json"), "{refused}");
        assert!(Attempts::to_read(file.clone(), Clock::start()).begin(&library).is_err());
        fs::write(&library, "another").unwrap();
        attempts.begin(&library).unwrap();
        attempts.end();
        assert!(!file.exists());
        attempts.begin(&library).unwrap();
    }

    #[test]
    fn it_is_loaded_again_after_a_growing_pause() {
        let directory = tempfile::tempdir().unwrap();
        let (library, file) = (directory.path().join("lib.so"), directory.path().join("driver-library.json"));
        fs::write(&library, "one").unwrap();
        let attempts = Attempts::new(file.clone(), Clock::start());
        attempts.begin(&library).unwrap();
        let mut attempt = attempts.read().unwrap();
        attempt.at -= 61.0;
        attempts.write(&attempt);
        attempts.begin(&library).unwrap();
        assert_eq!(attempts.read().unwrap().times, 2);
        assert_eq!([1, 2, 3, 40].map(pause).map(|pause| pause.as_secs()), [60, 120, 240, 3600]);
        fs::write(&file, "nonsense").unwrap();
        attempts.begin(&library).unwrap();
    }

    #[test]
    fn a_bare_name_is_searched_in_the_loaders_path() {
        let directory = tempfile::tempdir().unwrap();
        let library = directory.path().join("libx.so");
        fs::write(&library, "").unwrap();
        let search = directory.path().as_os_str();
        assert_eq!(file_of(OsStr::new("libx.so"), Some(search), &[]), library);
        assert_eq!(file_of(OsStr::new("/a/libx.so"), Some(search), &[]), Path::new("/a/libx.so"));
        assert_eq!(file_of(OsStr::new("libx.so"), None, &["nonexistent"]), Path::new("libx.so"));
    }
}
