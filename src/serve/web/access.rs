//! Who may use a listener: TLS, then passwords, as the web configuration requires them.
//!
//! In: a connection or a request. Out: the same once it is permitted, or the response that refuses it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use ring::hmac;
use ring::rand::SystemRandom;
use rustls::ServerConfig;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tracing::error;

use super::config::{WatchedConfig, WebConfig};
use super::connections::ClientStream;
use super::responses::refuse;
use crate::clock::Clock;
use crate::domain::model::Monotonic;

/// The pause after a wrong password, as a multiple of the time of its hash: guessing uses a quarter of a core.
const PAUSE_FACTOR: u32 = 3;

/// Applies the web configuration before the routes: TLS, passwords, and headers that every response gets.
pub struct AccessControl {
    config: WatchedConfig,
    authenticator: Authenticator,
}

impl AccessControl {
    pub fn new(config: WatchedConfig, clock: Clock) -> Self {
        Self { config, authenticator: Authenticator::new(clock) }
    }

    /// The configuration by which a connection is accepted: when it changes, the connection must end.
    pub fn current(&self) -> watch::Receiver<Arc<WebConfig>> {
        self.config.changes()
    }

    /// The stream under TLS, if that is configured; returns after the handshake.
    pub async fn secure(
        tls: Option<Arc<ServerConfig>>,
        stream: Box<dyn ClientStream>,
    ) -> io::Result<Box<dyn ClientStream>> {
        match tls {
            None => Ok(stream),
            Some(tls) => Ok(Box::new(TlsAcceptor::from(tls).accept(stream).await?)),
        }
    }

    /// A middleware: refuses the request, or adds its headers to the response.
    pub async fn respond(State(access): State<Arc<Self>>, request: Request, next: Next) -> Response {
        let config = access.config.current();
        let accepted = config.users.is_empty() || access.authenticator.accepts(&config.users, request.headers()).await;
        let mut response = if accepted {
            next.run(request).await
        } else {
            let reason = "a user and the right password are required";
            ([(WWW_AUTHENTICATE, "Basic")], refuse(request.uri(), StatusCode::UNAUTHORIZED, reason)).into_response()
        };
        for (name, value) in &config.headers {
            // The page sets a policy itself, which names its script and style.
            response.headers_mut().entry(name.clone()).or_insert_with(|| value.clone());
        }
        response
    }
}

/// Checks passwords. A bcrypt hash takes tens of milliseconds by design, so one is computed at a time, on a blocking
/// thread, and accepted passwords are remembered: as an HMAC with a key made at the start, never the password itself.
struct Authenticator {
    key: hmac::Key,
    clock: Clock,
    hashing: Arc<Semaphore>,
    remembered: Arc<Mutex<Remembered>>,
}

type Digest = [u8; 32];

#[derive(Default)]
struct Remembered {
    /// The digest of each user's accepted credentials.
    accepted: BTreeMap<String, Digest>,
    paused_until: Monotonic,
}

impl Authenticator {
    fn new(clock: Clock) -> Self {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let key = key.expect("getrandom works on Linux");
        Self { key, clock, hashing: Arc::new(Semaphore::new(1)), remembered: Arc::default() }
    }

    /// Whether the request names one of `users` (name → bcrypt hash) with the right password.
    async fn accepts(&self, users: &BTreeMap<String, String>, headers: &HeaderMap) -> bool {
        let Some((user, password)) = headers.get(AUTHORIZATION).and_then(credentials) else { return false };
        let stored = std::str::from_utf8(&user).ok().and_then(|user| users.get_key_value(user));
        // An unknown name costs a hash too, so that the time does not reveal which names exist where all hashes have one cost.
        let Some((_, hash)) = stored.or_else(|| users.iter().next()) else { return false };
        let digest = self.digest(&user, hash, &password);
        let name = stored.map(|(name, _)| name.clone());
        if self.is_known(name.as_ref(), &digest) {
            return true;
        }
        let permit = Arc::clone(&self.hashing).acquire_owned().await.expect("the semaphore is never closed");
        // An earlier request with the same credentials may have been accepted meanwhile.
        if self.is_known(name.as_ref(), &digest) {
            return true;
        }
        let pause = self.remembered.lock().paused_until.since(self.clock.now().monotonic);
        // Even a sleep of zero may last until the timer's next tick.
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let (hash, remembered, clock) = (hash.clone(), Arc::clone(&self.remembered), self.clock);
        // The result is recorded in the closure: a client that disconnects neither frees the permit nor avoids the
        // pause.
        let computing = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let began = clock.now().monotonic;
            let right = bcrypt::verify(&password, &hash).unwrap_or(false);
            let now = clock.now().monotonic;
            let mut remembered = remembered.lock();
            match name.filter(|_| right) {
                Some(name) => _ = remembered.accepted.insert(name, digest),
                None => {
                    remembered.paused_until = now + now.since(began) * PAUSE_FACTOR;
                    return false;
                }
            }
            true
        });
        computing.await.unwrap_or_else(|error| {
            error!(%error, "checking a password panicked; please report this");
            false
        })
    }

    fn digest(&self, user: &[u8], hash: &str, password: &[u8]) -> Digest {
        let mut context = hmac::Context::with_key(&self.key);
        // The lengths are hashed too, so that no two different inputs give the same bytes.
        for part in [user, hash.as_bytes(), password] {
            context.update(&part.len().to_le_bytes());
            context.update(part);
        }
        context.sign().as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// Whether these credentials were accepted before. Digests are keyed: the time of a comparison reveals nothing.
    fn is_known(&self, user: Option<&String>, digest: &Digest) -> bool {
        user.is_some_and(|user| self.remembered.lock().accepted.get(user) == Some(digest))
    }
}

/// User and password of `Basic` and base64 of `user:password`.
fn credentials(value: &HeaderValue) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, rest) = value.as_bytes().split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"Basic ") {
        return None;
    }
    let mut user = STANDARD.decode(rest).ok()?;
    let colon = user.iter().position(|byte| *byte == b':')?;
    let password = user.split_off(colon + 1);
    user.truncate(colon);
    Some((user, password))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A user whose password is "right", hashed at the lowest cost.
    fn users() -> BTreeMap<String, String> {
        BTreeMap::from([("alice".to_owned(), bcrypt::hash("right", 4).unwrap())])
    }

    fn sent(user: &str, password: &str) -> HeaderMap {
        let text = format!("basic {}", STANDARD.encode(format!("{user}:{password}")));
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(&text).unwrap())])
    }

    #[tokio::test]
    async fn only_the_right_password_of_a_known_user_is_accepted() {
        let (authenticator, users) = (Authenticator::new(Clock::start()), users());
        for _ in 0..2 {
            for (headers, decision) in [
                (sent("alice", "right"), true),
                (sent("alice", "wrong"), false),
                (sent("bob", "right"), false),
                (sent("", ""), false),
                (HeaderMap::new(), false),
            ] {
                assert_eq!(authenticator.accepts(&users, &headers).await, decision, "{headers:?}");
            }
        }
        let other = BTreeMap::from([("alice".to_owned(), bcrypt::hash("new", 4).unwrap())]);
        assert!(!authenticator.accepts(&other, &sent("alice", "right")).await, "the password was changed");
        assert!(authenticator.accepts(&other, &sent("alice", "new")).await);
    }

    #[tokio::test]
    async fn guesses_do_not_keep_out_a_user_who_was_accepted() {
        let (authenticator, users) = (Authenticator::new(Clock::start()), users());
        assert!(authenticator.accepts(&users, &sent("alice", "right")).await);
        let _guess = authenticator.hashing.acquire().await.unwrap();
        assert!(authenticator.accepts(&users, &sent("alice", "right")).await);
    }

    #[tokio::test]
    async fn a_guess_is_recorded_although_its_client_disconnects() {
        let (authenticator, users) = (Authenticator::new(Clock::start()), users());
        let headers = sent("alice", "wrong");
        // Polled once, it has begun to compute; then it is dropped.
        let guess = authenticator.accepts(&users, &headers);
        let _pending = tokio::time::timeout(Duration::ZERO, guess).await;
        let _ended = authenticator.hashing.acquire().await.unwrap();
        assert_ne!(authenticator.remembered.lock().paused_until, Monotonic::default());
    }

    #[test]
    fn what_is_no_basic_authentication_is_none() {
        let none = ["", "Basic", "Bearer abc", "Basic ???", "Basic YWxpY2U=", "Basic \u{e9}"];
        for text in none {
            assert_eq!(credentials(&HeaderValue::from_bytes(text.as_bytes()).unwrap()), None, "{text}");
        }
        let both = credentials(&HeaderValue::from_static("Basic YTpiOmM="));
        assert_eq!(both, Some((b"a".to_vec(), b"b:c".to_vec())));
    }
}
