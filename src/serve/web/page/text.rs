//! Values in readable form.

use std::time::{Duration, SystemTime};

use maud::{Markup, html};

use crate::domain::model::{Gpu, GpuUuid, MigUuid, Moment, Monotonic, Snapshot, UnixSeconds};

pub(super) fn or_unknown(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".to_owned())
}

/// A figure, with three decimals for programs.
pub(super) fn figure(name: &'static str, value: Option<f64>, show: impl Fn(f64) -> String) -> Markup {
    let decimal = value.map(|value| format!("{value:.3}"));
    html! { b data-figure=(name) data-value=[decimal] { (or_unknown(value.map(show))) } }
}

/// A percentage with a no-break space.
pub(super) fn percent(ratio: f64) -> String {
    format!("{:.0}\u{a0}%", ratio * 100.0)
}

pub(super) fn watts(watts: f64) -> String {
    if watts >= 10_000.0 { format!("{:.1} kW", watts / 1e3) } else { format!("{watts:.0} W") }
}

pub(super) fn gibibytes(bytes: u64) -> String {
    let gibibytes = bytes as f64 / f64::from(1 << 30);
    if bytes > 0 && gibibytes < 0.95 {
        return format!("{:.0} MiB", (bytes as f64 / f64::from(1 << 20)).max(1.0));
    }
    if gibibytes >= 100.0 { format!("{gibibytes:.0} GiB") } else { format!("{gibibytes:.1} GiB") }
}

pub(super) fn kilowatt_hours(joules: f64) -> String {
    let hours = joules / 3.6e6;
    if hours >= 10.0 { format!("{hours:.1} kWh") } else { format!("{hours:.3} kWh") }
}

pub(super) fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

pub(super) fn ago(now: Moment, then: Monotonic) -> String {
    format!("{} ago", span(now.monotonic.since(then).as_secs()))
}

/// The time of day, with the date for programs and on hover.
pub(super) fn time(at: UnixSeconds) -> Markup {
    let since = Duration::try_from_secs_f64(at.0).unwrap_or_default();
    let date = humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + since).to_string();
    let day = date.get(11..19).unwrap_or_default();
    html! { time datetime=(date) title=(date) { (day) } }
}

/// `GPU 3`, or `GPU 3:0 1g.10gb` for a MIG device.
pub(super) fn device_name(snapshot: &Snapshot, gpu: &GpuUuid, mig: Option<&MigUuid>) -> String {
    let Some(found) = snapshot.hardware.inventory.gpus.get(gpu) else { return gpu.to_string() };
    let name = gpu_name(found);
    match mig {
        None => name,
        Some(uuid) => match found.mig_devices.iter().find(|device| device.uuid == *uuid) {
            Some(device) => format!("{name}:{} {}", device.index, device.profile),
            None => format!("{name}, {uuid}"),
        },
    }
}

pub(super) fn gpu_name(gpu: &Gpu) -> String {
    match (gpu.index, &gpu.pci_bus_id) {
        (Some(index), _) => format!("GPU {index}"),
        (None, Some(address)) => format!("GPU at {address}"),
        (None, None) => "GPU, index unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        let spans = [59, 61, 3_660, 90_000].map(span);
        assert_eq!(spans, ["59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]);
    }

    #[test]
    fn any_time_is_shown_as_time_of_day() {
        let text = time(UnixSeconds(1_760_000_000.5)).into_string();
        assert!(text.contains("datetime=\"2025-10-09T08:53:20Z\"") && text.ends_with(">08:53:20</time>"), "{text}");
        for odd in [f64::NAN, -1.0, f64::INFINITY] {
            assert!(time(UnixSeconds(odd)).into_string().contains(">00:00:00<"));
        }
    }

    #[test]
    fn large_values_keep_few_digits() {
        assert_eq!((watts(633.4), watts(10_240.0)), ("633 W".to_owned(), "10.2 kW".to_owned()));
        assert_eq!(
            (gibibytes(0), gibibytes(1), gibibytes(700 << 20)),
            ("0.0 GiB".into(), "1 MiB".into(), "700 MiB".into())
        );
        assert_eq!((gibibytes(38 << 30), gibibytes(637 << 30)), ("38.0 GiB".to_owned(), "637 GiB".to_owned()));
    }
}
