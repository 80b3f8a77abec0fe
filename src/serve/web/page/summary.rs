//! The node in a few numbers.

use maud::{Markup, html};

use super::sums::{Sum, Sums, bytes, in_gpus};
use super::text::{figure, gibibytes, kilowatt_hours, or_unknown, percent, watts};
use super::view::window_words;
use super::{NodePage, Selection, facts};
use crate::domain::model::{DeviceHealth, DeviceReadings, Gpu, Snapshot};
use crate::words::counted;

pub(super) fn tiles(page: &NodePage<'_>, selection: &Selection<'_>) -> Markup {
    let sums = Sums::of(page, selection.accounts.iter().copied());
    if page.view.filter.is_empty() { of_node(page, &sums) } else { of_selection(page, &sums) }
}

/// Sums over the containers that the filter matches.
fn of_selection(page: &NodePage<'_>, sums: &Sums<'_>) -> Markup {
    let of = |words: &str, sum: Sum| match sum.known_part() {
        Some(part) => format!("{words}; {part}"),
        None => words.to_owned(),
    };
    let all = page.snapshot.hardware.inventory.gpus.len();
    html! {
        dl.tiles {
            (tile("Containers", html! { (sums.containers.len()) }, format!("on {} of {}", sums.gpus.len(), counted(all, "GPU")), ""))
            (tile("Allocated", figure("allocated", sums.allocated.value(), in_gpus), of("GPUs", sums.allocated), ""))
            (held_and_idle(page, sums))
            (tile("Busy now", figure("busy-now", sums.busy.value(), in_gpus), of("GPUs", sums.busy), ""))
            (tile("Memory", figure("memory", sums.memory.value(), bytes), of("used", sums.memory), ""))
            (tile("Energy", figure("energy", sums.energy.value(), kilowatt_hours), of("since held", sums.energy), ""))
        }
    }
}

fn held_and_idle(page: &NodePage<'_>, sums: &Sums<'_>) -> Markup {
    let Sum { known, of, .. } = sums.idle;
    let mut words = format!("GPUs, {}", window_words(page.view.window));
    if known < of {
        words += &format!("; {known} of {} known", counted(of, "holding"));
    }
    let idle = sums.idle.value();
    let class = if idle.is_some_and(|gpus| gpus >= 0.95) { "warn" } else { "" };
    tile("Held and idle", figure("held-and-idle", idle, in_gpus), words, class)
}

fn of_node(page: &NodePage<'_>, sums: &Sums<'_>) -> Markup {
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
    let of_memory = [bytes(&total).map(|total| format!("of {total}")), in_part(used.len())];
    let mut of_power = in_part(power.len()).unwrap_or_else(|| "of all GPUs".to_owned());
    if let Some(modules) = facts::all_modules_watts(snapshot) {
        of_power += &format!("; with CPUs {}", watts(modules));
    }
    html! {
        dl.tiles {
            (tile("GPUs", html! { (gpus.len()) }, states, gpus_class))
            (tile("Allocated", figure("allocated", node.allocated_gpus, in_gpus), format!("of {}", counted(gpus.len(), "GPU")), ""))
            (held_and_idle(page, sums))
            (tile("Busy now", figure("busy-now", node.busy_ratio, percent),
                in_part(node.busy_known).unwrap_or_else(|| "mean of the GPUs".to_owned()), ""))
            (tile("Memory", html! { (or_unknown(bytes(&used))) },
                of_memory.into_iter().flatten().collect::<Vec<_>>().join("; "), ""))
            (tile("Power", html! { (or_unknown(sum(&power).map(watts))) }, of_power, ""))
        }
        @if !snapshot.overview.resources.is_empty() { (free_devices(snapshot)) }
    }
}

/// How many GPUs are unhealthy or have an unhealthy MIG device, and how many of them have a mark as the only reason.
pub(super) fn unhealthy_and_marked(snapshot: &Snapshot) -> (usize, usize) {
    let gpus = snapshot.hardware.inventory.gpus.keys().filter_map(|gpu| snapshot.health.gpus.get(gpu));
    let are_marks = gpus.filter_map(|gpu| {
        let devices = [&gpu.whole].into_iter().chain(gpu.mig_devices.values());
        devices.filter(|health| !health.healthy).map(DeviceHealth::is_only_marked).reduce(|one, other| one && other)
    });
    let (marked, unhealthy): (Vec<bool>, Vec<bool>) = are_marks.partition(|is_mark| *is_mark);
    (unhealthy.len(), marked.len())
}

/// How many GPUs are unhealthy, marked and not served, and the tile's class.
fn gpu_states(snapshot: &Snapshot) -> (String, &'static str) {
    let (unhealthy, marked) = unhealthy_and_marked(snapshot);
    let unserved = snapshot.hardware.inventory.unserved.len();
    let states = [(unhealthy, "unhealthy"), (marked, "marked"), (unserved, "not served")];
    let states = states.into_iter().filter(|(count, _)| *count > 0).map(|(count, state)| format!("{count} {state}"));
    let states = states.collect::<Vec<_>>().join(", ");
    let class = if unhealthy == 0 { "" } else { "bad" };
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
