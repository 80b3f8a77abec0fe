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

/// Requests that wait for a hash to be computed, over all clients and from one address.
const WAITING: usize = 16;
const WAITING_OF_ONE: usize = 4;
/// Wrong passwords that are remembered, so that a scraper that is set up wrongly costs no hash each time.
const REFUSED: usize = 64;
/// After a wrong password no hash is computed for so many times as long as that one took: guessers get a quarter of a core.
const REST: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accepted,
    Refused,
    /// Too many wait already.
    Busy,
}

/// Judges passwords. A bcrypt hash costs tens of milliseconds on purpose, so one is computed at a time, off the runtime, and
/// what was found is remembered: under a key that is made at the start, never as the password itself.
pub struct Doorkeeper {
    key: hmac::Key,
    clock: Clock,
    hashing: Arc<Semaphore>,
    memory: Arc<Mutex<Memory>>,
}

type Digest = [u8; 32];

#[derive(Default)]
struct Memory {
    /// By user; guessing cannot push these out.
    accepted: BTreeMap<String, Digest>,
    refused: VecDeque<Digest>,
    /// How many wait, by address; `None` on a unix socket.
    waiting: BTreeMap<Option<IpAddr>, usize>,
    rest_until: Monotonic,
}

/// A place among those that wait.
struct Place<'doorkeeper> {
    doorkeeper: &'doorkeeper Doorkeeper,
    peer: Option<IpAddr>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut memory = self.doorkeeper.memory();
        if let Some(count) = memory.waiting.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                memory.waiting.remove(&self.peer);
            }
        }
    }
}

impl Doorkeeper {
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new());
        let key = key.expect("Linux has random numbers for whoever asks");
        Self { key, clock, hashing: Arc::new(Semaphore::new(1)), memory: Arc::default() }
    }

    /// Whether the request names one of `users` (name → bcrypt hash) with the right password.
    pub async fn judge(&self, users: &BTreeMap<String, String>, headers: &HeaderMap, peer: Option<IpAddr>) -> Verdict {
        let Some((user, password)) = headers.get(AUTHORIZATION).and_then(credentials) else {
            return Verdict::Refused;
        };
        let user_text = std::str::from_utf8(&user).ok();
        let stored = user_text.and_then(|user| users.get_key_value(user));
        // A name that is not there costs a hash, too, so that time does not tell who is.
        let Some(hash) = stored.or_else(|| users.iter().next()).map(|(_, hash)| hash) else {
            return Verdict::Refused;
        };
        let digest = self.digest(&user, hash, &password);
        if let Some(known) = self.remembered(stored.map(|(name, _)| name), &digest) {
            return known;
        }
        let Some(_place) = self.wait(peer) else { return Verdict::Busy };
        let Ok(permit) = Arc::clone(&self.hashing).acquire_owned().await else { return Verdict::Busy };
        // Somebody with the same credentials may have been first.
        if let Some(known) = self.remembered(stored.map(|(name, _)| name), &digest) {
            return known;
        }
        let rest = self.memory().rest_until.since(self.clock.now().monotonic);
        if !rest.is_zero() {
            tokio::time::sleep(rest).await;
        }
        self.memory().accepted.retain(|name, _| users.contains_key(name));
        let (hash, name) = (hash.clone(), stored.map(|(name, _)| name.clone()));
        let (memory, clock) = (Arc::clone(&self.memory), self.clock);
        // What follows from it goes along: a client that gives up neither makes room for another hash nor escapes the rest.
        let computing = tokio::task::spawn_blocking(move || {
            let began = clock.now().monotonic;
            let right = bcrypt::verify(&password, &hash).unwrap_or(false);
            let took = clock.now().monotonic.since(began);
            let verdict = memory.lock().learn(name.filter(|_| right), digest, clock.now().monotonic + took * REST);
            drop(permit);
            verdict
        });
        computing.await.unwrap_or_else(|broken| {
            error!(%broken, "judging a password broke; please report this");
            Verdict::Refused
        })
    }

    fn digest(&self, user: &[u8], hash: &str, password: &[u8]) -> Digest {
        let mut context = hmac::Context::with_key(&self.key);
        // With their lengths, so that nothing can be moved from one into the next.
        for part in [user, hash.as_bytes(), password] {
            context.update(&part.len().to_le_bytes());
            context.update(part);
        }
        context.sign().as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// Digests are keyed, so how long it takes to compare them says nothing about a password.
    fn remembered(&self, user: Option<&String>, digest: &Digest) -> Option<Verdict> {
        let memory = self.memory();
        if user.is_some_and(|user| memory.accepted.get(user) == Some(digest)) {
            return Some(Verdict::Accepted);
        }
        memory.refused.contains(digest).then_some(Verdict::Refused)
    }

    fn wait(&self, peer: Option<IpAddr>) -> Option<Place<'_>> {
        let mut memory = self.memory();
        let all: usize = memory.waiting.values().sum();
        let own = memory.waiting.get(&peer).copied().unwrap_or(0);
        if all >= WAITING || own >= WAITING_OF_ONE {
            return None;
        }
        memory.waiting.insert(peer, own + 1);
        Some(Place { doorkeeper: self, peer })
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock()
    }
}

impl Memory {
    /// `name`: whose right password it was.
    fn learn(&mut self, name: Option<String>, digest: Digest, rest_until: Monotonic) -> Verdict {
        if let Some(name) = name {
            self.accepted.insert(name, digest);
            return Verdict::Accepted;
        }
        self.rest_until = rest_until;
        if self.refused.len() == REFUSED {
            self.refused.pop_front();
        }
        self.refused.push_back(digest);
        Verdict::Refused
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
        let (doorkeeper, users) = (Doorkeeper::new(Clock::start()), users());
        for _ in 0..2 {
            for (headers, verdict) in [
                (sent("alice", "right"), Verdict::Accepted),
                (sent("alice", "wrong"), Verdict::Refused),
                (sent("bob", "right"), Verdict::Refused),
                (sent("", ""), Verdict::Refused),
                (HeaderMap::new(), Verdict::Refused),
            ] {
                assert_eq!(doorkeeper.judge(&users, &headers, None).await, verdict, "{headers:?}");
            }
        }
        let other = BTreeMap::from([("alice".to_owned(), bcrypt::hash("new", 4).unwrap())]);
        assert_eq!(doorkeeper.judge(&other, &sent("alice", "right"), None).await, Verdict::Refused, "it was changed");
        assert_eq!(doorkeeper.judge(&other, &sent("alice", "new"), None).await, Verdict::Accepted);
    }

    #[tokio::test]
    async fn guessing_neither_pushes_out_the_right_password_nor_takes_all_places() {
        let (doorkeeper, users) = (Doorkeeper::new(Clock::start()), users());
        assert_eq!(doorkeeper.judge(&users, &sent("alice", "right"), None).await, Verdict::Accepted);
        for guess in 0..REFUSED + 6 {
            let verdict = doorkeeper.judge(&users, &sent("alice", &guess.to_string()), None).await;
            assert_eq!(verdict, Verdict::Refused);
        }
        let digest = doorkeeper.digest(b"alice", &users["alice"], b"right");
        let name = "alice".to_owned();
        assert_eq!(doorkeeper.remembered(Some(&name), &digest), Some(Verdict::Accepted));
        assert_eq!(doorkeeper.memory().refused.len(), REFUSED);

        let address = |last| Some(IpAddr::from([10, 0, 0, last]));
        let of_one: Vec<_> = (0..WAITING_OF_ONE).map(|_| doorkeeper.wait(address(1)).unwrap()).collect();
        assert_eq!(doorkeeper.judge(&users, &sent("alice", "x"), address(1)).await, Verdict::Busy);
        assert_eq!(doorkeeper.judge(&users, &sent("alice", "x"), address(2)).await, Verdict::Refused);
        drop(of_one);
        assert_eq!(doorkeeper.judge(&users, &sent("alice", "y"), address(1)).await, Verdict::Refused);
        assert!(doorkeeper.memory().waiting.is_empty());
    }

    #[tokio::test]
    async fn who_hangs_up_while_a_guess_is_checked_escapes_nothing() {
        let (doorkeeper, users) = (Doorkeeper::new(Clock::start()), users());
        let headers = sent("alice", "wrong");
        // Asked once, it has begun to compute; then nobody waits for it any more.
        let guess = doorkeeper.judge(&users, &headers, None);
        let _perhaps = tokio::time::timeout(Duration::ZERO, guess).await;
        let _ended = doorkeeper.hashing.acquire().await.unwrap();
        assert_eq!(doorkeeper.memory().refused.len(), 1);
        assert_ne!(doorkeeper.memory().rest_until, Monotonic::default());
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
