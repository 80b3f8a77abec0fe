//! `podmeter conformance`: the CNCF AI conformance requirements on accelerators, as far as a page of metrics shows them.
//!
//! Inputs: the URL of any exporter's page. Output: a `Report`, one line for each requirement: met, not met, or not to be
//! proved from a page. Does not use: the agent, the driver, the kubelet, Kubernetes' API. `accelerators` finds the
//! accelerators and quantities of a page, `requirements` has one row per requirement; both are pure.
//!
//! Sources: KAR-0059 and KAR-0049 in kubernetes-sigs/ai-conformance, and `AIConformance-1.36.yaml` in
//! cncf/k8s-ai-conformance, whose levels are used.

mod accelerators;
mod report;
mod requirements;
#[cfg(test)]
mod tests;

pub use report::{Level, Line, Report, Status};

use crate::client::{Answer, ClientError, HttpUrl, Target, scrape};

/// Of a URL without a path.
const USUAL_PATH: &str = "/metrics";

/// What was fetched, and how.
#[derive(Clone, Debug)]
pub struct Observation {
    pub url: String,
    pub is_https: bool,
    pub answer: Answer,
    pub anonymous: Anonymous,
}

/// Whether the page is there for a client without certificate and password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anonymous {
    Answered,
    /// With the reason.
    Refused(String),
}

/// Why there is no page, and the next step.
#[derive(Debug, thiserror::Error)]
pub enum Unfetched {
    #[error("{url} requires a password: give --user and --password-file")]
    Password { url: String },
    #[error("{url} responded {status}; is that the path of its page of metrics?")]
    Refused { url: String, status: String },
    #[error("{url} responded with more than 32 MiB")]
    TooLarge { url: String },
    #[error("{url} cannot be fetched: {error}")]
    Other { url: String, error: String },
}

/// Fetches the page, and again without the client's identity where `anonymous` is given.
pub async fn observe(mut url: HttpUrl, anonymous: Option<HttpUrl>) -> Result<Observation, Unfetched> {
    let path = if url.prefix.is_empty() { USUAL_PATH } else { "" };
    url.prefix.push_str(path);
    let (name, is_https) = (url.to_string(), url.is_https);
    let answer = scrape(&Target::Url(url), "").await.map_err(|error| unfetched(name.clone(), error))?;
    let anonymous = match anonymous {
        None => Anonymous::Answered,
        Some(url) => match scrape(&Target::Url(url), path).await {
            Ok(_) => Anonymous::Answered,
            Err(error) => Anonymous::Refused(unfetched(name.clone(), error).to_string()),
        },
    };
    Ok(Observation { url: name, is_https, answer, anonymous })
}

fn unfetched(url: String, error: ClientError) -> Unfetched {
    match error {
        ClientError::Unauthorized { had_password: false, .. } => Unfetched::Password { url },
        ClientError::Unauthorized { .. } => {
            Unfetched::Other { url, error: "it refuses this user or password".to_owned() }
        }
        ClientError::Refused { status, .. } => Unfetched::Refused { url, status },
        ClientError::TooLarge { .. } => Unfetched::TooLarge { url },
        ClientError::Unreachable { error, .. } => Unfetched::Other { url, error: error.to_string() },
        ClientError::Broken { error, .. } => Unfetched::Other { url, error },
        ClientError::Tls { problem, .. } => Unfetched::Other { url, error: problem },
        ClientError::Late { limit, .. } => {
            Unfetched::Other { url, error: format!("no response within {} s", limit.as_secs()) }
        }
        error => Unfetched::Other { url, error: error.to_string() },
    }
}

/// A pure function.
#[must_use]
pub fn judge(observation: &Observation) -> Report {
    requirements::report(observation)
}
