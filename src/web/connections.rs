use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Sleep;

use crate::clock::Clock;

/// What clients of one listener may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// At once. When one more comes, the one that is missed least goes.
    pub connections: usize,
    /// For a request's head, and for the next one on a kept connection.
    pub read_timeout: Duration,
    /// For an answer, from when the client first does not take it as fast as it comes.
    pub write_timeout: Duration,
    /// Of a request's head.
    pub header_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A node has a few scrapers, the kubelet, and people who look at the page.
            connections: 64,
            // Over a minute, the usual scrape interval, so that scrapers keep their connections.
            read_timeout: Duration::from_secs(65),
            write_timeout: Duration::from_secs(10),
            // hyper's own 400 KiB times the connections would be more memory than the agent may have.
            header_bytes: 32 * 1024,
        }
    }
}

/// Who is connected to a listener.
pub struct Connections {
    clock: Clock,
    seats: Mutex<Seats>,
}

#[derive(Default)]
struct Seats {
    next: u64,
    taken: BTreeMap<u64, Arc<Seat>>,
}

/// One connection's place. What it did last is written without a lock.
pub struct Seat {
    number: u64,
    /// `None` on a unix socket.
    pub peer: Option<IpAddr>,
    clock: Clock,
    /// Milliseconds of the clock at which bytes last came or went.
    active: AtomicU64,
    /// Whether it ever had a good answer.
    answered: AtomicBool,
    leave: Notify,
}

impl Seat {
    fn touch(&self) {
        let now = self.clock.now().monotonic.as_duration().as_millis();
        self.active.store(u64::try_from(now).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub fn was_answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// When its place is needed.
    pub async fn must_leave(&self) {
        self.leave.notified().await;
    }
}

impl Connections {
    pub fn new(clock: Clock) -> Self {
        Self { clock, seats: Mutex::default() }
    }

    pub fn sit(&self, peer: Option<IpAddr>) -> Arc<Seat> {
        let mut seats = self.seats();
        let (active, answered) = (AtomicU64::default(), AtomicBool::default());
        let seat = Seat { number: seats.next, peer, clock: self.clock, active, answered, leave: Notify::new() };
        let seat = Arc::new(seat);
        seat.touch();
        seats.next += 1;
        seats.taken.insert(seat.number, Arc::clone(&seat));
        seat
    }

    pub fn stand_up(&self, seat: &Seat) {
        self.seats().taken.remove(&seat.number);
    }

    /// Asks one to leave: of the address with most connections the one that never had a good answer, and of those the one
    /// that has been silent longest. So a crowd costs its own, and a scraper keeps its connection.
    pub fn make_room(&self) {
        let mut seats = self.seats();
        let mut of_peer: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
        for seat in seats.taken.values() {
            *of_peer.entry(seat.peer).or_default() += 1;
        }
        let missed = |seat: &Seat| {
            let answered = seat.answered.load(Ordering::Relaxed);
            (Reverse(of_peer[&seat.peer]), answered, seat.active.load(Ordering::Relaxed), seat.number)
        };
        let least = seats.taken.values().min_by_key(|seat| missed(seat)).map(|seat| seat.number);
        if let Some(seat) = least.and_then(|number| seats.taken.remove(&number)) {
            seat.leave.notify_one();
        }
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock()
    }
}

/// A client's stream: notes when bytes move, and breaks when an answer is not taken in time.
pub struct Watched<S> {
    stream: S,
    seat: Arc<Seat>,
    write_timeout: Duration,
    /// Since when something could not be written; until all of it is.
    blocked: Option<Pin<Box<Sleep>>>,
}

impl<S> Watched<S> {
    pub fn new(stream: S, seat: Arc<Seat>, write_timeout: Duration) -> Self {
        Self { stream, seat, write_timeout, blocked: None }
    }

    /// The outcome of a write, with the deadline watched while there is none.
    fn timed<T>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.seat.touch();
            return outcome;
        }
        let blocked = self.blocked.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.write_timeout)));
        ready!(blocked.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if outcome.is_ready() {
            self.seat.touch();
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
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

    /// Ready when all has gone: only then the next wait starts anew, so that taking a byte now and then does not help.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        if outcome.is_ready() {
            self.blocked = None;
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

    fn left(connections: &Connections) -> Vec<u64> {
        connections.seats().taken.keys().copied().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_costs_its_own_and_the_silent_go_first() {
        let connections = Connections::new(Clock::start());
        let address = |last| Some(IpAddr::from([10, 0, 0, last]));
        let scraper = connections.sit(address(1));
        tokio::time::advance(Duration::from_secs(30)).await;
        let crowd: Vec<_> = (0..4).map(|_| connections.sit(address(2))).collect();
        crowd[0].was_answered();
        tokio::time::advance(Duration::from_secs(1)).await;
        crowd[1].touch();
        let mut order = vec![];
        while left(&connections).len() > 1 {
            let before = left(&connections);
            connections.make_room();
            let after = left(&connections);
            order.extend(before.into_iter().filter(|number| !after.contains(number)));
        }
        // Where both have one connection, the one without a good answer goes, which is the scraper's here.
        assert_eq!(order, [3, 4, 2, scraper.number]);
        assert_eq!(left(&connections), [crowd[0].number]);
        crowd[2].must_leave().await;
        connections.stand_up(&crowd[0]);
        connections.make_room();
        assert!(left(&connections).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_taken_is_given_up() {
        let connections = Connections::new(Clock::start());
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut ours = Watched::new(ours, connections.sit(None), Duration::from_secs(10));
        ours.write_all(&[0; 16]).await.unwrap();
        ours.flush().await.unwrap();
        let began = tokio::time::Instant::now();
        // A byte every second is too slow: all of it has to go within the time.
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
