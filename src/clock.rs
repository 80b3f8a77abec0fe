//! The only module that reads the wall clock, and the origin of [`Monotonic`]. The pure modules take the time as an
//! argument; durations are also measured elsewhere.

use std::time::UNIX_EPOCH;

use crate::domain::model::{Moment, Monotonic, UnixSeconds};

/// A clock that counts from its creation. Copies share that origin.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    // tokio's Instant equals std's outside a paused test runtime.
    origin: tokio::time::Instant,
}

impl Clock {
    pub fn start() -> Self {
        Self { origin: tokio::time::Instant::now() }
    }

    pub fn now(&self) -> Moment {
        #[allow(clippy::disallowed_methods, reason = "this is the clock")]
        let wall = std::time::SystemTime::now();
        let unix = wall.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        Moment { monotonic: Monotonic::new(self.origin.elapsed()), unix: UnixSeconds(unix) }
    }
}
