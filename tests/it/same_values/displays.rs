//! What an agent with a snapshot shows in each place.

use std::net::SocketAddr;
use std::sync::Arc;

use podmeter::clock::Clock;
use podmeter::domain::model::Snapshot;
use podmeter::journal::AllocationsResponse;
use podmeter::serve::metrics::dcgm::Generation;
use podmeter::serve::web::{
    Admin, CachedBodies, EventStreams, ListenAddress, Listener, Purpose, Scrapes, ServerSettings, WebState, start,
};
use podmeter::tasks::Tasks;
use serde_json::Value;
use tokio::sync::watch;

use crate::support::agent::{Page, ended, get};

use super::scene::Scene;

/// All that an agent with this state would show.
pub struct NodeDisplays {
    pub json: Value,
    pub metrics: Page,
    pub top: String,
    pub usage: Value,
    pub page: String,
}

pub async fn shown(scene: Scene, snapshot: Snapshot) -> NodeDisplays {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), Purpose::Public).await.unwrap();
    let ListenAddress::Tcp(address) = listener.address else { panic!("tcp") };
    let response = AllocationsResponse {
        node: "node-a".to_owned(),
        at: snapshot.at.unix.0,
        until: snapshot.at.unix.0,
        journal: true,
        allocations: scene.records.into_values().collect(),
        ..AllocationsResponse::default()
    };
    let response = serde_json::to_vec(&response).unwrap();
    let (snapshots, latest) = watch::channel(Arc::new(snapshot));
    let state = WebState {
        watch: Arc::new(|_| true),
        dcgm_generation: Generation::default(),
        grafana_url: None,
        snapshots: latest,
        scrapes: Scrapes::default(),
        clock: Clock::start(),
        healthy: Arc::new(|| Ok(())),
        ready: Arc::new(|| Ok(())),
        governance: Arc::new(|_, _| Err("none".to_owned())),
        allocations: Arc::new(move |_| Ok(response.clone())),
        admin: Admin { driver: None, order: Arc::new(|_| Box::pin(async { Err("none".to_owned()) })) },
        streams: EventStreams::default(),
        cached_bodies: CachedBodies::default(),
    };
    let (mut tasks, mut servers) = (Tasks::default(), Tasks::default());
    start(vec![listener], state, ServerSettings::default(), &mut tasks, &mut servers);
    let shown = tokio::task::spawn_blocking(move || ask(address)).await.unwrap();
    drop(snapshots);
    shown
}

fn ask(address: SocketAddr) -> NodeDisplays {
    let (url, address) = (format!("http://{address}"), address.to_string());
    let (code, top) = ended(&["top", "--once", "--url", &url]);
    assert_eq!(code, 0, "{top}");
    let (code, usage) = ended(&["usage", "--url", &url, "--since", "1h", "--by", "pod", "-o", "json"]);
    assert_eq!(code, 0, "{usage}");
    NodeDisplays {
        json: serde_json::from_str(&get(&address, "/api/v1/node").body).unwrap(),
        metrics: Page(get(&address, "/metrics").body),
        top,
        usage: serde_json::from_str(&usage).unwrap(),
        page: get(&address, "/").body,
    }
}

impl NodeDisplays {
    pub fn account(&self, pod: &str) -> &Value {
        let accounts = self.json["accounts"].as_array().unwrap();
        accounts.iter().find(|account| account["container"]["pod"] == pod).unwrap()
    }

    pub fn device(&self, uuid: &str) -> &Value {
        let is_it = |device: &&Value| *device["mig"].as_str().map_or(&device["gpu"], |_| &device["mig"]) == uuid;
        self.json["overview"]["devices"].as_array().unwrap().iter().find(is_it).unwrap()
    }

    pub fn usage(&self, pod: &str) -> &Value {
        self.usage["rows"].as_array().unwrap().iter().find(|row| row["pod"] == pod).unwrap()
    }

    pub fn of_pod(&self, metric: &str, pod: &str) -> Option<f64> {
        self.metrics.value(metric, &[&format!("pod=\"{pod}\"")])
    }

    /// The figure of this name on the page, in the row whose key is or begins with this.
    pub fn on_page(&self, key: &str, figure: &str) -> Option<f64> {
        let is_its = |row: &&str| row.strip_prefix(key).is_some_and(|rest| rest.starts_with(['"', ' ']));
        let row = self.page.split("data-key=\"").find(is_its).unwrap_or_else(|| panic!("no row {key}"));
        let element = row.split(&format!("data-figure=\"{figure}\"")).nth(1)?.split('>').next()?;
        element.split("data-value=\"").nth(1)?.split('"').next()?.parse().ok()
    }

    /// The cell of a container by its pod, or of a device by its UUID.
    pub fn cell(&self, key: &str, title: &str) -> Option<&str> {
        let header = self.top.lines().find(|line| line.starts_with("GPU "))?;
        let start = header.find(&format!(" {title} "))? + 1;
        let next = header[start..]
            .find(' ')
            .map(|end| start + end + header[start + end..].len() - header[start + end..].trim_start().len())?;
        let is_its = |line: &&str| line.ends_with(key) || line.split('/').nth(1) == Some(key);
        self.top.lines().find(is_its).map(|line| line[start..next].trim())
    }

    /// The containers below a device.
    pub fn holders(&self, uuid: &str) -> Vec<&str> {
        let below = self.top.lines().skip_while(|line| !line.ends_with(uuid)).skip(1);
        below.map_while(|line| line.split_whitespace().next().filter(|name| name.contains('/'))).collect()
    }
}
