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

/// The state of a driver whose calls cost what those of an H100 do; each of `gpus` is merged over its GPU.
pub fn h100(gpus: Vec<Value>) -> Value {
    let mut state: Value = serde_json::from_str(include_str!("../fake-nvml/profiles/h100.json")).expect("JSON");
    let one = state["gpus"][0].as_object().expect("a GPU").clone();
    let merged = gpus.into_iter().map(|gpu| one.clone().into_iter().chain(gpu.as_object().expect("a GPU").clone()));
    state["gpus"] = merged.map(Iterator::collect::<Value>).collect();
    state
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
            ("FAKE_NVML_CALLS", self.record_path()),
        ]
    }

    /// How often each call was made.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        let mut calls = BTreeMap::new();
        for ((call, _), times) in self.record() {
            let name = call.split('(').next().expect("a first part").to_owned();
            *calls.entry(name).or_default() += times.len() as u64;
        }
        calls
    }

    /// When each call was made on each GPU, in microseconds: by the call with its whole numbers, as `nvmlDeviceGetSamples(1)`,
    /// and by `0` of a GPU, `0/3/0` of a MIG device, `-` of a call on none.
    pub fn record(&self) -> BTreeMap<(String, String), Vec<u64>> {
        let text = fs::read_to_string(self.record_path()).unwrap_or_default();
        let mut record: BTreeMap<_, Vec<u64>> = BTreeMap::new();
        // What follows the last line's end is being written.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let mut fields = line.splitn(3, ' ');
            let mut field = || fields.next().expect("time, GPU and call").to_owned();
            let (time, gpu, call) = (field(), field(), field());
            record.entry((call, gpu)).or_default().push(time.parse().expect("microseconds"));
        }
        record
    }

    /// Of a process that has ended.
    pub fn forget_calls(&self) {
        let _ = fs::remove_file(self.record_path());
    }

    fn state_path(&self) -> PathBuf {
        self.folder().join("fake-nvml.json")
    }

    fn record_path(&self) -> PathBuf {
        self.folder().join("fake-nvml-calls")
    }
}

/// Cargo builds it with the tests, beside them.
fn built_library() -> PathBuf {
    std::env::current_exe().expect("the path of this test").with_file_name(LIBRARY)
}
