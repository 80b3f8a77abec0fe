use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

use crate::clock::Clock;

/// What the clients of one listener may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open at once. Beyond that, the least useful connection is closed.
    pub connections: usize,
    /// For the head of a request, and for the next request on a kept connection.
    pub read_timeout: Duration,
    /// For a response, from the first time that the client does not take it as fast as it is sent.
    pub write_timeout: Duration,
    /// Of the head of a request.
    pub header_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A node has a few scrapers, the kubelet, and people with the page open.
            connections: 64,
            // Over a minute, the usual scrape interval, so that scrapers keep their connections.
            read_timeout: Duration::from_secs(65),
            write_timeout: Duration::from_secs(10),
            // hyper's default of 400 KiB times the connections is more memory than the chart's limit.
            header_bytes: 32 * 1024,
        }
    }
}

/// The open connections of one listener.
pub struct Connections {
    clock: Clock,
    permits: Arc<Semaphore>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    slots: BTreeMap<u64, Weak<ConnectionSlot>>,
}

/// One of the connections that a listener may have; free again when it is dropped. Its activity is updated without a
/// lock.
pub struct ConnectionSlot {
    number: u64,
    /// `None` on a unix socket.
    pub peer: Option<IpAddr>,
    connections: Arc<Connections>,
    /// Milliseconds of the clock at the last read or write.
    active: AtomicU64,
    /// Whether a request on it ever succeeded.
    succeeded: AtomicBool,
    eviction: Notify,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionSlot {
    fn touch(&self) {
        let now = self.connections.clock.now().monotonic.as_duration().as_millis();
        self.active.store(u64::try_from(now).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub fn record_success(&self) {
        self.succeeded.store(true, Ordering::Relaxed);
    }

    /// Returns when the slot is needed for another connection.
    pub async fn evicted(&self) {
        self.eviction.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connections.open.lock().slots.remove(&self.number);
    }
}

impl Connections {
    pub fn new(clock: Clock, limit: usize) -> Arc<Self> {
        Arc::new(Self { clock, permits: Arc::new(Semaphore::new(limit)), open: Mutex::default() })
    }

    /// A slot for a new connection. Where all are taken it evicts one and waits until that is free.
    pub async fn slot(self: &Arc<Self>, peer: Option<IpAddr>) -> Arc<ConnectionSlot> {
        let permit = match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                self.evict_one();
                Arc::clone(&self.permits).acquire_owned().await.expect("the semaphore is never closed")
            }
        };
        let mut open = self.open.lock();
        let slot = Arc::new(ConnectionSlot {
            number: open.next,
            peer,
            connections: Arc::clone(self),
            active: AtomicU64::default(),
            succeeded: AtomicBool::default(),
            eviction: Notify::new(),
            _permit: permit,
        });
        slot.touch();
        open.next += 1;
        open.slots.insert(slot.number, Arc::downgrade(&slot));
        slot
    }

    /// Evicts, of the address with most connections, one without a successful request, and of those the one that has
    /// been silent longest: many connections from one address cost that address, and a scraper keeps its connection.
    pub fn evict_one(&self) {
        // Upgraded outside the lock's scope: a slot that is dropped takes the lock.
        let slots: Vec<Arc<ConnectionSlot>> = self.open.lock().slots.values().filter_map(Weak::upgrade).collect();
        let mut of_peer: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
        for slot in &slots {
            *of_peer.entry(slot.peer).or_default() += 1;
        }
        let usefulness = |slot: &&Arc<ConnectionSlot>| {
            let succeeded = slot.succeeded.load(Ordering::Relaxed);
            (Reverse(of_peer[&slot.peer]), succeeded, slot.active.load(Ordering::Relaxed), slot.number)
        };
        if let Some(slot) = slots.iter().min_by_key(usefulness) {
            self.open.lock().slots.remove(&slot.number);
            slot.eviction.notify_one();
        }
    }
}

/// A client's stream that records activity, and fails when a response is not taken in time.
pub struct MonitoredStream<S> {
    stream: S,
    slot: Arc<ConnectionSlot>,
    write_timeout: Duration,
    /// Runs from the first write that had to wait until everything is flushed.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> MonitoredStream<S> {
    pub fn new(stream: S, slot: Arc<ConnectionSlot>, write_timeout: Duration) -> Self {
        Self { stream, slot, write_timeout, deadline: None }
    }

    /// The outcome of a write; an error once a pending one is past the deadline.
    fn timed<T>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.slot.touch();
            return outcome;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.write_timeout)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take its response")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MonitoredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if outcome.is_ready() {
            self.slot.touch();
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MonitoredStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.timed(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.timed(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Ready when everything is sent: only then the deadline is reset, so that taking a byte now and then does not
    /// help.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        if outcome.is_ready() {
            self.deadline = None;
        }
        self.timed(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(context);
        self.timed(context, outcome)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn open(connections: &Connections) -> Vec<u64> {
        connections.open.lock().slots.keys().copied().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_silent_connections_of_the_largest_client_are_evicted_first() {
        let connections = Connections::new(Clock::start(), 64);
        let address = |last| Some(IpAddr::from([10, 0, 0, last]));
        let scraper = connections.slot(address(1)).await;
        tokio::time::advance(Duration::from_secs(30)).await;
        let mut crowd = vec![];
        for _ in 0..4 {
            crowd.push(connections.slot(address(2)).await);
        }
        crowd[0].record_success();
        tokio::time::advance(Duration::from_secs(1)).await;
        crowd[1].touch();
        let mut order = vec![];
        while open(&connections).len() > 1 {
            let before = open(&connections);
            connections.evict_one();
            let after = open(&connections);
            order.extend(before.into_iter().filter(|number| !after.contains(number)));
        }
        // With one connection each, the one without a successful request is evicted: here the scraper's.
        assert_eq!(order, [3, 4, 2, scraper.number]);
        assert_eq!(open(&connections), [crowd[0].number]);
        crowd[2].evicted().await;
        drop(crowd);
        connections.evict_one();
        assert!(open(&connections).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_beyond_the_limit_gets_the_slot_of_an_evicted_one() {
        let connections = Connections::new(Clock::start(), 1);
        let first = connections.slot(None).await;
        let waiting = connections.slot(None);
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut waiting).await.is_err(), "the first is still open");
        first.evicted().await;
        drop(first);
        let second = waiting.await;
        assert_eq!(open(&connections), [second.number]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_not_taken_in_time_fails() {
        let connections = Connections::new(Clock::start(), 64);
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut ours = MonitoredStream::new(ours, connections.slot(None).await, Duration::from_secs(10));
        ours.write_all(&[0; 16]).await.unwrap();
        ours.flush().await.unwrap();
        let began = tokio::time::Instant::now();
        // A byte every second is too slow: the whole response must be taken within the time.
        let reading = async {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if theirs.read_u8().await.is_err() {
                    return;
                }
            }
        };
        let writing = async {
            let outcome = ours.write_all(&[0; 1000]).await;
            outcome.unwrap_err().kind()
        };
        let kind = tokio::select! { kind = writing => kind, () = reading => unreachable!("the stream is open") };
        assert_eq!(kind, io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed().as_secs(), 10);
    }
}
