//! The events, newest first.

use maud::{Markup, html};

use super::text::{device_name, time};
use super::{NodePage, Selection, section};
use crate::domain::history::{HistoryEvent, Severity};
use crate::domain::model::Snapshot;

const SHOWN: usize = 60;
/// The most devices or containers that one event names.
const NAMED: usize = 8;

pub(super) fn events(page: &NodePage<'_>, selection: &Selection<'_>) -> Markup {
    let events = &selection.events;
    let body = html! {
        @if page.history.events().len() == 0 {
            p.muted { "No events since podmeter started." }
        } @else if events.is_empty() {
            p.muted { "No event matches the filter." }
        } @else {
            // It scrolls, so it must be reachable by keyboard.
            ol.events tabindex="0" aria-labelledby="events" {
                @for event in events.iter().take(SHOWN) { (item(page.snapshot, event)) }
            }
        }
    };
    section(
        "events",
        "Events",
        html! {
            @if !page.view.filter.is_empty() { (events.len()) " of " (page.history.events().len()) "; " }
            "newest first, in UTC"
        },
        true,
        body,
    )
}

pub(super) fn item(snapshot: &Snapshot, event: &HistoryEvent) -> Markup {
    let devices: Vec<String> =
        event.devices.iter().map(|device| device_name(snapshot, &device.gpu, device.mig.as_ref())).collect();
    let severity = match event.severity {
        Severity::Good => "good",
        Severity::Plain => "plain",
        Severity::Bad => "bad",
    };
    html! {
        li data-key=(format!("event-{}", event.number)) {
            (time(event.at.unix))
            span.badge.(severity) { (event.kind.into_str()) }
            span.what {
                @if !devices.is_empty() { b { (listed(&devices)) } " " }
                (event.text)
                @if !event.containers.is_empty() {
                    @let names: Vec<String> = event.containers.iter().map(|container| format!("{}/{}", container.namespace, container.pod)).collect();
                    span.muted { " · " (listed(&names)) }
                }
            }
        }
    }
}

fn listed(names: &[String]) -> String {
    let shown = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
    if names.len() > NAMED { format!("{shown}; and {} more", names.len() - NAMED) } else { shown }
}
