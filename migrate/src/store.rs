//! Reading of files, and their replacement: each as a whole, and the first after all are written beside.

use std::fs::{self, Metadata};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::files::Error;

/// Of a file. The largest dashboards have a few megabytes.
const MOST_BYTES: u64 = 64 << 20;

fn failed(path: &Path, message: impl Into<String>) -> Error {
    Error::File { file: name(path), message: message.into() }
}

/// The name of a file in messages.
pub fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

/// The text of a file, `-` being standard input.
pub fn read(path: &Path) -> Result<String, Error> {
    let mut bytes = vec![];
    let length = if path == Path::new("-") {
        io::stdin().lock().take(MOST_BYTES + 1).read_to_end(&mut bytes)
    } else {
        if path.is_dir() {
            return Err(failed(path, format!("a directory: give its files, for example {}/*.yaml", path.display())));
        }
        fs::File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
    };
    let length = length.map_err(|error| failed(path, format!("cannot be read: {error}")))?;
    if length as u64 > MOST_BYTES {
        return Err(failed(path, format!("larger than {} MiB", MOST_BYTES >> 20)));
    }
    text(path, bytes)
}

fn text(path: &Path, bytes: Vec<u8>) -> Result<String, Error> {
    let line = |end: usize, bytes: &[u8]| bytes[..end].iter().filter(|byte| **byte == b'\n').count() + 1;
    let at = |line, message: &str| Error::At { file: name(path), line, message: message.into() };
    let text = String::from_utf8(bytes)
        .map_err(|error| at(line(error.utf8_error().valid_up_to(), error.as_bytes()), "not UTF-8"))?;
    if let Some(nul) = text.find('\0') {
        return Err(at(line(nul, text.as_bytes()), "a NUL byte: not a text file"));
    }
    if text.trim_start_matches('\u{feff}').trim().is_empty() {
        return Err(failed(path, "empty"));
    }
    Ok(text)
}

/// A file that is written beside the one that it will replace.
struct Prepared {
    /// The file itself, where the name is a link.
    target: PathBuf,
    written: NamedTempFile,
}

/// Replaces files: all contents are on the disk before the first file is replaced.
pub fn replace(files: &[(&Path, &str)]) -> Result<(), Error> {
    let prepared = files.iter().map(|(path, text)| prepare(path, text)).collect::<Result<Vec<_>, _>>()?;
    for (done, file) in prepared.into_iter().enumerate() {
        let Prepared { target, written } = file;
        written.persist(&target).map_err(|error| {
            let message = format!("cannot be replaced: {}; {done} of {} files are replaced", error.error, files.len());
            failed(&target, message)
        })?;
        // The rename is in the directory. Some file systems have no sync of directories.
        if let Some(directory) = target.parent() {
            let _ = fs::File::open(directory).and_then(|directory| directory.sync_all());
        }
    }
    Ok(())
}

fn prepare(path: &Path, text: &str) -> Result<Prepared, Error> {
    let target = path.canonicalize().map_err(|error| failed(path, format!("cannot be written: {error}")))?;
    let metadata = target.metadata().map_err(|error| failed(path, format!("cannot be written: {error}")))?;
    if !metadata.is_file() {
        return Err(failed(path, "cannot be written: not a regular file"));
    }
    if metadata.permissions().readonly() {
        return Err(failed(path, "cannot be written: the file is read-only"));
    }
    let directory = target.parent().unwrap_or(Path::new("/"));
    let written = write_beside(directory, text, &metadata)
        .map_err(|error| failed(path, format!("cannot be written: no new file in {}: {error}", directory.display())))?;
    Ok(Prepared { target, written })
}

fn write_beside(directory: &Path, text: &str, metadata: &Metadata) -> io::Result<NamedTempFile> {
    let mut written = tempfile::Builder::new().prefix(".podmeter-migrate-").tempfile_in(directory)?;
    written.write_all(text.as_bytes())?;
    // Only root may give files away.
    let _ = fchown(written.as_file(), Some(metadata.uid()), Some(metadata.gid()));
    written.as_file().set_permissions(metadata.permissions())?;
    written.as_file().sync_all()?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that an interrupted run leaves behind has a name that tells whose it is.
    #[test]
    fn the_file_beside_is_of_this_program() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.yaml");
        fs::write(&path, "a").unwrap();
        let prepared = prepare(&path, "b").unwrap();
        let name = prepared.written.path().file_name().unwrap();
        assert!(name.to_str().unwrap().starts_with(".podmeter-migrate-"), "{name:?}");
    }
}
