//! The known faults around podmeter, one row each: what happens, what an operator then sees (metric, log line, page),
//! what keeps working, and how soon the node recovers after the fault ends. The real binary with a fake kubelet on real
//! sockets and a fake driver library through the real `dlopen`. `docs/engineering/reliability.md` is generated from the
//! rows.
//!
//! `PODMETER_BINARY` names the binary. `UPDATE_GOLDEN=1 cargo test --test fault_matrix` writes the document.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::print_stdout, reason = "the time of each row, and the log of a failed one")]
#![allow(clippy::disallowed_methods, reason = "a test waits for the binary, measures it, and compiles a clock")]

#[path = "../support/mod.rs"]
mod support;

mod areas;
mod document;
mod rig;
mod row;
mod run;

use std::collections::BTreeSet;

use areas::{
    claims, clients, clock, condition, configuration, devices, disk, driver, kubelet as kubelet_area, plugin, signals,
};
use row::Area;

const AREAS: [&Area; 11] = [
    &kubelet_area::AREA,
    &claims::AREA,
    &plugin::AREA,
    &driver::AREA,
    &devices::AREA,
    &disk::AREA,
    &clients::AREA,
    &configuration::AREA,
    &clock::AREA,
    &signals::AREA,
    &condition::AREA,
];

#[tokio::test(flavor = "multi_thread")]
async fn the_kubelet() {
    run::area(&kubelet_area::AREA).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dra_claims() {
    run::area(&claims::AREA).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plugin() {
    run::area(&plugin::AREA).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_driver() {
    run::area(&driver::AREA).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device() {
    run::area(&devices::AREA).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk() {
    run::area(&disk::AREA).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_client() {
    run::area(&clients::AREA).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration() {
    run::area(&configuration::AREA).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock() {
    run::area(&clock::AREA).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal() {
    run::area(&signals::AREA).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_system() {
    run::area(&condition::AREA).await;
}

#[test]
fn there_are_forty_rows_with_distinct_names() {
    let rows = AREAS.iter().flat_map(|area| area.rows);
    let mut names = BTreeSet::new();
    for row in rows {
        assert!(names.insert(row.id), "{} twice", row.id);
        assert!(!row.happens.is_empty() && !row.undone.is_empty() && row.within > 0, "{}", row.id);
    }
    assert!(names.len() >= 40, "{} rows", names.len());
}

#[test]
fn the_document_matches_the_rows() {
    document::check(&AREAS);
}
