//! The state directory: created where it is missing, and refused where other users could change its contents.

use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Creates the directory where it is missing, for this user only. The error names the problem and the next step.
pub fn prepare(directory: &Path) -> Result<(), String> {
    let failed = |error: io::Error| {
        format!("{}: {error}; give --state-dir a directory that podmeter may write to", directory.display())
    };
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    let found = std::fs::metadata(directory).map_err(failed)?;
    check(&found, rustix::process::geteuid().as_raw()).map_err(|problem| format!("{}: {problem}", directory.display()))
}

fn check(directory: &Metadata, user: u32) -> Result<(), String> {
    let (owner, mode) = (directory.uid(), directory.mode());
    if owner != user {
        return Err(format!(
            "it belongs to uid {owner}, who could replace the journal, and podmeter runs as uid {user}; \
             chown it to {user}, or give --state-dir another directory"
        ));
    }
    // With the sticky bit other users can add files, and replace none.
    if mode & WRITABLE_BY_OTHERS != 0 && mode & STICKY == 0 {
        return Err(format!(
            "others may write to it (mode {:04o}) and could replace the journal; chmod go-w it, or give --state-dir another \
             directory",
            mode & 0o7777
        ));
    }
    Ok(())
}

/// The path with the symbolic links of its directory resolved: with SQLITE_OPEN_NOFOLLOW SQLite rejects them.
pub fn resolve(file: &Path) -> io::Result<PathBuf> {
    match file.parent().zip(file.file_name()) {
        Some((directory, name)) if directory != Path::new("") => Ok(directory.canonicalize()?.join(name)),
        _ => Ok(file.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_directory_that_others_may_change_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("deep/state");
        prepare(&directory).unwrap();
        assert_eq!(std::fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        for (mode, is_refused) in [(0o777, true), (0o770, true), (0o702, true), (0o755, false), (0o1777, false)] {
            std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode)).unwrap();
            let outcome = prepare(&directory);
            assert_eq!(outcome.is_err(), is_refused, "{mode:o}: {outcome:?}");
            assert!(outcome.err().is_none_or(|problem| problem.contains("chmod go-w")));
        }
        let found = std::fs::metadata(&directory).unwrap();
        let problem = check(&found, found.uid() + 1).unwrap_err();
        assert!(problem.contains(&format!("belongs to uid {}", found.uid())) && problem.contains("chown"), "{problem}");
    }
}
