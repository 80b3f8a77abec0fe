//! What distinguishes the versions of a file.

/// Of one version of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileStamp {
    /// Device and inode.
    pub file: (u64, u64),
    pub bytes: u64,
    /// When the content was last written, and when anything last changed: seconds and nanoseconds.
    pub modified: (i64, i64),
    pub changed: (i64, i64),
}
