//! The age of each source.

use maud::{Markup, html};

use super::catalogue::{ALLOCATIONS_AGE, COLLECTOR_AGE, COLLECTOR_DURATION, COLLECTOR_SUCCESS};
use super::text::{ago, heading, number};
use crate::model::{Collector, Moment, Snapshot};

pub(super) fn section(snapshot: &Snapshot, now: Moment) -> Markup {
    let kubelet = &snapshot.kubelet;
    let tiers = snapshot.hardware.collectors.iter().map(|(name, collector)| (*name, collector));
    html! {
        section aria-labelledby="freshness" {
            h2 id="freshness" { "Freshness" }
            table.sources {
                thead { tr {
                    th scope="col" { "Source" }
                    th scope="col" { (heading(COLLECTOR_SUCCESS, "Last run")) }
                    th.number scope="col" { (heading(COLLECTOR_AGE, "Last success")) }
                    th.number scope="col" { (heading(COLLECTOR_DURATION, "Took")) }
                } }
                tbody {
                    @for (name, collector) in [("kubelet", &kubelet.collector)].into_iter().chain(tiers) {
                        tr {
                            th scope="row" { (label(name)) }
                            td { (outcome(collector)) }
                            td.number { (number(COLLECTOR_AGE, collector.last_success.map(|then| ago(now, then)))) }
                            td.number {
                                (number(COLLECTOR_DURATION, collector.duration.map(|took| format!("{:.1} ms", took.as_secs_f64() * 1e3))))
                            }
                        }
                    }
                    tr {
                        th scope="row" { "allocations in use" }
                        td {
                            @if kubelet.allocations.is_none() { "–" }
                            @else if kubelet.settled { span.badge.good { "settled" } }
                            @else { span.badge.plain { "settling" } }
                        }
                        td.number { (number(ALLOCATIONS_AGE, kubelet.allocations_at.map(|then| ago(now, then)))) }
                        td.number { "–" }
                    }
                }
            }
        }
    }
}

fn label(name: &str) -> &str {
    match name {
        "fast" => "driver: use and power",
        "medium" => "driver: memory, heat, clocks",
        "slow" => "driver: errors, links",
        "events" => "driver: events",
        other => other,
    }
}

fn outcome(collector: &Collector) -> Markup {
    match collector {
        Collector { stuck: true, .. } => html! { span.badge.bad { "stuck" } },
        Collector { success: true, .. } => html! { span.badge.good { "succeeded" } },
        Collector { last_success: None, .. } => html! { span.badge.plain { "not yet" } },
        _ => html! { span.badge.bad { "failed" } },
    }
}
