use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use tokio::sync::watch;
use tokio::task::JoinError;
use tracing::error;

use super::answer::Answer;
use super::negotiation::{self, Choice};
use super::pieces::{PieceMakers, PieceStream, Pieces};
use super::{Admin, Live, ScrapeDurations, live, page as live_page};
use crate::clock::Clock;
use crate::metrics::{Coding, Format, PageError, Pages};
use crate::model::{Moment, Snapshot};

/// A question to the agent: `Err` with the reason as text. Asked on each request, so it must not wait.
pub type Probe = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// How a governance record is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRequest {
    /// In YAML, and not in JSON.
    pub yaml: bool,
    /// Over a socket that nobody but its owner can open.
    pub private: bool,
}

/// Writes the governance record of a snapshot. May read files, so it is not called on the runtime's own threads.
pub type RecordSource = Arc<dyn Fn(&Snapshot, RecordRequest) -> Result<String, String> + Send + Sync>;

/// Takes the query string of `/api/v1/allocations`: the error says what is wrong with that. What makes the pieces of the
/// answer, as JSON, reads files, so it is not called on the runtime's own threads either.
pub type AllocationSource = Arc<dyn Fn(&str) -> Result<Pieces, String> + Send + Sync>;

/// Marks requests that came over a socket that nobody but its owner can open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Private;

/// What the routes read.
#[derive(Clone)]
pub struct WebState {
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    pub pages: Arc<Pages>,
    pub scrapes: ScrapeDurations,
    pub clock: Clock,
    /// The process and its supervisor live; never asks about a GPU.
    pub healthy: Probe,
    /// A first snapshot is published, and the plugin's resources are registered or known to be absent.
    pub ready: Probe,
    pub record: RecordSource,
    pub allocations: AllocationSource,
    /// What the admin socket may order.
    pub admin: Admin,
    /// The last minutes, and who listens to what is new.
    pub live: Live,
    pub answers: Answers,
}

/// What all who ask for it share. One for all servers.
#[derive(Clone, Default)]
pub struct Answers(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// By the snapshot, the last one in the history, the second, and why the agent is not ready.
    index: Answer<(u64, Moment, u64, Option<String>)>,
    /// By the snapshot.
    node: Answer<u64>,
    /// By the last snapshot in it.
    history: Answer<Moment>,
    pieces: Arc<PieceMakers>,
}

impl Answers {
    /// With the snapshot that they were made of.
    pub(super) fn forget(&self) {
        let Shared { index, node, history, pieces: _ } = &*self.0;
        index.forget();
        node.forget();
        history.forget();
    }
}

impl WebState {
    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshots.borrow())
    }
}

const ROUTES: &str = "/  /metrics  /metrics/dcgm  /api/v1/node  /api/v1/record  /api/v1/allocations  /api/v1/history  \
                      /api/v1/stream  /-/healthy  /-/ready";

/// All routes that any server has. Each reads; none changes anything.
pub fn router(state: WebState) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics))
        .route("/metrics/dcgm", get(dcgm))
        .route("/api/v1/node", get(node))
        .route("/api/v1/record", get(record))
        .route("/api/v1/history", get(history))
        .route("/api/v1/stream", get(live::node))
        .route("/live", get(live::page))
        .route("/api/v1/allocations", get(allocations))
        .route("/-/healthy", get(healthy))
        .route("/-/ready", get(ready))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .with_state(state)
}

/// What the kubelet asks, for a listener of its own.
pub(super) fn probes(state: WebState) -> Router {
    Router::new()
        .route("/-/healthy", get(healthy))
        .route("/-/ready", get(ready))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(|| async { text(StatusCode::NOT_FOUND, "here is /-/healthy and /-/ready alone") })
        .with_state(state)
}

async fn metrics(State(state): State<WebState>, method: Method, headers: HeaderMap) -> Response {
    let scrapes = state.scrapes.clone();
    let response = page(state, negotiation::format(&headers), negotiation::coding(&headers)).await;
    if method == Method::GET && response.status().is_success() {
        scrapes.count_page();
    }
    response
}

/// dcgm-exporter speaks text 0.0.4 only, and its counters fit nothing else.
async fn dcgm(State(state): State<WebState>, headers: HeaderMap) -> Response {
    let choice = Choice { format: Format::Dcgm, content_type: negotiation::TEXT.to_owned() };
    page(state, choice, negotiation::coding(&headers)).await
}

async fn page(state: WebState, Choice { format, content_type }: Choice, coding: Coding) -> Response {
    let began = state.clock.now();
    let snapshot = state.snapshot();
    let bytes = match state.pages.ready(&snapshot, format, coding) {
        Some(bytes) => Ok(bytes),
        None => {
            let pages = Arc::clone(&state.pages);
            let rendering = tokio::task::spawn_blocking(move || pages.page(&snapshot, format, coding));
            rendering.await.unwrap_or_else(|_| Err(PageError::Encode))
        }
    };
    state.scrapes.record(state.clock.now().monotonic.since(began.monotonic));
    match bytes {
        Ok(bytes) => {
            let mut response = Response::builder()
                .header(CONTENT_TYPE, content_type)
                .header(VARY, "Accept, Accept-Encoding")
                .header(CACHE_CONTROL, "no-store");
            response = match coding {
                Coding::Identity => response,
                Coding::Gzip => response.header(CONTENT_ENCODING, "gzip"),
                Coding::Zstd => response.header(CONTENT_ENCODING, "zstd"),
            };
            response.body(Body::from(bytes)).expect("the content types are header values")
        }
        Err(problem) => {
            error!(%problem, "a page could not be made");
            text(StatusCode::INTERNAL_SERVER_ERROR, &problem.to_string())
        }
    }
}

async fn index(State(state): State<WebState>) -> Response {
    let (snapshot, now, not_ready) = (state.snapshot(), state.clock.now(), (state.ready)().err());
    let noted = state.live.history().at();
    let key = (snapshot.sequence, noted, now.monotonic.as_duration().as_secs(), not_ready.clone());
    let live = state.live.clone();
    let page = move || {
        let page = live_page::page(&snapshot, &live.history(), now, not_ready);
        Ok::<_, Infallible>(page.into_bytes())
    };
    let Ok(made) = state.answers.0.index.get(key, page).await.map(|Ok(page)| page) else {
        error!("the page could not be made; please report this");
        return text(StatusCode::INTERNAL_SERVER_ERROR, "the page could not be made; please report this");
    };
    let headers = [
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, live_page::CONTENT_SECURITY_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, Html(made)).into_response()
}

async fn node(State(state): State<WebState>) -> Response {
    let snapshot = state.snapshot();
    json(state.answers.0.node.get(snapshot.sequence, move || serde_json::to_vec(&*snapshot)).await)
}

/// The points of the last minutes and the events, as the page shows them.
async fn history(State(state): State<WebState>) -> Response {
    let (live, noted) = (state.live.clone(), state.live.history().at());
    json(state.answers.0.history.get(noted, move || serde_json::to_vec(&*live.history())).await)
}

fn json(made: Result<serde_json::Result<Bytes>, JoinError>) -> Response {
    let problem = match made {
        Ok(Ok(body)) => return json_body(body),
        Ok(Err(problem)) => problem.to_string(),
        Err(broke) => broke.to_string(),
    };
    error!(%problem, "an answer could not be written as JSON");
    api_problem(StatusCode::INTERNAL_SERVER_ERROR, "this could not be written as JSON; please report this")
}

fn json_body(body: Bytes) -> Response {
    ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")], body).into_response()
}

async fn record(State(state): State<WebState>, private: Option<Extension<Private>>, uri: Uri) -> Response {
    let yaml = match uri.query() {
        None | Some("" | "output=json") => false,
        Some("output=yaml") => true,
        Some(_) => return api_problem(StatusCode::BAD_REQUEST, "ask for ?output=json or ?output=yaml"),
    };
    let request = RecordRequest { yaml, private: private.is_some() };
    let snapshot = state.snapshot();
    let writing = tokio::task::spawn_blocking(move || (state.record)(&snapshot, request));
    let kind = if yaml { "application/yaml" } else { "application/json" };
    match writing.await.unwrap_or_else(|broke| Err(broke.to_string())) {
        Ok(text) => ([(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store")], text).into_response(),
        Err(problem) => {
            error!(%problem, "the record could not be written");
            api_problem(StatusCode::INTERNAL_SERVER_ERROR, "the record could not be written; please report this")
        }
    }
}

async fn allocations(State(state): State<WebState>, uri: Uri) -> Response {
    match (state.allocations)(uri.query().unwrap_or_default()) {
        Ok(pieces) => {
            let begun = PieceStream::begin(pieces, Arc::clone(&state.answers.0.pieces)).await;
            match begun {
                Ok(stream) => {
                    let body = Body::from_stream(stream);
                    ([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")], body).into_response()
                }
                Err(broke) => json(Err(broke)),
            }
        }
        Err(problem) => api_problem(StatusCode::BAD_REQUEST, &problem),
    }
}

async fn healthy(State(state): State<WebState>) -> Response {
    answer((state.healthy)(), "healthy")
}

async fn ready(State(state): State<WebState>) -> Response {
    answer((state.ready)(), "ready")
}

fn answer(verdict: Result<(), String>, yes: &str) -> Response {
    match verdict {
        Ok(()) => text(StatusCode::OK, yes),
        Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, &reason),
    }
}

async fn not_found(request: Request) -> Response {
    refuse(request.uri(), StatusCode::NOT_FOUND, &format!("nothing is here; there is {ROUTES}"))
}

async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    refuse(&uri, StatusCode::METHOD_NOT_ALLOWED, &format!("{method} is not served here; use GET or HEAD"))
}

pub(super) fn refuse(uri: &Uri, status: StatusCode, reason: &str) -> Response {
    let path = uri.path();
    if path == "/api" || path.starts_with("/api/") { api_problem(status, reason) } else { text(status, reason) }
}

fn text(status: StatusCode, line: &str) -> Response {
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (CACHE_CONTROL, "no-store")];
    (status, headers, format!("{line}\n")).into_response()
}

/// RFC 9457.
pub(super) fn api_problem(status: StatusCode, detail: &str) -> Response {
    let body = serde_json::json!({
        "type": "about:blank",
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": detail,
    });
    (status, [(CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
}
