//! HTTP requests to a running agent.
//!
//! Inputs: where the agent is (its admin socket, a URL, or this machine) and a path. Outputs: the bytes of the
//! response, or the type of `api` in it.

mod access;
mod condition;
mod request;
mod target;

pub use access::{Access, Certificates};
pub use condition::{NoCondition, condition, condition_in};
pub use request::{ClientError, at_each_address, get};
pub use target::{AgentTarget, DEFAULT_SOCKET, DEFAULT_URL, HttpUrl};

use serde::de::DeserializeOwned;

/// The JSON of a path, as one of the types in `api`.
pub async fn json<T: DeserializeOwned>(target: &AgentTarget, path: &str) -> Result<T, ClientError> {
    decoded(target, &get(target, path).await?)
}

/// The JSON of the response to a command with this body.
pub async fn command<T: DeserializeOwned>(target: &AgentTarget, path: &str, body: String) -> Result<T, ClientError> {
    decoded(target, &request::post(target, path, body).await?)
}

fn decoded<T: DeserializeOwned>(target: &AgentTarget, body: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(body).map_err(|error| ClientError::NotOfAnAgent {
        target: target.to_string(),
        content: format!("other JSON than expected ({error})"),
    })
}

#[cfg(test)]
mod tests;
