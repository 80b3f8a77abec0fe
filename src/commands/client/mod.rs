//! HTTP requests to a running agent.
//!
//! Inputs: where the agent is (its admin socket, a URL, or this machine) and a path. Outputs: the bytes of the response, or
//! the type of `api` in it. Does not contain: how a response is shown.

mod access;
mod condition;
mod request;
mod target;

pub use access::{Access, Certificates};
pub use condition::{NoCondition, condition, condition_in};
pub use request::{ClientError, get, post};
pub use target::{AgentTarget, DEFAULT_SOCKET, DEFAULT_URL, HttpUrl};

use serde::de::DeserializeOwned;

/// The JSON of a path, as one of the types in `api`.
pub async fn json<T: DeserializeOwned>(target: &AgentTarget, path: &str) -> Result<T, ClientError> {
    let body = get(target, path).await?;
    serde_json::from_slice(&body).map_err(|error| ClientError::NotOfAnAgent {
        target: target.to_string(),
        content: format!("something other than a snapshot ({error})"),
    })
}

#[cfg(test)]
mod tests;
