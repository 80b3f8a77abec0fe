//! The node in a few numbers.

use maud::{Markup, html};

use super::text::{figure, gibibytes, or_unknown, percent, watts};
use super::view::window_words;
use super::{NodePage, facts};
use crate::domain::model::{Account, DeviceReadings, Gpu, Holding, Snapshot};
use crate::words::counted;

pub(super) fn tiles(page: &NodePage<'_>) -> Markup {
    let snapshot = page.snapshot;
    let gpus: Vec<&Gpu> = snapshot.hardware.inventory.gpus.values().collect();
    let readings = |gpu: &Gpu| snapshot.hardware.readings.get(&gpu.uuid).map(|readings| &**readings);
    let (states, gpus_class) = gpu_states(snapshot);
    let all = |of: fn(&DeviceReadings) -> Option<f64>| -> Vec<f64> {
        gpus.iter().filter_map(|gpu| of(readings(gpu)?)).collect()
    };
    let node = &snapshot.overview.node;
    let power = all(|readings| readings.fast.as_ref()?.value.power_watts);
    let used = all(|readings| Some(readings.medium.as_ref()?.value.memory?.used as f64));
    let total = all(|readings| Some(readings.medium.as_ref()?.value.memory?.total as f64));
    let sum = |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>());
    let bytes = |values: &[f64]| sum(values).map(|bytes| gibibytes(bytes as u64));
    let in_part =
        |known: usize| (known < gpus.len()).then(|| format!("{known} of {} known", counted(gpus.len(), "GPU")));
    // In GPUs, not in devices as in the rows of containers.
    let idle_of = |(account, holding): (&Account, &Holding)| {
        Some(page.history.figures(account, page.view.window)?.idle_ratio()? * holding.fraction?)
    };
    let held = snapshot.accounts.iter().filter_map(|account| Some((account, account.holding.as_ref()?)));
    let idle: Vec<Option<f64>> = held.map(idle_of).collect();
    let known = idle.iter().flatten().count();
    let idle_gpus = (known > 0 || idle.is_empty()).then(|| idle.iter().flatten().fold(0.0, |sum, idle| sum + idle));
    let mut of_idle = format!("GPUs, {}", window_words(page.view.window));
    if known < idle.len() {
        of_idle += &format!("; {known} of {} known", counted(idle.len(), "holding"));
    }
    let gpus_worth = |gpus: f64| format!("{gpus:.1}");
    let of_memory = [bytes(&total).map(|total| format!("of {total}")), in_part(used.len())];
    let mut of_power = in_part(power.len()).unwrap_or_else(|| "of all GPUs".to_owned());
    if let Some(modules) = facts::all_modules_watts(snapshot) {
        of_power += &format!("; with CPUs {}", watts(modules));
    }
    html! {
        dl.tiles {
            (tile("GPUs", html! { (gpus.len()) }, states, gpus_class))
            (tile("Allocated", figure("allocated", node.allocated_gpus, gpus_worth), format!("of {}", counted(gpus.len(), "GPU")), ""))
            (tile("Held and idle", figure("held-and-idle", idle_gpus, gpus_worth),
                of_idle, if idle_gpus.is_some_and(|gpus| gpus >= 0.95) { "warn" } else { "" }))
            (tile("Busy now", figure("busy-now", node.busy_ratio, percent),
                in_part(node.busy_known).unwrap_or_else(|| "mean of the GPUs".to_owned()), ""))
            (tile("Memory", html! { (or_unknown(bytes(&used))) },
                of_memory.into_iter().flatten().collect::<Vec<_>>().join("; "), ""))
            (tile("Power", html! { (or_unknown(sum(&power).map(watts))) }, of_power, ""))
        }
        @if !snapshot.overview.resources.is_empty() { (free_devices(snapshot)) }
    }
}

/// How many GPUs are unhealthy, marked and not served, and the tile's class.
fn gpu_states(snapshot: &Snapshot) -> (String, &'static str) {
    let gpus = snapshot.hardware.inventory.gpus.keys();
    let health = gpus.filter_map(|gpu| Some(&snapshot.health.gpus.get(gpu)?.whole));
    let (marked, unhealthy): (Vec<_>, Vec<_>) =
        health.filter(|health| !health.healthy).partition(|health| health.is_only_marked());
    let unserved = snapshot.hardware.inventory.unserved.len();
    let states = [(unhealthy.len(), "unhealthy"), (marked.len(), "marked"), (unserved, "not served")];
    let states = states.into_iter().filter(|(count, _)| *count > 0).map(|(count, state)| format!("{count} {state}"));
    let states = states.collect::<Vec<_>>().join(", ");
    let class = if unhealthy.is_empty() { "" } else { "bad" };
    (if states.is_empty() { "none unhealthy".to_owned() } else { states }, class)
}

/// The free devices of each resource.
fn free_devices(snapshot: &Snapshot) -> Markup {
    html! {
        p.muted {
            "Free: "
            @for (index, (resource, count)) in snapshot.overview.resources.iter().enumerate() {
                @if index > 0 { ", " }
                span data-key=(resource) {
                    (resource) " " (figure("free", count.free.map(|free| free as f64), |free| free.to_string()))
                    " of " (count.allocatable)
                    @if let Some(held @ 1..) = count.held_unhealthy { " (" (held) " held and unhealthy)" }
                }
            }
        }
    }
}

fn tile(label: &str, value: Markup, aside: String, class: &str) -> Markup {
    html! {
        div class=(class) {
            dt { (label) }
            dd { span.value { (value) } " " span.muted { (aside) } }
        }
    }
}
