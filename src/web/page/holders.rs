//! The use of a device: busy time and memory as bars of holders and unattributed use.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::catalogue::{CONTAINER_BUSY, CONTAINER_MEMORY, UNATTRIBUTED_BUSY, UNATTRIBUTED_MEMORY};
use super::chart::{Segment, bar};
use super::text::{gibibytes, number, percent};
use crate::history::{History, Part};
use crate::model::{Gpu, Reason, Snapshot};

/// Per device; the table of containers has all.
const SHOWN: usize = 8;

#[derive(Default)]
struct Use {
    holds: bool,
    /// Recent part of the device's time.
    busy: Option<f64>,
    memory: Option<u64>,
}

pub(super) fn cell(snapshot: &Snapshot, history: &History, gpu: &Gpu, capacity: Option<u64>) -> Markup {
    let portions = history.busy_portions(snapshot, &gpu.uuid);
    let divides_busy = portions.is_some();
    let mut uses: BTreeMap<Part, Use> = BTreeMap::new();
    for portion in portions.into_iter().flatten() {
        uses.entry(portion.part).or_default().busy = Some(portion.ratio);
    }
    for account in snapshot.accounts.iter().filter(|account| account.gpu == gpu.uuid && account.holding.is_some()) {
        let used = uses.entry(Part::Container(account.container.clone())).or_default();
        used.holds = true;
        if let Some(bytes) = account.memory_used_bytes {
            used.memory = Some(used.memory.unwrap_or(0) + bytes);
        }
    }
    let unattributed = snapshot.unattributed.iter().find(|unattributed| unattributed.gpu == gpu.uuid);
    for (reason, bytes) in unattributed.into_iter().flat_map(|unattributed| &unattributed.memory_bytes) {
        uses.entry(Part::Unattributed(*reason)).or_default().memory = Some(*bytes);
    }
    uses.retain(|_, used| used.holds || used.busy.is_some_and(|ratio| ratio >= 0.005) || used.memory > Some(0));
    if uses.is_empty() {
        return html! { span.muted { "no container" } };
    }
    let segments = |of: &dyn Fn(&Use) -> Option<f64>| -> Vec<Segment> {
        let segment = |(place, (part, used)): (usize, (&Part, &Use))| {
            Some(Segment { class: class(part, place), ratio: of(used)? })
        };
        uses.iter().enumerate().filter_map(segment).collect()
    };
    let words = |what: &str, show: &dyn Fn(&Use) -> Option<String>| {
        let parts = uses.iter().filter_map(|(part, used)| Some(format!("{} {}", name(part), show(used)?)));
        format!("{what}: {}", parts.collect::<Vec<_>>().join(", "))
    };
    let memory_ratio = |used: &Use| Some(used.memory? as f64 / capacity.filter(|capacity| *capacity > 0)? as f64);
    html! {
        div.bars {
            @if divides_busy {
                span.muted { "busy" }
                (bar(&words("Recently busy", &|used| used.busy.map(percent)), &segments(&|used| used.busy)))
            }
            @if uses.values().any(|used| memory_ratio(used).is_some()) {
                span.muted { "memory" }
                (bar(&words("Memory", &|used| used.memory.map(gibibytes)), &segments(&memory_ratio)))
            }
        }
        ul.parts {
            @for (place, (part, used)) in uses.iter().enumerate().take(SHOWN) {
                li {
                    svg.swatch viewBox="0 0 1 1" aria-hidden="true" { rect class=(class(part, place)) width="1" height="1" {} }
                    span.part { (name(part)) }
                    @let (busy, memory) = metrics(part);
                    span.number { @if divides_busy { (number(busy, used.busy.map(percent))) } }
                    span.number { @if used.memory.is_some() { (number(memory, used.memory.map(gibibytes))) } }
                }
            }
            @if uses.len() > SHOWN { li.muted { "and " (uses.len() - SHOWN) " more" } }
        }
    }
}

fn metrics(part: &Part) -> (&'static str, &'static str) {
    match part {
        Part::Container(_) => (CONTAINER_BUSY, CONTAINER_MEMORY),
        Part::Unattributed(_) => (UNATTRIBUTED_BUSY, UNATTRIBUTED_MEMORY),
    }
}

/// Unattributed use is grey; use without an allocation has the warning colour.
fn class(part: &Part, place: usize) -> String {
    match part {
        Part::Container(_) => format!("part-{}", place % 8),
        Part::Unattributed(Reason::NotAllocated) => "part-taken".to_owned(),
        Part::Unattributed(_) => "part-rest".to_owned(),
    }
}

fn name(part: &Part) -> String {
    match part {
        Part::Container(container) => format!("{}/{}", container.namespace, container.pod),
        Part::Unattributed(reason) => match reason {
            Reason::Driver => "driver",
            Reason::Host => "processes outside of pods",
            Reason::Idle => "idle power",
            Reason::NotAllocated => "pods that do not hold it",
            Reason::TerminatedPod => "ended pods",
            Reason::Unknown => "unknown",
        }
        .to_owned(),
    }
}
