//! The live page: one document with its style and script, which loads nothing else. All markup is rendered here, also
//! that of later updates: without JavaScript it is a static page.

mod chart;
mod containers;
pub(super) mod detail;
mod devices;
mod events;
mod facts;
mod holders;
pub(super) mod parts;
mod plugin;
mod sources;
mod summary;
mod text;
mod view;

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ring::digest::{SHA256, digest};
use parts::part;
pub(super) use view::View;

use crate::domain::history::{NodeHistory, Window};
use crate::domain::model::{Account, Gpu, Moment, Snapshot, equal_division};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Permits this style, this script and requests to this server; nothing else is loaded, sent or framed.
pub(super) static CONTENT_SECURITY_POLICY: LazyLock<String> = LazyLock::new(|| {
    let [style, script] = [STYLE, SCRIPT].map(|text| STANDARD.encode(digest(&SHA256, text.as_bytes())));
    format!(
        "default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
});

/// An icon as data, so that browsers do not request a file.
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
    %3Crect width='16' height='16' rx='4' fill='%230b5fce'/%3E\
    %3Cpath d='M3 12V9h2v3zM7 12V4h2v8zM11 12V7h2v5z' fill='white'/%3E%3C/svg%3E";

/// What the page shows.
pub(super) struct NodePage<'a> {
    pub snapshot: &'a Snapshot,
    pub history: &'a NodeHistory,
    pub now: Moment,
    /// The reason why the agent is not ready.
    pub not_ready: Option<String>,
    pub view: View,
}

impl NodePage<'_> {
    pub fn whole(&self) -> String {
        let title = if self.snapshot.node_name.is_empty() { "podmeter" } else { &*self.snapshot.node_name };
        let body = html! {
            a.skip href="#devices" { "Skip to the devices" }
            header {
                h1 { (title) }
                p #status role="status" { noscript { "As of " (text::time(self.now.unix)) " UTC; without JavaScript, reload to update." } }
                nav #sections aria-label="Sections" {
                    a href="#devices" { "Devices" } a href="#containers" { "Containers" } a href="#events" { "Events" }
                    @if self.snapshot.plugin.is_some() { a href="#plugin" { "Plugin" } }
                    a href="#sources" { "Sources" } a href="/metrics" { "Metrics" }
                }
                form #search role="search" hidden {
                    label for="filter" { "Filter" }
                    input #filter type="search" autocomplete="off" spellcheck="false" placeholder="pod, namespace or device"
                        title="also namespace:ml, pod:train, container:main, device:3";
                    output #found for="filter" {}
                }
            }
            main #live { (self.changing_part()) }
            footer {
                a href="/metrics/dcgm" { "metrics under DCGM names" } " · "
                a href="/api/v1/node" { "snapshot as JSON" } " · " a href="/api/v1/history" { "history as JSON" } " · "
                a href="/-/ready" { "readiness" } " · " a href="/-/healthy" { "health" }
                " · podmeter " (env!("CARGO_PKG_VERSION"))
            }
            div #tip hidden {}
            script { (PreEscaped(SCRIPT)) }
        };
        parts::without_edges(document(title, body))
    }

    /// The part that changes, as sent in events.
    pub fn changing_part(&self) -> Markup {
        let snapshot = self.snapshot;
        let journal = snapshot.journal.as_ref().and_then(|journal| journal.problem.as_deref());
        let journal = journal.map(|problem| format!("the journal of allocations is not written: {problem}"));
        let problems = [
            self.not_ready.as_deref(),
            snapshot.hardware.problem.as_deref(),
            snapshot.kubelet.problem.as_deref(),
            journal.as_deref(),
        ];
        html! {
            div.about {
                p {
                    (snapshot.hardware.driver_words()) ", up for " (text::span(self.now.monotonic.as_duration().as_secs()))
                    ", as of " (text::time(snapshot.at.unix)) " UTC"
                }
                nav.windows aria-label="Window" {
                    @for window in Window::ALL {
                        a href=(View { window, ..self.view }.link()) data-view
                            aria-current=[(window == self.view.window).then_some("true")] { (view::window_words(window)) }
                    }
                }
            }
            @for problem in problems.into_iter().flatten() {
                p.problem { (problem) }
            }
            @if let Some(note) = equal_division(&snapshot.accounts, snapshot.processes.as_deref()) { p.note { (note) } }
            @for taken in &snapshot.unallocated_uses {
                p.problem {
                    (taken.pod.namespace) "/" (taken.pod.pod) " uses " (text::device_name(snapshot, &taken.gpu, None))
                    ", which it does not hold"
                }
            }
            (summary::tiles(self))
            (devices::devices(self))
            (containers::containers(self))
            (part(events::events(self)))
            @if let Some(plugin) = &snapshot.plugin {
                (part(plugin::plugin(plugin)))
            }
            (part(sources::sources(self)))
        }
    }

    /// The accounts of this GPU and its MIG devices that are held now.
    fn holders<'b>(&'b self, gpu: &'b Gpu) -> impl Iterator<Item = &'b Account> {
        self.snapshot.accounts.iter().filter(|account| account.gpu == gpu.uuid && account.holding.is_some())
    }
}

fn document(title: &str, body: Markup) -> Markup {
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
            body { (body) }
        }
    }
}

/// A part of the page with a link target, which folds. `is_open`: at first.
fn section(id: &'static str, title: &str, about: Markup, is_open: bool, body: Markup) -> Markup {
    html! {
        section data-key={ "section-" (id) } {
            details open[is_open] {
                summary { h2 id=(id) tabindex="-1" { (title) } span.muted { (about) } }
                (body)
            }
        }
    }
}

/// The class of a column of numbers.
const NUMBER: Option<&str> = Some("number");

/// A small table: headings with the class of their column, and rows that begin with their name.
fn table<const N: usize>(headings: [(&str, Option<&str>); N], rows: impl Iterator<Item = [Markup; N]>) -> Markup {
    html! {
        table.small {
            thead { tr { @for (heading, class) in headings { th class=[class] scope="col" { (heading) } } } }
            tbody {
                @for cells in rows {
                    tr {
                        @for (index, cell) in cells.into_iter().enumerate() {
                            @if index == 0 { th scope="row" { (cell) } } @else { td class=[headings[index].1] { (cell) } }
                        }
                    }
                }
            }
        }
    }
}

/// The metrics and events of a row: a link to their page, which the script replaces by its content. The script keeps
/// what is in it (`data-keep`).
fn more(key: &str, name: &str) -> Markup {
    let encoded = utf8_percent_encode(key, NON_ALPHANUMERIC);
    html! {
        details.more data-key="more" {
            summary aria-label={ "Metrics and events of " (name) } {}
            div data-keep { a href={ "/detail?key=" (encoded) } { "Metrics and events" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::view::Sort;
    use super::*;
    use crate::domain::model::{Attribution, SharingForm, UnhealthyReason};
    use crate::serve::metrics::tests::fixture;

    fn rendered(snapshot: &Snapshot, not_ready: Option<&str>) -> String {
        seen(snapshot, not_ready, View::default())
    }

    fn seen(snapshot: &Snapshot, not_ready: Option<&str>, view: View) -> String {
        let mut history = NodeHistory::default();
        history.note(snapshot);
        let not_ready = not_ready.map(str::to_owned);
        NodePage { snapshot, history: &history, now: snapshot.at, not_ready, view }.whole()
    }

    /// The row of this device or container.
    fn row<'a>(page: &'a str, key: &str) -> &'a str {
        let start = page.find(&format!("data-key=\"{key}")).expect("it has a row");
        page[start..].split("</details>").next().unwrap()
    }

    #[test]
    fn a_tile_tells_a_part_of_the_gpus_from_all_and_unknown_from_none() {
        let mut snapshot = fixture::snapshot();
        let tile = |snapshot: &Snapshot, label| {
            let page = rendered(snapshot, None);
            let tile = page.split(&format!("<dt>{label}</dt>")).nth(1).unwrap();
            tile.split("</dd>").next().unwrap().to_owned()
        };
        for label in ["Busy now", "Memory", "Power"] {
            assert!(tile(&snapshot, label).contains("2 of 4 GPUs known"), "{}", tile(&snapshot, label));
        }
        assert!(!tile(&snapshot, "Held and idle").contains("data-value"), "{}", tile(&snapshot, "Held and idle"));
        snapshot.accounts.clear();
        assert!(tile(&snapshot, "Held and idle").contains("data-value=\"0.000\""));
    }

    #[test]
    fn no_free_slot_is_not_shown_as_good() {
        let mut snapshot = fixture::snapshot();
        for (free, class) in [(2, "free"), (0, "free none")] {
            let device = &mut snapshot.overview.devices[0];
            (device.slots, device.free_slots) = (Some(125), Some(free));
            let page = rendered(&snapshot, None);
            let shown = format!(
                "<p class=\"{class}\"><b data-figure=\"free\" data-value=\"{free}.000\">{free}</b> of 125 slots free"
            );
            assert!(page.contains(&shown), "{page}");
        }
    }

    #[test]
    fn equal_division_is_shown_with_its_remedy_and_each_percentage_is_of_the_device() {
        let mut snapshot = fixture::snapshot();
        assert!(!rendered(&snapshot, None).contains("divided equally"));
        snapshot.processes = None;
        let account = &mut snapshot.accounts[0];
        (account.utilization_ratio, account.gpu_utilization_ratio) = (Some(1.0), Some(0.34));
        let holding = account.holding.as_mut().unwrap();
        (holding.sharing, holding.fraction) = (SharingForm::TimeSlicing, Some(0.25));
        holding.attribution = Some(Attribution::EqualShare);
        let page = rendered(&snapshot, None);
        assert!(page.contains("is divided equally among their holders: hostPID is off; with hostPID=true"), "{page}");
        let row = row(&page, &format!("research/training-0/main {}", fixture::WHOLE));
        assert!(
            row.contains("data-figure=\"busy-now\" data-value=\"0.340\">34\u{a0}%<"),
            "not 100 % of its slot: {row}"
        );
        assert!(row.contains("time slicing, holds 25\u{a0}%, in equal parts"), "{row}");
    }

    #[test]
    fn a_mark_is_no_fault_and_a_gpu_that_is_not_served_has_no_unknown_model() {
        let mut snapshot = fixture::snapshot();
        for health in Arc::make_mut(&mut snapshot.health).gpus.values_mut() {
            health.whole.causes.iter_mut().for_each(|cause| cause.reason = UnhealthyReason::Admin);
        }
        let page = rendered(&snapshot, None);
        assert!(page.contains("1 marked, 1 not served") && !page.contains(" unhealthy, "), "{page}");
        assert!(page.contains(">marked</span>") && !page.contains("model unknown"), "{page}");
    }

    #[test]
    fn names_are_escaped() {
        let mut snapshot = fixture::snapshot();
        snapshot.node_name = "<script>alert(1)</script>".into();
        let page = rendered(&snapshot, Some("<img src=x>"));
        assert_eq!(page.matches("<script").count(), 1, "our own");
        assert!(!page.contains("<img") && !page.contains("<b>&amp;"), "{page}");
        assert!(page.contains("ev&quot;il\\pod\n") && page.contains(" 1 &lt;b&gt;&amp;amp;β€"), "{page}");
    }

    #[test]
    fn unknown_is_a_dash_and_a_hatched_chart() {
        let page = rendered(&fixture::snapshot(), None);
        let lost = row(&page, fixture::LOST);
        assert!(lost.contains("<b data-figure=\"busy-now\">–</b>"), "{lost}");
        for chart in ["busy, last 5 min: unknown", "power, last 5 min: unknown"] {
            assert!(lost.contains(&format!("aria-label=\"{chart}\"")) && !lost.contains("<path"), "{lost}");
        }
    }

    #[test]
    fn nothing_is_loaded_from_other_servers() {
        let page = rendered(&fixture::snapshot(), None);
        // An XML namespace, which is not loaded.
        let page = page.replace("xmlns='http://www.w3.org/2000/svg'", "");
        for word in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!page.contains(word), "{word}");
        }
        assert!(!page.contains(" style=") && !page.contains(" onclick"), "the policy would refuse it");
    }

    #[test]
    fn the_health_is_shown_with_its_cause_and_the_unhealthy_part() {
        let page = rendered(&fixture::snapshot(), None);
        assert!(row(&page, fixture::WHOLE).contains(">healthy<"));
        let lost = row(&page, fixture::LOST);
        assert!(lost.contains("the driver no longer lists it; recovers after a reset.</p>"), "{lost}");
        assert!(row(&page, fixture::OTHER_SLICE).contains("XID 95"));
        assert!(!row(&page, fixture::SLICE).contains("unhealthy"));
    }

    #[test]
    fn every_link_has_a_target() {
        let page = rendered(&fixture::snapshot(), None);
        let links: BTreeSet<&str> = page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        for link in &links {
            assert!(page.contains(&format!("id=\"{link}\"")), "#{link} has no target");
        }
        assert_eq!(links.len(), 5, "{links:?}");
    }

    #[test]
    fn containers_are_sorted_as_chosen_and_the_ended_come_last() {
        let snapshot = fixture::snapshot();
        let pods = |sort: Sort| -> Vec<String> {
            let page = seen(&snapshot, None, View { sort, ..View::default() });
            let table = page.split("<table class=\"containers\"").nth(1).unwrap().to_owned();
            let keys = table.split("<tr").filter_map(|row| row.split('>').next()?.split("data-key=\"").nth(1));
            keys.map(|key| key.split('"').next().unwrap().to_owned()).collect()
        };
        let by_name = pods(Sort::Name);
        let held = snapshot.accounts.iter().filter(|account| account.holding.is_some()).count();
        assert!(by_name[..held].is_sorted(), "{by_name:?}");
        let by_energy = pods(Sort::Energy);
        assert_ne!(by_name, by_energy);
        let most = snapshot.accounts.iter().filter(|account| account.holding.is_some());
        let most = most
            .max_by(|one, other| one.figures.energy_joules.partial_cmp(&other.figures.energy_joules).unwrap())
            .unwrap();
        assert!(by_energy[0].starts_with(&most.container.to_string()), "{by_energy:?}");
        assert_eq!(by_name.len(), by_energy.len());
    }

    #[test]
    fn busy_beyond_the_time_held_is_called_borrowed() {
        let mut snapshot = fixture::snapshot();
        snapshot.accounts.truncate(1);
        snapshot.accounts[0].figures.borrowed_seconds = None;
        assert!(!rendered(&snapshot, None).contains(" borrowed"));
        (snapshot.accounts[0].figures.busy_seconds, snapshot.accounts[0].figures.borrowed_seconds) =
            (Some(20.0), Some(10.0));
        assert!(rendered(&snapshot, None).contains("data-value=\"10.000\">10 s</b> borrowed"));
    }

    #[test]
    fn those_that_ended_over_a_minute_ago_are_folded() {
        let mut snapshot = fixture::snapshot();
        snapshot.accounts.truncate(1);
        snapshot.accounts[0].holding = None;
        snapshot.accounts[0].ended = Some(snapshot.at);
        assert!(!rendered(&snapshot, None).contains("ended over a minute ago"));
        snapshot.at.monotonic = snapshot.at.monotonic + std::time::Duration::from_secs(60);
        assert!(rendered(&snapshot, None).contains("1 ended over a minute ago"));
    }

    #[test]
    fn an_empty_node_has_a_message() {
        let (snapshot, history) = (Snapshot::default(), NodeHistory::default());
        let not_ready = Some("no snapshot yet".to_owned());
        let page = NodePage {
            snapshot: &snapshot,
            history: &history,
            now: Moment::default(),
            not_ready,
            view: View::default(),
        };
        let page = page.whole();
        assert!(page.contains("No GPU found.") && page.contains("no snapshot yet"));
    }
}
