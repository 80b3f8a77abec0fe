//! Checks of the agent that may run here, by its own answers.

use serde_json::Value;

use super::observations::{Agent, Answers, Observations};
use super::report::Finding;

/// A snapshot is published every second.
const OLD: f64 = 10.0;
/// Sentences of one kind that are shown.
const SHOWN: usize = 4;
pub const RESTART: &str = "see its log; kubectl rollout restart, if it does not recover";

pub fn agent(observations: &Observations) -> Finding {
    let own = observations.version;
    match &observations.agent {
        Agent::NotConfigured => {
            Finding::skipped("no admin socket is configured (adminSocket: none); set --url to the agent")
        }
        Agent::Absent(target) if observations.settings.agent_is_named => {
            Finding::failed(format!("no agent listens on {target}"), "start it, or correct --admin-socket or --url")
        }
        Agent::Absent(target) => Finding::skipped(format!("no agent runs here: nothing answers on {target}")),
        Agent::Denied(target) => Finding::failed(
            format!("{target} is accessible to its owner only"),
            "run the doctor as root, like the agent",
        ),
        Agent::Unresponsive { problem, to_do } => Finding::failed(problem, *to_do),
        Agent::Answers(answers) => {
            let said = |record: &Value, key: &str| {
                record.pointer(key).and_then(Value::as_str).map_or("unknown".to_owned(), str::to_owned)
            };
            match &answers.record {
                Ok(record) => {
                    let version = said(record, "/running/version");
                    let found =
                        format!("podmeter {version} ({}) on {}", said(record, "/running/revision"), answers.target);
                    if version == own {
                        Finding::ok(found)
                    } else {
                        Finding::warning(
                            format!("{found}, and this is {own}"),
                            "run the doctor of the agent's own image: kubectl exec … podmeter doctor",
                        )
                    }
                }
                Err(problem) => Finding::warning(
                    format!("{} answers without its version: {problem}", answers.target),
                    "run the doctor of the agent's own version",
                ),
            }
        }
    }
}

/// The agent's answers, or the finding that there are none.
fn answers(observations: &Observations) -> Result<&Answers, Finding> {
    match &observations.agent {
        Agent::Answers(answers) => Ok(answers),
        Agent::NotConfigured | Agent::Absent(_) => Err(Finding::skipped("no agent runs here")),
        Agent::Denied(_) => Err(Finding::skipped("this user may not connect to the agent")),
        Agent::Unresponsive { .. } => Err(Finding::skipped("the agent does not answer")),
    }
}

fn node(observations: &Observations) -> Result<&Value, Finding> {
    answers(observations)?.node.as_ref().map_err(|problem| Finding::failed(problem, RESTART))
}

/// An absent value: the agent is of another version.
fn said<'a>(node: &'a Value, pointer: &str) -> Result<&'a Value, Finding> {
    node.pointer(pointer).ok_or_else(|| {
        Finding::warning(format!("this agent does not report {pointer}"), "run the doctor of the agent's own version")
    })
}

fn either(outcome: Result<Finding, Finding>) -> Finding {
    outcome.unwrap_or_else(|finding| finding)
}

pub fn ready(observations: &Observations) -> Finding {
    either(answers(observations).map(|answers| match &answers.ready {
        Ok(()) => Finding::ok("ready"),
        Err(reason) => Finding::failed(reason, "it becomes ready once that is fixed"),
    }))
}

pub fn problems(observations: &Observations) -> Finding {
    either(node(observations).and_then(|node| problems_of(node, observations.now.0)))
}

fn problems_of(node: &Value, now: f64) -> Result<Finding, Finding> {
    let (mut failed, mut warned) = (vec![], vec![]);
    let at = said(node, "/at/unix")?.as_f64().unwrap_or(0.0);
    if now - at > OLD {
        failed.push(format!("the last snapshot is {:.0} s old", now - at));
    }
    for pointer in ["/kubelet/problem", "/hardware/problem"] {
        failed.extend(said(node, pointer)?.as_str().map(str::to_owned));
    }
    if node.pointer("/config_reload/successful") == Some(&Value::Bool(false)) {
        failed.push("the configuration was not reloaded: the previous one stays in effect; see the log".to_owned());
    }
    if !said(node, "/hardware/released")?.is_null() {
        warned.push("the driver is released on request: `podmeter resume` ends it".to_owned());
    }
    let plugin = node.pointer("/plugin/problems").and_then(Value::as_array).into_iter().flatten();
    warned.extend(plugin.filter_map(Value::as_str).map(str::to_owned));
    warned.extend(node.pointer("/processes/problem").and_then(Value::as_str).map(str::to_owned));
    let violations = said(node, "/violations")?.as_object().into_iter().flatten();
    let violated = violations.filter(|(_, count)| count.as_u64().is_some_and(|count| count > 0));
    warned.extend(violated.map(|(quantity, count)| {
        format!("shares of {quantity} did not add up to their device {count} times: please report this")
    }));
    let to_do = "each names what to do; docs/troubleshooting.md has more";
    let is_failed = !failed.is_empty();
    failed.extend(warned);
    Ok(match (failed.is_empty(), is_failed) {
        (true, _) => Finding::ok("none"),
        (false, true) => Finding::failed(few(&failed), to_do),
        (false, false) => Finding::warning(few(&failed), to_do),
    })
}

fn few(sentences: &[String]) -> String {
    let mut text = sentences.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join("; ");
    if sentences.len() > SHOWN {
        text.push_str(&format!("; and {} more", sentences.len() - SHOWN));
    }
    text
}

pub fn device_health(observations: &Observations) -> Finding {
    either(node(observations).and_then(|node| {
        let gpus = said(node, "/health/gpus")?.as_object().into_iter().flatten();
        let (mut count, mut sick) = (0, vec![]);
        for (gpu, health) in gpus {
            let instances = health["instances"].as_object().into_iter().flatten();
            for (device, health) in std::iter::once((gpu, &health["whole"])).chain(instances) {
                count += 1;
                if health["healthy"] != true {
                    sick.push(format!("{device} is unhealthy: {}", causes(health)));
                }
            }
        }
        Ok(match (count, sick.is_empty()) {
            (0, _) => Finding::skipped("the agent has no devices"),
            (count, true) => Finding::ok(format!("{count} devices, all healthy")),
            (_, false) => {
                Finding::failed(few(&sick), "see docs/health.md for what clears each; drain the pods on them")
            }
        })
    }))
}

/// `detail (clears)` of each.
fn causes(health: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
    let causes = health["causes"].as_array().into_iter().flatten();
    let causes: Vec<String> =
        causes.map(|cause| format!("{} ({})", text(&cause["detail"]), text(&cause["clears"]))).collect();
    if causes.is_empty() { "the reason is unknown".to_owned() } else { causes.join(", ") }
}

pub fn registrations(observations: &Observations) -> Finding {
    either(node(observations).and_then(|node| {
        let plugin = said(node, "/plugin")?;
        if plugin.is_null() {
            return Ok(Finding::skipped("the agent's device plugin is off"));
        }
        let resources: Vec<_> = said(node, "/plugin/resources")?.as_object().into_iter().flatten().collect();
        let (mut good, mut bad) = (vec![], vec![]);
        for (name, state) in resources {
            let text = |key: &str| state[key].as_str();
            match (text("conflict"), text("ended"), state["registered"] == true) {
                (Some(conflict), ..) => bad.push(conflict.to_owned()),
                (None, Some(_), _) => {}
                (None, None, true) => good.push(format!(
                    "{name} with {} devices",
                    state["devices"].as_object().map_or("unknown".to_owned(), |devices| devices.len().to_string())
                )),
                (None, None, false) => {
                    let problem = text("problem").unwrap_or("the registration has not been checked yet");
                    bad.push(format!("{name} is not registered: {problem}"));
                }
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
    }))
}

pub fn scrape(observations: &Observations) -> Finding {
    either(answers(observations).map(|answers| {
        let to_do = "see the agent's log and its --listen; run the doctor in the agent's network namespace";
        let (mut good, mut bad) = (vec![], vec![]);
        for (target, page) in &answers.pages {
            match page {
                Ok(series) => good.push(format!("{target}: {series} series")),
                Err(problem) => bad.push(format!("{target}: {problem}")),
            }
        }
        match (good.is_empty(), bad.is_empty()) {
            (_, false) => Finding::failed(few(&bad), to_do),
            (false, true) => Finding::ok(few(&good)),
            (true, true) if !answers.guarded.is_empty() => Finding::skipped(format!(
                "{} require the credentials of the web configuration; see Prometheus' targets page",
                answers.guarded.join(", ")
            )),
            (true, true) => Finding::warning("the agent does not report where it listens", "set --url"),
        }
    }))
}
