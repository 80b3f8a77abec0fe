//! The hot paths, counted by callgrind: `scripts/instructions` runs one at a time and compares its instructions with
//! `budgets.tsv`.
//!
//! `instructions list` prints their names; `instructions NAME ROUNDS` prepares a path, runs a few warm-up rounds, and
//! then ROUNDS rounds inside `measured`, the only function that is counted.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

mod allocation;
#[allow(dead_code, reason = "tests use the rest")]
#[path = "../../tests/support/full_node.rs"]
mod full_node;
#[allow(dead_code, reason = "tests use the rest")]
#[path = "../../tests/support/links.rs"]
mod links;
mod node;
mod pages;
mod parsers;
mod refresh;

use std::hint::black_box;
use std::process::ExitCode;

/// Rounds that fill tables and pools first.
const WARM_UP: u64 = 3;

/// A path's name, and the function that runs the given number of rounds.
type Path = (&'static str, fn(u64));

const PATHS: [Path; 23] = [
    ("page/text", pages::text),
    ("page/openmetrics", pages::open_metrics),
    ("page/protobuf", pages::protobuf),
    ("page/dcgm-4.8", pages::dcgm_old),
    ("page/dcgm-both", pages::dcgm_both),
    ("page/gzip", pages::gzip),
    ("page/scrape", pages::scrape),
    ("list/38-pods", refresh::list_of_38),
    ("list/1000-pods", refresh::list_of_1000),
    ("list/recorded", refresh::recorded_lists),
    ("second/readings", refresh::readings),
    ("second/owners", refresh::owners_of_512),
    ("second/processes", refresh::processes_by_device),
    ("second/ledger", refresh::ledger),
    ("second/health", refresh::health),
    ("second/history", refresh::history),
    ("allocate/slot", allocation::allocate),
    ("allocate/prefer-slots", allocation::prefer_slots),
    ("allocate/prefer-nvswitch", allocation::prefer_nvswitch),
    ("allocate/prefer-mesh", allocation::prefer_mesh),
    ("parse/device-ids", parsers::device_ids),
    ("parse/cgroups", parsers::cgroups),
    ("parse/kernel-lines", parsers::kernel_lines),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let path = |name: &str| PATHS.iter().find(|(known, _)| *known == name);
    match words[..] {
        ["list"] => PATHS.iter().for_each(|(name, _)| println!("{name}")),
        [name, rounds] if path(name).is_some() => path(name).unwrap().1(rounds.parse().expect("a number of rounds")),
        // `cargo bench` and `cargo test --benches`: there is no callgrind.
        [] | ["--bench"] => println!("scripts/instructions counts these paths"),
        _ => {
            println!("instructions list | NAME ROUNDS");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// callgrind counts between entry and return of this function. Only `rounds` may call it.
#[inline(never)]
fn measured(work: &mut dyn FnMut()) {
    work();
    // Prevents a tail call, after which this function would not return.
    black_box(());
}

/// Counts `work` and the drop of its result, but not `input`, which gets the number of the round.
fn rounds<I, O>(count: u64, mut input: impl FnMut(u64) -> I, mut work: impl FnMut(I) -> O) {
    for round in 0..WARM_UP + count {
        let mut input = Some(input(round));
        let mut once = || drop(black_box(work(input.take().unwrap())));
        if round < WARM_UP { once() } else { measured(&mut once) }
    }
}
