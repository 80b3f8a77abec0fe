//! The limit of simultaneous reads of the journal.

use std::sync::Arc;

use axum::body::Body;
use hyper::{Request, StatusCode};
use tokio::sync::{mpsc, watch};
use tower::ServiceExt as _;

use super::super::routes::JOURNAL_READS;
use super::super::{WebState, router};
use super::state;

#[tokio::test]
async fn a_read_of_the_journal_counts_although_its_client_disconnected() {
    let (_snapshots, latest) = watch::channel(Arc::default());
    let (begin, mut begun) = mpsc::unbounded_channel();
    // Reads hang until `hanging` is dropped.
    let (hanging, disk) = std::sync::mpsc::channel::<()>();
    let disk = parking_lot::Mutex::new(disk);
    let allocations = Arc::new(move |_: &str| {
        begin.send(()).unwrap();
        let _ = disk.lock().recv();
        Ok(vec![])
    });
    let router = router(WebState { allocations, ..state(latest) });
    let request = || Request::get("/api/v1/allocations").body(Body::empty()).unwrap();
    for _ in 0..2 {
        let client = tokio::spawn(router.clone().oneshot(request()));
        begun.recv().await.unwrap();
        client.abort();
        assert!(client.await.unwrap_err().is_cancelled());
    }
    assert!(JOURNAL_READS.try_acquire().is_err(), "both wait for the disk");
    drop(hanging);
    assert_eq!(router.oneshot(request()).await.unwrap().status(), StatusCode::OK);
}
