//! The node in six numbers.

use maud::{Markup, html};

use super::catalogue::{
    CONTAINER_LAST_ACTIVE, DEVICE_ALLOCATED, DEVICE_HEALTHY, DEVICE_MEMORY, DEVICE_POWER, DEVICE_UTILIZATION,
};
use super::containers::{IDLE_SECONDS, since_active};
use super::text::{gibibytes, number, percent, watts};
use crate::model::{DeviceReadings, Gpu, GpuUuid, Moment, Snapshot};

pub(super) fn tiles(snapshot: &Snapshot, now: Moment) -> Markup {
    let gpus: Vec<&Gpu> = snapshot.hardware.inventory.gpus.values().collect();
    let readings = |gpu: &Gpu| snapshot.hardware.readings.get(&gpu.uuid).map(|readings| &**readings);
    let unhealthy = gpus
        .iter()
        .filter(|gpu| snapshot.health.gpus.get(&gpu.uuid).is_some_and(|health| !health.whole.healthy))
        .count();
    let is_held =
        |uuid: &GpuUuid| snapshot.accounts.iter().any(|account| account.gpu == *uuid && account.holding.is_some());
    let held = gpus.iter().filter(|gpu| is_held(&gpu.uuid)).count();
    let idle = snapshot
        .accounts
        .iter()
        .filter(|account| account.holding.is_some())
        .filter(|account| since_active(account, now).is_some_and(|since| since >= IDLE_SECONDS))
        .count();
    let all = |of: fn(&DeviceReadings) -> Option<f64>| -> Vec<f64> {
        gpus.iter().filter_map(|gpu| of(readings(gpu)?)).collect()
    };
    let busy = all(|readings| readings.fast.as_ref()?.value.utilization_ratio);
    let power = all(|readings| readings.fast.as_ref()?.value.power_watts);
    let used = all(|readings| Some(readings.medium.as_ref()?.value.memory?.used as f64));
    let total = all(|readings| Some(readings.medium.as_ref()?.value.memory?.total as f64));
    let sum = |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>());
    let mean = sum(&busy).map(|sum| percent(sum / busy.len() as f64));
    let bytes = |values: &[f64]| sum(values).map(|bytes| gibibytes(bytes as u64));
    html! {
        dl.tiles {
            (tile("GPUs", number(DEVICE_HEALTHY, Some(gpus.len())), match unhealthy {
                0 => "none unhealthy".to_owned(),
                count => format!("{count} unhealthy"),
            }, if unhealthy > 0 { "bad" } else { "" }))
            (tile("Held", number(DEVICE_ALLOCATED, Some(held)), format!("of {}", gpus.len()), ""))
            (tile("Held and idle", number(CONTAINER_LAST_ACTIVE, Some(idle)), "for over a minute".to_owned(),
                if idle > 0 { "warn" } else { "" }))
            (tile("Busy", number(DEVICE_UTILIZATION, mean), "on average".to_owned(), ""))
            (tile("Memory", number(DEVICE_MEMORY, bytes(&used)), bytes(&total).map_or_else(String::new, |total| format!("of {total}")), ""))
            (tile("Power", number(DEVICE_POWER, sum(&power).map(watts)), "in all".to_owned(), ""))
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
