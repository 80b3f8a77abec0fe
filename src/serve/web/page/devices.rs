//! A card per GPU, with a row for each of its MIG devices.

use std::cmp::Ordering;

use maud::{Markup, html};

use super::chart::{BUSY, MEMORY, POWER, chart, mean_busy};
use super::text::{ago, device_name, figure, gibibytes, gpu_name, or_unknown, percent, watts};
use super::view::window_words;
use super::{NodePage, Selection, facts, holders, more, part, section};
use crate::domain::model::{
    Account, DeviceHealth, DeviceOverview, DeviceState, Gpu, InstanceReading, Medium, MigDevice, Monotonic,
};
use crate::words::counted;

/// The most holders named per MIG device; the table of containers has all.
const MIG_HOLDERS: usize = 4;

pub(super) fn devices(page: &NodePage<'_>, selection: &Selection<'_>) -> Markup {
    let all = page.snapshot.hardware.inventory.gpus.len();
    let gpus = &selection.gpus;
    let [use_at, memory_at] = page.snapshot.hardware.oldest_readings();
    let age = |at: Option<Monotonic>| or_unknown(at.map(|at| ago(page.now, at)));
    let legend = html! {
        @if !page.view.filter.is_empty() { (gpus.len()) " of " (all) "; " }
        "busy and power: " (age(use_at)) "; memory and temperature: " (age(memory_at)) "; charts and bars: "
        (window_words(page.view.window))
        span.legend { svg.swatch viewBox="0 0 1 1" aria-hidden="true" { rect.part-free width="1" height="1" {} } "idle or free" }
        span.legend { svg.swatch.hatched aria-hidden="true" {} "unknown: no readings" }
    };
    let body = html! {
        @if all == 0 {
            p { "No GPU found." }
        } @else if gpus.is_empty() {
            p.muted { "No device matches the filter." }
        } @else {
            ul.devices {
                @for gpu in gpus { (part(card(page, gpu))) }
            }
        }
    };
    section("devices", "Devices", legend, true, body)
}

fn card(page: &NodePage<'_>, gpu: &Gpu) -> Markup {
    let readings = page.snapshot.hardware.readings.get(&gpu.uuid).map(|readings| &**readings);
    let medium: Option<&Medium> = readings.and_then(|readings| readings.medium.as_ref()).map(|stamped| &stamped.value);
    let capacity = medium.and_then(|medium| medium.memory).map(|memory| memory.total).or(gpu.memory_bytes);
    let health = page.snapshot.health.gpus.get(&gpu.uuid);
    let overview = page.snapshot.overview.device(&gpu.uuid, None);
    let inventory = &page.snapshot.hardware.inventory;
    let unserved = inventory.unserved.get(&gpu.uuid);
    let model = gpu.model.as_deref().unwrap_or(if unserved.is_some() { "" } else { "model unknown" });
    html! {
        li.device data-key=(gpu.uuid) {
            div.head {
                h3 { (gpu_name(gpu)) }
                span.model { (model.trim_start_matches("NVIDIA ")) @if gpu.mig_enabled == Some(true) { ", MIG" } }
                @match unserved {
                    Some(_) => span.badge.plain { "not served" },
                    None => (badge(health.map(|health| &health.whole))),
                }
            }
            (causes(health.map(|health| &health.whole), readings.is_some()))
            @if let Some(faults) = facts::fabric_faults(page.snapshot, &gpu.uuid) {
                p.cause { b { "NVLink fabric: " } (faults) "." }
            }
            @if let Some(unserved) = unserved {
                p.cause { "The NVIDIA driver does not serve this GPU: " (unserved) ". It has no readings and is not offered." }
            } @else {
                (measures(page, gpu, medium, capacity))
            }
            @if !gpu.mig_devices.is_empty() {
                ul.migs { @for mig in &gpu.mig_devices { (mig_row(page, gpu, mig, medium)) } }
            }
            (holders::of_gpu(page, gpu, capacity))
            // The kubelet allocates no free device of an unhealthy GPU.
            @if health.is_none_or(|health| health.whole.healthy) { (state(page, overview)) }
            (more(gpu.uuid.as_str(), &gpu_name(gpu)))
        }
    }
}

/// Busy time, memory and power: the last reading, and a chart of the window.
fn measures(page: &NodePage<'_>, gpu: &Gpu, medium: Option<&Medium>, capacity: Option<u64>) -> Markup {
    let window = page.view.window;
    let columns = page.history.columns(&gpu.uuid, None, window);
    let division = page.history.division(&gpu.uuid, window);
    let busy = division.and_then(|division| division.known_ratio(division.busy.values().sum()));
    // There is no division in the first second.
    let busy = busy.or_else(|| mean_busy(&columns));
    let overview = page.snapshot.overview.device(&gpu.uuid, None);
    let readings = page.snapshot.hardware.readings.get(&gpu.uuid);
    let power = readings.and_then(|readings| readings.fast.as_ref()?.value.power_watts);
    let memory = medium.and_then(|medium| medium.memory);
    html! {
        div.measures {
            div.measure.busy {
                div { "busy now " (figure("busy-now", overview.and_then(|device| device.busy_ratio), percent)) }
                div { (window_words(window)) " " (figure("busy-window", busy, percent)) }
                (chart(&BUSY, window, &columns, Some(1.0)))
            }
            div.measure.memory {
                div { "memory " b { (or_unknown(memory.map(|memory| gibibytes(memory.used)))) } }
                div { @if let Some(total) = capacity { "of " (gibibytes(total)) } }
                (chart(&MEMORY, window, &columns, capacity.map(|bytes| bytes as f64)))
            }
            div.measure.power {
                div { "power " b { (or_unknown(power.map(watts))) } }
                div {
                    @if let Some(module) = facts::module_watts(page.snapshot, &gpu.uuid) {
                        span title="the superchip: its CPU and all of its GPUs" { "module " (watts(module)) } " · "
                    }
                    @if let Some(heat) = medium.and_then(|medium| medium.gpu_temperature_celsius) { (format!("{heat:.0} °C")) }
                }
                (chart(&POWER, window, &columns, medium.and_then(|medium| medium.power_limit_watts)))
            }
        }
    }
}

fn mig_row(page: &NodePage<'_>, gpu: &Gpu, mig: &MigDevice, medium: Option<&Medium>) -> Markup {
    let instances = medium.map_or(&[][..], |medium| &medium.instances);
    let reading: Option<&InstanceReading> = instances.iter().find(|instance| instance.members.contains(&mig.uuid));
    let memory = reading.and_then(|reading| reading.memory);
    let health = page.snapshot.health.gpus.get(&gpu.uuid).and_then(|health| health.mig_devices.get(&mig.uuid));
    let mut holders: Vec<&Account> =
        page.holders(gpu).filter(|account| account.mig.as_ref() == Some(&mig.uuid)).collect();
    // The holders that use it most now come first.
    let used = |account: &Account| (account.gpu_utilization_ratio.unwrap_or(-1.0), account.memory_used_bytes);
    holders.sort_by(|one, other| used(other).partial_cmp(&used(one)).unwrap_or(Ordering::Equal));
    let name = device_name(page.snapshot, &gpu.uuid, Some(&mig.uuid)).trim_start_matches("GPU ").to_owned();
    let overview = page.snapshot.overview.device(&gpu.uuid, Some(&mig.uuid));
    let busy = overview.and_then(|device| device.busy_ratio);
    let is_free = overview.is_some_and(|device| device.state == Some(DeviceState::Free));
    let columns = page.history.columns(&gpu.uuid, Some(&mig.uuid), page.view.window);
    html! {
        li.mig data-key=(mig.uuid) {
            span.name { (name) }
            (chart(&BUSY, page.view.window, &columns, Some(1.0)))
            span.number { (figure("busy-now", busy, percent)) }
            span.number { (or_unknown(memory.map(|memory| gibibytes(memory.used)))) }
            span.part {
                @if health.is_some_and(|health| !health.healthy) { (badge(health)) " " }
                @else if is_free { span.free { "free" } }
                @for (index, holder) in holders.iter().take(MIG_HOLDERS).enumerate() {
                    @if index > 0 { ", " }
                    span title=(holder.container) { (holder.container.pod) }
                }
                @if holders.len() > MIG_HOLDERS { " and " (holders.len() - MIG_HOLDERS) " more" }
            }
            (causes(health.filter(|health| !health.healthy), true))
            (more(mig.uuid.as_str(), &name))
        }
    }
}

/// Whether a whole GPU is free, or how many of its slots or MIG devices are.
fn state(page: &NodePage<'_>, device: Option<&DeviceOverview>) -> Markup {
    let Some(device) = device else { return html! {} };
    let what = if device.slots.is_some() { "slot" } else { "MIG device" };
    match (page.snapshot.overview.free_parts(device), device.state) {
        (Some((free, all)), _) => html! {
            p.free.none[free == 0] { (figure("free", Some(free as f64), |free| free.to_string())) " of " (counted(all, what)) " free" }
        },
        (None, Some(DeviceState::Free)) => html! { p.free { "free" } },
        (None, _) => html! {},
    }
}

fn badge(health: Option<&DeviceHealth>) -> Markup {
    match health {
        None => html! { span.badge.plain { "not checked" } },
        Some(health) if health.healthy => html! { span.badge.good { "healthy" } },
        Some(health) if health.is_only_marked() => html! { span.badge.plain { "marked" } },
        Some(_) => html! { span.badge.bad { "unhealthy" } },
    }
}

/// Why the device is unhealthy, and when it recovers.
fn causes(health: Option<&DeviceHealth>, has_readings: bool) -> Markup {
    html! {
        @for cause in health.into_iter().flat_map(|health| &health.causes) {
            p.cause { b { (cause.reason.into_str().replace('_', " ")) ": " } (cause.detail) "; " (cause.clears) "." }
        }
        @if health.is_some_and(|health| health.healthy) && !has_readings { p.cause { "No readings." } }
    }
}
