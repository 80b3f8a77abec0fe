//! A row per container and device, the longest idle first.

use maud::{Markup, html};

use super::catalogue::{
    CONTAINER_ALLOCATED, CONTAINER_BUSY, CONTAINER_ENERGY, CONTAINER_IDLE, CONTAINER_INFO, CONTAINER_LAST_ACTIVE,
    CONTAINER_MEMORY, CONTAINER_UTILIZATION,
};
use super::chart::{Segment, bar};
use super::text::{device_name, gibibytes, heading, kilowatt_hours, number, percent, span, words};
use crate::model::{Account, Attribution, Holding, Moment, Snapshot};

/// Rows shown; the rest are counted.
const SHOWN: usize = 500;
/// A holder that is idle for this long is marked.
pub(super) const IDLE_SECONDS: f64 = 60.0;

pub(super) fn section(snapshot: &Snapshot, now: Moment) -> Markup {
    let mut accounts: Vec<&Account> = snapshot.accounts.iter().collect();
    accounts.sort_by(|one, other| {
        let ended = |account: &Account| account.holding.is_none();
        let idle = |account: &Account| account.figures.idle_seconds.unwrap_or(-1.0);
        let name = |account: &Account| (account.container.clone(), account.gpu.clone(), account.mig.clone());
        let by_idle = idle(other).total_cmp(&idle(one));
        ended(one).cmp(&ended(other)).then(by_idle).then_with(|| name(one).cmp(&name(other)))
    });
    html! {
        section aria-labelledby="containers" {
            h2 id="containers" { "Containers" }
            @if accounts.is_empty() {
                p { "No container holds a GPU." }
            } @else {
                table.cards.containers role="table" aria-labelledby="containers" {
                    thead role="rowgroup" { tr role="row" {
                        th role="columnheader" scope="col" { (heading(CONTAINER_INFO, "Pod")) }
                        th role="columnheader" scope="col" { "Device" }
                        th.number role="columnheader" scope="col" aria-sort="descending" { (heading(CONTAINER_IDLE, "Idle")) " ▾" }
                        th.number role="columnheader" scope="col" { (heading(CONTAINER_LAST_ACTIVE, "Last active")) }
                        th.number role="columnheader" scope="col" { (heading(CONTAINER_UTILIZATION, "Use now")) }
                        th.number role="columnheader" scope="col" { (heading(CONTAINER_MEMORY, "Memory")) }
                        th.number role="columnheader" scope="col" { (heading(CONTAINER_BUSY, "Busy")) }
                        th.number role="columnheader" scope="col" { (heading(CONTAINER_ALLOCATED, "Held")) }
                        th.number role="columnheader" scope="col" { (heading(CONTAINER_ENERGY, "Energy")) }
                    } }
                    tbody role="rowgroup" {
                        @for account in accounts.iter().take(SHOWN) { (row(snapshot, account, now)) }
                    }
                }
                @if accounts.len() > SHOWN { p { "and " (accounts.len() - SHOWN) " more; /api/v1/node has all." } }
                p.none hidden data-none { "No container matches the filter." }
            }
        }
    }
}

fn row(snapshot: &Snapshot, account: &Account, now: Moment) -> Markup {
    let device = device_name(snapshot, &account.gpu, account.mig.as_ref());
    let container = &account.container;
    let uuid = account.mig.as_ref().map_or_else(|| account.gpu.to_string(), ToString::to_string);
    let held = account.holding.as_ref().map(|_| account);
    let since_active = since_active(account, now);
    let seconds = |seconds: Option<f64>| seconds.map(|seconds| span(seconds as u64));
    let found = words([container], [device.clone(), uuid.clone(), account.gpu.to_string()]);
    html! {
        tr role="row" class=[held.is_none().then_some("ended")] data-key=(format!("{container} {uuid}")) data-words=(found) {
            th.name role="rowheader" scope="row" {
                (container.pod)
                div.muted { (container.namespace) " · " (container.container) }
            }
            td role="cell" data-label="Device" {
                (device)
                div.muted { (account.holding.as_ref().map_or_else(|| "ended".to_owned(), sharing)) }
            }
            td.number role="cell" data-label="Idle" {
                (number(CONTAINER_IDLE, seconds(account.figures.idle_seconds)))
                (idle_bar(account))
            }
            td.number role="cell" data-label="Last active" {
                @let is_idle = held.is_some() && since_active.is_some_and(|since| since >= IDLE_SECONDS);
                span class=[is_idle.then_some("idle")] {
                    (number(CONTAINER_LAST_ACTIVE, since_active.map(|since| format!("{} ago", span(since as u64)))))
                }
            }
            td.number role="cell" data-label="Use now" {
                (number(CONTAINER_UTILIZATION, held.and_then(|account| account.utilization_ratio).map(percent)))
            }
            td.number role="cell" data-label="Memory" {
                (number(CONTAINER_MEMORY, held.and_then(|account| account.memory_used_bytes).map(gibibytes)))
            }
            td.number role="cell" data-label="Busy" { (number(CONTAINER_BUSY, seconds(account.figures.busy_seconds))) }
            td.number role="cell" data-label="Held" { (number(CONTAINER_ALLOCATED, seconds(account.figures.allocated_seconds))) }
            td.number role="cell" data-label="Energy" { (number(CONTAINER_ENERGY, account.figures.energy_joules.map(kilowatt_hours))) }
        }
    }
}

/// Seconds since this holder was last busy.
pub(super) fn since_active(account: &Account, now: Moment) -> Option<f64> {
    account.last_active.map(|then| (now.unix.0 - then.0).max(0.0))
}

/// Idle time as a part of the known time.
fn idle_bar(account: &Account) -> Markup {
    let (Some(idle), Some(busy)) = (account.figures.idle_seconds, account.figures.busy_seconds) else {
        return html! {};
    };
    let known = idle + busy;
    if known <= 0.0 {
        return html! {};
    }
    let ratio = idle / known;
    let class = "part-idle".to_owned();
    bar(&format!("Idle {} of the time", percent(ratio)), &[Segment { class, ratio }])
}

fn sharing(holding: &Holding) -> String {
    let name = |text: &str| text.replace('_', " ");
    match holding.attribution {
        Some(Attribution::Exclusive) | None => name(holding.sharing.as_str()),
        Some(method) => format!("{} ({})", name(holding.sharing.as_str()), name(method.as_str())),
    }
}
