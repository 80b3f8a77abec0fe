//! Rendering a page from a snapshot, and the response to a scrape with a rendered page.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use podmeter::clock::Clock;
use podmeter::metrics::dcgm::Generation;
use podmeter::metrics::{Coding, Format, Pages};
use podmeter::model::Snapshot;
use podmeter::web::{Admin, CachedBodies, Live, ScrapeDurations, WebState, router};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::watch;
use tower::ServiceExt as _;

use crate::{node, rounds};

/// Prometheus 3's request without Accept-Encoding: compression is measured separately.
const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9400\r\nUser-Agent: Prometheus/3.5.0\r\n\
    Accept: application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
    application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
    text/plain;version=0.0.4;q=0.3,*/*;q=0.2\r\n\
    X-Prometheus-Scrape-Timeout-Seconds: 10\r\n\r\n";

pub fn text(count: u64) {
    rendered(count, Format::Text);
}

pub fn open_metrics(count: u64) {
    rendered(count, Format::OpenMetrics);
}

pub fn protobuf(count: u64) {
    rendered(count, Format::Protobuf);
}

pub fn dcgm_old(count: u64) {
    rendered(count, Format::Dcgm(Generation::Old));
}

pub fn dcgm_both(count: u64) {
    rendered(count, Format::Dcgm(Generation::Both));
}

fn rendered(count: u64, format: Format) {
    let snapshot = node::snapshot();
    rounds(count, |_| Pages::default(), |pages| pages.page(&snapshot, format, Coding::Identity).unwrap());
}

/// Compression alone.
pub fn gzip(count: u64) {
    let snapshot = node::snapshot();
    let ready = |_| {
        let pages = Pages::default();
        pages.page(&snapshot, Format::Text, Coding::Identity).unwrap();
        pages
    };
    rounds(count, ready, |pages| pages.page(&snapshot, Format::Text, Coding::Gzip).unwrap());
}

/// From the request's bytes to those of the response, on a kept in-memory connection.
pub fn scrape(count: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (sender, snapshots) = watch::channel(Arc::new(node::snapshot()));
    let state = state(snapshots);
    let page = state.pages.page(&sender.borrow(), Format::OpenMetrics, Coding::Identity).unwrap();
    let (mut client, server) = duplex(4 * page.len());
    let routes = router(state);
    runtime.spawn(async move {
        let answering = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
            let routes = routes.clone();
            async move { Ok::<_, Infallible>(routes.oneshot(request.map(Body::new)).await.unwrap()) }
        });
        http1::Builder::new().serve_connection(TokioIo::new(server), answering).await.unwrap();
    });
    let mut answer = vec![0; 2 * page.len()];
    let ends = page[page.len() - 64..].to_vec();
    rounds(count, |_| (), |()| runtime.block_on(receive_page(&mut client, &mut answer, &ends)));
}

/// Sends a request and reads the response up to the end of the page.
async fn receive_page(client: &mut DuplexStream, answer: &mut [u8], ends: &[u8]) {
    client.write_all(SCRAPE.as_bytes()).await.unwrap();
    let mut read = 0;
    while !answer[..read].ends_with(ends) {
        let more = client.read(&mut answer[read..]).await.unwrap();
        assert!(more > 0 && answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", String::from_utf8_lossy(answer));
        read += more;
    }
}

fn state(snapshots: watch::Receiver<Arc<Snapshot>>) -> WebState {
    WebState {
        snapshots,
        pages: Arc::default(),
        dcgm_generation: Generation::default(),
        scrapes: ScrapeDurations::default(),
        clock: Clock::start(),
        healthy: Arc::new(|| Ok(())),
        ready: Arc::new(|| Ok(())),
        record: Arc::new(|_, _| Ok(String::new())),
        allocations: Arc::new(|_| Ok(Box::new(std::iter::empty()))),
        admin: Admin { driver: None, mark: Arc::new(|_| Box::pin(async { Ok(()) })) },
        live: Live::default(),
        cached_bodies: CachedBodies::default(),
    }
}
