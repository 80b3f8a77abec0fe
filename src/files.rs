//! Files of this process in directories that others may write to, and files that options name.
//!
//! In: paths and contents. Out: of the former only files of this user, never the target of a symbolic link; of both only
//! regular files of limited size. [`unescaped`] is for paths in `mountinfo`, which `processes` and `serve` both read.

use std::borrow::Cow;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

use crate::domain::model::FileStamp;

/// The mode of a file for this user alone.
pub const OWNER_ONLY: u32 = 0o600;
/// The limit of named files: configurations, keys, lists of authorities and CDI files, of at most a few hundred KiB.
const NAMED_BYTES: u64 = 4 << 20;

/// Opens a file for writing and creates it with this mode where it is missing. A symbolic link or a file of another user
/// in its place is an error.
pub fn open(file: &Path, mode: u32) -> io::Result<File> {
    own(File::options().create(true).truncate(false).write(true).mode(mode), file)
}

/// The content of a file of at most `limit` bytes; `None` where it does not exist. As in [`open`], a symbolic link or a
/// file of another user is an error; so is anything that is no regular file.
pub fn read(file: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let opened = match own(File::options().read(true), file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    content(opened, limit).map(Some)
}

/// The content of a file that an option or another file names. It may be of any user, and symbolic links are followed,
/// as the volume of a Secret has them. It does not wait for the other end of a pipe, and the size is limited.
pub fn read_named(file: &Path) -> io::Result<Vec<u8>> {
    content(open_named(file)?, NAMED_BYTES)
}

/// Reads as [`read_named`] does, at most `limit` bytes. `None`: the file has not changed since `known` was its stamp.
pub fn read_changed(file: &Path, known: &mut Option<FileStamp>, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let opened = open_named(file)?;
    let found = Some(stamp(&opened.metadata()?));
    if *known == found {
        return Ok(None);
    }
    let content = content(opened, limit)?;
    *known = found;
    Ok(Some(content))
}

/// Reads text as [`read_named`] does.
pub fn read_named_text(file: &Path) -> io::Result<String> {
    text(read_named(file)?)
}

/// Reads text as [`read_named_text`] does, for a command that ends: a pipe, as of the shell's `<(…)`, is read until its
/// other end is closed.
pub fn read_given_text(file: &Path) -> io::Result<String> {
    let opened = open_named(file)?;
    if !opened.metadata()?.file_type().is_fifo() {
        return text(content(opened, NAMED_BYTES)?);
    }
    rustix::fs::fcntl_setfl(&opened, OFlags::empty())?;
    let written = limited(opened, NAMED_BYTES)?;
    if written.is_empty() {
        return Err(io::Error::other("nothing has been written to it"));
    }
    text(written)
}

fn open_named(file: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(file)
}

fn text(content: Vec<u8>) -> io::Result<String> {
    String::from_utf8(content)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("it is not UTF-8: {}", error.utf8_error())))
}

fn content(opened: File, limit: u64) -> io::Result<Vec<u8>> {
    if !opened.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    limited(opened, limit)
}

fn limited(opened: File, limit: u64) -> io::Result<Vec<u8>> {
    let size = opened.metadata()?.len();
    let mut content = Vec::with_capacity(usize::try_from(size.min(limit)).unwrap_or_default());
    if size > limit || opened.take(limit + 1).read_to_end(&mut content)? as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {limit} bytes")));
    }
    Ok(content)
}

/// Replaces a file, or a symbolic link in its place. A reader finds the previous text or this one, never a part.
pub fn replace(file: &Path, content: &[u8], mode: u32) -> io::Result<File> {
    // The root directory has no parent, and cannot be replaced.
    let directory = file.parent().ok_or(io::ErrorKind::IsADirectory)?;
    // The name of the new file is random, and an existing file is never opened.
    let mut next = tempfile::Builder::new().prefix(".podmeter-").tempfile_in(directory)?;
    next.as_file().set_permissions(Permissions::from_mode(mode))?;
    next.write_all(content)?;
    next.persist(file).map_err(|error| error.error)
}

/// The device and inode numbers: no other file has both while this one is open.
pub fn id(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// The stamp of a file, which differs after each write, and where another file took its place.
pub fn stamp(file: &Metadata) -> FileStamp {
    let (modified, changed) = ((file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec()));
    FileStamp { file: id(file), bytes: file.len(), modified, changed }
}

fn own(options: &mut OpenOptions, file: &Path) -> io::Result<File> {
    // Without NONBLOCK, opening a pipe waits for its other end.
    let opened = options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()).open(file)?;
    let (owner, user) = (opened.metadata()?.uid(), rustix::process::geteuid().as_raw());
    if owner != user {
        return Err(io::Error::other(format!("it belongs to uid {owner}, and podmeter runs as uid {user}; remove it")));
    }
    Ok(opened)
}

/// A path of `mountinfo`: the kernel writes space, tab, line feed and backslash as `\` and three octal digits.
pub fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| after.get(..3).and_then(octal)).flatten();
        plain.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    Cow::Owned(String::from_utf8_lossy(&plain).into_owned())
}

fn octal(digits: &[u8]) -> Option<u8> {
    let value = digits
        .iter()
        .try_fold(0_u16, |value, digit| (b'0'..=b'7').contains(digit).then(|| value * 8 + u16::from(digit - b'0')))?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const MODE: u32 = 0o640;

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (target, link) = (directory.path().join("precious"), directory.path().join("link"));
        symlink(&target, &link).unwrap();
        assert!(open(&link, MODE).is_err() && !target.exists(), "the target of the link is not created");
        std::fs::write(&target, "data").unwrap();
        assert!(open(&link, MODE).is_err() && read(&link, 9).is_err());
        assert!(open(&target, MODE).is_ok());
        assert_eq!(read(&target, 4).unwrap(), Some(b"data".to_vec()));
        replace(&link, b"text\n", MODE).unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "data");
        assert_eq!(std::fs::read_to_string(&link).unwrap(), "text\n");
    }

    #[test]
    fn what_is_no_file_of_the_limits_size_is_an_error_and_a_missing_file_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        assert_eq!(read(&file, 3).unwrap(), None);
        std::fs::write(&file, "data").unwrap();
        assert_eq!(read(&file, 3).unwrap_err().to_string(), "it has more than 3 bytes");
        assert!(read(directory.path(), 3).is_err());
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        for error in [read(&pipe, 3).unwrap_err(), read_named(&pipe).unwrap_err()] {
            assert_eq!(error.to_string(), "it is not a regular file");
        }
        let (null, sparse) = (Path::new("/dev/zero"), File::create(directory.path().join("sparse")).unwrap());
        assert_eq!(read_named(null).unwrap_err().to_string(), "it is not a regular file");
        sparse.set_len(4 << 30).unwrap();
        let error = read_named(&directory.path().join("sparse")).unwrap_err();
        assert_eq!(error.to_string(), "it has more than 4194304 bytes");
        std::fs::write(&file, b"caf\xe9").unwrap();
        assert!(read_named_text(&file).unwrap_err().to_string().starts_with("it is not UTF-8"));
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("health.json");
        replace(&file, b"a longer text\n", MODE).unwrap();
        replace(&file, b"text\n", MODE).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "text\n");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "no other file is left");
        assert!(replace(Path::new("/"), b"", MODE).is_err());
    }

    #[test]
    fn each_write_changes_the_stamp() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let mut before = None;
        for text in ["one", "two", "three"] {
            replace(&file, text.as_bytes(), MODE).unwrap();
            let now = Some(stamp(&std::fs::metadata(&file).unwrap()));
            assert_ne!(now, before);
            assert_eq!(now, Some(stamp(&std::fs::metadata(&file).unwrap())));
            before = now;
        }
    }

    #[test]
    fn octal_escapes() {
        for (text, plain) in [
            ("", ""),
            ("a\\040b", "a b"),
            ("\\134", "\\"),
            ("\\", "\\"),
            ("\\04", "\\04"),
            ("\\0400", " 0"),
            ("\\999", "\\999"),
            ("\\777", "\\777"),
            ("\\\\040", "\\ "),
        ] {
            assert_eq!(unescaped(text), plain, "{text}");
        }
    }
}
