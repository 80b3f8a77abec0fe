use std::collections::BTreeSet;

use super::accelerators::{Accelerators, Found, Quantity};
use super::report::{Level, Line, Report, Status};
use super::{Anonymous, Observation};
use crate::client::{Answer, Page};

/// Names in one line of evidence.
const NAMED: usize = 8;

const OPEN_METRICS: &str = "application/openmetrics-text";

const METRICS: &str = "accelerator_metrics";
const ACCESS: &str = "secure_accelerator_access";

/// One requirement. The order is that of the report.
struct Row {
    id: &'static str,
    checklist: Option<&'static str>,
    level: Level,
    demand: &'static str,
    check: fn(&Facts<'_>) -> Finding,
}

/// What the checks read.
struct Facts<'a> {
    observation: &'a Observation,
    page: &'a Result<Page<'a>, String>,
    accelerators: Accelerators,
}

struct Finding {
    status: Status,
    evidence: String,
    metrics: Vec<String>,
    to_do: Option<&'static str>,
}

impl Finding {
    fn new(status: Status, evidence: impl Into<String>) -> Self {
        Self { status, evidence: evidence.into(), metrics: vec![], to_do: None }
    }

    fn of_metrics(self, metrics: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { metrics: metrics.into_iter().map(Into::into).collect(), ..self }
    }

    fn next_step(self, to_do: &'static str) -> Self {
        Self { to_do: Some(to_do), ..self }
    }
}

const ROWS: [Row; 12] = [
    Row {
        id: "KAR-0059/endpoint",
        checklist: Some(METRICS),
        level: Level::Must,
        demand: "metrics in a standard format that machines read",
        check: endpoint,
    },
    Row {
        id: "KAR-0059/utilization",
        checklist: Some(METRICS),
        level: Level::Must,
        demand: "the utilization of each accelerator",
        check: |facts| required(facts, Quantity::Utilization),
    },
    Row {
        id: "KAR-0059/memory",
        checklist: Some(METRICS),
        level: Level::Must,
        demand: "the memory usage of each accelerator",
        check: |facts| required(facts, Quantity::MemoryUse),
    },
    Row {
        id: "KAR-0059/temperature",
        checklist: Some(METRICS),
        level: Level::Should,
        demand: "the temperature, where the hardware or the virtualization makes it available",
        check: |facts| recommended(facts, Quantity::Temperature),
    },
    Row {
        id: "KAR-0059/power",
        checklist: Some(METRICS),
        level: Level::Should,
        demand: "the power draw, where the hardware or the virtualization makes it available",
        check: |facts| recommended(facts, Quantity::Power),
    },
    Row {
        id: "KAR-0059/interconnect",
        checklist: Some(METRICS),
        level: Level::Should,
        demand: "the interconnect bandwidth, where the hardware or the virtualization makes it available",
        check: |facts| recommended(facts, Quantity::Interconnect),
    },
    Row {
        id: "KAR-0059/standards",
        checklist: Some(METRICS),
        level: Level::Should,
        demand: "quantities that align with emerging standards, such as OpenTelemetry's GPU metrics",
        check: standards,
    },
    Row {
        id: "KAR-0059/workload",
        checklist: Some(METRICS),
        level: Level::Must,
        demand: "the utilization rises while a workload uses the accelerator (test plan)",
        check: workload,
    },
    Row {
        id: "KAR-0049/unallocated-use",
        checklist: Some(ACCESS),
        level: Level::Must,
        demand: "no container uses an accelerator that is not allocated to it",
        check: unallocated_use,
    },
    Row {
        id: "KAR-0049/isolation",
        checklist: Some(ACCESS),
        level: Level::Must,
        demand: "a container cannot open an accelerator without an allocation, nor that of another container",
        check: |_| {
            Finding::new(Status::CannotBeChecked, "metrics show use, not what a container could have opened").next_step(
                "run TestSecureAcceleratorAccess of kubernetes-sigs/ai-conformance on the cluster: its pods try to open \
                 accelerators that are not theirs",
            )
        },
    },
    Row {
        id: "endpoint/encryption",
        checklist: None,
        level: Level::None,
        demand: "whether the page is served over TLS; neither KAR demands it",
        check: encryption,
    },
    Row {
        id: "endpoint/authentication",
        checklist: None,
        level: Level::None,
        demand: "whether the page is refused to clients without a certificate or password; neither KAR demands it",
        check: authentication,
    },
];

pub fn report(observation: &Observation) -> Report {
    let page = page(&observation.answer);
    let accelerators = page.as_ref().map(Accelerators::of).unwrap_or_default();
    let (count, samples) = (accelerators.measured.len(), page.as_ref().map_or(0, |page| page.samples.len()));
    let facts = Facts { observation, page: &page, accelerators };
    let line = |row: &Row| {
        let Finding { status, evidence, metrics, to_do } = (row.check)(&facts);
        let Row { id, checklist, level, demand, .. } = *row;
        Line { id, checklist, level, status, demand, evidence, metrics, to_do }
    };
    Report::new(observation.url.clone(), count, samples, ROWS.iter().map(line).collect())
}

/// `Err`: what is wrong with it.
fn page(answer: &Answer) -> Result<Page<'_>, String> {
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    let text = std::str::from_utf8(&answer.body).map_err(|_| match answer.body.starts_with(&GZIP) {
        true => "it is compressed with gzip, which was not requested".to_owned(),
        false => "it is not UTF-8".to_owned(),
    })?;
    let page = Page::parse(text)?;
    if media_type(answer) == Some(OPEN_METRICS) && text.lines().last() != Some("# EOF") {
        return Err("it does not end in # EOF: it is truncated".to_owned());
    }
    Ok(page)
}

fn media_type(answer: &Answer) -> Option<&str> {
    answer.content_type.as_deref().and_then(|text| text.split(';').next()).map(str::trim)
}

fn endpoint(facts: &Facts<'_>) -> Finding {
    let page = match facts.page {
        Ok(page) => page,
        Err(problem) => {
            return Finding::new(Status::NotMet, format!("neither Prometheus text nor OpenMetrics: {problem}"));
        }
    };
    let content_type = facts.observation.answer.content_type.as_deref();
    let found = format!("{} samples of {} metrics", page.samples.len(), names(page).len());
    match media_type(&facts.observation.answer) {
        _ if page.samples.is_empty() => Finding::new(Status::NotMet, "the page has no samples"),
        Some("text/plain" | OPEN_METRICS) => {
            Finding::new(Status::Met, format!("{found}, as {}", content_type.unwrap_or_default()))
        }
        _ => Finding::new(
            Status::NotMet,
            format!("{found}, but its Content-Type is {}", content_type.unwrap_or("absent")),
        )
        .next_step("serve it as text/plain; version=0.0.4: Prometheus 3 refuses other types"),
    }
}

fn names<'a>(page: &Page<'a>) -> BTreeSet<&'a str> {
    page.samples.iter().map(|sample| sample.name).collect()
}

/// Of every accelerator that has any reading.
fn required(facts: &Facts<'_>, quantity: Quantity) -> Finding {
    let all = &facts.accelerators;
    if all.measured.is_empty() {
        // A page of accelerators whose names are not recognized is none without them.
        let status = if facts.page.is_ok() { Status::CannotBeChecked } else { Status::NotMet };
        return Finding::new(status, nothing(facts)).next_step("scrape the exporter of a node that has accelerators");
    }
    let Some(found) = all.found(quantity) else {
        return Finding::new(
            Status::NotMet,
            format!("no metric of {} has a label that names an accelerator", quantity.named()),
        );
    };
    let without = all.without(quantity);
    let status = if without.is_empty() { Status::Met } else { Status::NotMet };
    let mut evidence = counted(all, quantity, found);
    if !without.is_empty() {
        evidence += &format!("; without it: {}", few(without));
    }
    if !all.unmeasured.is_empty() {
        let unmeasured = few(all.unmeasured.iter().map(String::as_str));
        evidence += &format!("; not counted, because the page has no current reading of them: {unmeasured}");
    }
    Finding::new(status, evidence).of_metrics(found.metrics.keys())
}

/// Whether an absent value is one that the hardware lacks does not show.
fn recommended(facts: &Facts<'_>, quantity: Quantity) -> Finding {
    let all = &facts.accelerators;
    if all.measured.is_empty() {
        return Finding::new(Status::NotApplicable, nothing(facts));
    }
    match all.found(quantity) {
        Some(found) => Finding::new(Status::Met, counted(all, quantity, found)).of_metrics(found.metrics.keys()),
        None => Finding::new(Status::CannotBeChecked, format!("no metric of {}", quantity.named()))
            .next_step("not met where the driver reports it, such as in nvidia-smi -q; else not applicable"),
    }
}

fn nothing(facts: &Facts<'_>) -> String {
    match facts.page {
        Ok(_) => "no reading has a label that names an accelerator, such as gpu_uuid, UUID, uuid or gpu".to_owned(),
        Err(_) => "the page could not be read".to_owned(),
    }
}

fn counted(all: &Accelerators, quantity: Quantity, found: &Found) -> String {
    let metrics = found.metrics.iter().map(|(name, samples)| format!("{name} ({samples})"));
    let measured = all.measured.len();
    format!("{}: {} of {measured} accelerators", few(metrics), measured - all.without(quantity).len())
}

/// The unit of a quantity in OpenTelemetry's conventions, as names in Prometheus end in it.
fn standard(quantity: Quantity) -> (&'static str, &'static [&'static str]) {
    match quantity {
        Quantity::Utilization => ("hw.gpu.utilization in 1", &["_ratio"]),
        Quantity::MemoryUse => ("hw.gpu.memory.usage in By", &["_bytes"]),
        Quantity::Temperature => ("hw.temperature in Cel", &["_celsius"]),
        Quantity::Power => ("hw.power in W or hw.energy in J", &["_watts", "_joules", "_joules_total"]),
        Quantity::Interconnect => ("hw.gpu.io in By", &["_bytes", "_bytes_total"]),
    }
}

fn standards(facts: &Facts<'_>) -> Finding {
    let found = Quantity::ALL.into_iter().filter_map(|quantity| Some((quantity, facts.accelerators.found(quantity)?)));
    let found: Vec<(Quantity, &Found)> = found.collect();
    if found.is_empty() {
        return Finding::new(Status::NotApplicable, nothing(facts));
    }
    let (mut aligned, mut other) = (vec![], vec![]);
    for (quantity, found) in found {
        let (name, endings) = standard(quantity);
        let in_its_unit = found.metrics.keys().filter(|metric| endings.iter().any(|ending| metric.ends_with(ending)));
        match in_its_unit.min_by_key(|metric| !metric.contains("util")) {
            Some(metric) => aligned.push((metric.clone(), format!("{metric} as {name}"))),
            None => other.push(format!("no {} as {name}", quantity.named())),
        }
    }
    let (metrics, texts): (Vec<String>, Vec<String>) = aligned.into_iter().unzip();
    if other.is_empty() {
        return Finding::new(Status::Met, format!("by quantity and unit: {}", texts.join(", "))).of_metrics(metrics);
    }
    Finding::new(Status::NotMet, format!("by quantity and unit: {}", other.join(", "))).of_metrics(metrics)
}

fn workload(facts: &Facts<'_>) -> Finding {
    let evidence = match facts.accelerators.found(Quantity::Utilization) {
        Some(_) => "one page is one moment",
        None => "there is no utilization",
    };
    Finding::new(Status::CannotBeChecked, evidence)
        .next_step("run a short computation in a pod with an accelerator, and compare the metrics before and meanwhile")
}

/// Podmeter alone exports such use.
fn unallocated_use(facts: &Facts<'_>) -> Finding {
    const USE: &str = "podmeter_container_unallocated_use";
    const TEST: &str = "run TestSecureAcceleratorAccess of kubernetes-sigs/ai-conformance on the cluster";
    let Ok(page) = facts.page else { return Finding::new(Status::CannotBeChecked, nothing(facts)).next_step(TEST) };
    let text = |sample: &crate::client::Sample<'_>| {
        let label = |name| sample.label(name).unwrap_or("?").to_owned();
        format!("{}/{} on {}", label("namespace"), label("pod"), label("gpu_uuid"))
    };
    let uses: Vec<String> =
        page.samples.iter().filter(|sample| sample.name == USE && sample.value > 0.0).map(text).collect();
    if !uses.is_empty() {
        return Finding::new(Status::NotMet, format!("used without an allocation now: {}", few(uses)))
            .of_metrics([USE])
            .next_step("take privileges, host paths and NVIDIA_VISIBLE_DEVICES from these pods, unless they are meant to monitor");
    }
    let attribution = page
        .samples
        .iter()
        .find(|sample| sample.name == "podmeter_process_attribution_enabled")
        .map(|sample| sample.value);
    let evidence = match attribution {
        None => "this exporter does not compare processes with allocations",
        Some(value) if value > 0.0 => "no such process at this moment, which does not prove that none is possible",
        Some(_) => "host process IDs are not visible to podmeter on this node (hostPID)",
    };
    Finding::new(Status::CannotBeChecked, evidence).next_step(TEST)
}

fn encryption(facts: &Facts<'_>) -> Finding {
    Finding::new(
        Status::Observed,
        match facts.observation.is_https {
            true => "TLS, with a certificate that this client trusts",
            false => "plain HTTP: pod names and use can be read on the network",
        },
    )
}

fn authentication(facts: &Facts<'_>) -> Finding {
    Finding::new(
        Status::Observed,
        match &facts.observation.anonymous {
            Anonymous::Answered => "any client that reaches the port gets the page".to_owned(),
            Anonymous::Refused(reason) => format!("refused to a client without identity: {reason}"),
            Anonymous::Failed(reason) => format!("it could not be checked without identity: {reason}"),
        },
    )
}

/// The first ones, and how many more.
fn few(names: impl IntoIterator<Item = impl Into<String>>) -> String {
    let names: Vec<String> = names.into_iter().map(Into::into).collect();
    let mut text = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if names.len() > NAMED {
        text += &format!(" and {} more", names.len() - NAMED);
    }
    text
}
