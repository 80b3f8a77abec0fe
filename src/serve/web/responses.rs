//! Short responses that several routes have: texts, and the API's problem details (RFC 9457).

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};

pub(super) const JSON: &str = "application/json";

pub(super) fn no_store(content_type: &'static str, body: impl IntoResponse) -> Response {
    ([(CONTENT_TYPE, content_type), (CACHE_CONTROL, "no-store")], body).into_response()
}

pub(super) fn refuse(uri: &Uri, status: StatusCode, reason: &str) -> Response {
    let path = uri.path();
    if path == "/api" || path.starts_with("/api/") { api_problem(status, reason) } else { text(status, reason) }
}

pub(super) fn text(status: StatusCode, line: &str) -> Response {
    (status, no_store("text/plain; charset=utf-8", format!("{line}\n"))).into_response()
}

/// An error response with problem details (RFC 9457).
pub(super) fn api_problem(status: StatusCode, detail: &str) -> Response {
    let body = serde_json::json!({
        "type": "about:blank",
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": detail,
    });
    (status, [(CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
}
