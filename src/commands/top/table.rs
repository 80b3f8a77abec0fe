//! The table of devices, each with its containers below it, and the lines above it.

use std::collections::BTreeSet;
use std::time::Duration;

use unicode_width::UnicodeWidthStr as _;

use super::format::{energy, known, memory, percent, span, spanned, unit};
use super::{Line, Style};
use crate::domain::model::{
    Account, DeviceState, Gpu, GpuUuid, HealthCause, Holding, MigDevice, MigUuid, Monotonic, Snapshot,
    UnattributedReason, UnhealthyReason, equal_division, parts_of_device,
};
use crate::terminal::{clean, fit};
use crate::words::counted;

const COLUMNS: [&str; 15] = [
    "GPU",
    "STATE",
    "BUSY%",
    "MEMORY",
    "POWER",
    "HEAT",
    "HELD",
    "IDLE",
    "GPU_TIME",
    "BUSY",
    "BORROWED",
    "UNKNOWN",
    "ENERGY",
    "LAST_ACTIVE",
    "UUID",
];
/// The least width of a name that is cut so that the columns after it are on the screen.
const LEAST_NAME_WIDTH: usize = 30;
/// The width of a state that is cut.
const CUT_STATE_WIDTH: usize = 18;

/// A device, or a container on one.
pub struct TableRow {
    /// Identifies the row across responses.
    pub key: String,
    pub gpu: GpuUuid,
    cells: [String; COLUMNS.len()],
    style: Style,
}

/// The GPUs by number, each followed by its containers and its MIG devices, and each of these by its containers.
pub fn rows(node: &Snapshot) -> Vec<TableRow> {
    let mut rows = vec![];
    for gpu in in_order(node) {
        rows.push(device(node, gpu, None));
        rows.extend(containers(node, &gpu.uuid, None, 2));
        for mig in &gpu.mig_devices {
            rows.push(device(node, gpu, Some(mig)));
            rows.extend(containers(node, &gpu.uuid, Some(&mig.uuid), 4));
        }
    }
    // An account may be of a device that was removed.
    let inventory = &node.hardware.inventory;
    let is_listed = |account: &&Account| match &account.mig {
        None => inventory.gpus.contains_key(&account.gpu),
        Some(mig) => inventory.gpus.get(&account.gpu).is_some_and(|gpu| gpu.mig_device(mig).is_some()),
    };
    let others = node.accounts.iter().filter(|account| !is_listed(account));
    let others: BTreeSet<_> = others.map(|account| (&account.gpu, account.mig.as_ref())).collect();
    for (gpu, mig) in others {
        let below = containers(node, gpu, mig, 2);
        if !below.is_empty() {
            let uuid = clean(mig.map_or(gpu.as_str(), MigUuid::as_str));
            rows.push(row(uuid.clone(), gpu, [uuid, "gone".to_owned()].into(), Style::Alarm));
            rows.extend(below);
        }
    }
    rows
}

fn in_order(node: &Snapshot) -> Vec<&Gpu> {
    let mut gpus: Vec<&Gpu> = node.hardware.inventory.gpus.values().collect();
    gpus.sort_by_key(|gpu| gpu.order());
    gpus
}

/// A row; missing cells are unknown.
fn row(key: String, gpu: &GpuUuid, cells: Vec<String>, style: Style) -> TableRow {
    let mut cells = cells.into_iter();
    TableRow { key, gpu: gpu.clone(), cells: std::array::from_fn(|_| known(cells.next())), style }
}

/// The number, such as `0` or `0:1`; a GPU without a number has its address.
pub fn number(gpu: &Gpu, mig: Option<&MigDevice>) -> String {
    let address = || gpu.pci_bus_id.as_ref().map_or_else(|| "?".to_owned(), |bus| clean(bus.as_str()));
    let number = gpu.index.map_or_else(address, |index| index.to_string());
    mig.map_or_else(|| number.clone(), |mig| format!("{number}:{}", mig.index))
}

/// The model or profile, such as `H100 80GB HBM3` or `1g.10gb`.
pub fn model(gpu: &Gpu, mig: Option<&MigDevice>) -> String {
    match (mig, gpu.model.as_deref()) {
        (Some(mig), _) => clean(&mig.profile),
        (None, Some(model)) => clean(model.strip_prefix("NVIDIA ").unwrap_or(model)),
        (None, None) => String::new(),
    }
}

fn device(node: &Snapshot, gpu: &Gpu, mig: Option<&MigDevice>) -> TableRow {
    let readings = node.hardware.readings.get(&gpu.uuid);
    let fast = readings.and_then(|readings| readings.fast.as_ref()).filter(|_| mig.is_none()).map(|fast| &fast.value);
    let medium = readings.and_then(|readings| readings.medium.as_ref()).map(|medium| &medium.value);
    let instance = medium
        .zip(mig)
        .and_then(|(medium, mig)| medium.instances.iter().find(|instance| instance.gpu_instance == mig.gpu_instance));
    let medium = medium.filter(|_| mig.is_none());
    let memory_use = medium.and_then(|medium| medium.memory).or_else(|| instance?.memory);
    let total = memory_use.map(|memory| memory.total).or_else(|| mig?.memory_bytes);
    let (state, is_alarm) = state(node, gpu, mig);
    let overview = node.overview.device(&gpu.uuid, mig.map(|mig| &mig.uuid));
    let uuid = mig.map_or(gpu.uuid.as_str(), |mig| mig.uuid.as_str());
    let words = std::iter::once(state).chain(free(node, &gpu.uuid, mig)).chain(unattributed(node, gpu, mig));
    let indent = if mig.is_some() { "  " } else { "" };
    let mut cells = vec![
        format!("{indent}{} {}", number(gpu, mig), model(gpu, mig)),
        words.collect::<Vec<_>>().join(" "),
        percent(overview.and_then(|overview| overview.busy_ratio)),
        memory(memory_use.map(|memory| memory.used), total),
        unit(fast.and_then(|fast| fast.power_watts), "W"),
        unit(medium.and_then(|medium| medium.gpu_temperature_celsius), "C"),
    ];
    cells.resize_with(COLUMNS.len() - 1, || known(None));
    cells.push(clean(uuid));
    row(uuid.to_owned(), &gpu.uuid, cells, if is_alarm { Style::Alarm } else { Style::Plain })
}

/// The state in one word, with the first reason where it is unhealthy, and whether it is a problem.
pub fn state(node: &Snapshot, gpu: &Gpu, mig: Option<&MigDevice>) -> (String, bool) {
    if let Some(unserved) = node.hardware.inventory.unserved.get(&gpu.uuid) {
        return (format!("unserved:{}", clean(unserved.kernel_driver.as_deref().unwrap_or("no driver"))), false);
    }
    match node.health.device(&gpu.uuid, mig.map(|mig| &mig.uuid)) {
        Some(health) if health.healthy => ("healthy".to_owned(), false),
        Some(health) if health.is_only_marked() => ("marked".to_owned(), false),
        Some(health) => (format!("unhealthy:{}", health.reason().map_or("", |reason| reason.into_str())), true),
        None if !gpu.present => ("gone".to_owned(), true),
        None => ("unchecked".to_owned(), false),
    }
}

/// `free`, or how many of its slots or MIG devices are: `free:2/4`.
fn free(node: &Snapshot, gpu: &GpuUuid, mig: Option<&MigDevice>) -> Option<String> {
    let device = node.overview.device(gpu, mig.map(|mig| &mig.uuid))?;
    match (node.overview.free_parts(device), device.state) {
        (Some((free, all)), _) => Some(format!("free:{free}/{all}")),
        (None, Some(DeviceState::Free)) => Some("free".to_owned()),
        _ => None,
    }
}

/// The unattributed reasons with processes, such as `+host`, except those of the driver. A process may be listed
/// shortly before its allocation: `+not_allocated` is shown where the agent names the pod.
fn unattributed(node: &Snapshot, gpu: &Gpu, mig: Option<&MigDevice>) -> Vec<String> {
    let unattributed = node.unattributed.iter().filter(|one| one.gpu == gpu.uuid && mig.is_none());
    let is_foreign = node.unallocated_uses.iter().any(|one| one.gpu == gpu.uuid);
    let present = unattributed.flat_map(|one| &one.processes).filter(|(_, count)| **count > 0);
    let shown = present.filter(|(reason, _)| match reason {
        UnattributedReason::NotAllocated => is_foreign,
        reason => **reason != UnattributedReason::Driver,
    });
    shown.map(|(reason, _)| format!("+{}", reason.into_str())).collect()
}

/// The containers' rows: holders first, then by name; without those that ended over a minute ago.
fn containers(node: &Snapshot, gpu: &GpuUuid, mig: Option<&MigUuid>, indent: usize) -> Vec<TableRow> {
    let on_it = |account: &&Account| {
        account.gpu == *gpu && account.mig.as_ref() == mig && !account.has_long_ended(node.at.monotonic)
    };
    let mut accounts: Vec<&Account> = node.accounts.iter().filter(on_it).collect();
    accounts.sort_by_key(|account| (account.holding.is_none(), &account.container));
    accounts.into_iter().map(|account| container(node, account, indent)).collect()
}

fn container(node: &Snapshot, account: &Account, indent: usize) -> TableRow {
    let (counters, holding) = (&account.counters, account.holding.as_ref());
    let name = clean(&account.container.to_string());
    let used = account.memory_used_bytes.filter(|_| holding.is_some());
    let limit = account.memory_limit_bytes.filter(|_| holding.is_some());
    let parts = parts_of_device(&node.hardware.inventory, account);
    let cells = vec![
        format!("{}{name}", " ".repeat(indent)),
        holding.map_or_else(|| "ended".to_owned(), |holding| sharing(holding, parts.held)),
        percent(parts.busy),
        memory(used, limit),
        known(None),
        known(None),
        spanned(counters.held_seconds),
        spanned(counters.idle_seconds),
        spanned(counters.allocated_seconds),
        spanned(counters.busy_seconds),
        spanned(counters.borrowed_seconds),
        spanned(counters.uncovered_seconds),
        energy(counters.energy_joules),
        spanned(account.last_active.map(|then| (node.at.unix.0 - then.0).max(0.0))),
    ];
    let style = if holding.is_some() { Style::Plain } else { Style::Quiet };
    let mig = account.mig.as_ref().map_or("", |mig| mig.as_str());
    row(format!("{name}\n{}\n{mig}", account.gpu), &account.gpu, cells, style)
}

/// How the device is shared, and the part that the container holds: `exclusive`, or `time_slicing:25%`.
pub fn sharing(holding: &Holding, held: Option<f64>) -> String {
    let part = held.filter(|held| *held < 1.0).map_or_else(String::new, |held| format!(":{}", percent(Some(held))));
    format!("{}{part}", holding.sharing.into_str())
}

/// The titles, and a line for each row. Names and states are cut where the columns need more than `width`.
pub fn lines(rows: &[TableRow], width: usize) -> Vec<Line> {
    let mut widths = COLUMNS.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(&row.cells) {
            *width = cell.width().max(*width);
        }
    }
    if widths.iter().sum::<usize>() + widths.len() > width {
        widths[0] = widths[0].min(LEAST_NAME_WIDTH.max(width / 3));
        widths[1] = widths[1].min(CUT_STATE_WIDTH);
    }
    let line = |cells: &[String], style| {
        let cells = cells.iter().zip(widths).map(|(cell, width)| fit(cell, width, false));
        Line::new(cells.collect::<Vec<_>>().join(" ").trim_end(), style)
    };
    let titles = line(&COLUMNS.map(str::to_owned), Style::Quiet);
    std::iter::once(titles).chain(rows.iter().map(|row| line(&row.cells, row.style))).collect()
}

/// The node, such as `demo, simulated driver 570.124.06, up 1m15s`.
pub fn title(node: &Snapshot) -> String {
    let driver = clean(&node.hardware.driver_words());
    let name = if node.node_name.is_empty() { "podmeter".to_owned() } else { clean(&node.node_name) };
    format!("{name}, {driver}, up {}", span(node.at.monotonic.as_duration().as_secs_f64()))
}

/// The lines below the title: totals, the data's age, free devices, problems. `since`: the time since the response.
pub fn head(node: &Snapshot, since: Duration) -> Vec<Line> {
    let overview = &node.overview.node;
    let holding = node.accounts.iter().filter(|account| account.holding.is_some());
    let holders: BTreeSet<_> = holding.map(|account| &account.container).collect();
    let mut totals = vec![counted(overview.gpus, "GPU"), counted(holders.len(), "container")];
    let devices = node.health.gpus.values().flat_map(crate::domain::model::GpuHealth::devices);
    let (marked, unhealthy): (Vec<_>, Vec<_>) =
        devices.filter(|device| !device.healthy).partition(|device| device.is_only_marked());
    for (devices, state) in [(unhealthy, "unhealthy"), (marked, "marked")] {
        totals.extend((!devices.is_empty()).then(|| format!("{} {state}", devices.len())));
    }
    totals.extend(overview.allocated_gpus.map(|gpus| format!("{gpus:.1} GPUs allocated")));
    totals.extend(overview.busy_ratio.map(|ratio| format!("busy {}", percent(Some(ratio)))));
    let ended = node.accounts.iter().filter(|account| account.has_long_ended(node.at.monotonic)).count();
    totals.extend((ended > 0).then(|| format!("{ended} ended over a minute ago")));
    let mut lines = vec![Line::new(totals.join(", "), Style::Plain)];
    let age = |at: Option<Monotonic>| {
        known(at.map(|at| span(node.at.monotonic.since(at).saturating_add(since).as_secs_f64())))
    };
    let (kubelet, [use_at, memory_at]) = (node.kubelet.allocations_at, node.hardware.oldest_readings());
    let settling = if node.kubelet.settled { "" } else { " (settling)" };
    let kubelet = age(kubelet.map(|at| at.monotonic));
    let ages = format!(
        "read: allocations {kubelet}{settling}, use and power {}, memory and temperature {}",
        age(use_at),
        age(memory_at)
    );
    lines.push(Line::new(ages, Style::Plain));
    let free = node.overview.resources.iter().filter_map(|(resource, count)| {
        let held = count.held_unhealthy.filter(|held| *held > 0);
        let held = held.map_or_else(String::new, |held| format!(" ({held} held and unhealthy)"));
        Some(format!("{} {} of {}{held}", clean(resource.as_str()), count.free?, count.allocatable))
    });
    let free = free.collect::<Vec<_>>().join(", ");
    lines.extend((!free.is_empty()).then(|| Line::new(format!("free: {free}"), Style::Plain)));
    let note = equal_division(&node.accounts, node.processes.as_deref());
    lines.extend(note.map(|note| Line::new(format!("note: {note}"), Style::Plain)));
    lines.extend(problems(node).into_iter().map(|problem| Line::new(format!("problem: {problem}"), Style::Alarm)));
    lines
}

/// The problems that the agent reports, and each unhealthy device.
fn problems(node: &Snapshot) -> Vec<String> {
    let own = [node.hardware.problem.as_deref(), node.kubelet.problem.as_deref()];
    let mut problems: Vec<String> = own.into_iter().flatten().map(clean).collect();
    for gpu in in_order(node) {
        problems.extend(causes(node, gpu).into_iter().map(|(name, cause)| {
            let state = if cause.reason == UnhealthyReason::Admin { "marked" } else { "unhealthy" };
            format!("GPU {name} {state}: {}; {}", clean(&cause.detail), clean(&cause.clears))
        }));
    }
    problems
}

/// Why a GPU or its MIG devices are unhealthy, each with the device's number.
pub fn causes<'a>(node: &'a Snapshot, gpu: &Gpu) -> Vec<(String, &'a HealthCause)> {
    let Some(health) = node.health.gpus.get(&gpu.uuid) else { return vec![] };
    let mut causes: Vec<_> = health.whole.causes.iter().map(|cause| (number(gpu, None), cause)).collect();
    for (uuid, part) in &health.mig_devices {
        // Each part also has the causes of the whole GPU.
        let own = part.causes.iter().filter(|cause| !health.whole.causes.contains(cause));
        causes.extend(own.map(|cause| (number(gpu, gpu.mig_device(uuid)), cause)));
    }
    causes
}

/// The node as plain text, ending with a line feed.
pub fn text(node: &Snapshot) -> String {
    let rows = rows(node);
    let mut lines = vec![Line::new(title(node), Style::Heading)];
    lines.extend(head(node, Duration::ZERO));
    lines.push(Line::new("", Style::Plain));
    lines.extend(self::lines(&rows, usize::MAX));
    lines.into_iter().map(|line| line.text + "\n").collect()
}
