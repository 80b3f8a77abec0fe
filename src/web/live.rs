//! What changes, as server-sent events: encoded at most once a second, while somebody listens, and once for all who do.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::WatchStream;
use tracing::error;

use super::page;
use super::routes::{WebState, api_problem};
use crate::history::History;
use crate::model::{Monotonic, Snapshot};

/// Snapshots come more often, and no eye follows. A little less than a second, or every other one would be late.
const PACE: Duration = Duration::from_millis(900);
/// After which a client that lost its connection comes again.
const RETRY: &[u8] = b"retry: 1000\n\n";

/// The last minutes, and who listens. One for all servers.
#[derive(Clone, Default)]
pub struct Live(Arc<Shared>);

#[derive(Default)]
struct Shared {
    history: Mutex<History>,
    node: Feed,
    page: Feed,
    /// Somebody came, who shall not wait for the next second.
    came: Notify,
}

/// The last event alone is kept: who reads slowly misses some, and none pile up. How many listen is bounded by the
/// connections, among which a crowd costs its own.
#[derive(Default)]
struct Feed {
    events: watch::Sender<Frame>,
}

#[derive(Clone, Default)]
enum Frame {
    #[default]
    Nothing,
    Event(Bytes),
    End,
}

impl Live {
    /// What the last minutes were like.
    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        self.0.history.lock()
    }

    /// Ends every stream, and those that are asked for later.
    pub(super) fn close(&self) {
        for feed in [&self.0.node, &self.0.page] {
            feed.events.send_replace(Frame::End);
        }
    }

    fn listen(&self, feed: &Feed) -> Response {
        let events = feed.events.subscribe();
        if matches!(*events.borrow(), Frame::End) {
            return api_problem(StatusCode::SERVICE_UNAVAILABLE, "podmeter is ending");
        }
        let events = WatchStream::from_changes(events)
            .take_while(|frame| !matches!(frame, Frame::End))
            .filter_map(|frame| if let Frame::Event(bytes) = frame { Some(bytes) } else { None });
        let body = tokio_stream::once(Bytes::from_static(RETRY)).chain(events).map(Ok::<_, Infallible>);
        self.0.came.notify_one();
        // The last is for proxies that would collect the events.
        let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
        (headers, [("x-accel-buffering", "no")], Body::from_stream(body)).into_response()
    }
}

impl Feed {
    fn has_listeners(&self) -> bool {
        self.events.receiver_count() > 0
    }

    /// Nothing follows the end.
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

/// Notes every snapshot in the history and tells who listens. Ends when nothing publishes any more.
pub(super) async fn follow(state: WebState) {
    let mut snapshots = state.snapshots.clone();
    let mut sent: Option<Monotonic> = None;
    loop {
        let snapshot = Arc::clone(&snapshots.borrow_and_update());
        state.live.history().note(&snapshot);
        state.answers.forget();
        if sent.is_none_or(|sent| snapshot.at.monotonic.since(sent) >= PACE) {
            tell(&state, &snapshot).await;
            sent = Some(snapshot.at.monotonic);
        }
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { return },
            () = state.live.0.came.notified() => sent = None,
        }
    }
}

async fn tell(state: &WebState, snapshot: &Arc<Snapshot>) {
    let Shared { node, page, .. } = &*state.live.0;
    if !node.has_listeners() && !page.has_listeners() {
        // Nobody keeps the last event for nobody.
        for feed in [node, page] {
            feed.publish(Frame::Nothing);
        }
        return;
    }
    let (state, snapshot) = (state.clone(), Arc::clone(snapshot));
    let encoded = tokio::task::spawn_blocking(move || {
        let Shared { node, page, .. } = &*state.live.0;
        if node.has_listeners() {
            match serde_json::to_string(&*snapshot) {
                Ok(json) => node.publish(Frame::Event(event("node", snapshot.sequence, &json))),
                Err(problem) => error!(%problem, "the snapshot could not be written as JSON"),
            }
        }
        if page.has_listeners() {
            let live = page::live(&snapshot, &state.live.history(), state.clock.now(), (state.ready)().err());
            page.publish(Frame::Event(event("page", snapshot.sequence, &live)));
        }
    });
    if let Err(problem) = encoded.await {
        error!(%problem, "an event of the stream could not be made; please report this");
    }
}

/// As <https://html.spec.whatwg.org/multipage/server-sent-events.html> has it: a line of data for each line of the text.
fn event(name: &str, id: u64, text: &str) -> Bytes {
    let mut event = format!("event: {name}\nid: {id}\n");
    for line in text.split(['\n', '\r']) {
        event.push_str("data: ");
        event.push_str(line);
        event.push('\n');
    }
    event.push('\n');
    Bytes::from(event)
}

/// `/api/v1/stream`: the snapshot, whole, as `/api/v1/node` has it.
pub(super) async fn node(State(state): State<WebState>) -> Response {
    state.live.listen(&state.live.0.node)
}

/// `/live`: the part of the page that changes.
pub(super) async fn page(State(state): State<WebState>) -> Response {
    state.live.listen(&state.live.0.page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_a_line_of_data_for_each_line() {
        assert_eq!(event("page", 7, "<p>a\nb\rc</p>"), "event: page\nid: 7\ndata: <p>a\ndata: b\ndata: c</p>\n\n");
    }

    #[test]
    fn nothing_follows_the_end() {
        let live = Live::default();
        live.close();
        live.0.node.publish(Frame::Nothing);
        assert!(matches!(*live.0.node.events.borrow(), Frame::End));
        assert_eq!(live.listen(&live.0.node).status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
