//! podmeter about itself.

use std::collections::BTreeMap;

use super::family::{Family, Group, counter, gauge, histogram};
use super::labels::{Labels, named};
use crate::domain::model::{HardwareSource, Snapshot, SourceStatus};

const PROC: &str = "/proc/self";
pub(super) static GROUP: Group = Group {
    section: "podmeter itself",
    labels: "",
    source: "podmeter",
    metrics: &[
        gauge("podmeter_collector_success", "Whether the collector's last run succeeded.", |snapshot, family| {
            family.each(collectors(snapshot), |collector| Some(collector.success));
        })
        .labels("collector"),
        gauge("podmeter_collector_stuck", "Whether a call of the collector hangs.", |snapshot, family| {
            family.each(collectors(snapshot), |collector| Some(collector.stuck));
        })
        .labels("collector"),
        gauge(
            "podmeter_collector_last_success_timestamp_seconds",
            "Unix time of the collector's last success.",
            |snapshot, family| family.each(collectors(snapshot), |collector| Some(collector.last_success?.unix)),
        )
        .labels("collector"),
        gauge("podmeter_collector_duration_seconds", "Duration of the collector's last run.", |snapshot, family| {
            family.each(collectors(snapshot), |collector| Some(collector.duration?.as_secs_f64()));
        })
        .labels("collector"),
        gauge("podmeter_collector_age_seconds", "Time since the collector's last success.", |snapshot, family| {
            let now = snapshot.at.monotonic;
            family.each(collectors(snapshot), |collector| {
                Some(now.since(collector.last_success?.monotonic).as_secs_f64())
            });
        })
        .labels("collector"),
        counter(
            "podmeter_nvml_errors_total",
            "Failed NVML calls, by call and return code; not_supported is not counted.",
            |snapshot, family| {
                for (call, codes) in &snapshot.hardware.errors {
                    for (code, count) in codes {
                        family.push(Labels::new("call", *call).and("code", *code), *count);
                    }
                }
            },
        )
        .labels("call code")
        .source("NVML"),
        counter(
            "podmeter_nvml_implausible_readings_total",
            "Readings outside the plausible range of their quantity, or contradicted by another; they are discarded.",
            |snapshot, family| counted(family, &snapshot.hardware.implausible_readings),
        )
        .labels("quantity")
        .source("NVML"),
        histogram(
            "podmeter_nvml_call_duration_seconds",
            "Duration of NVML calls, including failed ones; only with --nvml-call-durations.",
            |snapshot, family| {
                for (call, durations) in &snapshot.nvml_call_durations {
                    family.push(Labels::new("call", *call), durations);
                }
            },
        )
        .labels("call")
        .source("NVML"),
        gauge("podmeter_released", "Whether the driver is released on request.", |snapshot, family| {
            // Without a driver there is none to release.
            let has_driver = snapshot.hardware.source != HardwareSource::None;
            family.push_known(Labels::default(), has_driver.then_some(snapshot.hardware.released.is_some()));
        }),
        histogram(
            "podmeter_scrape_duration_seconds",
            "Time to answer a scrape, as of the previous scrapes.",
            |snapshot, family| family.push(Labels::default(), &snapshot.scrape_durations),
        ),
        gauge(
            "podmeter_config_last_reload_successful",
            "Whether the last reload of the configuration succeeded.",
            |snapshot, family| {
                family.push_known(Labels::default(), snapshot.config_reload.map(|reload| reload.successful));
            },
        ),
        gauge(
            "podmeter_config_last_reload_success_timestamp_seconds",
            "Unix time of the last successful load of the configuration.",
            |snapshot, family| {
                family.push_known(Labels::default(), snapshot.config_reload.map(|reload| reload.last_success));
            },
        ),
        counter(
            "podmeter_conservation_violations_total",
            "How often holders' shares and unattributed use did not add up to their device: a defect.",
            |snapshot, family| counted(family, &snapshot.violations),
        )
        .labels("quantity"),
        counter(
            "podmeter_series_dropped_total",
            "Container series dropped by the series limit, by whether their container had ended or held a device.",
            |snapshot, family| counted(family, &snapshot.series_dropped),
        )
        .labels("reason"),
        counter(
            "podmeter_log_lines_dropped_total",
            "Log lines dropped because standard error was too slow.",
            |snapshot, family| family.push(Labels::default(), snapshot.log_lines_dropped),
        ),
        gauge("podmeter_build_info", "Version, revision and compiler of this podmeter.", |_, family| {
            let labels = Labels::new("version", env!("CARGO_PKG_VERSION"))
                .and("revision", env!("PODMETER_BUILD_REVISION"))
                .and("rustc_version", env!("PODMETER_BUILD_RUSTC"));
            family.push(labels, 1u64);
        })
        .labels("version revision rustc_version"),
        counter("process_cpu_seconds_total", "User and system CPU time of podmeter.", |snapshot, family| {
            family.push_known(Labels::default(), snapshot.process.cpu_seconds);
        })
        .source(PROC),
        gauge("process_resident_memory_bytes", "Resident memory of podmeter.", |snapshot, family| {
            family.push_known(Labels::default(), snapshot.process.resident_bytes);
        })
        .source(PROC),
        gauge("process_virtual_memory_bytes", "Virtual memory of podmeter.", |snapshot, family| {
            family.push_known(Labels::default(), snapshot.process.virtual_bytes);
        })
        .source(PROC),
        gauge("process_open_fds", "File descriptors that podmeter has open.", |snapshot, family| {
            family.push_known(Labels::default(), snapshot.process.open_files);
        })
        .source(PROC),
        gauge("process_max_fds", "File descriptors that podmeter may open.", |snapshot, family| {
            family.push_known(Labels::default(), snapshot.process.max_files);
        })
        .source(PROC),
        gauge("process_start_time_seconds", "Unix time at which podmeter started.", |snapshot, family| {
            family.push_known(Labels::default(), snapshot.process.start);
        })
        .source(PROC),
    ],
};

fn collectors(snapshot: &Snapshot) -> impl Iterator<Item = (Labels, &SourceStatus)> {
    let tiers = snapshot.hardware.collectors.iter().map(|(name, collector)| (*name, collector));
    let processes = snapshot.processes.as_ref().and_then(|processes| processes.collector.as_ref());
    let processes = processes.map(|collector| ("processes", collector));
    let all = tiers.chain([("kubelet", &snapshot.kubelet.collector)]).chain(processes);
    all.map(|(name, collector)| (Labels::new("collector", name), collector))
}

/// Adds one series per value of the metric's label.
fn counted<N: Copy + Into<&'static str>>(family: &mut Family, counts: &BTreeMap<N, u64>) {
    family.by_name([(Labels::default(), counts)], |counts| Some(named(counts)));
}
