//! The task that keeps the history, and server-sent events: encoded about once a second and for each new subscriber, only
//! while there are subscribers, and once for all of them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::WatchStream;
use tracing::error;

use super::body::StoredBody;
use super::page::{NodePage, View};
use super::responses::{api_problem, refuse};
use super::state::WebState;
use crate::domain::history::NodeHistory;
use crate::domain::model::{Monotonic, Snapshot};
use crate::serve::api::NodeResponse;

/// Least time between two events. Less than a second, or a snapshot a second would give an event every other second.
const EVENT_INTERVAL: Duration = Duration::from_millis(900);
/// When a client that lost its connection connects again.
const RETRY: &[u8] = b"retry: 1000\n\n";

/// The history and the event streams: one of snapshots, and one of the page for each view. One for all servers.
#[derive(Clone, Default)]
pub struct EventStreams(Arc<Feeds>);

#[derive(Default)]
struct Feeds {
    /// Renderers have an immutable copy: none holds the lock.
    history: Mutex<Arc<NodeHistory>>,
    node: Feed,
    /// By the index of their view.
    pages: [Feed; View::COUNT],
    /// A new subscriber gets its first event at once.
    subscribed: Notify,
}

/// Only the last event is kept: a slow reader misses some, and none accumulate. Subscribers are bounded by the
/// connections.
#[derive(Default)]
struct Feed {
    events: watch::Sender<Frame>,
}

#[derive(Clone, Default)]
enum Frame {
    #[default]
    Nothing,
    Event(StoredBody),
    End,
}

impl EventStreams {
    /// The history of the last minutes.
    pub(super) fn history(&self) -> Arc<NodeHistory> {
        Arc::clone(&self.0.history.lock())
    }

    /// Ends every stream, also those requested later.
    pub(super) fn close(&self) {
        for feed in self.0.all() {
            feed.events.send_replace(Frame::End);
        }
    }

    fn subscribe(&self, feed: &Feed) -> Response {
        let events = feed.events.subscribe();
        if matches!(*events.borrow(), Frame::End) {
            return api_problem(StatusCode::SERVICE_UNAVAILABLE, "podmeter is shutting down");
        }
        let events = WatchStream::from_changes(events)
            .take_while(|frame| !matches!(frame, Frame::End))
            .filter_map(|frame| if let Frame::Event(body) = frame { Some(body) } else { None });
        let events = tokio_stream::once(StoredBody::from_text(RETRY)).chain(events);
        let pieces = |event: StoredBody| tokio_stream::iter(event.pieces().map(Ok::<_, Infallible>));
        let body = futures_util::StreamExt::flat_map(events, pieces);
        self.0.subscribed.notify_one();
        // X-Accel-Buffering: or proxies buffer the events.
        let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
        (headers, [("x-accel-buffering", "no")], Body::from_stream(body)).into_response()
    }
}

impl Feeds {
    fn all(&self) -> impl Iterator<Item = &Feed> {
        self.pages.iter().chain([&self.node])
    }
}

impl Feed {
    fn has_subscribers(&self) -> bool {
        self.events.receiver_count() > 0
    }

    /// Does nothing after the end.
    fn publish(&self, frame: Frame) {
        self.events.send_if_modified(|last| {
            let open = !matches!(last, Frame::End);
            if open {
                *last = frame;
            }
            open
        });
    }
}

/// With each new snapshot, adds it to the history and forgets the cached bodies; and publishes events. A snapshot that is
/// replaced while events are rendered is in neither. Ends when the publisher of snapshots has ended.
pub(super) async fn follow(state: WebState) {
    let mut snapshots = state.snapshots.clone();
    let (mut noted, mut sent) = (None::<Arc<Snapshot>>, None::<Monotonic>);
    loop {
        let snapshot = Arc::clone(&snapshots.borrow_and_update());
        // A new subscriber wakes this loop, too, with a snapshot that was noted.
        if noted.as_ref().is_none_or(|noted| !Arc::ptr_eq(noted, &snapshot)) {
            noted = Some(Arc::clone(&snapshot));
            Arc::make_mut(&mut state.streams.0.history.lock()).note(&snapshot);
            state.cached_bodies.forget();
        }
        if sent.is_none_or(|sent| snapshot.at.monotonic.since(sent) >= EVENT_INTERVAL) {
            publish_events(&state, &snapshot).await;
            sent = Some(snapshot.at.monotonic);
        }
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { return },
            () = state.streams.0.subscribed.notified() => sent = None,
        }
    }
}

async fn publish_events(state: &WebState, snapshot: &Arc<Snapshot>) {
    // Drop the cached event when there are no subscribers.
    for feed in state.streams.0.all().filter(|feed| !feed.has_subscribers()) {
        feed.publish(Frame::Nothing);
    }
    if !state.streams.0.all().any(Feed::has_subscribers) {
        return;
    }
    let (state, snapshot) = (state.clone(), Arc::clone(snapshot));
    let encoded = tokio::task::spawn_blocking(move || {
        let Feeds { node, pages, .. } = &*state.streams.0;
        if node.has_subscribers() {
            let json = serde_json::to_string(&NodeResponse::from(&*snapshot)).expect("keys are strings");
            node.publish(Frame::Event(StoredBody::from_text(event("node", snapshot.sequence, &json))));
        }
        for view in View::all().filter(|view| pages[view.index()].has_subscribers()) {
            let (history, now, not_ready) = (state.streams.history(), state.clock.now(), (state.ready)().err());
            let part =
                NodePage { snapshot: &snapshot, history: &history, now, not_ready, view }.changing_part().into_string();
            pages[view.index()].publish(Frame::Event(StoredBody::from_text(event("page", snapshot.sequence, &part))));
        }
    });
    if let Err(problem) = encoded.await {
        error!(%problem, "an event could not be encoded; please report this");
    }
}

/// Per <https://html.spec.whatwg.org/multipage/server-sent-events.html>: a line of data for each line of the text.
fn event(name: &str, id: u64, text: &str) -> String {
    let mut event = format!("event: {name}\nid: {id}\n");
    for line in text.split(['\n', '\r']) {
        event.push_str("data: ");
        event.push_str(line);
        event.push('\n');
    }
    event.push('\n');
    event
}

/// `/api/v1/stream`: the whole snapshot, as in `/api/v1/node`.
pub(super) async fn node_events(State(state): State<WebState>) -> Response {
    state.streams.subscribe(&state.streams.0.node)
}

/// `/live`: the part of the page that changes, in the view of the query.
pub(super) async fn page_events(State(state): State<WebState>, uri: Uri) -> Response {
    match View::parse(uri.query().unwrap_or_default()) {
        Ok(view) => state.streams.subscribe(&state.streams.0.pages[view.index()]),
        Err(problem) => refuse(&uri, StatusCode::BAD_REQUEST, &problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_a_line_of_data_for_each_line() {
        assert_eq!(event("page", 7, "<p>a\nb\rc</p>"), "event: page\nid: 7\ndata: <p>a\ndata: b\ndata: c</p>\n\n");
    }

    #[test]
    fn a_closed_stream_stays_closed() {
        let streams = EventStreams::default();
        streams.close();
        streams.0.node.publish(Frame::Nothing);
        assert!(matches!(*streams.0.node.events.borrow(), Frame::End));
        assert_eq!(streams.subscribe(&streams.0.node).status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
