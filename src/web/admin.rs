use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Router, middleware};
use serde::Deserialize;

use super::routes::api_problem;
use crate::model::Released;

/// How long the driver stays closed when nobody says.
const FOR: Duration = Duration::from_secs(10 * 60);
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
const BODY_BYTES: usize = 4 * 1024;

/// An order to the agent, carried out when it comes back; the error says what to do.
pub type Order<In, Out> = Arc<dyn Fn(In) -> Pin<Box<dyn Future<Output = Result<Out, String>> + Send>> + Send + Sync>;

/// The orders of the admin socket.
#[derive(Clone)]
pub struct Admin {
    /// To close the driver for so long; comes back within 30 s.
    pub release: Order<Duration, Released>,
    /// To open it again; does not wait until it is.
    pub resume: Order<(), ()>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseRequest {
    #[serde(rename = "for")]
    duration: Option<String>,
}

/// The routes that change something. Only for a socket that nobody but its owner can open.
pub fn router(admin: Option<Admin>) -> Router {
    Router::new()
        .route("/release", post(release))
        .route("/resume", post(resume))
        .method_not_allowed_fallback(|| async { api_problem(StatusCode::METHOD_NOT_ALLOWED, "use POST here") })
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .layer(middleware::map_response(as_problem))
        .with_state(admin)
}

async fn release(State(admin): State<Option<Admin>>, body: Bytes) -> Response {
    let Some(admin) = admin else { return nothing_to_order() };
    let duration = match duration(&body) {
        Ok(duration) => duration,
        Err(problem) => return api_problem(StatusCode::BAD_REQUEST, &problem),
    };
    match (admin.release)(duration).await {
        Ok(released) => done(&serde_json::json!({
            "released": true,
            "since": released.since.unix,
            "until": released.until.unix,
        })),
        Err(problem) => api_problem(StatusCode::SERVICE_UNAVAILABLE, &problem),
    }
}

async fn resume(State(admin): State<Option<Admin>>) -> Response {
    let Some(admin) = admin else { return nothing_to_order() };
    match (admin.resume)(()).await {
        Ok(()) => done(&serde_json::json!({"released": false})),
        Err(problem) => api_problem(StatusCode::SERVICE_UNAVAILABLE, &problem),
    }
}

/// Nothing, or `{"for": "10m"}`.
fn duration(body: &[u8]) -> Result<Duration, String> {
    if body.is_empty() {
        return Ok(FOR);
    }
    let wanted = r#"send nothing, or {"for": "10m"}"#;
    let request: ReleaseRequest =
        serde_json::from_slice(body).map_err(|error| format!("the body is not understood: {error}; {wanted}"))?;
    let Some(text) = request.duration else { return Ok(FOR) };
    let duration =
        humantime::parse_duration(&text).map_err(|error| format!("for: {text:?} is no duration: {error}; {wanted}"))?;
    if (SHORTEST..=LONGEST).contains(&duration) {
        Ok(duration)
    } else {
        Err(format!("for: {text:?} is not between 1s and 24h"))
    }
}

fn done(answer: &serde_json::Value) -> Response {
    ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")], answer.to_string()).into_response()
}

fn nothing_to_order() -> Response {
    api_problem(StatusCode::CONFLICT, "there is no driver to let go of: podmeter runs with --hardware none")
}

/// A refusal by axum itself, such as of a body that is too long, in our form.
async fn as_problem(response: Response) -> Response {
    let status = response.status();
    let is_ours = response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().ends_with(b"json"));
    if is_ours || status.is_success() {
        response
    } else {
        api_problem(status, &format!("the request is not understood; the body may have {BODY_BYTES} bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_a_duration_within_reason() {
        assert_eq!(duration(b""), Ok(FOR));
        assert_eq!(duration(b"{}"), Ok(FOR));
        assert_eq!(duration(br#"{"for": "90s"}"#), Ok(Duration::from_secs(90)));
        for (body, part) in [
            ("10m", "not understood"),
            (r#"{"four": "10m"}"#, "unknown field `four`"),
            (r#"{"for": 10}"#, "invalid type"),
            (r#"{"for": "ten"}"#, "no duration"),
            (r#"{"for": "0s"}"#, "between 1s and 24h"),
            (r#"{"for": "2days"}"#, "between 1s and 24h"),
        ] {
            let problem = duration(body.as_bytes()).unwrap_err();
            assert!(problem.contains(part), "{body}: {problem}");
        }
    }
}
