use std::io;
use std::path::{Path, PathBuf};

use crate::files;
use crate::model::FileStamp;

/// Keys and lists of authorities are a few KiB.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// The files that were read, with their stamps.
#[derive(Debug, Default)]
pub struct Files {
    read: Vec<(PathBuf, Option<FileStamp>)>,
}

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

fn stamp(path: &Path) -> Option<FileStamp> {
    std::fs::metadata(path).ok().map(|file| files::stamp(&file))
}
