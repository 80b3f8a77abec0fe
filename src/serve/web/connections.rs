//! The limits of a listener's connections, and a client's stream that fails when a part of a response is not taken in time.
//!
//! Does not use: HTTP, TLS. tower-http's timeouts end handlers, and its limits are of requests' bodies: neither ends a client that
//! takes its response a byte at a time.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// What the clients of one listener may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most that are open at once. Further clients wait until one is closed.
    pub connections: usize,
    /// The limit for the head of a request, and for the next request on a kept connection.
    pub read_timeout: Duration,
    /// The limit for each part of a response, about `header_bytes`, from the first time that the client does not take
    /// it as fast as it is sent.
    pub write_timeout: Duration,
    /// The most bytes in the head of a request. hyper flushes a response in parts of about this size, too.
    pub header_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A node has a few scrapers and open pages.
            connections: 64,
            // Over a minute, the usual scrape interval, so that scrapers keep their connections.
            read_timeout: Duration::from_secs(65),
            write_timeout: Duration::from_secs(10),
            // hyper's default of 400 KiB times the connections is a fifth of the chart's memory limit.
            header_bytes: 32 * 1024,
        }
    }
}

/// A connection of a client, with or without TLS.
pub(super) trait ClientStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ClientStream for T {}

/// A client's stream that fails when what was written is not taken in time.
pub struct TimedStream<S> {
    stream: S,
    write_timeout: Duration,
    /// Runs from the first write that had to wait until everything is flushed.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> TimedStream<S> {
    pub fn new(stream: S, write_timeout: Duration) -> Self {
        Self { stream, write_timeout, deadline: None }
    }

    /// The outcome of a write; an error once a pending one is past the deadline.
    fn timed<T>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            return outcome;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.write_timeout)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take its response")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.timed(context, outcome)
    }

    /// hyper flushes its buffer when it is full, and at the end of what a response has so far. Only a completed flush
    /// resets the deadline, so that a client cannot extend it by taking a byte now and then.
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

    #[tokio::test(start_paused = true)]
    async fn a_part_of_a_response_that_is_not_taken_in_time_fails() {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let mut ours = TimedStream::new(ours, Duration::from_secs(10));
        ours.write_all(&[0; 16]).await.unwrap();
        ours.flush().await.unwrap();
        let began = tokio::time::Instant::now();
        // A byte every second is too slow: all until the next flush must be taken within the time.
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
