use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A key or a list of authorities is a few KiB; whatever is longer is something else.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Files that were read, and as what.
#[derive(Debug, Default)]
pub struct Files {
    read: Vec<(PathBuf, Option<Stamp>)>,
}

/// Device, inode, length and both times in nanoseconds: one of them changes with any write, and with a Secret's swapped
/// link.
type Stamp = [i128; 5];

impl Files {
    /// The whole file. Stamped before it is read, so that a change in between is seen later.
    pub fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        self.read.push((path.to_owned(), stamp(path)));
        let length = std::fs::metadata(path)?.len();
        if length > MAX_BYTES {
            return Err(io::Error::other(format!("{length} bytes are too many for such a file")));
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
