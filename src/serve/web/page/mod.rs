//! The live page: one document with its style and script, which loads nothing else. All markup is rendered here, also
//! that of later updates: without JavaScript it is a static page.

mod chart;
mod containers;
pub(super) mod detail;
mod devices;
mod events;
mod facts;
mod filter;
mod grafana;
mod holders;
pub(super) mod parts;
mod plugin;
mod sources;
mod summary;
mod sums;
mod text;
mod view;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
pub use grafana::GrafanaUrl;
use itertools::Itertools as _;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use parts::part;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ring::digest::{SHA256, digest};
pub(super) use view::View;

use crate::domain::history::{HistoryEvent, NodeHistory, Window};
use crate::domain::model::{Account, ContainerRef, Gpu, GpuUuid, MigUuid, Moment, Snapshot, equal_division};
use crate::domain::periods::PAGE_STALE;
use crate::words::counted;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Permits only this style, this script and requests to this server; nothing else is loaded, sent or framed.
pub(super) static CONTENT_SECURITY_POLICY: LazyLock<String> = LazyLock::new(|| {
    let [style, script] = [STYLE, SCRIPT].map(|text| STANDARD.encode(digest(&SHA256, text.as_bytes())));
    format!(
        "default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
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

/// What the filter matches: accounts in the snapshot's order, events in the history's, GPUs in the page's.
struct Selection<'a> {
    accounts: Vec<&'a Account>,
    gpus: Vec<&'a Gpu>,
    events: Vec<&'a HistoryEvent>,
}

impl NodePage<'_> {
    pub fn whole(&self) -> String {
        let selection = self.selection();
        let body = html! {
            a.skip href="#devices" { "Skip to the devices" }
            header {
                h1 { (self.node_name()) }
                p #status role="status" { noscript { "As of " (text::time(self.now.unix)) " UTC; without JavaScript, reload to update." } }
                nav #sections aria-label="Sections" {
                    a href="#devices" { "Devices" } a href="#containers" { "Containers" } a href="#events" { "Events" }
                    @if self.snapshot.plugin.is_some() { a href="#plugin" { "Plugin" } }
                    a href="#sources" { "Sources" } a href="/metrics" { "Metrics" }
                }
                form #search role="search" action="/" {
                    @for (name, value) in self.view.names() { input type="hidden" name=(name) value=(value); }
                    label for="filter" { "Filter" }
                    input #filter name="filter" type="search" value=(self.view.filter.text()) maxlength=(filter::LENGTH)
                        autocomplete="off" spellcheck="false" placeholder="pod, namespace or device"
                        title="also namespace:ml, pod:train, container:main, device:3";
                    output #found for="filter" { (self.found(&selection)) }
                }
            }
            main #live { (self.live(&selection)) }
            footer {
                a href="/metrics/dcgm" { "metrics under DCGM names" } " · "
                a href="/api/v1/node" { "snapshot as JSON" } " · " a href="/api/v1/history" { "history as JSON" } " · "
                a href="/-/ready" { "readiness" } " · " a href="/-/healthy" { "health" }
                " · podmeter " (env!("CARGO_PKG_VERSION"))
            }
            div #tip hidden {}
            script { (PreEscaped(SCRIPT)) }
        };
        parts::without_edges(document(&self.title(), body))
    }

    fn node_name(&self) -> &str {
        if self.snapshot.node_name.is_empty() { "podmeter" } else { &self.snapshot.node_name }
    }

    /// The document's title, with the number of unhealthy GPUs.
    fn title(&self) -> String {
        match summary::unhealthy_and_marked(self.snapshot) {
            (0, _) => self.node_name().to_owned(),
            (count, _) => format!("{count} unhealthy · {}", self.node_name()),
        }
    }

    /// The part that changes, as sent in events.
    pub fn changing_part(&self) -> Markup {
        self.live(&self.selection())
    }

    fn selection(&self) -> Selection<'_> {
        let (snapshot, filter) = (self.snapshot, &self.view.filter);
        let accounts = snapshot
            .accounts
            .iter()
            .filter(|account| filter.matches(Some(&account.container), self.names(&account.gpu, account.mig.as_ref())));
        let accounts: Vec<&Account> = accounts.collect();
        let is_shown = |gpu: &&Gpu| {
            let migs = gpu.mig_devices.iter().map(|mig| Some(&mig.uuid));
            accounts.iter().any(|account| account.gpu == gpu.uuid && account.holding.is_some())
                || [None].into_iter().chain(migs).any(|mig| filter.matches(None, self.names(&gpu.uuid, mig)))
        };
        let mut gpus: Vec<&Gpu> = snapshot.hardware.inventory.gpus.values().filter(is_shown).collect();
        gpus.sort_by_key(|gpu| (gpu.order(), !gpu.present));
        let events = self.history.events().filter(|event| {
            let devices = event.devices.iter().map(|device| self.names(&device.gpu, device.mig.as_ref()));
            let devices = devices.chain(event.devices.is_empty().then(Vec::new));
            let containers = event.containers.iter().map(Some).chain(event.containers.is_empty().then_some(None));
            devices.cartesian_product(containers).any(|(names, container)| filter.matches(container, names))
        });
        Selection { events: events.collect(), accounts, gpus }
    }

    /// The GPUs that the page shows.
    pub fn gpus(&self) -> Vec<GpuUuid> {
        self.selection().gpus.into_iter().map(|gpu| gpu.uuid.clone()).collect()
    }

    /// The names of a device that the filter searches.
    fn names(&self, gpu: &GpuUuid, mig: Option<&MigUuid>) -> Vec<String> {
        let model = self.snapshot.hardware.inventory.gpus.get(gpu).and_then(|gpu| gpu.model.as_deref());
        let others = [mig.map(ToString::to_string), model.map(str::to_owned)].into_iter().flatten();
        [gpu.to_string(), text::device_name(self.snapshot, gpu, mig)].into_iter().chain(others).collect()
    }

    /// How much the filter has found; empty without a filter.
    fn found(&self, selection: &Selection<'_>) -> String {
        if self.view.filter.is_empty() {
            return String::new();
        }
        let containers: BTreeSet<&ContainerRef> = selection.accounts.iter().map(|account| &account.container).collect();
        let counts =
            [(selection.gpus.len(), "GPU"), (containers.len(), "container"), (selection.events.len(), "event")];
        counts.map(|(count, noun)| counted(count, noun)).join(", ")
    }

    fn live(&self, selection: &Selection<'_>) -> Markup {
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
            div.about data-stale-after=(PAGE_STALE.as_millis()) data-title={ (self.title()) " · podmeter" } data-found=(self.found(selection)) {
                p {
                    (snapshot.hardware.driver_words()) ", up for " (text::span(self.now.monotonic.as_duration().as_secs()))
                    ", as of " (text::time(snapshot.at.unix)) " UTC"
                }
                nav.windows aria-label="Window" {
                    @for window in Window::ALL {
                        a href=(self.view.with_window(window).link()) data-view
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
            (summary::tiles(self, selection))
            (devices::devices(self, selection))
            (containers::containers(self, selection))
            (part(events::events(self, selection)))
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

/// A part of the page with a link target, which folds. `is_open`: whether it is open at first.
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

/// The CSS class of a column of numbers.
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
mod tests;
