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

use std::str::FromStr;

use crate::client::{Answer, ClientError, HttpUrl, InvalidUrl, Target, in_brackets, scrape};

/// Of a URL without a path.
const USUAL_PATH: &str = "/metrics";

/// The URL of a page of metrics. Unlike an agent's it may have a query, which begins with `?` or is empty.
#[derive(Clone, Debug)]
pub struct PageUrl {
    pub url: HttpUrl,
    pub query: String,
}

impl FromStr for PageUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let (url, query) = text.split_at(text.find('?').unwrap_or(text.len()));
        if query.contains(|letter: char| !letter.is_ascii_graphic()) {
            return Err(InvalidUrl::Form);
        }
        Ok(Self { url: url.parse()?, query: query.to_owned() })
    }
}

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
    /// It could not be fetched for another reason.
    Failed(String),
}

/// Why there is no page, and the next step.
#[derive(Debug, thiserror::Error)]
pub enum Unfetched {
    #[error("{url} requires a password: give --user and --password-file")]
    Password { url: String },
    #[error("{url} responded {status}{}; is that the path of its page of metrics?", in_brackets(text))]
    Refused { url: String, status: String, text: String },
    #[error("{url} responded with more than 32 MiB")]
    TooLarge { url: String },
    #[error("{url} cannot be fetched: {error}")]
    Other { url: String, error: String },
}

/// Fetches the page, and again without the client's identity where `anonymous` is given.
pub async fn observe(url: HttpUrl, query: &str, anonymous: Option<HttpUrl>) -> Result<Observation, Unfetched> {
    let path = format!("{}{query}", if url.prefix.is_empty() { USUAL_PATH } else { "" });
    let (name, is_https) = (format!("{url}{path}"), url.is_https);
    let answer = scrape(&Target::Url(url), &path).await.map_err(|error| unfetched(name.clone(), error))?;
    let anonymous = match anonymous {
        None => Anonymous::Answered,
        Some(url) => match scrape(&Target::Url(url), &path).await {
            Ok(_) => Anonymous::Answered,
            Err(error) => {
                let is_refusal = error.is_refusal_of_client();
                let reason = unfetched(name.clone(), error).to_string();
                if is_refusal { Anonymous::Refused(reason) } else { Anonymous::Failed(reason) }
            }
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
        ClientError::Refused { status, text, .. } => Unfetched::Refused { url, status, text },
        ClientError::TooLarge { .. } => Unfetched::TooLarge { url },
        ClientError::Unreachable { error, .. } => Unfetched::Other { url, error: error.to_string() },
        ClientError::Broken { error, .. } => {
            let other = if url.starts_with("https:") { "http" } else { "https" };
            Unfetched::Other { url, error: format!("{error}; does it serve {other}?") }
        }
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
