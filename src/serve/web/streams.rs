//! The task that keeps the history, and server-sent events: encoded about once a second, only while there are subscribers,
//! and once for all subscribers of a view. A subscriber gets the whole page, then what has changed since its last event.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_stream::StreamExt as _;
use tracing::error;

use super::body::Coding;
use super::event_body::{EventBody, EventWriter, Pieces};
use super::negotiation;
use super::page::parts::{PartHashes, changes};
use super::page::{NodePage, View};
use super::responses::{api_problem, refuse};
use super::state::WebState;
use crate::domain::history::NodeHistory;
use crate::domain::model::{GpuUuid, Monotonic, Snapshot};

/// The least time between two events. It is below a second: else a snapshot a second would give an event every two.
const EVENT_INTERVAL: Duration = Duration::from_millis(900);
/// How long a request of `/api/v1/node` counts as watching: longer than the usual interval of `top`.
const READER_STAYS: Duration = Duration::from_secs(5);
/// Makes a client that lost its connection connect again after a second.
const RETRY: &str = "retry: 1000\n\n";

/// The history and the event streams: one of snapshots, and one of the page for each view. One for all servers.
#[derive(Clone, Default)]
pub struct EventStreams(Arc<Streams>);

#[derive(Default)]
struct Streams {
    /// The history; renderers take an immutable copy, so that none holds the lock.
    history: Mutex<Arc<NodeHistory>>,
    feeds: Mutex<Feeds>,
    /// Until when GPUs are watched by a program that reads `/api/v1/node` again and again, as `top` does.
    read_until: Mutex<Monotonic>,
    /// Wakes `follow` for a new subscriber of a feed without an event, or a new reader.
    subscribed: Notify,
}

/// The feeds with subscribers; the limit of connections bounds their number.
#[derive(Default)]
struct Feeds {
    by_content: BTreeMap<Content, Arc<Feed>>,
    is_closed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Content {
    Node,
    Page(View),
}

/// The last event of a feed: a slow reader misses some, and none accumulate.
type Feed = watch::Sender<Frame>;

#[derive(Clone, Default)]
enum Frame {
    #[default]
    Nothing,
    Event(Arc<FeedEvent>),
    End,
}

struct FeedEvent {
    /// The number of the event in its feed, from 0.
    number: u64,
    whole: LazyBody,
    /// What changed, for subscribers that have the event before.
    change: Option<EventBody>,
    parts: PartHashes,
}

/// A body, compressed when first read: only new subscribers and those that missed an event read a whole page.
type LazyBody = LazyLock<EventBody, Box<dyn FnOnce() -> EventBody + Send>>;

fn lazy_body(text: String) -> LazyBody {
    LazyLock::new(Box::new(move || EventBody::new(&text)))
}

impl EventStreams {
    /// The history of the last minutes.
    pub(super) fn history(&self) -> Arc<NodeHistory> {
        Arc::clone(&self.0.history.lock())
    }

    /// Ends every stream, also those requested later.
    pub(super) fn close(&self) {
        let mut feeds = self.0.feeds.lock();
        feeds.is_closed = true;
        for feed in feeds.by_content.values() {
            feed.send_replace(Frame::End);
        }
    }

    fn subscribe(&self, content: Content, headers: &HeaderMap) -> Response {
        let mut feeds = self.0.feeds.lock();
        if feeds.is_closed {
            return api_problem(StatusCode::SERVICE_UNAVAILABLE, "podmeter is shutting down");
        }
        let mut frames = feeds.by_content.entry(content).or_default().subscribe();
        drop(feeds);
        if matches!(*frames.borrow(), Frame::Nothing) {
            self.0.subscribed.notify_one();
        }
        frames.mark_changed();
        let coding = negotiation::coding(headers);
        let (mut writer, head) = EventWriter::new(coding);
        let first: Pieces = Box::new([head].into_iter().chain(writer.event(&EventBody::new(RETRY))));
        let subscriber = Subscriber { frames, writer, last: None, has_ended: false };
        let events = futures_util::stream::unfold(subscriber, |mut subscriber| async {
            Some((subscriber.next().await?, subscriber))
        });
        let pieces =
            |event: Pieces| tokio_stream::iter(event.filter(|piece| !piece.is_empty()).map(Ok::<_, Infallible>));
        let body = futures_util::StreamExt::flat_map(tokio_stream::once(first).chain(events), pieces);
        // X-Accel-Buffering: or proxies buffer the events.
        let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store"), (VARY, "Accept-Encoding")];
        let mut response = (headers, [("x-accel-buffering", "no")], Body::from_stream(body)).into_response();
        if coding == Coding::Gzip {
            response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }

    /// Makes the GPUs watched for a while: a program that has read the snapshot will probably do so again.
    pub(super) fn record_reader(&self, now: Monotonic) {
        let until = std::mem::replace(&mut *self.0.read_until.lock(), now + READER_STAYS);
        if until <= now {
            self.0.subscribed.notify_one();
        }
    }

    /// The GPUs that live pages show; all while the node's snapshot is read.
    fn watched(&self, state: &WebState, snapshot: &Snapshot) -> BTreeSet<GpuUuid> {
        let is_read = snapshot.at.monotonic < *self.0.read_until.lock();
        let contents: Vec<Content> = self.0.feeds.lock().by_content.keys().cloned().collect();
        let contents = contents.into_iter().chain(is_read.then_some(Content::Node));
        contents.flat_map(|content| content.gpus(state, snapshot)).collect()
    }

    /// The feeds that get an event: with `is_due` all, else those without an event. Removes those without subscribers.
    fn due(&self, is_due: bool) -> Vec<(Content, Arc<Feed>)> {
        let mut feeds = self.0.feeds.lock();
        feeds.by_content.retain(|_, feed| feed.receiver_count() > 0);
        let needs_event = |feed: &Feed| is_due || matches!(*feed.borrow(), Frame::Nothing);
        let due = feeds.by_content.iter().filter(|(_, feed)| needs_event(feed));
        due.map(|(content, feed)| (content.clone(), Arc::clone(feed))).collect()
    }
}

impl Content {
    fn gpus(self, state: &WebState, snapshot: &Snapshot) -> Vec<GpuUuid> {
        match self {
            Self::Page(view) if !view.filter.is_empty() => {
                let (history, now) = (state.streams.history(), snapshot.at);
                NodePage { snapshot, history: &history, now, not_ready: None, view }.gpus()
            }
            Self::Page(_) | Self::Node => snapshot.hardware.inventory.gpus.keys().cloned().collect(),
        }
    }
}

struct Subscriber {
    frames: watch::Receiver<Frame>,
    writer: EventWriter,
    /// The number of the last event that it got.
    last: Option<u64>,
    has_ended: bool,
}

impl Subscriber {
    async fn next(&mut self) -> Option<Pieces> {
        while !self.has_ended {
            let is_open = self.frames.changed().await.is_ok();
            let frame = if is_open { self.frames.borrow_and_update().clone() } else { Frame::End };
            match frame {
                Frame::Nothing => {}
                Frame::Event(event) => {
                    let has_one_before = self.last.is_some_and(|last| last + 1 == event.number);
                    self.last = Some(event.number);
                    let change = event.change.as_ref().filter(|_| has_one_before);
                    return Some(self.writer.event(change.unwrap_or_else(|| &event.whole)));
                }
                Frame::End => {
                    self.has_ended = true;
                    return Some(Box::new(std::iter::once::<Bytes>(self.writer.end())));
                }
            }
        }
        None
    }
}

/// With each new snapshot, adds it to the history and forgets the cached bodies; and publishes events. A snapshot that is
/// replaced while events are rendered is in neither. Ends when the publisher of snapshots has ended.
pub(super) async fn follow(state: WebState) {
    let mut snapshots = state.snapshots.clone();
    let (mut noted, mut sent) = (None::<Arc<Snapshot>>, None::<Monotonic>);
    let mut watched = BTreeSet::new();
    loop {
        let snapshot = Arc::clone(&snapshots.borrow_and_update());
        // A new subscriber also wakes this loop, with a snapshot that was added before.
        if noted.as_ref().is_none_or(|noted| !Arc::ptr_eq(noted, &snapshot)) {
            noted = Some(Arc::clone(&snapshot));
            Arc::make_mut(&mut state.streams.0.history.lock()).add(&snapshot);
            state.cached_bodies.forget();
        }
        let is_due = sent.is_none_or(|sent| snapshot.at.monotonic.since(sent) >= EVENT_INTERVAL);
        if is_due {
            sent = Some(snapshot.at.monotonic);
        }
        let due = state.streams.due(is_due);
        let now_watched = state.streams.watched(&state, &snapshot);
        if now_watched != watched && (state.watch)(now_watched.clone()) {
            watched = now_watched;
        }
        publish_events(&state, &snapshot, due).await;
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { return },
            () = state.streams.0.subscribed.notified() => {}
        }
    }
}

async fn publish_events(state: &WebState, snapshot: &Arc<Snapshot>, due: Vec<(Content, Arc<Feed>)>) {
    if due.is_empty() {
        return;
    }
    let (state, snapshot) = (state.clone(), Arc::clone(snapshot));
    let encoded = tokio::task::spawn_blocking(move || {
        for (content, feed) in due {
            let last = if let Frame::Event(last) = &*feed.borrow() { Some(Arc::clone(last)) } else { None };
            let event = Arc::new(encode(&state, &snapshot, content, last.as_deref()));
            // No event follows the end.
            feed.send_if_modified(|frame| {
                let is_open = !matches!(frame, Frame::End);
                if is_open {
                    *frame = Frame::Event(event);
                }
                is_open
            });
        }
    });
    if let Err(problem) = encoded.await {
        error!(%problem, "an event could not be encoded; please report this");
    }
}

fn encode(state: &WebState, snapshot: &Snapshot, content: Content, last: Option<&FeedEvent>) -> FeedEvent {
    let number = last.map_or(0, |last| last.number + 1);
    let text = |name, data: &str| event(name, snapshot.sequence, data);
    let event = match content {
        Content::Node => {
            let json = serde_json::to_string(snapshot).expect("keys are strings");
            FeedEvent { number, whole: lazy_body(text("node", &json)), change: None, parts: PartHashes::new() }
        }
        Content::Page(view) => {
            let (history, now, not_ready) = (state.streams.history(), state.clock.now(), (state.ready)().err());
            let page = NodePage { snapshot, history: &history, now, not_ready, view };
            let none = PartHashes::new();
            let (whole, change, parts) = changes(page.changing_part(), last.map_or(&none, |last| &last.parts));
            let change = last.map(|_| EventBody::new(&text("page", &change)));
            FeedEvent { number, whole: lazy_body(text("page", &whole)), change, parts }
        }
    };
    if event.change.is_none() {
        LazyLock::force(&event.whole);
    }
    event
}

/// An event with a line of data for each line of the text, per
/// <https://html.spec.whatwg.org/multipage/server-sent-events.html>.
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

/// Serves `/api/v1/stream`: the whole snapshot, as in `/api/v1/node`.
pub(super) async fn node_events(State(state): State<WebState>, headers: HeaderMap) -> Response {
    state.streams.subscribe(Content::Node, &headers)
}

/// Serves `/live`: the part of the page that changes, in the view of the query.
pub(super) async fn page_events(State(state): State<WebState>, uri: Uri, headers: HeaderMap) -> Response {
    match View::parse(uri.query().unwrap_or_default()) {
        Ok(view) => state.streams.subscribe(Content::Page(view), &headers),
        Err(problem) => refuse(&uri, StatusCode::BAD_REQUEST, &problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::metrics::tests::fixture;
    use crate::serve::web::tests::state;

    #[test]
    fn an_event_has_a_line_of_data_for_each_line() {
        assert_eq!(event("page", 7, "<p>a\nb\rc</p>"), "event: page\nid: 7\ndata: <p>a\ndata: b\ndata: c</p>\n\n");
    }

    #[test]
    fn a_closed_stream_stays_closed() {
        let streams = EventStreams::default();
        let open = streams.subscribe(Content::Node, &HeaderMap::new());
        streams.close();
        assert!(matches!(*streams.due(true)[0].1.borrow(), Frame::End));
        drop(open);
        assert!(streams.due(true).is_empty(), "a feed without subscribers is forgotten");
        assert_eq!(streams.subscribe(Content::Node, &HeaderMap::new()).status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    #[test]
    fn who_reads_the_snapshot_watches_for_some_seconds() {
        let snapshot = fixture::snapshot();
        let state = state(watch::channel(Arc::new(snapshot.clone())).1);
        let gpus = |seconds| {
            let mut snapshot = snapshot.clone();
            snapshot.at.monotonic = snapshot.at.monotonic + Duration::from_secs(seconds);
            state.streams.watched(&state, &snapshot).len()
        };
        assert_eq!(gpus(0), 0);
        state.streams.record_reader(snapshot.at.monotonic);
        assert_eq!(
            [gpus(0), gpus(4), gpus(6)],
            [snapshot.hardware.inventory.gpus.len(), snapshot.hardware.inventory.gpus.len(), 0]
        );
    }

    #[tokio::test]
    async fn a_subscriber_that_missed_an_event_gets_the_whole() {
        let event = |number| {
            let change = (number > 0).then(|| EventBody::new("change"));
            let whole = match number {
                4 | 7 => LazyLock::new(Box::new(|| -> EventBody { unreachable!("no subscriber reads it") }) as _),
                _ => lazy_body("whole".to_owned()),
            };
            Frame::Event(Arc::new(FeedEvent { number, whole, change, parts: PartHashes::new() }))
        };
        let feed = Feed::new(event(3));
        let mut frames = feed.subscribe();
        frames.mark_changed();
        let (writer, _) = EventWriter::new(Coding::Identity);
        let mut subscriber = Subscriber { frames, writer, last: None, has_ended: false };
        for (sent, expected) in [(vec![], "whole"), (vec![4], "change"), (vec![5, 6], "whole"), (vec![7], "change")] {
            for number in sent {
                feed.send_replace(event(number));
            }
            let got: Vec<u8> = subscriber.next().await.unwrap().flatten().collect();
            assert_eq!(got, expected.as_bytes());
        }
        feed.send_replace(Frame::End);
        assert_eq!(subscriber.next().await.unwrap().flatten().count(), 0);
        assert!(subscriber.next().await.is_none());
    }
}
