use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse as _, Response};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

use super::auth::Authenticator;
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
        let accepted = config.users.is_empty() || self.authenticator.accepts(&config.users, request.headers()).await;
        let mut response = if accepted {
            let Ok(response) = router.oneshot(request).await;
            response
        } else {
            let reason = "a user and the right password are required";
            ([(WWW_AUTHENTICATE, "Basic")], refuse(request.uri(), StatusCode::UNAUTHORIZED, reason)).into_response()
        };
        for (name, value) in &config.headers {
            // The page sets its own policy, which names its script and style.
            response.headers_mut().entry(name.clone()).or_insert_with(|| value.clone());
        }
        response
    }
}
