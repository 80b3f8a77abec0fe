//! How often each call was made: a JSON object on disk, for the tests to read.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::clock::Micros;

/// How long a count may stay in memory, as long as calls keep coming.
const WRITE_MICROS: Micros = 100_000;

pub struct Stats {
    path: Option<PathBuf>,
    counts: BTreeMap<&'static str, u64>,
    dirty: bool,
    written: Option<Micros>,
}

impl Stats {
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { path, counts: BTreeMap::new(), dirty: false, written: None }
    }

    pub fn count(&mut self, call: &'static str) {
        *self.counts.entry(call).or_default() += 1;
        self.dirty = true;
    }

    pub fn write_if_due(&mut self, now: Micros) {
        if self.written.is_none_or(|before| now >= before + WRITE_MICROS) {
            self.write(now);
        }
    }

    /// Nothing is lost but counts when it fails: the fake must not fail for it.
    pub fn write(&mut self, now: Micros) {
        let Some(path) = self.path.as_ref().filter(|_| self.dirty) else { return };
        self.written = Some(now);
        let partial = path.with_extension("partial");
        let text = serde_json::to_string(&self.counts).unwrap_or_default();
        if fs::write(&partial, text).and_then(|()| fs::rename(&partial, path)).is_ok() {
            self.dirty = false;
        }
    }
}
