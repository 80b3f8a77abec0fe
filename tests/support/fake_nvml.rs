//! A fake driver library for one test: its own copy in its own folder, with its own data file beside it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

const LIBRARY: &str = "libnvidia_ml_fake.so";

/// Dropping it removes the folder; libraries loaded from it continue with the last state.
pub struct FakeNvml {
    folder: TempDir,
}

impl FakeNvml {
    /// A folder with `libnvidia-ml.so.1` and the given state.
    pub fn start(state: Value) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fake = Self { folder };
        fs::copy(built_library(), fake.library_path()).expect("copy the fake library");
        fake.set(state);
        fake
    }

    /// The library itself.
    pub fn library_path(&self) -> PathBuf {
        self.folder().join("libnvidia-ml.so.1")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Applies to the library's next call.
    pub fn set(&self, state: Value) {
        let partial = self.folder().join("fake-nvml.json.partial");
        fs::write(&partial, state.to_string()).expect("write the state");
        fs::rename(partial, self.state_path()).expect("put the state in place");
    }

    pub fn update(&self, change: impl FnOnce(&mut Value)) {
        let text = fs::read_to_string(self.state_path()).expect("read the state");
        let mut state = serde_json::from_str(&text).expect("the state is JSON");
        change(&mut state);
        self.set(state);
    }

    /// For a process started with these, the library is the system's driver.
    pub fn env(&self) -> Vec<(&'static str, PathBuf)> {
        vec![
            ("LD_LIBRARY_PATH", self.folder().to_owned()),
            ("FAKE_NVML_STATE", self.state_path()),
            ("FAKE_NVML_STATS", self.stats_path()),
        ]
    }

    /// How often each call was made, some 100 ms ago; exact after nvmlShutdown.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        let text = fs::read_to_string(self.stats_path()).unwrap_or_else(|_| "{}".to_owned());
        serde_json::from_str(&text).expect("the counts are JSON")
    }

    /// Of a process that has ended.
    pub fn forget_calls(&self) {
        let _ = fs::remove_file(self.stats_path());
    }

    fn state_path(&self) -> PathBuf {
        self.folder().join("fake-nvml.json")
    }

    fn stats_path(&self) -> PathBuf {
        self.folder().join("fake-nvml-stats.json")
    }
}

/// Cargo builds it with the tests, beside them.
fn built_library() -> PathBuf {
    std::env::current_exe().expect("the path of this test").with_file_name(LIBRARY)
}
