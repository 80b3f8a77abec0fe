//! Checks of the agent that may run here, by its responses: JSON without types, because it may have another version.

use serde_json::Value;

use super::observe::{NotObserved, Observations};
use super::observe_agent::{AgentResponses, ObservedAgent};
use super::report::{CheckOutcome, Finding};
use crate::commands::client::ClientError;
use crate::domain::holders::expected_on_bus;
use crate::words::counted;

/// A check with its ID, title, and why it matters.
type AgentCheck = (&'static str, &'static str, &'static str, fn(&Observations) -> CheckOutcome);

pub const CHECKS: [AgentCheck; 8] = [
    ("agent", "Agent", "the agent serves metrics and devices", agent),
    ("agent_ready", "Agent's readiness", "Kubernetes routes nothing to a pod that is not ready", ready),
    ("agent_problems", "Agent's own problems", "the agent keeps working with reduced data", problems),
    ("devices", "Devices expected and seen", "a GPU on the bus that the driver does not list is lost", devices),
    ("process_utilization", "Utilization by process", "without it the shares of a GPU are equal", process_utilization),
    ("device_health", "Device health", "an unhealthy device is not allocated", device_health),
    ("registrations", "Registered resources", "pods can request only registered resources", registrations),
    ("scrape", "Scrape", "Prometheus does the same", scrape),
];

/// The age in seconds at which a snapshot is old; one is published every few seconds.
const OLD: f64 = 15.0;
/// The most sentences of one kind that are shown.
const SHOWN: usize = 4;
const RESTART: &str = "see its log; kubectl rollout restart, if it does not recover";
const OWN_VERSION: &str = "run the doctor of the agent's own image: kubectl exec … podmeter doctor";

fn agent(observations: &Observations) -> CheckOutcome {
    let answers = match &observations.agent {
        ObservedAgent::NotConfigured => {
            return Ok(Finding::skipped("no admin socket is configured (adminSocket: none); set --url to the agent"));
        }
        ObservedAgent::Silent(error) if error.is_no_agent() && !observations.settings.agent_is_named() => {
            return Ok(Finding::skipped(format!("no agent runs here: {error}")));
        }
        ObservedAgent::Silent(error) => {
            let to_do = match error {
                ClientError::Tls { .. } | ClientError::Unauthorized { .. } => "correct the options of the connection",
                error if error.is_forbidden() => "run the doctor as root, like the agent",
                error if error.is_no_agent() => "start it, or correct --admin-socket or --url",
                _ => RESTART,
            };
            return Ok(Finding::failed(error.to_string(), to_do));
        }
        ObservedAgent::Responding(answers) => answers,
    };
    let unknown =
        |problem| Finding::warning(format!("{} answers without its version: {problem}", answers.target), OWN_VERSION);
    let record = answers.record.as_ref().map_err(unknown)?;
    let text = |key: &str| record.pointer(key).and_then(Value::as_str).unwrap_or("unknown");
    let (version, own) = (text("/running/version"), observations.version);
    let (revision, node) = (text("/running/revision"), text("/node/name"));
    let found = format!("podmeter {version} ({revision}) of node {node} on {}", answers.target);
    Ok(match version == own {
        true => Finding::ok(found),
        false => Finding::warning(format!("{found}, and this is {own}"), OWN_VERSION),
    })
}

/// The agent's responses, or the finding that there are none.
fn answers(observations: &Observations) -> Result<&AgentResponses, Finding> {
    match &observations.agent {
        ObservedAgent::Responding(answers) => Ok(answers),
        _ => Err(Finding::skipped("no agent answers")),
    }
}

fn node(observations: &Observations) -> Result<&Value, Finding> {
    answers(observations)?.node.as_ref().map_err(|problem| Finding::failed(problem, RESTART))
}

/// The value at the pointer. Where it is absent, the agent has another version.
fn value<'a>(node: &'a Value, pointer: &str) -> Result<&'a Value, Finding> {
    let absent = || Finding::warning(format!("this agent does not report {pointer}"), OWN_VERSION);
    node.pointer(pointer).ok_or_else(absent)
}

/// The members of an object.
fn members<'a>(node: &'a Value, pointer: &str) -> Result<impl Iterator<Item = (&'a String, &'a Value)>, Finding> {
    Ok(value(node, pointer)?.as_object().into_iter().flatten())
}

fn ready(observations: &Observations) -> CheckOutcome {
    Ok(match &answers(observations)?.ready {
        Ok(()) => Finding::ok("ready"),
        Err(reason) => Finding::failed(reason, "it becomes ready once that is fixed"),
    })
}

fn problems(observations: &Observations) -> CheckOutcome {
    let node = node(observations)?;
    let (mut failed, mut warned) = (vec![], vec![]);
    let age = observations.now.0 - value(node, "/at/unix")?.as_f64().unwrap_or(0.0);
    if age > OLD {
        failed.push(format!("the last snapshot is {age:.0} s old"));
    }
    for pointer in ["/kubelet/problem", "/hardware/problem"] {
        failed.extend(value(node, pointer)?.as_str().map(str::to_owned));
    }
    if node.pointer("/config_reload/successful") == Some(&Value::Bool(false)) {
        failed.push("the configuration was not reloaded: the previous one stays in effect; see the log".to_owned());
    }
    if !value(node, "/hardware/released")?.is_null() {
        warned.push("the driver is released on request: `podmeter resume` ends it".to_owned());
    }
    let plugin = node.pointer("/plugin/problems").and_then(Value::as_array).into_iter().flatten();
    warned.extend(plugin.chain(node.pointer("/processes/problem")).filter_map(Value::as_str).map(str::to_owned));
    let violated = members(node, "/violations")?.filter(|(_, count)| count.as_u64().is_some_and(|count| count > 0));
    warned.extend(violated.map(|(quantity, count)| {
        let times = counted(count.as_u64().unwrap_or_default(), "time");
        format!("shares of {quantity} did not add up to their device {times}: please report this")
    }));
    let (is_failed, all) = (!failed.is_empty(), [failed, warned].concat());
    let to_do = "each names what to do; docs/troubleshooting.md has more";
    Ok(match (is_failed, all.is_empty()) {
        (true, _) => Finding::failed(few(&all), to_do),
        (false, false) => Finding::warning(few(&all), to_do),
        (false, true) => Finding::ok("none"),
    })
}

fn few(sentences: &[String]) -> String {
    let more = sentences.len().saturating_sub(SHOWN);
    let end = if more > 0 { format!("; and {more} more") } else { String::new() };
    sentences[..sentences.len() - more].join("; ") + &end
}

/// Compares the number of expected GPUs with the driver's, where it was opened here, or else with the agent's.
fn devices(observations: &Observations) -> CheckOutcome {
    let machine = observations.machine.as_ref();
    let bus = machine.and_then(|machine| machine.bus.as_ref().ok());
    let (expected, seen) = match (machine.map(|machine| &machine.driver), &observations.agent) {
        (Some(Ok(driver)), _) => {
            (bus.map(|bus| expected_on_bus(&driver.inventory, bus)), Some(driver.inventory.visible()))
        }
        (_, ObservedAgent::Responding(_)) => {
            let node = node(observations)?;
            if value(node, "/hardware/source")? == "none" {
                return Ok(Finding::skipped("--hardware none: no devices are read"));
            }
            let expected = node.pointer("/hardware/node_devices/expected").and_then(Value::as_u64);
            let present = members(node, "/hardware/inventory/gpus")?.filter(|(_, gpu)| gpu["present"] == true);
            (expected.and_then(|expected| usize::try_from(expected).ok()), Some(present.count()))
        }
        (Some(Err(NotObserved::Failed(..))), _) => (bus.map(|bus| bus.expected), None),
        (Some(Err(NotObserved::Skipped(reason))), _) => return Ok(Finding::skipped(reason)),
        (None, _) => return Ok(Finding::skipped("no agent answers")),
    };
    let number = |count: Option<usize>| count.map_or("an unknown number".to_owned(), |count| count.to_string());
    let found = format!("{} expected, {} seen", number(expected), number(seen));
    Ok(match (expected, seen) {
        (None, _) => Finding::warning(found, "mount the host's /sys, or set --sys-root"),
        (Some(0), Some(0) | None) => Finding::warning(found, "nothing if this node has no GPU; else fix the driver"),
        (Some(_), None) => Finding::failed(found, "fix the driver first"),
        (Some(expected), Some(seen)) if seen < expected => Finding::failed(
            found,
            "see dmesg for XIDs and for the GPU that has fallen off the bus; reset it or reboot the node",
        ),
        (Some(expected), Some(seen)) if seen > expected => {
            Finding::warning(format!("{found}: the PCI bus shows fewer than the driver"), "check --sys-root")
        }
        (Some(_), Some(_)) => Finding::ok(found),
    })
}

fn process_utilization(observations: &Observations) -> CheckOutcome {
    let readings = node(observations)?.pointer("/hardware/readings").and_then(Value::as_object);
    let source = |readings: &Value| readings.pointer("/medium/value/process_utilization_source").cloned();
    let silent = readings.into_iter().flatten().filter(|(_, readings)| source(readings) == Some("none".into()));
    let silent: Vec<&str> = silent.map(|(uuid, _)| uuid.as_str()).collect();
    Ok(match silent.is_empty() {
        true => Finding::ok("no GPU is busy without processes"),
        false => Finding::warning(
            format!("busy, and neither driver call lists a process: {}", silent.join(", ")),
            "update the driver; until then the busy time of a shared GPU is divided equally (docs/attribution.md)",
        ),
    })
}

fn device_health(observations: &Observations) -> CheckOutcome {
    let (mut count, mut unhealthy, mut marked) = (0, vec![], vec![]);
    for (gpu, health) in members(node(observations)?, "/health/gpus")? {
        let instances = health["instances"].as_object().into_iter().flatten();
        for (device, health) in std::iter::once((gpu, &health["whole"])).chain(instances) {
            count += 1;
            let mut causes_of = health["causes"].as_array().into_iter().flatten();
            match health["healthy"] == true {
                true => {}
                false if causes_of.all(|cause| cause["reason"] == "admin") => {
                    marked.push(format!("{device} is marked: {}", causes(health)));
                }
                false => unhealthy.push(format!("{device} is unhealthy: {}", causes(health))),
            }
        }
    }
    Ok(match (count, unhealthy.is_empty(), marked.is_empty()) {
        (0, ..) => Finding::skipped("the agent has no devices"),
        (count, true, true) => Finding::ok(format!("{}, all healthy", counted(count, "device"))),
        (_, true, false) => Finding::warning(few(&marked), "`podmeter unmark` after the repair"),
        (_, false, _) => {
            unhealthy.append(&mut marked);
            Finding::failed(few(&unhealthy), "see docs/health.md for what clears each; drain the pods on them")
        }
    })
}

/// The causes as `detail (clears)`.
fn causes(health: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let causes = health["causes"].as_array().into_iter().flatten();
    let causes = causes.map(|cause| format!("{} ({})", text(&cause["detail"]), text(&cause["clears"])));
    causes.collect::<Vec<_>>().join(", ")
}

fn registrations(observations: &Observations) -> CheckOutcome {
    let node = node(observations)?;
    if value(node, "/plugin")?.is_null() {
        return Ok(Finding::skipped("the agent's device plugin is off"));
    }
    let (mut good, mut bad) = (vec![], vec![]);
    for (name, state) in members(node, "/plugin/resources")? {
        let text = |key: &str| state[key].as_str();
        if let Some(conflict) = text("conflict") {
            bad.push(conflict.to_owned());
        } else if state["registered"] == true {
            let devices = state["devices"].as_object().map_or(0, serde_json::Map::len);
            good.push(format!("{name} with {}", counted(devices, "device")));
        } else if text("ended").is_none() {
            let problem = text("problem").unwrap_or("the registration has not been checked yet");
            bad.push(format!("{name} is not registered: {problem}"));
        }
    }
    Ok(match (good.is_empty(), bad.is_empty()) {
        (_, false) => Finding::failed(few(&bad), "fix the kubelet checks above; podmeter keeps retrying"),
        (false, true) => Finding::ok(few(&good)),
        (true, true) => Finding::warning(
            "the plugin has nothing to offer",
            "nothing if this node has no devices; else see the driver checks and devicePlugin.resources",
        ),
    })
}

fn scrape(observations: &Observations) -> CheckOutcome {
    let answers = answers(observations)?;
    let (mut good, mut bad) = (vec![], vec![]);
    for (target, page) in &answers.pages {
        match page {
            Ok(series) => good.push(format!("{target}: {series} series")),
            Err(problem) => bad.push(format!("{target}: {problem}")),
        }
    }
    let to_do = "see the agent's log and its --listen; run the doctor in the agent's network namespace";
    Ok(match (good.is_empty(), bad.is_empty()) {
        (_, false) => Finding::failed(few(&bad), to_do),
        (false, true) => Finding::ok(few(&good)),
        (true, true) if answers.guarded.is_empty() => {
            Finding::warning("the agent does not report where it listens", "set --url")
        }
        (true, true) => Finding::skipped(format!(
            "{} require the credentials of the web configuration; see Prometheus' targets page",
            answers.guarded.join(", ")
        )),
    })
}
