//! How much use is attributed to the right container, over an hour of virtual time with pods of 1 to 60 seconds:
//! `cargo bench --bench accuracy`. Prints one table; checks no limit.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement prints what it found")]

#[path = "../tests/support/mod.rs"]
mod support;

use crate::support::accuracy;
use std::time::Duration;

use crate::support::accuracy::Score;

fn main() {
    // `cargo bench` passes `--bench`; `cargo test --benches` does not and measures nothing.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    println!("| case | kubelet queried every | pods | quantity | right | too much | unattributed, by reason |");
    println!("|---|---|---|---|---|---|---|");
    for refresh in [1, 5].map(Duration::from_secs) {
        for case in accuracy::cases(refresh, Duration::from_secs(3600)) {
            let outcome = accuracy::run(case);
            assert_eq!(outcome.violations, 0);
            let quantities = [("allocated", &outcome.allocated), ("busy", &outcome.busy), ("joules", &outcome.energy)];
            for (name, score) in quantities {
                println!(
                    "| {} | {} s | {} | {name} | {:.3} % | {:.3} % | {} |",
                    case.name,
                    refresh.as_secs(),
                    outcome.pods,
                    score.percent(score.right),
                    score.percent(score.wrong),
                    unattributed(score)
                );
            }
        }
    }
}

fn unattributed(score: &Score) -> String {
    let of = |(reason, amount): (&&str, &f64)| {
        let percent = score.percent(*amount);
        (percent.abs() >= 0.0005).then(|| format!("{reason} {percent:+.3} %"))
    };
    score.unattributed.iter().filter_map(of).collect::<Vec<_>>().join(", ")
}
