use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, Request, StatusCode};
use axum::response::Response;
use parking_lot::Mutex;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use super::auth::{AuthDecision, Authenticator};
use super::config::{LiveConfig, RateLimit};
use super::routes::refuse;
use super::server::Stream;
use crate::clock::Clock;
use crate::model::TokenBucket;

/// What the web configuration puts before the routes: TLS, the rate limit, passwords; and headers that every response
/// gets.
pub struct AccessControl {
    config: LiveConfig,
    clock: Clock,
    authenticator: Authenticator,
    /// With the limit that it was made for.
    bucket: Mutex<Option<(RateLimit, TokenBucket)>>,
}

impl AccessControl {
    pub fn new(config: LiveConfig, clock: Clock) -> Self {
        Self { config, clock, authenticator: Authenticator::new(clock), bucket: Mutex::default() }
    }

    /// The stream under TLS, if that is configured; returns after the handshake.
    pub async fn secure(&self, stream: Box<dyn Stream>) -> io::Result<Box<dyn Stream>> {
        match &self.config.current().await.tls {
            None => Ok(stream),
            Some(tls) => Ok(Box::new(TlsAcceptor::from(Arc::clone(tls)).accept(stream).await?)),
        }
    }

    pub async fn respond(&self, request: Request<Body>, peer: Option<IpAddr>, router: Router) -> Response {
        let config = self.config.current().await;
        if !config.rate_limit.is_none_or(|limit| self.take(limit)) {
            return refuse(request.uri(), StatusCode::TOO_MANY_REQUESTS, "more requests than rate_limit allows");
        }
        let decision = match config.users.is_empty() {
            true => AuthDecision::Accepted,
            false => self.authenticator.authenticate(&config.users, request.headers(), peer).await,
        };
        let mut response = match decision {
            AuthDecision::Accepted => {
                let Ok(response) = router.oneshot(request).await;
                response
            }
            AuthDecision::Refused => {
                let mut response =
                    refuse(request.uri(), StatusCode::UNAUTHORIZED, "a user and the right password are required");
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Basic"));
                response
            }
            AuthDecision::Busy => {
                let reason = "too many passwords wait to be checked; try again";
                refuse(request.uri(), StatusCode::TOO_MANY_REQUESTS, reason)
            }
        };
        for (name, value) in &config.headers {
            // The page sets its own policy, which names its script and style.
            response.headers_mut().entry(name.clone()).or_insert_with(|| value.clone());
        }
        response
    }

    /// Whether there was a token left.
    fn take(&self, limit: RateLimit) -> bool {
        let now = self.clock.now().monotonic;
        let mut current = self.bucket.lock();
        if current.as_ref().is_none_or(|(known, _)| *known != limit) {
            let per_second = 1.0 / limit.interval.as_secs_f64();
            *current = Some((limit, TokenBucket::full(per_second, f64::from(limit.burst), now)));
        }
        current.as_mut().is_some_and(|(_, bucket)| bucket.try_take(now))
    }
}
