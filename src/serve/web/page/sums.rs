//! Sums over containers: of all that the filter matches, and of each namespace.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use super::text::{figure, gibibytes, kilowatt_hours, span};
use super::view::window_words;
use super::{NUMBER, NodePage, table};
use crate::domain::model::{Account, ContainerRef, GpuUuid};

/// The most namespaces shown, those that hold most.
const SHOWN: usize = 20;

/// The sum of the known values; unknown where none is known.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    sum: f64,
    pub known: usize,
    pub of: usize,
}

impl Sum {
    fn add(&mut self, value: Option<f64>) {
        self.of += 1;
        self.known += usize::from(value.is_some());
        self.sum += value.unwrap_or_default();
    }

    pub fn value(&self) -> Option<f64> {
        (self.known > 0 || self.of == 0).then_some(self.sum)
    }

    /// How many of the values are known, as text; `None` where all are.
    pub fn known_part(&self) -> Option<String> {
        (self.known < self.of).then(|| format!("{} of {} known", self.known, self.of))
    }
}

/// Sums over the containers that hold a device now. Parts are in GPUs, not in devices as in the rows of containers.
#[derive(Default)]
pub(super) struct Sums<'a> {
    pub containers: BTreeSet<&'a ContainerRef>,
    pub gpus: BTreeSet<&'a GpuUuid>,
    pub allocated: Sum,
    pub busy: Sum,
    /// The idle part in the window, in GPUs.
    pub idle: Sum,
    /// Memory in use, in bytes.
    pub memory: Sum,
    /// Seconds and joules since held.
    gpu_time: Sum,
    idle_time: Sum,
    pub energy: Sum,
}

impl<'a> Sums<'a> {
    pub fn of(page: &NodePage<'_>, accounts: impl IntoIterator<Item = &'a Account>) -> Self {
        let mut sums = Self::default();
        for account in accounts {
            let Some(holding) = &account.holding else { continue };
            sums.containers.insert(&account.container);
            sums.gpus.insert(&account.gpu);
            sums.allocated.add(holding.fraction);
            sums.busy.add(account.gpu_utilization_ratio);
            let idle = page.history.idle_ratio(account, page.view.window);
            sums.idle.add(idle.zip(holding.fraction).map(|(idle, fraction)| idle * fraction));
            sums.memory.add(account.memory_used_bytes.map(|bytes| bytes as f64));
            sums.gpu_time.add(account.counters.allocated_seconds);
            sums.idle_time.add(account.counters.idle_seconds);
            sums.energy.add(account.counters.energy_joules);
        }
        sums
    }
}

pub(super) fn in_gpus(gpus: f64) -> String {
    format!("{gpus:.1}")
}

pub(super) fn bytes(bytes: f64) -> String {
    gibibytes(bytes as u64)
}

/// A row for each namespace of these containers.
pub(super) fn of_namespaces(page: &NodePage<'_>, accounts: &[&Account]) -> Markup {
    let mut namespaces: BTreeMap<&str, Vec<&Account>> = BTreeMap::new();
    for account in accounts.iter().filter(|account| account.holding.is_some()) {
        namespaces.entry(&account.container.namespace).or_default().push(account);
    }
    let mut rows: Vec<(&str, Sums<'_>)> =
        namespaces.into_iter().map(|(name, accounts)| (name, Sums::of(page, accounts))).collect();
    rows.sort_by(|(_, one), (_, other)| other.allocated.sum.total_cmp(&one.allocated.sum));
    let left_off = rows.len().saturating_sub(SHOWN);
    let seconds = |seconds: f64| span(seconds as u64);
    let cell = |name, sum: Sum, show: fn(f64) -> String| {
        html! { (figure(name, sum.value(), show)) @if let Some(part) = sum.known_part() { div.muted { (part) } } }
    };
    let idle = format!("Idle, {}", window_words(page.view.window));
    let headings = [
        ("Namespace", None),
        ("Containers", NUMBER),
        ("GPUs held", NUMBER),
        ("Busy now", NUMBER),
        (&*idle, NUMBER),
        ("Memory", NUMBER),
        ("GPU time", NUMBER),
        ("Idle", NUMBER),
        ("Energy", NUMBER),
    ];
    let cells = rows.iter().take(SHOWN).map(|(name, sums)| {
        [
            html! { (name) },
            html! { (sums.containers.len()) },
            cell("allocated", sums.allocated, in_gpus),
            cell("busy-now", sums.busy, in_gpus),
            cell("idle-window", sums.idle, in_gpus),
            cell("memory", sums.memory, bytes),
            cell("gpu-time", sums.gpu_time, seconds),
            cell("idle", sums.idle_time, seconds),
            cell("energy", sums.energy, kilowatt_hours),
        ]
    });
    html! {
        @if !rows.is_empty() {
            div.namespaces data-key="namespaces" {
                (table(headings, cells))
                @if left_off > 0 { p.muted { "and " (left_off) " more" } }
            }
        }
    }
}
