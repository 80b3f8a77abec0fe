//! podmeter about itself.

use std::collections::BTreeMap;

use super::{Descriptor, Family, Group, Value};
use crate::model::{Collector, Quantity, Snapshot};

const PROC: &str = "/proc/self";
const OWN: &str = "podmeter";

static COLLECTOR_SUCCESS: Descriptor = Descriptor::gauge(
    "podmeter_collector_success",
    &["collector"],
    "",
    OWN,
    "Whether the collector's last run succeeded, 0 or 1.",
);
static COLLECTOR_STUCK: Descriptor = Descriptor::gauge(
    "podmeter_collector_stuck",
    &["collector"],
    "",
    OWN,
    "Whether a call of the collector has not come back in time, 0 or 1.",
);
static COLLECTOR_LAST_SUCCESS: Descriptor = Descriptor::gauge(
    "podmeter_collector_last_success_timestamp_seconds",
    &["collector"],
    "seconds",
    OWN,
    "Unix time of the collector's last success.",
);
static COLLECTOR_DURATION: Descriptor = Descriptor::gauge(
    "podmeter_collector_duration_seconds",
    &["collector"],
    "seconds",
    OWN,
    "Time that the collector's last run took.",
);
static COLLECTOR_AGE: Descriptor = Descriptor::gauge(
    "podmeter_collector_age_seconds",
    &["collector"],
    "seconds",
    OWN,
    "Time since the collector's last success.",
);
static NVML_ERRORS: Descriptor = Descriptor::counter(
    "podmeter_nvml_errors_total",
    &["call", "code"],
    "",
    "NVML",
    "NVML calls that failed, by call and return code; what is not supported is no error.",
);
static NVML_IMPLAUSIBLE: Descriptor = Descriptor::counter(
    "podmeter_nvml_implausible_readings_total",
    &["quantity"],
    "",
    "NVML",
    "Readings outside the range that their quantity can have; each is absent where it would have been shown.",
);
static NVML_CALL_DURATION: Descriptor = Descriptor::histogram(
    "podmeter_nvml_call_duration_seconds",
    &["call"],
    "seconds",
    "NVML",
    "Time that NVML calls took, by call, refused ones included; only with --nvml-call-durations.",
);
static RELEASED: Descriptor =
    Descriptor::gauge("podmeter_released", &[], "", OWN, "Whether the driver was let go of on request, 0 or 1.");
static SCRAPE_DURATION: Descriptor = Descriptor::histogram(
    "podmeter_scrape_duration_seconds",
    &[],
    "seconds",
    OWN,
    "Time from a scrape's request to its page, as of the previous scrapes.",
);
static CONFIG_RELOAD_SUCCESSFUL: Descriptor = Descriptor::gauge(
    "podmeter_config_last_reload_successful",
    &[],
    "",
    OWN,
    "Whether the last reading of the configuration succeeded, 0 or 1.",
);
static CONFIG_RELOAD_TIME: Descriptor = Descriptor::gauge(
    "podmeter_config_last_reload_success_timestamp_seconds",
    &[],
    "seconds",
    OWN,
    "Unix time of the last successful reading of the configuration.",
);
static CONSERVATION_VIOLATIONS: Descriptor = Descriptor::counter(
    "podmeter_conservation_violations_total",
    &["quantity"],
    "",
    OWN,
    "How often shares and remainder did not add up to their device; always a defect.",
);
static SERIES_DROPPED: Descriptor = Descriptor::counter(
    "podmeter_series_dropped_total",
    &["reason"],
    "",
    OWN,
    "Container series left off the page by the series limit, by whether their container had ended or held.",
);
static LOG_LINES_DROPPED: Descriptor = Descriptor::counter(
    "podmeter_log_lines_dropped_total",
    &[],
    "",
    OWN,
    "Log lines dropped because standard error did not take them in time.",
);
static BUILD_INFO: Descriptor = Descriptor::gauge(
    "podmeter_build_info",
    &["version", "revision", "rustc_version"],
    "",
    OWN,
    "What this podmeter was built from; always 1.",
);
static CPU_SECONDS: Descriptor =
    Descriptor::counter("process_cpu_seconds_total", &[], "seconds", PROC, "User and system CPU time of podmeter.");
static RESIDENT_MEMORY: Descriptor =
    Descriptor::gauge("process_resident_memory_bytes", &[], "bytes", PROC, "Resident memory of podmeter.");
static VIRTUAL_MEMORY: Descriptor =
    Descriptor::gauge("process_virtual_memory_bytes", &[], "bytes", PROC, "Virtual memory of podmeter.");
static OPEN_FILES: Descriptor =
    Descriptor::gauge("process_open_fds", &[], "", PROC, "File descriptors that podmeter has open.");
static MAX_FILES: Descriptor =
    Descriptor::gauge("process_max_fds", &[], "", PROC, "File descriptors that podmeter may open.");
static START_TIME: Descriptor =
    Descriptor::gauge("process_start_time_seconds", &[], "seconds", PROC, "Unix time at which podmeter started.");

pub(super) const GROUP: Group = Group {
    section: "podmeter itself",
    descriptors: &[
        &COLLECTOR_SUCCESS,
        &COLLECTOR_STUCK,
        &COLLECTOR_LAST_SUCCESS,
        &COLLECTOR_DURATION,
        &COLLECTOR_AGE,
        &NVML_ERRORS,
        &NVML_IMPLAUSIBLE,
        &NVML_CALL_DURATION,
        &RELEASED,
        &SCRAPE_DURATION,
        &CONFIG_RELOAD_SUCCESSFUL,
        &CONFIG_RELOAD_TIME,
        &CONSERVATION_VIOLATIONS,
        &SERIES_DROPPED,
        &LOG_LINES_DROPPED,
        &BUILD_INFO,
        &CPU_SECONDS,
        &RESIDENT_MEMORY,
        &VIRTUAL_MEMORY,
        &OPEN_FILES,
        &MAX_FILES,
        &START_TIME,
    ],
    families,
};

fn families(snapshot: &Snapshot) -> Vec<Family> {
    let now = snapshot.at.monotonic;
    let reload = snapshot.config_reload;
    let process = snapshot.process;
    let mut log_lines = Family::new(&LOG_LINES_DROPPED);
    log_lines.push_created(vec![], Some(snapshot.log_lines_dropped), snapshot.started);
    let mut cpu = Family::new(&CPU_SECONDS);
    cpu.push_created(vec![], process.cpu_seconds, process.start);
    vec![
        per_collector(snapshot, &COLLECTOR_SUCCESS, |collector| Some(collector.success)),
        per_collector(snapshot, &COLLECTOR_STUCK, |collector| Some(collector.stuck)),
        per_collector(snapshot, &COLLECTOR_LAST_SUCCESS, |collector| Some(collector.last_success?.unix)),
        per_collector(snapshot, &COLLECTOR_DURATION, |collector| Some(collector.duration?.as_secs_f64())),
        per_collector(snapshot, &COLLECTOR_AGE, |collector| {
            Some(now.since(collector.last_success?.monotonic).as_secs_f64())
        }),
        nvml_errors(snapshot),
        counted(snapshot, &NVML_IMPLAUSIBLE, "quantity", &snapshot.hardware.implausible_readings, |name| name),
        nvml_call_durations(snapshot),
        // Where there is no driver there is none to let go of.
        single(&RELEASED, (snapshot.hardware.source != "none").then_some(snapshot.hardware.released.is_some())),
        single(&SCRAPE_DURATION, Some(&snapshot.scrape_durations)),
        single(&CONFIG_RELOAD_SUCCESSFUL, reload.map(|reload| reload.successful)),
        single(&CONFIG_RELOAD_TIME, reload.map(|reload| reload.last_success)),
        counted(snapshot, &CONSERVATION_VIOLATIONS, "quantity", &snapshot.violations, Quantity::as_str),
        counted(snapshot, &SERIES_DROPPED, "reason", &snapshot.series_dropped, |reason| reason),
        log_lines,
        build_info(),
        cpu,
        single(&RESIDENT_MEMORY, process.resident_bytes),
        single(&VIRTUAL_MEMORY, process.virtual_bytes),
        single(&OPEN_FILES, process.open_files),
        single(&MAX_FILES, process.max_files),
        single(&START_TIME, process.start),
    ]
}

fn single<V: Into<Value>>(descriptor: &'static Descriptor, value: Option<V>) -> Family {
    let mut family = Family::new(descriptor);
    family.push_known(vec![], value);
    family
}

fn per_collector<V: Into<Value>>(
    snapshot: &Snapshot,
    descriptor: &'static Descriptor,
    read: impl Fn(&Collector) -> Option<V>,
) -> Family {
    let mut family = Family::new(descriptor);
    let tiers = snapshot.hardware.collectors.iter().map(|(name, collector)| (*name, collector));
    let processes = snapshot.processes.as_ref().and_then(|processes| processes.collector.as_ref());
    let others = [("kubelet", Some(&snapshot.kubelet.collector)), ("processes", processes)];
    let others = others.into_iter().filter_map(|(name, collector)| Some((name, collector?)));
    for (name, collector) in tiers.chain(others) {
        family.push_known(vec![("collector", name.into())], read(collector));
    }
    family
}

fn nvml_errors(snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&NVML_ERRORS);
    for (call, codes) in &snapshot.hardware.errors {
        for (code, count) in codes {
            let labels = vec![("call", (*call).into()), ("code", (*code).into())];
            family.push_created(labels, Some(*count), snapshot.started);
        }
    }
    family
}

fn nvml_call_durations(snapshot: &Snapshot) -> Family {
    let mut family = Family::new(&NVML_CALL_DURATION);
    for (call, durations) in &snapshot.nvml_call_durations {
        family.push(vec![("call", (*call).into())], durations);
    }
    family
}

fn counted<K: Copy>(
    snapshot: &Snapshot,
    descriptor: &'static Descriptor,
    label: &'static str,
    counts: &BTreeMap<K, u64>,
    name: impl Fn(K) -> &'static str,
) -> Family {
    let mut family = Family::new(descriptor);
    for (key, count) in counts {
        family.push_created(vec![(label, name(*key).into())], Some(*count), snapshot.started);
    }
    family
}

fn build_info() -> Family {
    let mut family = Family::new(&BUILD_INFO);
    let labels = vec![
        ("version", env!("CARGO_PKG_VERSION").into()),
        ("revision", env!("PODMETER_BUILD_REVISION").into()),
        ("rustc_version", env!("PODMETER_BUILD_RUSTC").into()),
    ];
    family.push(labels, 1u64);
    family
}
