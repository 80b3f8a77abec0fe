//! The responses of the agent that may run here, and the number of series on each of its listeners.

use serde_json::Value;

use super::DoctorSettings;
use crate::commands::client::{self, AgentTarget, ClientError};

/// The body of `/-/healthy`.
const HEALTHY: &[u8] = b"healthy\n";
/// A metric on every page of an agent.
const BUILD_INFO: &str = "podmeter_build_info";

/// The agent that may run here.
#[derive(Debug)]
pub enum ObservedAgent {
    /// No target is configured.
    NotConfigured,
    /// No agent answers: it does not run, or another program listens.
    Silent(ClientError),
    Responding(Box<AgentResponses>),
}

#[derive(Debug)]
pub struct AgentResponses {
    pub target: AgentTarget,
    /// The response to `/api/v1/record`.
    pub record: Result<Value, String>,
    /// The response to `/api/v1/node`.
    pub node: Result<Value, String>,
    /// The response to `/-/ready`; the error is its reason.
    pub ready: Result<(), String>,
    /// The number of series on `/metrics` of each listener.
    pub pages: Vec<(AgentTarget, Result<usize, String>)>,
    /// The listeners that need the credentials of the web configuration, which the doctor does not have.
    pub guarded: Vec<String>,
}

/// Queries the agent and scrapes it.
pub async fn observe_agent(settings: &DoctorSettings) -> ObservedAgent {
    let mut agent = find_agent(settings).await;
    if let ObservedAgent::Responding(answers) = &mut agent {
        scrape_listeners(answers).await;
    }
    agent
}

/// Queries the target; and the listeners without a target, or where a default target has no agent or only its owner may
/// open it.
async fn find_agent(settings: &DoctorSettings) -> ObservedAgent {
    let Some(target) = settings.agent() else {
        return ask_listeners(settings).await.unwrap_or(ObservedAgent::NotConfigured);
    };
    let Err(error) = client::get(&target, "/-/healthy").await else { return ask_agent(target).await };
    let may_be_elsewhere = error.is_no_agent() || error.is_forbidden();
    if may_be_elsewhere
        && !settings.agent_is_named()
        && let Some(agent) = ask_listeners(settings).await
    {
        return agent;
    }
    ObservedAgent::Silent(error)
}

/// Queries the first listener with an agent; a server with another answer is another program.
async fn ask_listeners(settings: &DoctorSettings) -> Option<ObservedAgent> {
    for target in settings.node.listen.iter().filter_map(|address| AgentTarget::of_listener(&address.to_string())) {
        if client::get(&target, "/-/healthy").await.is_ok_and(|body| body == HEALTHY) {
            return Some(ask_agent(target).await);
        }
    }
    None
}

async fn ask_agent(target: AgentTarget) -> ObservedAgent {
    let (record, node, ready) =
        tokio::join!(json(&target, "/api/v1/record"), json(&target, "/api/v1/node"), client::get(&target, "/-/ready"));
    let ready = ready.map(drop).map_err(|error| match error {
        ClientError::Refused { text, .. } => text,
        error => error.to_string(),
    });
    ObservedAgent::Responding(Box::new(AgentResponses { target, record, node, ready, pages: vec![], guarded: vec![] }))
}

async fn json(target: &AgentTarget, path: &str) -> Result<Value, String> {
    client::json(target, path).await.map_err(|error| error.to_string())
}

/// Scrapes the listeners in the record; for a target that is a URL, only that.
async fn scrape_listeners(answers: &mut AgentResponses) {
    let mut open = vec![];
    if let AgentTarget::Url(_) = answers.target {
        open.push(answers.target.clone());
    } else {
        let listeners = answers.record.as_ref().ok().and_then(|record| record["listeners"].as_array());
        for listener in
            listeners.into_iter().flatten().filter(|listener| listener["admin"] != true && listener["probes"] != true)
        {
            let Some(address) = listener["address"].as_str() else { continue };
            match listener["guarded"] == true {
                true => answers.guarded.push(address.to_owned()),
                false => open.extend(AgentTarget::of_listener(address)),
            }
        }
    }
    for target in open {
        let page = client::get(&target, "/metrics").await.map_err(|error| error.to_string());
        answers.pages.push((target, page.and_then(|page| series(&String::from_utf8_lossy(&page)))));
    }
}

/// The number of series on a page of an agent's metrics in text 0.0.4.
fn series(page: &str) -> Result<usize, String> {
    if !page.ends_with('\n') {
        return Err("it does not end in a line feed: it is truncated".to_owned());
    }
    if !page.lines().any(|line| line.starts_with(BUILD_INFO)) {
        return Err(format!("it has no {BUILD_INFO}: another program listens there"));
    }
    Ok(page.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_ours_is_counted_and_another_is_refused() {
        let page = "# TYPE podmeter_build_info gauge\npodmeter_build_info{version=\"1\"} 1\n# TYPE x gauge\nx{a=\"1\"} 3\nx 4\n";
        assert_eq!(series(page), Ok(3));
        assert!(series("up 1\n").unwrap_err().contains("another program"));
        assert!(series(page.trim_end()).unwrap_err().contains("truncated"));
    }
}
