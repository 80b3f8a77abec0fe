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

use row::Area;

/// Each area with the test that runs its rows.
macro_rules! areas {
    ($($test:ident: $area:ident,)*) => {
        const AREAS: &[&Area] = &[$(&areas::$area::AREA),*];

        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                run::area(&areas::$area::AREA).await;
            }
        )*
    };
}

areas! {
    the_kubelet: kubelet,
    dra_claims: claims,
    the_plugin: plugin,
    the_driver: driver,
    a_device: devices,
    the_disk: disk,
    a_network_client: clients,
    the_configuration: configuration,
    the_clock: clock,
    a_signal: signals,
    a_repair_system: condition,
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
    document::check(AREAS);
}
