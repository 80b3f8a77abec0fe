//! The node in one line: what its GPUs have and use together.

use super::rows::{DeviceRow, DeviceStatus};

/// `8 GPUs, 1 unhealthy, 7 containers  memory 211/637G  power 1984W (7 of 8)`
///
/// A sum over fewer GPUs than there are says so: a GPU without a reading is not one that uses nothing.
pub fn line(devices: &[DeviceRow], containers: usize) -> String {
    let gpus: Vec<&DeviceRow> = devices.iter().filter(|row| row.key == row.gpu).collect();
    let unhealthy = devices.iter().filter(|row| matches!(row.status, DeviceStatus::Unhealthy(_))).count();
    let unhealthy = if unhealthy > 0 { format!(", {unhealthy} unhealthy") } else { String::new() };
    let mut words = vec![format!("{}{unhealthy}, {}", counted(gpus.len(), "GPU"), counted(containers, "container"))];
    let gibibytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / f64::from(1 << 30));
    words.extend(sum(&gpus, "memory", "G", |row| (gibibytes(row.memory_used), gibibytes(row.memory_total))));
    words.extend(sum(&gpus, "power", "W", |row| (row.power, row.power_limit)));
    words.join("  ")
}

/// `power 2284/5600W`; the limit is shown where each GPU that has a value has one.
fn sum(
    gpus: &[&DeviceRow],
    name: &str,
    unit: &str,
    of: impl Fn(&DeviceRow) -> (Option<f64>, Option<f64>),
) -> Option<String> {
    let values: Vec<(f64, Option<f64>)> =
        gpus.iter().map(|row| of(row)).filter_map(|(used, all)| Some((used?, all))).collect();
    if values.is_empty() {
        return None;
    }
    let used: f64 = values.iter().map(|(used, _)| used).sum();
    let all: Option<f64> = values.iter().map(|(_, all)| *all).sum();
    let all = all.map_or_else(String::new, |all| format!("/{all:.0}"));
    let missing =
        if values.len() < gpus.len() { format!(" ({} of {})", values.len(), gpus.len()) } else { String::new() };
    Some(format!("{name} {used:.0}{all}{unit}{missing}"))
}

fn counted(count: usize, name: &str) -> String {
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_values_are_not_zero() {
        let gpu = |key: &str, power: Option<f64>| DeviceRow {
            key: key.into(),
            gpu: key.into(),
            power,
            power_limit: Some(700.0),
            memory_used: Some(3 << 30),
            ..DeviceRow::default()
        };
        let mig = DeviceRow {
            key: "MIG".into(),
            gpu: "B".into(),
            power: Some(9.0),
            status: DeviceStatus::Unhealthy("xid".into()),
            ..DeviceRow::default()
        };
        let rows = [gpu("A", Some(100.4)), gpu("B", Some(50.0)), mig, gpu("C", None)];
        assert_eq!(line(&rows, 1), "3 GPUs, 1 unhealthy, 1 container  memory 9G  power 150/1400W (2 of 3)");
        assert_eq!(line(&rows[..1], 2), "1 GPU, 2 containers  memory 3G  power 100/700W");
        assert_eq!(line(&[], 0), "0 GPUs, 0 containers");
    }
}
