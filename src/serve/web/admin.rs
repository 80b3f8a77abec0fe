//! The commands of the admin socket.
//!
//! In: a POST. Out: the result as JSON, once the agent has carried it out. Does not use: how that is done.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::post;
use serde::Deserialize;

use super::responses::{JSON, api_problem, no_store};
use crate::domain::model::Released;

/// How long the driver stays closed by default.
const DEFAULT_RELEASE: Duration = Duration::from_secs(10 * 60);
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
const BODY_BYTES: usize = 4 * 1024;

/// A command to the agent, done when the future completes; the error names the next step.
pub type AdminCommand<In, Out> =
    Arc<dyn Fn(In) -> Pin<Box<dyn Future<Output = Result<Out, String>> + Send>> + Send + Sync>;

/// The commands of the admin socket.
#[derive(Clone)]
pub struct Admin {
    /// `None` without a driver.
    pub driver: Option<DriverCommands>,
    /// Marks a device as unhealthy, or removes the mark; completes with its UUID when the resulting health is published.
    pub mark: AdminCommand<Marking, String>,
}

#[derive(Clone)]
pub struct DriverCommands {
    /// Closes the driver for this time; completes within 30 s.
    pub release: AdminCommand<Duration, Released>,
    /// Opens it again; completes before it is open.
    pub resume: AdminCommand<(), ()>,
}

/// An operator's mark on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marking {
    /// A UUID of a GPU or MIG device, or the index of a GPU that is present.
    pub device: String,
    /// Why it is unhealthy, and for how long at most; `None`: the mark is removed.
    pub mark: Option<(String, Option<Duration>)>,
}

/// The body of `POST /mark`; that of `/unmark` has `device` only.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MarkRequest {
    device: String,
    reason: Option<String>,
    /// `1h 30m`
    expiry: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseRequest {
    #[serde(rename = "for")]
    duration: Option<String>,
}

/// The routes that change something. Only for a socket that its owner alone can open.
pub fn router(admin: Admin) -> Router {
    Router::new()
        .route("/release", post(release))
        .route("/resume", post(resume))
        .route("/mark", post(mark))
        .route("/unmark", post(unmark))
        .method_not_allowed_fallback(|| async { api_problem(StatusCode::METHOD_NOT_ALLOWED, "use POST") })
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .with_state(admin)
}

async fn release(State(admin): State<Admin>, body: Bytes) -> Result<Response, Response> {
    let driver = admin.driver.ok_or_else(no_driver)?;
    let duration = duration(&body).map_err(|problem| api_problem(StatusCode::BAD_REQUEST, &problem))?;
    let released = (driver.release)(duration).await.map_err(|problem| unavailable(&problem))?;
    Ok(done(&serde_json::json!({
        "released": true,
        "since": released.since.unix,
        "until": released.until.unix,
    })))
}

async fn resume(State(admin): State<Admin>) -> Result<Response, Response> {
    let driver = admin.driver.ok_or_else(no_driver)?;
    (driver.resume)(()).await.map_err(|problem| unavailable(&problem))?;
    Ok(done(&serde_json::json!({"released": false})))
}

fn unavailable(problem: &str) -> Response {
    api_problem(StatusCode::SERVICE_UNAVAILABLE, problem)
}

async fn mark(State(admin): State<Admin>, body: Bytes) -> Response {
    let marking = mark_request(&body).and_then(|request| {
        let reason = request.reason.ok_or("\"reason\" is missing")?;
        let expiry = request.expiry.map(|text| {
            humantime::parse_duration(&text).map_err(|error| format!("expiry {text:?}: {error}; write it as 1h 30m"))
        });
        Ok(Marking { device: request.device, mark: Some((reason, expiry.transpose()?)) })
    });
    apply_marking(&admin, marking).await
}

async fn unmark(State(admin): State<Admin>, body: Bytes) -> Response {
    let marking = mark_request(&body).and_then(|request| match (&request.reason, &request.expiry) {
        (None, None) => Ok(Marking { device: request.device, mark: None }),
        _ => Err("the body of an unmark has \"device\" only".to_owned()),
    });
    apply_marking(&admin, marking).await
}

fn mark_request(body: &[u8]) -> Result<MarkRequest, String> {
    serde_json::from_slice(body).map_err(|error| format!("the body must be JSON with \"device\": {error}"))
}

async fn apply_marking(admin: &Admin, marking: Result<Marking, String>) -> Response {
    let outcome = async {
        let marking = marking?;
        let marked = marking.mark.is_some();
        (admin.mark)(marking).await.map(|device| serde_json::json!({"device": device, "marked": marked}))
    };
    match outcome.await {
        Ok(response) => done(&response),
        Err(problem) => api_problem(StatusCode::BAD_REQUEST, &problem),
    }
}

/// Nothing, or `{"for": "10m"}`.
fn duration(body: &[u8]) -> Result<Duration, String> {
    if body.is_empty() {
        return Ok(DEFAULT_RELEASE);
    }
    let wanted = r#"send nothing, or {"for": "10m"}"#;
    let request: ReleaseRequest =
        serde_json::from_slice(body).map_err(|error| format!("the body is invalid: {error}; {wanted}"))?;
    let Some(text) = request.duration else { return Ok(DEFAULT_RELEASE) };
    let duration = humantime::parse_duration(&text)
        .map_err(|error| format!("for: {text:?} is not a duration: {error}; {wanted}"))?;
    let is_permitted = (SHORTEST..=LONGEST).contains(&duration);
    is_permitted.then_some(duration).ok_or_else(|| format!("for: {text:?} is not between 1s and 24h"))
}

fn done(response: &serde_json::Value) -> Response {
    no_store(JSON, response.to_string())
}

fn no_driver() -> Response {
    api_problem(StatusCode::CONFLICT, "there is no driver to release: podmeter runs with --hardware none")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_a_duration_within_the_limits() {
        assert_eq!(duration(b""), Ok(DEFAULT_RELEASE));
        assert_eq!(duration(b"{}"), Ok(DEFAULT_RELEASE));
        assert_eq!(duration(br#"{"for": "90s"}"#), Ok(Duration::from_secs(90)));
        for (body, part) in [
            ("10m", "is invalid"),
            (r#"{"four": "10m"}"#, "unknown field `four`"),
            (r#"{"for": 10}"#, "invalid type"),
            (r#"{"for": "ten"}"#, "not a duration"),
            (r#"{"for": "0s"}"#, "between 1s and 24h"),
            (r#"{"for": "2days"}"#, "between 1s and 24h"),
        ] {
            let problem = duration(body.as_bytes()).unwrap_err();
            assert!(problem.contains(part), "{body}: {problem}");
        }
    }
}
