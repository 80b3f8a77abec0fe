//! The age of each source.

use maud::{Markup, html};

use super::text::{ago, or_unknown};
use super::{NUMBER, NodePage, section, table};
use crate::domain::model::{Moment, SourceStatus};

/// The section of the sources; open at first where one fails.
pub(super) fn sources(page: &NodePage<'_>) -> Markup {
    let (kubelet, now) = (&page.snapshot.kubelet, page.now);
    let tiers = page.snapshot.hardware.collectors.iter().map(|(name, collector)| (*name, collector));
    let all: Vec<(&str, &SourceStatus)> = [("kubelet", &kubelet.collector)].into_iter().chain(tiers).collect();
    let failed = all.iter().filter(|(_, collector)| !collector.success).count();
    let about =
        html! { @if failed == 0 { "all succeeded" } @else { (failed) " of " (all.len()) " sources not successful" } };
    let since = |then: Option<Moment>| html! { (or_unknown(then.map(|then| ago(now, then.monotonic)))) };
    let rows = all.into_iter().map(|(name, collector)| {
        let took = or_unknown(collector.duration.map(|took| format!("{:.1} ms", took.as_secs_f64() * 1e3)));
        [html! { (label(name)) }, outcome(collector), since(collector.last_success), html! { (took) }]
    });
    let state = match (&kubelet.allocations, kubelet.settled) {
        (None, _) => html! { "–" },
        (_, true) => html! { span.badge.good { "settled" } },
        (_, false) => html! { span.badge.plain { "settling" } },
    };
    let headings = [("Source", None), ("Last run", None), ("Last success", NUMBER), ("Took", NUMBER)];
    let body = html! {
        (table(headings, rows))
        p { "Allocations in use: " (state) " " (since(kubelet.allocations_at)) }
    };
    section("sources", "Sources", about, failed > 0, body)
}

fn label(name: &str) -> &str {
    match name {
        "fast" => "driver: use and power",
        "medium" => "driver: memory, heat, clocks",
        "slow" => "driver: errors, links",
        "events" => "driver: events",
        "inventory" => "driver: list of GPUs",
        other => other,
    }
}

/// The last outcome; "not yet" for a kubelet that was not called and for a tier of the driver that was not read.
fn outcome(collector: &SourceStatus) -> Markup {
    match collector {
        SourceStatus { stuck: true, .. } => html! { span.badge.bad { "stuck" } },
        SourceStatus { success: true, .. } => html! { span.badge.good { "succeeded" } },
        SourceStatus { last_success: None, duration: None, .. } => html! { span.badge.plain { "not yet" } },
        _ => html! { span.badge.bad { "failed" } },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_kubelet_that_has_only_failed_is_not_one_that_was_not_called_yet() {
        let failed = SourceStatus { duration: Some(Duration::from_millis(2)), ..SourceStatus::default() };
        assert!(outcome(&failed).into_string().contains("badge bad\">failed"));
        assert!(outcome(&SourceStatus::default()).into_string().contains("badge plain\">not yet"));
    }
}
