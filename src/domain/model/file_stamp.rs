//! The stamp that distinguishes the versions of a file.

/// The stamp of one version of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStamp {
    /// The device and inode numbers.
    pub file: (u64, u64),
    pub bytes: u64,
    /// The times (seconds, nanoseconds) of the last write; `changed`: of the last change of content or metadata.
    pub modified: (i64, i64),
    pub changed: (i64, i64),
}
