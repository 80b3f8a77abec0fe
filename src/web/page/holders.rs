//! The use of a whole GPU: its busy time in the window and its memory now, as bars of holders and unattributed use.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::Page;
use super::chart::{Segment, bar};
use super::text::{gibibytes, or_unknown, percent};
use super::view::window_words;
use crate::history::Part;
use crate::model::{Gpu, Reason};

/// Per device; the table of containers has all.
const SHOWN: usize = 8;

#[derive(Default)]
struct Use {
    holds: bool,
    /// Part of the device's time.
    busy: Option<f64>,
    memory: Option<u64>,
}

pub(super) fn of_gpu(page: &Page<'_>, gpu: &Gpu, capacity: Option<u64>) -> Markup {
    let division = page.history.division(&gpu.uuid, page.view.window);
    let unknown = division.as_ref().map_or(1.0, |division| division.uncovered);
    let mut uses: BTreeMap<Part, Use> = BTreeMap::new();
    for (part, ratio) in division.into_iter().flat_map(|division| division.busy) {
        uses.entry(part).or_default().busy = Some(ratio).filter(|_| unknown < 1.0);
    }
    for account in page.holders(gpu) {
        let used = uses.entry(Part::Container(account.container.clone())).or_default();
        used.holds = true;
        if let Some(bytes) = account.memory_used_bytes {
            used.memory = Some(used.memory.unwrap_or(0) + bytes);
        }
    }
    let unattributed = page.snapshot.unattributed.iter().find(|unattributed| unattributed.gpu == gpu.uuid);
    for (reason, bytes) in unattributed.into_iter().flat_map(|unattributed| &unattributed.memory_bytes) {
        uses.entry(Part::Unattributed(*reason)).or_default().memory = Some(*bytes);
    }
    let is_partitioned = !gpu.mig_devices.is_empty();
    uses.retain(|part, used| match part {
        // The MIG devices name them.
        Part::Container(_) if is_partitioned => false,
        _ => used.holds || used.busy.is_some_and(|ratio| ratio >= 0.005) || used.memory > Some(1 << 20),
    });
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
    let busy_words = format!("busy, {}", window_words(page.view.window));
    html! {
        @if !uses.is_empty() && !is_partitioned {
            div.bars {
                "busy"
                (bar(&words(&busy_words, &|used| used.busy.map(percent)), segments(&|used| used.busy), unknown))
                "memory"
                (bar(&words("memory now", &|used| used.memory.map(gibibytes)), segments(&memory_ratio),
                    if capacity.is_none() { 1.0 } else { 0.0 }))
            }
        }
        @if !uses.is_empty() {
            ul.parts {
                @for (place, (part, used)) in uses.iter().enumerate().take(SHOWN) {
                    li {
                        svg.swatch viewBox="0 0 1 1" aria-hidden="true" { rect class=(class(part, place)) width="1" height="1" {} }
                        span.part.muted[has_ended(part, used)] { (name(part)) @if has_ended(part, used) { " (ended)" } }
                        span.number { (or_unknown(used.busy.map(percent))) }
                        span.number { (or_unknown(used.memory.map(gibibytes))) }
                    }
                }
                @if uses.len() > SHOWN { li.muted { "and " (uses.len() - SHOWN) " more" } }
            }
        }
    }
}

fn has_ended(part: &Part, used: &Use) -> bool {
    matches!(part, Part::Container(_)) && !used.holds
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
            Reason::Unknown => "owner unknown",
        }
        .to_owned(),
    }
}
