//! The detail page of one GPU: identity, values, health, holders, unattributed use, and events.

use std::time::Duration;

use strum::IntoEnumIterator;

use super::format::{energy, known, memory, percent, span, spanned, unit};
use super::{Line, Style, table};
use crate::domain::model::{Gpu, GpuUuid, Moment, Snapshot, Unattributed, UnattributedReason};
use crate::terminal::{clean, wrapped};
use crate::words::counted;

/// The most transitions shown of this device.
const EVENTS_SHOWN: usize = 20;

/// The lines of the page. `since`: the time since the response.
pub fn lines(node: &Snapshot, gpu: &GpuUuid, since: Duration, width: usize) -> Vec<Line> {
    let Some(gpu) = node.hardware.inventory.gpus.get(gpu) else {
        return vec![Line::new("The agent no longer reports this device.", Style::Plain)];
    };
    let (state, _) = table::state(node, gpu, None);
    let title = format!("GPU {} {}, {state}", table::number(gpu, None), table::model(gpu, None));
    let causes = table::causes(node, gpu).into_iter().map(|(name, cause)| {
        format!("GPU {name}: {}: {}; {}", cause.reason.into_str(), clean(&cause.detail), clean(&cause.clears))
    });
    let ago = |then: Moment| span(node.at.monotonic.since(then.monotonic).saturating_add(since).as_secs_f64());
    let checked = node.health.gpus.get(&gpu.uuid).map(|health| ago(health.whole.since));
    let health = checked.map_or_else(|| "Health: not checked".to_owned(), |age| format!("Health, for {age}"));
    let sections = [
        (title, identity(node, gpu, since), ""),
        (health, causes.collect(), "no known fault"),
        ("Held by".to_owned(), holders(node, gpu), "no container"),
        ("Unattributed".to_owned(), unattributed(node, gpu), "no data"),
        ("Events".to_owned(), events(node, gpu, ago), "none"),
    ];
    let mut lines = vec![];
    for (title, entries, nothing) in sections {
        lines.extend((!lines.is_empty()).then(|| Line::new("", Style::Plain)));
        lines.push(Line::new(title, Style::Heading));
        lines.extend(entries.is_empty().then(|| Line::new(format!("  {nothing}"), Style::Quiet)));
        for entry in entries {
            for (number, line) in wrapped(&entry, width.saturating_sub(4)).into_iter().enumerate() {
                let indent = if number == 0 { "  " } else { "    " };
                lines.push(Line::new(format!("{indent}{line}"), Style::Plain));
            }
        }
    }
    lines
}

fn identity(node: &Snapshot, gpu: &Gpu, since: Duration) -> Vec<String> {
    let mut location = vec![clean(gpu.uuid.as_str())];
    location.extend(gpu.pci_bus_id.as_ref().map(|bus| format!("PCI {}", clean(bus.as_str()))));
    location.extend(gpu.numa_node.map(|node| format!("NUMA node {node}")));
    if let Some(platform) = &gpu.platform {
        let number = |name: &str, number: Option<u8>| number.map(|number| format!("{name} {number}"));
        location.extend([number("slot", platform.slot), number("tray", platform.tray)].into_iter().flatten());
        location.extend([number("host", platform.host), number("module ID", platform.module_id)].into_iter().flatten());
    }
    let readings = node.hardware.readings.get(&gpu.uuid);
    let fast = readings.and_then(|readings| readings.fast.as_ref()).map(|fast| &fast.value);
    let medium = readings.and_then(|readings| readings.medium.as_ref()).map(|medium| &medium.value);
    let memory_use = medium.and_then(|medium| medium.memory);
    let mut values = vec![
        format!("busy {}", percent(node.overview.device(&gpu.uuid, None).and_then(|one| one.busy_ratio))),
        format!(
            "power {}/{}",
            unit(fast.and_then(|fast| fast.power_watts), ""),
            unit(medium.and_then(|medium| medium.power_limit_watts), "W")
        ),
    ];
    values.extend(fast.and_then(|fast| fast.module_power_watts).map(|watts| format!("module with CPU {watts:.0}W")));
    let age = readings.and_then(|readings| readings.medium.as_ref());
    let age = age.map(|medium| span(node.at.monotonic.since(medium.at).saturating_add(since).as_secs_f64()));
    let slow = [
        format!("{} ago:", known(age)),
        format!("memory {}", memory(memory_use.map(|memory| memory.used), memory_use.map(|memory| memory.total))),
        format!("temperature {}", unit(medium.and_then(|medium| medium.gpu_temperature_celsius), "C")),
        format!("SMs active {}", percent(medium.and_then(|medium| medium.gpm.sm_active))),
    ];
    let parts = gpu.mig_devices.iter().map(|mig| {
        let (state, _) = table::state(node, gpu, Some(mig));
        format!("{} {}, {state}, {}", table::number(gpu, Some(mig)), clean(&mig.profile), clean(mig.uuid.as_str()))
    });
    [location, values, slow.into()].map(|words| words.join("  ")).into_iter().chain(parts).collect()
}

fn holders(node: &Snapshot, gpu: &Gpu) -> Vec<String> {
    let mut words = vec![];
    for account in node.accounts.iter().filter(|account| account.gpu == gpu.uuid) {
        let Some(holding) = &account.holding else { continue };
        let method = holding.attribution.map(<&str>::from);
        let method = method.filter(|method| *method != holding.sharing.into_str());
        let method = method.map(|method| format!(" by {method}")).unwrap_or_default();
        let device = account.mig.as_ref().map(|mig| match gpu.mig_device(mig) {
            Some(mig) => format!("{} {}: ", table::number(gpu, Some(mig)), clean(&mig.profile)),
            None => format!("{}: ", clean(mig.as_str())),
        });
        let counters = &account.counters;
        let parts = crate::domain::model::parts_of_device(&node.hardware.inventory, account);
        words.push(format!(
            "{}{}: {}{method}, busy now {}, memory {}, held {}, GPU time {}: busy {} ({} borrowed), idle {}, unknown {}; \
             processes {}",
            device.unwrap_or_default(),
            clean(&account.container.to_string()),
            table::sharing(holding, parts.held),
            percent(parts.busy),
            memory(account.memory_used_bytes, None),
            spanned(counters.held_seconds),
            spanned(counters.allocated_seconds),
            spanned(counters.busy_seconds),
            spanned(counters.borrowed_seconds),
            spanned(counters.idle_seconds),
            spanned(counters.uncovered_seconds),
            known(account.processes.map(|count| count.to_string())),
        ));
    }
    words.sort();
    words
}

fn unattributed(node: &Snapshot, gpu: &Gpu) -> Vec<String> {
    let of_gpu = node.unattributed.iter().filter(|unattributed| unattributed.gpu == gpu.uuid);
    let parts =
        of_gpu.flat_map(|unattributed| UnattributedReason::iter().filter_map(|reason| part(unattributed, reason)));
    let foreign = node.unallocated_uses.iter().filter(|one| one.gpu == gpu.uuid).map(|one| {
        let container = one.container.as_deref().map(|name| format!("/{name}")).unwrap_or_default();
        format!("{} uses it without holding it", clean(&format!("{}{container}", one.pod)))
    });
    parts.chain(foreign).collect()
}

/// The unattributed use of one reason, such as `host: memory 0.4G, processes 1, busy 3s`.
fn part(unattributed: &Unattributed, reason: UnattributedReason) -> Option<String> {
    let words = [
        unattributed.memory_bytes.get(&reason).map(|bytes| format!("memory {}", memory(Some(*bytes), None))),
        unattributed.processes.get(&reason).map(|count| format!("processes {count}")),
        unattributed.busy_seconds.get(&reason).map(|seconds| format!("busy {}", span(*seconds))),
        unattributed.energy_joules.get(&reason).map(|joules| energy(Some(*joules))),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    (!words.is_empty()).then(|| format!("{}: {}", reason.into_str(), words.join(", ")))
}

fn events(node: &Snapshot, gpu: &Gpu, ago: impl Fn(Moment) -> String) -> Vec<String> {
    let mut words = vec![];
    let transitions = node.health.transitions.iter().rev().filter(|transition| transition.gpu == gpu.uuid);
    for transition in transitions.take(EVENTS_SHOWN) {
        let to = if transition.to_healthy { "healthy, ended" } else { "unhealthy" };
        let holders: Vec<String> = transition.holders.iter().map(|holder| clean(&holder.to_string())).collect();
        let held = if holders.is_empty() { String::new() } else { format!("; held by {}", holders.join(", ")) };
        let part = transition.mig.as_ref().map(|mig| format!(" ({})", clean(mig.as_str()))).unwrap_or_default();
        let (reason, detail) = (transition.reason.into_str(), clean(&transition.detail));
        words.push(format!("{} ago{part}: {to}: {reason}: {detail}{held}", ago(transition.at)));
    }
    let xids = node.health.gpus.get(&gpu.uuid).map(|health| &health.xids.by_code);
    for (code, xid) in xids.into_iter().flatten() {
        let times = counted(xid.count, "time");
        words.push(format!("XID {code} ({}): {times}, last {} ago", xid.class.into_str(), ago(xid.at)));
    }
    words
}
