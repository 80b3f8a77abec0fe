use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::{Mutex, MutexGuard};
use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::Semaphore;
use tracing::error;

use crate::clock::Clock;
use crate::model::Monotonic;

/// Requests that wait until a hash can be computed: of all clients, and from one address.
const QUEUED: usize = 16;
const QUEUED_PER_ADDRESS: usize = 4;
/// Wrong passwords kept, so that a scraper with a wrong one does not cost a hash each time.
const REMEMBERED_REFUSALS: usize = 64;
/// After a wrong password no hash is computed for this many times the time that it took: guessing uses a quarter of a
/// core.
const PAUSE_FACTOR: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthDecision {
    Accepted,
    Refused,
    /// Too many requests wait already.
    Busy,
}

/// Checks passwords. A bcrypt hash takes tens of milliseconds by design, so one is computed at a time, outside the
/// runtime, and decisions are kept: under an HMAC with a key made at the start, never with the password itself.
pub struct Authenticator {
    key: hmac::Key,
    clock: Clock,
    hashing: Arc<Semaphore>,
    remembered: Arc<Mutex<Remembered>>,
}

type Digest = [u8; 32];

#[derive(Default)]
struct Remembered {
    /// By user; guesses do not displace these.
    accepted: BTreeMap<String, Digest>,
    refused: VecDeque<Digest>,
    /// Requests that wait, by address; `None` on a unix socket.
    waiting: BTreeMap<Option<IpAddr>, usize>,
    paused_until: Monotonic,
}

/// A request that waits for a hash.
struct QueuePlace<'a> {
    authenticator: &'a Authenticator,
    peer: Option<IpAddr>,
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        let mut remembered = self.authenticator.remembered();
        if let Some(count) = remembered.waiting.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                remembered.waiting.remove(&self.peer);
            }
        }
    }
}

impl Authenticator {
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let key = key.expect("getrandom works on Linux");
        Self { key, clock, hashing: Arc::new(Semaphore::new(1)), remembered: Arc::default() }
    }

    /// Whether the request names one of `users` (name → bcrypt hash) with the right password.
    pub async fn authenticate(
        &self,
        users: &BTreeMap<String, String>,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
    ) -> AuthDecision {
        let Some((user, password)) = headers.get(AUTHORIZATION).and_then(credentials) else {
            return AuthDecision::Refused;
        };
        let user_text = std::str::from_utf8(&user).ok();
        let stored = user_text.and_then(|user| users.get_key_value(user));
        // An unknown name costs a hash too, so that the time does not reveal which names exist.
        let Some(hash) = stored.or_else(|| users.iter().next()).map(|(_, hash)| hash) else {
            return AuthDecision::Refused;
        };
        let digest = self.digest(&user, hash, &password);
        if let Some(known) = self.known_decision(stored.map(|(name, _)| name), &digest) {
            return known;
        }
        let Some(_queued) = self.enqueue(peer) else { return AuthDecision::Busy };
        let Ok(permit) = Arc::clone(&self.hashing).acquire_owned().await else { return AuthDecision::Busy };
        // An earlier request with the same credentials may have been decided meanwhile.
        if let Some(known) = self.known_decision(stored.map(|(name, _)| name), &digest) {
            return known;
        }
        let pause = self.remembered().paused_until.since(self.clock.now().monotonic);
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        self.remembered().accepted.retain(|name, _| users.contains_key(name));
        let (hash, name) = (hash.clone(), stored.map(|(name, _)| name.clone()));
        let (remembered, clock) = (Arc::clone(&self.remembered), self.clock);
        // The result is recorded in the closure: a client that disconnects neither frees the permit nor avoids the
        // pause.
        let computing = tokio::task::spawn_blocking(move || {
            let began = clock.now().monotonic;
            let right = bcrypt::verify(&password, &hash).unwrap_or(false);
            let took = clock.now().monotonic.since(began);
            let decision =
                remembered.lock().learn(name.filter(|_| right), digest, clock.now().monotonic + took * PAUSE_FACTOR);
            drop(permit);
            decision
        });
        computing.await.unwrap_or_else(|error| {
            error!(%error, "checking a password panicked; please report this");
            AuthDecision::Refused
        })
    }

    fn digest(&self, user: &[u8], hash: &str, password: &[u8]) -> Digest {
        let mut context = hmac::Context::with_key(&self.key);
        // With their lengths, so that no two different inputs give the same bytes.
        for part in [user, hash.as_bytes(), password] {
            context.update(&part.len().to_le_bytes());
            context.update(part);
        }
        context.sign().as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// Digests are keyed, so the time of a comparison reveals nothing about a password.
    fn known_decision(&self, user: Option<&String>, digest: &Digest) -> Option<AuthDecision> {
        let remembered = self.remembered();
        if user.is_some_and(|user| remembered.accepted.get(user) == Some(digest)) {
            return Some(AuthDecision::Accepted);
        }
        remembered.refused.contains(digest).then_some(AuthDecision::Refused)
    }

    fn enqueue(&self, peer: Option<IpAddr>) -> Option<QueuePlace<'_>> {
        let mut remembered = self.remembered();
        let all: usize = remembered.waiting.values().sum();
        let own = remembered.waiting.get(&peer).copied().unwrap_or(0);
        if all >= QUEUED || own >= QUEUED_PER_ADDRESS {
            return None;
        }
        remembered.waiting.insert(peer, own + 1);
        Some(QueuePlace { authenticator: self, peer })
    }

    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock()
    }
}

impl Remembered {
    /// `name`: the user, if the password was right.
    fn learn(&mut self, name: Option<String>, digest: Digest, paused_until: Monotonic) -> AuthDecision {
        if let Some(name) = name {
            self.accepted.insert(name, digest);
            return AuthDecision::Accepted;
        }
        self.paused_until = paused_until;
        if self.refused.len() == REMEMBERED_REFUSALS {
            self.refused.pop_front();
        }
        self.refused.push_back(digest);
        AuthDecision::Refused
    }
}

/// `Basic` and base64 of `user:password`.
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

    /// "right", at the lowest cost.
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
                (sent("alice", "right"), AuthDecision::Accepted),
                (sent("alice", "wrong"), AuthDecision::Refused),
                (sent("bob", "right"), AuthDecision::Refused),
                (sent("", ""), AuthDecision::Refused),
                (HeaderMap::new(), AuthDecision::Refused),
            ] {
                assert_eq!(authenticator.authenticate(&users, &headers, None).await, decision, "{headers:?}");
            }
        }
        let other = BTreeMap::from([("alice".to_owned(), bcrypt::hash("new", 4).unwrap())]);
        assert_eq!(
            authenticator.authenticate(&other, &sent("alice", "right"), None).await,
            AuthDecision::Refused,
            "the password was changed"
        );
        assert_eq!(authenticator.authenticate(&other, &sent("alice", "new"), None).await, AuthDecision::Accepted);
    }

    #[tokio::test]
    async fn guesses_neither_displace_the_right_password_nor_fill_the_queue() {
        let (authenticator, users) = (Authenticator::new(Clock::start()), users());
        assert_eq!(authenticator.authenticate(&users, &sent("alice", "right"), None).await, AuthDecision::Accepted);
        for guess in 0..REMEMBERED_REFUSALS + 6 {
            let decision = authenticator.authenticate(&users, &sent("alice", &guess.to_string()), None).await;
            assert_eq!(decision, AuthDecision::Refused);
        }
        let digest = authenticator.digest(b"alice", &users["alice"], b"right");
        let name = "alice".to_owned();
        assert_eq!(authenticator.known_decision(Some(&name), &digest), Some(AuthDecision::Accepted));
        assert_eq!(authenticator.remembered().refused.len(), REMEMBERED_REFUSALS);

        let address = |last| Some(IpAddr::from([10, 0, 0, last]));
        let of_one: Vec<_> = (0..QUEUED_PER_ADDRESS).map(|_| authenticator.enqueue(address(1)).unwrap()).collect();
        assert_eq!(authenticator.authenticate(&users, &sent("alice", "x"), address(1)).await, AuthDecision::Busy);
        assert_eq!(authenticator.authenticate(&users, &sent("alice", "x"), address(2)).await, AuthDecision::Refused);
        drop(of_one);
        assert_eq!(authenticator.authenticate(&users, &sent("alice", "y"), address(1)).await, AuthDecision::Refused);
        assert!(authenticator.remembered().waiting.is_empty());
    }

    #[tokio::test]
    async fn a_guess_is_recorded_although_its_client_disconnects() {
        let (authenticator, users) = (Authenticator::new(Clock::start()), users());
        let headers = sent("alice", "wrong");
        // Polled once, it has begun to compute; then it is dropped.
        let guess = authenticator.authenticate(&users, &headers, None);
        let _pending = tokio::time::timeout(Duration::ZERO, guess).await;
        let _ended = authenticator.hashing.acquire().await.unwrap();
        assert_eq!(authenticator.remembered().refused.len(), 1);
        assert_ne!(authenticator.remembered().paused_until, Monotonic::default());
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
