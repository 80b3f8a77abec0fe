//! A real Prometheus server.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::polling::poll;

/// One running server. Dropping it kills it.
pub struct Prometheus {
    server: Child,
    address: String,
    _directory: TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Prometheus {
    pub fn start(configuration: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("prometheus.yml");
        std::fs::write(&file, configuration).unwrap();
        // Free when queried; other processes get another port.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let server = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus is installed (scripts/check does that)");
        Self { server, address, _directory: directory }
    }

    /// `None` while the server starts.
    pub fn ask(&self, route: &str, parameter: &str) -> Option<Value> {
        let output = Command::new("curl")
            .args(["-s", "-G", &format!("http://{}/api/v1/{route}", self.address)])
            .args(["--data-urlencode", parameter])
            .output()
            .expect("curl is installed (scripts/check does that)");
        let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
        assert_ne!(answer["status"], "error", "{parameter}: {answer}");
        Some(answer)
    }

    /// The vector that a query gives, as (labels, value); empty while the server starts.
    pub fn query(&self, query: &str) -> Vec<(BTreeMap<String, String>, f64)> {
        let Some(answer) = self.ask("query", &format!("query={query}")) else { return vec![] };
        let result = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        let row = |row: Value| {
            let labels = serde_json::from_value(row["metric"].clone()).unwrap();
            (labels, row["value"][1].as_str().unwrap().parse().unwrap())
        };
        result.into_iter().map(row).collect()
    }

    pub fn scalar(&self, query: &str) -> Option<f64> {
        self.query(query).first().map(|(_, value)| *value)
    }

    pub fn until(&self, query: &str, condition: impl Fn(f64) -> bool) {
        let becomes = poll(|| self.scalar(query).filter(|value| condition(*value)));
        assert!(becomes.is_some(), "never: {query}, now {:?}", self.query(query));
    }
}
