//! The live page: one document with its style and script, which loads nothing else. All markup is rendered here, also
//! that of later updates: without JavaScript it is a static page.

mod catalogue;
mod chart;
mod containers;
mod devices;
mod events;
mod holders;
mod plugin;
mod sources;
mod summary;
mod text;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::history::History;
use crate::model::{Moment, Snapshot};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Permits this style, this script and events of this server; nothing else is loaded, sent or framed.
pub(super) const CONTENT_SECURITY_POLICY: &str = concat!(
    "default-src 'none'; style-src 'sha256-",
    env!("PODMETER_STYLE_SHA256"),
    "'; script-src 'sha256-",
    env!("PODMETER_SCRIPT_SHA256"),
    "'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
);

/// An icon as data, so that browsers do not request a file.
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
    %3Crect width='16' height='16' rx='4' fill='%230b5fce'/%3E\
    %3Cpath d='M3 12V9h2v3zM7 12V4h2v8zM11 12V7h2v5z' fill='white'/%3E%3C/svg%3E";

/// `not_ready`: the reason why the agent is not ready.
pub(super) fn page(snapshot: &Snapshot, history: &History, now: Moment, not_ready: Option<String>) -> String {
    let title = if snapshot.node_name.is_empty() { "podmeter" } else { &*snapshot.node_name };
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · podmeter" }
                link rel="icon" href=(PreEscaped(ICON));
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#devices" { "Skip to the devices" }
                header {
                    h1 { (title) }
                    p #status role="status" { noscript { "As of " (text::time(now.unix)) " UTC; without JavaScript, reload to update." } }
                    form #search role="search" hidden {
                        label for="filter" { "Filter" }
                        input #filter type="search" autocomplete="off" spellcheck="false" placeholder="pod, namespace or device"
                            aria-describedby="filter-help";
                        span #filter-help.muted { "also " code { "namespace:ml" } " " code { "pod:train" } " " code { "device:3" } }
                        output #found for="filter" {}
                    }
                }
                main {
                    div #live { (live_markup(snapshot, history, now, not_ready)) }
                    (catalogue::section())
                }
                footer {
                    a href="/metrics" { "metrics" } " · " a href="/metrics/dcgm" { "metrics under DCGM names" } " · "
                    a href="/api/v1/node" { "snapshot as JSON" } " · " a href="/api/v1/history" { "history as JSON" } " · "
                    a href="/-/ready" { "readiness" } " · " a href="/-/healthy" { "health" }
                    " · podmeter " (env!("CARGO_PKG_VERSION"))
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
    .into_string()
}

/// The part that changes, as sent in events.
pub(super) fn live(snapshot: &Snapshot, history: &History, now: Moment, not_ready: Option<String>) -> String {
    live_markup(snapshot, history, now, not_ready).into_string()
}

fn live_markup(snapshot: &Snapshot, history: &History, now: Moment, not_ready: Option<String>) -> Markup {
    let hardware = &snapshot.hardware;
    let journal = snapshot.journal.as_ref().and_then(|journal| journal.problem.as_deref());
    let journal = journal.map(|problem| format!("the journal of allocations is not written: {problem}"));
    let problems =
        [not_ready.as_deref(), hardware.problem.as_deref(), snapshot.kubelet.problem.as_deref(), journal.as_deref()];
    html! {
        p.about {
            (driver(snapshot)) ", up for " (text::span(now.monotonic.as_duration().as_secs()))
            ", as of " (text::time(snapshot.at.unix)) " UTC"
        }
        @for problem in problems.into_iter().flatten() {
            p.problem { (problem) }
        }
        @for taken in &snapshot.unallocated_uses {
            p.problem {
                (taken.pod.namespace) "/" (taken.pod.pod) " "
                a.metric href=(format!("#{}", catalogue::UNALLOCATED_USE)) { "uses" } " "
                (text::device_name(snapshot, &taken.gpu, None)) ", which it does not hold"
            }
        }
        (summary::tiles(snapshot, now))
        (devices::section(snapshot, history))
        (containers::section(snapshot, now))
        (events::section(snapshot, history))
        @if let Some(plugin) = &snapshot.plugin {
            (plugin::section(plugin))
        }
        (sources::section(snapshot, now))
    }
}

fn driver(snapshot: &Snapshot) -> String {
    let hardware = &snapshot.hardware;
    match (&hardware.inventory.driver, hardware.source) {
        (Some(driver), "simulated") => format!("simulated driver {}", driver.driver_version),
        (Some(driver), _) => format!("driver {}", driver.driver_version),
        (None, "none") => "reading no hardware".to_owned(),
        (None, _) => "no driver".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::metrics::tests::fixture;

    fn of(snapshot: &Snapshot, not_ready: Option<&str>) -> String {
        let mut history = History::default();
        history.note(snapshot);
        page(snapshot, &history, snapshot.at, not_ready.map(str::to_owned))
    }

    /// The row of this device or container.
    fn row<'a>(page: &'a str, key: &str) -> &'a str {
        let start = page.find(&format!("data-key=\"{key}")).expect("it has a row");
        page[start..].split("</tr>").next().unwrap()
    }

    #[test]
    fn names_are_escaped() {
        let mut snapshot = fixture::snapshot();
        snapshot.node_name = "<script>alert(1)</script>".into();
        let page = of(&snapshot, Some("<img src=x>"));
        assert_eq!(page.matches("<script").count(), 1, "our own");
        assert!(!page.contains("<img") && !page.contains("<b>&amp;"), "{page}");
        assert!(page.contains("ev&quot;il\\pod\n} 1 &lt;b&gt;&amp;amp;β€"), "{page}");
    }

    #[test]
    fn absent_is_a_dash() {
        let page = of(&fixture::snapshot(), None);
        let lost = row(&page, fixture::LOST);
        for label in ["Busy", "Memory"] {
            assert!(lost.contains(&format!("data-label=\"{label}\"><div>–</div></td>")), "{lost}");
        }
        assert!(!lost.contains("<svg class=\"chart\""), "no chart without points: {lost}");
    }

    #[test]
    fn nothing_is_loaded_from_other_servers() {
        let page = of(&fixture::snapshot(), None);
        // An XML namespace, which is not loaded.
        let page = page.replace("xmlns='http://www.w3.org/2000/svg'", "");
        for word in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!page.contains(word), "{word}");
        }
        assert!(!page.contains(" style=") && !page.contains(" onclick"), "the policy would refuse it");
    }

    #[test]
    fn the_health_is_shown_with_its_cause_and_the_unhealthy_part() {
        let page = of(&fixture::snapshot(), None);
        assert!(row(&page, fixture::WHOLE).contains(">healthy<"));
        assert!(row(&page, fixture::LOST).contains("the driver no longer lists it"));
        assert!(row(&page, fixture::OTHER_SLICE).contains("XID 95"));
        assert!(row(&page, fixture::SLICE).contains(">healthy<"));
    }

    #[test]
    fn every_value_links_to_a_metric_on_the_page() {
        let page = of(&fixture::snapshot(), None);
        let links: BTreeSet<&str> = page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        for link in &links {
            assert!(page.contains(&format!("id=\"{link}\"")), "#{link} has no target");
        }
        assert!(links.len() > 20, "{links:?}");
    }

    #[test]
    fn containers_are_sorted_by_idle_time_and_the_ended_come_last() {
        let snapshot = fixture::snapshot();
        let page = of(&snapshot, None);
        let table = page.split("<table class=\"cards containers\"").nth(1).unwrap();
        let keys: Vec<&str> = table.split("data-key=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let mut accounts: Vec<_> = snapshot.accounts.iter().collect();
        accounts.sort_by(|one, other| other.figures.idle_seconds.partial_cmp(&one.figures.idle_seconds).unwrap());
        accounts.sort_by_key(|account| account.holding.is_none());
        let expected: Vec<String> = accounts.iter().map(|account| account.gpu.to_string()).collect();
        assert!(keys.len() >= expected.len());
        let first = accounts[0];
        let uuid = first.mig.as_ref().map_or_else(|| first.gpu.to_string(), ToString::to_string);
        assert!(keys[0].ends_with(&uuid), "{keys:?}");
    }

    #[test]
    fn an_empty_node_has_a_message() {
        let page = page(&Snapshot::default(), &History::default(), Moment::default(), Some("no snapshot yet".into()));
        assert!(page.contains("No GPU found.") && page.contains("no snapshot yet"));
    }
}
