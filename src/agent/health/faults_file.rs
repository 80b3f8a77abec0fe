//! The faults of devices, kept from one agent to the next.
//!
//! In: the faults in force. Out: a file beside the admin socket, and the faults that the agent before has left in it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use super::kept_file::KeptFile;
use crate::domain::health::{GpuFaults, NodeFaults};
use crate::files;
use crate::tasks::Tasks;

const SCHEMA: u32 = 1;
/// Sixteen GPUs with seven MIG devices each, all with several faults, have less than half of it.
const MOST_BYTES: u64 = 256 << 10;
const RETRY: Duration = Duration::from_secs(10);
/// Differs after each boot of the node, and is the node's in containers too.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The file with the faults of devices that an agent keeps for the next one.
#[derive(Debug)]
pub struct FaultsFile {
    path: PathBuf,
    boot_id: Option<Arc<str>>,
    /// The faults in the file; `None`: the file must be written even without faults.
    kept: Option<NodeFaults>,
}

#[derive(Serialize)]
struct Document {
    schema: u32,
    boot_id: Option<Arc<str>>,
    faults: NodeFaults,
}

impl FaultsFile {
    /// Beside this socket, by its name: `podmeter.faults.json` for `podmeter.sock`.
    pub fn read(admin_socket: &Path) -> Self {
        let boot_id = std::fs::read_to_string(BOOT_ID).ok().map(|text| text.trim().into());
        Self::of_boot(admin_socket.with_extension("faults.json"), boot_id)
    }

    fn of_boot(path: PathBuf, boot_id: Option<Arc<str>>) -> Self {
        let kept = match read(&path, boot_id.as_deref()) {
            Ok(kept) => kept,
            Err(error) => {
                tracing::warn!(
                    file = %path.display(),
                    %error,
                    "the faults from before podmeter started cannot be read, so that GPUs with an XID and marked devices \
                     may be healthy: look for XIDs in the kernel's log, and mark such devices; the file is rewritten"
                );
                None
            }
        };
        Self { path, boot_id, kept }
    }

    pub fn faults(&self) -> NodeFaults {
        self.kept.clone().unwrap_or_default()
    }

    /// Writes the faults whenever they change. While that fails, every ten seconds.
    pub fn start(self, faults: watch::Receiver<NodeFaults>, tasks: &mut Tasks) {
        tasks.spawn("faults file", follow(self, faults));
    }
}

/// The faults that the file has of this boot. None where there is no file; `None`: they are of another boot.
fn read(path: &Path, boot_id: Option<&str>) -> Result<Option<NodeFaults>, String> {
    let Some(text) = files::read(path, MOST_BYTES).map_err(|error| error.to_string())? else {
        return Ok(Some(NodeFaults::default()));
    };
    let mut document: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if document["schema"] != SCHEMA {
        let schema = &document["schema"];
        return Err(format!("it has schema {schema}, of another version of podmeter, and not {SCHEMA}"));
    }
    if document["boot_id"].as_str() != boot_id {
        tracing::info!(file = %path.display(), "the node was rebooted: no fault from before is restored");
        return Ok(None);
    }
    let mut faults = document["faults"].take();
    // A damaged entry is of one GPU, and must not make it healthy.
    for (gpu, faults) in faults.get_mut("gpus").and_then(Value::as_object_mut).into_iter().flatten() {
        if let Err(error) = GpuFaults::deserialize(&*faults) {
            tracing::warn!(file = %path.display(), gpu, %error, "cannot read the stored faults of a GPU: the GPU is marked");
            *faults = serde_json::to_value(GpuFaults::unreadable()).expect("plain data");
        }
    }
    serde_json::from_value(faults).map(Some).map_err(|error| error.to_string())
}

async fn follow(file: FaultsFile, mut faults: watch::Receiver<NodeFaults>) {
    let FaultsFile { path, boot_id, kept: mut written } = file;
    let without = "XIDs and marks are forgotten when podmeter restarts";
    let mut kept_file = KeptFile::new(path, files::OWNER_ONLY, "the file of faults", without);
    loop {
        let current = faults.borrow_and_update().clone();
        if written.as_ref() != Some(&current) {
            let document = Document { schema: SCHEMA, boot_id: boot_id.clone(), faults: current };
            let text = serde_json::to_string(&document).expect("plain data") + "\n";
            written = kept_file.write(text).await.then_some(document.faults);
        }
        tokio::select! {
            changed = faults.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY), if kept_file.has_failed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(schema: u32, boot: &str) -> String {
        let faults = r#"{"driver_version":null,"gpus":{"GPU-1":{"xids":{"48":{"at":1.5,"whole":true,"mig_devices":[]}},
            "devices":[],"recovery_action":null,"lost":false,"energy_counter":7}}}"#;
        format!(r#"{{"schema":{schema},"boot_id":"{boot}","faults":{faults}}}"#)
    }

    #[test]
    fn a_file_of_another_boot_or_that_is_damaged_restores_nothing_and_is_rewritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("podmeter.faults.json");
        let read = || FaultsFile::of_boot(path.clone(), Some("this".into()));
        assert_eq!(read().kept, Some(NodeFaults::default()), "without a file");
        std::fs::write(&path, text(SCHEMA, "this")).unwrap();
        assert_eq!(read().faults().gpus.len(), 1);
        let too_long = text(SCHEMA, "this") + &" ".repeat(MOST_BYTES as usize);
        for damaged in [text(SCHEMA, "that"), text(2, "this"), too_long, "{".to_owned(), String::new()] {
            std::fs::write(&path, &damaged).unwrap();
            assert_eq!(read().kept, None, "{damaged:.40}");
        }
    }

    /// A file of a newer podmeter, with an unknown reason.
    #[test]
    fn a_gpu_whose_entry_is_damaged_is_marked_and_the_others_are_restored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("podmeter.faults.json");
        for damaged in
            [r#"{"devices":[{"mig":null,"since":1,"mark":null,"reasons":[{"reason":"new","code":0}]}]}"#, "7"]
        {
            let document = text(SCHEMA, "this").replace(r#""gpus":{"#, &format!(r#""gpus":{{"GPU-0":{damaged},"#));
            std::fs::write(&path, document).unwrap();
            let faults = FaultsFile::of_boot(path.clone(), Some("this".into())).faults();
            let mark = faults.gpus[&"GPU-0".into()].devices[0].mark.clone().unwrap();
            assert!(mark.until.is_none() && mark.reason.contains("cannot read"), "{mark:?}");
            assert_eq!(faults.gpus[&"GPU-1".into()].xids.len(), 1);
        }
    }

    /// The log named GPUs that were marked, of a file that was then discarded.
    #[test]
    fn of_another_schema_or_boot_no_entry_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("podmeter.faults.json");
        let of = |boot: &str, faults: &str| {
            std::fs::write(&path, format!(r#"{{"schema":1,"boot_id":"{boot}","faults":{faults}}}"#)).unwrap();
            read(&path, Some("this"))
        };
        assert_eq!(of("that", r#"{"gpus":7}"#), Ok(None));
        assert!(of("this", r#"{"gpus":7}"#).is_err());
        std::fs::write(&path, r#"{"schema":2,"boot_id":"this","faults":{"gpus":{"GPU-1":7},"new":1}}"#).unwrap();
        let problem = read(&path, Some("this")).unwrap_err();
        assert_eq!(problem, "it has schema 2, of another version of podmeter, and not 1");
    }

    #[tokio::test(start_paused = true)]
    async fn faults_are_written_when_they_change_and_again_after_a_failure() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("deep/podmeter.sock");
        let path = directory.path().join("deep/podmeter.faults.json");
        let mut document: Value = serde_json::from_str(&text(SCHEMA, "")).unwrap();
        let faults: NodeFaults = serde_json::from_value(document["faults"].take()).unwrap();
        let (publish, changes) = watch::channel(NodeFaults::default());
        let mut tasks = Tasks::default();
        FaultsFile::read(&socket).start(changes, &mut tasks);
        publish.send_replace(faults.clone());
        tokio::time::sleep(RETRY * 2).await;
        assert!(!path.exists(), "its directory is missing");
        std::fs::create_dir(directory.path().join("deep")).unwrap();
        let until = async |expected: &NodeFaults| {
            while FaultsFile::read(&socket).faults() != *expected {
                tokio::time::sleep(RETRY).await;
            }
        };
        until(&faults).await;
        publish.send_replace(NodeFaults::default());
        until(&NodeFaults::default()).await;
        assert!(path.exists());
        tasks.abort().await;
    }
}
