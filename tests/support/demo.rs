//! `podmeter demo` in a known directory.

use std::path::PathBuf;

use tempfile::TempDir;

use super::agent::Running;
use super::polling::until_true;

pub struct Demo {
    pub running: Running,
    directory: TempDir,
}

impl Demo {
    pub fn start(arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let all = [&["demo", "--listen", "127.0.0.1:0"], arguments].concat();
        let running = Running::start(&all, &[("TMPDIR", directory.path().to_owned())], None);
        Self { running, directory }
    }

    /// In place of `/var/lib/kubelet`; the admin socket and the simulated `/proc` are there too.
    pub fn root(&self) -> PathBuf {
        let mut entries = std::fs::read_dir(self.directory.path()).expect("readable");
        entries.next().expect("the demo has made its directory").expect("readable").path()
    }

    pub fn admin_socket(&self) -> PathBuf {
        self.root().join("podmeter.sock")
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.running.address)
    }

    /// Waits until it is ready and a container holds a device.
    pub fn until_held(&self) {
        self.running
            .until("busy seconds of a container", |page| page.count("podmeter_container_busy_seconds_total", &[]) > 0);
        until_true("readiness", || self.running.get("/-/ready").status == 200);
    }
}
