//! HTTP requests to a running agent.
//!
//! Inputs: where the agent is (its admin socket or a URL) and a path. Outputs: the bytes of the response, the node or
//! the page of metrics in it. Does not use: terminals, tables, or the agent's own types: agents of other versions must be readable too.

mod access;
mod condition;
mod node;
mod page;
mod request;
mod target;

pub use access::{Access, Certificates, InvalidAccess};
pub use condition::{
    CONDITION_SCHEMA, Condition, ConditionDevice, ConditionReason, NoCondition, condition, condition_in,
};
pub use node::*;
pub use page::{Page, Sample};
pub use request::{ClientError, get, post};
pub use target::{DEFAULT_SOCKET, DEFAULT_URL, HttpUrl, Target};

use serde::de::DeserializeOwned;

/// The snapshot of `/api/v1/node`.
pub async fn node(target: &Target) -> Result<Node, ClientError> {
    json(target, "/api/v1/node").await
}

/// The points of `/api/v1/history`.
pub async fn history(target: &Target) -> Result<History, ClientError> {
    json(target, "/api/v1/history").await
}

async fn json<T: DeserializeOwned>(target: &Target, path: &str) -> Result<T, ClientError> {
    let body = get(target, path).await?;
    serde_json::from_slice(&body)
        .map_err(|error| ClientError::NotASnapshot { target: target.to_string(), error: error.to_string() })
}

#[cfg(test)]
mod tests;
