//! A real server that answers queries: Prometheus, or VictoriaMetrics.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::polling::{poll, until};

/// One running server. Dropping it kills it.
pub struct Prometheus {
    server: Child,
    pub address: String,
    _directory: TempDir,
}

/// Free when queried; other processes get another port.
pub fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Prometheus {
    pub fn start(configuration: &str) -> Self {
        Self::start_server("prometheus", configuration, |file, data, address| {
            vec![
                format!("--config.file={file}"),
                format!("--storage.tsdb.path={data}"),
                format!("--web.listen-address={address}"),
            ]
        })
    }

    /// VictoriaMetrics, which reads the same configuration. It shows what is younger than half a minute, too.
    pub fn start_victoria(configuration: &str) -> Self {
        Self::start_server("victoria-metrics", configuration, |file, data, address| {
            vec![
                format!("-promscrape.config={file}"),
                format!("-storageDataPath={data}"),
                format!("-httpListenAddr={address}"),
                "-search.latencyOffset=0s".to_owned(),
                "-search.disableCache".to_owned(),
            ]
        })
    }

    /// Another process may take the free port first: the server ends then, and is started on another.
    fn start_server(program: &str, configuration: &str, arguments: impl Fn(&str, &str, &str) -> Vec<String>) -> Self {
        until(&format!("{program} listens"), || {
            let mut started = Self::spawn(program, configuration, &arguments);
            let listens = poll(|| match started.server.try_wait().expect("a child") {
                Some(_) => Some(false),
                None => started.ask("query", "query=1").map(|_| true),
            });
            (listens == Some(true)).then_some(started)
        })
    }

    fn spawn(program: &str, configuration: &str, arguments: impl Fn(&str, &str, &str) -> Vec<String>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let [file, data] = ["configuration.yml", "data"].map(|name| directory.path().join(name));
        std::fs::write(&file, configuration).unwrap();
        let address = free_address();
        let server = Command::new(program)
            .args(arguments(&file.to_string_lossy(), &data.to_string_lossy(), &address))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{program} is installed (scripts/check does that): {error}"));
        Self { server, address, _directory: directory }
    }

    /// `None` while the server starts.
    pub fn ask(&self, route: &str, parameter: &str) -> Option<Value> {
        self.ask_with(route, &[parameter])
    }

    fn ask_with(&self, route: &str, parameters: &[&str]) -> Option<Value> {
        let output = Command::new("curl")
            .args(["-s", "-G", &format!("http://{}/api/v1/{route}", self.address)])
            .args(parameters.iter().flat_map(|parameter| ["--data-urlencode", parameter]))
            .output()
            .expect("curl is installed (scripts/check does that)");
        let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
        assert_ne!(answer["status"], "error", "{parameters:?}: {answer}");
        Some(answer)
    }

    /// The vector that a query gives, as (labels, value); empty while the server starts.
    pub fn query(&self, query: &str) -> Vec<(BTreeMap<String, String>, f64)> {
        self.vector(&[&format!("query={query}")])
    }

    /// The same at a Unix time.
    pub fn query_at(&self, query: &str, seconds: u64) -> Vec<(BTreeMap<String, String>, f64)> {
        self.vector(&[&format!("query={query}"), &format!("time={seconds}")])
    }

    fn vector(&self, parameters: &[&str]) -> Vec<(BTreeMap<String, String>, f64)> {
        let Some(answer) = self.ask_with("query", parameters) else { return vec![] };
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
