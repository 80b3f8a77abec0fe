//! The detail page of one GPU: identity, bars, health, holders, unattributed use, and events.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::format::{age, energy, memory, percent, span, spanned};
use super::history::Measure;
use super::rows::{self, DeviceRow};
use super::state::State;
use super::style::Look;
use super::view::value;
use crate::client::{Node, Unattributed};
use crate::model::Monotonic;
use crate::terminal::{clean, fit, wrapped};

/// Transitions of this device.
const EVENTS_SHOWN: usize = 20;

pub fn lines(state: &State, gpu: &str, look: Look, now: Monotonic, width: usize) -> Vec<Line<'static>> {
    let Some(node) = state.node() else { return vec![] };
    let rows: Vec<DeviceRow> = rows::devices(node).into_iter().filter(|row| row.gpu == gpu).collect();
    let Some(whole) = rows.first() else {
        return vec![Line::from("The agent no longer reports this device.")];
    };
    let since = state.freshness(now).1.as_secs_f64();
    let page = Page { node, gpu, look, width, since };
    let mut lines = page.identity(whole);
    for row in &rows {
        if rows.len() > 1 {
            lines.push(Line::default());
            lines.push(page.heading(&format!("{} {}, {}", row.name, row.model, row.status.words())));
        }
        lines.extend(page.bars(state, row));
    }
    lines.extend(page.health());
    lines.extend(page.holders());
    lines.extend(page.unattributed());
    lines.extend(page.events());
    lines
}

struct Page<'a> {
    node: &'a Node,
    gpu: &'a str,
    look: Look,
    width: usize,
    /// Seconds since the response.
    since: f64,
}

impl Page<'_> {
    fn heading(&self, text: &str) -> Line<'static> {
        Line::styled(fit(text, self.width, false), self.look.heading(false))
    }

    fn identity(&self, row: &DeviceRow) -> Vec<Line<'static>> {
        let mut words = vec![clean(self.gpu)];
        if let Some(gpu) = self.node.hardware.inventory.gpus.get(self.gpu) {
            words.extend(gpu.pci_bus_id.as_deref().map(|bus| format!("PCI {}", clean(bus))));
            words.extend(gpu.numa_node.map(|node| format!("NUMA node {node}")));
        }
        let title = format!("GPU {} {}, {}", row.name, row.model, row.status.words());
        let more = rows::machine(self.node, self.gpu);
        let lines = std::iter::once(words.join("  ")).chain((!more.is_empty()).then(|| more.join("  ")));
        let lines = lines.map(|line| Line::from(fit(&line, self.width, false)));
        std::iter::once(self.heading(&title)).chain(lines).collect()
    }

    fn bars(&self, state: &State, row: &DeviceRow) -> Vec<Line<'static>> {
        let columns = self.width.saturating_sub(23);
        let bar = |measure: Measure| {
            let history = state.history.last(&row.key, measure, columns);
            let label = format!("  {:7}{}", measure.as_str(), fit(&value(row, measure), 13, true));
            let bars = Span::styled(self.look.bar(&history, columns), self.look.bars());
            Line::from_iter([Span::raw(label), Span::raw(" "), bars])
        };
        // A MIG device has no power reading.
        let measures = Measure::ALL.into_iter().filter(|measure| row.order.1 == 0 || *measure != Measure::Power);
        measures.map(bar).collect()
    }

    fn section(&self, title: &str, entries: Vec<String>, nothing: &str, style: Style) -> Vec<Line<'static>> {
        let mut lines = vec![Line::default(), self.heading(title)];
        if entries.is_empty() {
            lines.push(Line::styled(format!("  {nothing}"), self.look.quiet()));
        }
        for entry in entries {
            for (number, line) in wrapped(&entry, self.width.saturating_sub(4)).into_iter().enumerate() {
                let indent = if number == 0 { "  " } else { "    " };
                lines.push(Line::styled(format!("{indent}{line}"), style));
            }
        }
        lines
    }

    fn health(&self) -> Vec<Line<'static>> {
        let Some(health) = self.node.health.gpus.get(self.gpu) else {
            return self.section("Health", vec![], "not checked yet", Style::new());
        };
        let since = span(age(self.node.at.monotonic, health.whole.since.monotonic) + self.since);
        let words: Vec<String> = rows::causes(self.node, self.gpu)
            .into_iter()
            .map(|(name, cause)| {
                let [reason, detail, clears] = [&cause.reason, &cause.detail, &cause.clears].map(|text| clean(text));
                format!("✗ GPU {name}: {reason}: {detail}; {clears}")
            })
            .collect();
        let style = if words.is_empty() { Style::new() } else { self.look.alarm() };
        let title = if health.whole.healthy { "healthy" } else { "unhealthy" };
        self.section(&format!("Health: {title} for {since}"), words, "no known fault", style)
    }

    fn holders(&self) -> Vec<Line<'static>> {
        let mut words = vec![];
        for account in self.node.accounts.iter().filter(|account| account.gpu == self.gpu) {
            let Some(holding) = &account.holding else { continue };
            let method = holding.attribution.as_deref().filter(|method| *method != holding.sharing);
            let method = method.map(|method| format!(" by {}", clean(method))).unwrap_or_default();
            let device = account.mig.as_deref().map(|mig| {
                let gpu = self.node.hardware.inventory.gpus.get(self.gpu);
                let known = gpu.and_then(|gpu| gpu.mig(mig)).map(|mig| format!("{}: ", clean(&mig.profile)));
                known.unwrap_or_else(|| format!("{}: ", clean(mig)))
            });
            let figures = &account.figures;
            words.push(format!(
                "{}{}: {}{method}, busy now {} (of the GPU {}), memory {}, held {}, GPU time {}: busy {} ({} borrowed), \
                 idle {}, unknown {}; processes {}",
                device.unwrap_or_default(),
                rows::name(&account.container),
                clean(&holding.sharing),
                percent(account.utilization_ratio),
                percent(account.device_utilization_ratio),
                memory(account.memory_used_bytes, None),
                spanned(figures.held_seconds),
                spanned(figures.allocated_seconds),
                spanned(figures.busy_seconds),
                spanned(figures.borrowed_seconds),
                spanned(figures.idle_seconds),
                spanned(figures.uncovered_seconds),
                account.processes.map_or_else(|| super::format::DASH.to_owned(), |count| count.to_string()),
            ));
        }
        words.sort();
        let is_free =
            rows::devices(self.node).iter().any(|row| row.key == self.gpu && row.free.as_deref() == Some("free"));
        let nothing = if is_free { "free" } else { "no container" };
        self.section("Held by", words, nothing, Style::new())
    }

    fn unattributed(&self) -> Vec<Line<'static>> {
        let mut words = vec![];
        for unattributed in self.node.unattributed.iter().filter(|unattributed| unattributed.gpu == self.gpu) {
            words.extend(reasons(unattributed).into_iter().map(|reason| part(unattributed, reason)));
        }
        for unallocated in self.node.unallocated_uses.iter().filter(|unallocated| unallocated.gpu == self.gpu) {
            let container = unallocated.container.as_deref().map(|name| format!("/{name}")).unwrap_or_default();
            let name = clean(&format!("{}/{}{container}", unallocated.pod.namespace, unallocated.pod.pod));
            words.push(format!("{name} uses it without holding it"));
        }
        self.section("Unattributed", words, "no data", Style::new())
    }

    fn events(&self) -> Vec<Line<'static>> {
        let now = self.node.at.monotonic;
        let ago = |then: std::time::Duration| format!("{} ago", span(age(now, then) + self.since));
        let mut words = vec![];
        for transition in
            self.node.health.transitions.iter().rev().filter(|transition| transition.gpu == self.gpu).take(EVENTS_SHOWN)
        {
            let to = if transition.to_healthy { "healthy, ended" } else { "unhealthy" };
            let holders: Vec<String> = transition.holders.iter().map(rows::name).collect();
            let held = if holders.is_empty() { String::new() } else { format!("; held by {}", holders.join(", ")) };
            let part = transition.mig.as_deref().map(|mig| format!(" ({})", clean(mig))).unwrap_or_default();
            let [reason, detail] = [&transition.reason, &transition.detail].map(|text| clean(text));
            words.push(format!("{}{part}: {to}: {reason}: {detail}{held}", ago(transition.at.monotonic)));
        }
        let xids = self.node.health.gpus.get(self.gpu).map(|health| &health.xids.last);
        for (code, xid) in xids.into_iter().flatten() {
            let (last, count) = (ago(xid.at.monotonic), xid.count);
            words.push(format!("XID {code} ({}): {count} times, last {last}", clean(&xid.class)));
        }
        self.section("Events", words, "none", Style::new())
    }
}

fn reasons(unattributed: &Unattributed) -> std::collections::BTreeSet<&String> {
    let keys = unattributed.busy_seconds.keys().chain(unattributed.energy_joules.keys());
    keys.chain(unattributed.memory_bytes.keys()).chain(unattributed.processes.keys()).collect()
}

fn part(unattributed: &Unattributed, reason: &String) -> String {
    let mut words = vec![];
    words.extend(unattributed.memory_bytes.get(reason).map(|bytes| format!("memory {}", memory(Some(*bytes), None))));
    words.extend(unattributed.processes.get(reason).map(|count| format!("processes {count}")));
    words.extend(unattributed.busy_seconds.get(reason).map(|seconds| format!("busy {}", span(*seconds))));
    words.extend(unattributed.energy_joules.get(reason).map(|joules| energy(Some(*joules))));
    format!("{}: {}", clean(reason), words.join(", "))
}
