//! The commands of the admin socket.
//!
//! In: a POST. Out: the result as JSON, once the agent has executed the command.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::post;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::responses::{JSON, api_problem, no_store};
use crate::domain::health::{OperatorOrder, OrderAction, OrderOutcome};
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
    /// The driver's commands; `None` without a driver.
    pub driver: Option<DriverCommands>,
    /// Executes an order about a device; completes when the resulting health is published.
    pub order: AdminCommand<OperatorOrder, OrderOutcome>,
}

#[derive(Clone)]
pub struct DriverCommands {
    /// Closes the driver for this time; completes within 30 s.
    pub release: AdminCommand<Duration, Released>,
    /// Starts to open it again; completes before it is open.
    pub resume: AdminCommand<(), ()>,
}

/// The body of `POST /mark`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MarkRequest {
    device: String,
    reason: String,
    /// How long the mark lasts, such as `1h 30m`.
    #[serde(default, with = "humantime_serde")]
    expiry: Option<Duration>,
}

/// The body of `POST /unmark` and `POST /clear-faults`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceCommand {
    device: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseRequest {
    #[serde(rename = "for", default, with = "humantime_serde")]
    duration: Option<Duration>,
}

/// The routes that change something. Only for a socket that its owner alone can open.
pub fn router(admin: Admin) -> Router {
    Router::new()
        .route("/release", post(release))
        .route("/resume", post(resume))
        .route("/mark", post(mark))
        .route("/unmark", post(|admin, body| of_device(admin, body, OrderAction::Unmark)))
        .route("/clear-faults", post(|admin, body| of_device(admin, body, OrderAction::ClearFaults)))
        .method_not_allowed_fallback(|| async { api_problem(StatusCode::METHOD_NOT_ALLOWED, "use POST") })
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .with_state(admin)
}

async fn release(State(admin): State<Admin>, body: Bytes) -> Result<Response, Response> {
    let driver = admin.driver.ok_or_else(no_driver)?;
    let duration = duration(&body).map_err(invalid)?;
    let released = (driver.release)(duration).await.map_err(unavailable)?;
    Ok(done(&serde_json::json!({
        "released": true,
        "since": released.since.unix,
        "until": released.until.unix,
    })))
}

async fn resume(State(admin): State<Admin>) -> Result<Response, Response> {
    let driver = admin.driver.ok_or_else(no_driver)?;
    (driver.resume)(()).await.map_err(unavailable)?;
    Ok(done(&serde_json::json!({"released": false})))
}

async fn mark(State(admin): State<Admin>, body: Bytes) -> Result<Response, Response> {
    let wanted = r#"{"device": "GPU-...", "reason": "...", "expiry": "1h 30m"}, without "expiry" for no end"#;
    let MarkRequest { device, reason, expiry } = parsed(&body, wanted).map_err(invalid)?;
    execute(&admin, OperatorOrder { device, action: OrderAction::Mark { reason, lasts: expiry } }).await
}

async fn of_device(State(admin): State<Admin>, body: Bytes, action: OrderAction) -> Result<Response, Response> {
    let DeviceCommand { device } = parsed(&body, r#"{"device": "GPU-..."}"#).map_err(invalid)?;
    execute(&admin, OperatorOrder { device, action }).await
}

async fn execute(admin: &Admin, order: OperatorOrder) -> Result<Response, Response> {
    let outcome = (admin.order)(order).await.map_err(invalid)?;
    Ok(done(&outcome))
}

/// The duration of a release: the body is empty, or `{"for": "10m"}`.
fn duration(body: &[u8]) -> Result<Duration, String> {
    let body = if body.is_empty() { b"{}" } else { body };
    let ReleaseRequest { duration } = parsed(body, r#"nothing, or {"for": "10m"}"#)?;
    let duration = duration.unwrap_or(DEFAULT_RELEASE);
    let is_permitted = (SHORTEST..=LONGEST).contains(&duration);
    is_permitted.then_some(duration).ok_or_else(|| "\"for\" must be between 1s and 24h".to_owned())
}

fn parsed<T: DeserializeOwned>(body: &[u8], wanted: &str) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("the body is not the expected JSON: {error}; send {wanted}"))
}

fn invalid(problem: String) -> Response {
    api_problem(StatusCode::BAD_REQUEST, &problem)
}

fn unavailable(problem: String) -> Response {
    api_problem(StatusCode::SERVICE_UNAVAILABLE, &problem)
}

fn done(response: &impl Serialize) -> Response {
    no_store(JSON, serde_json::to_string(response).expect("plain values are JSON"))
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
            ("10m", "is not the expected JSON"),
            (r#"{"four": "10m"}"#, "unknown field `four`"),
            (r#"{"for": 10}"#, "invalid type"),
            (r#"{"for": "ten"}"#, "expected a duration"),
            (r#"{"for": "0s"}"#, "between 1s and 24h"),
            (r#"{"for": "2days"}"#, "between 1s and 24h"),
        ] {
            let problem = duration(body.as_bytes()).unwrap_err();
            assert!(problem.contains(part), "{body}: {problem}");
        }
    }
}
