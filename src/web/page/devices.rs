//! A row per GPU, and one per MIG device under its GPU.

use maud::{Markup, html};

use super::catalogue::{
    DEVICE_HEALTHY, DEVICE_MEMORY, DEVICE_POWER, DEVICE_REASON, DEVICE_TEMPERATURE, DEVICE_UTILIZATION, MIG_MEMORY,
    MIG_SM_ACTIVE,
};
use super::chart::chart;
use super::holders;
use super::text::{gibibytes, gpu_name, heading, number, percent, watts, words};
use crate::history::{History, Point};
use crate::model::{
    Account, ContainerRef, DeviceHealth, Fast, Gpu, GpuHealth, InstanceReading, Medium, MemoryUse, MigDevice, Snapshot,
};

pub(super) fn section(snapshot: &Snapshot, history: &History) -> Markup {
    let mut gpus: Vec<&Gpu> = snapshot.hardware.inventory.gpus.values().collect();
    gpus.sort_by_key(|gpu| (gpu.order(), !gpu.present));
    html! {
        section aria-labelledby="devices" {
            h2 id="devices" tabindex="-1" { "Devices" }
            @if gpus.is_empty() {
                p { "No GPU found." }
            } @else {
                table.cards.devices role="table" aria-labelledby="devices" {
                    thead role="rowgroup" { tr role="row" {
                        th role="columnheader" scope="col" { "GPU" }
                        th role="columnheader" scope="col" { (heading(DEVICE_HEALTHY, "Health")) }
                        th role="columnheader" scope="col" { (heading(DEVICE_UTILIZATION, "Busy")) }
                        th role="columnheader" scope="col" { (heading(DEVICE_MEMORY, "Memory")) }
                        th role="columnheader" scope="col" { (heading(DEVICE_POWER, "Power")) }
                        th role="columnheader" scope="col" { "Used by" }
                    } }
                    tbody role="rowgroup" {
                        @for gpu in gpus {
                            (row(snapshot, history, gpu))
                            @for mig in &gpu.mig_devices { (mig_row(snapshot, history, gpu, mig)) }
                        }
                    }
                }
                p.none hidden data-none { "No device matches the filter." }
            }
        }
    }
}

fn row(snapshot: &Snapshot, history: &History, gpu: &Gpu) -> Markup {
    let readings = snapshot.hardware.readings.get(&gpu.uuid).map(|readings| &**readings);
    let fast: Option<&Fast> = readings.and_then(|readings| readings.fast.as_ref()).map(|stamped| &stamped.value);
    let medium: Option<&Medium> = readings.and_then(|readings| readings.medium.as_ref()).map(|stamped| &stamped.value);
    let memory = medium.and_then(|medium| medium.memory);
    let limit = medium.and_then(|medium| medium.power_limit_watts);
    let points = history.points(&gpu.uuid, None);
    let capacity = memory.map(|memory| memory.total).or(gpu.memory_bytes);
    let holders = snapshot.accounts.iter().filter(|account| account.gpu == gpu.uuid && account.holding.is_some());
    let names = [gpu.uuid.to_string(), gpu_name(gpu), gpu.model.as_deref().unwrap_or_default().to_owned()];
    html! {
        tr role="row" data-key=(gpu.uuid) data-words=(words(holders.map(|account| &account.container), names)) {
            th.name role="rowheader" scope="row" {
                (gpu_name(gpu))
                div.model { (gpu.model.as_deref().unwrap_or("model unknown")) @if gpu.mig_enabled == Some(true) { ", MIG" } }
                div.id { (gpu.uuid) }
            }
            td role="cell" data-label="Health" {
                (health(snapshot.health.gpus.get(&gpu.uuid).map(|health| &health.whole), readings.is_some()))
            }
            td.measure role="cell" data-label="Busy" {
                div { (number(DEVICE_UTILIZATION, fast.and_then(|fast| fast.utilization_ratio).map(percent))) }
                (chart("Busy", points, |point: Point| point.busy, Some(1.0), percent))
            }
            td.measure role="cell" data-label="Memory" {
                div { (used(DEVICE_MEMORY, memory)) }
                (chart("Memory", points, |point| point.memory, capacity.map(|bytes| bytes as f64), |bytes| gibibytes(bytes as u64)))
            }
            td.measure role="cell" data-label="Power" {
                div {
                    (number(DEVICE_POWER, fast.and_then(|fast| fast.power_watts).map(watts)))
                    span.aside { (number(DEVICE_TEMPERATURE, medium.and_then(|medium| medium.gpu_temperature_celsius).map(|heat| format!("{heat:.0} °C")))) }
                }
                (chart("Power", points, |point| point.power, limit, watts))
            }
            td.holders role="cell" data-label="Used by" { (holders::cell(snapshot, history, gpu, capacity)) }
        }
    }
}

fn mig_row(snapshot: &Snapshot, history: &History, gpu: &Gpu, mig: &MigDevice) -> Markup {
    let readings = snapshot.hardware.readings.get(&gpu.uuid);
    let medium = readings.and_then(|readings| readings.medium.as_ref()).map(|stamped| &stamped.value);
    let instances = medium.map_or(&[][..], |medium| &medium.instances);
    let reading: Option<&InstanceReading> = instances.iter().find(|instance| instance.members.contains(&mig.uuid));
    let memory = reading.and_then(|reading| reading.memory);
    let points = history.points(&gpu.uuid, Some(&mig.uuid));
    let device_health =
        snapshot.health.gpus.get(&gpu.uuid).and_then(|health: &GpuHealth| health.instances.get(&mig.uuid));
    let holders: Vec<&ContainerRef> = snapshot
        .accounts
        .iter()
        .filter(|account: &&Account| account.mig.as_ref() == Some(&mig.uuid) && account.holding.is_some())
        .map(|account| &account.container)
        .collect();
    let names = [mig.uuid.to_string(), gpu.uuid.to_string(), gpu_name(gpu), mig.profile.to_string()];
    let total = memory.map(|memory| memory.total as f64);
    html! {
        tr.mig role="row" data-key=(mig.uuid) data-words=(words(holders.iter().copied(), names)) {
            th.name role="rowheader" scope="row" {
                (gpu_name(gpu)) ", " (mig.profile)
                div.id { (mig.uuid) }
            }
            td role="cell" data-label="Health" { (health(device_health, reading.is_some())) }
            td.measure role="cell" data-label="SM active" {
                div { (number(MIG_SM_ACTIVE, reading.and_then(|reading| reading.gpm.sm_active).map(percent))) }
                (chart("SMs active", points, |point| point.busy, Some(1.0), percent))
            }
            td.measure role="cell" data-label="Memory" {
                div { (used(MIG_MEMORY, memory)) }
                (chart("Memory", points, |point| point.memory, total, |bytes| gibibytes(bytes as u64)))
            }
            td.measure role="cell" data-label="Power" { "–" }
            td.holders role="cell" data-label="Used by" {
                @if holders.is_empty() { span.muted { "no container" } }
                @for holder in holders { div { (holder.namespace) "/" (holder.pod) } }
            }
        }
    }
}

fn used(metric: &'static str, memory: Option<MemoryUse>) -> Markup {
    html! {
        (number(metric, memory.map(|memory| gibibytes(memory.used))))
        @if let Some(memory) = memory { span.aside { "of " (number(metric, Some(gibibytes(memory.total)))) } }
    }
}

/// The health, its causes, and when the device recovers.
fn health(health: Option<&DeviceHealth>, has_readings: bool) -> Markup {
    let Some(health) = health else { return html! { span.badge.plain { "not checked" } } };
    html! {
        @if health.healthy {
            span.badge.good { "healthy" }
            @if !has_readings { div.cause { "no readings" } }
        } @else {
            span.badge.bad { "unhealthy" }
            @for cause in &health.causes {
                div.cause {
                    (number(DEVICE_REASON, Some(cause.reason.as_str().replace('_', " ")))) ": " (cause.detail)
                    div.muted { (cause.clears) }
                }
            }
        }
    }
}
