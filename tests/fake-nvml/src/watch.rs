//! The path of the data file, and when it is read again.
//!
//! Out: the last good machine and the moment the file was written. A broken or half-written file changes nothing.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::clock::{self, Micros};
use crate::state::Machine;

pub struct Watch {
    path: PathBuf,
    seen: Option<Seen>,
    /// The file is there but no machine was ever read from it.
    pub broken: bool,
    pub machine: Option<Arc<Machine>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    modified: (i64, i64),
    size: u64,
    inode: u64,
}

/// A file that was read again.
pub struct Fresh {
    pub machine: Arc<Machine>,
    /// When it was written, as far as its time stamp is plausible.
    pub written: Micros,
}

impl Watch {
    pub fn new(path: PathBuf) -> Self {
        Self { path, seen: None, broken: false, machine: None }
    }

    /// At every call: a change that a test makes applies to the next call.
    pub fn refresh(&mut self) -> Option<Fresh> {
        let about = fs::metadata(&self.path).ok()?;
        let seen = Seen { modified: (about.mtime(), about.mtime_nsec()), size: about.size(), inode: about.ino() };
        if self.seen == Some(seen) {
            return None;
        }
        let text = fs::read_to_string(&self.path).ok()?;
        self.seen = Some(seen);
        match Machine::parse(&text) {
            Ok(machine) => {
                let machine = Arc::new(machine);
                self.machine = Some(Arc::clone(&machine));
                Some(Fresh { machine, written: clock::at_wall_clock(seen.modified.0, seen.modified.1) })
            }
            Err(error) => {
                eprintln!("fake-nvml: {} is not read, the state stays: {error}", self.path.display());
                self.broken = self.machine.is_none();
                None
            }
        }
    }
}

/// The data file and the record of calls. Each has its variable; without them they are beside the loaded library.
pub fn paths() -> (PathBuf, Option<PathBuf>) {
    let own = own_folder();
    let beside = |name| own.as_deref().map(|folder: &Path| folder.join(name));
    let state = std::env::var_os("FAKE_NVML_STATE").map(PathBuf::from);
    let calls = std::env::var_os("FAKE_NVML_CALLS").map(PathBuf::from);
    let calls = calls.or_else(|| if state.is_none() { beside("fake-nvml-calls") } else { None });
    (state.or_else(|| beside("fake-nvml.json")).unwrap_or_default(), calls)
}

/// The folder that this library was loaded from, by the mapping that holds one of its functions.
fn own_folder() -> Option<PathBuf> {
    let address = own_folder as fn() -> Option<PathBuf> as usize;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let bound = |text: &str| usize::from_str_radix(text, 16).ok();
        range.is_some_and(|(from, to)| {
            bound(from).is_some_and(|from| from <= address) && bound(to).is_some_and(|to| address < to)
        })
    })?;
    let path = &line[line.find('/')?..];
    Some(Path::new(path).parent()?.to_path_buf())
}
