use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Keys and lists of authorities are a few KiB.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// The files that were read, with their stamps.
#[derive(Debug, Default)]
pub struct Files {
    read: Vec<(PathBuf, Option<Stamp>)>,
}

/// Device, inode, length, and both times in nanoseconds: any write changes one of them, and so does the link of a
/// Secret that is replaced.
type Stamp = [i128; 5];

impl Files {
    /// The whole file. Stamped before it is read, so that a change in between is noticed later.
    pub fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        self.read.push((path.to_owned(), stamp(path)));
        let length = std::fs::metadata(path)?.len();
        if length > MAX_BYTES {
            return Err(io::Error::other(format!("{length} bytes are too many")));
        }
        std::fs::read(path)
    }

    pub fn changed(&self) -> bool {
        self.read.iter().any(|(path, seen)| stamp(path) != *seen)
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let file = std::fs::metadata(path).ok()?;
    let nanoseconds = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    let modified = nanoseconds(file.mtime(), file.mtime_nsec());
    let changed = nanoseconds(file.ctime(), file.ctime_nsec());
    Some([file.dev().into(), file.ino().into(), file.len().into(), modified, changed])
}
