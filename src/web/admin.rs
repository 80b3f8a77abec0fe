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
    /// `None` where there is no driver to give orders to.
    pub driver: Option<DriverOrders>,
    /// To call a device unhealthy, or no longer; comes back when the verdict that follows is published.
    pub mark: Order<Marking, ()>,
}

#[derive(Clone)]
pub struct DriverOrders {
    /// To close the driver for so long; comes back within 30 s.
    pub release: Order<Duration, Released>,
    /// To open it again; does not wait until it is.
    pub resume: Order<(), ()>,
}

/// What an operator says of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marking {
    /// A UUID of a GPU or MIG device, or the index of a GPU.
    pub device: String,
    /// Why it is to be unhealthy, and for how long at most; `None`: the mark is taken away.
    pub mark: Option<(String, Option<Duration>)>,
}

/// Of `POST /mark`; `/unmark` takes the device alone.
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

/// The routes that change something. Only for a socket that nobody but its owner can open.
pub fn router(admin: Admin) -> Router {
    Router::new()
        .route("/release", post(release))
        .route("/resume", post(resume))
        .route("/mark", post(mark))
        .route("/unmark", post(unmark))
        .method_not_allowed_fallback(|| async { api_problem(StatusCode::METHOD_NOT_ALLOWED, "use POST here") })
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .layer(middleware::map_response(as_problem))
        .with_state(admin)
}

async fn release(State(admin): State<Admin>, body: Bytes) -> Response {
    let Some(driver) = admin.driver else { return no_driver() };
    let duration = match duration(&body) {
        Ok(duration) => duration,
        Err(problem) => return api_problem(StatusCode::BAD_REQUEST, &problem),
    };
    match (driver.release)(duration).await {
        Ok(released) => done(&serde_json::json!({
            "released": true,
            "since": released.since.unix,
            "until": released.until.unix,
        })),
        Err(problem) => api_problem(StatusCode::SERVICE_UNAVAILABLE, &problem),
    }
}

async fn resume(State(admin): State<Admin>) -> Response {
    let Some(driver) = admin.driver else { return no_driver() };
    match (driver.resume)(()).await {
        Ok(()) => done(&serde_json::json!({"released": false})),
        Err(problem) => api_problem(StatusCode::SERVICE_UNAVAILABLE, &problem),
    }
}

async fn mark(State(admin): State<Admin>, body: Bytes) -> Response {
    let marking = mark_request(&body).and_then(|request| {
        let reason = request.reason.ok_or("say why, in \"reason\"")?;
        let expiry = request.expiry.map(|text| {
            humantime::parse_duration(&text).map_err(|error| format!("expiry {text:?}: {error}; write it as 1h 30m"))
        });
        Ok(Marking { device: request.device, mark: Some((reason, expiry.transpose()?)) })
    });
    carry_out(&admin, marking).await
}

async fn unmark(State(admin): State<Admin>, body: Bytes) -> Response {
    let marking = mark_request(&body).and_then(|request| match (&request.reason, &request.expiry) {
        (None, None) => Ok(Marking { device: request.device, mark: None }),
        _ => Err("an unmark takes \"device\" alone".to_owned()),
    });
    carry_out(&admin, marking).await
}

fn mark_request(body: &[u8]) -> Result<MarkRequest, String> {
    serde_json::from_slice(body).map_err(|error| format!("the body must be JSON with \"device\": {error}"))
}

async fn carry_out(admin: &Admin, marking: Result<Marking, String>) -> Response {
    let outcome = match marking {
        Ok(marking) => {
            let answer = serde_json::json!({"device": marking.device, "marked": marking.mark.is_some()});
            (admin.mark)(marking).await.map(|()| answer)
        }
        Err(problem) => Err(problem),
    };
    match outcome {
        Ok(answer) => done(&answer),
        Err(problem) => api_problem(StatusCode::BAD_REQUEST, &problem),
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

fn no_driver() -> Response {
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
