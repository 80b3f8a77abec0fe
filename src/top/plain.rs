//! The same rows as text: whole words in aligned columns, for pipes, logs and `grep`.

use super::format::{DASH, energy, memory, percent, spanned, unit};
use super::rows::{self, ContainerRow, DeviceRow};
use crate::client::Node;
use crate::terminal;

/// Ends with a line feed.
pub fn text(node: &Node) -> String {
    let mut text = format!("{}\n{}\n", rows::title(node), rows::totals(node));
    for problem in rows::problems(node) {
        text.push_str(&format!("problem: {problem}\n"));
    }
    let sources = rows::sources(node).into_iter().map(|(name, age, word)| {
        let gap = if word.is_empty() { "" } else { " " };
        format!("{name} {}{gap}{word}", spanned(age))
    });
    text.push_str(&format!("read: {}\n", sources.collect::<Vec<_>>().join(", ")));
    let free = rows::resources(node);
    if !free.is_empty() {
        text.push_str(&format!("free: {}\n", free.join(", ")));
    }
    text.push('\n');
    text.push_str(&devices(&rows::devices(node)));
    text.push('\n');
    let mut containers = rows::containers(node);
    // Ended holdings last, then the longest idle first, then by name.
    containers.sort_by(|one, other| {
        let idle = |row: &ContainerRow| row.figures.idle_seconds.unwrap_or(-1.0);
        one.holds.cmp(&other.holds).reverse().then(idle(other).total_cmp(&idle(one)))
    });
    text.push_str(&self::containers(&containers));
    if let Some(ended) = rows::long_ended(node) {
        text.push_str(&format!("{ended}\n"));
    }
    text
}

fn devices(rows: &[DeviceRow]) -> String {
    if rows.is_empty() {
        return "no GPU\n".to_owned();
    }
    let titles = ["GPU", "UUID", "HEALTH", "BUSY_NOW", "SM", "MEMORY", "POWER", "HEAT", "HELD_BY", "MODEL"];
    let cells = rows.iter().map(|row| {
        let unattributed = row.unattributed.iter().map(|reason| format!("+{reason}"));
        let holders: Vec<String> = row.holders.iter().cloned().chain(row.free.clone()).chain(unattributed).collect();
        vec![
            row.name.clone(),
            row.key.clone(),
            row.status.words(),
            percent(row.busy),
            percent(row.sm_active),
            memory(row.memory_used, row.memory_total),
            unit(row.power, "W"),
            unit(row.heat, "C"),
            holders.join(","),
            row.model.clone(),
        ]
    });
    aligned(&titles, cells)
}

fn containers(rows: &[ContainerRow]) -> String {
    if rows.is_empty() {
        return "no container holds a GPU\n".to_owned();
    }
    let titles = [
        "NAMESPACE",
        "POD",
        "CONTAINER",
        "GPU",
        "SHARING",
        "BUSY_NOW",
        "MEMORY",
        "HELD",
        "GPU_TIME",
        "BUSY",
        "BORROWED",
        "IDLE",
        "UNKNOWN",
        "ENERGY",
        "LAST_ACTIVE",
    ];
    let cells = rows.iter().map(|row| {
        let figures = &row.figures;
        vec![
            row.namespace.clone(),
            row.pod.clone(),
            row.container.clone(),
            row.device.clone(),
            row.sharing.clone(),
            percent(row.busy_now),
            memory(row.memory_used, row.memory_limit),
            spanned(figures.held_seconds),
            spanned(figures.allocated_seconds),
            spanned(figures.busy_seconds),
            spanned(figures.borrowed_seconds),
            spanned(figures.idle_seconds),
            spanned(figures.uncovered_seconds),
            energy(figures.energy_joules),
            spanned(row.last_active),
        ]
    });
    aligned(&titles, cells)
}

fn aligned(titles: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let known = |cell: String| if cell.is_empty() { DASH.to_owned() } else { cell };
    let titles = titles.iter().map(|title| (*title).to_owned()).collect();
    let rows = rows.map(|row| row.into_iter().map(known).collect());
    let table: Vec<_> = std::iter::once(titles).chain(rows).collect();
    terminal::aligned(&table, usize::MAX)
}
