use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, Request, StatusCode};
use axum::response::Response;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use super::auth::{AuthDecision, Authenticator};
use super::config::LiveConfig;
use super::routes::refuse;
use super::server::Stream;
use crate::clock::Clock;

/// What the web configuration puts before the routes: TLS, passwords; and headers that every response gets.
pub struct AccessControl {
    config: LiveConfig,
    authenticator: Authenticator,
}

impl AccessControl {
    pub fn new(config: LiveConfig, clock: Clock) -> Self {
        Self { config, authenticator: Authenticator::new(clock) }
    }

    /// The stream under TLS, if that is configured; returns after the handshake.
    pub async fn secure(&self, stream: Box<dyn Stream>) -> io::Result<Box<dyn Stream>> {
        match &self.config.current().tls {
            None => Ok(stream),
            Some(tls) => Ok(Box::new(TlsAcceptor::from(Arc::clone(tls)).accept(stream).await?)),
        }
    }

    pub async fn respond(&self, request: Request<Body>, router: Router) -> Response {
        let config = self.config.current();
        let decision = match config.users.is_empty() {
            true => AuthDecision::Accepted,
            false => self.authenticator.authenticate(&config.users, request.headers()).await,
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
}
