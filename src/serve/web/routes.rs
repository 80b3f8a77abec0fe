//! The routes of the page, the metrics, the API and the probes.
//!
//! In: a request and the last snapshot. Out: a response. Does not use: connections, TLS, passwords.

use std::collections::BTreeSet;
use std::fmt::Display;

use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tokio::sync::Semaphore;
use tracing::{error, warn};

use super::body::{BodyKey, BodyWriter, Coding, StoredBody};
use super::page::{self, NodePage, View, detail};
use super::responses::{JSON, api_problem, no_store, refuse, text};
use super::state::{ByAdminSocket, GovernanceRequest, WebState};
use super::{negotiation, streams};
use crate::serve::api::{HistoryResponse, NodeCondition};
use crate::serve::metrics::{self, Format};

/// Limits simultaneous reads of the journal, for all clients together: each has some megabytes and waits for the disk
/// on a blocking thread (`server`).
pub(super) static JOURNAL_READS: Semaphore = Semaphore::const_new(2);

/// The routes for clients. Only the page's links and script request `/detail` and `/live`.
const ROUTES: &str = "/  /metrics  /metrics/dcgm  /api/v1/node  /api/v1/health  /api/v1/record  /api/v1/allocations  \
                      /api/v1/history  /api/v1/stream  /-/healthy  /-/ready";

/// The routes of the page, the metrics, the API and the probes. None changes anything but the count of scrapes.
pub fn router(state: WebState) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/detail", get(detail))
        .route("/metrics", get(metrics))
        .route("/metrics/dcgm", get(dcgm))
        .route("/api/v1/node", get(node))
        .route("/api/v1/health", get(health))
        .route("/api/v1/record", get(record))
        .route("/api/v1/history", get(history))
        .route("/api/v1/stream", get(streams::node_events))
        .route("/live", get(streams::page_events))
        .route("/api/v1/allocations", get(allocations))
        .route("/-/healthy", get(healthy))
        .route("/-/ready", get(ready))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .with_state(state)
}

/// The routes of the probe listener.
pub(super) fn probes(state: WebState) -> Router {
    Router::new()
        .route("/-/healthy", get(healthy))
        .route("/-/ready", get(ready))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(|| async { text(StatusCode::NOT_FOUND, "this listener serves /-/healthy and /-/ready only") })
        .with_state(state)
}

async fn metrics(
    State(state): State<WebState>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Response> {
    let scrapes = state.scrapes.clone();
    let response = exposition(state, &uri, negotiation::format(&headers), negotiation::coding(&headers)).await?;
    if method == Method::GET {
        scrapes.count_scrape();
    }
    Ok(response)
}

/// Serves text 0.0.4 only, as dcgm-exporter does: its counters have no valid names in the other formats.
async fn dcgm(State(state): State<WebState>, uri: Uri, headers: HeaderMap) -> Result<Response, Response> {
    let generation = match uri.query().filter(|query| !query.is_empty()) {
        None => Some(state.dcgm_generation),
        Some(query) => query.strip_prefix("generation=").and_then(|value| value.parse().ok()),
    };
    let expected = "the query must be generation=4.8, generation=4.9 or generation=both";
    let generation = generation.ok_or_else(|| text(StatusCode::BAD_REQUEST, expected))?;
    exposition(state, &uri, Format::Dcgm(generation), negotiation::coding(&headers)).await
}

async fn exposition(state: WebState, uri: &Uri, format: Format, coding: Coding) -> Result<Response, Response> {
    let began = state.clock.now();
    let snapshot = state.snapshot();
    let made = state.cached_bodies.get(BodyKey::Metrics(format, coding, snapshot.sequence), move || {
        let mut body = BodyWriter::new(coding);
        let dropped = metrics::write(&snapshot, format, &mut body).expect("writing to memory does not fail");
        warn_of_dropped(format, dropped);
        body.finish()
    });
    let body = made.await.map_err(|problem| defect(uri, &problem))?;
    state.scrapes.record_duration(state.clock.now().monotonic.since(began.monotonic));
    let mut response = no_store(negotiation::content_type(format), body);
    let headers = response.headers_mut();
    headers.insert(VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    if coding == Coding::Gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(response)
}

/// Logs one warning for each format, until its pages have all allocations again.
fn warn_of_dropped(format: Format, allocations: usize) {
    static DROPPED: Mutex<BTreeSet<Format>> = Mutex::new(BTreeSet::new());
    let mut dropped = DROPPED.lock();
    if allocations == 0 {
        dropped.remove(&format);
    } else if dropped.insert(format) {
        warn!(?format, allocations, "a page lacks allocations over the series limit; raise --series-limit");
    }
}

/// Calls `make` on a blocking thread. A panic is a defect, reported to the client.
async fn rendered<T: Send + 'static>(uri: &Uri, make: impl FnOnce() -> T + Send + 'static) -> Result<T, Response> {
    tokio::task::spawn_blocking(make).await.map_err(|problem| defect(uri, &problem))
}

fn defect(uri: &Uri, problem: &dyn Display) -> Response {
    error!(%problem, path = uri.path(), "a response could not be made; please report this");
    refuse(uri, StatusCode::INTERNAL_SERVER_ERROR, "the response could not be made; please report this")
}

async fn index(State(state): State<WebState>, uri: Uri) -> Result<Response, Response> {
    let view = View::parse(uri.query().unwrap_or_default());
    let view = view.map_err(|problem| refuse(&uri, StatusCode::BAD_REQUEST, &problem))?;
    let (snapshot, now, not_ready) = (state.snapshot(), state.clock.now(), (state.ready)().err());
    let history = state.streams.history();
    let second = now.monotonic.as_duration().as_secs();
    let key = BodyKey::Page {
        sequence: snapshot.sequence,
        history: history.at().monotonic,
        second,
        not_ready: not_ready.clone(),
        view: view.clone(),
    };
    // The number of other views is not limited.
    let is_cached = view.filter.is_empty() && view.from == 0;
    let page = move || {
        StoredBody::from_text(NodePage { snapshot: &snapshot, history: &history, now, not_ready, view }.whole())
    };
    let made = match is_cached {
        true => state.cached_bodies.get(key, page).await.map_err(|problem| defect(&uri, &problem)),
        false => rendered(&uri, page).await,
    };
    made.map(document)
}

/// The metrics and events of one row of the page.
async fn detail(State(state): State<WebState>, uri: Uri) -> Result<Response, Response> {
    let key = uri.query().and_then(|query| query.strip_prefix("key=")).unwrap_or_default();
    let key = percent_decode_str(key).decode_utf8_lossy().into_owned();
    let (snapshot, history) = (state.snapshot(), state.streams.history());
    let page = rendered(&uri, move || {
        detail::page(&snapshot, &history, state.grafana_url.as_ref(), &key).map(StoredBody::from_text)
    })
    .await?;
    let expected = "the node has no such device; key must be a UUID, or container and UUID";
    page.map(document).ok_or_else(|| text(StatusCode::NOT_FOUND, expected))
}

fn document(body: StoredBody) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, page::CONTENT_SECURITY_POLICY.as_str()),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, body).into_response()
}

async fn node(State(state): State<WebState>, uri: Uri) -> Result<Response, Response> {
    state.streams.record_reader(state.clock.now().monotonic);
    let snapshot = state.snapshot();
    let key = BodyKey::Node(snapshot.sequence);
    let made = state.cached_bodies.get(key, move || json(&*snapshot)).await;
    made.map(|body| no_store(JSON, body)).map_err(|problem| defect(&uri, &problem))
}

/// The points of the last minutes, and the events.
async fn history(State(state): State<WebState>, uri: Uri) -> Result<Response, Response> {
    let history = state.streams.history();
    let key = BodyKey::History(history.at().monotonic);
    let made = state.cached_bodies.get(key, move || json(&HistoryResponse::from(&*history))).await;
    made.map(|body| no_store(JSON, body)).map_err(|problem| defect(&uri, &problem))
}

fn json(value: &impl Serialize) -> StoredBody {
    let mut body = BodyWriter::new(Coding::Identity);
    serde_json::to_writer(&mut body, value).expect("keys are strings, and writing to memory does not fail");
    body.finish()
}

async fn health(State(state): State<WebState>) -> Response {
    no_store(JSON, NodeCondition::assess(&state.snapshot(), state.clock.now()).json())
}

async fn record(
    State(state): State<WebState>,
    admin: Option<Extension<ByAdminSocket>>,
    uri: Uri,
) -> Result<Response, Response> {
    let (yaml, kind) = match uri.query() {
        None | Some("" | "output=json") => (false, JSON),
        Some("output=yaml") => (true, "application/yaml"),
        Some(_) => return Err(api_problem(StatusCode::BAD_REQUEST, "the query must be output=json or output=yaml")),
    };
    let request = GovernanceRequest { yaml, is_admin: admin.is_some() };
    let snapshot = state.snapshot();
    let written = rendered(&uri, move || (state.governance)(&snapshot, request).map(StoredBody::from_text)).await?;
    written.map(|text| no_store(kind, text)).map_err(|problem| defect(&uri, &problem))
}

async fn allocations(State(state): State<WebState>, uri: Uri) -> Result<Response, Response> {
    let permit = JOURNAL_READS.acquire().await.expect("the semaphore is never closed");
    let query = uri.query().unwrap_or_default().to_owned();
    // The permit is in the closure: a client that disconnects does not free it.
    let read = move || (permit, (state.allocations)(&query).map(StoredBody::from_text));
    let (_permit, read) = rendered(&uri, read).await?;
    read.map(|body| no_store(JSON, body)).map_err(|problem| api_problem(StatusCode::BAD_REQUEST, &problem))
}

async fn healthy(State(state): State<WebState>) -> Response {
    probe((state.healthy)(), "healthy")
}

async fn ready(State(state): State<WebState>) -> Response {
    probe((state.ready)(), "ready")
}

fn probe(outcome: Result<(), String>, success: &str) -> Response {
    match outcome {
        Ok(()) => text(StatusCode::OK, success),
        Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, &reason),
    }
}

async fn not_found(request: Request) -> Response {
    refuse(request.uri(), StatusCode::NOT_FOUND, &format!("no such path; there are {ROUTES}"))
}

async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    refuse(&uri, StatusCode::METHOD_NOT_ALLOWED, &format!("{method} is not allowed; use GET or HEAD"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_defect_is_a_problem_document_of_the_api_only() {
        for (path, content_type) in [
            ("/", "text/plain; charset=utf-8"),
            ("/metrics?a=b", "text/plain; charset=utf-8"),
            ("/api/v1/node", "application/problem+json"),
        ] {
            let response = defect(&Uri::from_static(path), &"for a test");
            assert_eq!(
                (response.status().as_u16(), &response.headers()[CONTENT_TYPE]),
                (500, &content_type.parse().unwrap())
            );
        }
    }
}
