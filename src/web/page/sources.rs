//! The age of each source.

use maud::{Markup, html};

use super::text::{ago, or_unknown};
use super::{Page, section};
use crate::model::Collector;

/// Open where something fails.
pub(super) fn sources(page: &Page<'_>) -> Markup {
    let (kubelet, now) = (&page.snapshot.kubelet, page.now);
    let tiers = page.snapshot.hardware.collectors.iter().map(|(name, collector)| (*name, collector));
    let all: Vec<(&str, &Collector)> = [("kubelet", &kubelet.collector)].into_iter().chain(tiers).collect();
    let failed = all.iter().filter(|(_, collector)| !collector.success).count();
    let about = html! { @if failed == 0 { "all succeeded" } @else { (failed) " of " (all.len()) " not successful" } };
    let body = html! {
            table.sources {
                thead { tr {
                    th scope="col" { "Source" }
                    th scope="col" { "Last run" }
                    th.number scope="col" { "Last success" }
                    th.number scope="col" { "Took" }
                } }
                tbody {
                    @for (name, collector) in all {
                        tr {
                            th scope="row" { (label(name)) }
                            td { (outcome(collector)) }
                            td.number { (or_unknown(collector.last_success.map(|then| ago(now, then)))) }
                            td.number {
                                (or_unknown(collector.duration.map(|took| format!("{:.1} ms", took.as_secs_f64() * 1e3))))
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
                        td.number { (or_unknown(kubelet.allocations_at.map(|then| ago(now, then)))) }
                        td.number { "–" }
                    }
                }
            }
    };
    section("sources", "Sources", about, failed > 0, body)
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
