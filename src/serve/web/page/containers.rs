//! A row per container and device, in the chosen order; those that ended over a minute ago are folded away.

use maud::{Markup, html};

use super::text::{ago, device_name, figure, gibibytes, kilowatt_hours, or_unknown, percent, span};
use super::view::{ROWS, Sort, window_words};
use super::{NodePage, Selection, facts, more, part, section, sums};
use crate::domain::model::{Account, Attribution, Holding, SharingForm, parts_of_device};

pub(super) fn containers(page: &NodePage<'_>, selection: &Selection<'_>) -> Markup {
    let mut ranked: Vec<_> = selection.accounts.iter().map(|account| (rank(page, account), *account)).collect();
    let has_ended = |account: &Account| account.holding.is_none();
    let name = |account: &Account| (account.container.clone(), account.gpu.clone(), account.mig.clone());
    ranked.sort_by(|(rank, one), (other_rank, other)| {
        let descending = other_rank[0].total_cmp(&rank[0]).then(other_rank[1].total_cmp(&rank[1]));
        has_ended(one).cmp(&has_ended(other)).then(descending).then_with(|| name(one).cmp(&name(other)))
    });
    let is_old = |account: &&Account| account.has_long_ended(page.now.monotonic);
    let accounts = ranked.into_iter().map(|(_, account)| account);
    let (old, shown): (Vec<&Account>, Vec<&Account>) = accounts.partition(is_old);
    let held = shown.iter().filter(|account| !has_ended(account)).count();
    // Rows may have been removed since the link was made.
    let from = page.view.from.min(shown.len().saturating_sub(1) / ROWS * ROWS);
    let about = html! { (held) " held; idle: " (window_words(page.view.window)) "; energy and times: since held" };
    let body = html! {
        @if !page.view.filter.is_empty() { (sums::of_namespaces(page, &selection.accounts)) }
        @if page.snapshot.accounts.is_empty() {
            p { "No container holds a GPU." }
        } @else if selection.accounts.is_empty() {
            p.muted { "No container matches the filter." }
        } @else {
            (table(page, &shown[from..]))
            @if shown.len() > ROWS { (other_rows(page, from, shown.len())) }
            @if !old.is_empty() {
                details.old data-key="old" {
                    summary { (old.len()) " ended over a minute ago" }
                    (table(page, &old))
                    @if old.len() > ROWS { p { "and " (old.len() - ROWS) " more; /api/v1/node has all." } }
                }
            }
        }
    };
    section("containers", "Containers", about, true, body)
}

/// Which rows are shown, and links to those before and after.
fn other_rows(page: &NodePage<'_>, from: usize, all: usize) -> Markup {
    let link = |from: usize, words: &str| {
        html! { a data-key=(words) href=(page.view.with_from(from).link()) data-view { (words) } " " }
    };
    html! {
        nav.rows aria-label="Rows" {
            "Rows " (from + 1) " to " (all.min(from + ROWS)) " of " (all) " "
            @if from > 0 { (link(from - ROWS, "Previous")) }
            @if from + ROWS < all { (link(from + ROWS, "Next")) }
        }
    }
}

/// The key of the order: the number of the sorted column, then idle seconds. Unknown values come last.
fn rank(page: &NodePage<'_>, account: &Account) -> [f64; 2] {
    let of = match page.view.sort {
        Sort::Idle => idle(page, account),
        Sort::Busy => account.counters.busy_seconds,
        Sort::Memory => account.memory_used_bytes.map(|bytes| bytes as f64),
        Sort::Energy => account.counters.energy_joules,
        Sort::Held => account.counters.held_seconds,
        Sort::Name => return [0.0; 2],
    };
    // Idle time is rounded to the percent shown, so that rows with equal text keep their order.
    let of = if page.view.sort == Sort::Idle { of.map(|ratio| (ratio * 100.0).round()) } else { of };
    [of.unwrap_or(-1.0), account.counters.idle_seconds.unwrap_or(-1.0)]
}

/// The part of the device that a container held and left idle in the window; once it has ended, of what it held.
fn idle(page: &NodePage<'_>, account: &Account) -> Option<f64> {
    let idle = page.history.idle_ratio(account, page.view.window)?;
    match account.holding {
        None => Some(idle),
        Some(_) => Some(idle * parts_of_device(&page.snapshot.hardware.inventory, account).held?),
    }
}

fn table(page: &NodePage<'_>, accounts: &[&Account]) -> Markup {
    let [_, memory_at] = page.snapshot.hardware.oldest_readings();
    let memory_age = memory_at.map_or_else(String::new, |at| ago(page.now, at));
    let since = "since held";
    html! {
        table.containers data-key="containers" role="table" aria-labelledby="containers" {
            thead role="rowgroup" { tr role="row" {
                (heading(page, "Pod", "", Some(Sort::Name)))
                (heading(page, "Device", "", None))
                (heading(page, "Busy", "now", None))
                (heading(page, "Idle", window_words(page.view.window), Some(Sort::Idle)))
                (heading(page, "Memory", &memory_age, Some(Sort::Memory)))
                (heading(page, "Held", "clock time", Some(Sort::Held)))
                (heading(page, "GPU time", since, None))
                (heading(page, "Busy", since, Some(Sort::Busy)))
                (heading(page, "Idle", since, None))
                (heading(page, "Unknown", since, None))
                (heading(page, "Energy", since, Some(Sort::Energy)))
            } }
            tbody role="rowgroup" {
                @for account in accounts.iter().take(ROWS) { (part(row(page, account))) }
            }
        }
    }
}

fn heading(page: &NodePage<'_>, text: &str, window: &str, sort: Option<Sort>) -> Markup {
    let is_sorted = sort == Some(page.view.sort);
    let order = is_sorted.then_some(if sort == Some(Sort::Name) { "ascending" } else { "descending" });
    html! {
        th role="columnheader" scope="col" aria-sort=[order] {
            @match sort {
                Some(sort) => a href=(page.view.with_sort(sort).link()) data-view { (text) @if is_sorted { " ▾" } },
                None => (text),
            }
            @if !window.is_empty() { " " span.window { (window) } }
        }
    }
}

fn row(page: &NodePage<'_>, account: &Account) -> Markup {
    let device = device_name(page.snapshot, &account.gpu, account.mig.as_ref());
    let container = &account.container;
    let uuid = account.mig.as_ref().map_or_else(|| account.gpu.to_string(), ToString::to_string);
    let detail_key = format!("{container} {uuid}");
    // An earlier pod of the same name has a row too; and a row that moves to the other table is another part.
    let table = if account.has_long_ended(page.now.monotonic) { " old" } else { "" };
    let key = format!("{detail_key} {}{table}", account.created.0);
    let is_held = account.holding.is_some();
    let parts = parts_of_device(&page.snapshot.hardware.inventory, account);
    let idle = idle(page, account);
    let is_idle = idle.zip(parts.held).is_some_and(|(idle, held)| idle >= 0.9 * held)
        && account.counters.held_seconds >= Some(60.0);
    let seconds = |seconds: f64| span(seconds as u64);
    let borrowed = account.counters.borrowed_seconds.filter(|borrowed| *borrowed >= 0.5);
    html! {
        tr role="row" class=[(!is_held).then_some("ended")] data-key=(key) {
            th.name role="rowheader" scope="row" {
                (container.pod)
                div.muted { (container.namespace) " · " (container.container) }
            }
            td role="cell" data-label="device" {
                (device)
                div.muted { (account.holding.as_ref().map_or_else(|| "ended".to_owned(), |holding| sharing(holding, parts.held))) }
                @if let Some(claim) = facts::claim(page.snapshot, account) { div.muted { (claim) } }
            }
            td role="cell" data-label="busy" { (figure("busy-now", parts.busy, percent)) }
            td role="cell" data-label="idle" {
                span class=[is_idle.then_some("idle")] { (figure("idle-window", idle, percent)) }
            }
            td role="cell" data-label="memory" { (or_unknown(account.memory_used_bytes.filter(|_| is_held).map(gibibytes))) }
            td role="cell" data-label="held" { (figure("held", account.counters.held_seconds, seconds)) }
            td.total role="cell" { (figure("gpu-time", account.counters.allocated_seconds, seconds)) }
            td.total role="cell" {
                (figure("busy", account.counters.busy_seconds, seconds))
                @if let Some(borrowed) = borrowed { div.muted { (figure("borrowed", Some(borrowed), seconds)) " borrowed" } }
            }
            td.total role="cell" { (figure("idle", account.counters.idle_seconds, seconds)) }
            td.total role="cell" { (figure("unknown", account.counters.uncovered_seconds, seconds)) }
            td.total role="cell" { (figure("energy", account.counters.energy_joules, kilowatt_hours)) }
            td.detail role="cell" { (more(&detail_key, &format!("{container} on {device}"))) }
        }
    }
}

/// `held`: the part of its device that the container holds.
fn sharing(holding: &Holding, held: Option<f64>) -> String {
    let part = held.filter(|held| *held < 1.0).map_or_else(String::new, |held| format!(", holds {}", percent(held)));
    let sharing = match holding.sharing {
        SharingForm::Exclusive => "exclusive",
        SharingForm::TimeSlicing => "time slicing",
        SharingForm::Mps => "MPS",
        SharingForm::Mig => "MIG",
    };
    let method = match holding.attribution {
        None => "",
        Some(Attribution::Exclusive) => ", as the device",
        Some(Attribution::Process) => ", by process",
        Some(Attribution::EqualShare) => ", in equal parts",
        Some(Attribution::Estimated) => ", estimated",
    };
    format!("{sharing}{part}{method}")
}
