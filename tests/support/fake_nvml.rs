//! A fake driver library for one test: its own copy in its own folder, with its own data file beside it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use serde_json::Value;
use tempfile::TempDir;

const LIBRARY: &str = "libnvidia_ml_fake.so";
const RECORDER: &str = "fake-nvml-record";

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

    /// What `Nvml::builder().lib_path` takes.
    pub fn library_path(&self) -> PathBuf {
        self.folder().join("libnvidia-ml.so.1")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Seen by the library at its next call, at the latest 5 ms later.
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

    /// The data file that makes the fake answer as the machine that printed this `probe-nvml` JSON.
    #[allow(clippy::disallowed_methods, reason = "a test may start the recorder")]
    pub fn recorded(probe: &Path) -> Value {
        let recorder = built_library().with_file_name(RECORDER);
        let output = Command::new(recorder).arg(probe).output().expect("start the recorder");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("a data file is JSON")
    }

    fn state_path(&self) -> PathBuf {
        self.folder().join("fake-nvml.json")
    }

    fn stats_path(&self) -> PathBuf {
        self.folder().join("fake-nvml-stats.json")
    }
}

/// The library in the target folder of this test, built unless it is newer than its sources.
fn built_library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let test = std::env::current_exe().expect("the path of this test");
        let profile = test.ancestors().nth(2).expect("a test lies in <target>/<profile>/deps");
        let library = profile.join(LIBRARY);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-nvml");
        if modified(&library) > newest(&source) { library } else { build(profile.parent().unwrap_or(profile)) }
    })
}

#[allow(clippy::disallowed_methods, reason = "a test may start cargo")]
fn build(target: &Path) -> PathBuf {
    let output = Command::new(env!("CARGO"))
        .args(["build", "--package", "fake-nvml", "--message-format", "json-render-diagnostics", "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("start cargo");
    assert!(output.status.success(), "fake-nvml does not build:\n{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let files = messages.filter_map(|message| message["filenames"].as_array().cloned()).flatten();
    let mut paths = files.filter_map(|file| file.as_str().map(PathBuf::from));
    paths.find(|path| path.ends_with(LIBRARY)).expect("cargo built the library")
}

fn newest(path: &Path) -> Option<SystemTime> {
    let inside = fs::read_dir(path).into_iter().flatten().flatten();
    inside.map(|entry| newest(&entry.path())).chain([modified(path)]).max().flatten()
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|about| about.modified()).ok()
}
