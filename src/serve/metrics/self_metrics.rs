//! podmeter about itself.

use std::sync::LazyLock;

use super::family::{Group, counter, gauge, histogram};
use super::labels::{Labels, node};
use crate::domain::model::{HardwareSource, Snapshot, SourceStatus};

const PROC: &str = "/proc/self";
pub(super) static GROUP: LazyLock<Group> = LazyLock::new(|| Group {
    section: "podmeter itself",
    labels: "",
    source: "podmeter",
    metrics: vec![
        gauge("podmeter_collector_success")
            .help("Whether the collector's last run succeeded.")
            .labels("collector")
            .each(collectors, |collector| Some(collector.success)),
        gauge("podmeter_collector_stuck")
            .help("Whether a call of the collector hangs.")
            .labels("collector")
            .each(collectors, |collector| Some(collector.stuck)),
        gauge("podmeter_collector_last_success_timestamp_seconds")
            .help("Unix time of the collector's last success.")
            .labels("collector")
            .each(collectors, |collector| Some(collector.last_success?.unix)),
        gauge("podmeter_collector_duration_seconds")
            .help("Duration of the collector's last run.")
            .labels("collector")
            .each(collectors, |collector| Some(collector.duration?.as_secs_f64())),
        gauge("podmeter_collector_age_seconds")
            .help("Time since the collector's last success.")
            .labels("collector")
            .samples(|snapshot, family| {
                for (labels, collector) in collectors(snapshot) {
                    let age = collector.last_success.map(|last| snapshot.at.monotonic.since(last.monotonic));
                    family.push_known(labels, age.map(|age| age.as_secs_f64()));
                }
            }),
        counter("podmeter_nvml_errors_total")
            .help("Failed NVML calls, by call and return code; not_supported is not counted.")
            .labels("call code")
            .source("NVML")
            .samples(|snapshot, family| {
                for (call, codes) in &snapshot.hardware.errors {
                    for (code, count) in codes {
                        family.push(Labels::new("call", *call).and("code", *code), *count);
                    }
                }
            }),
        counter("podmeter_nvml_implausible_readings_total")
            .help(
                "Readings outside the plausible range of their quantity, or contradicted by another; they are \
                     discarded.",
            )
            .source("NVML")
            .by_key("quantity", node, |snapshot| Some(&snapshot.hardware.implausible_readings)),
        histogram("podmeter_nvml_call_duration_seconds")
            .help("Duration of NVML calls, including failed ones; only with --nvml-call-durations.")
            .labels("call")
            .source("NVML")
            .samples(|snapshot, family| {
                for (call, durations) in &snapshot.nvml_call_durations {
                    family.push(Labels::new("call", *call), durations.clone());
                }
            }),
        gauge("podmeter_released").help("Whether the driver is released on request.").samples(|snapshot, family| {
            // Without a driver there is none to release.
            let has_driver = snapshot.hardware.source != HardwareSource::None;
            family.push_known(Labels::default(), has_driver.then_some(snapshot.hardware.released.is_some()));
        }),
        histogram("podmeter_scrape_duration_seconds")
            .help("Time to answer a scrape, as of the previous scrapes.")
            .each(node, |snapshot| Some(snapshot.scrape_durations.clone())),
        gauge("podmeter_config_last_reload_successful")
            .help("Whether the last reload of the configuration succeeded.")
            .each(node, |snapshot| snapshot.config_reload.map(|reload| reload.successful)),
        gauge("podmeter_config_last_reload_success_timestamp_seconds")
            .help("Unix time of the last successful load of the configuration.")
            .each(node, |snapshot| snapshot.config_reload.map(|reload| reload.last_success)),
        counter("podmeter_conservation_violations_total")
            .help("How often holders' shares and unattributed use did not add up to their device: a defect.")
            .by_key("quantity", node, |snapshot| Some(&snapshot.violations)),
        counter("podmeter_series_dropped_total")
            .help(
                "Container series dropped by the series limit, by whether their container had ended or held a \
                     device.",
            )
            .by_key("reason", node, |snapshot| Some(&snapshot.series_dropped)),
        counter("podmeter_log_lines_dropped_total")
            .help("Log lines dropped because standard error was too slow.")
            .each(node, |snapshot| Some(snapshot.log_lines_dropped)),
        gauge("podmeter_build_info")
            .help("Version, revision and compiler of this podmeter.")
            .labels("version revision rustc_version")
            .samples(|_, family| {
                let labels = Labels::new("version", env!("CARGO_PKG_VERSION"))
                    .and("revision", env!("PODMETER_BUILD_REVISION"))
                    .and("rustc_version", env!("PODMETER_BUILD_RUSTC"));
                family.push(labels, 1u64);
            }),
        counter("process_cpu_seconds_total")
            .help("User and system CPU time of podmeter.")
            .source(PROC)
            .each(node, |snapshot| snapshot.process.cpu_seconds),
        gauge("process_resident_memory_bytes")
            .help("Resident memory of podmeter.")
            .source(PROC)
            .each(node, |snapshot| snapshot.process.resident_bytes),
        gauge("process_virtual_memory_bytes")
            .help("Virtual memory of podmeter.")
            .source(PROC)
            .each(node, |snapshot| snapshot.process.virtual_bytes),
        gauge("process_open_fds")
            .help("File descriptors that podmeter has open.")
            .source(PROC)
            .each(node, |snapshot| snapshot.process.open_files),
        gauge("process_max_fds")
            .help("File descriptors that podmeter may open.")
            .source(PROC)
            .each(node, |snapshot| snapshot.process.max_files),
        gauge("process_start_time_seconds")
            .help("Unix time at which podmeter started.")
            .source(PROC)
            .each(node, |snapshot| snapshot.process.start),
    ],
});

fn collectors(snapshot: &Snapshot) -> Vec<(Labels, &SourceStatus)> {
    let tiers = snapshot.hardware.collectors.iter().map(|(name, collector)| (*name, collector));
    let processes = snapshot.processes.as_ref().and_then(|processes| processes.collector.as_ref());
    let processes = processes.map(|collector| ("processes", collector));
    let all = tiers.chain([("kubelet", &snapshot.kubelet.collector)]).chain(processes);
    all.map(|(name, collector)| (Labels::new("collector", name), collector)).collect()
}
